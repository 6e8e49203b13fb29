"""Size of a pipeline and the order of its passes, as far as each rank alone tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens.analysis.pipeline.microbatches import BACKWARD, FORWARD, Span
from tracelens.analysis.pipeline.stages import Lane


class Shape(NamedTuple):
    """Size of a pipeline.

    Attributes:
        stages: ranks in a row.
        microbatches: in a step.
        chunks: of the model on each rank; more than one in an interleaved schedule.
        group: micro-batches that pass one chunk before the rank turns to its next one.
        sure: whether the trace shows the number of chunks; if not, one is assumed.
    """

    stages: int
    microbatches: int
    chunks: int
    group: int
    sure: bool = True


def shape(lanes: Sequence[Lane], stages: int) -> Shape | None:
    """The size of a pipeline, None where its stages differ in the number of forwards.

    The last stage sends no activations of the last chunk and the first one no gradients of the first, so with
    m micro-batches and v chunks each of the two sends m (2 v - 1) messages and has m v forwards.
    """
    forwards = {len(lane.of(FORWARD)) for lane in lanes}
    if len(forwards) != 1:
        return None
    (count,) = forwards
    named = {span.microbatch for lane in lanes for span in lane.of(FORWARD)}
    if -1 not in named:
        chunks = max(count // len(named), 1)
        return Shape(stages, len(named), chunks, _first_turn(lanes[0]) if chunks > 1 else stages)
    if not all(lane.of(BACKWARD) for lane in lanes):
        return _forward_only(lanes, stages, count)
    for lane in lanes:
        microbatches = 2 * count - lane.sends
        if lane.stage in (0, stages - 1) and 0 < microbatches <= count and not count % microbatches:
            chunks = count // microbatches
            return Shape(stages, microbatches, chunks, _group(lane, stages, chunks, count))
    return _from_warm_up(lanes[0], stages, count)


def _forward_only(lanes: Sequence[Lane], stages: int, count: int) -> Shape:
    """The size without backwards: the last stage sends the output of all chunks but the last."""
    for lane in lanes:
        microbatches = count - lane.sends
        if lane.stage == stages - 1 and 0 < microbatches < count and not count % microbatches:
            return Shape(stages, microbatches, count // microbatches, stages)
    return Shape(stages, count, 1, stages)


def _first_turn(lane: Lane) -> int:
    """Micro-batches that pass the first chunk before the rank turns to another one."""
    chunks = [span.virtual for span in lane.of(FORWARD)]
    return next((number for number, chunk in enumerate(chunks) if chunk != chunks[0]), len(chunks))


def _warm_up(lane: Lane) -> int:
    """Forwards before the first backward."""
    phases = [span.phase for span in lane.spans]
    return phases.index(BACKWARD) if BACKWARD in phases else len(phases)


def _group(lane: Lane, stages: int, chunks: int, count: int) -> int:
    """Micro-batches a turn: 1F1B begins after 2 (stages - stage - 1) + (chunks - 1) group + 1 forwards."""
    if chunks == 1:
        return stages
    warm_up = _warm_up(lane)
    turns, remainder = divmod(warm_up - 1 - 2 * (stages - lane.stage - 1), chunks - 1)
    return turns if warm_up < count and turns > 0 and not remainder else stages


def _from_warm_up(lane: Lane, stages: int, count: int) -> Shape:
    """The size by one stage alone: by the number of forwards with which it begins."""
    warm_up = _warm_up(lane)
    if warm_up == min(stages - lane.stage, count):
        return Shape(stages, count, 1, stages)
    turns, remainder = divmod(warm_up - 1 - 2 * (stages - lane.stage - 1), stages)
    if remainder or turns < 1 or count % (turns + 1):
        return Shape(stages, count, 1, stages, sure=False)
    return Shape(stages, count // (turns + 1), turns + 1, stages)


def numbered_in_order(lane: Lane, size: Shape) -> list[Span]:
    """The spans of a lane with micro-batch and chunk, by the order of Megatron-LM's schedules.

    `group` micro-batches go through the first chunk, the same ones through the next, ...; backward through
    the chunks from the last, but a backward has the numbers of its forward where the graph tells which it
    is. What scopes say is kept.
    """
    order = [
        (chunk, microbatch)
        for begin in range(0, size.microbatches, size.group)
        for chunk in range(size.chunks)
        for microbatch in range(begin, min(begin + size.group, size.microbatches))
    ]
    done = {FORWARD: 0, BACKWARD: 0}
    numbers: dict[int, tuple[int, int]] = {}
    spans = []
    for span in lane.spans:
        index = done[span.phase]
        done[span.phase] += 1
        if span.microbatch >= 0 and span.virtual >= 0:
            spans.append(span)
            continue
        chunk, microbatch = order[index] if index < len(order) else (0, index)
        if span.phase == BACKWARD:
            chunk = size.chunks - 1 - chunk if index < len(order) else chunk
            chunk, microbatch = numbers.get(span.forward, (chunk, microbatch))
        elif span.forward >= 0:
            numbers[span.forward] = chunk, microbatch
        microbatch = span.microbatch if span.microbatch >= 0 else microbatch
        spans.append(span._replace(virtual=chunk * size.stages + lane.stage, microbatch=microbatch))
    return spans


def is_complete(lane: Lane) -> bool:
    """Whether each forward has its backward, or there is none at all: the step is recorded to its end."""
    forwards, backwards = lane.of(FORWARD), lane.of(BACKWARD)
    if not backwards:
        return True
    if any(span.forward >= 0 for span in lane.spans):
        return {span.forward for span in forwards} == {span.forward for span in backwards}
    if any(span.microbatch < 0 for span in lane.spans):
        return len(forwards) == len(backwards)
    first, second = ({(span.virtual, span.microbatch) for span in spans} for spans in (forwards, backwards))
    return first == second
