"""The forward work of one rank by its role: where its MoE layers lie, and what each piece in them is for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import collective_kinds
from tracelens.analysis.common import integers, recomputed
from tracelens.analysis.pipeline import gradient_sync, in_autograd, stage_messages
from tracelens.arrays import Bool, Int, lookup, unique
from tracelens.table import nearest
from tracelens.trace import (
    WORK_KINDS,
    Trace,
    argument_lists,
    argument_texts,
    collectives,
    fitting,
    forward_ops,
    matching,
    rows_by_code,
)

MAX_CHOSEN = 32
"""Experts of a token at most; no weight matrix of an expert has so few rows."""
MAX_EXPERTS = 1024
"""A top-k over more is no router: vocabularies are larger, and the largest models have 512 experts."""
LOOP_GEMMS = 3
"""This many GEMMs with weights of one size belong to several experts: a trade-off, gate and up of one expert
are two."""

# Names of record_function scopes and modules for the stages, searched in the last part of the name.
_STAGES = (
    ("shared expert", "shared"),
    ("router", r"router|gating|(?:topk|moe|(?<![a-z]))gate(?:_\d+)?$"),
    ("dispatch", "dispatch"),
    ("combine", "combine"),
    ("permute", "permut|reorder"),
    ("experts", r"experts?(?:_?\d+)?$|groupedmlp|sequentialmlp"),
)

(
    OTHER, BORDER, TOPK, GEMM, GROUPED, COMM, PERMUTE, ROUTE, COPY_OUT, SUM, CAST, SQUARE, ACTIVATION
) = range(13)  # fmt: skip
"""Kinds of work: BORDER lies in no MoE layer, PERMUTE moves or sorts tokens, ROUTE may be part of the router
as well as of the permutation, COPY_OUT brings sizes to the host, SQUARE may begin a normalization."""


def kinds_lookup(*kinds: int) -> Bool:
    """A table that says of each kind whether it is one of some: `kinds_lookup(GEMM, GROUPED)[kind]`.

    Windows of one layer have few tokens, for which `np.isin` takes longer than all else.
    """
    return np.isin(np.arange(ACTIVATION + 1), kinds)


# By the op that launched it, or the op around that one (a sort copies and fills, too).
_OPS = (
    (TOPK, r"aten::topk|.*(?:topk_?(?:softmax|gating|router|score)|grouped_?topk|moe_?gate|fused_?rout).*"),
    (
        PERMUTE,
        r"aten::(?:sort|argsort|nonzero|masked_select|index|index_select|_?index_put_?(?:_?impl_)?|index_add_?"
        r"|index_copy_?|cat|repeat_interleave|scatter_add_?|searchsorted|take_along_dim)"
        r"|.*(?:permute|sort_?chunks|moe_?sort|align_?block).*",
    ),
    (ROUTE, r"aten::(?:scatter_?|gather|one_hot|histc|bincount|cumsum)"),
    (GROUPED, r"aten::(?:bmm|baddbmm)|aten::_?grouped_mm"),
    (GEMM, r"aten::(?:mm|addmm|_scaled_mm|_int_mm|linear|matmul)"),
    (BORDER, r"aten::(?:rsqrt|embedding|_embedding_bag|nll_loss.*|_?log_softmax|.*conv(?:olution|\d|_).*)"),
    (SUM, r"aten::sum"),
    (CAST, r"aten::(?:copy_|_to_copy|to)"),
    (SQUARE, r"aten::(?:pow|square)"),
    (ACTIVATION, r"aten::(?:gelu|silu|relu|tanh|leaky_relu|elu|mish)_?"),
)
_OP = re.compile("|".join(f"({grammar})" for _, grammar in _OPS))
# By the class of the kernel (kernels.toml) where the op does not say.
_CATEGORIES = {
    "gemm": GEMM,
    "grouped_gemm": GROUPED,
    "normalization": BORDER,
    "attention": BORDER,
    "rotary": BORDER,
    "loss": BORDER,
    "convolution": BORDER,
    "optimizer": BORDER,
    "sort_scan": PERMUTE,
    "indexing": PERMUTE,
}
_BATCHED = re.compile(r"aten::(?:bmm|baddbmm)")
_ROUTER_KERNEL = re.compile(r"topk|gating|rout(?:er|ing)|grouped_?score|moe_?gate", re.IGNORECASE)

HOST_COPY = re.compile(r"DtoH|DeviceToHost|DEVICE_TO_HOST", re.IGNORECASE)


def kinds(trace: Trace) -> Int:
    """Kind of each piece of work; ask with `trace.once(kinds)`."""
    events, work = trace.arrays, trace.work
    by_category = np.array([_CATEGORIES.get(name, OTHER) for name in work.categories], dtype=np.int64)
    kind = by_category[work.category]
    is_routing = work.category == work.categories.index("moe_routing")
    kind[is_routing] = np.where(fitting(work.names, work.name[is_routing], _ROUTER_KERNEL), TOPK, PERMUTE)
    by_name = np.array([*map(_kind_of_op, events.names), OTHER])
    op = work.op
    above = lookup(events.parent, op, -1)
    by_shape = _kinds_by_shape(trace)
    for event in (op, above):
        by_op = by_name[lookup(events.name, event, len(events.names))]
        kind = np.where((by_op != OTHER) & (kind != GROUPED), by_op, kind)
        shaped = lookup(by_shape, event, -1)
        kind = np.where(shaped >= 0, shaped, kind)
    leaves = fitting(work.names, work.name, HOST_COPY)
    kind[leaves & ~work.is_kernel & np.isin(kind, (OTHER, CAST, ACTIVATION))] = COPY_OUT
    kind[work.kind == WORK_KINDS.index("comm")] = COMM
    return kind


@lru_cache(maxsize=1 << 14)
def _kind_of_op(name: str) -> int:
    """The kind of an op by its name, OTHER for what tells none."""
    match = _OP.fullmatch(name)
    return _OPS[(match.lastindex or 0) - 1][0] if match else OTHER


def _kinds_by_shape(trace: Trace) -> Int:
    """Kinds of events whose names alone do not tell, -1 for others.

    Llama 4's layers repeat all tokens for all experts: of rows, unlike of numbers, that is a movement.
    Batched products are grouped GEMMs, unless each adds up, by weight, what a token's experts give.
    """
    ops = trace.tables["ops"]
    event, shapes = ops.array("event_id"), ops.coded("shapes")
    result = np.full(len(trace.arrays.start), -1)
    for kind, name, fits in ((PERMUTE, "aten::repeat", _are_rows), (SUM, "aten::bmm", _are_sums)):
        if name not in trace.arrays.names:
            continue
        named = trace.arrays.named(name.__eq__)[event]
        fitting = [code for code in unique(shapes.codes[named]).tolist() if fits(shapes.values[code])]
        result[event[named & np.isin(shapes.codes, fitting)]] = kind
    return result


def _are_rows(shapes: str) -> bool:
    """Whether the first of these tensors has rows."""
    tensors = argument_lists(shapes)
    return bool(tensors) and len(tensors[0]) > 1


def _are_sums(shapes: str) -> bool:
    """Whether a batched product adds a few rows up by weight: (B, 1, K) x (B, K, N), K like a top-k's."""
    left = next(iter(argument_lists(shapes)), [])
    return len(left) == 3 and left[1] == 1 and isinstance(left[2], int) and left[2] <= MAX_CHOSEN


