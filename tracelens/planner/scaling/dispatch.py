"""Bytes of one dispatch of a micro-batch in one layer."""

from __future__ import annotations

from typing import Any

from tracelens.planner.expected import layer_messages
from tracelens.planner.step_time import Timer


def dispatch_row(timer: Timer) -> dict[str, Any]:
    """Row of the table `exchange`, without dispatch and ranks."""
    layout, spread = timer.config.layout, timer.spread
    ranks = layout.experts_over
    near = timer.network.neighbours("ep", ranks) if ranks > 1 else 1
    match timer.config.toggles.dispatch:
        case "deepep":
            to_nodes, to_ranks = spread.nodes, spread.ranks
            per_node = near
        case "dedup":
            to_nodes = to_ranks = spread.ranks
            per_node = ranks
        case _:
            to_nodes = to_ranks = spread.experts
            per_node = ranks
    size = timer.share.tokens * timer.share.row
    layer = timer.config.model.layers - 1
    messages = layer_messages(timer.share, layer, 0, timer.routed if ranks > 1 else None)
    dispatches = [m for m in messages if (m.phase, m.what, m.group) == ("forward", "tokens", "ep")]
    return {
        "nodes": ranks // near,
        "ranks_per_token": spread.ranks,
        "nodes_per_token": spread.nodes,
        # A copy for a rank takes a link unless it is already there: on the sender, or where it came in.
        "nic_bytes": round(size * to_nodes * (ranks - near) / ranks),
        "link_bytes": round(size * to_ranks * (near - 1) / per_node),
        "dur_ns": round(sum(map(timer.message, dispatches))),
    }
