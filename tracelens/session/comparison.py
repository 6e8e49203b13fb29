"""The comparison of two runs: `diff`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracelens.read import sources_of_sides
from tracelens.session.reading import Progress, Source, StrPath, at_step, loaded, quiet
from tracelens.session.reports import origin
from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.table import Report, Result


def diff(
    base: Source,
    cand: Source,
    *,
    step: str | int | None = None,
    partial: bool = False,
    captures: StrPath | Sequence[StrPath] = (),
    twin: StrPath | Sequence[StrPath] = (),
    progress: Progress = quiet,
) -> Report:
    """Compare two runs: what changed, and what explains the difference in step time.

    Args:
        base: the run before, or its path.
        cand: the run after, or its path; it may have other steps, ranks, libraries and hardware.
        step: only this step of both, "2" or 2 for ProfilerStep#2.
        partial: whether ranks may be missing, for paths.
        captures: for paths, as for `load`: one for both sides, or one for the base and one for the candidate.
        twin: likewise. A side whose graph launches are attributed to no op has the other side as its twin.
        progress: called with a line of text before the work.

    Returns:
        a report with the single result "diff", ready for `render`; inputs, ranks and devices in its meta are
        by side.

    Raises:
        TracelensError: a rank has no GPU work, or no such step.
        ParseError: captures or twin cannot be read.
    """
    from dataclasses import replace

    from tracelens.analysis.common import noted
    from tracelens.compare.diff import diff as compare
    from tracelens.summary import result_summary
    from tracelens.table import Report
    from tracelens.trace.graphs import with_twin

    runs = [
        loaded(source, partial=partial, progress=progress, graphs=graphs)
        for source, graphs in zip((base, cand), sources_of_sides(captures, twin), strict=True)
    ]
    twins = with_twin(runs[0], runs[1]), with_twin(runs[1], runs[0])
    sides = {side: at_step(run, step) for side, run in zip(("base", "cand"), twins, strict=True)}
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
    return Report((result,), f"tracelens diff: {change}", meta, result_summary(result))


def _without_profiler(result: Result) -> str:
    """The change of the step without the profiler, "" unless both sides have it."""
    pace = result.data.get("pace")
    if pace is None or len(pace) < 2:
        return ""
    before, after = (pace.array("step_ns") / 1e6).tolist()
    return f", without the profiler {before:,.3f} ms to {after:,.3f} ms ({after / before - 1:+.1%})"
