"""`tracelens list`: what is registered."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    """What can be listed."""

    analyzers = "analyzers"
    parsers = "parsers"
    renderers = "renderers"


def listing(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
) -> None:
    """List analyzers, parsers or renderers, with one line on each.

    For example:

    tracelens list analyzers
    """
    rows = _rows(kind)
    width = max(len(name) for name, _ in rows)
    for name, doc in rows:
        typer.echo(f"{name:{width}}  {doc}")


def _rows(kind: Kind) -> list[tuple[str, str]]:
    if kind is Kind.analyzers:
        from tracelens.analyzers import in_order

        return [(item.name, item.doc) for item in in_order()]
    if kind is Kind.parsers:
        from tracelens.parsers import PARSERS

        return [(name, item.doc) for name, item in PARSERS.items()]
    from tracelens.renderers import RENDERERS

    return [(name, item.doc) for name, item in RENDERERS.items()]
