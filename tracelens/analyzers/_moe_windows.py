"""Where MoE layers lie in the forward work: by the program's own frames, else by routers between borders."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analyzers._moe_tokens import (
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
)
from tracelens.trace.trace import Trace

Int = NDArray[np.int64]

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
_STRUCTURE = (GEMM, GROUPED, TOPK, COMM, PERMUTE, ROUTE, COPY_OUT, SUM)


class Window(NamedTuple):
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


def windows(trace: Trace, found: Tokens, experts: Int) -> list[Window]:
    """The passes through MoE layers in order of launch.

    Args:
        trace: of the rank.
        found: its forward work.
        experts: of each top-k token the number of experts that it chooses from, -1 where not known.
    """
    framed = _by_frames(trace, found)
    if framed:
        return framed
    return _by_routers(found, experts)


def _by_routers(found: Tokens, experts: Int) -> list[Window]:
    """Without frames: what lies between two borders and has a router, and experts behind it."""
    kind = found.kind
    routers = np.flatnonzero((kind == TOPK) & (experts <= MAX_EXPERTS))
    cuts = np.flatnonzero((kind == BORDER) | np.append(True, np.diff(found.segment) != 0))
    windows = []
    for place in np.unique(np.searchsorted(cuts, routers, side="right")).tolist():
        low = int(cuts[place - 1])
        high = int(cuts[place]) if place < len(cuts) else len(kind)
        inside = routers[(routers >= low) & (routers < high)]
        router = int(inside[-1])
        products = np.flatnonzero(np.isin(kind[router:high], (GEMM, GROUPED)))
        if not len(products):
            continue
        windows.append(Window(*_trimmed(found, low, high), router, "", ()))
    return windows


def _trimmed(found: Tokens, low: int, high: int) -> tuple[int, int]:
    """Without what belongs to the normalisation before (its last products) and after (its squares)."""
    structure = low + np.flatnonzero(np.isin(found.kind[low:high], _STRUCTURE))
    first, last = int(structure[0]), int(structure[-1]) + 1
    while first > low and found.kind[first - 1] == CAST:
        first -= 1
    # A cast and the sum with the shared expert's output still belong to it.
    while last < high and last - int(structure[-1]) <= 2 and found.kind[last] in (OTHER, CAST):
        last += 1
    return first, last


def _by_frames(trace: Trace, found: Tokens) -> list[Window]:
    """The tightest frame around each router that has experts in it, too."""
    events = trace.arrays
    stage_of = {code: stage for code, name in enumerate(events.names) if (stage := _stage(name))}
    rows = np.flatnonzero(np.isin(events.name, list(stage_of)) & events.where("annotation", "python"))
    stages = np.array([stage_of[code] for code in events.name[rows].tolist()], dtype=object)
    routers, experts = rows[stages == "router"], rows[stages == "experts"]
    if not len(routers) or not len(experts):
        return []
    of_experts: dict[int, int] = {}
    for row in experts.tolist():
        above = int(events.parent[row])
        while above >= 0:
            of_experts.setdefault(above, row)
            above = int(events.parent[above])
    layers: dict[int, int] = {}
    for row in routers.tolist():
        above = int(events.parent[row])
        while above >= 0 and above not in of_experts:
            above = int(events.parent[above])
        if above >= 0:
            layers.setdefault(above, row)
    windows = []
    for layer, router in sorted(layers.items(), key=lambda item: int(events.start[item[0]])):
        first, last = np.searchsorted(found.called, (events.start[layer], events.end[layer])).tolist()
        if first == last:
            continue
        inside = rows[(events.start[rows] >= events.start[layer]) & (events.end[rows] <= events.end[layer])]
        inside = inside[events.tid[inside] == events.tid[layer]]
        # Outer frames first, so that inner ones have the last word.
        inside = inside[np.argsort(events.depth[inside], kind="stable")]
        named = [
            (
                stage_of[int(events.name[row])],
                *np.searchsorted(found.called, (events.start[row], events.end[row])).tolist(),
            )
            for row in inside.tolist()
        ]
        top = first + np.flatnonzero(found.kind[first:last] == TOPK)
        end = int(np.searchsorted(found.called, events.end[router])) - 1
        at = int(top[-1]) if len(top) else max(end, first)
        windows.append(Window(first, last, at, events.names[events.name[layer]], tuple(named)))
    return windows


def _stage(name: str) -> str:
    """The stage that a scope or module of this name stands for, "" for none."""
    if name.startswith("nn.Module: "):
        last = name.removeprefix("nn.Module: ")
    elif "(" in name or " " in name or "::" in name:  # other frames and ops
        return ""
    else:
        last = name.rpartition(".")[2]
    return next((stage for stage, grammar in _STAGES if re.search(grammar, last, re.IGNORECASE)), "")
