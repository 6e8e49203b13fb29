"""Times of the passes of a schedule, and when each runs.

Times come from a `TimesSource`: given (`Uniform`), from layers that were measured or put on a roofline
(`Layers`), or of the chunks of a run (`Fixed`). `simulate` runs every pass as soon as its stage is free and
its inputs have arrived; `best_partition` searches the layers of each chunk for the shortest pipeline phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.config import MOST_LAYERS, Config, Layout
from tracelens.planner.memory import DEFAULT, Kept, Stages
from tracelens.planner.pipeline.schedules import (
    BACKWARD,
    FORWARD,
    INPUT,
    PHASES,
    WEIGHT,
    Pass,
    Schedule,
    Slot,
)
from tracelens.planner.step_time import ROOFLINE, LayerTimes, Machine, Timer, layer_times

Shares = tuple[int, ...]
"""Layers of each chunk, in model order."""

# The input half of a backward sends the same gradient to the previous stage as a full one.
_KIND = {FORWARD: 0, BACKWARD: 1, INPUT: 1, WEIGHT: 2}

WEIGHT_SHARE = 0.5
"""Share of weight gradients in a backward: both gradients of a GEMM take equal FLOPs."""

_NEVER = np.iinfo(np.int64).max // 4
_MOVES = 8
"""Moves that are simulated, of which the best is made: a trade-off between a search's time and its result."""


@dataclass(frozen=True)
class Times:
    """Times of all passes of one step, ns; arrays are (chunk of the model, micro-batch)."""

    forward: Int
    backward: Int  # both halves
    weight: Int  # the weight gradients of the backward
    forward_comm: Int  # exposed communication (all-to-all) of the forward
    backward_comm: Int  # of the backward
    forward_transit: int  # of activations to the next stage
    backward_transit: int  # of gradients to the previous stage
    gap: tuple[int, ...]  # of each stage, between a pass and the next one that is ready

    def reader(self) -> Callable[[Slot, tuple[int, ...]], int]:
        """A function (slot, position in the model of the chunk of each of its passes) -> ns."""
        forward, backward = self.forward.tolist(), self.backward.tolist()
        comm = self.forward_comm.tolist(), self.backward_comm.tolist()
        ns_of = {
            FORWARD: forward,
            BACKWARD: backward,
            INPUT: (self.backward - self.weight).tolist(),
            WEIGHT: self.weight.tolist(),
        }

        def duration(slot: Slot, positions: tuple[int, ...]) -> int:
            if len(slot) == 1:
                ns: int = ns_of[slot[0].phase][positions[0]][slot[0].micro_batch]
                return ns
            pass_ns, comm_ns = [], []
            for pass_, position in zip(slot, positions, strict=True):
                pass_ns.append(ns_of[pass_.phase][position][pass_.micro_batch])
                comm_ns.append(comm[pass_.phase != FORWARD][position][pass_.micro_batch])
            return overlapped_ns(pass_ns, comm_ns)

        return duration


def overlapped_ns(pass_ns: Sequence[int], comm_ns: Sequence[int]) -> int:
    """Least time of overlapped passes: computation one at a time, communication one at a time."""
    computed = sum(pass_ns) - sum(comm_ns)
    return max(computed, sum(comm_ns), *pass_ns)


class Costs(NamedTuple):
    """Times of messages and gaps as in `Times`, and the share of weight gradients in a backward."""

    forward_transit: int = 0
    backward_transit: int = 0
    gap: tuple[int, ...] = ()
    weight_share: float = WEIGHT_SHARE


FREE = Costs()


class ChunkTimes(NamedTuple):
    """Times of a micro-batch in each chunk, in model order, ns; comm is exposed communication."""

    forward: Int
    backward: Int
    forward_comm: Int
    backward_comm: Int


