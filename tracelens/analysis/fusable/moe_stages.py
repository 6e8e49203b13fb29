"""Work that runs kernel by kernel, and the one fused kernel in place of each chain: routers, permutations.

`StepWork`, the GPU work of the whole steps of one rank, is what all finders of avoidable work look at.
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np
from msgspec import Struct

from tracelens.analysis.host import (
    CODE,
    Gaps,
    IdlePieces,
    Recurrence,
    find_gaps,
    known_pieces,
    recurrence,
)
from tracelens.analysis.moe import DISPATCH, FORWARD, PERMUTATION, PHASES, ROUTER, regions
from tracelens.analysis.roofline import OpCalls
from tracelens.arrays import Bool, Float, Int, lookup, ordered, unique
from tracelens.devices import Device
from tracelens.trace import WORK_KINDS, Trace, Union, Work, matching, steps_of, union
from tracelens.units import plural

_FUSED_PERMUTE = re.compile(r"row_id_map|permute|sort_chunks|moe_?sort|align_block", re.IGNORECASE)
_FUSED_ROUTER = re.compile(
    r"fused\w*(?:rout|topk|score)|topk_?(?:softmax|gating)|rout(?:er|ing)", re.IGNORECASE
)
# What decides whether work counts as avoidable.
CHAIN = 5
"""Kernels per layer from which a stage is not fused: a fused permutation is a map, a kernel that moves rows
and one that moves them back; a fused router is one kernel beside its GEMM."""
VOCABULARY = 4096
"""Fewer classes are no vocabulary: those of language models start at some 30,000 tokens, of which a
tensor-parallel rank may hold an eighth. The loss of a classifier (ImageNet: 1,000) takes microseconds."""
PADDED = 1.25
"""Logits may have this many times the rows of the loss: the last token of each sequence predicts nothing."""
EXPOSED = 0.5
"""Share of a transfer beside no computation, above which the pair is serialized: less of it could be hidden
at most once more."""


class StageWork(Struct, frozen=True):
    """The work of one stage of all MoE layers in the steps."""

    rows: Int  # positions in the work of the steps
    cell: Int  # layer pass and phase of each: pass * len(PHASES) + phase; negative for an unknown pass
    kernels: float  # in forward, of a pass

    @property
    def cells(self) -> Int:
        """The passes and phases that have any of it."""
        return unique(self.cell)


class Chains(Struct, frozen=True):
    """Kernels launched one after the other, each chain of which one kernel could replace."""

    rows: Int  # positions in the trace's work, in order of launch
    chain: Int  # number of the chain of each
    fused_ns: Float  # time of the kernel that replaces each chain

    @staticmethod
    def none() -> Chains:
        """No chain."""
        empty = np.empty(0, dtype=np.int64)
        return Chains(empty, empty, np.empty(0))


class StepWork:
    """One rank's work in its whole steps, with what several finders need of it."""

    def __init__(self, trace: Trace, device: Device | None) -> None:
        self.trace = trace  # all that it recorded
        self.device = device  # whose figures count, None where it is not known
        steps = steps_of(trace)
        inner = steps.whole
        self.steps = max(len(inner), 1)  # 1 where they are not marked
        low, high = (inner[0], inner[-1] + 1) if inner else (0, 0)
        # First and last time of the steps, ns: on the GPU, on the host.
        self.window = int(steps.edges[low]), int(steps.edges[high])
        self.host_window = int(steps.marks[low]), int(steps.marks[high])
        self.rows, self.work = trace.once(_step_work)

    @property
    def step_ns(self) -> float:
        return (self.window[1] - self.window[0]) / self.steps

    def per_step(self, total: float) -> float:
        """A total of the recording, for one step."""
        return total / self.steps

    @cached_property
    def caller(self) -> Int:
        """The event row of the call behind each piece of work, see Work.host_call."""
        return self.work.host_call

    @cached_property
    def called(self) -> Int:
        """When each piece of work was called by the host, ns; -1 where that is not known."""
        return lookup(self.trace.arrays.start, self.caller, -1)

    @cached_property
    def busy(self) -> Union:
        return self.work.union()

    @cached_property
    def gaps(self) -> Gaps:
        """All gaps in the GPU work of the steps; positions are in `work`."""
        return self.trace.once(step_gaps)[0]

    @cached_property
    def idle(self) -> IdlePieces:
        """These gaps by cause, as analyzer `idle` tells them."""
        return self.trace.once(step_gaps)[1]

    @cached_property
    def recurrence(self) -> Recurrence:
        """Which of this idle time happened once; aligned with `idle`."""
        return self.trace.once(_recurrence)

    def is_idle_by(self, *causes: str) -> Bool:
        """Which of this idle time is of some causes."""
        return np.array([name in causes for name in CODE])[self.idle.cause]

    def idle_by(self, *causes: str) -> IdlePieces:
        """The idle time of some causes."""
        return self.idle.take(self.is_idle_by(*causes))

    def during(self, mask: Bool | Int) -> Union:
        """When the work under a mask ran."""
        return union(self.work.start[mask], self.work.end[mask])

    @cached_property
    def ops(self) -> OpCalls:
        """The recorded arguments of the ops."""
        return self.trace.once(OpCalls)

    def op_names(self) -> Int:
        """Code into the events' names of each piece of work's op, -1 for none."""
        return lookup(self.trace.arrays.name, self.work.op, -1)


