"""Figures: what a result looks like, as plain plotly dictionaries (`{"data": [...], "layout": {...}}`).

A function draws one chart, registered with `@figure(analyzer)`. It knows table and column names only; where a
table or a column is absent, it draws nothing. No figure holds more than about 5,000 points. Below are
layouts, safe text, and the charts that several figures are: bars, heat maps of ranks, Gantt charts, icicles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tracelens.arrays import unique
from tracelens.guard import Failure, guard
from tracelens.registry import Registry
from tracelens.rendering.figures.colors import GREY, SEQUENTIAL, colors, ink
from tracelens.rendering.tables import Tree, one_line, shorten
from tracelens.table import Result, Skip, Table
from tracelens.units import duration

Figure = dict[str, Any]
Draw = Callable[[Result], list[Figure]]
FIGURES: Registry[Draw] = Registry(
    "figure",
    "tracelens.rendering.figures",
    homes={
        ".comparisons": "diff, ladder",
        ".gpu_time": "breakdown, findings, idle, kernels, launches, ops, roofline, timeline",
        ".projections": (
            "bounds, bubble, memory, pipeline_schedule, published, scaling, search, trace_bounds, whatif"
        ),
        ".ranks": "collectives, moe, overlap, pipeline, serving",
    },
)
"""Analyzer to what draws all its figures."""
_CHARTS: dict[tuple[str, str], dict[str, Draw]] = {}
"""Analyzer and module to the functions that draw its charts, by name, in the order shown."""

_TAGS = re.compile(r"(</?(?:b|i|sub|sup)>|<br>|<extra></extra>)")

_TOP = 20
"""Names with a bar."""
_SECONDS_NS = 1e10
"""Times from here on are told in seconds."""

MOST_BARS = 16
"""Ranks with a bar each; more of them are a heat map."""
_CELLS = 4800

POINTS = 4000
"""Bars that one figure holds."""
MOST_ROWS = 48
"""Ranks that one figure shows."""

# As many characters as fit into a box of the six columns on a wide page.
_LABEL = 23


def figure(analyzer: str) -> Callable[[Draw], Draw]:
    """Register the decorated function: it draws results of `analyzer`, behind others of its module."""

    def keep(draw: Draw) -> Draw:
        charts = _CHARTS.setdefault((analyzer, draw.__module__), {})
        charts[draw.__qualname__] = draw

        def all_charts(result: Result) -> list[Figure]:
            return [figure for draw in charts.values() for figure in draw(result)]

        FIGURES.add(analyzer, all_charts, draw.__module__)
        return draw

    return keep


def figures(result: Result) -> list[Figure]:
    """The figures of a result; none for an analyzer that has no figure module.

    Every layout has a `title.text`, plain text, and a `height` in pixels. Texts have no tags that plotly
    would follow, except for line breaks and emphasis. A figure may name the `table` that it shows; without
    a name it is of the first one.
    """
    draw = FIGURES.find(result.analyzer)
    safe_figures: list[Figure] = []
    for figure in draw(result) if draw else ():
        inert: Figure = _inert(figure)
        # The title is shown by the page, which escapes it, and not by plotly.
        title = str(figure["layout"].get("title", {}).get("text", ""))
        safe_figures.append({**inert, "layout": {**inert["layout"], "title": {"text": one_line(title)}}})
    return safe_figures


def drawn(result: Result) -> tuple[list[Figure], Result]:
    """The figures of a result, and the result: with a Skip where they cannot be drawn because of a bug."""
    made = guard(f"figures of {result.analyzer}", figures, result)
    if isinstance(made, Failure):
        return [], replace(result, skips=(*result.skips, Skip("figures", made)))
    return made, result


def _inert(value: Any) -> Any:
    """A figure or a part of it, whatever text of a trace got into it unescaped."""
    if isinstance(value, str):
        if value.isprintable() and "<" not in value:
            return value
        parts = _TAGS.split(one_line(value))
        parts[::2] = [part.replace("<", "&lt;").replace(">", "&gt;") for part in parts[::2]]
        return "".join(parts)
    if isinstance(value, dict):
        return {key: _inert(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [element if type(element) is float else _inert(element) for element in value]
    return value


def table(result: Result, name: str, *columns: str) -> Table | None:
    """The table when it is there, has all these columns and at least one row; else None."""
    data = result.data.get(name)
    return data if data is not None and len(data) and set(columns) <= set(data.columns) else None


def needs(
    name: str, *columns: str
) -> Callable[[Callable[[Table], list[Figure]]], Callable[[Result], list[Figure]]]:
    """Draws a table of a result; nothing where it is absent, empty or lacks one of these columns.

    The figures bear the name of the table.
    """

    def decorated(draw: Callable[[Table], list[Figure]]) -> Callable[[Result], list[Figure]]:
        @wraps(draw)
        def drawn(result: Result) -> list[Figure]:
            data = table(result, name, *columns)
            return [] if data is None else [{"table": name} | figure for figure in draw(data)]

        return drawn

    return decorated


def plain(text: str, width: int) -> str:
    """A name in a title, which the page shows and not plotly."""
    return shorten(one_line(text), width)


def safe(text: str, width: int) -> str:
    """A name as figure text: shortened, with nothing that plotly would follow (links, tags, templates)."""
    short = plain(text, width).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return short.replace("%{", "%&#123;")


def wrapped(text: str, width: int = 72, lines: int = 4) -> str:
    """A long name for a hover box, broken into lines."""
    short = shorten(one_line(text), width * lines)
    return "<br>".join(safe(short[start : start + width], width) for start in range(0, len(short), width))


def ms(ns: NDArray[Any] | Sequence[float]) -> list[float]:
    """Nanoseconds as milliseconds, to the nanosecond, which keeps the JSON short."""
    return rounded(np.asarray(ns) / 1e6, 6)


def rounded(numbers: NDArray[Any], digits: int) -> list[float]:
    """Floats with few digits, for short JSON."""
    short: list[float] = np.round(numbers, digits).tolist()
    return short


def chart(traces: Sequence[dict[str, Any]], title: str, height: int, **layout: Any) -> Figure:
    """Plotly traces under the layout of every figure; colours of text and grid are the page's."""
    common = {
        "title": {"text": title},
        "height": height,
        # The legend stands above the plot, and the page's toolbar above the figure.
        "margin": {"l": 8, "r": 16, "t": 34 if layout.get("showlegend") else 10, "b": 44, "pad": 4},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
    }
    return {"data": list(traces), "layout": common | layout}


