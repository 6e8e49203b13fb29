"""`gate`: runs against a baseline, and why they differ."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, TypeAlias

from tracelens.errors import TracelensError
from tracelens.read import BESIDE, GraphSources, TraceFiles, sources_of_sides
from tracelens.session.comparison import diff
from tracelens.session.reading import Progress, Source, StrPath, quiet
from tracelens.session.reports import Reporting, with_results
from tracelens.session.reports import report as report_run
from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.compare.gate import Samples, Side, Verdict
    from tracelens.guard import Failure
    from tracelens.table import Report
    from tracelens.trace import Run, Scope

GATED = ("steps", "completeness")
"""Analyzers that a gate reads of each run."""

Recording: TypeAlias = "Run | Report | StrPath"
"""One run: in memory, a report with the analyzer "steps", or a path of traces, a report or a baseline."""


@dataclass(frozen=True)
class GateSide:
    """One side of a gate as it was read."""

    side: Side
    sources: tuple[Source | None, ...]  # the traces of each run; None where there are only metrics
    graphs: GraphSources = BESIDE  # from which its graph launches are attributed
    failures: tuple[Failure, ...] = ()  # analyzers that failed


def gate(
    base: Recording | Sequence[Recording],
    candidate: Recording | Sequence[Recording],
    rules: str | Sequence[str] = (),
    *,
    config: StrPath | None = None,
    confidence: float | None = None,
    min_effect: float | None = None,
    allow: Collection[str] = (),
    scope: Scope = "all",
    partial: bool = False,
    captures: StrPath | Sequence[StrPath] = (),
    twin: StrPath | Sequence[StrPath] = (),
    trust_anyway: bool = False,
    why: bool = True,
    progress: Progress = quiet,
) -> Verdict:
    """Check runs against a baseline.

    Args:
        base: the baseline: a run, a report with the analyzer "steps", or a path of traces, a JSON report or a
            stored baseline; or several of them, recordings of one program.
        candidate: the run or runs to check, likewise.
        rules: limits, like "step.time<=1.03" (a ratio), "step.time<=+2ms" (a difference) or
            "moe.blocking_calls<=3 abs" (a value); without any, those of `config`, or the default ones.
        config: tracelens.toml or pyproject.toml with rules and options; None reads no file.
        confidence: family-wise confidence level; 0.99 by default.
        min_effect: times and fractions that change by less than this share of the step do not fail.
        allow: which of "device", "ranks" and "model" may differ.
        scope: GPU work to count, as for `analyze`.
        partial: whether ranks may be missing.
        captures: as for `diff`: one path for both sides, or one for the base and one for the candidate.
        twin: likewise.
        trust_anyway: compare also where the recording of a side is in doubt, see the analyzer
            "completeness".
        why: whether to look for the causes where the verdict is not "pass".
        progress: called with a line of text as the work goes on.

    Returns:
        the verdict, ready for `render`: `verdict.verdict` is "pass", "fail" or "inconclusive",
        `verdict.outcomes` has one entry a rule, `verdict.causes` the largest causes of the difference.

    Raises:
        TracelensError: malformed rule, a metric that neither side has, runs that cannot be compared, or a
            side that cannot be read or believed.
    """
    from tracelens.compare.gate import Options, Settings, settings
    from tracelens.compare.gate import gate as judge

    loaded = Settings() if config is None else settings(os.fspath(config))
    options = Options.of(loaded, [rules] if isinstance(rules, str) else rules, confidence, min_effect)
    before, after = (
        gate_side(side, scope=scope, partial=partial, graphs=graphs, progress=progress)
        for side, graphs in zip((base, candidate), sources_of_sides(captures, twin), strict=True)
    )
    levels = {"confidence": options.confidence, "min_effect": options.min_effect}
    verdict = judge(before.side, after.side, options.rules, allow=allow, trust_anyway=trust_anyway, **levels)
    if why and verdict.verdict != "pass":
        verdict, _ = explain(verdict, before, after, partial=partial, progress=progress)
    return verdict


def gate_side(
    recordings: Recording | Sequence[Recording],
    traces: TraceFiles | None = None,
    *,
    scope: Scope = "all",
    partial: bool = False,
    graphs: GraphSources = BESIDE,
    progress: Progress = quiet,
) -> GateSide:
    """One side of a gate, from runs, traces, saved reports or a stored baseline.

    Args:
        recordings: one, or several of one program.
        traces: expanded paths, these among them.
        scope: as for `gate`.
        partial: as for `gate`.
        graphs: captures and twin from which graph launches of this side are attributed.
        progress: as for `gate`.

    Raises:
        TracelensError: there is none, or it cannot be read.
    """
    from tracelens.compare.gate import Side
    from tracelens.table import Report
    from tracelens.trace import Run

    single = isinstance(recordings, str | os.PathLike | Run | Report)
    items: Sequence[Recording] = [recordings] if single else recordings  # type: ignore[assignment, list-item]
    if not items:
        raise TracelensError("a side has no run; pass at least one")
    read = [_read(item, traces or TraceFiles(), scope, partial, graphs, progress) for item in items]
    if len(read) == 1:
        return read[0]
    return GateSide(
        Side(
            tuple(run for part in read for run in part.side.runs),
            tuple(group for part in read for group in part.side.history),
        ),
        tuple(source for part in read for source in part.sources),
        graphs,
        tuple(failure for part in read for failure in part.failures),
    )


def _read(
    item: Recording,
    traces: TraceFiles,
    scope: Scope,
    partial: bool,
    graphs: GraphSources,
    progress: Progress,
) -> GateSide:
    from tracelens.compare.gate import Side, baseline_side, read_baseline, read_saved
    from tracelens.table import Report

    if not isinstance(item, str | os.PathLike):
        report = item if isinstance(item, Report) else report_run(item, GATED, scope=scope, progress=progress)
        name = ", ".join(map(str, report.meta.get("inputs", ()))) or "a report"
        source = None if isinstance(item, Report) else item
        return GateSide(Side((_samples(report, name),)), (source,))
    path = os.fspath(item)
    if (stored := read_baseline(path)) is not None:
        side = baseline_side(stored, path)
        return GateSide(side, (None,) * len(side.runs))
    if (saved := read_saved(path)) is not None:
        return GateSide(Side((saved,)), (None,))
    with Reporting(traces.of(path), partial=partial, progress=progress, graphs=graphs) as reporting:
        report = reporting.report(GATED, scope=scope)
    return GateSide(Side((_samples(report, path),)), (path,), graphs, tuple(report.failures))


def _samples(report: Report, name: str) -> Samples:
    from tracelens.compare.gate import from_result

    version = str(report.meta.get("version", __version__))
    steps = with_results(report)["steps"]
    return from_result(steps, name, version, report.meta.get("trust"), report.meta.get("setup"))


def explain(
    verdict: Verdict,
    base: GateSide,
    candidate: GateSide,
    *,
    partial: bool = False,
    progress: Progress = quiet,
) -> tuple[Verdict, Report | None]:
    """The verdict with the largest causes of the difference, and the diff that tells them.

    Of several runs of a side with traces the typical one counts: whose step time is nearest to their mean.
    Where a side has no traces, the causes are the largest moves among its metrics, and there is no diff.
    """
    from tracelens.compare.gate import of_diff, of_metrics

    sources = _typical(base), _typical(candidate)
    if sources[0] is not None and sources[1] is not None:
        try:
            captures, twins = zip(base.graphs, candidate.graphs, strict=True)
            compared = diff(
                sources[0], sources[1], partial=partial, captures=captures, twin=twins, progress=progress
            )
        except TracelensError:  # runs with metrics of the host only
            pass
        else:
            return verdict.because(of_diff(compared["diff"])), compared
    return verdict.because(of_metrics(base.side, candidate.side)), None


def _typical(side: GateSide) -> Source | None:
    """The traces of the run whose step time is nearest to the mean; None if no run has traces."""
    traced = [number for number, source in enumerate(side.sources) if source is not None]
    if not traced:
        return None
    times = [float(side.side.runs[number].each_step("step.time").mean()) for number in traced]
    average = mean(times)
    return side.sources[min(zip(traced, times, strict=True), key=lambda run: abs(run[1] - average))[0]]


def grown_baseline(
    recordings: Sequence[Recording],
    path: StrPath,
    *,
    commit: str = "",
    keep: int | None = None,
    scope: Scope = "all",
    partial: bool = False,
    progress: Progress = quiet,
) -> tuple[bytes, int]:
    """A stored baseline with these runs as its newest.

    Args:
        recordings: runs of one version of the program.
        path: of the baseline so far; it may not exist yet.
        commit: the version of the program, "" if unknown.
        keep: the most runs to keep; 20 by default.
        scope: as for `gate`.
        partial: as for `gate`.
        progress: as for `gate`.

    Returns:
        the content of the file, and how many runs it has.

    Raises:
        TracelensError: a run cannot be read, or `path` is something else than a baseline.
    """
    from tracelens.compare.gate import KEEP, add_to_baseline

    side = gate_side(recordings, scope=scope, partial=partial, progress=progress).side
    return add_to_baseline(os.fspath(path), side.runs, commit, KEEP if keep is None else keep)
