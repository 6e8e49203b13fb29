"""The MoE layers of one rank: which GPU work belongs to which layer pass: forward, backward or recompute.

One autograd node runs the backward graph of a whole compiled region, often of several layers, so no piece of
work there has a forward op of its own. The sizes of its tensors tell its stage, repetition its layer:
the compiler orders the graph as it likes, and may leave weight gradients for the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.moe.layers import (
    BORDER,
    COMBINE,
    DISPATCH,
    EXPERTS,
    GEMM,
    GROUPED,
    MAX_EXPERTS,
    PERMUTATION,
    STAGES,
    TOPK,
    GemmSize,
    LayerStages,
    LayerWindow,
    Sizes,
    Tokens,
    callers,
    kinds,
    kinds_lookup,
    origins,
    stages,
    tokens,
    windows,
)
from tracelens.analysis.pipeline import FORWARD as FORWARD_PASS
from tracelens.analysis.pipeline import MicrobatchPass, gradient_sync, numbered_alone
from tracelens.analysis.roofline import OpCalls
from tracelens.arrays import Bool, Int, lookup
from tracelens.costs import OpCall, OpCost, Uncounted
from tracelens.costs import size as bytes_of
from tracelens.table import nearest
from tracelens.trace import WORK_KINDS, Trace, rows_by_code, steps_of

PHASES = ("forward", "backward", "recompute")
FORWARD, BACKWARD, RECOMPUTE = range(3)


@dataclass(frozen=True)
class LayerPass:
    """One micro-batch passing forward through one MoE layer, whose backward belongs to it."""

    step: int  # position of its step in `steps_of`
    microbatch: int  # number in the step, from 0
    layer: int  # number of the MoE layer on this rank, from 0, through all its chunks of the model
    is_recompute: bool  # whether the forward pass is recomputed in the backward pass
    experts: int  # number of experts that the router chooses from, -1 if not known
    top_k: int  # experts a token, -1 if not known
    tokens: int  # that the router sees, -1 if not known
    hidden: int  # size of a token, -1 if not known
    itemsize: int  # bytes of an element of the expert GEMMs, 2 where not recorded
    grouped: bool  # whether the expert GEMMs are grouped
    # sizes of the expert GEMMs in order of launch; of grouped ones the rows of all experts
    gemms: tuple[GemmSize, ...]

    @cached_property
    def rows(self) -> list[int]:
        """Rows that each expert of this rank computes: of each GEMM of the most frequent weight size."""
        sizes: dict[tuple[int, int], list[int]] = {}
        for gemm in self.gemms:
            sizes.setdefault((gemm.depth, gemm.columns), []).append(gemm.rows)
        return max(sizes.values(), key=len) if sizes else []


class Regions(NamedTuple):
    """The MoE layers of one rank; the arrays are aligned with the trace's work."""

    # index into `passes`, -1 for work outside of MoE layers and of compiled backward work whose layer is not
    # known
    layer_pass: Int
    # code into STAGES, -1 outside; UNATTRIBUTED for compiled backward work whose stage is not known
    stage: Int
    phase: Int  # code into PHASES, -1 outside
    interleaved: Bool  # whether a compiled region launched it backward, between work of other layers
    passes: list[LayerPass]  # in order of launch
    labels: list[str]  # names of the steps
    framed: bool  # whether frames or scopes of the program mark the layers


@dataclass
class _ArgumentSizes:
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
        return max(bytes_of(1, cost.dtype), 1) if cost is not None and cost.dtype else 2

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


class PassNumber(NamedTuple):
    """Which pass through an MoE layer it is; all numbers from 0."""

    step: int  # position in `steps_of`
    microbatch: int  # in the step
    layer: int  # among the MoE layers of the rank, through all its chunks of the model


class _Forward(NamedTuple):
    """One micro-batch forward through one chunk of the model, and passes through its MoE layers."""

    step: int  # position in `steps_of`
    chunk: int  # of the model, 0 where the rank has only one
    microbatch: int  # in the step
    layers: list[int]  # passes in order of launch, as positions in the list of all
    waiting: list[int]  # those of them that no recompute has repeated yet


_NODE = "CompiledFunctionBackward"
_GEMMS = kinds_lookup(GEMM, GROUPED)


class _Region(NamedTuple):
    """One pass through a compiled region and back."""

    rows: Int  # positions of its backward work in order of launch
    tokens: range  # of its forward work, none where that is not known
    # event rows of the ops around all of both, whose arguments are of no single piece
    around: tuple[int, int]


