"""Comparisons of two runs: `diff` and `gate`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracelens.read import TraceFiles
from tracelens.session.reading import Progress, Source, StrPath, at_step, loaded, quiet
from tracelens.session.reports import Reporting, origin, with_results
from tracelens.session.reports import report as report_run
from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.compare.gate import Samples, Verdict
    from tracelens.guard import Failure
    from tracelens.table import Report, Result
    from tracelens.trace import Run, Scope

GATED = ("steps", "completeness")
"""Analyzers that a gate reads of each side."""


def diff(
    base: Source,
    cand: Source,
    *,
    step: str | int | None = None,
    partial: bool = False,
    progress: Progress = quiet,
) -> Report:
    """Compare two runs: what changed, and what explains the difference in step time.

    Args:
        base: the run before, or its path.
        cand: the run after, or its path; it may have other steps, ranks, libraries and hardware.
        step: only this step of both, "2" or 2 for ProfilerStep#2.
        partial: whether ranks may be missing, for paths.
        progress: called with a line of text before the work.

    Returns:
        a report with the single result "diff", ready for `render`; inputs, ranks and devices in its meta are
        by side.

    Raises:
        TracelensError: a rank has no GPU work, or no such step.
    """
    from dataclasses import replace

    from tracelens.analysis.common import noted
    from tracelens.compare.diff import diff as compare
    from tracelens.table import Report

    sides = {
        side: at_step(loaded(source, partial=partial, progress=progress), step)
        for side, source in (("base", base), ("cand", cand))
    }
    meta: dict[str, Any] = {"version": __version__}
    progress("comparing the runs")
    metas = {side: [trace.meta for trace in run.traces] for side, run in sides.items()}
    result = replace(compare(**sides), command="tracelens diff BASE CAND")
    result = noted(result, [*metas["base"], *metas["cand"]])
    origins = {side: origin(metas[side], run.ranks) for side, run in sides.items()}
    meta |= {
        key: {side: side_origin[key] for side, side_origin in origins.items()} for key in origins["base"]
    }
    if step is not None:
        meta["options"] = {"step": str(step)}
    before, after = result.meta["base_ns"] / 1e6, result.meta["cand_ns"] / 1e6
    change = f"{before:,.3f} ms to {after:,.3f} ms per step"
    change += f" ({after / before - 1:+.1%})" if before else ""
    change += _without_profiler(result)
    return Report((result,), title=f"tracelens diff: {change}", meta=meta)


def _without_profiler(result: Result) -> str:
    """The change of the step without the profiler, "" unless both sides have it."""
    pace = result.data.get("pace")
    if pace is None or len(pace) < 2:
        return ""
    before, after = (pace.array("step_ns") / 1e6).tolist()
    return f", without the profiler {before:,.3f} ms to {after:,.3f} ms ({after / before - 1:+.1%})"


def gate(
    base: Run | Report | StrPath,
    candidate: Run | Report | StrPath,
    rules: str | Sequence[str] = (),
    *,
    config: StrPath | None = None,
    confidence: float | None = None,
    scope: Scope = "all",
    partial: bool = False,
    trust_anyway: bool = False,
    progress: Progress = quiet,
) -> Verdict:
    """Check a run against a baseline.

    Args:
        base: the baseline: a run, a report with the analyzer "steps", or a path of traces or a JSON report.
        candidate: the run to check, likewise.
        rules: limits, like "step.time<=1.03" (a ratio), "step.time<=+2ms" (a difference) or
            "moe.blocking_calls<=3 abs" (a value); without any, those of `config`, or the default ones.
        config: tracelens.toml or pyproject.toml with rules and confidence; None reads no file.
        confidence: family-wise confidence level; 0.98 by default.
        scope: GPU work to count, as for `analyze`.
        partial: whether ranks may be missing.
        trust_anyway: compare also where the recording of a side is in doubt, see the analyzer
            "completeness".
        progress: called with a line of text as the work goes on.

    Returns:
        the verdict, ready for `render`; `verdict.failed` is empty if all rules hold.

    Raises:
        TracelensError: malformed rule, a metric that neither run has, or a side that cannot be read or
            believed.
    """
    from tracelens.compare.gate import CONFIDENCE, Settings, read_rule, settings
    from tracelens.compare.gate import gate as judge

    from_file = Settings() if config is None else settings(os.fspath(config))
    texts = [rules] if isinstance(rules, str) else rules
    limits = [read_rule(text) for text in texts or from_file.rules]
    levels = (confidence, from_file.confidence, CONFIDENCE)
    sides = []
    for side in (base, candidate):
        if isinstance(side, str | os.PathLike):
            side_samples, _ = samples(os.fspath(side), scope=scope, partial=partial, progress=progress)
            sides.append(side_samples)
        else:
            sides.append(_of_run(side, scope, progress))
    before, after = sides
    level = next(level for level in levels if level is not None)
    return judge(before, after, limits, confidence=level, trust_anyway=trust_anyway)


def samples(
    path: str,
    traces: TraceFiles | None = None,
    *,
    scope: Scope = "all",
    partial: bool = False,
    progress: Progress = quiet,
) -> tuple[Samples, Sequence[Failure]]:
    """One side of a gate, from traces or a saved report.

    Args:
        path: of either.
        traces: expanded paths, this one among them.
        scope: as for `gate`.
        partial: as for `gate`.
        progress: as for `gate`.

    Returns:
        the samples, and the analyzers that failed.
    """
    from tracelens.compare.gate import from_result, read_saved

    saved = read_saved(path)
    if saved is not None:
        return saved, ()
    files = (traces or TraceFiles()).of(path)
    with Reporting(files, partial=partial, progress=progress) as reporting:
        report = reporting.report(GATED, scope=scope)
    steps = with_results(report)["steps"]
    return from_result(steps, path, __version__, report.meta.get("trust")), report.failures


def _of_run(side: Run | Report, scope: Scope, progress: Progress) -> Samples:
    from tracelens.compare.gate import from_result
    from tracelens.table import Report

    report = side if isinstance(side, Report) else report_run(side, GATED, scope=scope, progress=progress)
    name = ", ".join(map(str, report.meta.get("inputs", ()))) or "a report"
    version = str(report.meta.get("version", __version__))
    return from_result(with_results(report)["steps"], name, version, report.meta.get("trust"))