# What makes a layer an MoE layer begins or ends with one of these; what merely separates is none.
_STRUCTURE = kinds_lookup(GEMM, GROUPED, TOPK, COMM, PERMUTE, ROUTE, COPY_OUT, SUM)
_MOVES, _MOVES_TOKENS = kinds_lookup(PERMUTE, ROUTE, COMM, GROUPED), kinds_lookup(PERMUTE, ROUTE)
GEMMS = kinds_lookup(GEMM, GROUPED)


class LayerWindow(NamedTuple):
    """One pass through one MoE layer: tokens first to last - 1."""

    first: int  # token
    last: int  # token behind
    # token of the last router top-k, or of the router's GEMM without one before the experts; -1 where only
    # frames tell
    router: int
    frame: str  # name of the module or scope, "" where none encloses it
    # (stage, first token, token behind) that frames inside of it name, outer ones first
    stages: tuple[tuple[str, int, int], ...]


class GemmSize(NamedTuple):
    """Sizes of a GEMM: (rows, depth) x (depth, columns); -1 where not recorded."""

    rows: int
    depth: int
    columns: int


Sizes = Callable[[int], GemmSize]

STAGES = ("router", "dispatch", "permute", "experts", "combine", "shared expert")
ROUTER, DISPATCH, PERMUTATION, EXPERTS, COMBINE, SHARED = range(6)


class LayerStages(Struct, frozen=True):
    """What one pass through an MoE layer is made of."""

    stage: Int  # of each token of the window, code into STAGES
    experts_gemms: Int  # tokens, by their op's first, of the expert GEMMs
    grouped: bool  # whether these are grouped


# Scopes and functions that gather parameters. Modules wrapped for it (FSDPBlock_0) and files hold much else.
_PARAMETERS = re.compile(
    r"^FSDP::|^FullyShardedDataParallel\._|(?:^|: |\.)_?(?:pre_forward|unshard|foreach_all_gather"
    r"|pre_backward_hook|all_?gather_?params|fetch_sub_module|all_gather_coalesced)",
    re.IGNORECASE,
)


