"""Tables as people read them: values with units, rows, cards, entries."""

from tracelens.rendering.tables.cards import cards
from tracelens.rendering.tables.cells import Grid, grid
from tracelens.rendering.tables.entries import Entry, entries
from tracelens.rendering.tables.rows import (
    Cut,
    Tree,
    cut,
    details,
    for_people,
    more,
    readable,
    select,
    skipped,
)
from tracelens.rendering.tables.values import (
    PERCENT,
    ColumnFormat,
    column_format,
    encodable,
    is_text,
    meta_items,
    one_line,
    shorten,
    values,
)

__all__ = [
    "PERCENT",
    "ColumnFormat",
    "Cut",
    "Entry",
    "Grid",
    "Tree",
    "cards",
    "column_format",
    "cut",
    "details",
    "encodable",
    "entries",
    "for_people",
    "grid",
    "is_text",
    "meta_items",
    "more",
    "one_line",
    "readable",
    "select",
    "shorten",
    "skipped",
    "values",
]
