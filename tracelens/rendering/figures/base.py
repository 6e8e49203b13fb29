"""What all figures share: layouts, safe text, and the bar charts that several of them are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.rendering.figures.colors import colors
from tracelens.rendering.figures.figure import Figure
from tracelens.rendering.tables import one_line, shorten
from tracelens.table import Result, Table

_TOP = 20


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
    numbers: list[int] = np.unique(data.array("rank")).tolist()
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
    """The names with the most time as horizontal bars, coloured by category.

    Args:
        data: columns rank, name, category, count and `value`, in ns.
        value: the column that is drawn; ranks are summed.
        noun: plural noun for the title.
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


_SECONDS_NS = 1e10
"""Times from here on are told in seconds."""


def stacked_bars(
    title: str,
    rows: Sequence[str],
    parts: Mapping[str, NDArray[Any]],
    fractions: Mapping[str, NDArray[Any]],
    color: Mapping[str, str] | None = None,
) -> Figure:
    """One horizontal bar a row, made of parts.

    Args:
        title: what one sees.
        rows: names of the rows, from the top.
        parts: name of the part to ns, one value a row; in the order stacked.
        fractions: the same parts as share of the row's whole, 0-1.
        color: of the parts; by their names if it is not given.
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
