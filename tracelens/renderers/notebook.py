"""What results and reports show of themselves in a notebook."""

from __future__ import annotations

from tracelens.renderers.figures import figures
from tracelens.renderers.html import fragment
from tracelens.schema import Report, Result

_TITLE = 40
"""Height of a figure's title in pixels."""


def show(result: Result) -> None:
    """Display the figures of a result and the first rows of its tables; needs the extra `notebook`."""
    from IPython.display import HTML, display
    from plotly.graph_objects import Figure

    for figure in figures(result):
        drawn = Figure(figure)
        # In a page a figure's title stands above it.
        drawn.layout.update(
            height=drawn.layout.height + _TITLE, margin_t=(drawn.layout.margin.t or 0) + _TITLE
        )
        display(drawn)  # type: ignore[no-untyped-call]
    display(HTML(fragment(result)))  # type: ignore[no-untyped-call]


def show_report(report: Report) -> None:
    """Display the first result of a report, and the names under which it has the others."""
    from IPython.display import Markdown, display

    first, *others = report.results
    show(first)
    if others:
        names = ", ".join(f"`{one.analyzer}`" for one in others)
        display(Markdown(f'Further results, each `report["name"]`: {names}.'))  # type: ignore[no-untyped-call]
