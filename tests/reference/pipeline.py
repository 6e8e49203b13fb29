"""Pipelines: forward and backward of every micro-batch and chunk on the GPU, and the time between them.

The autograd graph tells what is a forward and which backward belongs to it. Each node that the engine runs
bears the sequence number of the op that made it. What the engine runs without the host doing anything else
in between is one backward, and the ops that made its nodes are its forward. Such an op that stands apart from
the rest, behind a message or another pass, as the scaling of the loss does, is no forward of its own.
"""

import itertools
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from tests.reference.communication import P2P, kernels_of, records_of
from tests.reference.raw import SCOPE, Recording, Work, clipped, length, union

FORWARD, BACKWARD = "forward", "backward"
_ENGINE = "autograd::engine::evaluate_function"
_REPLICAS = re.compile(r"data_parallel|distributed_optimizer", re.IGNORECASE)


class Pass(NamedTuple):
    """One micro-batch through one chunk of the model, times by the clock of the rank.

    Attributes:
        launched: when the host launched the first of its work.
        chunk: of this rank's chunks of the model; forwards of one chunk run the same ops.
        micro_batch: number among the passes of its chunk, by the order of the forwards.
        start: of its first work.
        end: of its last work.
        busy: union of its work.
    """

    phase: str
    chunk: int
    micro_batch: int
    launched: int
    start: int
    end: int
    busy: int


class Lane(NamedTuple):
    """One rank of a pipeline.

    Attributes:
        ranks: of the pipeline, first stage first.
        passes: by launch.
    """

    rank: int
    ranks: tuple[int, ...]
    passes: list[Pass]

    @property
    def chunks(self) -> int:
        return 1 + max(item.chunk for item in self.passes)

    @property
    def micro_batches(self) -> int:
        return 1 + max(item.micro_batch for item in self.passes)

    def of(self, phase: str) -> list[Pass]:
        return [item for item in self.passes if item.phase == phase]


class Bubble(NamedTuple):
    """One rank in the phase of its pipeline: from the first forward to the last backward of any of its ranks.

    Attributes:
        bubble: of the phase, outside of all passes.
        ramp: of it, before all ranks have begun backwards or after one has no forward left.
        imbalance: of the rest, while what this rank waits for is being computed.
        theory: (p - 1) / (p - 1 + m v), of the phase.
    """

    rank: int
    phase: int
    bubble: int
    ramp: int
    imbalance: int
    forward: int
    backward: int
    theory: Fraction

    @property
    def fraction(self) -> Fraction:
        return Fraction(self.bubble, self.phase)


class _Graph(NamedTuple):
    """One backward and the ops that made its nodes, all times of the host."""

    backward: tuple[int, int]
    makers: list[tuple[int, str]]


def lane(recording: Recording, ranks: tuple[int, ...]) -> Lane:
    """The passes of one rank, by the scopes that name them or by the graph."""
    passes = scoped_passes(recording) or graph_passes(recording)
    return Lane(recording.rank, ranks, sorted(passes, key=lambda item: item.launched))


def scoped_passes(recording: Recording) -> list[Pass]:
    """By the bundled workload's own names; a chunk's number is that in the whole model."""
    begins = [scope.start for scope in recording.scopes]
    work: dict[int, list[Work]] = defaultdict(list)
    for item in _computation(recording):
        scope = bisect_right(begins, item.called or 0) - 1
        if scope >= 0 and (item.called or 0) < recording.scopes[scope].end:
            work[scope].append(item)
    names = [SCOPE.fullmatch(scope.name) for scope in recording.scopes]
    named = [(name["phase"], int(name["chunk"]), int(name["micro_batch"])) for name in names if name]
    local = {chunk: number for number, chunk in enumerate(sorted({chunk for _, chunk, _ in named}))}
    return [
        _pass(FORWARD if phase == "F" else BACKWARD, local[chunk], micro_batch, work[number])
        for number, (phase, chunk, micro_batch) in enumerate(named)
    ]


