"""Schedules by name; F is a forward, B a backward, p stages, v chunks per stage.

Each generator returns plain data, which `simulate` plays. Those with split backwards are in `zero_bubble`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, zip_longest
from typing import Literal, NamedTuple

from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.pipeline.schedule import BACKWARD, FORWARD, Pass, Schedule, Slot, round_robin, singles
from tracelens.planner.pipeline.zero_bubble import zb_h1, zb_h2, zb_v


def gpipe(stages: int, microbatches: int) -> Schedule:
    """All forwards, then all backwards (arXiv:1811.06965)."""
    passes = [Pass(phase, 0, number) for phase in (FORWARD, BACKWARD) for number in range(microbatches)]
    return Schedule("gpipe", round_robin(stages, 1), microbatches, (singles(passes),) * stages)


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """First p - stage warm-up forwards, then B and F in turn (PipeDream-Flush, arXiv:2006.09503)."""
    orders = tuple(
        _alternate(*_turns(stages, microbatches, 1, stages), warm_up=stages - stage)
        for stage in range(stages)
    )
    return Schedule("1f1b", round_robin(stages, 1), microbatches, orders)


def interleaved(stages: int, microbatches: int, chunks: int, group: int) -> Schedule:
    """Several chunks per stage, with turns of `group` micro-batches through each (arXiv:2104.04473).

    The first B follows 2 (p - stage - 1) + (v - 1) group + 1 forwards, as in Megatron-LM; with one chunk per
    stage it is 1F1B.
    """
    if chunks == 1:
        return one_f_one_b(stages, microbatches)
    _check_group(stages, microbatches, chunks, group)
    turns = _turns(stages, microbatches, chunks, group)
    orders = tuple(_alternate(*turns, warm_up=ahead(stages, stage, chunks, group)) for stage in range(stages))
    return Schedule("interleaved", round_robin(stages, chunks), microbatches, orders)


def overlapped(stages: int, microbatches: int, chunks: int, group: int) -> Schedule:
    """Interleaved 1F1B with one more warm-up forward, and each B overlapped with the next F.

    A pair starts when both of its inputs have arrived, as in Megatron-LM (`combined_1f1b.py`). The F of a
    pair needs the F that the previous stage ran in its previous pair. So even with one chunk
    2 (p - stage) - 1 forwards go ahead; with as few as in 1F1B each stage would idle every other time.
    """
    _check_group(stages, microbatches, chunks, group)
    turns = _turns(stages, microbatches, chunks, group)
    orders = tuple(_beside(*turns, warm_up=ahead(stages, stage, chunks, group)) for stage in range(stages))
    name = "1f1b-overlap" if chunks == 1 else "interleaved-overlap"
    return Schedule(name, round_robin(stages, chunks), microbatches, orders)


def ahead(stages: int, stage: int, chunks: int, group: int) -> int:
    """Forwards before the first backward of interleaved 1F1B."""
    return 2 * (stages - stage - 1) + (chunks - 1) * group + 1


def _turns(stages: int, microbatches: int, chunks: int, group: int) -> tuple[list[Pass], list[Pass]]:
    """Forwards and backwards of a stage, each in execution order."""
    forward = [
        (chunk, number)
        for begin in range(0, microbatches, group)
        for chunk in range(chunks)
        for number in range(begin, min(begin + group, microbatches))
    ]
    return (
        [Pass(FORWARD, *chunk_batch) for chunk_batch in forward],
        [Pass(BACKWARD, chunks - 1 - chunk, number) for chunk, number in forward],
    )


def _alternate(forwards: list[Pass], backwards: list[Pass], warm_up: int) -> tuple[Slot, ...]:
    """Warm-up forwards, then B and F in turn."""
    first, rest = forwards[:warm_up], forwards[warm_up:]
    mixed = chain.from_iterable(zip_longest(backwards, rest))
    return singles([*first, *(pass_ for pass_ in mixed if pass_ is not None)])


def _beside(forwards: list[Pass], backwards: list[Pass], warm_up: int) -> tuple[Slot, ...]:
    """Warm-up forwards, then each B overlapped with an F."""
    rest = forwards[warm_up:]
    pairs = [(forward, backward) for forward, backward in zip(rest, backwards, strict=False)]
    return (*singles(forwards[:warm_up]), *pairs, *singles(backwards[len(rest) :]))


def _check_group(stages: int, microbatches: int, chunks: int, group: int) -> None:
    """Raise TracelensError if turns are too short for the pipeline, as Megatron-LM does."""
    if chunks == 1 or microbatches < 1:
        return
    rest = microbatches % group
    if group < stages or microbatches < stages or 0 < rest < stages:
        rounds = max(microbatches // stages, 1)
        suggestion = (
            f"a turn of {microbatches // rounds} would"
            if microbatches >= stages and not microbatches % rounds
            else f"{-(-microbatches // stages) * stages} micro-batches would"
        )
        raise TracelensError(
            f"interleaving {microbatches} micro-batches in turns of {group} does not fit {stages} stages: "
            f"each turn needs {stages} or more; {suggestion}"
        )


class ScheduleKind(NamedTuple):
    """A kind of schedule: description, chunks per stage, and maker (stages, micro-batches, chunks, group)."""

    doc: str
    chunks: int | Literal["any"]
    make: Callable[[int, int, int, int], Schedule]


SCHEDULES = {
    "gpipe": ScheduleKind("all forwards, then all backwards", 1, lambda p, m, v, g: gpipe(p, m)),
    "1f1b": ScheduleKind("one forward, one backward", 1, lambda p, m, v, g: one_f_one_b(p, m)),
    "interleaved": ScheduleKind("1F1B over several chunks per stage", "any", interleaved),
    "1f1b-overlap": ScheduleKind(
        "overlaps each backward with a forward to hide its all-to-alls; twice the memory",
        1,
        overlapped,
    ),
    "interleaved-overlap": ScheduleKind("1f1b-overlap over several chunks per stage", "any", overlapped),
    "zb-h1": ScheduleKind(
        "splits off weight gradients; memory as in 1F1B", 1, lambda p, m, v, g: zb_h1(p, m)
    ),
    "zb-h2": ScheduleKind("splits off weight gradients; twice the memory", 1, lambda p, m, v, g: zb_h2(p, m)),
    "zb-v": ScheduleKind(
        "splits off weight gradients; two chunks per stage in a V", 2, lambda p, m, v, g: zb_v(p, m)
    ),
}


def chunks_of(name: str, chunks: int) -> int:
    """Chunks per stage of the named schedule, `chunks` if it allows any number; raises UnknownName."""
    if name not in SCHEDULES:
        raise UnknownName("schedule", name, SCHEDULES)
    fixed = SCHEDULES[name].chunks
    return chunks if fixed == "any" else fixed


def make_schedule(name: str, stages: int, microbatches: int, chunks: int = 1, group: int = 0) -> Schedule:
    """The named schedule.

    Args:
        name: of SCHEDULES.
        stages: PP.
        microbatches: per step.
        chunks: VPP.
        group: micro-batches per turn with several chunks; 0 for one per stage.

    Raises:
        UnknownName: no such schedule.
        TracelensError: the schedule does not allow these numbers.
    """
    needed = chunks_of(name, chunks)
    if min(stages, microbatches, chunks) < 1 or group < 0:
        raise TracelensError("stages, micro-batches and chunks must be at least 1")
    if needed != chunks:
        raise TracelensError(f"schedule {name} has {needed} chunk(s) per stage, not {chunks}")
    return SCHEDULES[name].make(stages, microbatches, chunks, group or stages)