class Tokens(Struct, frozen=True):
    """Forward work in order of launch."""

    row: Int  # position in the trace's work
    called: Int  # when the host called it, ns, ascending
    kind: Int  # one of the kinds above
    op: Int  # event row of its op, -1 if none
    is_recompute: Bool  # whether it is recomputed in the backward pass
    # number of the uninterrupted forward pass that it is part of: of one micro-batch, through one chunk of
    # the model
    segment: Int
    all_reduces: Bool  # whether it adds up what all ranks have, so that no token comes to another rank


def windows(trace: Trace, lexed: Tokens, experts: Int, sizes: Sizes) -> list[LayerWindow]:
    """The passes through MoE layers in order of launch.

    Args:
        trace: of the rank.
        lexed: its forward work.
        experts: of each top-k token the number of experts that it chooses from, -1 where not known.
        sizes: of the GEMM at a token.
    """
    kind = lexed.kind
    border = (kind == BORDER) | np.append(True, np.diff(lexed.segment) != 0)
    # Without frames: what lies between two borders and has a router, and experts behind it.
    routed: list[LayerWindow] = []
    routers = np.flatnonzero((kind == TOPK) & (experts != 0) & (experts <= MAX_EXPERTS))
    cuts = np.flatnonzero(border)
    bounds = np.append(cuts, len(kind))
    chosen = rows_by_code(np.searchsorted(cuts, routers, side="right"))
    # GEMMs over groups of rows; batches of matrices are attention's as well.
    batched = trace.arrays.named(_BATCHED.fullmatch)
    grouped = (kind == GROUPED) & ~lookup(batched, lexed.op, False)
    work = trace.work
    to_attention = work.category[lexed.row] == work.categories.index("attention")
    for number in sorted({*chosen, *_with_experts(lexed, cuts, grouped)}):
        low, high = int(bounds[number - 1]), int(bounds[number])
        router = -1
        if number in chosen:
            router = int(routers[chosen[number][-1]])
            gemms = low + np.flatnonzero(kind[low:router] == GEMM)
            columns = sizes(int(gemms[-1])).columns if len(gemms) else 0
            # Others are a top-k over keys or words: a router chooses from the columns of its own GEMM.
            own_gemm = experts[router] <= 0 or columns < 0 or columns == experts[router]
            if not own_gemm or not _sends_tokens(kind[router + 1 : high]):
                router = -1
        if router < 0:
            router = _gate_of_experts(lexed, low, high, grouped, sizes)
        if router >= 0:
            experts_gemms = _expert_gemms(lexed, router, high, sizes)
            hidden = sizes(int(experts_gemms[0])).depth if len(experts_gemms) else -1
            if hidden > 0 and high < len(kind) and to_attention[high]:
                high = _before_projections(lexed, int(experts_gemms[-1]), high, hidden, sizes)
            above = int(bounds[number - 2]) if number > 1 else low
            is_free = not to_attention[above] and (not routed or routed[-1].last <= above)
            if is_free and _narrows(lexed, above, low, router, hidden, sizes):
                low = above
            first, last = _trimmed(lexed, low, high)
            routed.append(LayerWindow(first, last, router, "", ()))
    framed = _by_frames(trace, lexed, border)
    if not framed:
        return routed
    # Frames of threads that autograd started need not be recorded.
    passes = {int(lexed.segment[window.first]) for window in framed}
    recomputed = [
        window
        for window in routed
        if lexed.is_recompute[window.first] and int(lexed.segment[window.first]) not in passes
    ]
    return sorted([*framed, *recomputed])


def _sends_tokens(behind: Int) -> bool:
    """Whether tokens are moved behind a top-k, and computed: here or, where none came, on other ranks."""
    moved, computed = np.flatnonzero(_MOVES[behind]), np.flatnonzero(GEMMS[behind])
    if len(computed):
        return len(moved) > 0 and moved[0] <= computed[-1]
    return (behind == COMM).sum() > 1 and len(moved) > 2


def _with_experts(lexed: Tokens, cuts: Int, grouped: Bool) -> Iterable[int]:
    """What may hold experts, by number as from `searchsorted` in the borders: tokens are moved to GEMMs."""
    count = len(cuts) + 1
    part = np.searchsorted(cuts, np.arange(len(lexed.kind)), side="right")
    gemms = np.bincount(part[lexed.kind == GEMM], minlength=count)
    in_groups = np.bincount(part[grouped], minlength=count)
    moves = np.bincount(part[_MOVES_TOKENS[lexed.kind]], minlength=count)
    may = (gemms > 0) & (moves > 0) & ((in_groups > 0) | (gemms > LOOP_GEMMS))
    numbers: list[int] = np.flatnonzero(may).tolist()
    return numbers


