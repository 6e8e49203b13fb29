"""The forward work of one rank by its role: where its MoE layers lie, and what each piece in them is for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import recomputed
from tracelens.analysis.pipeline import gradient_sync, in_autograd, stage_messages
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import nearest
from tracelens.trace import WORK_KINDS, Events, Trace, forward_ops, matching, rows_by_code

MAX_EXPERTS = 1024
"""A top-k over more is no router: vocabularies are larger, and the largest models have 512 experts."""
# Names of record_function scopes and modules for the stages, searched in the last part of the name.
_STAGES = (
    ("shared expert", "shared"),
    ("router", r"router|gating|(?:topk|moe|(?<![a-z]))gate(?:_\d+)?$"),
    ("dispatch", "dispatch"),
    ("combine", "combine"),
    ("permute", "permut|reorder"),
    ("experts", r"experts?(?:_?\d+)?$|groupedmlp|sequentialmlp"),
)

OTHER, BORDER, TOPK, GEMM, GROUPED, COMM, PERMUTE, ROUTE, COPY_OUT, SUM, CAST, SQUARE = range(12)
"""Kinds of work: BORDER lies in no MoE layer, PERMUTE moves or sorts tokens, ROUTE may be part of the router
as well as of the permutation, COPY_OUT brings sizes to the host, SQUARE may begin a normalization."""


def kinds_lookup(*kinds: int) -> Bool:
    """A table that says of each kind whether it is one of some: `kinds_lookup(GEMM, GROUPED)[kind]`.

    Windows of one layer have few tokens, for which `np.isin` takes longer than all else.
    """
    return np.isin(np.arange(SQUARE + 1), kinds)


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
)
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
_ROUTER_KERNEL = re.compile(r"topk|gating|rout(?:er|ing)|grouped_?score|moe_?gate", re.IGNORECASE)

HOST_COPY = re.compile(r"DtoH|DeviceToHost|DEVICE_TO_HOST", re.IGNORECASE)


def kinds(trace: Trace) -> Int:
    """Kind of each piece of work; ask with `trace.once(kinds)`."""
    events, work = trace.arrays, trace.work
    by_category = np.array([_CATEGORIES.get(name, OTHER) for name in work.categories], dtype=np.int64)
    kind = by_category[work.category]
    router = matching(work.names, _ROUTER_KERNEL)
    is_routing = work.category == work.categories.index("moe_routing")
    kind[is_routing] = np.where(router[work.name[is_routing]], TOPK, PERMUTE)
    by_name = np.full(len(events.names) + 1, OTHER)
    for code, name in enumerate(events.names):
        by_name[code] = _kind_of(name)
    op = work.op
    above = lookup(events.parent, op, -1)
    for event in (op, above):
        by_op = by_name[lookup(events.name, event, len(events.names))]
        kind = np.where((by_op != OTHER) & (kind != GROUPED), by_op, kind)
    leaves = matching(work.names, HOST_COPY)[work.name]
    kind[leaves & ~work.is_kernel & np.isin(kind, (OTHER, CAST))] = COPY_OUT
    kind[work.kind == WORK_KINDS.index("comm")] = COMM
    return kind


@cache
def _kind_of(op: str) -> int:
    """Kind of the work of an op, by its name alone; the ranks of a job have the same names."""
    return next((kind for kind, grammar in _OPS if re.fullmatch(grammar, op)), OTHER)


# What makes a layer an MoE layer begins or ends with one of these; what merely separates is none.
_STRUCTURE = kinds_lookup(GEMM, GROUPED, TOPK, COMM, PERMUTE, ROUTE, COPY_OUT, SUM)
_MOVES, _COMPUTES = kinds_lookup(PERMUTE, ROUTE, COMM, GROUPED), kinds_lookup(GEMM, GROUPED)


class LayerWindow(NamedTuple):
    """One pass through one MoE layer: tokens first to last - 1."""

    first: int  # token
    last: int  # token behind
    router: int  # token of the last router top-k, -1 where only frames tell
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
_GEMMS, _MOVES_TOKENS = kinds_lookup(GEMM, GROUPED), kinds_lookup(PERMUTE, ROUTE)
_LOOP = 3
"""This many GEMMs with weights of one size belong to several experts."""


class LayerStages(NamedTuple):
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


class Tokens(NamedTuple):
    """Forward work in order of launch."""

    row: Int  # position in the trace's work
    called: Int  # when the host called it, ns, ascending
    kind: Int  # one of the kinds above
    op: Int  # event row of its op, -1 if none
    is_recompute: Bool  # whether it is recomputed in the backward pass
    # number of the uninterrupted forward pass that it is part of: of one micro-batch, through one chunk of
    # the model
    segment: Int


def windows(trace: Trace, lexed: Tokens, experts: Int, sizes: Sizes) -> list[LayerWindow]:
    """The passes through MoE layers in order of launch.

    Args:
        trace: of the rank.
        lexed: its forward work.
        experts: of each top-k token the number of experts that it chooses from, -1 where not known.
        sizes: of the GEMM at a token.
    """
    framed = _by_frames(trace, lexed)
    routed = _by_routers(lexed, experts, sizes)
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


def _by_routers(lexed: Tokens, experts: Int, sizes: Sizes) -> list[LayerWindow]:
    """Without frames: what lies between two borders and has a router, and experts behind it."""
    kind = lexed.kind
    routers = np.flatnonzero((kind == TOPK) & (experts != 0) & (experts <= MAX_EXPERTS))
    cuts = np.flatnonzero((kind == BORDER) | np.append(True, np.diff(lexed.segment) != 0))
    windows = []
    for number, inside in rows_by_code(np.searchsorted(cuts, routers, side="right")).items():
        low = int(cuts[number - 1])
        high = int(cuts[number]) if number < len(cuts) else len(kind)
        router = int(routers[inside[-1]])
        gemm = _last_gemm(kind, low, router)
        columns = sizes(gemm).columns if gemm >= 0 else 0
        if experts[router] > 0 and columns >= 0 and columns != experts[router]:
            continue  # a top-k over keys or words: a router chooses from the columns of its own GEMM
        if _sends_tokens(kind[router + 1 : high]):
            first, last = _trimmed(lexed, low, high)
            windows.append(LayerWindow(first, last, router, "", ()))
    return windows


def _last_gemm(kind: Int, low: int, router: int) -> int:
    """The last GEMM before a top-k that is not batched, -1 if there is none."""
    gemms = np.flatnonzero(kind[low:router] == GEMM)
    return low + int(gemms[-1]) if len(gemms) else -1


def _sends_tokens(behind: Int) -> bool:
    """Whether tokens are moved behind a top-k, and computed: here or, where none came, on other ranks."""
    moved = np.flatnonzero(_MOVES[behind])
    computed = np.flatnonzero(_COMPUTES[behind])
    if len(computed):
        return len(moved) > 0 and bool(moved[0] <= computed[-1])
    return int((behind == COMM).sum()) > 1 and len(moved) > 2


def _trimmed(lexed: Tokens, low: int, high: int) -> tuple[int, int]:
    """Without what belongs to the normalization before (its last products) and after (its squares)."""
    structure = low + np.flatnonzero(_STRUCTURE[lexed.kind[low:high]])
    if not len(structure):
        return low, high
    first, last = int(structure[0]), int(structure[-1]) + 1
    while first > low and lexed.kind[first - 1] == CAST:
        first -= 1
    # A cast and the sum with the shared expert's output still belong to it.
    while last < high and last - int(structure[-1]) <= 2 and lexed.kind[last] in (OTHER, CAST):
        last += 1
    return first, last


def _by_frames(trace: Trace, lexed: Tokens) -> list[LayerWindow]:
    """What lies in the tightest frame around each router that has experts in it, too."""
    events = trace.arrays
    stages_of = {code: stage for code, name in enumerate(events.names) if (stage := stage_of(name))}
    rows = np.flatnonzero(np.isin(events.name, list(stages_of)) & events.where("annotation", "python"))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    stages = {row: stages_of[int(events.name[row])] for row in rows.tolist()}
    starts = events.start[rows]
    border = (lexed.kind == BORDER) | np.append(True, np.diff(lexed.segment) != 0)
    windows = []
    for frame, routers in _frames(events, stages).items():
        begun = np.searchsorted(starts, events.start[frame], side="left")
        inside = rows[begun : np.searchsorted(starts, events.end[frame], side="right")]
        inside = inside[(events.end[inside] <= events.end[frame]) & (inside != frame)]
        inside = inside[events.tid[inside] == events.tid[frame]]
        parts = []
        for layer in _layers(events, lexed, inside, routers, stages):
            # Outer frames first, so that inner ones have the last word.
            named_frames = layer[np.argsort(events.depth[layer], kind="stable")]
            first = np.searchsorted(lexed.called, events.start[named_frames]).tolist()
            behind = np.searchsorted(lexed.called, events.end[named_frames]).tolist()
            parts.append(
                list(zip([stages[row] for row in named_frames.tolist()], first, behind, strict=True))
            )
        low, high = np.searchsorted(lexed.called, (events.start[frame], events.end[frame])).tolist()
        lows = [low, *(max(behind for *_, behind in part) for part in parts[:-1])]
        highs = [*(min(first for _, first, _ in part) for part in parts[1:]), high]
        name = events.names[events.name[frame]]
        for part, begin, end in zip(parts, lows, highs, strict=True):
            if window := _window(lexed, border, part, begin, end, name):
                windows.append(window)
    return sorted(windows)


def _frames(events: Events, stages: Mapping[int, str]) -> dict[int, list[int]]:
    """The tightest event around routers and experts, with the routers in it; none of them in another."""
    with_experts: set[int] = set()
    for row in (row for row, stage in stages.items() if stage == "experts"):
        above = int(events.parent[row])
        while above >= 0 and above not in with_experts:
            with_experts.add(above)
            above = int(events.parent[above])
    if not with_experts:
        return {}
    is_frame, is_router = (np.zeros(len(events.start) + 1, dtype=bool) for _ in range(2))
    routers = np.array([row for row, stage in stages.items() if stage == "router"], dtype=np.int64)
    is_frame[list(with_experts)] = is_router[routers] = True
    # Row -1 is around all others, and in nothing.
    depth = np.append(events.depth, -1)
    frame, router = (
        np.append(nearest(events.parent, events.depth, chosen[:-1]), -1)[events.parent[routers]]
        for chosen in (is_frame, is_router)
    )
    windows: dict[int, list[int]] = {}
    for row, above in zip(
        routers.tolist(), np.where(depth[router] > depth[frame], -1, frame).tolist(), strict=True
    ):
        if above >= 0:
            windows.setdefault(above, []).append(row)
    return windows


def _layers(
    events: Events, lexed: Tokens, rows: Int, routers: Sequence[int], stages: Mapping[int, str]
) -> list[Int]:
    """The named frames of each layer, where a frame holds several: a router, and what follows up to the next.

    A shared expert belongs to the router behind it if no border lies between them.
    """
    if len(routers) == 1:
        return [rows]
    starts = events.start[list(routers)]
    of = np.searchsorted(starts, events.start[rows], side="right") - 1
    borders = np.append(0, np.cumsum(lexed.kind == BORDER))
    passed = borders[np.searchsorted(lexed.called, events.start[rows])]
    ahead = np.append(borders[np.searchsorted(lexed.called, starts)], -1)[of + 1]
    shared = np.array([stages[row] == "shared expert" for row in rows.tolist()], dtype=bool)
    of += shared & (passed == ahead)
    parts = rows_by_code(of)
    return [rows[parts[number]] for number in range(len(routers))]


def _window(
    lexed: Tokens,
    border: Bool,
    stages: Sequence[tuple[str, int, int]],
    begin: int,
    end: int,
    frame: str,
) -> LayerWindow | None:
    """The window of a layer by its named parts.

    Args:
        lexed: forward work of the rank.
        border: where a segment begins or a block ends.
        stages: see LayerWindow.
        begin: token at which the frame begins, or the layer before it ends.
        end: token at which the frame ends, or the next layer begins.
        frame: its name.
    """
    low, high = min(first for _, first, _ in stages), max(behind for *_, behind in stages)
    # A frame around more than the layer, such as a whole block, has borders beside the parts.
    before, after = begin + np.flatnonzero(border[begin:low]), high + np.flatnonzero(border[high:end])
    first = int(before[-1]) if len(before) else begin
    last = int(after[0]) if len(after) else end
    if first >= last:
        return None
    tight = _trimmed(lexed, first, last)
    first = min(tight[0], low) if len(before) else first
    last = max(tight[1], high) if len(after) else last
    routers = [(low, high) for name, low, high in stages if name == "router"]
    for extent in (*routers, (first, last)):
        if len(top := np.flatnonzero(lexed.kind[slice(*extent)] == TOPK)):
            return LayerWindow(first, last, extent[0] + int(top[-1]), frame, tuple(stages))
    return LayerWindow(first, last, max(routers[0][1] - 1, first), frame, tuple(stages))


def origins(trace: Trace, lexed: Tokens, layer_windows: Sequence[LayerWindow]) -> list[int]:
    """Of each pass the number of the one that it repeats, -1 for none and where that is not known.

    What is computed again belongs to a node of the backward pass, and the node to a forward op: a whole
    checkpointed region, or an op near its end. As many passes as the node repeats ended there.
    """
    events, ops = trace.arrays, trace.tables["ops"]
    row, result = ops.array("event_id"), [-1] * len(layer_windows)
    sequence, thread = ops.array("sequence"), ops.array("forward_thread")
    forward = np.full(len(events.start), -1, dtype=np.int64)
    forward[row] = forward_ops(row, sequence, thread, events.tid[row], events.start[row])
    node = nearest(events.parent, events.depth, forward >= 0)
    regions: dict[int, list[int]] = {}
    for index, window in enumerate(layer_windows):
        op = int(lexed.op[window.first])
        if lexed.is_recompute[window.first] and op >= 0 and node[op] >= 0:
            regions.setdefault(int(node[op]), []).append(index)
    first = [index for index, window in enumerate(layer_windows) if not lexed.is_recompute[window.first]]
    called = lexed.called[[layer_windows[index].first for index in first]]
    for event, recomputes in regions.items():
        end = int(np.searchsorted(called, events.end[forward[event]]))
        for index, origin in zip(recomputes, first[max(end - len(recomputes), 0) : end], strict=False):
            result[index] = origin
    return result


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
    experts, grouped = _experts(kind, op, router, window, lambda index: sizes(low + index))
    stage = np.full(high - low, -1, dtype=np.int64)
    first, last = (int(experts[0]), int(experts[-1])) if len(experts) else (high - low, router)
    position = np.arange(high - low)
    is_gemm = _GEMMS[kind]
    gate = _gate(kind, op, router)
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
    stage[comm] = np.where(_before(comm, experts, first, last), DISPATCH, COMBINE)
    # Sizes that go to the host before the tokens do are part of the dispatch; without one, of the sorting.
    out = (kind == COPY_OUT) & (position > router)
    stage[out] = np.where(position[out] > first, EXPERTS, DISPATCH if len(comm) else PERMUTATION)
    stage = _framed(stage, kind, window)
    return LayerStages(_carried(stage, kind, gate), experts, grouped)


def _experts(kind: Int, op: Int, router: int, window: LayerWindow, sizes: Sizes) -> tuple[Int, bool]:
    """Positions of the expert GEMMs, all kernels of each; and whether they are grouped."""
    position = np.arange(len(kind))
    grouped = np.flatnonzero((kind == GROUPED) & (position > router))
    if len(grouped):
        return grouped, True
    gemms = np.flatnonzero((kind == GEMM) & (position > router))
    named = np.array([part[1:] for part in window.stages if part[0] == "experts"], dtype=np.int64)
    if len(named):
        borders = np.zeros(len(kind) + 1, dtype=np.int64)
        for column, opened in ((0, 1), (1, -1)):
            np.add.at(borders, np.clip(named[:, column] - window.first, 0, len(kind)), opened)
        inside = np.cumsum(borders)[gemms] > 0
        if inside.any():
            return gemms[inside], False
    comm = np.flatnonzero((kind == COMM) & (position > router))
    if len(comm) > 1:
        between = gemms[(gemms > comm[0]) & (gemms < comm[-1])]
        if len(between):
            return _of_one_size(between, op, sizes), False
        if not len(gemms):
            return gemms, False
    # What follows the last movement is shared.
    moved = np.flatnonzero(kind == PERMUTE)
    return _of_one_size(gemms[gemms < moved[-1]] if len(moved) else gemms, op, sizes), False


def _of_one_size(gemms: Int, op: Int, sizes: Sizes) -> Int:
    """GEMMs of several experts have weights of one size; others beside them are of a shared expert.

    A rank may have just one or two experts, and sizes need not be recorded; then it is all of them.
    """
    shapes = [sizes(token) for token in gemms.tolist()]
    calls: dict[tuple[int, int], set[int]] = {}
    for token, shape in zip(gemms.tolist(), shapes, strict=True):
        calls.setdefault((shape.depth, shape.columns), set()).add(int(op[token]))
    is_loop = [shape.rows > 0 and len(calls[shape.depth, shape.columns]) >= _LOOP for shape in shapes]
    in_loop = np.array(is_loop, dtype=bool)
    of_experts: Int = gemms[in_loop] if in_loop.any() else gemms
    return of_experts


def _gate(kind: Int, op: Int, router: int) -> Int:
    """Places of the router's own product: the kernels of the last one before the top-k."""
    before = np.flatnonzero(_GEMMS[kind[:router]])
    if not len(before) or op[before[-1]] < 0:
        return before[-1:]
    gate: Int = before[op[before] == op[before[-1]]]
    return gate