def make_times(chunks: ChunkTimes, stages: int, micro_batches: int, costs: Costs = FREE) -> Times:
    """Times of a step in which all micro-batches are alike."""
    forward, backward, first, second = (np.tile(ns[:, None], (1, micro_batches)) for ns in chunks)
    if not 0 <= costs.weight_share <= 1:
        raise TracelensError(f"the share of weight gradients must be 0 to 1, not {costs.weight_share}")
    weight = np.rint(backward * costs.weight_share).astype(np.int64)
    gap = costs.gap or (0,) * stages
    return Times(
        forward=forward,
        backward=backward,
        weight=weight,
        forward_comm=first,
        backward_comm=second,
        forward_transit=costs.forward_transit,
        backward_transit=costs.backward_transit,
        gap=gap,
    )


class TimesSource(Protocol):
    """Times of the chunks of a model for any partition."""

    @property
    def layers(self) -> int:
        """Layers of the model, 0 if unknown."""

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        """Times of `count` chunks on `stages` stages; `shares` are their layers, empty if unknown."""


@dataclass(frozen=True)
class Uniform:
    """Equal times for equal shares of the model."""

    forward: int  # ns of a micro-batch on one stage, through all of its chunks
    backward: int  # likewise
    comm_share: float = 0.0  # exposed communication, as a share of both
    layers: int = 0  # of the model, 0 if unknown

    def __post_init__(self) -> None:
        if min(self.forward, self.backward) < 0 or self.forward + self.backward == 0:
            raise TracelensError(
                "forward and backward must not be negative or both 0; give them in milliseconds"
            )
        if not 0 <= self.comm_share <= 1:
            raise TracelensError(f"the share of exposed communication must be 0 to 1, not {self.comm_share}")

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        sizes = np.array(shares or [1] * count, dtype=np.int64)

        def cut(ns: float) -> Int:
            cuts: Int = np.rint(ns * stages * (sizes / sizes.sum())).astype(np.int64)
            return cuts

        return ChunkTimes(
            forward=cut(self.forward),
            backward=cut(self.backward),
            forward_comm=cut(self.forward * self.comm_share),
            backward_comm=cut(self.backward * self.comm_share),
        )


@dataclass(frozen=True)
class Layers:
    """Chunks take the sum of their layers, the first plus the embedding, the last plus the head."""

    times: LayerTimes

    @property
    def layers(self) -> int:
        return len(self.times.forward)

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        times = self.times
        return ChunkTimes(
            forward=sums(times.forward, shares, times.embedding[0], times.head[0]),
            backward=sums(times.backward, shares, times.embedding[1], times.head[1]),
            forward_comm=sums(times.forward_comm, shares, 0, 0),
            backward_comm=sums(times.backward_comm, shares, 0, 0),
        )


@dataclass(frozen=True)
class Fixed:
    """Times of the chunks of a partition that cannot change; `shares` are their layers, if known."""

    times: ChunkTimes
    shares: tuple[int, ...] = ()
    layers: int = 0

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        """The times, neighboring chunks as one where that fits; TracelensError for other numbers."""
        together, rest = divmod(len(self.times.forward), count)
        if together > 1 and not rest:
            return ChunkTimes._make(ns.reshape(count, together).sum(axis=1) for ns in self.times)
        if count != len(self.times.forward):
            raise TracelensError(
                f"the trace has times of {len(self.times.forward)} chunks, not {count}, and no annotations "
                "of layers (L0, L1, ...) to split them by; give their number (--layers) for an even split"
            )
        return self.times


def sums(layers: Int, shares: Sequence[int], first: int, last: int) -> Int:
    """Sum over the layers of each chunk, plus `first` in the first chunk and `last` in the last one."""
    edges = np.concatenate(([0], np.cumsum(np.array(shares, dtype=np.int64))))
    chunk_sums: Int = np.diff(np.concatenate(([0], np.cumsum(layers)))[edges])
    chunk_sums[0] += first
    chunk_sums[-1] += last
    return chunk_sums


