"""Chunk and micro-batch of each pass, by what travels between the ranks of a pipeline.

A send carries the output of a pass that was launched before it, and the n-th send from one rank to another
is received as its n-th. So each forward follows the one that made its input, from those that need none: the
first chunk of the model. Nothing is assumed of the schedule, the number of chunks or their sizes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracelens.analysis.pipeline.interleaving import Shape, is_complete, numbered_in_order, shape
from tracelens.analysis.pipeline.microbatches import BACKWARD, FORWARD, Message, Span, all_passes
from tracelens.analysis.pipeline.pipelines import Stage, lane_of
from tracelens.analysis.pipeline.stages import Lane
from tracelens.trace import Trace

_Forward = tuple[int, int]
"""Lane, and number of a forward on its rank."""
_Carrier = Callable[[Lane, Message], int]
"""Position of the span whose output a send carries, -1 for none."""


class _Inbox(NamedTuple):
    """The passes from which a lane gets inputs, in the order in which it asked for them.

    Attributes:
        forward: forwards of the chunk before.
        backward: those whose backwards made gradients, of the chunk behind.
    """

    forward: list[_Forward]
    backward: list[_Forward]


class Numbered(NamedTuple):
    """A pipeline in one step, each pass with its chunk and micro-batch.

    Attributes:
        lanes: as given, with the numbers.
        size: of the pipeline.
        assumed: why the numbers are those of an assumed schedule; "" where the recording tells them.
    """

    lanes: list[Lane]
    size: Shape
    assumed: str


def numbered(lanes: Sequence[Lane], stages: int) -> Numbered | str:
    """The passes of one pipeline in one step with their numbers; why that is not possible, else.

    By the names of scopes, else by messages, else in the order of Megatron-LM's schedules.

    Args:
        lanes: with spans.
        stages: of the pipeline.
    """
    if not all(map(is_complete, lanes)):
        return "unequal numbers of forward and backward passes"
    named = all(span.microbatch >= 0 and span.virtual >= 0 for lane in lanes for span in lane.spans)
    spans = [lane.spans for lane in lanes] if named else _by_messages(lanes, stages)
    if not isinstance(spans, str):
        lanes = [replace(lane, spans=of_lane) for lane, of_lane in zip(lanes, spans, strict=True)]
    size = shape(lanes, stages)
    if size is None:
        return "the stages have unequal numbers of forward passes"
    if not isinstance(spans, str):
        return Numbered(list(lanes), size, "")
    lanes = [replace(lane, spans=numbered_in_order(lane, size)) for lane in lanes]
    return Numbered(list(lanes), size, spans if size.chunks > 1 else "")


def numbered_alone(trace: Trace) -> list[Span]:
    """The passes of one rank with chunk of the model and micro-batch, as far as the rank itself tells.

    By launch; empty where it is no part of a pipeline with several chunks a rank, or not known which pass
    is of which chunk.
    """
    rank = trace.once(all_passes)
    ranks = list(dict.fromkeys(rank.pipeline_ranks))
    stage = Stage(rank, ranks.index(rank.rank), 0) if rank.rank in ranks else Stage(rank, 0, 0)
    spans: list[Span] = []
    for label in dict.fromkeys(span.step for span in rank.spans):
        line = numbered([lane_of(stage, label)], max(len(ranks), 1))
        if isinstance(line, str) or not line.size.sure or line.size.chunks == 1:
            return []
        spans += line.lanes[0].spans
    return spans


def _by_messages(lanes: Sequence[Lane], stages: int) -> list[list[Span]] | str:
    """The spans of each lane with chunk and micro-batch; why that is not possible, else.

    Args:
        lanes: of one pipeline in one step.
        stages: of the pipeline.
    """
    if len(lanes) < stages:
        return f"only {len(lanes)} of its {stages} ranks have passes in the run"
    if any(span.forward < 0 for lane in lanes for span in lane.spans):
        return "no autograd links pair its backward with its forward passes"
    if any(message.peer < 0 for lane in lanes for message in lane.messages):
        return "the peers of its sends and receives are not recorded"
    ring = [lane.rank for lane in sorted(lanes, key=lambda lane: lane.stage)]
    for carrier in (_last_pass, _last_of_direction(ring)):
        outputs = [_outputs(lane, carrier) for lane in lanes]
        inboxes = _inboxes(lanes, outputs)
        numbers = _propagated(lanes, outputs, inboxes) if inboxes is not None else None
        if numbers is not None:
            return [
                [_numbered(span, *numbers[index, span.forward]) for span in lane.spans]
                for index, lane in enumerate(lanes)
            ]
    return "its recorded sends and receives do not match"


def _numbered(span: Span, chunk: int, microbatch: int) -> Span:
    return span._replace(virtual=chunk, microbatch=microbatch)


def _last_pass(lane: Lane, message: Message) -> int:
    """The last pass before the message."""
    return bisect_right(lane.launches, message.time) - 1


def _last_of_direction(ring: Sequence[int]) -> _Carrier:
    """The last forward before a message to the next rank, the last backward before one to the previous.

    Where both are sent together, as in interleaved schedules without overlap.
    """
    following = dict(zip(ring, (*ring[1:], ring[0]), strict=True))

    def carrier(lane: Lane, message: Message) -> int:
        phase = FORWARD if message.peer == following[lane.rank] else BACKWARD
        last = _last_pass(lane, message)
        return next((index for index in range(last, -1, -1) if lane.spans[index].phase == phase), -1)

    return carrier


def _outputs(lane: Lane, carrier: _Carrier) -> list[tuple[int, int]]:
    """(rank that it is sent to, position of the span) of each send."""
    return [(message.peer, carrier(lane, message)) for message in lane.messages if message.is_send]


def _inboxes(lanes: Sequence[Lane], outputs: Sequence[list[tuple[int, int]]]) -> list[_Inbox] | None:
    """What each lane receives; None where sends and receives differ in number, or send what is not there."""
    lane_of = {lane.rank: index for index, lane in enumerate(lanes)}
    in_flight: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for index, (lane, sent) in enumerate(zip(lanes, outputs, strict=True)):
        for peer, position in sent:
            if position < 0 or peer not in lane_of:
                return None
            in_flight.setdefault((lane.rank, peer), []).append((index, position))
    receives = Counter(
        (message.peer, lane.rank) for lane in lanes for message in lane.messages if not message.is_send
    )
    if receives != {link: len(spans) for link, spans in in_flight.items()}:
        return None
    queues = {link: iter(spans) for link, spans in in_flight.items()}
    inboxes = []
    for lane in lanes:
        inbox = _Inbox([], [])
        received = (next(queues[message.peer, lane.rank]) for message in lane.messages if not message.is_send)
        # Several tensors of one pass are one input.
        for source, position in dict.fromkeys(received):
            span = lanes[source].spans[position]
            (inbox.forward if span.phase == FORWARD else inbox.backward).append((source, span.forward))
        inboxes.append(inbox)
    return inboxes


def _propagated(
    lanes: Sequence[Lane], outputs: Sequence[list[tuple[int, int]]], inboxes: Sequence[_Inbox]
) -> dict[_Forward, tuple[int, int]] | None:
    """(chunk of the model, micro-batch) of each forward; None where the messages contradict each other."""
    into_forward: dict[_Forward, _Forward] = {}
    into_backward: dict[_Forward, _Forward] = {}
    seeds: list[_Forward] = []
    for index, (lane, sent, inbox) in enumerate(zip(lanes, outputs, inboxes, strict=True)):
        carried: dict[str, set[int]] = {FORWARD: set(), BACKWARD: set()}
        for _, position in sent:
            carried[lane.spans[position].phase].add(lane.spans[position].forward)
        forwards = [(index, span.forward) for span in lane.of(FORWARD)]
        backwards = dict.fromkeys((index, span.forward) for span in lane.of(BACKWARD))
        # The first chunk sends no gradient as it has no input; the last sends no output and gets no gradient.
        fed = [forward for forward in forwards if forward[1] in carried[BACKWARD]]
        fed_back = [backward for backward in backwards if backward[1] in carried[FORWARD]]
        if len(fed) != len(inbox.forward) or len(fed_back) != len(inbox.backward):
            return None
        into_forward |= zip(inbox.forward, fed, strict=True)
        into_backward |= zip(fed_back, inbox.backward, strict=True)
        seeds += [forward for forward in forwards if forward[1] not in carried[BACKWARD]]
    numbers: dict[_Forward, tuple[int, int]] = {}
    for microbatch, seed in enumerate(seeds):
        forward: _Forward | None = seed
        chunk = 0
        while forward is not None and forward not in numbers:
            numbers[forward] = chunk, microbatch
            forward, chunk = into_forward.get(forward), chunk + 1
    return numbers if into_forward == into_backward and _is_whole(numbers, lanes) else None


def _is_whole(numbers: Mapping[_Forward, tuple[int, int]], lanes: Sequence[Lane]) -> bool:
    """Whether all forwards are numbered, each chunk runs on one rank, and all have the same micro-batches."""
    chunks: dict[int, set[int]] = {}
    for chunk, microbatch in numbers.values():
        chunks.setdefault(chunk, set()).add(microbatch)
    ranks = {(chunk, lane) for (lane, _), (chunk, _) in numbers.items()}
    return (
        len(numbers) == sum(len(lane.of(FORWARD)) for lane in lanes)
        and len(ranks) == len(chunks)
        and all(microbatches == chunks[0] for microbatches in chunks.values())
    )
