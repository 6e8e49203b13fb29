"""What all figures share: colours, layouts, safe text, and the bar charts that several of them are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tracelens.rendering.figures.figure import Figure
from tracelens.rendering.tables import one_line, shorten
from tracelens.table import Coded, Result, Table

# Mid tones that are legible on white and on near black.
BLUE, ORANGE, TEAL, VIOLET, GREY = "#4a74d8", "#e8923a", "#3fae9e", "#a06cd5", "#98a1ad"
KINDS = {
    "computation": BLUE,
    "comm": ORANGE,
    "exposed_comm": ORANGE,
    "memcpy": TEAL,
    "exposed_memcpy": TEAL,
    "memset": VIOLET,
    "exposed_memset": VIOLET,
    "idle": "rgba(152,161,173,0.35)",
}
# Names that many results share keep their colour from figure to figure; others get one of _PALETTE.
_KNOWN = KINDS | {
    "gemm": BLUE,
    "grouped_gemm": "#2f9bd6",
    "attention": "#d95f76",
    "communication": ORANGE,
    "copy": TEAL,
    "fill": VIOLET,
    "moe_routing": "#dfb32c",
    "elementwise": "#7ea9a0",
    "normalization": "#6fa845",
    "softmax": "#c06bc0",
    "activation": "#a3b84a",
    "reduction": "#b07a5a",
    "indexing": "#5d9170",
    "concat": "#cf9a6e",
    "transpose": "#8f7fc9",
    "quantization": "#a08a3a",
    "optimizer": "#d477b5",
    "fused": "#7c6bd0",
    "unlinked": "#b4bac3",
    "other": GREY,
    "at the roofline": BLUE,
    "recoverable": ORANGE,
    "waiting": "rgba(152,161,173,0.55)",
}
_PALETTE = ("#58b0c9", "#b0506a", "#c98a2b", "#7d8ba8", "#5a9ea0", "#d58a94", "#93b06b", "#6c8fd9", "#b58fc9")
_TOP = 20


def table(result: Result, name: str, *columns: str) -> Table | None:
    """The table when it is there, has all these columns and at least one row; else None."""
    data = result.data.get(name)
    return data if data is not None and len(data) and set(columns) <= set(data.columns) else None


def where(data: Table, mask: NDArray[Any]) -> Table:
    """The rows of a table for which `mask` (bool) holds."""
    rows = np.flatnonzero(mask)
    return Table(data.schema, {name: _take(column, rows) for name, column in data.columns.items()})


def _take(column: Any, rows: NDArray[np.intp]) -> Any:
    if isinstance(column, Coded):
        return Coded(column.codes[rows], column.values)
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]


def coded(data: Table, name: str) -> Coded:
    """A text column by dictionary, whichever way it is held."""
    column = data.columns[name]
    if isinstance(column, Coded):
        return column
    code_of: dict[str, int] = {}
    codes = np.fromiter((code_of.setdefault(text, len(code_of)) for text in column), np.int64, len(column))
    return Coded(codes, list(code_of))


def colors(names: Iterable[str]) -> dict[str, str]:
    """A colour a name: the same in every figure, unless two names in one figure want the same colour."""
    color_of: dict[str, str] = {}
    for name in sorted(set(names)):
        if name in _KNOWN:
            color_of[name] = _KNOWN[name]
            continue
        start = crc32(name.encode("utf-8", "replace"))
        palette = [_PALETTE[(start + step) % len(_PALETTE)] for step in range(len(_PALETTE))]
        color_of[name] = next((color for color in palette if color not in color_of.values()), palette[0])
    return color_of


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


def layout(title: str, height: int, **overrides: Any) -> dict[str, Any]:
    """The layout of every figure; colours of text and grid are the page's."""
    return {
        "title": {"text": title},
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 34, "b": 44, "pad": 4},
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hovermode": "closest",
        **overrides,
    }


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


def top_bars(data: Table, value: str, noun: str) -> list[Figure]:
    """The names with the most time as horizontal bars, coloured by category.

    Args:
        data: columns rank, name, category, count and `value`, in ns.
        value: the column that is drawn; ranks are summed.
        noun: plural noun for the title.
    """
    name, category = coded(data, "name"), coded(data, "category")
    keys, group = np.unique(name.codes * len(category.values) + category.codes, return_inverse=True)
    sums = np.bincount(group, weights=data.array(value))
    counts = np.bincount(group, weights=data.array("count"))
    rows = [
        (*divmod(int(keys[pair]), len(category.values)), sums[pair], int(counts[pair]))
        for pair in np.argsort(-sums, kind="stable")[:_TOP]
    ]
    bars = [(name.values[row[0]], category.values[row[1]], row[2], row[3]) for row in rows]
    return [_bars(bars, f"{noun} with the most time (top {len(rows)}){over_ranks(data)}")]


def _bars(rows: list[tuple[str, str, float, int]], title: str) -> Figure:
    color = colors(row[1] for row in rows)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": safe(category, 30) or "uncategorised",
            "marker": {"color": color[category]},
            "width": 0.76,
            "y": [index for index, row in enumerate(rows) if row[1] == category],
            "x": ms([row[2] for row in rows if row[1] == category]),
            "customdata": [[wrapped(row[0]), row[3]] for row in rows if row[1] == category],
            "hovertemplate": "%{customdata[0]}<br>%{x:,.3f} ms in %{customdata[1]:,} calls",
        }
        for category in color
    ]
    return {
        "data": traces,
        "layout": layout(
            title,
            110 + 22 * len(rows),
            barmode="overlay",
            showlegend=True,
            xaxis=axis("time (ms)", rangemode="tozero"),
            yaxis=rows_axis([row[0] for row in rows]),
        ),
    }


def by_row(column: NDArray[Any], rows: Sequence[int | None]) -> list[float]:
    """The values in these rows; zero where there is no row."""
    return [0 if row is None else column[row].item() for row in rows]


_SECONDS_NS = 1e10
"""Times from here on are told in seconds."""


def stacked_bars(
    title: str,
    rows: Sequence[str],
    parts: Mapping[str, Sequence[float]],
    fractions: Mapping[str, Sequence[float]],
) -> Figure:
    """One horizontal bar a row, made of parts.

    Args:
        title: what one sees.
        rows: names of the rows, from the top.
        parts: name of the part to ns, one value a row; in the order stacked.
        fractions: the same parts as share of the row's whole, 0-1.
    """
    color = colors(parts)
    longest_ns = max((sum(row) for row in zip(*parts.values(), strict=True)), default=0.0)
    unit, unit_ns = ("s", 1e9) if longest_ns >= _SECONDS_NS else ("ms", 1e6)
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": safe(part.replace("_", " "), 40),
            "marker": {"color": color[part]},
            "width": 0.7,
            "y": list(range(len(rows))),
            "x": rounded(np.asarray(values) / unit_ns, 6),
            "customdata": [round(fraction, 5) for fraction in fractions[part]],
            "hovertemplate": f"%{{x:,.3f}} {unit}, %{{customdata:.1%}}",
        }
        for part, values in parts.items()
    ]
    height = 120 + 30 * len(rows)
    return {
        "data": traces,
        "layout": layout(
            title,
            height,
            barmode="stack",
            showlegend=True,
            xaxis=axis(f"time ({unit})", rangemode="tozero"),
            yaxis=rows_axis(rows),
        ),
    }
