"""Where the GPU time goes, from the step down to the kernel."""

from __future__ import annotations

from typing import Any

from tracelens.renderers._rows import Tree, select
from tracelens.renderers.figures import Figure, figure
from tracelens.renderers.figures._base import GREY, colors, layout, ranks, safe, table, where, wrapped
from tracelens.schema import Result

# Every chosen node may bring one "more" node with it.
_NODES = 750
# As many characters as fit into a box of the six columns on a wide page.
_LABEL = 23


@figure("breakdown")
def breakdown(result: Result) -> list[Figure]:
    """Table `breakdown`: an icicle of `exclusive_ns`; only the lowest rank when there are several.

    Small nodes are folded into one "N more" child of their parent, so that children still add up to it.
    """
    found = table(result, "breakdown", "rank", "node", "parent", "level", "name", "exclusive_ns")
    if found is None:
        return []
    rank, *others = ranks(found)
    which = f", rank {rank}" if others else ""
    found = where(found, (found.array("rank") == rank) & (found.array("exclusive_ns") > 0))
    tree = select(found, _NODES)
    if not tree.rows:
        return []
    names, levels = found.texts("name", tree.rows), found.texts("level", tree.rows)
    trace = _trace(tree, names, levels, found.array("exclusive_ns")[tree.rows].tolist())
    drawn = layout(
        f"GPU time from the step down to the kernel{which}; click a box to zoom",
        560,
        margin={"l": 4, "r": 4, "t": 30, "b": 8},
        uniformtext={"minsize": 10, "mode": "hide"},
    )
    return [{"data": [trace], "layout": drawn}]


def _trace(tree: Tree, names: list[str], levels: list[str], sizes: list[int]) -> dict[str, Any]:
    nodes = _nodes(tree, names, levels, sizes)
    ids, parents, labels, values, colors_, full = (list(column) for column in zip(*nodes, strict=True))
    return {
        "type": "icicle",
        "ids": ids,
        "labels": labels,
        "parents": parents,
        "values": values,
        "branchvalues": "total",
        "sort": False,  # steps in the order they ran; within a step the nodes come by size
        "customdata": [[name, round(value / 1e6, 6)] for name, value in zip(full, values, strict=True)],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]:,.3f} ms, %{percentRoot:.1%}<extra></extra>",
        "texttemplate": "%{label} %{percentRoot:.1%}",
        "marker": {"colors": colors_, "line": {"width": 1, "color": "rgba(128,128,128,0.25)"}},
        "leaf": {"opacity": 0.8},
        "textfont": {"color": "#10151c"},
        "tiling": {"orientation": "h", "pad": 1},
        "pathbar": {"visible": True, "thickness": 22},
    }


def _nodes(
    tree: Tree, names: list[str], levels: list[str], sizes: list[int]
) -> list[tuple[str, str, str, int, str, str]]:
    """(id, id of the parent, label, ns, colour, whole name) of every box."""
    color = _colors(tree, names, levels)
    inside = [0] * len(sizes)
    for index, parent in enumerate(tree.parent):
        if parent >= 0:
            inside[parent] += sizes[index]
    roots = [sizes[index] for index, parent in enumerate(tree.parent) if parent < 0]
    top = "all" if len(roots) > 1 else ""  # an icicle has one root
    nodes = [(top, "", "all", sum(roots), GREY, "all")] if top else []
    folded = []
    for index, name in enumerate(names):
        parent_id = top if tree.parent[index] < 0 else str(tree.parent[index])
        whole = f"{levels[index]}: {wrapped(name)}"
        nodes.append((str(index), parent_id, safe(name, _LABEL), sizes[index], color[index], whole))
        rest = sizes[index] - inside[index]
        if inside[index] and tree.left_out[index] and rest > 0:
            word = f"{tree.left_out[index]:,} more"
            folded.append((f"{index}+", str(index), word, rest, GREY, word))
    return nodes + folded


def _colors(tree: Tree, names: list[str], levels: list[str]) -> list[str]:
    """The colour of a node is that of its category, its nearest ancestor at that level."""
    category = [""] * len(names)
    for index, parent in enumerate(tree.parent):
        inherited = category[parent] if parent >= 0 else ""
        category[index] = names[index] if levels[index] == "category" else inherited
    # Labels are dark, also on a dark page, so no colour here may let the page shine through.
    color = colors(filter(None, category)) | {"": GREY, "idle": "#c9ced6"}
    return [color[name] for name in category]