UNATTRIBUTED = len(STAGES)
"""Stage of backward work of a compiled region whose sizes do not tell it, or were not recorded."""
UNATTRIBUTED_NAME = "compiled backward, stage unknown"
"""What tables call it. Some of it may lie outside of MoE layers."""
OUTSIDE = -1
TensorSize = tuple[int, ...]
"""Dimensions in ascending order, so that a transposed tensor has the size of the other; without ones."""


class Owner(NamedTuple):
    """Pass and stage of work."""

    layer_pass: int
    stage: int


class Routed(NamedTuple):
    """Sizes of the routed tokens of a layer pass; -1 where not known."""

    tokens: int  # that the router sees
    top_k: int  # experts a token
    hidden: int  # size of a token
    rows: int  # that the experts compute
    inner: frozenset[int]  # sizes of a row between the expert GEMMs

    def sizes(self) -> Iterator[tuple[TensorSize, int]]:
        """Sizes of routed tokens, of their positions and weights, with the stages that work on them."""
        chosen = self.tokens * self.top_k if min(self.tokens, self.top_k) > 0 else -1
        for rows in {row_count for row_count in (chosen, self.rows) if row_count > 0} - {self.tokens}:
            yield (rows,), PERMUTATION
            for size in sizes_of((rows, self.hidden)) if self.hidden > 1 else ():
                yield size, PERMUTATION
                if self.hidden in self.inner:
                    yield size, EXPERTS
        if min(self.tokens, self.top_k) > 1:
            yield (self.top_k, self.tokens), PERMUTATION


class TensorSizes:
    """Sizes of tensors by the forward work on them."""

    def __init__(self) -> None:
        self._gemms: dict[TensorSize, set[Owner]] = {}
        self._moved: dict[TensorSize, set[Owner]] = {}
        self._others: dict[TensorSize, set[Owner]] = {}
        self._tokens: set[TensorSize] = set()

    def add(self, owner: Owner, shapes: Iterable[TensorSize], gemm: GemmSize | None) -> None:
        """Add forward work: the shapes of its tensors and, of a GEMM, its sizes."""
        shapes = list(shapes)
        if gemm is not None and min(gemm) > 0:
            shapes += [(gemm.rows, gemm.depth), (gemm.depth, gemm.columns), (gemm.rows, gemm.columns)]
        known = self._others if gemm is None else self._gemms
        for size in {size for shape in shapes for size in sizes_of(shape)}:
            if len(size) > 1:  # vectors have the sizes of much else
                known.setdefault(size, set()).add(owner)

    def add_routed(self, number: int, routed: Routed) -> None:
        """Add the sizes of a pass's routed tokens."""
        self._tokens |= sizes_of((routed.tokens, routed.hidden))
        for size, stage in routed.sizes():
            self._moved.setdefault(size, set()).add(Owner(number, stage))

    def stage(self, shapes: Iterable[TensorSize], is_gemm: bool) -> tuple[int, set[int]]:
        """Stage of backward work by the shapes of its tensors, and the passes with tensors of these sizes.

        A size that several stages have says nothing, and sizes of different stages leave the work without
        one. Those of routed tokens, on which router and experts work, too, give way to all others, and count
        only beside tensors of whole tokens, which all stages have.
        """
        telling: list[set[Owner]] = []
        moving: list[set[Owner]] = []
        unclear = False
        for shape in shapes:
            sizes = sizes_of(shape)
            gemm, moved, other = (
                set().union(*(known.get(size, ()) for size in sizes))
                for known in (self._gemms, self._moved, self._others)
            )
            if moved and not is_gemm and {owner.stage for owner in gemm} <= {EXPERTS}:
                moving.append(moved)
                continue
            # Other forward work is fused with what is around it, so that GEMMs say more of a size.
            owners = gemm or other
            if len({owner.stage for owner in owners}) == 1:
                telling.append(owners)
            else:
                unclear |= bool(owners) and not sizes & self._tokens
        deciding = telling or ([] if unclear else moving)
        stages = {owner.stage for owners in deciding for owner in owners}
        if len(stages) != 1:
            return UNATTRIBUTED, set()
        return stages.pop(), set.intersection(
            *({owner.layer_pass for owner in owners} for owners in deciding)
        )


