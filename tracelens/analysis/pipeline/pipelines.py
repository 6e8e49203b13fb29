"""The pipelines of a run: which rank is which stage, all on one clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracelens.analysis.pipeline.microbatches import Passes
from tracelens.analysis.pipeline.stages import Lane
from tracelens.table import Skip
from tracelens.trace import Union

_LISTED = 16


class Stage(NamedTuple):
    """A rank with its place in a pipeline; times by the common clock."""

    part: Passes
    stage: int
    shift: int


def pipelines(
    ranks: Sequence[Passes], shift: Mapping[int, int], skips: list[Skip]
) -> list[tuple[int, list[Stage]]]:
    """The pipelines: number of stages, and those that are in the run.

    Ranks with spans that cannot be placed get a skip.

    Args:
        ranks: from `passes`.
        shift: of their clocks, see AlignedRun.
        skips: what cannot be placed is appended.
    """
    groups: dict[tuple[int, ...], list[Passes]] = {}
    for rank in (rank for rank in ranks if rank.spans):
        ranks_of_pipeline = tuple(dict.fromkeys(rank.pipeline_ranks))
        if rank.rank in ranks_of_pipeline:
            groups.setdefault(ranks_of_pipeline, []).append(rank)
        elif all(span.virtual >= 0 for span in rank.spans):
            groups.setdefault((), []).append(rank)
        elif ranks_of_pipeline:
            listed = shortened(ranks_of_pipeline)
            reason = f"its pipeline group lists ranks {listed}, not this one"
            skips.append(Skip(f"rank {rank.rank}", reason))
        else:
            skips.append(Skip(f"rank {rank.rank}", "the ranks of its pipeline are not recorded"))
    placed = []
    for ranks_of_pipeline, ranks_there in groups.items():
        stages, stage_of = (
            len(ranks_of_pipeline),
            {rank: number for number, rank in enumerate(ranks_of_pipeline)},
        )
        if not ranks_of_pipeline:
            stages, stage_of = _by_scopes(ranks_there)
        placed.append((stages, [Stage(rank, stage_of[rank.rank], shift[rank.rank]) for rank in ranks_there]))
    return placed


def _by_scopes(ranks: Sequence[Passes]) -> tuple[int, dict[int, int]]:
    """Number of stages and the stage of each rank, by the names of scopes."""
    virtual_of = {rank.rank: sorted({span.virtual for span in rank.spans}) for rank in ranks}
    last = max(numbers[-1] for numbers in virtual_of.values())
    stages = -(-(last + 1) // max(len(numbers) for numbers in virtual_of.values()))
    return stages, {rank: numbers[0] % stages for rank, numbers in virtual_of.items()}


def absent(stages: int, present: Sequence[Stage]) -> list[Skip]:
    """A skip for stages of a pipeline that are not in the run."""
    missing = sorted(set(range(stages)) - {stage.stage for stage in present})
    if not missing:
        return []
    listed = shortened([stage.part.rank for stage in present])
    reason = "not in the run; phase and imbalance cover the other stages only"
    return [Skip(f"stage(s) {shortened(missing)} of the pipeline of rank {listed}", reason)]


def shortened(numbers: Sequence[int]) -> str:
    """Numbers for a sentence, the first of them where there are many."""
    first = ", ".join(map(str, numbers[:_LISTED]))
    return first if len(numbers) <= _LISTED else f"{first}, ... ({len(numbers)} steps)"


def lane_of(stage: Stage, label: str) -> Lane:
    """A stage in one step."""
    spans = [
        span._replace(start=span.start + stage.shift, end=span.end + stage.shift)
        for span in stage.part.spans
        if span.step == label
    ]
    part = stage.part
    return Lane(
        part.rank,
        stage.stage,
        spans,
        Union(part.p2p.start + stage.shift, part.p2p.end + stage.shift),
        Union(part.other.start + stage.shift, part.other.end + stage.shift),
        [message for message in part.messages if message.step == label],
    )


def window_of(stage: Stage, label: str) -> tuple[int, int]:
    """Begin and end of a step in which the rank has spans: each span bears the label of its window."""
    window = next(window for window in stage.part.steps if window.label == label)
    return window.start + stage.shift, window.end + stage.shift
