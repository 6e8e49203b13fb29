"""The MoE layers of one rank: which GPU work belongs to which layer pass: forward, backward or recompute."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe.compiled import compiled_backward
from tracelens.analysis.moe.kernel_lexer import GEMM, TOPK, Tokens, callers, tokens
from tracelens.analysis.moe.numbering import PassNumber, pass_numbers
from tracelens.analysis.moe.stages import STAGES, Layer, stages
from tracelens.analysis.moe.tensor_sizes import OUTSIDE, Routed
from tracelens.analysis.moe.windows import MAX_EXPERTS, GemmSize, LayerWindow, origins, windows
from tracelens.analysis.pipeline import gradient_sync
from tracelens.analysis.roofline import OpCalls
from tracelens.arrays import Bool, Int
from tracelens.costs import OpCall, OpCost, Uncounted, size
from tracelens.trace import WORK_KINDS, Trace, steps_of

PHASES = ("forward", "backward", "recompute")
FORWARD, BACKWARD, RECOMPUTE = range(3)


@dataclass(frozen=True)
class LayerPass:
    """One micro-batch passing forward through one MoE layer, whose backward belongs to it.

    Attributes:
        step: position of its step in `steps_of`.
        microbatch: number in the step, from 0.
        layer: number of the MoE layer on this rank, from 0, through all its chunks of the model.
        is_recompute: whether the forward pass is recomputed in the backward pass.
        experts: number of experts that the router chooses from, -1 if not known.
        top_k: experts a token, -1 if not known.
        tokens: that the router sees, -1 if not known.
        hidden: size of a token, -1 if not known.
        itemsize: bytes of an element of the expert GEMMs, 2 where not recorded.
        grouped: whether the expert GEMMs are grouped.
        gemms: sizes of the expert GEMMs in order of launch; of grouped ones the rows of all experts.
    """

    step: int
    microbatch: int
    layer: int
    is_recompute: bool
    experts: int
    top_k: int
    tokens: int
    hidden: int
    itemsize: int
    grouped: bool
    gemms: tuple[GemmSize, ...]

    @cached_property
    def rows(self) -> list[int]:
        """Rows that each expert of this rank computes: of each GEMM of the most frequent weight size."""
        sizes: dict[tuple[int, int], list[int]] = {}
        for gemm in self.gemms:
            sizes.setdefault((gemm.depth, gemm.columns), []).append(gemm.rows)
        return max(sizes.values(), key=len) if sizes else []


class Regions(NamedTuple):
    """The MoE layers of one rank; the arrays are aligned with the trace's work.

    Attributes:
        layer_pass: index into `passes`, -1 for work outside of MoE layers and of compiled backward work whose
            layer is not known.
        stage: code into STAGES, -1 outside; UNATTRIBUTED for compiled backward work whose stage is not known.
        phase: code into PHASES, -1 outside.
        interleaved: whether a compiled region launched it backward, between work of other layers.
        passes: in order of launch.
        labels: names of the steps.
        framed: whether frames or scopes of the program mark the layers.
    """

    layer_pass: Int
    stage: Int
    phase: Int
    interleaved: Bool
    passes: list[LayerPass]
    labels: list[str]
    framed: bool


def regions(trace: Trace) -> Regions:
    """The MoE layers of one rank; ask with `trace.once(regions)`."""
    work = trace.work
    nothing = np.full(len(work.event), -1, dtype=np.int64)
    if not len(work.event):
        return Regions(nothing, nothing, nothing, np.zeros(0, dtype=bool), [], [], False)
    caller, autograd, is_recompute = callers(trace)
    lexed = tokens(trace, caller, autograd, is_recompute)
    reader = _Reader(trace, lexed)
    layer_windows = windows(trace, lexed, reader.experts, reader.gemm_size)
    layers = [stages(lexed, window, reader.gemm_size) for window in layer_windows]
    numbers = pass_numbers(trace, lexed, layer_windows, origins(trace, lexed, layer_windows))
    passes = [_pass(*parts, reader) for parts in zip(numbers, layer_windows, layers, strict=True)]
    layer_pass, stage, phase = nothing.copy(), nothing.copy(), nothing.copy()
    of_token = np.full((2, len(lexed.row)), -1, dtype=np.int64)
    for number, (window, layer) in enumerate(zip(layer_windows, layers, strict=True)):
        of_token[0, window.first : window.last] = number
        of_token[1, window.first : window.last] = layer.stage
    layer_pass[lexed.row], stage[lexed.row] = of_token
    phase[lexed.row] = np.where(of_token[0] >= 0, np.where(lexed.is_recompute, RECOMPUTE, FORWARD), -1)
    backward = np.flatnonzero((caller >= 0) & autograd & ~is_recompute)
    layer_pass[backward], stage[backward] = _inherited(trace, backward, caller, lexed, of_token)
    routed = [_routed(layer_pass) for layer_pass in passes]
    rows, owners = compiled_backward(trace, backward, lexed, of_token, routed, reader.gemm_size)
    layer_pass[rows], stage[rows] = owners
    interleaved = np.zeros(len(work.event), dtype=bool)
    interleaved[rows] = True
    phase[backward] = np.where(stage[backward] != OUTSIDE, BACKWARD, -1)
    framed = any(window.frame for window in layer_windows)
    return Regions(layer_pass, stage, phase, interleaved, passes, steps_of(trace).labels, framed)


def _pass(number: PassNumber, window: LayerWindow, layer: Layer, reader: _Reader) -> LayerPass:
    """One pass, its sizes from the router's and the experts' arguments."""
    experts, top_k, seen = reader.choice(window.router)
    gate = window.first + np.flatnonzero(layer.stage == STAGES.index("router"))
    for token in gate[reader.lexed.kind[gate] == GEMM].tolist():
        gemm = reader.gemm_size(token)
        experts = gemm.columns if experts <= 0 else experts
        seen = gemm.rows if seen < 0 else seen
    gemm_tokens = window.first + layer.experts_gemms
    ops = reader.lexed.op[gemm_tokens]
    _, first = np.unique(ops, return_index=True)
    first = np.sort(first) if (ops >= 0).all() else np.arange(len(ops))
    gemms = tuple(reader.gemm_size(token) for token in gemm_tokens[first].tolist())
    hidden = gemms[0].depth if gemms else -1
    itemsize = reader.itemsize(int(gemm_tokens[0])) if len(gemm_tokens) else 2
    is_recompute = bool(reader.lexed.is_recompute[window.first])
    return LayerPass(*number, is_recompute, experts, top_k, seen, hidden, itemsize, layer.grouped, gemms)


def _routed(layer_pass: LayerPass) -> Routed:
    """Sizes of the tokens of a pass."""
    rows, gemms = layer_pass.rows, layer_pass.gemms
    inner = frozenset((gemms[0].columns, gemms[-1].depth) if gemms else ())
    computed = sum(rows) if rows and min(rows) > 0 else -1
    return Routed(layer_pass.tokens, layer_pass.top_k, layer_pass.hidden, computed, inner)


def _inherited(trace: Trace, backward: Int, caller: Int, lexed: Tokens, of_token: Int) -> tuple[Int, Int]:
    """Pass and stage of backward work: those of what its forward op launched, or of the work before it."""
    events, work = trace.arrays, trace.work
    result = np.full((2, len(backward)), -1, dtype=np.int64)
    if not len(backward) or not len(lexed.row):
        return result[0], result[1]
    forward = work.forward[backward]
    begin = events.start[np.maximum(forward, 0)]
    token = low = np.searchsorted(lexed.called, begin)
    launched = (token < len(lexed.called)) & (
        lexed.called[np.minimum(token, len(lexed.called) - 1)] < events.end[forward]
    )
    # A forward op that launched nothing, such as the choice of an expert's weights, belongs to what is
    # launched next, at the end of a layer to what was launched before.
    after, before = np.minimum(token, len(lexed.called) - 1), np.maximum(token - 1, 0)
    token = np.where(launched | (of_token[0, after] == of_token[0, before]), after, before)
    result[:] = of_token[:, token]
    # A checkpointed region is no op: what has it for one, such as gradients that are added up, has none.
    end = np.searchsorted(lexed.called, events.end[np.maximum(forward, 0)])
    several = (end > low) & (lexed.op[np.maximum(end - 1, 0)] != lexed.op[np.minimum(low, len(lexed.op) - 1)])
    linked = (forward >= 0) & ~(several & np.isin(forward, work.forward[lexed.row[lexed.is_recompute]]))
    # What has no forward op (gradients that are added up, zeros that are filled) goes with the work before;
    # gradient synchronization goes with nothing.
    order = np.lexsort((events.start[caller[backward]], events.tid[caller[backward]]))
    before = np.maximum.accumulate(np.where(linked[order], np.arange(len(order)), -1))
    thread = events.tid[caller[backward]][order]
    same = (before >= 0) & (thread[np.maximum(before, 0)] == thread)
    filled = np.where(same, result[:, order[np.maximum(before, 0)]], -1)
    result[:, order] = filled
    result[
        :,
        ~linked & (gradient_sync(trace, work)[backward] | (work.kind[backward] == WORK_KINDS.index("comm"))),
    ] = -1
    return result[0], result[1]


@dataclass
class _Reader:
    """Sizes from recorded arguments, decoded once for each kind of call."""

    trace: Trace
    lexed: Tokens
    _known: dict[tuple[int, ...], OpCost | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ops = self.trace.once(OpCalls)
        self._keys = np.stack(self._ops.keys(self.lexed.op), axis=1)
        self.experts = np.full(len(self.lexed.row), -1, dtype=np.int64)
        for token in np.flatnonzero((self.lexed.kind == TOPK) & (self.lexed.op >= 0)).tolist():
            self.experts[token] = self._choice(token)[0]

    def call(self, token: int) -> OpCall | None:
        """The recorded op of a token, None where nothing was recorded."""
        op = int(self.lexed.op[token])
        if op < 0 or self._ops.row[op] < 0 or not self._ops.recorded(op):
            return None
        return self._ops.call(op)

    def gemm_size(self, token: int) -> GemmSize:
        """Sizes of the GEMM at a token."""
        key = tuple(self._keys[token].tolist())
        if key not in self._known:
            self._known[key] = self._ops.cost(int(self.lexed.op[token]))
        cost = self._known[key]
        if cost is None:
            return GemmSize(-1, -1, -1)
        sizes = dict(cost.dims)
        rows = sizes.get("M", -1) * sizes.get("B", 1)
        return GemmSize(int(rows), int(sizes.get("K", -1)), int(sizes.get("N", -1)))

    def itemsize(self, token: int) -> int:
        """Bytes of an element of the GEMM at a token; 2 where that is not recorded."""
        self.gemm_size(token)
        cost = self._known[tuple(self._keys[token].tolist())]
        return max(size(1, cost.dtype), 1) if cost is not None and cost.dtype else 2

    def choice(self, token: int) -> tuple[int, int, int]:
        """(experts, chosen of them, tokens) of the top-k at a token; -1 for what is not known."""
        return self._choice(token) if self.lexed.kind[token] == TOPK else (-1, -1, -1)

    def _choice(self, token: int) -> tuple[int, int, int]:
        call = self.call(token)
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
            top_k = call.integer(1)
        except Uncounted:
            top_k = -1
        return shape[-1], top_k, int(np.prod(shape[:-1]))
