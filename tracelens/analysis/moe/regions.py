"""The MoE layers of one rank: which GPU work belongs to which layer pass: forward, backward or recompute.

One autograd node runs the backward graph of a whole compiled region, often of several layers, so no piece of
work there has a forward op of its own. The sizes of its tensors tell its stage, repetition its layer:
the compiler orders the graph as it likes, and may leave weight gradients for the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.analysis.common import integers
from tracelens.analysis.moe.layers import (
    BORDER,
    COMBINE,
    DISPATCH,
    EXPERTS,
    GEMM,
    GEMMS,
    MAX_EXPERTS,
    PERMUTATION,
    ROUTE,
    ROUTER,
    STAGES,
    TOPK,
    GemmSize,
    LayerWindow,
    Sizes,
    Tokens,
    callers,
    in_launch_order,
    kinds,
    origins,
    row_splits,
    rows_in_group,
    rows_in_loop,
    stages,
    tokens,
    windows,
)
from tracelens.analysis.pipeline import FORWARD as FORWARD_PASS
from tracelens.analysis.pipeline import MicrobatchPass, gradient_sync, model_chunks, numbered_alone
from tracelens.analysis.roofline import OpCalls
from tracelens.arrays import Bool, Int, lookup, ordered, unique
from tracelens.costs import OpCost, Uncounted
from tracelens.costs import size as bytes_of
from tracelens.table import codes, nearest, sums
from tracelens.trace import WORK_KINDS, Trace, is_unattributed, rows_by_code, steps_of

PHASES = ("forward", "backward", "recompute")
FORWARD, BACKWARD, RECOMPUTE = range(3)


class LayerPass(Struct, frozen=True, dict=True):
    """One micro-batch passing forward through one MoE layer, whose backward belongs to it."""

    step: int  # position of its step in `steps_of`
    micro_batch: int  # number in the step, from 0
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
    # experts that tokens are sorted by, -1 where not recorded: a router may choose from others, too, that
    # compute nothing
    sorted_by: int = -1
    # rows of each expert of this rank by its number, empty where the trace does not tell
    expert_rows: tuple[int, ...] = ()

    @property
    def ranks_of_experts(self) -> int:
        """Ranks that share the experts out, if this one tells tokens apart by its own only; 0 if unknown."""
        own = self.sorted_by
        return self.experts // own if own > 0 and self.experts % own == 0 else 0

    @property
    def masks_rows(self) -> bool:
        """Whether grouped GEMMs have the rows of all experts and compute those of the rank's own.

        Those behind the last group are left out, so only the GPU knows how many are computed.
        """
        return self.grouped and self.ranks_of_experts > 1 and sum(self.rows) == self.chosen

    @property
    def chosen(self) -> int:
        """Rows that the tokens become, one an expert that they chose; -1 if not known."""
        return self.tokens * self.top_k if min(self.tokens, self.top_k) > 0 else -1

    @cached_property
    def rows(self) -> list[int]:
        """Rows of each expert that has any, in order of launch: of the GEMMs of the most frequent size."""
        sizes: dict[tuple[int, int], list[int]] = {}
        for gemm in self.gemms:
            sizes.setdefault((gemm.depth, gemm.columns), []).append(gemm.rows)
        if not sizes:
            return []
        depth, columns = max(sizes, key=lambda size: len(sizes[size]))
        # Separate gate and up projections have one size: of the down projection each expert has one.
        down = sizes.get((columns, depth), [])
        return down if 2 * len(down) == len(sizes[depth, columns]) else sizes[depth, columns]


class Regions(Struct, frozen=True):
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
    # number of a chunk in the whole model to its MoE layers, of the chunks that the rank runs; empty where
    # the trace does not tell which
    chunk_layers: Mapping[int, int]


_COUNTS = {"aten::one_hot": 1, "aten::histc": 1, "aten::bincount": 2}
"""Ops that tell the tokens of experts apart, and which argument says how many experts there are."""


class _ArgumentSizes:
    """Sizes from recorded arguments, decoded once for each kind of call."""

    def __init__(self, trace: Trace, lexed: Tokens) -> None:
        self.trace, self.lexed = trace, lexed
        self._costs: dict[int, OpCost | None] = {}
        self._sizes: dict[int, GemmSize] = {}
        self._ops = trace.once(OpCalls)
        self._kind, _ = codes(*self._ops.keys(lexed.op))
        self.experts = np.full(len(lexed.row), -1, dtype=np.int64)
        for token in np.flatnonzero((lexed.kind == TOPK) & (lexed.op >= 0)).tolist():
            self.experts[token] = self._choice(token)[0]

    def gemm_size(self, token: int) -> GemmSize:
        """Sizes of the GEMM at a token."""
        kind = self._kind.item(token)
        if kind not in self._sizes:
            cost = self._cost(token)
            sizes = {} if cost is None else dict(cost.dims)
            rows = sizes.get("M", -1) * sizes.get("B", 1)
            self._sizes[kind] = GemmSize(int(rows), int(sizes.get("K", -1)), int(sizes.get("N", -1)))
        return self._sizes[kind]

    def expert_rows(self, layer_pass: LayerPass, window: LayerWindow, gemm: int) -> tuple[int, ...]:
        """Rows of each expert by its number, where a pass records them; `gemm` is its first expert GEMM."""
        rows, op = layer_pass.rows, int(self.lexed.op[gemm])
        called, splits = self.lexed.called, self.trace.once(row_splits)
        if not layer_pass.grouped:
            before = splits.between(int(called[window.first]), int(called[gemm]))
            return rows_in_loop(before, rows, layer_pass.experts)
        own = [integers(text) for text in self._ops.call(op).values]
        inside = splits.between(int(self.trace.arrays.start[op]), int(called[gemm]))
        cost = self._cost(gemm)
        groups = dict(cost.dims).get("G", 0) if cost is not None else 0
        return rows_in_group([*own, *inside], int(groups), rows[0])

    def sorted_by(self, first: int, last: int) -> int:
        """Experts by which tokens are told apart among some tokens of work; -1 where that is not recorded."""
        events = self.trace.arrays
        for token in range(first, last):
            op = int(self.lexed.op[token])
            if self.lexed.kind[token] != ROUTE or op < 0:
                continue
            for event in (op, int(events.parent[op])):
                argument = _COUNTS.get(self._ops.name(event), -1) if event >= 0 else -1
                if argument >= 0 and self._ops.row[event] >= 0:
                    return self._ops.call(event).integer(argument, -1)
        return -1

    def _cost(self, token: int) -> OpCost | None:
        kind = self._kind.item(token)
        if kind not in self._costs:
            # Where one GEMM is asked for, most are.
            asked = np.append(token, np.flatnonzero(GEMMS[self.lexed.kind]))
            _, first = np.unique(self._kind[asked], return_index=True)
            costs = self._ops.costs(self.lexed.op[asked[first]])
            self._costs.update(zip(self._kind[asked[first]].tolist(), costs, strict=True))
        return self._costs[kind]

    def itemsize(self, token: int) -> int:
        """Bytes of an element of the GEMM at a token; 2 where that is not recorded."""
        cost = self._cost(token)
        return max(bytes_of(1, cost.dtype), 1) if cost is not None and cost.dtype else 2

    def choice(self, token: int) -> tuple[int, int, int]:
        """(experts, chosen of them, tokens) of the top-k at a token; -1 for what is not known."""
        return self._choice(token) if self.lexed.kind[token] == TOPK else (-1, -1, -1)

    def _choice(self, token: int) -> tuple[int, int, int]:
        op = int(self.lexed.op[token])
        if op < 0 or self._ops.row[op] < 0 or not self._ops.recorded(op):
            return -1, -1, -1
        call = self._ops.call(op)
        if call.name != "aten::topk":  # fused ops have other arguments
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


def why_no_layer(trace: Trace) -> str:
    """Why a trace shows no MoE layer."""
    if is_unattributed(trace):
        return "no MoE layer outside of graphs; --captures or --twin finds the ops in them"
    return "no MoE layer: no router followed by experts"


class PassNumber(Struct, frozen=True):
    """Which pass through an MoE layer it is; all numbers from 0."""

    step: int  # position in `steps_of`
    micro_batch: int  # in the step
    layer: int  # among the MoE layers of the rank, through all its chunks of the model
    chunk: int = -1  # of the model, -1 where the rank has only one or does not tell


class _Forward(Struct, frozen=True):
    """One micro-batch forward through one chunk of the model, and passes through its MoE layers."""

    step: int  # position in `steps_of`
    chunk: int  # of the model, -1 where the rank has only one
    micro_batch: int  # in the step
    layers: list[int]  # passes in order of launch, as positions in the list of all
    waiting: list[int]  # those of them that no recompute has repeated yet


_NODE = "CompiledFunctionBackward"
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

    def add_routed(self, number: int, layer_pass: LayerPass) -> None:
        """Add the sizes of a pass's routed tokens, of their positions and weights."""
        tokens, top_k, hidden = layer_pass.tokens, layer_pass.top_k, layer_pass.hidden
        rows, gemms = layer_pass.rows, layer_pass.gemms
        self._tokens |= sizes_of((tokens, hidden))
        chosen = layer_pass.chosen
        computed = sum(rows) if rows and min(rows) > 0 else -1
        # Whether a row between the expert GEMMs has the size of a token, too.
        is_inner = bool(gemms) and hidden in (gemms[0].columns, gemms[-1].depth)
        owners: list[tuple[TensorSize, int]] = []
        for count in {count for count in (chosen, computed) if count > 0} - {tokens}:
            owners.append(((count,), PERMUTATION))
            for size in sizes_of((count, hidden)) if hidden > 1 else ():
                owners.append((size, PERMUTATION))
                if is_inner:
                    owners.append((size, EXPERTS))
        if min(tokens, top_k) > 1:
            owners.append(((top_k, tokens), PERMUTATION))
        for size, stage in owners:
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
            chunk_layers={0: 0},
        )
    caller, autograd, is_recompute = callers(trace)
    lexed = tokens(trace, caller, autograd, is_recompute)
    reader = _ArgumentSizes(trace, lexed)
    layer_windows = windows(trace, lexed, reader.experts, reader.gemm_size)
    layers = [stages(lexed, window, reader.gemm_size) for window in layer_windows]
    numbers = pass_numbers(trace, lexed, layer_windows, origins(trace, lexed, layer_windows))
    passes: list[LayerPass] = []
    of_token = np.full((2, len(lexed.row)), -1, dtype=np.int64)
    # Token of each pass's first expert GEMM; of a pass without one, behind its last.
    first_expert = np.array(
        [
            window.first + int(layer.experts_gemms[0]) if len(layer.experts_gemms) else window.last
            for window, layer in zip(layer_windows, layers, strict=True)
        ],
        dtype=np.int64,
    )
    for number, window, layer in zip(numbers, layer_windows, layers, strict=True):
        of_token[0, window.first : window.last] = len(passes)
        of_token[1, window.first : window.last] = layer.stage
        # Sizes from the router's and the experts' arguments.
        choosing = window.first + np.flatnonzero(
            (lexed.kind[window.first : window.last] == TOPK) & (layer.stage == ROUTER)
        )
        router = window.router if lexed.kind[window.router] == TOPK or not len(choosing) else choosing[-1]
        experts, top_k, seen = reader.choice(int(router))
        gate = window.first + np.flatnonzero(layer.stage == ROUTER)
        for gate_gemm in gate[lexed.kind[gate] == GEMM][::-1].tolist():  # the last one gives scores
            gemm = reader.gemm_size(gate_gemm)
            experts = gemm.columns if experts <= 0 else experts
            seen = gemm.rows if seen < 0 else seen
        gemm_tokens = window.first + layer.experts_gemms
        ops = lexed.op[gemm_tokens]
        _, first = np.unique(ops, return_index=True)
        first = np.sort(first) if (ops >= 0).all() else np.arange(len(ops))
        gemms = tuple(map(reader.gemm_size, gemm_tokens[first].tolist()))
        new_pass = LayerPass(
            step=number.step,
            micro_batch=number.micro_batch,
            layer=number.layer,
            is_recompute=bool(lexed.is_recompute[window.first]),
            experts=experts,
            top_k=top_k,
            tokens=seen,
            hidden=gemms[0].depth if gemms else -1,
            itemsize=reader.itemsize(int(gemm_tokens[0])) if len(gemm_tokens) else 2,
            grouped=layer.grouped,
            gemms=gemms,
            sorted_by=reader.sorted_by(window.first, int(gemm_tokens[0])) if len(gemm_tokens) else -1,
        )
        if new_pass.rows and min(new_pass.rows) >= 0:
            expert_rows = reader.expert_rows(new_pass, window, int(gemm_tokens[0]))
            new_pass = replace(new_pass, expert_rows=expert_rows)
        passes.append(new_pass)
    layer_pass, stage, phase = nothing.copy(), nothing.copy(), nothing.copy()
    layer_pass[lexed.row], stage[lexed.row] = of_token
    phase[lexed.row] = np.where(of_token[0] >= 0, np.where(lexed.is_recompute, RECOMPUTE, FORWARD), -1)
    backward = np.flatnonzero((caller >= 0) & autograd & ~is_recompute)
    if len(backward) and len(lexed.row):
        # Backward work: as what its forward op launched, or as the work before it.
        events, called, forward = trace.arrays, lexed.called, work.forward[backward]
        token = low = np.searchsorted(called, events.start[np.maximum(forward, 0)])
        launched = (token < len(called)) & (called[np.minimum(token, len(called) - 1)] < events.end[forward])
        # A forward op that launched nothing, such as the choice of an expert's weights, belongs to what is
        # launched next, at the end of a layer to what was launched before.
        after, before = np.minimum(token, len(called) - 1), np.maximum(token - 1, 0)
        token = np.where(launched | (of_token[0, after] == of_token[0, before]), after, before)
        inherited = of_token[:, token]
        # A checkpointed region is no op: what has it for one, such as gradients that are added up, has none.
        end = np.searchsorted(called, events.end[np.maximum(forward, 0)])
        several = lexed.op[np.maximum(end - 1, 0)] != lexed.op[np.minimum(low, len(lexed.op) - 1)]
        in_region = np.isin(forward, work.forward[lexed.row[lexed.is_recompute]])
        linked = (forward >= 0) & ~((end > low) & several & in_region)
        # An op with work of several stages is for what takes most time: GEMMs one by one, not the sizes that
        # it copies to the host before.
        changes = np.append(0, np.cumsum((of_token[:, 1:] != of_token[:, :-1]).any(axis=0)))
        mixed = linked & (end > low) & (changes[np.maximum(end - 1, 0)] != changes[after])
        for op, same in rows_by_code(np.where(mixed, forward, -1)).items():
            if op >= 0:
                inside = np.arange(low[same[0]], end[same[0]])
                part, owner = codes(*of_token[:, inside])
                most = np.argmax(sums(part, work.dur[lexed.row[inside]], len(owner[0])))
                inherited[:, same] = np.stack(owner)[:, [most]]
        # What has no forward op (gradients that are added up, zeros that are filled) goes with the work
        # before; gradient synchronization goes with nothing.
        order = ordered(events.tid[caller[backward]], events.start[caller[backward]])
        before = np.maximum.accumulate(np.where(linked[order], np.arange(len(order)), -1))
        thread = events.tid[caller[backward]][order]
        same = (before >= 0) & (thread[np.maximum(before, 0)] == thread)
        inherited[:, order] = np.where(same, inherited[:, order[np.maximum(before, 0)]], -1)
        is_comm = work.kind[backward] == WORK_KINDS.index("comm")
        inherited[:, ~linked & (gradient_sync(trace, work)[backward] | is_comm)] = -1
        # Communication of the backward pass alone, such as adding up the gradients of the layer's input under
        # tensor parallelism, is called what it would be in forward: by its place before or after the experts.
        alone = is_comm & (inherited[0] >= 0) & ~np.isin(inherited[1], (DISPATCH, COMBINE))
        before_experts = token[alone] < first_expert[inherited[0, alone]]
        inherited[1, alone] = np.where(before_experts, DISPATCH, COMBINE)
        layer_pass[backward], stage[backward] = inherited
    rows, owners = compiled_backward(trace, backward, lexed, of_token, passes, reader.gemm_size)
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
        chunk_layers=chunk_layers(numbers, model_chunks(trace)),
    )