def graph_passes(recording: Recording) -> list[Pass]:
    """By the autograd graph alone."""
    messages = sorted(
        op.start
        for op in recording.ops
        if op.name == "record_param_comms" and op.args.get("Collective name") in P2P
    )
    engine = {op.thread for op in recording.ops if op.name.startswith(_ENGINE)}
    graphs = _graphs(recording, engine, messages)
    borders = _borders(recording, graphs, messages)
    work: dict[tuple[int, bool], list[Work]] = defaultdict(list)
    for item in _computation(recording):
        work[bisect_right(borders, item.called or 0), item.thread in engine].append(item)
    chunks: list[tuple[str, ...]] = []
    count: dict[int, int] = defaultdict(int)
    passes = []
    for cell, ops, backward in sorted(_forward(graph, borders) for graph in graphs):
        chunk = _chunk(ops, chunks)
        passes.append(_pass(FORWARD, chunk, count[chunk], work[cell, False]))
        launched_by_engine = work[bisect_right(borders, backward[0]), True]
        passes.append(_pass(BACKWARD, chunk, count[chunk], launched_by_engine))
        count[chunk] += 1
    return passes


def _chunk(ops: tuple[str, ...], chunks: list[tuple[str, ...]]) -> int:
    """Number of the chunk that runs these ops; the scaling of the loss may follow without a border."""
    for number, known in enumerate(chunks):
        if known in (ops, ops[:-1]):
            return number
    chunks.append(ops)
    return len(chunks) - 1