def _before(comm: Int, experts: Int, first: int, last: int) -> Bool:
    """Which communication brings tokens to the experts: in between them, the first half of it."""
    inside = np.flatnonzero((comm > first) & (comm < last))
    result: Bool = comm < first
    result[inside[: (len(inside) + 1) // 2]] = True
    return result if len(experts) else np.arange(len(comm)) < (len(comm) + 1) // 2


def _framed(stage: Int, kind: Int, window: LayerWindow) -> Int:
    """What frames say, except of communication and, among the experts, of the movement of tokens."""
    stage = stage.copy()
    for name, first, last in window.stages:
        code = STAGES.index(name)
        inside = slice(max(first - window.first, 0), max(last - window.first, 0))
        keep = kind[inside] == COMM
        if code == EXPERTS:
            keep |= _MOVES_TOKENS[kind[inside]]
        stage[inside] = np.where(keep, stage[inside], code)
    return stage


def _carried(stage: Int, kind: Int, gate: Int) -> Int:
    """Give each place without a stage that of the one before; the first ones that of the one behind."""
    known = np.flatnonzero(stage >= 0)
    if not len(known):
        return np.full(len(stage), ROUTER)
    source = np.maximum.accumulate(np.where(stage >= 0, np.arange(len(stage)), -1))
    result = stage[np.maximum(source, 0)]
    result[: known[0]] = stage[known[0]]
    # Casts in front of the router's GEMM are its own.
    if len(gate):
        begin = int(gate[0])
        while begin > 0 and stage[begin - 1] < 0 and kind[begin - 1] == CAST:
            begin -= 1
        result[begin : int(gate[0])] = ROUTER
    return result


def tokens(trace: Trace, caller: Int, autograd: Bool, is_recompute: Bool) -> Tokens:
    """The forward work of a rank.

    Args:
        trace: of the rank.
        caller: event row of the call behind each piece of work, -1 if none.
        autograd: which work the autograd engine launched.
        is_recompute: which of it is recomputed forward work.
    """
    events, work = trace.arrays, trace.work
    row = np.flatnonzero((caller >= 0) & (~autograd | is_recompute) & ~_of_parameters(trace))
    row = row[np.argsort(events.start[caller[row]], kind="stable")]
    called = events.start[caller[row]]
    kind = trace.once(kinds)[row]
    sent = np.isin(work.event[row], stage_messages(trace, unnamed=True).kernel)
    kind[sent] = BORDER
    segment = np.zeros(len(row), dtype=np.int64)
    backward = np.sort(events.start[caller[(caller >= 0) & autograd & ~is_recompute]])
    first = _named(trace, work.op[row], re.compile(r"aten::(?:embedding|_embedding_bag)")) >= 0
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
    return Tokens(row, called, kind, work.op[row], is_recompute[row], segment)


def callers(trace: Trace) -> tuple[Int, Bool, Bool]:
    """Of each piece of work: its call (-1: none), whether autograd launched it, whether it is recomputed."""
    work = trace.work
    caller = work.host_call
    return caller, lookup(in_autograd(trace), caller, False), lookup(trace.once(recomputed), caller, False)


def _of_parameters(trace: Trace) -> Bool:
    """Which work gathers parameters or reduces gradients: it is not about tokens."""
    work, table = trace.work, trace.tables["collectives"]
    is_all_to_all = table.coded("collective").mask(re.compile("all_?to_?all").search)
    all_to_all = np.isin(work.event, table.array("kernel_id")[is_all_to_all])
    comm = (work.kind == WORK_KINDS.index("comm")) & ~all_to_all
    of_parameters: Bool = comm & (_around(trace, work.op, _PARAMETERS) | gradient_sync(trace, work))
    return of_parameters


def _named(trace: Trace, rows: Int, grammar: re.Pattern[str]) -> Int:
    """The event itself or the one around it whose whole name fits, -1 if neither does."""
    events = trace.arrays
    fits = events.named(grammar.fullmatch)
    above = lookup(events.parent, rows, -1)
    fitting = np.full(len(rows), -1, dtype=np.int64)
    for event in (above, rows):
        fitting = np.where(lookup(fits, event, False), event, fitting)
    return fitting


def _around(trace: Trace, rows: Int, grammar: re.Pattern[str]) -> Bool:
    """Whether these events lie in one with such a name."""
    events = trace.arrays
    fits = matching(events.names, grammar)
    if not fits.any():
        return np.zeros(len(rows), dtype=bool)
    around = nearest(events.parent, events.depth, fits[events.name])
    return lookup(around, rows, -1) >= 0
