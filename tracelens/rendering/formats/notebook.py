"""What results and reports show of themselves in a notebook.

Each figure stands in front of its table, in an output of its own with several forms of it: plotly's, which
Jupyter and VS Code show, and a PNG for GitHub and nbconvert, which run no scripts. With plotly's renderer
"png" (`plotly.io.renderers.default`, PLOTLY_RENDERER) the PNG stands alone and tables keep their first rows:
the notebook is small enough to be committed.
"""

from __future__ import annotations

import base64
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.arrays import unique
from tracelens.rendering.figures import Figure, drawn
from tracelens.rendering.formats.html import PageSection, asset, grids, inert, section
from tracelens.rendering.formats.json import dumps
from tracelens.rendering.formats.markdown import summary_lines
from tracelens.rendering.interactive import ROWS, views
from tracelens.rendering.tables import Grid, grid, readable
from tracelens.rendering.templates import environment
from tracelens.table import VIEWS, Report, Result, Table

_IMAGES = {"png", "svg", "jpg", "jpeg", "pdf"}
_INK, _LINE = "#717b87", "rgba(125, 135, 150, 0.25)"  # legible on light and dark notebooks

_MENU_HEIGHT = 40
_ABOVE = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": 26}}  # the plot and its legend

FIRST_ROWS = 20
"""Rows of a table that stand in a notebook as HTML, and the rows of a page that readers turn to."""
_MORE_ROWS = 200  # of a table that a notebook holds for readers to turn to; as many again for single ranks
_RANKS = 64

Choice = dict[str, str]
"""Another view of a table: `label`, `html` and the `note` below."""


@VIEWS.register("notebook")
def show(result: Result) -> None:
    """Display the figures of a result and the first rows of its tables; needs the extra `notebook`."""
    from IPython.display import HTML, display

    if _in_terminal():
        raise NotImplementedError  # IPython shows the repr
    figures, result = drawn(result)
    of_result = _section(result)
    grids = dict(zip(readable(result), of_result.grids, strict=True))
    more = {} if _is_static() else choices(result)
    for index, (names, figure) in enumerate(_in_order(figures, list(grids))):
        html = _part(
            of_result,
            [grids[name] for name in names],
            first=index == 0,
            last=figure is None,
            figure_title=_title(figure) if figure else "",
            choices=[more.get(name, []) for name in names],
        )
        display(HTML(html))  # type: ignore[no-untyped-call]
        if figure:
            forms, metadata = _forms(figure)
            display(forms, raw=True, metadata=metadata)  # type: ignore[no-untyped-call]


@VIEWS.register("notebook report")
def show_report(report: Report) -> None:
    """Display the verdict and the first result of a report, and the names under which it has the others."""
    from IPython.display import Markdown, display

    if _in_terminal():
        raise NotImplementedError
    if report.summary is not None:
        display(Markdown("\n".join(summary_lines(report.summary))))  # type: ignore[no-untyped-call]
    first, *remaining = report.results
    show(first)
    if remaining:
        names = ", ".join(f"`{result.analyzer}`" for result in remaining)
        display(Markdown(f'Further results, each `report["name"]`: {names}.'))  # type: ignore[no-untyped-call]


def _in_order(figures: list[Figure], tables: list[str]) -> Iterator[tuple[list[str], Figure | None]]:
    """Names of tables that stand together, and the figure that follows; None follows the last ones.

    A figure stands in front of its table; one whose table is not shown behind the figure before it.
    """
    by_table: dict[str, list[Figure]] = {}
    name = tables[0] if tables else ""
    for figure in figures:
        table = figure.get("table", tables[0] if tables else "")
        name = table if table in tables else name
        by_table.setdefault(name, []).append(figure)
    for figure in by_table.get("", []):
        yield [], figure
    together: list[str] = []
    for name in tables:
        for figure in by_table.get(name, []):
            yield together, figure
            together = []
        together.append(name)
    yield together, None


@VIEWS.register("html")
def fragment(result: Result) -> str:
    """One result as HTML for a notebook cell: title, the first rows of each table, and what was skipped."""
    of_result = _section(result)
    return _part(of_result, of_result.grids)


def _section(result: Result) -> PageSection:
    return section(result, grids(result, views(result), FIRST_ROWS, controls=False))


