"""Tables as people read them: values with units, rows, entries, tiles, findings."""

from tracelens.rendering.tables.across import (
    across_ranks,
    leading_column,
    parent_rows,
    position_on_rank,
)
from tracelens.rendering.tables.cells import Grid, grid, short_names
from tracelens.rendering.tables.rows import (
    Cut,
    ProseRow,
    ShownColumn,
    Tree,
    by_level,
    compared,
    cut,
    details,
    entries,
    for_people,
    more,
    readable,
    select,
    shown_columns,
    size_column,
    skipped,
    with_places,
)
from tracelens.rendering.tables.sections import fact_lines, finding_cards, headline
from tracelens.rendering.tables.values import (
    ABSENT,
    EFFICIENCY_BEYOND,
    ColumnFormat,
    column_formats,
    each_on_one_line,
    encodable,
    explained,
    format_for,
    heading,
    label,
    meta_items,
    one_line,
    rounded,
    shorten,
    shortened_names,
    tile_range,
    tile_value,
)
