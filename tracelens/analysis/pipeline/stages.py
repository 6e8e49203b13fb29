"""The pipelines of a run on one clock: which rank is which stage, which pass is of which chunk.

Chunk and micro-batch follow from what travels between the ranks: a send carries the output of a pass that
was launched before it, and the n-th send from one rank to another is received as its n-th. So each forward
follows the one that made its input, from those that need none: the first chunk of the model. Nothing is
assumed of the schedule, the number of chunks or their sizes. Without messages each rank's own order counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.analysis.pipeline.micro_batches import (
    BACKWARD,
    FORWARD,
    MicrobatchPass,
    Passes,
    StageMessage,
    all_passes,
)
from tracelens.arrays import Int, unique
from tracelens.table import Skip
from tracelens.trace import Trace, Union, union

_LISTED = 16


class Stage(Struct, frozen=True):
    """A rank with its place in a pipeline; times by the common clock."""

    part: Passes
    stage: int
    shift: int


RAMP, P2P_WAIT, IMBALANCE, OTHER_IDLE = PARTS = ("ramp", "p2p_wait", "imbalance", "other_idle")


class Wait(NamedTuple):
    """A piece of a rank's bubble, and which of PARTS it is."""

    part: str
    start: int
    end: int


class Lane(Struct, frozen=True, dict=True):
    """One stage in one step, times by the common clock."""

    rank: int  # of the trace
    stage: int  # position in the pipeline
    spans: Sequence[MicrobatchPass]  # in order of launch
    p2p: Union  # when its sends and receives ran
    other: Union  # when GPU work ran that is in no span
    messages: Sequence[StageMessage]  # sent and received

    @cached_property
    def launches(self) -> list[int]:
        """When the host launched each span."""
        return [span.launched for span in self.spans]

    @property
    def sends(self) -> int:
        return sum(message.is_send for message in self.messages)

    def of(self, phase: str) -> list[MicrobatchPass]:
        return [span for span in self.spans if span.phase == phase]

    @cached_property
    def busy(self) -> Union:
        return extent(self.spans)


class Pipeline:
    """The lanes of one pipeline in one step, spans numbered."""

    def __init__(self, line: Numbered) -> None:
        self.lanes = lanes = line.lanes  # those of its stages that are in the run
        self.start = min(span.start for lane in lanes for span in lane.spans)
        self.end = max(span.end for lane in lanes for span in lane.spans)
        # All lanes are between their first backward and last forward; without backwards, in their forwards.
        begins = [min(span.start for span in lane.of(BACKWARD) or lane.of(FORWARD)) for lane in lanes]
        last_ends = [max(span.end for span in lane.of(FORWARD) or lane.of(BACKWARD)) for lane in lanes]
        self._full = max(begins), min(last_ends)
        self._last = line.size.stages * line.size.chunks - 1
        self._done: dict[tuple[str, int, int], tuple[int, MicrobatchPass]] = {}
        for number, lane in enumerate(lanes):
            for span in lane.spans:
                self._done.setdefault((span.phase, span.virtual, span.micro_batch), (number, span))
        bounds = [(lane.busy.start, lane.busy.end, lane.p2p.start, lane.p2p.end) for lane in lanes]
        ends = [np.array([span.end for span in lane.spans]) for lane in lanes]
        edges = unique(np.concatenate([*ends, *(part for lane_bounds in bounds for part in lane_bounds)]))
        inside = (edges >= self.start) & (edges <= self.end)
        self._edges: Int = edges[inside]
        low, high = self._edges[:-1], self._edges[1:]
        self._busy = [lane.busy.covered(low, high) > 0 for lane in lanes]
        self._ordered = [sorted(lane.spans, key=lambda span: span.start) for lane in lanes]
        starts = [np.array([span.start for span in spans]) for spans in self._ordered]
        self._next = [np.searchsorted(lane_starts, low) for lane_starts in starts]

    def waits(self, number: int) -> list[Wait]:
        """The bubble of a lane, in pieces that add up to it."""
        lane = self.lanes[number]
        full = self._full
        low, high = self._edges[:-1], self._edges[1:]
        talking = lane.p2p.covered(low, high) > 0
        waits: list[Wait] = []
        for interval in np.flatnonzero(~self._busy[number]).tolist():
            start, end = int(low[interval]), int(high[interval])
            part = P2P_WAIT if talking[interval] else OTHER_IDLE
            if not full[0] <= start < full[1]:
                part = RAMP
            else:
                # Whether what the lane needs has still to be computed, and a stage computes: from stage to
                # stage by what each of them runs next.
                waiting, seen = number, set[int]()
                while waiting not in seen:
                    seen.add(waiting)
                    if self._busy[waiting][interval]:
                        part = IMBALANCE
                        break
                    following = int(self._next[waiting][interval])
                    if following == len(self._ordered[waiting]):
                        break
                    # What makes its input: the chunk before forward, the one behind it backward.
                    span = self._ordered[waiting][following]
                    if span.phase == FORWARD:
                        key = FORWARD, span.virtual - 1, span.micro_batch
                    elif span.virtual == self._last:
                        key = FORWARD, span.virtual, span.micro_batch
                    else:
                        key = BACKWARD, span.virtual + 1, span.micro_batch
                    waiting, source = self._done.get(key, (waiting, None))
                    if source is None and key[1] >= 0:
                        part = OTHER_IDLE  # of a stage that is not in the run: what it does is not known
                    if source is None or start >= source.end:
                        break
            if waits and waits[-1].part == part and waits[-1].end == start:
                waits[-1] = waits[-1]._replace(end=end)
            else:
                waits.append(Wait(part, start, end))
        return waits