def axis(title: str = "", **overrides: Any) -> dict[str, Any]:
    """A number axis."""
    return {"title": {"text": title}, "automargin": True, "zeroline": False, "tickformat": ",", **overrides}


def rows_axis(labels: Sequence[str], width: int = 40) -> dict[str, Any]:
    """A vertical axis with one named row for each of 0, 1, ...; the first one is on top."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": [safe(text, width) for text in labels],
        "range": [len(labels) - 0.4, -0.6],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
    }


def ranks(data: Table) -> list[int]:
    """The rank numbers in a table, ascending."""
    numbers: list[int] = unique(data.array("rank")).tolist()
    return numbers


def over_ranks(data: Table) -> str:
    """What to add to a title when the table has several ranks, whose values are summed."""
    count = len(ranks(data))
    return f", summed over {count} ranks" if count > 1 else ""


def horizontal_bars(**attributes: Any) -> dict[str, Any]:
    """A plotly trace of horizontal bars."""
    return {"type": "bar", "orientation": "h", **attributes}


def row_labels(ends: NDArray[Any], texts: Sequence[str]) -> dict[str, Any]:
    """A text at the right of each row, behind all that is drawn of it: `ends`, in ns."""
    return {
        "type": "scatter",
        "mode": "text",
        "showlegend": False,
        "hoverinfo": "skip",
        "x": ms(ends),
        "y": list(range(len(ends))),
        "text": list(texts),
        "textposition": "middle right",
        "cliponaxis": False,
    }


def menu(method: str, arguments: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Buttons above a figure: label to what plotly's `restyle` or `update` is called with."""
    buttons = [{"label": label, "method": method, "args": args} for label, args in arguments.items()]
    return [{"type": "buttons", "direction": "right", "buttons": buttons}]