def chunk_layers(numbers: Sequence[PassNumber], chunks: Sequence[int]) -> dict[int, int]:
    """How many MoE layers each chunk of a rank has, see Regions.

    Args:
        numbers: of its passes through MoE layers.
        chunks: numbers in the whole model of those that it runs, empty where not known.
    """
    if len(chunks) == 1:
        return {chunks[0]: max((number.layer for number in numbers), default=-1) + 1}
    layers = {chunk: {number.layer for number in numbers if number.chunk == chunk} for chunk in chunks}
    told = all(number.chunk in layers for number in numbers)
    return {chunk: len(of_chunk) for chunk, of_chunk in layers.items()} if told else {}


def model_layers(ranks: Sequence[Mapping[int, int]]) -> list[Int] | str:
    """Numbers of MoE layers through all stages of a pipeline; why they are not known, else.

    Args:
        ranks: `chunk_layers` of each, see Regions; replicas of a stage have the same chunks.

    Returns:
        of each rank the layers' numbers in the whole model, by those on the rank.
    """
    layers: dict[int, int] = {}
    for of_rank in ranks:
        for chunk, count in of_rank.items():
            layers[chunk] = max(layers.get(chunk, 0), count)
    if not all(ranks):
        return "a trace does not tell which part of the model it runs"
    if missing := set(range(max(layers, default=0))) - set(layers):
        return f"no rank of the run has chunk {min(missing)} of the model"
    first = np.cumsum([0, *(layers[chunk] for chunk in sorted(layers))])
    return [
        np.concatenate([first[chunk] + np.arange(count) for chunk, count in sorted(of_rank.items())])
        for of_rank in ranks
    ]


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
    # The pass of the pipeline that each pass through a layer is part of; none where one is part of none.
    pipeline_passes = numbered_alone(trace)
    starts = np.array([span.launched for span in pipeline_passes], dtype=np.int64)
    index = np.searchsorted(starts, launched, side="right") - 1
    is_forward = np.array([span.phase == FORWARD_PASS for span in pipeline_passes], dtype=bool)
    spans: list[MicrobatchPass] = []
    if len(pipeline_passes) and (index >= 0).all() and (is_forward[index] != is_recompute).all():
        spans = [pipeline_passes[number] for number in index.tolist()]
    keys: list[object] = [(span.step, span.virtual, span.micro_batch) for span in spans]
    if not keys:
        # Without chunks each uninterrupted forward is one micro-batch. Without an embedding nothing parts one
        # from the next but that the frames of the layers begin to come again: (segment, round). Layers
        # without frames of their own, and two micro-batches layer by layer, are one round.
        segments = lexed.segment[first].tolist()
        names: dict[int, list[str]] = {}
        for window, segment, again in zip(windows, segments, is_recompute.tolist(), strict=True):
            if not again:
                names.setdefault(segment, []).append(window.frame)
        round_length = {}
        for segment, frames in names.items():
            period = next(
                (row for row, frame in enumerate(frames) if frame == frames[0] and row), len(frames)
            )
            distinct = all(frames) and len(set(frames[:period])) == period > 1
            repeats = all(frame == frames[row % period] for row, frame in enumerate(frames))
            round_length[segment] = period if distinct and repeats else len(frames)
        seen: Counter[int] = Counter()
        for segment, again in zip(segments, is_recompute.tolist(), strict=True):
            keys.append((segment, 0 if again else seen[segment] // round_length[segment]))
            seen[segment] += not again
    forwards: dict[object, _Forward] = {}
    in_step: Counter[int] = Counter()
    of_window: list[tuple[_Forward, int]] = []
    for number, (key, origin) in enumerate(zip(keys, origins, strict=True)):
        if not is_recompute[number]:
            if key not in forwards:
                chunk, micro_batch = -1, in_step[step[number]]
                if spans:
                    chunk, micro_batch = spans[number].virtual, spans[number].micro_batch
                in_step[step[number]] += 1
                forwards[key] = _Forward(step[number], chunk, micro_batch, [], [])
            forwards[key].waiting.append(number)
            forwards[key].layers.append(number)
            of_window.append((forwards[key], len(forwards[key].layers) - 1))
        elif origin >= 0:
            of_window.append(of_window[origin])
        else:
            # Of the forward whose backward runs or, without chunks, of the earliest that waits for its own;
            # its layers from the last to the first.
            candidates = [forwards[key]] if key in forwards else [] if spans else forwards.values()
            forward = next((forward for forward in candidates if forward.waiting), None)
            if forward is not None:
                of_window.append(of_window[forward.waiting.pop()])
            else:
                of_window.append((next(reversed(forwards.values()), _Forward(0, -1, 0, [], [])), 0))
    # How many MoE layers each chunk of the rank has, and those before it.
    layers: dict[int, int] = {}
    for forward in forwards.values():
        layers[forward.chunk] = max(layers.get(forward.chunk, 0), len(forward.layers))
    before = {chunk: sum(layers[lower] for lower in layers if lower < chunk) for chunk in layers}
    return [
        PassNumber(forward.step, forward.micro_batch, before.get(forward.chunk, 0) + layer, forward.chunk)
        for forward, layer in of_window
    ]


def compiled_backward(
    trace: Trace,
    backward: Int,
    lexed: Tokens,
    of_token: Int,
    layer_passes: Sequence[LayerPass],
    gemm_size: Sizes,
) -> tuple[Int, Int]:
    """Backward work of compiled regions with MoE layers, and its pass (-1: not known) and stage.

    A region whose forward work is of one stage only is left to its forward op.

    Args:
        trace: of the rank.
        backward: positions of the backward work.
        lexed: forward work of the rank.
        of_token: pass and stage of each token.
        layer_passes: of the rank.
        gemm_size: sizes of the GEMM at a token.

    Returns:
        positions of the work; pass and stage of each, one row each.
    """
    rows, owners = [np.empty(0, dtype=np.int64)], [np.empty((2, 0), dtype=np.int64)]
    events, work = trace.arrays, trace.work
    is_node = events.named(_NODE.__eq__)
    if not layer_passes or not is_node.any():
        return rows[0], owners[0]
    calls, is_comm = trace.once(OpCalls), work.kind == WORK_KINDS.index("comm")
    of_gradients, table = gradient_sync(trace, work), trace.tables["collectives"]
    names, sent, received = table.texts("collective"), table.values("in_bytes"), table.values("out_bytes")
    row_of = {event: row for row, event in enumerate(table.values("kernel_id")) if event >= 0}
    node = lookup(nearest(events.parent, events.depth, is_node), work.host_call[backward], -1)
    for event, members in rows_by_code(node).items():
        if event < 0:
            continue
        # One pass through a region and back: its backward work, and the tokens of its forward work, none
        # where that is not known. Of the ops around all of both the arguments are of no single piece.
        region = in_launch_order(trace, backward[members])
        forward_op = int(work.forward[region].max())
        extent = np.searchsorted(lexed.called, (events.start[forward_op], events.end[forward_op])).tolist()
        low, high = extent if forward_op >= 0 else (0, 0)
        forward = of_token[:, low:high]
        if forward_op >= 0 and ((forward[0] < 0).all() or (forward == forward[:, :1]).all()):
            continue
        # Sizes of the tensors of its forward ops.
        sizes = TensorSizes()
        _, first = np.unique(lexed.op[low:high], return_index=True)
        for token in (first + low).tolist():
            op = int(lexed.op[token])
            if op >= 0 and calls.row[op] >= 0 and op not in (event, forward_op):
                gemm = gemm_size(token) if GEMMS[lexed.kind[token]] else None
                sizes.add(Owner(*of_token[:, token].tolist()), tensor_shapes(calls.call(op).shapes), gemm)
        passes = [number for number in unique(forward[0]).tolist() if number >= 0]
        for number in passes:
            sizes.add_routed(number, layer_passes[number])
        # Its backward work by its tensors.
        ops = work.op[region]
        key = np.stack([*calls.keys(ops)[:2], trace.once(kinds)[region]])
        signatures, signature = np.unique(key, axis=1, return_inverse=True)
        owner = np.full((2, len(region)), -1, dtype=np.int64)
        for number, same in rows_by_code(signature.ravel()).items():
            op, kind = int(ops[same[0]]), int(signatures[-1, number])
            has_arguments = op >= 0 and calls.row[op] >= 0 and op not in (event, forward_op)
            shapes = list(tensor_shapes(calls.call(op).shapes)) if has_arguments else []
            stage, candidates = sizes.stage(shapes, bool(GEMMS[kind]))
            if kind == BORDER and shapes:  # attention and the like, in no MoE layer
                stage = OUTSIDE
            owner[1, same] = stage
            if stage in (OUTSIDE, UNATTRIBUTED):
                continue
            if len(candidates & set(passes)) == 1:
                owner[0, same] = next(iter(candidates))
                continue
            # Ops that every layer has equally often come in the order of the layers, the last one first.
            distinct, first, call = np.unique(ops[same], return_index=True, return_inverse=True)
            if passes and not len(distinct) % len(passes):
                order = np.argsort(np.argsort(first))[call]
                owner[0, same] = np.array(passes)[::-1][order * len(passes) // len(distinct)]
        # Its communication: the messages of forward, from the last to the first; what was sent then is
        # received now. Collectives of other kinds than those of dispatch and combine are of parameters.
        messages = []
        for token in (low + np.flatnonzero(np.isin(forward[1], (DISPATCH, COMBINE)))).tolist():
            row = row_of.get(int(work.event[lexed.row[token]]), -1)
            if row >= 0:
                messages.append((names[row], sent[row], received[row], of_token[:, token]))
        kinds_sent = {name for name, *_ in messages}
        for index in np.flatnonzero(is_comm[region]).tolist():
            owner[:, index] = -1
            row = row_of.get(int(work.event[region[index]]), -1)
            if of_gradients[region[index]] or (row >= 0 and names[row] not in kinds_sent):
                continue
            owner[1, index] = UNATTRIBUTED
            message = (names[row], received[row], sent[row]) if row >= 0 else None
            match = next((i for i in range(len(messages) - 1, -1, -1) if messages[i][:3] == message), -1)
            if match >= 0:
                owner[:, index] = messages[match][3]
                del messages[match:]
        rows.append(region)
        owners.append(owner)
    return np.concatenate(rows), np.concatenate(owners, axis=1)


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
