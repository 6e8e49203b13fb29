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
from collections.abc import Iterator, Mapping
from typing import Any

from tracelens.rendering.figures import Figure, drawn
from tracelens.rendering.formats.fragment import as_section, choices, part
from tracelens.rendering.formats.json import dumps
from tracelens.rendering.formats.markdown import summary_lines
from tracelens.rendering.image import WIDTH, NoImages, png
from tracelens.rendering.tables import readable
from tracelens.table import VIEWS, Report, Result

_IMAGES = {"png", "svg", "jpg", "jpeg", "pdf"}
_INK, _LINE = "#717b87", "rgba(125, 135, 150, 0.25)"  # legible on light and dark notebooks

_MENU_HEIGHT = 40
_ABOVE = {
    "x": 0,
    "xanchor": "left",
    "y": 1,
    "yanchor": "bottom",
    "pad": {"b": 26},
}  # of the plot and its legend


@VIEWS.register("notebook")
def show(result: Result) -> None:
    """Display the figures of a result and the first rows of its tables; needs the extra `notebook`."""
    from IPython.display import HTML, display

    if _in_terminal():
        raise NotImplementedError  # IPython shows the repr
    figures, result = drawn(result)
    section = as_section(result)
    grids = dict(zip(readable(result), section.grids, strict=True))
    more = {} if _is_static() else choices(result)
    for index, (names, figure) in enumerate(_in_order(figures, list(grids))):
        html = part(
            section,
            [grids[name] for name in names],
            first=index == 0,
            last=figure is None,
            figure_title=_title(figure) if figure else "",
            choices=[more.get(name, []) for name in names],
        )
        display(HTML(html))  # type: ignore[no-untyped-call]
        if figure:
            _show_figure(figure)


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


def _show_figure(figure: Figure) -> None:
    """Display a figure without its title, which stands above: a legend of several rows would lie over it."""
    from IPython.display import display

    layout = {key: value for key, value in figure["layout"].items() if key != "title"}
    untitled = {"data": figure["data"], "layout": layout}
    forms: dict[str, Any] = {"text/plain": f"Figure: {_title(figure)}"}
    metadata: dict[str, Any] = {"tracelens": {"figure": f"{zlib.crc32(dumps(untitled)):08x}"}}
    image = _image(untitled)
    if image is not None:
        forms["image/png"] = base64.b64encode(image).decode()
        metadata["image/png"] = {"width": WIDTH, "height": layout["height"]}
    if image is None or not _is_static():
        forms |= _interactive(untitled)
    display(forms, raw=True, metadata=metadata)  # type: ignore[no-untyped-call]


def _interactive(figure: Figure) -> Mapping[str, Any]:
    """The forms of a figure that run scripts, as plotly's renderer makes them."""
    from plotly.graph_objects import Figure as PlotlyFigure

    axis = {"gridcolor": _LINE, "linecolor": _LINE}
    template = {"layout": {"font": {"color": _INK}, "xaxis": axis, "yaxis": axis}}
    layout = {**figure["layout"], "template": template}
    if menus := layout.get("updatemenus"):
        # Above the legend; their own place is in the middle of the labels.
        layout["updatemenus"] = [{**menu, **_ABOVE} for menu in menus]
        layout["margin"] = {**layout["margin"], "t": layout["margin"]["t"] + _MENU_HEIGHT}
        layout["height"] += _MENU_HEIGHT
    forms: Mapping[str, Any] = PlotlyFigure({**figure, "layout": layout})._repr_mimebundle_()
    return {name: content for name, content in forms.items() if name != "image/png"}


def _image(figure: Figure) -> bytes | None:
    """The figure as PNG; None where that cannot be made, with one warning for the whole session."""
    try:
        return png(figure)
    except NoImages as reason:
        if not _WARNED:
            _WARNED.append(str(reason))
            warnings.warn(f"Figures will be missing on GitHub and in exports: {reason}", stacklevel=2)
        return None


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