def folded(rows: NDArray[Any], most: int) -> NDArray[Any]:
    """The first `most` rows and the sum of the others; all of them where that is but one row more."""
    if len(rows) <= most + 1:
        return rows
    return np.concatenate((rows[:most], rows[most:].sum(axis=0, keepdims=True)))


def top_bars(data: Table, value: str, noun: str) -> list[Figure]:
    """The names with the most time as horizontal bars, coloured by category; `noun` is plural.

    The table has columns rank, name, category, count and `value`, in ns; ranks are summed.
    """
    group, (names, categories) = data.group("name", "category")
    total_ns = np.bincount(group, weights=data.array(value))
    counts = np.bincount(group, weights=data.array("count")).astype(int)
    top = np.argsort(-total_ns, kind="stable")[:_TOP].tolist()
    color = colors(categories[index] for index in top)
    traces = []
    for category in color:
        rows = {row: index for row, index in enumerate(top) if categories[index] == category}
        traces.append(
            horizontal_bars(
                name=safe(category, 30) or "uncategorised",
                marker={"color": color[category]},
                width=0.76,
                y=list(rows),
                x=ms([total_ns[index] for index in rows.values()]),
                customdata=[[wrapped(names[index]), counts[index].item()] for index in rows.values()],
                hovertemplate="%{customdata[0]}<br>%{x:,.3f} ms in %{customdata[1]:,} calls",
            )
        )
    share = total_ns[top].sum() / max(total_ns.sum(), 1)
    return [
        chart(
            traces,
            f"{noun} with the most time: the top {len(top)} make {share:.0%} of it{over_ranks(data)}",
            110 + 22 * len(top),
            barmode="overlay",
            showlegend=True,
            xaxis=axis("time (ms)", rangemode="tozero"),
            yaxis=rows_axis([names[index] for index in top]),
        )
    ]


def stacked_bars(
    title: str,
    rows: Sequence[str],
    parts: Mapping[str, NDArray[Any]],
    fractions: Mapping[str, NDArray[Any]],
    color: Mapping[str, str] | None = None,
) -> Figure:
    """One horizontal bar a row, made of parts.

    `parts` maps names, in the order stacked, to ns, one value a row; `fractions` the same names to shares of
    the row's whole, 0-1. Colours go by the names of the parts if none are given.
    """
    color = color or colors(parts)
    longest_ns = np.max(np.sum(list(parts.values()), axis=0), initial=0)
    unit, unit_ns = ("s", 1e9) if longest_ns >= _SECONDS_NS else ("ms", 1e6)
    traces = [
        horizontal_bars(
            name=safe(part.replace("_", " "), 40),
            marker={"color": color[part]},
            width=0.7,
            y=list(range(len(rows))),
            x=rounded(values / unit_ns, 6),
            customdata=[round(fraction, 5) for fraction in fractions[part].tolist()],
            hovertemplate=f"%{{x:,.3f}} {unit}, %{{customdata:.1%}}",
        )
        for part, values in parts.items()
    ]
    return chart(
        traces,
        title,
        120 + 30 * len(rows),
        barmode="stack",
        showlegend=True,
        xaxis=axis(f"time ({unit})", rangemode="tozero"),
        yaxis=rows_axis(rows),
    )


