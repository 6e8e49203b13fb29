"""tracelens: where the step time of a Mixture-of-Experts run goes, from profiler traces.

>>> import tracelens
>>> run = tracelens.load("traces/")                         # files or a directory of ranks
>>> tracelens.analyze(run, "breakdown")["breakdown"]         # a DataFrame
>>> tracelens.render(tracelens.report(run), "report.html")   # or .md, .json, .xlsx, a directory of CSV
>>> tracelens.diff(tracelens.load("before/"), run)["diff"]["waterfall"]  # what changed between two runs
>>> tracelens.whatif(run, ["no_blocking"])["whatif"]         # the step if no call waited for the GPU
>>> with tracelens.record("traces/") as r: ...               # in a training loop: r.step() after each step

Importing this module is cheap; each function imports what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.analysis import Analyzer
    from tracelens.recording import record
    from tracelens.table import Report, Result
    from tracelens.trace import Run, TraceMeta
    from tracelens.what_if import whatif
else:

    def __getattr__(name: str) -> Any:
        # Not functions that repeat long signatures; type checkers see the imports above.
        if name == "record":
            from tracelens.recording import record

            return record
        if name == "whatif":
            from tracelens.what_if import whatif

            return whatif
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["__version__", "analyze", "diff", "load", "record", "render", "report", "report_files", "whatif"]


def _quiet(_: str) -> None:
    """Report no progress."""


def _nothing() -> None:
    """Do nothing."""


def load(
    *paths: str | os.PathLike[str],
    partial: bool = False,
    progress: Callable[[str], None] = _quiet,
    meanwhile: Callable[[], None] = _nothing,
) -> Run:
    """Read traces: files (JSON, plain or .gz, .zst, .zip), directories of ranks, "-" for stdin.

    Args:
        paths: one or more; several traces are the ranks of one job. Patterns ("traces/rank*.json.gz") and,
            with the extra `remote`, addresses (s3://, https://, ...) are files and directories too.
        partial: whether ranks may be missing between others.
        progress: called with a line of text before each file.
        meanwhile: called once while the decoding processes start up, for imports and checks that take time.

    Returns:
        the run, its traces in order of rank.

    Raises:
        ParseError: a file holds no intact trace, or two claim one rank; the message names them.
    """
    from tracelens.read import trace_files
    from tracelens.workers import Children

    files = trace_files(str(path) for path in paths)
    with Children(files) as children:  # before the imports below, which take as long as they do
        meanwhile()
        from tracelens.read import parse
        from tracelens.trace import make_run

        traces = []
        for number, file in enumerate(files, start=1):
            progress(f"reading {file}" + (f" ({number} of {len(files)})" if len(files) > 1 else ""))
            traces += parse(file, children.processes)
    return make_run(traces, partial=partial)


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
    from tracelens.analysis import ANALYZERS
    from tracelens.analysis.common import noted

    return noted(ANALYZERS.get(name)(run, **options), [trace.meta for trace in run.traces])


def report(
    run: Run,
    names: Iterable[str] | None = None,
    *,
    step: str | None = None,
    fork: bool = False,
    progress: Callable[[str], None] = _quiet,
    **options: Any,
) -> Report:
    """Run several analyzers.

    Args:
        run: from `load`.
        names: which analyzers, all registered ones by default.
        step: only this step, "2" for ProfilerStep#2.
        fork: whether a copy of this process may do part of the work; not for programs with threads.
        progress: called with a line of text before each analyzer.
        options: as in `analyze`.

    Returns:
        their results in reading order, ready for `render`.
    """
    from tracelens.analysis import ANALYZERS, in_order, with_needed

    if step is not None:
        from tracelens.trace import select_step

        run = select_step(run, step)
        options["step"] = step
    chosen = in_order() if names is None else [ANALYZERS.get(name) for name in names]
    needed = with_needed(chosen)
    slow = [item for item in needed if item.slow] if fork and len(run.traces) == 1 else []
    found = _run(needed, slow, run, progress, options)
    results = [found[item.name] for item in chosen]
    return _report(results, [trace.meta for trace in run.traces], run.ranks, options)


def _run(
    chosen: Sequence[Analyzer],
    slow: Sequence[Analyzer],
    run: Run,
    progress: Callable[[str], None],
    options: Mapping[str, Any],
) -> dict[str, Result]:
    """The results of all analyzers by name, those in `slow` from a copy of this process beside it."""
    from tracelens.workers import beside, jobs

    # What both processes need is made before there are two of them.
    events = len(run.traces[0].arrays.start) if slow and len(run.traces[0].work.event) else 0

    def parts() -> list[Any]:
        return [item.part_of(run.traces[0], **options) for item in slow]

    found: dict[str, Result] = {}
    with beside(parts, events, jobs()) as wait:
        for item in chosen:
            if item not in slow:
                progress(f"analyzing {item.name}")
                found[item.name] = item(run, found, **options)
        for done in wait():
            found |= {
                item.name: item.combine([part], **options) for item, part in zip(slow, done, strict=True)
            }
    for item in slow:
        if item.name not in found:
            progress(f"analyzing {item.name}")
            found[item.name] = item(run, **options)
    return found


def _report(
    results: Sequence[Result], metas: Sequence[TraceMeta], ranks: Sequence[int], options: Mapping[str, Any]
) -> Report:
    from tracelens.analysis.common import device_names, noted
    from tracelens.table import Report

    meta = {
        "version": __version__,
        "inputs": [meta.path for meta in metas],
        "ranks": list(ranks),
        "devices": device_names(metas),
        "options": {key: value for key, value in options.items() if value is not None},
    }
    return Report(tuple(noted(one, metas) for one in results), meta=meta)


def report_files(
    *paths: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    step: str | None = None,
    partial: bool = False,
    dask: str | None = None,
    fork: bool = False,
    progress: Callable[[str], None] = _quiet,
    meanwhile: Callable[[], None] = _nothing,
    **options: Any,
) -> Report:
    """Read traces and run several analyzers: as `report(load(...))`, with one trace a core in memory.

    Args:
        paths: as for `load`.
        names: as for `report`.
        step: as for `report`.
        partial: as for `load`.
        dask: address of a Dask scheduler whose workers read and analyze the files, tcp://...
        fork: as for `report`.
        progress: called with a line of text as the work goes on.
        meanwhile: called once while other processes start up.
        options: as in `analyze`.

    Returns:
        the results in reading order, ready for `render`.

    Raises:
        TracelensError: a file cannot be read, or they are not the ranks of one job.
    """
    from tracelens.read import trace_files

    files = trace_files(str(path) for path in paths)
    if len(files) == 1 and dask is None:
        run = load(*files, partial=partial, progress=progress, meanwhile=meanwhile)
        return report(run, names, step=step, fork=fork, progress=progress, **options)
    from tracelens.workers import start

    with start(files, dask) as execute:
        meanwhile()
        from tracelens.analysis import ANALYZERS, in_order
        from tracelens.workers import analyze_files

        chosen = [item.name for item in in_order()] if names is None else list(names)
        for name in chosen:
            ANALYZERS.get(name)
        found, results = analyze_files(
            files, chosen, execute, step=step, partial=partial, progress=progress, **options
        )
    metas = [portion.meta for portion in found]
    return _report(results, metas, [portion.rank for portion in found], {"step": step, **options})


def diff(
    base: Run, cand: Run, *, step: str | None = None, progress: Callable[[str], None] = _quiet
) -> Report:
    """Compare two runs: what changed, and where the difference of their step times comes from.

    Args:
        base: from `load`: the run before.
        cand: the run after; it may have other steps, ranks, libraries and hardware.
        step: only this step of both, "2" for ProfilerStep#2.
        progress: called with a line of text before the work.

    Returns:
        a report whose one result is "diff", ready for `render`; inputs, ranks and devices in its meta are
        told by side.

    Raises:
        TracelensError: a rank has no GPU work, or no such step.
    """
    from dataclasses import replace

    from tracelens.analysis.common import noted
    from tracelens.compare.diff import diff as compare
    from tracelens.table import Report

    sides = {"base": base, "cand": cand}
    if step is not None:
        from tracelens.trace import select_step

        sides = {side: select_step(run, step) for side, run in sides.items()}
    progress("comparing the runs")
    metas = [trace.meta for run in sides.values() for trace in run.traces]
    found = noted(replace(compare(**sides), command="tracelens diff BASE CAND"), metas)
    single = {
        side: _report((), [trace.meta for trace in run.traces], run.ranks, {}) for side, run in sides.items()
    }
    meta: dict[str, Any] = {"version": __version__}
    meta |= {
        key: {side: one.meta[key] for side, one in single.items()} for key in ("inputs", "ranks", "devices")
    }
    if step is not None:
        meta["options"] = {"step": step}
    before, after = found.meta["base_ns"] / 1e6, found.meta["cand_ns"] / 1e6
    change = f"{before:,.3f} ms to {after:,.3f} ms a step"
    change += f" ({after / before - 1:+.1%})" if before else ""
    return Report((found,), title=f"tracelens diff: {change}", meta=meta)


def render(report: Report, path: str | os.PathLike[str]) -> None:
    """Write a report: the suffix of `path` says how (.html .md .json .xlsx; none: a directory of CSV).

    Raises:
        TracelensError: unknown suffix, missing library, or the path cannot be written.
    """
    from tracelens.rendering import write

    write(report, os.fspath(path))
