"""The MoE layers of one rank: which piece of GPU work is part of which pass, forward, backward or again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe.kernel_lexer import GEMM, TOPK, Tokens, callers, tokens
from tracelens.analysis.moe.stages import STAGES, Layer, stages
from tracelens.analysis.moe.windows import MAX_EXPERTS, LayerWindow, Product, origins, windows
from tracelens.analysis.pipeline import gradient_sync
from tracelens.analysis.roofline import OpCalls
from tracelens.arrays import Int
from tracelens.costs import OpCall, OpCost, Uncounted, size
from tracelens.trace import WORK_KINDS, Trace, find_steps

PHASES = ("forward", "backward", "recompute")
FORWARD, BACKWARD, RECOMPUTE = range(3)


@dataclass(frozen=True)
class LayerPass:
    """One micro-batch passing forward through one MoE layer, whose backward belongs to it.

    Attributes:
        step: place of its step among those of find_steps.
        microbatch: number in the step, from 0.
        layer: number of the MoE layer on this rank, from 0.
        again: whether the forward pass is recomputed in the backward pass.
        experts: number of experts that the router chooses from, -1 if not known.
        chosen: experts a token, -1 if not known.
        tokens: that the router sees, -1 if not known.
        hidden: size of a token, -1 if not known.
        itemsize: bytes of an element of the experts' products, 2 where not recorded.
        grouped: whether the experts' products are grouped.
        products: sizes of the experts' products in order of launch; of grouped ones the rows of all experts.
    """

    step: int
    microbatch: int
    layer: int
    again: bool
    experts: int
    chosen: int
    tokens: int
    hidden: int
    itemsize: int
    grouped: bool
    products: tuple[Product, ...]

    @cached_property
    def rows(self) -> list[int]:
        """Rows that each expert of this rank computes: of each product of the most frequent weight size."""
        sizes: dict[tuple[int, int], list[int]] = {}
        for product in self.products:
            sizes.setdefault((product.depth, product.columns), []).append(product.rows)
        return max(sizes.values(), key=len) if sizes else []


class Regions(NamedTuple):
    """The MoE layers of one rank; the arrays are aligned with the trace's work.

    Attributes:
        visit: place in `visits`, -1 for work outside of MoE layers.
        stage: code into STAGES, -1 outside.
        phase: code into PHASES, -1 outside.
        visits: in order of launch.
        labels: names of the steps.
        framed: whether frames or scopes of the program told where the layers are.
    """

    visit: Int
    stage: Int
    phase: Int
    visits: list[LayerPass]
    labels: list[str]
    framed: bool


def regions(trace: Trace) -> Regions:
    """The MoE layers of one rank; ask with `trace.once(regions)`."""
    work = trace.work
    nothing = np.full(len(work.event), -1, dtype=np.int64)
    if not len(work.event):
        return Regions(nothing, nothing, nothing, [], [], False)
    caller, autograd, again = callers(trace)
    found = tokens(trace, caller, autograd, again)
    reader = _Reader(trace, found)
    places = windows(trace, found, reader.experts, reader.product)
    layers = [stages(found, window, reader.product) for window in places]
    steps = find_steps(trace, work)
    visits = _visits(found, steps.edges, places, layers, origins(trace, found, places), reader)
    visit, stage, phase = nothing.copy(), nothing.copy(), nothing.copy()
    of_token = np.full((2, len(found.row)), -1, dtype=np.int64)
    for number, (window, layer) in enumerate(zip(places, layers, strict=True)):
        of_token[0, window.first : window.last] = number
        of_token[1, window.first : window.last] = layer.stage
    visit[found.row], stage[found.row] = of_token
    phase[found.row] = np.where(of_token[0] >= 0, np.where(found.again, RECOMPUTE, FORWARD), -1)
    back = np.flatnonzero((caller >= 0) & autograd & ~again)
    visit[back], stage[back] = _inherited(trace, back, caller, found, of_token)
    phase[back] = np.where(visit[back] >= 0, BACKWARD, -1)
    return Regions(visit, stage, phase, visits, steps.labels, any(window.frame for window in places))


def _visits(
    found: Tokens, edges: Int, places: list[LayerWindow], layers: list[Layer], of: list[int], reader: _Reader
) -> list[LayerPass]:
    """Numbers and sizes of the passes, `of` which others they are: see origins."""
    visits: list[LayerPass] = []
    waiting: deque[list[LayerPass]] = deque()
    segment, microbatch, step = -1, -1, -1
    for window, layer, origin in zip(places, layers, of, strict=True):
        at = window.first
        again = bool(found.again[at])
        if not again and int(found.segment[at]) != segment:
            segment = int(found.segment[at])
            now = int(np.clip(np.searchsorted(edges, found.called[at], "right") - 1, 0, len(edges) - 2))
            microbatch = microbatch + 1 if now == step else 0
            step = now
            waiting.append([])
        if again and origin >= 0:
            numbers = visits[origin].step, visits[origin].microbatch, visits[origin].layer
        elif again:
            # The earliest micro-batch whose backward is not over yet, its layers from the last to the first.
            while waiting and not waiting[0]:
                waiting.popleft()
            if waiting:
                visit = waiting[0].pop()
                numbers = visit.step, visit.microbatch, visit.layer
            else:
                numbers = max(step, 0), max(microbatch, 0), 0
        else:
            numbers = step, microbatch, len(waiting[-1])
        visit = _visit(numbers, again, window, layer, reader)
        if not again:
            waiting[-1].append(visit)
        visits.append(visit)
    return visits


def _visit(
    numbers: tuple[int, int, int], again: bool, window: LayerWindow, layer: Layer, reader: _Reader
) -> LayerPass:
    """One pass, its sizes from the router's and the experts' arguments."""
    experts, chosen, seen = reader.choice(window.router)
    gate = window.first + np.flatnonzero(layer.stage == STAGES.index("router"))
    for at in gate[reader.found.kind[gate] == GEMM].tolist():
        product = reader.product(at)
        experts = product.columns if experts <= 0 else experts
        seen = product.rows if seen < 0 else seen
    tokens_of = window.first + layer.experts_gemms
    ops = reader.found.op[tokens_of]
    _, first = np.unique(ops, return_index=True)
    first = np.sort(first) if (ops >= 0).all() else np.arange(len(ops))
    products = tuple(reader.product(at) for at in tokens_of[first].tolist())
    hidden = products[0].depth if products else -1
    item = reader.itemsize(int(tokens_of[0])) if len(tokens_of) else 2
    return LayerPass(*numbers, again, experts, chosen, seen, hidden, item, layer.grouped, products)


def _inherited(trace: Trace, back: Int, caller: Int, found: Tokens, of_token: Int) -> tuple[Int, Int]:
    """Pass and stage of backward work: those of what its forward op launched, or of the work before it."""
    events, work = trace.arrays, trace.work
    result = np.full((2, len(back)), -1, dtype=np.int64)
    if not len(back) or not len(found.row):
        return result[0], result[1]
    forward = work.forward[back]
    begin = events.start[np.maximum(forward, 0)]
    at = low = np.searchsorted(found.called, begin)
    launched = (at < len(found.called)) & (
        found.called[np.minimum(at, len(found.called) - 1)] < events.end[forward]
    )
    # A forward op that launched nothing, such as the choice of an expert's weights, belongs to what is
    # launched next, at the end of a layer to what was launched before.
    after, before = np.minimum(at, len(found.called) - 1), np.maximum(at - 1, 0)
    at = np.where(launched | (of_token[0, after] == of_token[0, before]), after, before)
    result[:] = of_token[:, at]
    # A checkpointed region is no op: what has it for one, such as gradients that are added up, has none.
    end = np.searchsorted(found.called, events.end[np.maximum(forward, 0)])
    several = (end > low) & (found.op[np.maximum(end - 1, 0)] != found.op[np.minimum(low, len(found.op) - 1)])
    linked = (forward >= 0) & ~(several & np.isin(forward, work.forward[found.row[found.again]]))
    # What has no forward op (gradients that are added up, zeros that are filled) goes with the work before;
    # gradient synchronisation goes with nothing.
    order = np.lexsort((events.start[caller[back]], events.tid[caller[back]]))
    before = np.maximum.accumulate(np.where(linked[order], np.arange(len(order)), -1))
    thread = events.tid[caller[back]][order]
    same = (before >= 0) & (thread[np.maximum(before, 0)] == thread)
    filled = np.where(same, result[:, order[np.maximum(before, 0)]], -1)
    result[:, order] = filled
    result[
        :, ~linked & (gradient_sync(trace, work)[back] | (work.kind[back] == WORK_KINDS.index("comm")))
    ] = -1
    return result[0], result[1]


@dataclass
class _Reader:
    """Sizes from recorded arguments, decoded once for each kind of call."""

    trace: Trace
    found: Tokens
    _known: dict[tuple[int, ...], OpCost | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ops = self.trace.once(OpCalls)
        self._keys = np.stack(self._ops.keys(self.found.op), axis=1)
        self.experts = np.full(len(self.found.row), -1, dtype=np.int64)
        for at in np.flatnonzero((self.found.kind == TOPK) & (self.found.op >= 0)).tolist():
            self.experts[at] = self._choice(at)[0]

    def call(self, at: int) -> OpCall | None:
        """The recorded op of a token, None where nothing was recorded."""
        op = int(self.found.op[at])
        if op < 0 or self._ops.row[op] < 0 or not self._ops.recorded(op):
            return None
        return self._ops.call(op)

    def product(self, at: int) -> Product:
        """Sizes of the matrix product at a token."""
        key = tuple(self._keys[at].tolist())
        if key not in self._known:
            self._known[key] = self._ops.cost(int(self.found.op[at]))
        cost = self._known[key]
        if cost is None:
            return Product(-1, -1, -1)
        sizes = dict(cost.dims)
        rows = sizes.get("M", -1) * sizes.get("B", 1)
        return Product(int(rows), int(sizes.get("K", -1)), int(sizes.get("N", -1)))

    def itemsize(self, at: int) -> int:
        """Bytes of an element of the product at a token; of 16 bits where that is not recorded."""
        self.product(at)
        cost = self._known[tuple(self._keys[at].tolist())]
        return max(size(1, cost.dtype), 1) if cost is not None and cost.dtype else 2

    def choice(self, at: int) -> tuple[int, int, int]:
        """(experts, chosen of them, tokens) of the top-k at a token; -1 for what is not known."""
        return self._choice(at) if self.found.kind[at] == TOPK else (-1, -1, -1)

    def _choice(self, at: int) -> tuple[int, int, int]:
        call = self.call(at)
        # Fused ops have other arguments.
        if call is None or call.name != "aten::topk":
            return -1, -1, -1
        try:
            shape, along = call.tensor(0).shape, call.integer(2, -1)
        except Uncounted:
            return -1, -1, -1
        if along not in (-1, len(shape) - 1):
            return 0, -1, -1  # along another dimension: which tokens an expert has room for
        if not shape or not 1 < shape[-1] <= MAX_EXPERTS:
            return (shape[-1] if shape else -1), -1, -1
        try:
            chosen = call.integer(1)
        except Uncounted:
            chosen = -1
        return shape[-1], chosen, int(np.prod(shape[:-1]))