def permutation_work(step: StepWork) -> StageWork | str:
    """The work of permutations that are not fused, or why there is none."""
    if not step.trace.once(regions).passes:
        return "no MoE layer"
    stage = _stage_work(step, PERMUTATION)
    if stage.kernels < CHAIN:
        return f"{plural(stage.kernels, 'kernel')} per layer in the permutation"
    return "the permutation is fused" if _is_named(step, stage.rows, _FUSED_PERMUTE) else stage


def router_work(step: StepWork) -> StageWork | str:
    """The work of routers that are not fused, beside their GEMM, or why there is none."""
    if not step.trace.once(regions).passes:
        return "no MoE layer"
    whole = _stage_work(step, ROUTER)
    chain = _stage_work(step, ROUTER, without="gemm")
    if chain.kernels < CHAIN:
        return f"{plural(chain.kernels, 'kernel')} per layer in the router in addition to its GEMM"
    return "the router is fused" if _is_named(step, whole.rows, _FUSED_ROUTER) else chain


def permutation_bytes(step: StepWork, cell: int) -> float:
    """Bytes that permuting and back moves at least: tokens once and once an expert, each way.

    Where tokens come from other ranks, to several experts here, the rows of these are sorted once more, read
    and written each way. Of a layer pass and phase (see StageWork); 0 where sizes are not known. Where the
    router does not tell how many experts a token has, the rows of this rank's experts stand for them.
    """
    if cell < 0:
        return 0.0
    number = cell // len(PHASES)
    layer_pass = step.trace.once(regions).passes[number]
    tokens, hidden, top_k, own = layer_pass.tokens, layer_pass.hidden, layer_pass.top_k, layer_pass.rows
    routed = tokens * top_k if top_k > 0 else sum(own)
    if min(tokens, hidden, routed) <= 0:
        return 0.0
    sorted_again = number in step.trace.once(_dispatching) and (layer_pass.grouped or len(own) > 1)
    moved = tokens + routed + (2 * max(sum(own), 0) if sorted_again else 0)
    return 2.0 * moved * hidden * layer_pass.itemsize


def _dispatching(trace: Trace) -> set[int]:
    """Numbers of the passes whose tokens go to other ranks."""
    layers, comm = trace.once(regions), WORK_KINDS.index("comm")
    return {*unique(layers.layer_pass[(layers.stage == DISPATCH) & (trace.work.kind == comm)]).tolist()}


def permutation_chains(trace: Trace, device: Device | None) -> Chains:
    """The chains of permutations; a fused kernel takes what memory bandwidth allows."""
    step = StepWork(trace, device)
    stage = permutation_work(step)
    if isinstance(stage, str):
        return Chains.none()
    rows, (cells, cell) = _kernels(step, stage)
    moved = np.array([permutation_bytes(step, number) for number in cells.tolist()])
    known = device is not None and device.hbm_bytes_per_s and (moved > 0).all()
    least_ns = moved / device.hbm_bytes_per_s * 1e9 if device is not None and known else None
    return chains(step, rows, cell, least_ns)