def even_shares(layers: int, stages: int, chunks: int, layout_text: str = "") -> tuple[int, ...]:
    """Layers of each of the `stages` x `chunks` chunks in model order: an even split, or as in "3,4,4,3".

    Raises:
        TracelensError: `layout_text` has another number of chunks or layers.
    """
    if layers > MOST_LAYERS or (layout_text and not layout_text.strip("0, ")):
        raise TracelensError(f"a model has 1 to {MOST_LAYERS:,} layers, not {layers:,}")
    # A single stage may have several chunks, which a Layout does not allow.
    pp, vpp = (stages, chunks) if stages > 1 else (chunks, 1)
    layout = Layout(ranks=pp, pp=pp, vpp=vpp, pp_layout=layout_text)
    return tuple(len(chunk_layers) for chunk_layers in layout.chunks(layers))


def roofline(config: Config, device: Device, machine: Machine = ROOFLINE) -> tuple[Layers, Costs]:
    """Times of each layer, and of a message between stages, by default those of the roofline.

    Raises:
        TracelensError: the device has no rate for the activation type, or for its links.
    """
    message = round(Timer(config, device, machine).stage_message())
    return Layers(layer_times(config, device, machine)), Costs(message, message)


def activations(config: Config) -> Kept:
    """Bytes that a micro-batch saves for its backward in each part of the model, for any partition."""
    return Stages(config, DEFAULT).kept()


@dataclass(frozen=True)
class Played:
    """When each pass of a schedule runs; one element per pass, by stage and then by time."""

    schedule: Schedule  # that was played
    stage: Int
    chunk: Int
    position: Int  # of the chunk in the model
    micro_batch: Int
    phase: Int  # code into PHASES
    start: Int  # ns since the first pass
    end: Int

    @property
    def makespan(self) -> int:
        """From the first to the last pass, ns."""
        return int(self.end.max())

    def of(self, stage: int) -> Bool:
        mask: Bool = self.stage == stage
        return mask

    def busy(self, stage: int) -> int:
        """Busy time of a stage, ns; overlapped pairs count once."""
        rows = self.of(stage)
        start, first = np.unique(self.start[rows], return_index=True)
        return int((self.end[rows][first] - start).sum())


def simulate(schedule: Schedule, times: Times) -> Played:
    """Run every pass as soon as its stage is free and its inputs have arrived.

    A forward needs the forward of the previous chunk, a backward the backward of the next chunk (in the last
    chunk its own forward), weight gradients the input gradients of their chunk. Messages between stages take
    time but keep no stage busy.

    Raises:
        TracelensError: stages wait for each other, or for a pass that none of them runs.
    """
    return _Player(schedule, times).play()