def _part(
    of_result: PageSection,
    grids: Sequence[Grid],
    *,
    first: bool = True,
    last: bool = True,
    figure_title: str = "",
    choices: Sequence[Sequence[Choice]] = (),
) -> str:
    """Some tables of a section: an output of its own, where a figure stands behind it.

    The first one begins with the title of the section, the last one ends with what was skipped. `choices` is
    what readers can turn to in each of the grids, where scripts run.
    """
    return (
        environment()
        .get_template("fragment.html.j2")
        .render(
            section=of_result,
            grids=grids,
            first=first,
            last=last,
            figure_title=figure_title,
            css=asset("table.css") + asset("fragment.css") if first else "",
            choices=inert(dumps(choices)).decode() if any(choices) else "",
            script=asset("js/notebook.js"),
        )
    )


def choices(result: Result) -> dict[str, list[Choice]]:
    """Of each table of a result what a reader can turn to: more rows, and those of single ranks."""
    made: dict[str, list[Choice]] = {}
    for name, item in views(result).items():
        made[name] = []
        if not item.is_grid:
            continue
        rows = item.views[ROWS]
        ranks = unique(rows.array("rank")) if "rank" in rows.columns else np.zeros(0, np.int64)
        several = 1 < len(ranks) <= _RANKS
        # The largest nodes of a tree are others for every number of them: it has one page.
        more_rows = len(item.first) > FIRST_ROWS and rows.schema.kind != "tree"
        if more_rows or several:
            limit = _MORE_ROWS if more_rows else FIRST_ROWS
            made[name].append(_choice(result, name, item.first, "all ranks", limit))
        for rank in ranks if several else ():
            of_rank = rows.take(rows.array("rank") == rank)
            made[name].append(_choice(result, name, of_rank, f"rank {rank}", _MORE_ROWS // len(ranks)))
    return made


def _choice(result: Result, name: str, table: Table, label: str, limit: int) -> Choice:
    limit = FIRST_ROWS if table.schema.kind == "tree" else max(limit, FIRST_ROWS)
    shown = grid(result, name, table, limit, buttons=False)
    html = f"<table><thead><tr>{shown.head}</tr></thead><tbody>{shown.body}</tbody></table>"
    return {"label": label, "html": html, "note": shown.note}


def _forms(figure: Figure) -> tuple[dict[str, Any], dict[str, Any]]:
    """The forms of a figure by MIME type, and their metadata.

    They lack the title, which stands above: a legend of several rows would lie over it.
    """
    from tracelens.rendering.image import WIDTH, NoImages, png  # it takes asyncio, which no report needs

    layout = {key: value for key, value in figure["layout"].items() if key != "title"}
    untitled = {"data": figure["data"], "layout": layout}
    forms: dict[str, Any] = {"text/plain": f"Figure: {_title(figure)}"}
    metadata: dict[str, Any] = {"tracelens": {"figure": f"{zlib.crc32(dumps(untitled)):08x}"}}
    image = None
    try:
        image = png(untitled)
    except NoImages as reason:
        # One warning for the whole session.
        if not _WARNED:
            _WARNED.append(str(reason))
            warnings.warn(f"Figures will be missing on GitHub and in exports: {reason}", stacklevel=2)
    if image is not None:
        forms["image/png"] = base64.b64encode(image).decode()
        metadata["image/png"] = {"width": WIDTH, "height": layout["height"]}
    if image is None or not _is_static():
        # The forms that run scripts, as plotly's renderer makes them.
        from plotly.graph_objects import Figure as PlotlyFigure

        axis = {"gridcolor": _LINE, "linecolor": _LINE}
        template = {"layout": {"font": {"color": _INK}, "xaxis": axis, "yaxis": axis}}
        styled = {**layout, "template": template}
        if menus := styled.get("updatemenus"):
            # Above the legend; their own place is in the middle of the labels.
            styled["updatemenus"] = [{**menu, **_ABOVE} for menu in menus]
            styled["margin"] = {**layout["margin"], "t": layout["margin"]["t"] + _MENU_HEIGHT}
            styled["height"] += _MENU_HEIGHT
        bundle: Mapping[str, Any] = PlotlyFigure({**untitled, "layout": styled})._repr_mimebundle_()
        forms |= {name: content for name, content in bundle.items() if name != "image/png"}
    return forms, metadata


_WARNED: list[str] = []


def _is_static() -> bool:
    """Whether the user's plotly renderer is one of images."""
    import plotly.io

    return set(plotly.io.renderers.default.split("+")) <= _IMAGES


def _in_terminal() -> bool:
    """Whether IPython runs in a terminal, which shows text only."""
    from IPython.core.getipython import get_ipython
    from IPython.terminal.interactiveshell import TerminalInteractiveShell

    return isinstance(get_ipython(), TerminalInteractiveShell)


def _title(figure: Figure) -> str:
    return str(figure["layout"].get("title", {}).get("text", ""))
