"""Runs analyzers on a run, or on files in the processes that read them; writes reports.

A report says what the run was, as far as its traces and the file that the recorder writes beside them tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tracelens.errors import ParseError, TracelensError
from tracelens.read import SideTraces, TraceFiles
from tracelens.session.reading import Graphs, Reading, loaded
from tracelens.session.request import Progress, StrPath, quiet
from tracelens.version import __version__
from tracelens.workers import can_copy, start

if TYPE_CHECKING:
    from tracelens.analysis import Analyzer
    from tracelens.compare.gate import Verdict
    from tracelens.table import Report, Result
    from tracelens.trace import Run, Scope, TraceMeta
    from tracelens.workers import Ahead, Executor, ParkedTraces

_OF_THE_FILE = {"completeness", "input"}
"""Analyzers that look at what was recorded, whatever it is."""
_WITHOUT_WORK = {"findings", "roofline"}
"""Analyzers that list what they checked and the peaks of devices also where there is no work."""


class Reporting(ExitStack):
    """Files to read and analyze; the processes that do so start at once, as for `Reading`.

    A single file is read into this process. Several files are read and analyzed one by one by the next free
    process, so that no process holds more than one trace; or by the workers of a Dask scheduler (tcp://...).

    Args:
        files: to read.
        reads: how.
        dask: address of the scheduler.
        fork: whether copies of this process may do some of the work; they are made for the report.
        keep: whether `run` is asked for after the report.
        side_traces: those that other runs of the same request read, and this one reads with them.
    """

    def __init__(
        self,
        files: Sequence[str],
        reads: Graphs | None = None,
        *,
        dask: str | None = None,
        fork: bool = False,
        keep: bool = False,
        side_traces: SideTraces | None = None,
    ) -> None:
        super().__init__()
        self._files, self._reads, self._dask, self._keep = files, reads or Graphs(), dask, keep
        self._fork = fork and can_copy()
        self._kept: Run | ParkedTraces | None = None
        self._reading: Reading | None = None
        self._execute: Executor | None = None
        if dask is not None:
            return  # its workers already run
        if len(files) == 1:
            self._reading = self.enter_context(Reading(files, self._reads, side_traces))
        elif not self._fork:
            self._execute = self.enter_context(start(files))

    def report(
        self,
        names: Iterable[str] | None = None,
        *,
        step: str | int | None = None,
        ahead: Ahead | None = None,
        **options: Any,
    ) -> Report:
        """Read and analyze the files; arguments and errors as for `report` and `load`.

        What `ahead` makes of results while others are made, in a copy of this process, is `prepared`.
        """
        analyzers, options = _checked(names, options)
        reads, step = self._reads, None if step is None else str(step)
        run: Run | None = None
        if self._reading is not None:
            run = self._reading.run()
        elif step is not None and _is_phase(step):  # which steps are in it, all ranks tell together
            run = loaded(TraceFiles(self._files), None, reads)
        if run is not None:
            self._kept = run if self._keep else None
            result = _of_run(
                run, analyzers, step, options, fork=self._fork, progress=reads.progress, ahead=ahead
            )
            return _telling(result, [trace.meta for trace in run.traces])
        from tracelens.workers import ParkedTraces, analyze_files

        parked = self._kept = ParkedTraces() if self._keep else None

        portions, results, prepared = analyze_files(
            self._files,
            [item.name for item in analyzers],
            self._execute or self.enter_context(start(self._files, self._dask, fork=self._fork)),
            step=step,
            partial=reads.partial,
            graphs=reads.graphs,
            progress=reads.progress,
            park=parked,
            fork=self._fork,
            ahead=ahead,
            **options,
        )
        metas, ranks = [portion.meta for portion in portions], [portion.rank for portion in portions]
        made = assembled(results, metas, ranks, {"step": step, **options})
        return _telling(replace(made, prepared=prepared), metas)

    def run(self) -> Run:
        """All that was read for the report; only one of `keep`."""
        from tracelens.workers import ParkedTraces

        kept = self._kept
        assert kept is not None, "a report with keep=True comes first"
        return kept.run(partial=self._reads.partial) if isinstance(kept, ParkedTraces) else kept

    def park(self) -> None:
        """Put what `run` returns out of memory, until it is asked for."""
        from tracelens.workers import ParkedTraces

        if self._kept is not None and not isinstance(self._kept, ParkedTraces):
            self._kept = ParkedTraces(self._kept.traces)


def analyze(
    run: Run,
    name: str,
    *,
    step: str | int | None = None,
    scope: Scope | None = None,
    device: str | None = None,
    device_file: StrPath | None = None,
    **options: Any,
) -> Result:
    """Run one analyzer.

    Args:
        run: from `load`.
        name: as in `tracelens list analyzers`.
        step: only this step, "2" or 2 for ProfilerStep#2; "decode", "prefill" or "mixed" for all steps of
            this phase of serving.
        scope: GPU work to count: "all", or "linked" for work whose launch call is in the trace.
        device: measure against this device instead of the one in the trace, as in `tracelens list devices`.
        device_file: measure against the device that this TOML file describes.
        options: of the analyzer; `scope` and the devices, too, only if it has them.

    Returns:
        its Result: `result["table"]` is a DataFrame, `result.skips` says what could not be computed.

    Raises:
        UnknownName: no analyzer or device of this name.
        WrongOption: the analyzer has no such option, or the option no such value.
        TracelensError: no such step.
    """
    options = _given(scope=scope, device=device, device_file=device_file) | options
    return report(run, [name], step=step, **options).results[0]


def report(
    run: Run,
    names: Iterable[str] | None = None,
    *,
    step: str | int | None = None,
    scope: Scope | None = None,
    device: str | None = None,
    device_file: StrPath | None = None,
    fork: bool = False,
    progress: Progress = quiet,
    **options: Any,
) -> Report:
    """Run several analyzers.

    Args:
        run: from `load`.
        names: which analyzers, all registered ones by default.
        step: as for `analyze`.
        scope: as for `analyze`; an option goes to the analyzers that have it, at least one of them.
        device: as `scope`.
        device_file: as `scope`.
        fork: whether a fork of this process may do part of the work; not for programs with threads.
        progress: called with a line of text before each analyzer.
        options: as `scope`.

    Returns:
        their results in reading order, ready for `render`.

    Raises:
        TracelensError: as for `analyze`.
    """
    options = _given(scope=scope, device=device, device_file=device_file) | options
    analyzers, options = _checked(names, options)
    return _of_run(run, analyzers, step, options, fork=fork, progress=progress)


def _of_run(
    run: Run,
    analyzers: Sequence[Analyzer],
    step: str | int | None,
    options: Mapping[str, Any],
    *,
    fork: bool,
    progress: Progress,
    ahead: Ahead | None = None,
) -> Report:
    """The report of a run in memory; arguments as for `report` and `Reporting.report`."""
    from tracelens.workers import analyze_run

    run = loaded(run, step)
    results, prepared = analyze_run(run, analyzers, fork=fork, progress=progress, ahead=ahead, **options)
    named = {**options, "step": None if step is None else str(step)}
    made = assembled(results, [trace.meta for trace in run.traces], run.ranks, named)
    return replace(made, prepared=prepared)


def report_files(
    *paths: StrPath,
    names: Iterable[str] | None = None,
    step: str | int | None = None,
    scope: Scope | None = None,
    device: str | None = None,
    device_file: StrPath | None = None,
    partial: bool = False,
    captures: StrPath = "",
    twin: StrPath = "",
    dask: str | None = None,
    fork: bool = False,
    progress: Progress = quiet,
    **options: Any,
) -> Report:
    """Read traces and run several analyzers: `report(load(...))` with one trace per core in memory.

    Args:
        paths: as for `load`.
        names: as for `report`.
        step: as for `analyze`.
        scope: as for `report`.
        device: as for `report`.
        device_file: as for `report`.
        partial: as for `load`.
        captures: as for `load`.
        twin: as for `load`.
        dask: address of a Dask scheduler whose workers read and analyze the files, tcp://...
        fork: as for `report`.
        progress: called with a line of text as the work goes on.
        options: as for `report`.

    Returns:
        the results in reading order, ready for `render`.

    Raises:
        TracelensError: a file cannot be read, no trace has work to report on, they are not the ranks of one
            job, or as for `analyze`.
    """
    options = _given(scope=scope, device=device, device_file=device_file) | options
    reads = Graphs(partial=partial, captures=os.fspath(captures), twin=os.fspath(twin), progress=progress)
    with Reporting(TraceFiles(paths).all(), reads, dask=dask, fork=fork) as reporting:
        return reporting.report(names, step=step, **options)


def render(report: Report | Result | Verdict, path: StrPath) -> None:
    """Write a report in the format of the suffix: .html .md .json .xlsx; none for a directory of CSV.

    Args:
        report: a report, a single result, or the verdict of `gate`.
        path: where to.

    Raises:
        TracelensError: unknown suffix, missing library, or the path cannot be written.
    """
    from tracelens.rendering import write

    write(as_report(report), os.fspath(path))


def as_report(
    renderable: Report | Result | Verdict, title: str = "", inputs: Sequence[str] | None = None
) -> Report:
    """A result or verdict as a report of its own, `tracelens {title}`; a report unchanged."""
    from tracelens.table import Report, Result

    if isinstance(renderable, Report):
        return renderable
    if isinstance(renderable, Result):
        from tracelens.rendering.summary import result_summary

        meta = {"version": __version__} | ({} if inputs is None else {"inputs": list(inputs)})
        title = f"tracelens {title or renderable.analyzer}"
        return Report((renderable,), title, meta, result_summary(renderable))
    from tracelens.compare.gate import report

    return report(renderable, version=__version__, inputs=[renderable.base, renderable.candidate])


def _checked(
    names: Iterable[str] | None, options: Mapping[str, Any]
) -> tuple[list[Analyzer], dict[str, Any]]:
    """Analyzers in the order of their results, and options; TracelensError for unknown names and options."""
    from tracelens.analysis import ANALYZERS, check_options, in_order
    from tracelens.analysis.common import choose_device

    names = [names] if isinstance(names, str) else names
    analyzers = in_order() if names is None else [ANALYZERS.get(name) for name in names]
    checked = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()
    }
    check_options(analyzers, checked)
    choose_device(checked.get("device"), checked.get("device_file"))
    return analyzers, checked


def _is_phase(step: str) -> bool:
    from tracelens.analysis.serving import PHASES

    return step in PHASES


def _given(**options: Any) -> dict[str, Any]:
    """Those of the options that say something; to know that none has the others takes all analyzers."""
    return {name: value for name, value in options.items() if value is not None}


def with_results(report: Report) -> Report:
    """The report; raises TracelensError if bugs left it without any result."""
    if report.failures and not any(result.data for result in report.results):
        raise TracelensError("; ".join(dict.fromkeys(report.failures)))
    return report


def _telling(report: Report, metas: Sequence[TraceMeta]) -> Report:
    """The report; raises ParseError if it tells nothing, since no trace has work."""
    asked = {result.analyzer for result in report.results} - _OF_THE_FILE
    told = {result.analyzer for result in report.results if any(map(len, result.data.values()))}
    if asked and not (asked & told - _WITHOUT_WORK) and all(meta.no_work for meta in metas):
        nothing = "nothing to report but counts of events (`tracelens analyze input`)"
        damage = next((f"{meta.damage}; record or copy it again" for meta in metas if meta.damage), "")
        raise ParseError(metas[0].path, f"{nothing}: {damage or metas[0].no_work}")
    return report


def assembled(
    results: Sequence[Result], metas: Sequence[TraceMeta], ranks: Sequence[int], options: Mapping[str, Any]
) -> Report:
    """A report with the origin and options of its results; doubts about the recording come first."""
    # What only a report of everything needs is imported when it is one: `analyze` has a single result.
    from tracelens.analysis.common import noted, setup_of
    from tracelens.table import Report

    named = {key: value for key, value in options.items() if value is not None}
    meta = {"version": __version__, **origin(metas, ranks), "options": named}
    if known := setup_of(metas, ranks).document():
        meta["setup"] = known
    by_name = {result.analyzer: result for result in results}
    if steps := by_name.get("steps"):
        from tracelens.analysis.overview import PACE_META

        # A report begins with what a step takes when nobody looks.
        meta |= {key: steps.meta[key] for key in PACE_META if key in steps.meta}
    if completeness := by_name.get("completeness"):
        from tracelens.analysis.completeness import trust

        meta["trust"] = trust(completeness)
        if not meta["trust"]["complete"]:
            # Whoever reads on should know what not to believe.
            results = [completeness, *(other for other in results if other is not completeness)]
    results = [noted(result, metas) for result in results]
    if options.get("step") is None:
        results = _covering(results)
    summary = None
    if steps:
        from tracelens.analysis.host import HOST_CAUSES
        from tracelens.rendering.summary import run_summary

        summary = run_summary(results, meta, HOST_CAUSES)
    return Report(tuple(results), meta=meta, summary=summary)


def _covering(results: Sequence[Result]) -> list[Result]:
    """Results of which those say so whose times are of all steps together."""
    from tracelens.analysis import ANALYZERS
    from tracelens.units import plural

    tables = [result.data["steps"] for result in results if result.analyzer == "steps" and result.data]
    count = len({*tables[0].cells("step")}) if tables else 0
    covers = "whole recording" + (f", {plural(count, 'step')}" if count else "")
    return [
        replace(result, meta={**result.meta, "covers": covers})
        if ANALYZERS.get(result.analyzer).sums_steps
        else result
        for result in results
    ]


def origin(metas: Sequence[TraceMeta], ranks: Sequence[int]) -> dict[str, Any]:
    """Inputs, ranks and devices of a report."""
    from tracelens.analysis.common import device_names

    return {"inputs": [meta.path for meta in metas], "ranks": list(ranks), "devices": device_names(metas)}
