"""What graphs do in one run and the host in the other: the same calls, and what launching them costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.compare.diff.forest import Forest, Hash
from tracelens.compare.diff.sides import Side
from tracelens.compare.diff.wrappers import paired
from tracelens.table import Column, Schema, Skip
from tracelens.units import duration

STATES = (
    "outside graphs",
    "in graphs on one side",
    "in graphs on both sides",
    "in graphs, no counterpart",
)
"""How GPU work, and the same work of the other run, is launched."""
OUTSIDE, ONE_SIDE, BOTH_SIDES, UNMATCHED = range(4)

SAME_CALLS = 0.98
"""Share of their calls in which the repeated parts of two recordings agree, at least."""

GRAPHS = Schema(
    "Launches",
    (
        Column("side", "category", doc="base or cand"),
        Column("launches", "float64", "count", "launch calls per step, graph launches among them"),
        Column("graph_launches", "float64", "count", "graph launches per step"),
        Column("launch_ns", "int64", "ns", "host time in launch calls per step"),
        Column("in_graphs", "float64", "count", "kernels, memcpys and memsets in graphs per step"),
        Column("in_graphs_ns", "int64", "ns", "their GPU time per step"),
        Column(
            "attributed_fraction", "float64", "ratio", "share of that time whose op is known, -1 for none"
        ),
        Column("op_source", "str", doc="where these ops are recorded: capture, twin"),
    ),
    doc="Means over steps and ranks. What launching graphs changes is in level graph of the waterfall.",
)


def replayed(base: Forest, base_nodes: Int, cand: Forest, cand_nodes: Int) -> tuple[Int, Int]:
    """Pairs of equal calls of which a graph replays at least one.

    Calls of equal names and arguments are paired in order, first those in the same module or scope. A call
    that a graph replays without known arguments is paired by its name last.
    """
    nodes = [base_nodes, cand_nodes]
    pairs: list[tuple[Int, Int]] = []
    for keys in (_in_scope, _signature, _name):
        nodes = [side[np.argsort(forest.start[side], kind="stable")]
                 for forest, side in zip((base, cand), nodes, strict=True)]  # fmt: skip
        base_keys, cand_keys = (keys(forest, side) for forest, side in zip((base, cand), nodes, strict=True))
        _, codes = np.unique(np.concatenate((base_keys, cand_keys)), return_inverse=True)
        rows, partners = paired(codes[: len(base_keys)], codes[len(base_keys) :])
        in_graph = base.copied[nodes[0][rows]] | cand.copied[nodes[1][partners]]
        if keys is _name:
            in_graph &= bare(base, nodes[0][rows]) | bare(cand, nodes[1][partners])
        rows, partners = rows[in_graph], partners[in_graph]
        pairs.append((nodes[0][rows], nodes[1][partners]))
        nodes = [np.delete(side, taken) for side, taken in zip(nodes, (rows, partners), strict=True)]
    base_rows, cand_rows = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return base_rows, cand_rows


def _in_scope(forest: Forest, nodes: Int) -> Hash:
    return forest.signature[nodes] + np.uint64(3) * forest.scope[nodes]


def _signature(forest: Forest, nodes: Int) -> Hash:
    return forest.signature[nodes]


def _name(forest: Forest, nodes: Int) -> Hash:
    return forest.named[nodes]


def bare(forest: Forest, nodes: Int) -> Bool:
    """Which calls a graph replays whose arguments are not known."""
    return forest.copied[nodes] & ~forest.has_arguments[nodes]


def graph_state(side: Side, other: Side, partner: Int) -> Int:
    """Code into STATES of each GPU activity; `partner` is the counterpart of each node."""
    node = side.node_of_work
    match = lookup(partner, node, -1)
    partner_in_graph = lookup(other.forest.copied, match, False)
    state = np.where(partner_in_graph, ONE_SIDE, OUTSIDE)
    in_graph = np.where(match < 0, UNMATCHED, np.where(partner_in_graph, BOTH_SIDES, ONE_SIDE))
    return np.where(side.in_graph, in_graph, state)


def graph_rows(sides: Sequence[Sequence[Side]]) -> dict[str, Any]:
    """Columns of GRAPHS; `sides` are the ranks of the base and of the candidate."""
    rows = [_launches(ranks) for ranks in sides]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {"side": ["base", "cand"], **columns}


def _launches(ranks: Sequence[Side]) -> dict[str, Any]:
    launches = graph_launches = activities = 0.0
    launch_ns = graph_ns = known_ns = 0.0
    sources: set[str] = set()
    for side in ranks:
        weight = 1 / side.steps / len(ranks)
        events, work = side.trace.arrays, side.work
        in_graph = side.in_graph[side.row]
        calls = np.unique(work.launch[side.row])
        calls = calls[calls >= 0]
        graph_launches += weight * len(np.unique(work.launch[side.row[in_graph]]))
        launches += weight * len(calls)
        launch_ns += weight * float((events.end - events.start)[calls].sum())
        begins = (work.start >= side.edges[0]) & (work.start < side.edges[-1])
        activities += weight * int((side.in_graph & begins).sum())
        graph_ns += weight * float(side.ns[in_graph].sum())
        op = side.op[side.row]
        known_ns += weight * float(side.ns[in_graph & (op >= 0)].sum())
        source = side.trace.tables["events"].coded("source")
        sources |= {
            source.values[code] for code in np.unique(source.codes[op[in_graph & (op >= 0)]]).tolist()
        }
    return {
        "launches": launches,
        "graph_launches": graph_launches,
        "launch_ns": round(launch_ns),
        "in_graphs": activities,
        "in_graphs_ns": round(graph_ns),
        "attributed_fraction": known_ns / graph_ns if graph_ns else -1.0,
        "op_source": ", ".join(sorted(sources)),
    }


def repetitions(base: Sequence[Side], cand: Sequence[Side]) -> tuple[int, int]:
    """How often each run does what both do, without step marks; (1, 1) where that is unclear.

    A recording that repeats its work n times has each call n times, or a multiple of it.
    """
    counts = _calls(base), _calls(cand)
    each = [math.gcd(*calls.values()) for calls in counts]
    if not all(each):
        return 1, 1
    once = [
        {call: number // times for call, number in calls.items()}
        for calls, times in zip(counts, each, strict=True)
    ]
    shared = sum(min(number, once[1].get(call, 0)) for call, number in once[0].items())
    if shared < SAME_CALLS * max(sum(calls.values()) for calls in once):
        return 1, 1
    return each[0], each[1]


def _calls(ranks: Sequence[Side]) -> dict[int, int]:
    """Names and arguments of the ops of GPU work, to the number of activities."""
    count: dict[int, int] = {}
    for side in ranks:
        node = side.node_of_work
        for call, number in zip(
            *map(np.ndarray.tolist, np.unique(side.forest.signature[node[node >= 0]], return_counts=True)),
            strict=True,
        ):
            count[call] = count.get(call, 0) + number
    return count


def unattributed(rows: dict[str, Any]) -> list[Skip]:
    """The sides with work in graphs of which no op is known; `rows` are columns of GRAPHS."""
    skips: list[Skip] = []
    if not rows:
        return skips
    for side, in_graphs_ns, known in zip(
        rows["side"], rows["in_graphs_ns"], rows["attributed_fraction"], strict=True
    ):
        if 0 <= known < 1:
            lacking = duration((1 - known) * in_graphs_ns)
            skips.append(
                Skip(
                    f"{side}: ops in graphs",
                    f"{lacking} of GPU work per step in graphs has no known op; name the captures "
                    "(--captures) or a run without graphs (--twin)",
                )
            )
    return skips
