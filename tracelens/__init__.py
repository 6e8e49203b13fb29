"""tracelens: where the step time of a Mixture-of-Experts run goes, from profiler traces.

>>> import tracelens
>>> run = tracelens.load("traces/")                         # files or a directory of ranks
>>> tracelens.analyze(run, "breakdown")["breakdown"]         # a DataFrame
>>> tracelens.render(tracelens.report(run), "report.html")   # or .md, .json, .xlsx, a directory of CSV

Importing this module is cheap; each function imports what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracelens.schema import Report, Result
    from tracelens.trace.run import Run

__version__ = "0.1.0"
__all__ = ["__version__", "analyze", "load", "render", "report"]


def _quiet(_: str) -> None:
    """Report no progress."""


def _nothing() -> None:
    """Do nothing."""


def load(
    *paths: str | os.PathLike[str],
    progress: Callable[[str], None] = _quiet,
    meanwhile: Callable[[], None] = _nothing,
) -> Run:
    """Read traces: files (JSON, plain or .gz, .zst, .zip), directories of ranks, "-" for stdin.

    Args:
        paths: one or more; several traces are the ranks of one job.
        progress: called with a line of text before each file.
        meanwhile: called once while the decoding processes start up, for imports and checks that take time.

    Returns:
        the run, its traces in order of rank.

    Raises:
        ParseError: a file holds no intact trace, or two claim one rank; the message names them.
    """
    from tracelens.parsers.children import Children
    from tracelens.parsers.files import trace_files

    files = trace_files(str(path) for path in paths)
    with Children(files) as children:  # before the imports below, which take as long as they do
        meanwhile()
        from tracelens.parsers import parse
        from tracelens.trace.run import make_run

        traces = []
        for number, file in enumerate(files, start=1):
            progress(f"reading {file}" + (f" ({number} of {len(files)})" if len(files) > 1 else ""))
            traces += parse(file, children.processes)
    return make_run(traces)


def analyze(run: Run, name: str, **options: Any) -> Result:
    """Run one analyzer.

    Args:
        run: from `load`.
        name: as in `tracelens list analyzers`.
        options: such as scope="linked"; options the analyzer does not have are ignored.

    Returns:
        its Result: `result["table"]` is a DataFrame, `result.skips` says what could not be computed.

    Raises:
        UnknownName: no analyzer of this name.
    """
    from tracelens.analyzers import ANALYZERS

    return ANALYZERS.get(name)(run, **options)


def report(
    run: Run,
    names: Iterable[str] | None = None,
    *,
    step: str | None = None,
    progress: Callable[[str], None] = _quiet,
    **options: Any,
) -> Report:
    """Run several analyzers.

    Args:
        run: from `load`.
        names: which analyzers, all registered ones by default.
        step: only this step, "2" for ProfilerStep#2.
        progress: called with a line of text before each analyzer.
        options: as in `analyze`.

    Returns:
        their results in reading order, ready for `render`.
    """
    from tracelens.analyzers import ANALYZERS, in_order
    from tracelens.schema import Report

    if step is not None:
        from tracelens.trace.steps import select_step

        run = select_step(run, step)
        options["step"] = step
    chosen = in_order() if names is None else [ANALYZERS.get(name) for name in names]
    results = []
    for item in chosen:
        progress(f"analyzing {item.name}")
        results.append(item(run, **options))
    devices = sorted({name for trace in run.traces for name in trace.meta.devices.values()})
    meta = {
        "version": __version__,
        "inputs": [trace.meta.path for trace in run.traces],
        "ranks": run.ranks,
        "devices": devices,
        "options": {key: value for key, value in options.items() if value is not None},
    }
    return Report(tuple(results), meta=meta)


def render(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report: the suffix of `path` says how (.html .md .json .xlsx; none: a directory of CSV).

    Raises:
        TracelensError: unknown suffix, missing library, or the path cannot be written.
    """
    from tracelens.renderers import write

    write(report, os.fspath(path))
