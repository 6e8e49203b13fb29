"""Where MoE layers lie in the forward work: by the program's own frames, else by routers between borders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe.kernel_lexer import (
    BORDER,
    CAST,
    COMM,
    COPY_OUT,
    GEMM,
    GROUPED,
    OTHER,
    PERMUTE,
    ROUTE,
    SUM,
    TOPK,
    Tokens,
    kinds_lookup,
)
from tracelens.arrays import Bool, Int
from tracelens.table import nearest
from tracelens.trace import Events, Trace, forward_ops, rows_by_code

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
# What makes a layer an MoE layer begins or ends with one of these; what merely separates is none.
_STRUCTURE = kinds_lookup(GEMM, GROUPED, TOPK, COMM, PERMUTE, ROUTE, COPY_OUT, SUM)
_MOVES, _COMPUTES = kinds_lookup(PERMUTE, ROUTE, COMM, GROUPED), kinds_lookup(GEMM, GROUPED)


class LayerWindow(NamedTuple):
    """One pass through one MoE layer: tokens first to last - 1.

    Attributes:
        first: token.
        last: token behind.
        router: token of the last router top-k, -1 where only frames tell.
        frame: name of the module or scope, "" where none encloses it.
        stages: (stage, first token, token behind) that frames inside of it name, outer ones first.
    """

    first: int
    last: int
    router: int
    frame: str
    stages: tuple[tuple[str, int, int], ...]


class GemmSize(NamedTuple):
    """Sizes of a GEMM: (rows, depth) x (depth, columns); -1 where not recorded."""

    rows: int
    depth: int
    columns: int


Sizes = Callable[[int], GemmSize]


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
            windows.append(LayerWindow(*_trimmed(lexed, low, high), router, "", ()))
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