def _gate_of_experts(lexed: Tokens, low: int, high: int, grouped: Bool, sizes: Sizes) -> int:
    """The last token of the router's GEMM in a part whose router has no top-k before its experts; or -1.

    Experts tell themselves behind a GEMM with as many columns as there may be experts, and moved rows:
    by grouped GEMMs, or by GEMMs with weights of one size on different numbers of rows, or on equal parts of
    the rows that the router sees, each once or several times. Such routers take maxima one by one, or choose
    before their GEMM.
    """
    kind, op = lexed.kind[low:high], lexed.op[low:high]
    size_of = {at: sizes(low + at) for at in np.flatnonzero(kind == GEMM).tolist()}
    loops = _loops(size_of, op)
    experts = np.flatnonzero(grouped[low:high]).tolist() or [
        at for at, size in size_of.items() if (size.depth, size.columns) in loops
    ]
    gates = [at for at in size_of if experts and at < experts[0] and 1 < size_of[at].columns <= MAX_EXPERTS]
    if not gates or not _MOVES_TOKENS[kind[gates[-1] : experts[0]]].any():
        return -1
    if experts[0] in size_of:
        rows, seen = loops[size_of[experts[0]][1:]], size_of[gates[-1]].rows
        # The projections of attention and the heads of several tasks have as many rows each, and all of them.
        in_parts = max(rows) < seen <= sum(rows) and sum(rows) % seen == 0
        if min(rows) < 0 or (len({*rows}) == 1 and not in_parts):
            return -1
    return low + gates[-1]


def _trimmed(lexed: Tokens, low: int, high: int) -> tuple[int, int]:
    """Without what belongs to the normalization before (its last products) and after (its squares)."""
    structure = low + np.flatnonzero(_STRUCTURE[lexed.kind[low:high]])
    if not len(structure):
        return low, high
    first, last = int(structure[0]), int(structure[-1]) + 1
    while first > low and lexed.kind[first - 1] == CAST:
        first -= 1
    # A cast and the sum with the shared expert's output still belong to it.
    while last < high and last - int(structure[-1]) <= 2 and lexed.kind[last] in (OTHER, CAST, ACTIVATION):
        last += 1
    return first, last


def _expert_gemms(lexed: Tokens, router: int, high: int, sizes: Sizes) -> Int:
    """The tokens of the expert GEMMs between a router and the end of its part."""
    gemms = router + 1 + np.flatnonzero(GEMMS[lexed.kind[router + 1 : high]])
    grouped = gemms[lexed.kind[gemms] == GROUPED]
    return grouped if len(grouped) else _of_one_size(gemms, lexed.op, 0, sizes)


def _before_projections(lexed: Tokens, expert: int, high: int, hidden: int, sizes: Sizes) -> int:
    """Where attention begins with its projections, if no normalization lies between the experts and them.

    They read whole tokens, and attention reads what they give. A shared expert ends with a GEMM that reads
    what its first ones gave.

    Args:
        lexed: forward work of the rank.
        expert: token of the last expert GEMM.
        high: first token of attention itself.
        hidden: size of a token.
        sizes: of the GEMM at a token.
    """
    for gemm in (expert + 1 + np.flatnonzero(GEMMS[lexed.kind[expert + 1 : high]]))[::-1].tolist():
        if sizes(gemm).depth != hidden:
            break
        high = gemm
    return high


def _narrows(lexed: Tokens, above: int, low: int, router: int, hidden: int, sizes: Sizes) -> bool:
    """Whether a router begins before a norm, with fewer columns of the tokens that only it normalizes.

    Its next GEMM reads fewer columns than a token has, and the last one before the norm gives as many.

    Args:
        lexed: forward work of the rank.
        above: first token of the part before the norm.
        low: first token behind it.
        router: its token.
        hidden: size of a token.
        sizes: of the GEMM at a token.
    """
    gates = low + np.flatnonzero(GEMMS[lexed.kind[low : router + 1]])
    before = above + _last_gemm(GEMMS[lexed.kind[above:low]], lexed.op[above:low])
    if not len(gates) or not len(before) or lexed.segment[above] != lexed.segment[router]:
        return False
    depth, size = sizes(int(gates[0])).depth, sizes(int(before[-1]))
    return 0 < depth < hidden and (size.depth, size.columns) == (hidden, depth)