class _Player:
    """The state of a simulation: what each stage runs next, and when passes ended."""

    def __init__(self, schedule: Schedule, times: Times) -> None:
        self.schedule, self.times = schedule, times
        self.count, self.size = schedule.count, schedule.micro_batches
        self.next_slot = [0] * schedule.stages
        self.free = [0] * schedule.stages
        self.ends = [-1] * (3 * self.count * self.size)  # by `_code`
        self.stage_of = [0] * self.count
        for stage, positions in enumerate(schedule.positions):
            for position in positions:
                self.stage_of[position] = stage
        self.waiting: dict[int, list[int]] = {}  # code of a pass to the stages that wait for it
        self.spans: list[list[tuple[int, ...]]] = [[] for _ in range(schedule.stages)]
        self.duration: Callable[[Slot, tuple[int, ...]], int] = times.reader()

    def play(self) -> Played:
        schedule = self.schedule
        ready = list(range(schedule.stages))
        while ready:
            stage = ready.pop()
            order, positions = schedule.orders[stage], schedule.positions[stage]
            while self.next_slot[stage] < len(order):
                slot = order[self.next_slot[stage]]
                slot_positions = tuple(positions[pass_.chunk] for pass_ in slot)
                start = self.free[stage]
                for pass_, position in zip(slot, slot_positions, strict=True):
                    need = self._need(pass_, position)
                    if need is None:
                        continue
                    code, transit = need
                    if self.ends[code] < 0:
                        # The slot waits for a pass that has not run yet.
                        self.waiting.setdefault(code, []).append(stage)
                        start = -1
                        break
                    start = max(start, self.ends[code] + transit)
                if start < 0:
                    break
                end = start + self.duration(slot, slot_positions)
                self.free[stage] = end + self.times.gap[stage]
                self.next_slot[stage] += 1
                for pass_, position in zip(slot, slot_positions, strict=True):
                    code = self._code(_KIND[pass_.phase], position, pass_.micro_batch)
                    self.ends[code] = end
                    ready += self.waiting.pop(code, ())
                    phase = PHASES.index(pass_.phase)
                    self.spans[stage].append(
                        (stage, pass_.chunk, position, pass_.micro_batch, phase, start, end)
                    )
        if any(done < len(order) for done, order in zip(self.next_slot, schedule.orders, strict=True)):
            raise TracelensError(f"schedule {schedule.name} deadlocks: {self._why()}")
        rows = [row for stage_spans in self.spans for row in stage_spans]
        table = np.array(rows, dtype=np.int64).reshape(-1, 7)
        names = ("stage", "chunk", "position", "micro_batch", "phase", "start", "end")
        columns = map(np.ascontiguousarray, table.T)
        return Played(schedule, **dict(zip(names, columns, strict=True)))

    def _code(self, kind: int, position: int, micro_batch: int) -> int:
        return (kind * self.count + position) * self.size + micro_batch

    def _need(self, pass_: Pass, position: int) -> tuple[int, int] | None:
        """Code of the pass that this one needs, and ns until its result arrives."""
        kind, source, transit = _KIND[pass_.phase], position, 0
        if kind == 0:
            if position == 0:
                return None
            source, transit = position - 1, self.times.forward_transit
        elif kind == 2:
            kind = 1
        elif position == self.count - 1:
            kind = 0
        else:
            source, transit = position + 1, self.times.backward_transit
        if self.stage_of[source] == self.stage_of[position]:
            transit = 0
        return self._code(kind, source, pass_.micro_batch), transit

    def _why(self) -> str:
        """The cycle of stages that wait for each other."""
        stuck = next(s for s, order in enumerate(self.schedule.orders) if self.next_slot[s] < len(order))
        reasons: dict[int, str] = {}
        while stuck not in reasons:
            slot = self.schedule.orders[stuck][self.next_slot[stuck]]
            needs = [
                (pass_, self._need(pass_, self.schedule.positions[stuck][pass_.chunk])) for pass_ in slot
            ]
            pass_, code = next((pass_, need[0]) for pass_, need in needs if need and self.ends[need[0]] < 0)
            kind, position = divmod(code // self.size, self.count)
            source = self.stage_of[position]
            chunk = self.schedule.positions[source].index(position)
            sources = [Pass(phase, chunk, code % self.size) for phase in PHASES if _KIND[phase] == kind]
            slot_index = next(
                (
                    index
                    for index, slot in enumerate(self.schedule.orders[source])
                    if any(pass_ in slot for pass_ in sources)
                ),
                -1,
            )
            reasons[stuck] = f"stage {stuck} waits before its pass {self.next_slot[stuck]} ({pass_}) for " + (
                f"pass {slot_index} of stage {source} ({sources[0]})"
                if slot_index >= 0
                else f"{sources[0]} of stage {source}, which never runs it"
            )
            if slot_index < 0:
                break
            stuck = source
        return "; ".join(reasons.values())


def best_partition(
    layers: LayerTimes,
    positions: Sequence[Sequence[int]],
    start: Sequence[Shares],
    quick: Callable[[Shares], int],
    makespan: Callable[[Shares], int],
) -> Shares:
    """Layers of each chunk, in model order, with the shortest pipeline phase: a local search.

    It starts from the partitions in `start` and the one with the fastest slowest chunk, which is optimal with
    one chunk per stage, and moves single layers off the slowest stage while that shortens the phase.

    Args:
        layers: their times.
        positions: position in the model of each chunk of each stage.
        start: partitions to start from.
        quick: simulates a partition with few micro-batches, ns.
        makespan: simulates a partition in full, ns.

    Raises:
        TracelensError: fewer layers than chunks.
    """
    cost = layers.forward + layers.backward
    ends = sum(layers.embedding), sum(layers.head)
    count = sum(map(len, positions))
    cuts = (*start, shortest(cost, ends, count))
    improved = []
    for cut in cuts:
        best = quick(cut), cut
        while candidates := [(quick(moved), moved) for moved in _moves(best[1], cost, ends, positions)]:
            if min(candidates)[0] >= best[0]:
                break
            best = min(candidates)
        improved.append(best[1])
    return min(dict.fromkeys((*cuts, *improved)), key=makespan)


def shortest(cost: Int, ends: tuple[int, int], count: int) -> Shares:
    """The partition into `count` chunks with the shortest longest chunk: exact, by dynamic programming.

    The first and last chunk may be without layers if embedding or head take time.

    Args:
        cost: of each layer.
        ends: cost of embedding and head.
        count: of chunks.

    Raises:
        TracelensError: fewer layers than chunks.
    """
    size = len(cost)
    least = [1] * count
    least[0], least[-1] = int(ends[0] == 0), int(ends[1] == 0)
    if size < count:
        raise TracelensError(f"{size} layers are too few for {count} chunks (pp x vpp)")
    total = np.concatenate(([0], np.cumsum(cost))) + ends[0]
    total = np.append(total, total[-1] + ends[1])  # the last chunk ends behind the head
    # longest[i]: longest chunk of the best partition of the first i layers into the chunks so far.
    stop = np.arange(size + 1)
    longest = np.where(stop >= least[0], total[stop], _NEVER)
    previous_cut = np.zeros((count, size + 1), dtype=np.int64)
    for chunk in range(1, count):
        reached = total[stop] if chunk < count - 1 else np.append(total[stop[:-1]], total[-1])
        table = np.maximum(longest[None, :], reached[:, None] - total[stop][None, :])
        table[stop[:, None] - stop[None, :] < least[chunk]] = _NEVER
        previous_cut[chunk] = table.argmin(axis=1)
        longest = table.min(axis=1)
    cuts = [size]
    for chunk in range(count - 1, 0, -1):
        cuts.append(int(previous_cut[chunk, cuts[-1]]))
    return tuple(high - low for low, high in pairwise([0, *reversed(cuts)]))


def _moves(
    shares: Shares, cost: Int, ends: tuple[int, int], positions: Sequence[Sequence[int]]
) -> list[Shares]:
    """The most promising partitions with one layer moved off the slowest stage.

    The layers between the two chunks shift. Most promising is the least time on the slowest stage, then on
    the second slowest, and so on.
    """
    last = len(shares) - 1
    loads = _loads(shares, cost, ends, positions)
    slowest = max(range(len(positions)), key=lambda stage: loads[stage])
    candidates = []
    for chunk in positions[slowest]:
        least = int(not (ends[0] if chunk == 0 else ends[1] if chunk == last else 0))
        if shares[chunk] <= least:
            continue
        for target in range(last + 1):
            if target not in positions[slowest]:
                moved = list(shares)
                moved[chunk] -= 1
                moved[target] += 1
                candidates.append(tuple(moved))
    return nsmallest(
        _MOVES,
        candidates,
        key=lambda candidate: sorted(_loads(candidate, cost, ends, positions), reverse=True),
    )


def _loads(shares: Shares, cost: Int, ends: tuple[int, int], positions: Sequence[Sequence[int]]) -> list[int]:
    """Time per micro-batch on each stage."""
    of_chunk = sums(cost, shares, *ends)
    return [int(of_chunk[list(stage_chunks)].sum()) for stage_chunks in positions]