_Forward = tuple[int, int]
"""Lane, and number of a forward on its rank."""


def extent(spans: Sequence[MicrobatchPass]) -> Union:
    """The time that spans cover, from the start to the end of each."""
    return union(
        np.array([span.start for span in spans], dtype=np.int64),
        np.array([span.end for span in spans], dtype=np.int64),
    )


class Numbered(Struct, frozen=True):
    """A pipeline in one step, each pass with its chunk and micro-batch."""

    lanes: list[Lane]  # as given, with the numbers
    size: Shape  # of the pipeline
    assumed: str  # why the numbers are those of an assumed schedule; "" where the recording tells them


class Shape(Struct, frozen=True):
    """Size of a pipeline."""

    stages: int  # ranks in a row
    micro_batches: int  # in a step
    chunks: int  # of the model on each rank; more than one in an interleaved schedule
    group: int  # micro-batches that pass one chunk before the rank turns to its next one
    sure: bool = True  # whether the trace shows the number of chunks; if not, one is assumed


def pipelines(
    ranks: Sequence[Passes], shift: Mapping[int, int], skips: list[Skip]
) -> list[tuple[int, list[Stage]]]:
    """The pipelines: number of stages, and those that are in the run, on clocks shifted as in AlignedRun.

    Ranks with spans that cannot be placed get a skip.
    """
    groups: dict[tuple[int, ...], list[Passes]] = {}
    in_chain = _chains(ranks)
    for rank in (rank for rank in ranks if rank.spans):
        ranks_of_pipeline = tuple(dict.fromkeys(in_chain.get(rank.rank, rank.pipeline_ranks)))
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
        stages = len(ranks_of_pipeline)
        stage_of = {rank: number for number, rank in enumerate(ranks_of_pipeline)}
        if not ranks_of_pipeline:
            # Number of stages and the stage of each rank, by the names of scopes.
            virtual_of = {rank.rank: sorted({span.virtual for span in rank.spans}) for rank in ranks_there}
            last = max(numbers[-1] for numbers in virtual_of.values())
            stages = -(-(last + 1) // max(len(numbers) for numbers in virtual_of.values()))
            stage_of = {rank: numbers[0] % stages for rank, numbers in virtual_of.items()}
        placed.append((stages, [Stage(rank, stage_of[rank.rank], shift[rank.rank]) for rank in ranks_there]))
    return placed


def _chains(ranks: Sequence[Passes]) -> dict[int, tuple[int, ...]]:
    """The ranks of the pipeline of each rank that only its neighbors place, in the order of the stages.

    From the rank without a previous one on, each takes the outputs of the one before, to one that has no
    following rank, or one behind which the next chunk of the model begins. Where a rank of these is not in
    the run, the number of stages is not known, unless no other ranks exist.
    """
    neighbors = {rank.rank: rank.neighbors for rank in ranks if rank.neighbors}
    in_run = {rank.rank for rank in ranks}
    chains: dict[int, tuple[int, ...]] = {}
    for rank, own in neighbors.items():
        other = own.following if own.previous < 0 else own.previous
        if own.alone and other not in in_run:
            chains[rank] = (rank, other) if own.previous < 0 else (other, rank)
        if own.previous >= 0:
            continue
        chain, reached = [rank], own.following
        while reached in neighbors and reached not in chain and neighbors[reached].previous == chain[-1]:
            chain.append(reached)
            reached = neighbors[reached].following
        if len(chain) > 1 and (reached < 0 or reached in chain):
            chains |= dict.fromkeys(chain, tuple(chain))
    return chains


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


def numbered(lanes: Sequence[Lane], stages: int) -> Numbered | str:
    """The passes of one pipeline in one step with their numbers; why that is not possible, else.

    By the names of scopes, else by messages, else in the order of Megatron-LM's schedules. All lanes
    have spans.
    """
    if not all(map(is_complete, lanes)):
        return "unequal numbers of forward and backward passes"
    named = all(span.micro_batch >= 0 and span.virtual >= 0 for lane in lanes for span in lane.spans)
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


def numbered_alone(trace: Trace) -> list[MicrobatchPass]:
    """The passes of one rank with chunk of the model and micro-batch, as far as the rank itself tells.

    By launch; empty where it is no part of a pipeline with several chunks a rank, or not known which pass
    is of which chunk.
    """
    lines = trace.once(_lines_alone)
    if any(line.size.chunks == 1 for line in lines):
        return []
    return [span for line in lines for span in line.lanes[0].spans]


def model_chunks(trace: Trace) -> list[int]:
    """Numbers of the chunks of the model that a rank runs, ascending; empty where it does not tell.

    A rank outside of all pipelines runs the whole model: chunk 0.
    """
    rank = trace.once(all_passes)
    if not rank.staged:
        return [0]
    if rank.rank not in _ranks_alone(rank) and any(span.virtual < 0 for span in rank.spans):
        return []
    return sorted({span.virtual for line in trace.once(_lines_alone) for span in line.lanes[0].spans})


def _lines_alone(trace: Trace) -> list[Numbered]:
    """A rank's part of its pipeline in each step; none where any of them cannot be numbered for sure."""
    rank = trace.once(all_passes)
    ranks = _ranks_alone(rank)
    if rank.neighbors and not ranks:
        return []
    stage = Stage(rank, ranks.index(rank.rank), 0) if rank.rank in ranks else Stage(rank, 0, 0)
    lines = []
    for label in dict.fromkeys(span.step for span in rank.spans):
        line = numbered([lane_of(stage, label)], max(len(ranks), 1))
        if isinstance(line, str) or not line.size.sure:
            return []
        lines.append(line)
    return lines


def _ranks_alone(rank: Passes) -> list[int]:
    """The ranks of its pipeline, as far as the rank itself tells."""
    return list(dict.fromkeys(_chains([rank]).get(rank.rank, rank.pipeline_ranks)))


def _by_messages(lanes: Sequence[Lane], stages: int) -> list[list[MicrobatchPass]] | str:
    """The spans of each lane with chunk and micro-batch; why that is not possible, else."""
    if len(lanes) < stages:
        return f"only {len(lanes)} of its {stages} ranks have passes in the run"
    if any(span.forward < 0 for lane in lanes for span in lane.spans):
        return "no autograd links pair its backward with its forward passes"
    if any(message.peer < 0 for lane in lanes for message in lane.messages):
        return "the peers of its sends and receives are not recorded"
    ring = [lane.rank for lane in sorted(lanes, key=lambda lane: lane.stage)]
    following = dict(zip(ring, (*ring[1:], ring[0]), strict=True))

    def last_pass(lane: Lane, message: StageMessage) -> int:
        return bisect_right(lane.launches, message.time) - 1

    def last_of_direction(lane: Lane, message: StageMessage) -> int:
        """The last forward before a message to the next rank, the last backward before one to the previous.

        Where both are sent together, as in interleaved schedules without overlap.
        """
        phase = FORWARD if message.peer == following[lane.rank] else BACKWARD
        last = last_pass(lane, message)
        return next((index for index in range(last, -1, -1) if lane.spans[index].phase == phase), -1)

    receives = Counter(
        (message.peer, lane.rank) for lane in lanes for message in lane.messages if not message.is_send
    )
    for carrier in (last_pass, last_of_direction):  # position of the span whose output a send carries
        outputs = [
            [(message.peer, carrier(lane, message)) for message in lane.messages if message.is_send]
            for lane in lanes
        ]
        # Sends and receives must agree in number, and send what is there.
        in_flight: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for index, (lane, sent) in enumerate(zip(lanes, outputs, strict=True)):
            for peer, position in sent:
                in_flight.setdefault((lane.rank, peer), []).append((index, position))
        if any(position < 0 or peer not in following for sent in outputs for peer, position in sent):
            continue
        if receives != {link: len(spans) for link, spans in in_flight.items()}:
            continue
        queues = {link: iter(spans) for link, spans in in_flight.items()}
        into_forward: dict[_Forward, _Forward] = {}
        into_backward: dict[_Forward, _Forward] = {}
        seeds: list[_Forward] = []
        for index, (lane, sent) in enumerate(zip(lanes, outputs, strict=True)):
            # The passes from which the lane gets inputs, in the order in which it asked for them: forwards of
            # the chunk before, and those whose backwards made gradients, of the chunk behind. Several tensors
            # of one pass are one input.
            links = [(message.peer, lane.rank) for message in lane.messages if not message.is_send]
            inputs: dict[str, list[_Forward]] = {FORWARD: [], BACKWARD: []}
            for source, position in dict.fromkeys([next(queues[link]) for link in links]):
                span = lanes[source].spans[position]
                inputs[span.phase].append((source, span.forward))
            carried: dict[str, set[int]] = {FORWARD: set(), BACKWARD: set()}
            for _, position in sent:
                carried[lane.spans[position].phase].add(lane.spans[position].forward)
            forwards = [(index, span.forward) for span in lane.of(FORWARD)]
            backwards = dict.fromkeys((index, span.forward) for span in lane.of(BACKWARD))
            # The first chunk sends no gradient as it has no input; the last sends no output and gets no
            # gradient.
            fed = [forward for forward in forwards if forward[1] in carried[BACKWARD]]
            fed_back = [backward for backward in backwards if backward[1] in carried[FORWARD]]
            if len(fed) != len(inputs[FORWARD]) or len(fed_back) != len(inputs[BACKWARD]):
                break
            into_forward |= zip(inputs[FORWARD], fed, strict=True)
            into_backward |= zip(fed_back, inputs[BACKWARD], strict=True)
            seeds += [forward for forward in forwards if forward[1] not in carried[BACKWARD]]
        else:
            # (Chunk of the model, micro-batch) of each forward, from those without input on.
            numbers: dict[_Forward, tuple[int, int]] = {}
            for micro_batch, seed in enumerate(seeds):
                forward: _Forward | None = seed
                chunk = 0
                while forward is not None and forward not in numbers:
                    numbers[forward] = chunk, micro_batch
                    forward, chunk = into_forward.get(forward), chunk + 1
            # All forwards are numbered, each chunk runs on one rank, and all have the same micro-batches.
            chunks: dict[int, set[int]] = {}
            for chunk, micro_batch in numbers.values():
                chunks.setdefault(chunk, set()).add(micro_batch)
            ranks = {(chunk, index) for (index, _), (chunk, _) in numbers.items()}
            if (
                into_forward == into_backward
                and len(numbers) == sum(len(lane.of(FORWARD)) for lane in lanes)
                and len(ranks) == len(chunks)
                and all(micro_batches == chunks[0] for micro_batches in chunks.values())
            ):
                return [
                    [
                        span._replace(virtual=chunk, micro_batch=micro_batch)
                        for span in lane.spans
                        for chunk, micro_batch in [numbers[index, span.forward]]
                    ]
                    for index, lane in enumerate(lanes)
                ]
    return "its recorded sends and receives do not match"


def shape(lanes: Sequence[Lane], stages: int) -> Shape | None:
    """The size of a pipeline, None where its stages differ in the number of forwards.

    The last stage sends no activations of the last chunk and the first one no gradients of the first, so with
    m micro-batches and v chunks each of the two sends m (2 v - 1) messages and has m v forwards.
    """
    forwards = {len(lane.of(FORWARD)) for lane in lanes}
    if len(forwards) != 1:
        return None
    (count,) = forwards
    named = {span.micro_batch for lane in lanes for span in lane.of(FORWARD)}
    if -1 not in named:
        chunks = max(count // len(named), 1)
        if chunks == 1:
            return Shape(stages, len(named), 1, stages)
        # Micro-batches that pass the first chunk before the rank turns to another one.
        order = [span.virtual for span in lanes[0].of(FORWARD)]
        turn = next((number for number, chunk in enumerate(order) if chunk != order[0]), len(order))
        return Shape(stages, len(named), chunks, turn)
    if not all(lane.of(BACKWARD) for lane in lanes):
        # The size without backwards: the last stage sends the output of all chunks but the last.
        for lane in lanes:
            micro_batches = count - lane.sends
            if lane.stage == stages - 1 and 0 < micro_batches < count and not count % micro_batches:
                return Shape(stages, micro_batches, count // micro_batches, stages)
        return Shape(stages, count, 1, stages)
    for lane in lanes:
        micro_batches = 2 * count - lane.sends
        if lane.stage in (0, stages - 1) and 0 < micro_batches <= count and not count % micro_batches:
            chunks = count // micro_batches
            if chunks == 1:
                return Shape(stages, micro_batches, 1, stages)
            # 1F1B begins after 2 (stages - stage - 1) + (chunks - 1) group + 1 forwards.
            warm_up = _warm_up(lane)
            turns, remainder = divmod(warm_up - 1 - 2 * (stages - lane.stage - 1), chunks - 1)
            group = turns if warm_up < count and turns > 0 and not remainder else stages
            return Shape(stages, micro_batches, chunks, group)
    # The size by one stage alone: by the number of forwards with which it begins.
    lane = lanes[0]
    warm_up = _warm_up(lane)
    if warm_up == min(stages - lane.stage, count):
        return Shape(stages, count, 1, stages)
    turns, remainder = divmod(warm_up - 1 - 2 * (stages - lane.stage - 1), stages)
    if remainder or turns < 1 or count % (turns + 1):
        return Shape(stages, count, 1, stages, sure=False)
    return Shape(stages, count // (turns + 1), turns + 1, stages)


def _warm_up(lane: Lane) -> int:
    """Forwards before the first backward."""
    phases = [span.phase for span in lane.spans]
    return phases.index(BACKWARD) if BACKWARD in phases else len(phases)


def numbered_in_order(lane: Lane, size: Shape) -> list[MicrobatchPass]:
    """The spans of a lane with micro-batch and chunk, by the order of Megatron-LM's schedules.

    `group` micro-batches go through the first chunk, the same ones through the next, ...; backward through
    the chunks from the last, but a backward has the numbers of its forward where the graph tells which it
    is. What scopes say is kept.
    """
    order = [
        (chunk, micro_batch)
        for begin in range(0, size.micro_batches, size.group)
        for chunk in range(size.chunks)
        for micro_batch in range(begin, min(begin + size.group, size.micro_batches))
    ]
    done = {FORWARD: 0, BACKWARD: 0}
    numbers: dict[int, tuple[int, int]] = {}
    spans = []
    for span in lane.spans:
        index = done[span.phase]
        done[span.phase] += 1
        if span.micro_batch >= 0 and span.virtual >= 0:
            spans.append(span)
            continue
        chunk, micro_batch = order[index] if index < len(order) else (0, index)
        if span.phase == BACKWARD:
            chunk = size.chunks - 1 - chunk if index < len(order) else chunk
            chunk, micro_batch = numbers.get(span.forward, (chunk, micro_batch))
        elif span.forward >= 0:
            numbers[span.forward] = chunk, micro_batch
        micro_batch = span.micro_batch if span.micro_batch >= 0 else micro_batch
        spans.append(span._replace(virtual=chunk * size.stages + lane.stage, micro_batch=micro_batch))
    return spans


def is_complete(lane: Lane) -> bool:
    """Whether each forward has its backward, or there is none at all: the step is recorded to its end."""
    forwards, backwards = lane.of(FORWARD), lane.of(BACKWARD)
    if not backwards:
        return True
    if any(span.forward >= 0 for span in lane.spans):
        return {span.forward for span in forwards} == {span.forward for span in backwards}
    if any(span.micro_batch < 0 for span in lane.spans):
        return len(forwards) == len(backwards)
    first, second = ({(span.virtual, span.micro_batch) for span in spans} for spans in (forwards, backwards))
    return first == second
