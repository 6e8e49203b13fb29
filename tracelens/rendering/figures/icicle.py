"""Icicles: a tree as boxes within boxes, as long as they take time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.rendering.figures.base import safe, wrapped
from tracelens.rendering.figures.colors import GREY, colors, ink
from tracelens.rendering.tables import Tree

# As many characters as fit into a box of the six columns on a wide page.
_LABEL = 23


def icicle(
    tree: Tree,
    names: Sequence[str],
    levels: Sequence[str],
    sizes: Sequence[int],
    *,
    root: tuple[str, int] | None = None,
    color: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """One icicle; small nodes are one "N more" child of their parent, so that children add up to it.

    Args:
        tree: the nodes that are drawn.
        names: of each.
        levels: of each; below a "category" all have its colour.
        sizes: ns of each.
        root: name and ns of a box around all; without one there is such a box where there are several roots.
        color: of the categories; by their names if it is not given.
        notes: what the hover box of each says besides.
    """
    categories = _categories(tree, names, levels)
    nodes = _nodes(tree, names, levels, sizes, root)
    palette = color or category_colors(categories)
    filled = {str(index): palette[name] for index, name in enumerate(categories)}
    added = {str(index): f"<br>{note}" for index, note in enumerate(notes) if note}
    ids, parents, labels, values, full = (list(column) for column in zip(*nodes, strict=True))
    fills = [filled.get(node_id, GREY) for node_id in ids]
    return {
        "type": "icicle",
        "ids": ids,
        "labels": labels,
        "parents": parents,
        "values": values,
        "branchvalues": "total",
        "sort": False,  # steps in the order they ran; within a step the nodes come by size
        "customdata": [
            [name, round(value / 1e6, 6), *([added.get(node_id, "")] if added else [])]
            for node_id, name, value in zip(ids, full, values, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]:,.3f} ms, %{percentRoot:.1%}"
        + ("%{customdata[2]}" if added else "")
        + "<extra></extra>",
        "texttemplate": "%{label} %{percentRoot:.1%}",
        "marker": {
            "colors": fills,
            "line": {"width": 1, "color": "rgba(128,128,128,0.25)"},
        },
        "leaf": {"opacity": 0.9},
        "textfont": {"color": [ink(fill) for fill in fills]},
        "tiling": {"orientation": "h", "pad": 1},
        "pathbar": {"visible": True, "thickness": 22},
    }


def _nodes(
    tree: Tree,
    names: Sequence[str],
    levels: Sequence[str],
    sizes: Sequence[int],
    root: tuple[str, int] | None,
) -> list[tuple[str, str, str, int, str]]:
    """(id, id of the parent, label, ns, whole name) of every box."""
    inside = [0] * len(sizes)
    for index, parent in enumerate(tree.parent):
        if parent >= 0:
            inside[parent] += sizes[index]
    roots = [sizes[index] for index, parent in enumerate(tree.parent) if parent < 0]
    label, total = root or ("all", sum(roots))
    top = "all" if root or len(roots) > 1 else ""  # an icicle has one root
    nodes = [(top, "", label, total, label)] if top else []
    folded = [(f"{top}+", top, "more", total - sum(roots), "more")] if total > sum(roots) else []
    for index, name in enumerate(names):
        parent_id = top if tree.parent[index] < 0 else str(tree.parent[index])
        full_name = f"{levels[index]}: {wrapped(name)}"
        nodes.append((str(index), parent_id, safe(name, _LABEL), sizes[index], full_name))
        folded_ns = sizes[index] - inside[index]
        if inside[index] and tree.left_out[index] and folded_ns > 0:
            word = f"{tree.left_out[index]:,} more"
            folded.append((f"{index}+", str(index), word, folded_ns, word))
    return nodes + folded


def category_colors(names: Sequence[str]) -> dict[str, str]:
    """A colour a category; "" is of none."""
    # Labels are dark, also on a dark page, so no colour here may let the page shine through.
    return colors(filter(None, names)) | {"": GREY, "idle": "#c9ced6", "(idle)": "#c9ced6"}


def _categories(tree: Tree, names: Sequence[str], levels: Sequence[str]) -> list[str]:
    """The category of each node, its nearest ancestor at that level; "" for none."""
    category = [""] * len(names)
    for index, parent in enumerate(tree.parent):
        inherited = category[parent] if parent >= 0 else ""
        category[index] = names[index] if levels[index] == "category" else inherited
    return category