def _by_frames(trace: Trace, lexed: Tokens, border: Bool) -> list[LayerWindow]:
    """What lies in the tightest frame around each router that has experts in it, too.

    Args:
        trace: of the rank.
        lexed: its forward work.
        border: where a segment begins or a block ends.
    """
    events = trace.arrays
    stages_of = {code: stage for code, name in enumerate(events.names) if (stage := stage_of(name))}
    rows = np.flatnonzero(np.isin(events.name, list(stages_of)) & events.where("annotation", "python"))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    stages = {row: stages_of[int(events.name[row])] for row in rows.tolist()}
    # The tightest event around routers and experts, with the routers in it; none of them in another.
    with_experts: set[int] = set()
    for row, stage in stages.items():
        above = int(events.parent[row]) if stage == "experts" else -1
        while above >= 0 and above not in with_experts:
            with_experts.add(above)
            above = int(events.parent[above])
    if not with_experts:
        return []
    is_frame, is_router = (np.zeros(len(events.start) + 1, dtype=bool) for _ in range(2))
    routers = np.array([row for row, stage in stages.items() if stage == "router"], dtype=np.int64)
    is_frame[list(with_experts)] = is_router[routers] = True
    # Row -1 is around all others, and in nothing.
    depth = np.append(events.depth, -1)
    frames, outer_routers = (
        np.append(nearest(events.parent, events.depth, mask[:-1]), -1)[events.parent[routers]]
        for mask in (is_frame, is_router)
    )
    frames = np.where(depth[outer_routers] > depth[frames], -1, frames)
    routers_in: dict[int, list[int]] = {}
    for router, frame in zip(routers.tolist(), frames.tolist(), strict=True):
        if frame >= 0:
            routers_in.setdefault(frame, []).append(router)
    starts = events.start[rows]
    borders = np.append(0, np.cumsum(lexed.kind == BORDER))
    windows = []
    for frame, frame_routers in routers_in.items():
        begun = np.searchsorted(starts, events.start[frame], side="left")
        inside = rows[begun : np.searchsorted(starts, events.end[frame], side="right")]
        inside = inside[(events.end[inside] <= events.end[frame]) & (inside != frame)]
        inside = inside[events.tid[inside] == events.tid[frame]]
        # The named frames of each layer, where a frame holds several: a router, and what follows up to the
        # next. A shared expert belongs to the router behind it if no border lies between them.
        layers = [inside]
        if len(frame_routers) > 1:
            router_starts = events.start[frame_routers]
            of_layer = np.searchsorted(router_starts, events.start[inside], side="right") - 1
            passed = borders[np.searchsorted(lexed.called, events.start[inside])]
            ahead = np.append(borders[np.searchsorted(lexed.called, router_starts)], -1)[of_layer + 1]
            shared = np.array([stages[row] == "shared expert" for row in inside.tolist()], dtype=bool)
            of_layer += shared & (passed == ahead)
            in_layer = rows_by_code(of_layer)
            layers = [inside[in_layer[number]] for number in range(len(frame_routers))]
        parts = []
        for layer in layers:
            # Outer frames first, so that inner ones have the last word.
            named_frames = layer[np.argsort(events.depth[layer], kind="stable")]
            begins = np.searchsorted(lexed.called, events.start[named_frames]).tolist()
            ends = np.searchsorted(lexed.called, events.end[named_frames]).tolist()
            parts.append(list(zip([stages[row] for row in named_frames.tolist()], begins, ends, strict=True)))
        low, high = np.searchsorted(lexed.called, (events.start[frame], events.end[frame])).tolist()
        lows = [low, *(max(behind for *_, behind in part) for part in parts[:-1])]
        highs = [*(min(first for _, first, _ in part) for part in parts[1:]), high]
        for part, begin, end in zip(parts, lows, highs, strict=True):
            low, high = min(first for _, first, _ in part), max(behind for *_, behind in part)
            # A frame around more than the layer, such as a whole block, has borders beside the parts.
            before, after = begin + np.flatnonzero(border[begin:low]), high + np.flatnonzero(border[high:end])
            first = int(before[-1]) if len(before) else begin
            last = int(after[0]) if len(after) else end
            if first >= last:
                continue
            tight = _trimmed(lexed, first, last)
            first = min(tight[0], low) if len(before) else first
            last = max(tight[1], high) if len(after) else last
            extents = [extent for name, *extent in part if name == "router"]
            for opened, closed in (*extents, (first, last)):
                if len(top := np.flatnonzero(lexed.kind[opened:closed] == TOPK)):
                    router = opened + int(top[-1])
                    break
            else:
                router = max(extents[0][1] - 1, first)
            windows.append(LayerWindow(first, last, router, events.names[events.name[frame]], tuple(part)))
    return sorted(windows)


def origins(trace: Trace, lexed: Tokens, layer_windows: Sequence[LayerWindow]) -> list[int]:
    """Of each pass the number of the one that it repeats, -1 for none and where that is not known.

    What is computed again belongs to a node of the backward pass, and the node to a forward op: a whole
    checkpointed region, or an op near its end. As many passes as the node repeats ended there.
    """
    begins = [window.first for window in layer_windows]
    repeats, result = lexed.is_recompute[begins], [-1] * len(begins)
    if not repeats.any():
        return result
    events, ops = trace.arrays, trace.tables["ops"]
    row, sequence, thread = (ops.array(name) for name in ("event_id", "sequence", "forward_thread"))
    forward = np.full(len(events.start), -1, dtype=np.int64)
    forward[row] = forward_ops(row, sequence, thread, events.tid[row], events.start[row])
    node = nearest(events.parent, events.depth, forward >= 0)
    regions: dict[int, list[int]] = {}
    for index in np.flatnonzero(repeats).tolist():
        op = int(lexed.op[begins[index]])
        if op >= 0 and node[op] >= 0:
            regions.setdefault(int(node[op]), []).append(index)
    first = np.flatnonzero(~repeats).tolist()
    called = lexed.called[[begins[index] for index in first]]
    for event, recomputes in regions.items():
        end = int(np.searchsorted(called, events.end[forward[event]]))
        for index, origin in zip(recomputes, first[max(end - len(recomputes), 0) : end], strict=False):
            result[index] = origin
    return result


