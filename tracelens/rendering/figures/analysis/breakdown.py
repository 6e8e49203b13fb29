"""Where the GPU time goes, from the step down to the kernel."""

from __future__ import annotations

from tracelens.rendering.figures.base import chart, needs, ranks
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.icicle import icicle
from tracelens.rendering.tables import select
from tracelens.table import Table

# Every chosen node may bring one "more" node with it.
_NODES = 750


@figure("breakdown")
@needs("breakdown", "rank", "node", "parent", "level", "name", "exclusive_ns")
def breakdown(nodes: Table) -> list[Figure]:
    """Table `breakdown`: an icicle of `exclusive_ns`; only the lowest rank when there are several.

    Small nodes are folded into one "N more" child of their parent, so that children still add up to it.
    """
    rank, *more_ranks = ranks(nodes)
    rank_note = f", rank {rank}" if more_ranks else ""
    nodes = nodes.take((nodes.array("rank") == rank) & (nodes.array("exclusive_ns") > 0))
    tree = select(nodes, _NODES)
    if not tree.rows:
        return []
    names, levels = nodes.texts("name", tree.rows), nodes.texts("level", tree.rows)
    trace = icicle(tree, names, levels, nodes.array("exclusive_ns")[tree.rows].tolist())
    return [
        chart(
            [trace],
            f"GPU time from the step down to the kernel{rank_note}; click a box to zoom",
            560,
            margin={"l": 4, "r": 4, "t": 30, "b": 8},
            uniformtext={"minsize": 10, "mode": "hide"},
        )
    ]
