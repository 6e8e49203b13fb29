"""Tables as people read them: values with units, rows, entries, tiles, findings."""

from tracelens.rendering.tables.across import across_ranks
from tracelens.rendering.tables.cells import Grid, grid
from tracelens.rendering.tables.entries import Entry, entries
from tracelens.rendering.tables.findings import FindingCard, finding_cards
from tracelens.rendering.tables.headlines import headline
from tracelens.rendering.tables.names import shortened_names
from tracelens.rendering.tables.rows import (
    Cut,
    ShownColumn,
    Tree,
    compared,
    cut,
    details,
    for_people,
    more,
    readable,
    select,
    skipped,
)
from tracelens.rendering.tables.tiles import tile_range, tile_value
from tracelens.rendering.tables.values import (
    ColumnFormat,
    encodable,
    explained,
    meta_items,
    one_line,
    shorten,
)

__all__ = [
    "ColumnFormat",
    "Cut",
    "Entry",
    "FindingCard",
    "Grid",
    "ShownColumn",
    "Tree",
    "across_ranks",
    "compared",
    "cut",
    "details",
    "encodable",
    "entries",
    "explained",
    "finding_cards",
    "for_people",
    "grid",
    "headline",
    "meta_items",
    "more",
    "one_line",
    "readable",
    "select",
    "shorten",
    "shortened_names",
    "skipped",
    "tile_range",
    "tile_value",
]