def regions(trace: Trace) -> Regions:
    """The MoE layers of one rank; ask with `trace.once(regions)`."""
    work = trace.work
    nothing = np.full(len(work.event), -1, dtype=np.int64)
    if not len(work.event):
        return Regions(
            layer_pass=nothing,
            stage=nothing,
            phase=nothing,
            interleaved=np.zeros(0, dtype=bool),
            passes=[],
            labels=[],
            framed=False,
        )
    caller, autograd, is_recompute = callers(trace)
    lexed = tokens(trace, caller, autograd, is_recompute)
    reader = _ArgumentSizes(trace, lexed)
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
    return Regions(
        layer_pass=layer_pass,
        stage=stage,
        phase=phase,
        interleaved=interleaved,
        passes=passes,
        labels=steps_of(trace).labels,
        framed=framed,
    )


def _pass(number: PassNumber, window: LayerWindow, layer: LayerStages, reader: _ArgumentSizes) -> LayerPass:
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
    return LayerPass(
        step=number.step,
        microbatch=number.microbatch,
        layer=number.layer,
        is_recompute=is_recompute,
        experts=experts,
        top_k=top_k,
        tokens=seen,
        hidden=hidden,
        itemsize=itemsize,
        grouped=layer.grouped,
        gemms=gemms,
    )


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


def pass_numbers(
    trace: Trace, lexed: Tokens, windows: Sequence[LayerWindow], origins: Sequence[int]
) -> list[PassNumber]:
    """Numbers of the passes.

    Args:
        trace: of the rank.
        lexed: its forward work.
        windows: of the passes, in order of launch.
        origins: which other pass each one repeats, see windows.origins.
    """
    first = np.array([window.first for window in windows], dtype=np.int64)
    launched, is_recompute = lexed.called[first], lexed.is_recompute[first]
    step = steps_of(trace).begun_at(launched).tolist()
    # Without chunks each uninterrupted forward is one micro-batch.
    spans = _spans(numbered_alone(trace), launched, is_recompute)
    keys: Sequence[object] = [(span.step, span.virtual, span.microbatch) for span in spans]
    if not keys:
        keys = _rounds(windows, lexed.segment[first].tolist(), is_recompute)
    forwards: dict[object, _Forward] = {}
    in_step: Counter[int] = Counter()
    of_window: list[tuple[_Forward, int]] = []
    for window, (key, origin) in enumerate(zip(keys, origins, strict=True)):
        if not is_recompute[window]:
            if key not in forwards:
                chunk, microbatch = 0, in_step[step[window]]
                if spans:
                    chunk, microbatch = spans[window].virtual, spans[window].microbatch
                in_step[step[window]] += 1
                forwards[key] = _Forward(step[window], chunk, microbatch, [], [])
            forwards[key].waiting.append(window)
            forwards[key].layers.append(window)
            of_window.append((forwards[key], len(forwards[key].layers) - 1))
        elif origin >= 0:
            of_window.append(of_window[origin])
        else:
            # Of the forward whose backward runs or, without chunks, of the earliest that waits for its own;
            # its layers from the last to the first.
            candidates = [forwards[key]] if key in forwards else [] if spans else forwards.values()
            forward = next((forward for forward in candidates if forward.waiting), None)
            of_window.append(of_window[forward.waiting.pop()] if forward is not None else _latest(forwards))
    before = _layers_before(list(forwards.values()))
    return [
        PassNumber(forward.step, forward.microbatch, before.get(forward.chunk, 0) + layer)
        for forward, layer in of_window
    ]