def router_chains(trace: Trace, device: Device | None) -> Chains:
    """The chains of routers; a fused kernel takes as long as the longest kernel of its chain.

    Its bytes take no time, so that the chain's own longest kernel says more.
    """
    step = StepWork(trace, device)
    stage = router_work(step)
    if isinstance(stage, str):
        return Chains.none()
    rows, (_, cell) = _kernels(step, stage)
    return chains(step, rows, cell, None)


def _kernels(step: StepWork, stage: StageWork) -> tuple[Int, tuple[Int, Int]]:
    """The kernels of a stage, and (its cells, position of each kernel's cell in them)."""
    kernels = step.work.is_kernel[stage.rows]
    cells, cell = np.unique(stage.cell[kernels], return_inverse=True)
    return stage.rows[kernels], (cells, cell.ravel())


def _stage_work(step: StepWork, stage: int, without: str = "") -> StageWork:
    layers, work = step.trace.once(regions), step.work
    layer_pass, stages, phase = (
        values[step.rows] for values in (layers.layer_pass, layers.stage, layers.phase)
    )
    inside = (stages == stage) & (work.kind != WORK_KINDS.index("comm"))
    passes = len(unique(layer_pass[inside & (phase == FORWARD) & (layer_pass >= 0)]))
    if without:
        inside &= work.category != work.categories.index(without)
    rows = np.flatnonzero(inside)
    count = int((work.is_kernel[rows] & (phase[rows] == FORWARD)).sum())
    return StageWork(rows, layer_pass[rows] * len(PHASES) + phase[rows], count / max(passes, 1))


def _is_named(step: StepWork, rows: Int, names: re.Pattern[str]) -> bool:
    """Whether any kernel of these has such a name."""
    used = unique(step.work.name[rows]).tolist()
    return bool(matching([step.work.names[code] for code in used], names).any())


def chains(step: StepWork, rows: Int, cell: Int, least_ns: Float | None) -> Chains:
    """Cut kernels into chains: nothing else is launched in between, and the cell (such as the layer) stays.

    A fused kernel takes its least time, but no less than the shortest kernel of its chain. Where no least
    time is known it takes as long as the longest kernel. It never takes longer than the chain. `least_ns`
    is of all of a cell's work, by cell, and is shared out by the kernels' times.
    """
    if not len(rows):
        return Chains.none()
    work = step.work
    counted = unique(np.concatenate((rows, np.flatnonzero(work.is_kernel))))
    counted = counted[ordered(step.called[counted], work.start[counted])]
    cell_of = np.full(len(work.event), -1, dtype=np.int64)
    cell_of[rows] = cell
    in_order = cell_of[counted]
    turn = np.cumsum(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    inside = in_order >= 0
    kept, cells = counted[inside], in_order[inside]
    chain = np.unique(turn[inside], return_inverse=True)[1].ravel()
    dur = work.dur[kept].astype(float)
    count = int(chain.max()) + 1
    total = np.bincount(chain, dur, count)
    longest, shortest = np.zeros(count), np.full(count, np.inf)
    np.maximum.at(longest, chain, dur)
    np.minimum.at(shortest, chain, dur)
    if least_ns is None:
        return Chains(step.rows[kept], chain, longest)
    cell_of_chain = np.zeros(count, dtype=np.int64)
    cell_of_chain[chain] = cells
    cell_ns = np.bincount(cells, dur, len(least_ns))
    fused = least_ns[cell_of_chain] * total / np.maximum(cell_ns[cell_of_chain], 1)
    return Chains(step.rows[kept], chain, np.clip(fused, shortest, total))


def _recurrence(trace: Trace) -> Recurrence:
    return recurrence(trace, trace.once(step_gaps)[1])


def _step_work(trace: Trace) -> tuple[Int, Work]:
    """The work that started in a step, in order of start: its positions in `trace.work`, and itself."""
    edges = steps_of(trace).only_whole().edges
    return trace.work.between(int(edges[0]), int(edges[-1]))


def step_gaps(trace: Trace) -> tuple[Gaps, IdlePieces]:
    """The gaps of the steps, whole and by cause; kept with the trace, as no device changes them."""
    step = StepWork(trace, None)
    gaps = find_gaps(step.work, np.array(step.window))
    return gaps, known_pieces(trace, step.work, gaps)
