"""What results and reports show of themselves in a notebook."""

from __future__ import annotations

from html import escape

from tracelens.rendering.figures import drawn
from tracelens.rendering.formats.html import fragment
from tracelens.rendering.formats.markdown import summary_lines
from tracelens.table import VIEWS, Report, Result


@VIEWS.register("notebook")
def show(result: Result) -> None:
    """Display the figures of a result and the first rows of its tables; needs the extra `notebook`."""
    from IPython.display import HTML, display
    from plotly.graph_objects import Figure

    figures, result = drawn(result)
    for figure in figures:
        # Above the figure as in a page: inside of it a legend of several rows would lie over the title.
        title = str(figure["layout"].get("title", {}).get("text", ""))
        if title:
            display(HTML(f"<h4>{escape(title)}</h4>"))  # type: ignore[no-untyped-call]
        display(Figure(figure).update_layout(title=None))  # type: ignore[no-untyped-call]
    display(HTML(fragment(result)))  # type: ignore[no-untyped-call]


@VIEWS.register("notebook report")
def show_report(report: Report) -> None:
    """Display the verdict and the first result of a report, and the names under which it has the others."""
    from IPython.display import Markdown, display

    if report.summary is not None:
        display(Markdown("\n".join(summary_lines(report.summary))))  # type: ignore[no-untyped-call]
    first, *remaining = report.results
    show(first)
    if remaining:
        names = ", ".join(f"`{result.analyzer}`" for result in remaining)
        display(Markdown(f'Further results, each `report["name"]`: {names}.'))  # type: ignore[no-untyped-call]