def _rounds(
    windows: Sequence[LayerWindow], segments: Sequence[int], is_recompute: Bool
) -> list[tuple[int, int]]:
    """(Segment, round) of each pass: a round ends where the frames of the layers begin to come again.

    Without an embedding nothing else parts one forward from the next. Layers without frames of their own, and
    two micro-batches layer by layer, are one round.
    """
    names: dict[int, list[str]] = {}
    for window, segment, again in zip(windows, segments, is_recompute.tolist(), strict=True):
        if not again:
            names.setdefault(segment, []).append(window.frame)
    count = {segment: _period(frames) for segment, frames in names.items()}
    seen: Counter[int] = Counter()
    keys = []
    for segment, again in zip(segments, is_recompute.tolist(), strict=True):
        keys.append((segment, 0 if again else seen[segment] // count[segment]))
        seen[segment] += not again
    return keys


def _period(names: Sequence[str]) -> int:
    """Length of the series of distinct names that all of them repeat; their number where they do not."""
    period = next((index for index, name in enumerate(names) if name == names[0] and index), len(names))
    distinct = len(set(names[:period])) == period > 1
    repeats = all(name == names[index % period] for index, name in enumerate(names))
    return period if distinct and repeats and all(names) else len(names)


def _spans(spans: Sequence[MicrobatchPass], launched: Int, is_recompute: Bool) -> list[MicrobatchPass]:
    """The pass of the pipeline that each pass through a layer is part of; empty where one is part of none."""
    starts = np.array([span.launched for span in spans], dtype=np.int64)
    index = np.searchsorted(starts, launched, side="right") - 1
    is_forward = np.array([span.phase == FORWARD_PASS for span in spans], dtype=bool)
    if not len(spans) or (index < 0).any() or (is_forward[index] == is_recompute).any():
        return []
    return [spans[number] for number in index.tolist()]


def _latest(forwards: dict[object, _Forward]) -> tuple[_Forward, int]:
    return next(reversed(forwards.values()), _Forward(0, 0, 0, [], [])), 0


def _layers_before(forwards: Sequence[_Forward]) -> dict[int, int]:
    """How many MoE layers a rank's chunks before each of its chunks have."""
    layers: dict[int, int] = {}
    for forward in forwards:
        layers[forward.chunk] = max(layers.get(forward.chunk, 0), len(forward.layers))
    return {chunk: sum(layers[lower] for lower in layers if lower < chunk) for chunk in layers}


def compiled_backward(
    trace: Trace, backward: Int, lexed: Tokens, of_token: Int, routed: Sequence[Routed], gemm_size: Sizes
) -> tuple[Int, Int]:
    """Backward work of compiled regions with MoE layers, and its pass (-1: not known) and stage.

    A region whose forward work is of one stage only is left to its forward op.

    Args:
        trace: of the rank.
        backward: positions of the backward work.
        lexed: forward work of the rank.
        of_token: pass and stage of each token.
        routed: tokens of each pass.
        gemm_size: sizes of the GEMM at a token.

    Returns:
        positions of the work; pass and stage of each, one row each.
    """
    rows, owners = [np.empty(0, dtype=np.int64)], [np.empty((2, 0), dtype=np.int64)]
    for region in _regions(trace, backward, lexed) if routed else ():
        forward = of_token[:, region.tokens]
        if region.around[1] >= 0 and ((forward[0] < 0).all() or (forward == forward[:, :1]).all()):
            continue
        passes = [number for number in np.unique(forward[0]).tolist() if number >= 0]
        sizes = _forward_sizes(trace.once(OpCalls), region, lexed, of_token, gemm_size)
        for number in passes:
            sizes.add_routed(number, routed[number])
        owner = _owners(trace, region, passes, sizes)
        comm = trace.work.kind[region.rows] == WORK_KINDS.index("comm")
        owner[:, comm] = _mirrored(trace, region.rows[comm], lexed.row[region.tokens], forward)
        rows.append(region.rows)
        owners.append(owner)
    return np.concatenate(rows), np.concatenate(owners, axis=1)


def _regions(trace: Trace, backward: Int, lexed: Tokens) -> Iterator[_Region]:
    """The compiled regions with backward work."""
    events, caller = trace.arrays, trace.work.host_call
    is_node = events.named(_NODE.__eq__)
    if not is_node.any():
        return
    node = lookup(nearest(events.parent, events.depth, is_node), caller[backward], -1)
    for event, members in rows_by_code(node).items():
        if event >= 0:
            rows = backward[members]
            rows = rows[np.argsort(events.start[caller[rows]], kind="stable")]
            forward = int(trace.work.forward[rows].max())
            extent = np.searchsorted(lexed.called, (events.start[forward], events.end[forward])).tolist()
            yield _Region(rows, range(*extent) if forward >= 0 else range(0), (event, forward))


def _forward_sizes(
    calls: OpCalls, region: _Region, lexed: Tokens, of_token: Int, gemm_size: Sizes
) -> TensorSizes:
    """Sizes of the tensors of a region's forward ops."""
    result = TensorSizes()
    _, first = np.unique(lexed.op[region.tokens], return_index=True)
    for token in (first + region.tokens.start).tolist():
        op = int(lexed.op[token])
        if op >= 0 and calls.row[op] >= 0 and op not in region.around:
            gemm = gemm_size(token) if _GEMMS[lexed.kind[token]] else None
            owner = Owner(*of_token[:, token].tolist())
            result.add(owner, tensor_shapes(calls.call(op).shapes), gemm)
    return result


def _owners(trace: Trace, region: _Region, passes: Sequence[int], sizes: TensorSizes) -> Int:
    """Pass and stage of a region's backward work by its tensors.

    Args:
        trace: of the rank.
        region: its work.
        passes: through MoE layers that its forward work holds.
        sizes: of the tensors of its forward work.
    """
    calls, op = trace.once(OpCalls), trace.work.op[region.rows]
    key = np.stack([*calls.keys(op)[:2], trace.once(kinds)[region.rows]])
    signatures, signature = np.unique(key, axis=1, return_inverse=True)
    result = np.full((2, len(op)), -1, dtype=np.int64)
    for number, same in rows_by_code(signature.ravel()).items():
        first, kind = int(op[same[0]]), int(signatures[-1, number])
        has_arguments = first >= 0 and calls.row[first] >= 0 and first not in region.around
        shapes = list(tensor_shapes(calls.call(first).shapes)) if has_arguments else []
        stage, owners = sizes.stage(shapes, bool(_GEMMS[kind]))
        if kind == BORDER and shapes:  # attention and the like, in no MoE layer
            stage = OUTSIDE
        result[1, same] = stage
        if stage not in (OUTSIDE, UNATTRIBUTED):
            result[0, same] = _repeated(op[same], passes, owners)
    return result


def _repeated(op: Int, passes: Sequence[int], owners: set[int]) -> Int:
    """Pass of the work of equal backward ops in order of launch, -1 where that is not known.

    Ops that every layer has equally often come in the order of the layers, from the last to the first.
    """
    if len(owners & set(passes)) == 1:
        return np.full(len(op), next(iter(owners)))
    calls, first, call = np.unique(op, return_index=True, return_inverse=True)
    if not passes or len(calls) % len(passes):
        return np.full(len(op), -1)
    position = np.argsort(np.argsort(first))[call]
    return np.array(passes)[::-1][position * len(passes) // len(calls)]


def _mirrored(trace: Trace, comm: Int, forward: Int, of_token: Int) -> Int:
    """Pass and stage of backward communication: the messages of forward, from the last to the first.

    What was sent then is received now. Collectives of other kinds than those of dispatch and combine are
    of parameters.

    Args:
        trace: of the rank.
        comm: positions of the backward communication in order of launch.
        forward: positions of the region's forward work in order of launch.
        of_token: pass and stage of each of these.
    """
    table = trace.tables["collectives"]
    names, sent, received = table.texts("collective"), table.array("in_bytes"), table.array("out_bytes")
    row_of = {event: row for row, event in enumerate(table.array("kernel_id").tolist()) if event >= 0}
    messages = []
    for column in np.flatnonzero(np.isin(of_token[1], (DISPATCH, COMBINE))).tolist():
        row = row_of.get(int(trace.work.event[forward[column]]), -1)
        if row >= 0:
            messages.append((names[row], int(sent[row]), int(received[row]), of_token[:, column]))
    kinds_sent = {name for name, *_ in messages}
    of_gradients = gradient_sync(trace, trace.work)[comm]
    result = np.full((2, len(comm)), -1, dtype=np.int64)
    for index in range(len(comm)):
        row = row_of.get(int(trace.work.event[comm[index]]), -1)
        if of_gradients[index] or (row >= 0 and names[row] not in kinds_sent):
            continue
        result[1, index] = UNATTRIBUTED
        key = (names[row], int(received[row]), int(sent[row])) if row >= 0 else None
        match = next((i for i in range(len(messages) - 1, -1, -1) if messages[i][:3] == key), -1)
        if match >= 0:
            result[:, index] = messages[match][3]
            del messages[match:]
    return result


def sizes_of(shape: TensorSize) -> set[TensorSize]:
    """The sizes by which a tensor is recognized: with all its dimensions, and as matrix of its last one."""
    dims = [dim for dim in shape if dim != 1]
    return (
        {tuple(sorted(dims)), tuple(sorted((prod(dims[:-1]), dims[-1])))} if len(dims) > 1 else {tuple(dims)}
    )


def tensor_shapes(arguments: Iterable[Any]) -> Iterator[TensorSize]:
    """Shapes of the tensors among the recorded arguments of an op, those in lists included."""
    for shape in arguments:
        if shape and isinstance(shape[0], list):
            yield from tensor_shapes(shape)
        elif shape:
            yield tuple(shape)