def rank_times(
    title: str,
    ranks: Sequence[int],
    parts: Mapping[str, NDArray[Any]],
    fractions: Mapping[str, NDArray[Any]],
    color: Mapping[str, str] | None = None,
) -> Figure:
    """What the time of each rank is made of: bars as of `stacked_bars`, or a heat map of many ranks."""
    if len(ranks) <= MOST_BARS:
        return stacked_bars(title, [f"rank {rank}" for rank in ranks], parts, fractions, color)
    # Parts by ranks. Each row has a scale of its own, from 0 to its largest time: small parts show, too.
    most = max(_CELLS // max(len(parts), 1), 1)
    note = f" (the first {most} of {len(ranks)} ranks)" if len(ranks) > most else ""
    ranks = ranks[:most]
    names, shades, hover = [], [], []
    for name, all_times in parts.items():
        times, share = all_times[:most], fractions[name][:most]
        readable = safe(name.replace("_", " "), 40)
        low, high = f"{share.min():.0%}", f"{share.max():.0%}"
        names.append(f"{readable} {low if low == high else f'{low} to {high}'}")
        shades.append(rounded(times / max(float(times.max(initial=0)), 1.0), 4))
        hover.append(
            [
                f"rank {rank}, {readable}: {duration(ns)}, {part:.1%}"
                for rank, ns, part in zip(ranks, times.tolist(), share.tolist(), strict=True)
            ]
        )
    drawn: dict[str, Any] = {
        "type": "heatmap",
        "x": [str(rank) for rank in ranks],
        "y": names,
        "z": shades,
        "customdata": hover,
        "hovertemplate": "%{customdata}<extra></extra>",
        "zmin": 0,
        "zmax": 1,
        "xgap": 1,
        "ygap": 2,
        "colorscale": SEQUENTIAL,
        "colorbar": {
            "title": {"text": "of max"},
            "tickformat": ".0%",
            "tickvals": [0, 0.5, 1],
            "thickness": 12,
        },
    }
    return chart(
        [drawn],
        f"{title}{note}",
        120 + 34 * len(names),
        showlegend=False,
        xaxis=axis("rank", type="category", showgrid=False),
        yaxis=axis("", type="category", autorange="reversed", showgrid=False),
    )


def rank_bars(
    title: str,
    data: Table,
    part: str,
    shown: Sequence[int] = (),
    parts: Sequence[str] = (),
    color: Mapping[str, str] | None = None,
) -> Figure:
    """What the time of each rank is made of, from the values of the text column `part`.

    The table has columns rank, `part`, dur_ns and the fraction that these are.
    By default all ranks are shown, and all values in the order of the table; see `rank_times`.
    """
    shown = shown or ranks(data)
    share = next(column.name for column in data.schema.columns if column.unit == "fraction")
    times, fractions = (data.pivot(part, "rank", name, shown).by_row() for name in ("dur_ns", share))
    return rank_times(title, shown, {name: times[name] for name in parts or times}, fractions, color)


def extent(data: Table) -> tuple[int, int]:
    """Begin and end of all rows, ns."""
    start = data.array("ts_ns")
    return int(start.min()), int((start + data.array("dur_ns")).max())


def clock_chart(
    title: str, traces: list[dict[str, Any]], labels: Sequence[str], length: int, **overrides: Any
) -> Figure:
    """The rows with these labels and bars on one clock of `length` ns."""
    return chart(
        traces,
        title,
        110 + max(22, min(44, 480 // len(labels))) * len(labels),
        barmode="overlay",
        showlegend=True,
        **overrides,
        xaxis=axis("time since the first forward (ms)", showgrid=False, range=ms([0, length])),
        yaxis=rows_axis(labels),
    )


def bars(
    spans: Table, column: str, color: Mapping[str, str], shown: Sequence[int], begin: int
) -> list[dict[str, Any]]:
    """Bars of each kind that there is, by the text column `column`; one row a rank, from the top.

    The spans have columns rank, ts_ns, dur_ns; micro_batch and chunk if passes. Micro-batches have
    their number, chunks above the first one a paler bar. Where some are `paired`, running beside each other,
    they are drawn half as high. The left edge is at `begin`, ns.
    """
    kinds = spans.coded(column)
    row_of = {rank: row for row, rank in enumerate(shown)}
    traces = []
    for kind in color:
        of_kind = kinds.equals(kind)
        if not of_kind.any():
            continue
        part = spans.take(of_kind)
        trace = horizontal_bars(
            name=kind.replace("_", " "),
            marker={"color": color[kind], "line": {"width": 0}},
            y=[row_of[rank] for rank in part.values("rank")],
            width=0.8,
            base=ms(part.array("ts_ns") - begin),
            x=ms(part.array("dur_ns")),
            hovertemplate="%{x:,.3f} ms from %{base:,.3f} ms",
        )
        traces.append(trace)
        if "micro_batch" not in part.columns:
            continue
        if "paired" in part.columns and part.array("paired").any():
            paired = part.array("paired")
            side = -0.2 if kind == "forward" else 0.2
            trace["y"] = [row + side * bool(beside) for row, beside in zip(trace["y"], paired, strict=True)]
            trace["width"] = np.where(paired, 0.4, 0.8).tolist()
        chunk = part.array("chunk")
        numbers = np.stack([part.array("micro_batch"), chunk], axis=1).tolist()
        paler = np.round(1 - 0.5 * chunk / max(int(chunk.max(initial=0)) + 1, 1), 2).tolist()
        trace["marker"] |= {"opacity": paler, "line": {"width": 1, "color": "rgba(255,255,255,0.7)"}}
        trace |= {
            "customdata": numbers,
            "text": [str(micro_batch) for micro_batch, _ in numbers],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "hovertemplate": "micro-batch %{customdata[0]}, chunk %{customdata[1]}: "
            + trace["hovertemplate"],
        }
    return traces


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

    `names`, `levels` and `sizes` (ns) are of the nodes of the tree, `notes` what their hover boxes say
    besides. `root` is name and ns of a box around all; without one there is such a box where there are
    several roots. All below a node of level "category" have its colour.
    """
    # The category of each node is its nearest ancestor at that level; "" for none.
    categories = [""] * len(names)
    inside = [0] * len(sizes)
    for index, parent in enumerate(tree.parent):
        inherited = categories[parent] if parent >= 0 else ""
        categories[index] = names[index] if levels[index] == "category" else inherited
        if parent >= 0:
            inside[parent] += sizes[index]
    palette = color or category_colors(categories)
    filled = {str(index): palette[name] for index, name in enumerate(categories)}

    # (id, id of the parent, label, ns, whole name) of every box.
    roots = [sizes[index] for index, parent in enumerate(tree.parent) if parent < 0]
    root_name, total_ns = root or ("all", sum(roots))
    top = "all" if root or len(roots) > 1 else ""  # an icicle has one root
    nodes = [(top, "", root_name, total_ns, root_name)] if top else []
    folded = [(f"{top}+", top, "more", total_ns - sum(roots), "more")] if total_ns > sum(roots) else []
    for index, name in enumerate(names):
        parent_id = top if tree.parent[index] < 0 else str(tree.parent[index])
        full_name = f"{levels[index]}: {wrapped(name)}"
        nodes.append((str(index), parent_id, safe(name, _LABEL), sizes[index], full_name))
        folded_ns = sizes[index] - inside[index]
        if inside[index] and tree.left_out[index] and folded_ns > 0:
            word = f"{tree.left_out[index]:,} more"
            folded.append((f"{index}+", str(index), word, folded_ns, word))

    added = {str(index): f"<br>{note}" for index, note in enumerate(notes) if note}
    ids, parents, labels, values, full = (list(column) for column in zip(*nodes, *folded, strict=True))
    fills = [filled.get(node_id, GREY) for node_id in ids]
    inks = {fill: ink(fill) for fill in set(fills)}
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
        "marker": {"colors": fills, "line": {"width": 1, "color": "rgba(128,128,128,0.25)"}},
        "leaf": {"opacity": 0.9},
        "textfont": {"color": [inks[fill] for fill in fills]},
        "tiling": {"orientation": "h", "pad": 1},
        "pathbar": {"visible": True, "thickness": 22},
    }


def category_colors(names: Sequence[str]) -> dict[str, str]:
    """A colour a category; "" is of none."""
    # Labels are dark, also on a dark page, so no colour here may let the page shine through.
    return colors(filter(None, names)) | {"": GREY, "idle": "#c9ced6", "(idle)": "#c9ced6"}