@lru_cache(maxsize=1 << 14)
def stage_of(name: str) -> str:
    """The stage that a scope or module of this name stands for, "" for none."""
    if name.startswith("nn.Module: "):
        last = name.removeprefix("nn.Module: ")
    elif "(" in name or " " in name or "::" in name:  # other frames and ops
        return ""
    else:
        last = name.rpartition(".")[2]
    return next((stage for stage, grammar in _STAGES if re.search(grammar, last, re.IGNORECASE)), "")


def stages(lexed: Tokens, window: LayerWindow, sizes: Sizes) -> LayerStages:
    """Tell the stages of a window apart.

    Communication and copies to the host before the expert GEMMs are dispatch, communication behind
    them is combine; what sorts or moves tokens is permute. Frames decide over the rest. Work that says
    nothing for itself is part of what it follows.

    Args:
        lexed: forward work of the rank.
        window: its tokens of this layer.
        sizes: of the GEMM at a token.
    """
    low, high = window.first, window.last
    kind, op = lexed.kind[low:high], lexed.op[low:high]
    router = window.router - low
    position = np.arange(high - low)
    # The expert GEMMs: all kernels of each.
    experts = np.flatnonzero((kind == GROUPED) & (position > router))
    grouped = len(experts) > 0
    if not grouped:
        gemms = np.flatnonzero((kind == GEMM) & (position > router))
        named = np.array([part[1:] for part in window.stages if part[0] == "experts"], dtype=np.int64)
        borders = np.zeros(len(kind) + 1, dtype=np.int64)
        for column, opened in ((0, 1), (1, -1)) if len(named) else ():
            np.add.at(borders, np.clip(named[:, column] - low, 0, len(kind)), opened)
        in_frame = np.cumsum(borders)[gemms] > 0
        comm = np.flatnonzero((kind == COMM) & (position > router))
        # Under tensor parallelism the experts' output is added up, and the shared expert's after that.
        opening = comm[~lexed.all_reduces[low + comm]]
        between = gemms[(gemms > opening[0]) & (gemms < comm[-1])] if len(opening) else gemms[:0]
        if in_frame.any():
            experts = gemms[in_frame]
        elif len(between):
            experts = _of_one_size(between, op, low, sizes)
        else:
            # What follows the last movement is shared, unless tokens are moved to the experts only.
            moved = np.flatnonzero(kind == PERMUTE)
            before = gemms[gemms < moved[-1]] if len(moved) else gemms
            experts = _of_one_size(before if len(before) else gemms, op, low, sizes)
    stage = np.full(high - low, -1, dtype=np.int64)
    first, last = (int(experts[0]), int(experts[-1])) if len(experts) else (high - low, router)
    is_gemm = GEMMS[kind]
    # The router's own GEMM: the kernels of the last one before the top-k, or of the one that stands for it.
    gate = _last_gemm(is_gemm[: router + 1], op)
    # Those of a router of several layers: what they give is activated first, unlike what an expert gives, or
    # normalized, of fewer columns than a token has.
    hidden = sizes(low + first).depth if len(experts) else -1
    while len(gate) and len(layer := _last_gemm(is_gemm[: gate[0]], op)):
        depth, between = sizes(low + int(gate[0])).depth, kind[layer[-1] : gate[0]]
        is_input = sizes(low + int(layer[-1])).columns == depth > 0
        if not is_input or not (ACTIVATION in between or (depth < hidden and BORDER in between)):
            break
        gate = np.concatenate((layer, gate))
    stage[is_gemm] = SHARED
    stage[experts] = EXPERTS
    stage[kind == TOPK] = ROUTER
    stage[gate] = ROUTER
    moved = (position > router) & (kind == PERMUTE)
    begun = int(np.flatnonzero(moved)[0]) if moved.any() else high - low
    stage[moved] = PERMUTATION
    routes = kind == ROUTE
    stage[routes] = np.where(position[routes] < min(begun, first), ROUTER, PERMUTATION)
    stage[(kind == PERMUTE) & ~moved] = ROUTER
    comm = np.flatnonzero(kind == COMM)
    # Communication brings tokens to the experts before them, and in between them the first half of it does.
    brings = np.arange(len(comm)) < (len(comm) + 1) // 2
    if len(experts):
        inside = np.flatnonzero((comm > first) & (comm < last))
        brings = comm < first
        brings[inside[: (len(inside) + 1) // 2]] = True
    stage[comm] = np.where(brings, DISPATCH, COMBINE)
    # Sizes that go to the host before the tokens do are part of the dispatch; without one, of the sorting.
    out = (kind == COPY_OUT) & (position > router)
    stage[out] = np.where(position[out] > first, EXPERTS, DISPATCH if brings.any() else PERMUTATION)
    # What frames say, except of communication and, among the experts, of the movement of tokens.
    for name, begin, end in window.stages:
        named_part = slice(max(begin - low, 0), max(end - low, 0))
        keep = kind[named_part] == COMM
        if name == "experts":
            keep |= _MOVES_TOKENS[kind[named_part]]
        stage[named_part] = np.where(keep, stage[named_part], STAGES.index(name))
    # Each place without a stage gets that of the one before; the first ones that of the one behind.
    known = np.flatnonzero(stage >= 0)
    if not len(known):
        return LayerStages(np.full(len(stage), ROUTER), experts, grouped)
    source = np.maximum.accumulate(np.where(stage >= 0, position, -1))
    carried = stage[np.maximum(source, 0)]
    carried[: known[0]] = stage[known[0]]
    # Casts in front of the router's GEMM are its own.
    if len(gate):
        cast = int(gate[0])
        while cast > 0 and stage[cast - 1] < 0 and kind[cast - 1] == CAST:
            cast -= 1
        carried[cast : int(gate[0])] = ROUTER
    return LayerStages(carried, experts, grouped)


def _last_gemm(is_gemm: Bool, op: Int) -> Int:
    """The positions of the last GEMM, all kernels of its op."""
    gemms = np.flatnonzero(is_gemm)
    if not len(gemms):
        return gemms
    last = op[gemms[-1]]
    return gemms[op[gemms] == last] if last >= 0 else gemms[-1:]


def _of_one_size(gemms: Int, op: Int, low: int, sizes: Sizes) -> Int:
    """GEMMs of several experts have weights of one size; others beside them are of a shared expert.

    A rank may have just one or two experts, and sizes need not be recorded; then it is all of them.

    Args:
        gemms: positions in a window.
        op: of each position.
        low: first token of the window.
        sizes: of the GEMM at a token.
    """
    size_of = {at: sizes(low + at) for at in gemms.tolist()}
    loops = _loops(size_of, op)
    is_loop = [size.rows > 0 and (size.depth, size.columns) in loops for size in size_of.values()]
    in_loop = np.array(is_loop, dtype=bool)
    of_experts: Int = gemms[in_loop] if in_loop.any() else gemms
    return of_experts


def _loops(size_of: Mapping[int, GemmSize], op: Int) -> dict[tuple[int, int], list[int]]:
    """The (depth, columns) of weights that several experts may have, with the rows of each op's GEMM.

    Args:
        size_of: size of the GEMM at each position in a window.
        op: of each position.
    """
    rows_of: dict[tuple[int, int], dict[int, int]] = {}
    for at, size in size_of.items():
        rows_of.setdefault((size.depth, size.columns), {})[int(op[at])] = size.rows
    return {weight: [*rows.values()] for weight, rows in rows_of.items() if len(rows) >= LOOP_GEMMS}


def tokens(trace: Trace, caller: Int, autograd: Bool, is_recompute: Bool) -> Tokens:
    """The forward work of a rank.

    Args:
        trace: of the rank.
        caller: event row of the call behind each piece of work, -1 if none.
        autograd: which work the autograd engine launched.
        is_recompute: which of it is recomputed forward work.
    """
    events, work, table = trace.arrays, trace.work, trace.tables["collectives"]
    # What gathers parameters or reduces gradients is not about tokens.
    is_all_to_all = table.coded("collective").mask(re.compile("all_?to_?all").search)
    all_to_all = np.isin(work.event, table.array("kernel_id")[is_all_to_all])
    of_parameters = gradient_sync(trace, work)
    parameters = matching(events.names, _PARAMETERS)
    if parameters.any():
        around = nearest(events.parent, events.depth, parameters[events.name])
        of_parameters = of_parameters | (lookup(around, work.op, -1) >= 0)
    of_parameters = of_parameters & (work.kind == WORK_KINDS.index("comm")) & ~all_to_all
    row = in_launch_order(trace, np.flatnonzero((caller >= 0) & (~autograd | is_recompute) & ~of_parameters))
    called = events.start[caller[row]]
    kind = trace.once(kinds)[row]
    sent = np.isin(work.event[row], stage_messages(trace, unnamed=True).kernel)
    kind[sent] = BORDER
    segment = np.zeros(len(row), dtype=np.int64)
    backward = np.sort(events.start[caller[(caller >= 0) & autograd & ~is_recompute]])
    # By the op or the one around it.
    embeds = events.named(re.compile(r"aten::(?:embedding|_embedding_bag)").fullmatch)
    op = work.op[row]
    first = lookup(embeds, op, False) | lookup(embeds, lookup(events.parent, op, -1), False)
    for part in np.flatnonzero(~is_recompute[row]), np.flatnonzero(is_recompute[row]):
        cut = np.ones(len(part), dtype=bool)
        # A pass ends where another embedding begins, and at messages between pipeline stages.
        starts = first[part], sent[part]
        cut[1:] = np.any([begins[1:] & ~begins[:-1] for begins in starts], axis=0)
        # Without an embedding it ends where backward work is launched; with one that may be another
        # micro-batch's, launched between two layers of this one to hide its all-to-all.
        if not first[part].any():
            cut[1:] |= np.diff(np.searchsorted(backward, called[part])) > 0
        if is_recompute[row][part].any():
            cut[1:] |= np.diff(part) > 1
        segment[part] = segment.max(initial=0) + np.cumsum(cut)
    return Tokens(
        row=row,
        called=called,
        kind=kind,
        op=op,
        is_recompute=is_recompute[row],
        segment=segment,
        all_reduces=trace.once(collective_kinds)[row] == collectives().index("all_reduce"),
    )


def callers(trace: Trace) -> tuple[Int, Bool, Bool]:
    """Of each piece of work: its call (-1: none), whether autograd launched it, whether it is recomputed."""
    work = trace.work
    caller = work.host_call
    return caller, lookup(in_autograd(trace), caller, False), lookup(trace.once(recomputed), caller, False)


def in_launch_order(trace: Trace, rows: Int) -> Int:
    """Pieces of work that have a launch call, in the order of these calls."""
    return rows[np.argsort(trace.arrays.start[trace.work.host_call[rows]], kind="stable")]


# ====================
# Rows of each expert by its number, where a trace records them.
#
# A grouped call may have them among its arguments, or cut its rows apart by them; so does a loop over experts
# before its first GEMM. The order of launch is no number: experts without rows launch nothing.

_SPLITS = ("aten::split_with_sizes", "aten::split_with_sizes_copy", "aten::unsafe_split_with_sizes")
_DIM = 2
"""Argument of a split that says along which dimension; rows lie along the first."""


class RowSplits(Struct, frozen=True):
    """Calls that cut rows apart by recorded sizes, in order of time."""

    start: Int  # ns
    sizes: list[tuple[int, ...]]

    def between(self, start: int, end: int) -> list[tuple[int, ...]]:
        """Sizes of the calls in a stretch of the host's time, the last first."""
        first, last = np.searchsorted(self.start, (start, end)).tolist()
        return self.sizes[first:last][::-1]


def row_splits(trace: Trace) -> RowSplits:
    """The splits of rows in a trace; ask with `trace.once(row_splits)`."""
    events, ops = trace.arrays, trace.tables["ops"]
    event, values = ops.array("event_id"), ops.coded("values")
    # Many splits are of attention, along other dimensions, and share a few texts.
    sizes: dict[int, tuple[int, ...]] = {}
    is_split = events.named(lambda name: name in _SPLITS)[event]
    for code in unique(values.codes[is_split]).tolist():
        texts = argument_texts(values.values[code])
        if len(texts) > _DIM and texts[_DIM] == "0" and (parts := integers(texts[1])):
            sizes[code] = tuple(parts)
    rows = np.flatnonzero(is_split & np.isin(values.codes, list(sizes)))
    rows = rows[np.argsort(events.start[event[rows]], kind="stable")]
    return RowSplits(events.start[event[rows]], [sizes[code] for code in values.codes[rows].tolist()])


def rows_in_loop(splits: Sequence[tuple[int, ...]], rows: Sequence[int], experts: int) -> tuple[int, ...]:
    """Rows of each expert by the split in front of a loop; empty where there is none of these rows.

    Args:
        splits: the last first.
        rows: of each GEMM, in order of launch; an expert without rows has none.
        experts: of all ranks together, -1 if not known.
    """
    for sizes in splits:
        if [size for size in sizes if size] == list(rows) and (experts < 1 or not experts % len(sizes)):
            return sizes
    return ()


def rows_in_group(lists: Sequence[Sequence[int]], groups: int, rows: int) -> tuple[int, ...]:
    """Rows of each expert by lists of lengths or offsets; empty where none is about these rows.

    Args:
        lists: of whole numbers, among the arguments of a grouped call or of the splits inside of it.
        groups: of the call, one an expert.
        rows: of all groups together.
    """
    for numbers in lists:
        if not numbers or len(numbers) not in (groups, groups + 1):
            continue
        if len(numbers) == groups and min(numbers) >= 0 and sum(numbers) == rows:
            return tuple(numbers)
        ends = [*[0] * (groups + 1 - len(numbers)), *numbers]
        lengths = tuple(end - start for start, end in pairwise(ends))
        if (ends[0], ends[-1]) == (0, rows) and min(lengths) >= 0:
            return lengths
    return ()
