"""One result as HTML for a notebook's cell: the first rows of its tables, and what readers can turn to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens.rendering.formats.html import Section, asset, environment, inert, section
from tracelens.rendering.formats.json import dumps
from tracelens.rendering.interactive import ROWS, views
from tracelens.rendering.tables import Grid, grid
from tracelens.table import VIEWS, Result, Table

FIRST_ROWS = 20
"""Rows of a table that stand in a notebook as HTML, and the rows of a page that readers turn to."""
_MORE_ROWS = 200  # of a table that a notebook holds for readers to turn to; as many again for single ranks
_RANKS = 64

Choice = dict[str, str]
"""Another view of a table: `label`, `html` and the `note` below."""


@VIEWS.register("html")
def fragment(result: Result) -> str:
    """One result as HTML for a notebook cell: title, the first rows of each table, and what was skipped."""
    of_result = as_section(result)
    return part(of_result, of_result.grids)


def as_section(result: Result) -> Section:
    """A result as a notebook shows it."""
    return section(result, views(result), FIRST_ROWS, controls=False)


def part(
    of_result: Section,
    grids: Sequence[Grid],
    *,
    first: bool = True,
    last: bool = True,
    figure_title: str = "",
    choices: Sequence[Sequence[Choice]] = (),
) -> str:
    """Some tables of a section: an output of its own, where a figure stands behind it.

    Args:
        of_result: the section.
        grids: the tables.
        first: begin with the title of the section.
        last: end with what was skipped.
        figure_title: of the figure that follows.
        choices: of each of the grids what readers can turn to, where scripts run.
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
        ranks = np.unique(rows.array("rank")) if "rank" in rows.columns else np.zeros(0, np.int64)
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