def _graphs(recording: Recording, engine: set[str], messages: Sequence[int]) -> list[_Graph]:
    nodes = [op for op in recording.ops if op.name.startswith(_ENGINE)]
    wanted = {op.args["Sequence number"] for op in nodes if "Sequence number" in op.args}
    # Others with the same number are around the op that made the node, or ran before it.
    maker = {
        op.args["Sequence number"]: op
        for op in recording.ops
        if op.thread not in engine and op.args.get("Sequence number") in wanted
    }
    host = sorted([*messages, *(op.start for op in maker.values())])
    runs: dict[int, list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        runs[bisect_right(host, node.start)].append(number)
    graphs = []
    for numbers in runs.values():
        run = [nodes[number] for number in numbers]
        sequence = {op.args["Sequence number"] for op in run if "Sequence number" in op.args}
        made = sorted((maker[number].start, maker[number].name) for number in sequence if number in maker)
        graphs.append(_Graph((run[0].start, max(op.end for op in run)), made))
    return graphs


def _borders(recording: Recording, graphs: Sequence[_Graph], messages: Sequence[int]) -> list[int]:
    """Times on the host at which one pass may end and the next one begin."""
    marks = [time for span in (*recording.steps, *recording.optimizer) for time in (span.start, span.end)]
    return sorted({*messages, *marks, *(time for graph in graphs for time in graph.backward)})


def _forward(graph: _Graph, borders: Sequence[int]) -> tuple[int, tuple[str, ...], tuple[int, int]]:
    """Where most of the ops stand that made the graph, what ops they are, and which backward it is."""
    cells: dict[int, list[str]] = defaultdict(list)
    for start, name in graph.makers:
        cells[bisect_right(borders, start)].append(name)
    cell = max(cells, key=lambda number: len(cells[number]))
    return cell, tuple(cells[cell]), graph.backward


def _computation(recording: Recording) -> list[Work]:
    """Work with a recorded launch, without messages and without the gradient sync among replicas."""
    kernels = kernels_of(recording)
    apart = {
        id(kernels[number])
        for number, _, record in records_of(recording)
        if record["Collective name"] in P2P or _REPLICAS.search(record["Process Group Description"])
    }
    return [item for item in recording.work if item.called is not None and id(item) not in apart]


def _pass(phase: str, chunk: int, micro_batch: int, work: Sequence[Work]) -> Pass:
    launched = min(item.called for item in work if item.called is not None)
    start, end = min(item.start for item in work), max(item.end for item in work)
    return Pass(
        phase, chunk, micro_batch, launched, start, end, length([(item.start, item.end) for item in work])
    )


def bubbles(lanes: Sequence[Lane]) -> list[Bubble]:
    """All ranks of one pipeline, by one clock."""
    start = min(item.start for lane in lanes for item in lane.passes)
    end = max(item.end for lane in lanes for item in lane.passes)
    full = (
        max(min(item.start for item in lane.of(BACKWARD)) for lane in lanes),
        min(max(item.end for item in lane.of(FORWARD)) for lane in lanes),
    )
    rows = []
    for stage, one in enumerate(lanes):
        spans = [(item.start, item.end) for item in one.passes]
        idle = _between(spans, start, end)
        inside = [piece for low, high in idle for piece in clipped([(low, high)], *full)]
        forward = length([(item.start, item.end) for item in one.of(FORWARD)])
        bubble, stages = length(idle), len(one.ranks)
        rows.append(
            Bubble(
                one.rank,
                end - start,
                bubble,
                bubble - length(inside),
                sum(_imbalance(lanes, stage, low, high) for low, high in inside),
                forward,
                length(spans) - forward,
                Fraction(stages - 1, stages - 1 + one.micro_batches * one.chunks),
            )
        )
    return rows


def _between(spans: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """The time from start to end that is in no span."""
    busy = union(list(spans))
    edges = [start, *(time for span in busy for time in span), end]
    return [(low, high) for low, high in zip(edges[::2], edges[1::2], strict=True) if high > low]


def _imbalance(lanes: Sequence[Lane], stage: int, low: int, high: int) -> int:
    """Of a piece of a stage's idle time, that in which what it waits for is being computed."""
    inner = {time for one in lanes for item in one.passes for time in (item.start, item.end)}
    edges = sorted({low, high, *(time for time in inner if low < time < high)})
    return sum(after - time for time, after in itertools.pairwise(edges) if _is_computed(lanes, stage, time))


def _is_computed(lanes: Sequence[Lane], stage: int, time: int) -> bool:
    seen: set[int] = set()
    while stage not in seen:
        seen.add(stage)
        if any(item.start <= time < item.end for item in lanes[stage].passes):
            return True
        later = [item for item in lanes[stage].passes if item.start >= time]
        source = _source(lanes, stage, min(later, key=lambda item: item.start)) if later else None
        if source is None or time >= source[1].end:
            return False
        stage = source[0]
    return False


def _source(lanes: Sequence[Lane], stage: int, item: Pass) -> tuple[int, Pass] | None:
    """Stage and pass that make what a pass needs; None for the first forward, which needs nothing."""
    stages = len(lanes)
    virtual = item.chunk * stages + stage
    phase = item.phase
    if phase == BACKWARD and virtual + 1 == stages * lanes[0].chunks:
        phase = FORWARD  # of the last chunk: its own loss
    else:
        virtual += 1 if phase == BACKWARD else -1
    if virtual < 0:
        return None
    chunk, number = divmod(virtual, stages)
    return next(
        (number, made)
        for made in lanes[number].passes
        if (made.phase, made.chunk, made.micro_batch) == (phase, chunk, item.micro_batch)
    )


def inputs(
    recordings: Sequence[Recording], passes: dict[int, list[Pass]]
) -> dict[int, list[tuple[int, Pass]]]:
    """By rank, in the order of its receives, who sent the input and which of the sender's passes made it.

    A send carries what the last pass before it made, and the n-th of a pair of ranks is received as the n-th.
    """
    sends: dict[tuple[int, int], list[int]] = defaultdict(list)
    receives: dict[tuple[int, int], list[int]] = defaultdict(list)
    for recording in recordings:
        for op in recording.ops:
            if op.name == "record_param_comms" and op.args.get("Collective name") == "send":
                sends[recording.rank, int(op.args["Dst Rank"])].append(op.start)
            elif op.name == "record_param_comms" and op.args.get("Collective name") == "recv":
                receives[int(op.args["Src Rank"]), recording.rank].append(op.start)
    inbox: dict[int, list[tuple[int, int, Pass]]] = defaultdict(list)
    for (source, target), sent in sends.items():
        launched = [item.launched for item in passes[source]]
        for send, receive in zip(sent, receives[source, target], strict=True):
            made = passes[source][bisect_right(launched, send) - 1]
            inbox[target].append((receive, source, made))
    return {rank: [(source, made) for _, source, made in sorted(parts)] for rank, parts in inbox.items()}
