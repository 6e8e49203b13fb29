"""Tables of the page that readers sort, filter and copy: how the script shows their columns, and all rows.

`assets/js/grid.js` brings them to life. What it shows of a cell equals what Python writes, so the first rows,
which stand in the page as HTML, do not change when it takes over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tracelens.arrays import Bool
from tracelens.rendering.payload import packed
from tracelens.rendering.tables import (
    EFFICIENCY_BEYOND,
    across_ranks,
    column_format,
    label,
    one_line,
    parent_rows,
    readable,
    short_names,
    shown_columns,
    size_column,
)
from tracelens.table import Coded, Column, Result, Table
from tracelens.units import EXPLAIN_ABOVE, PERCENT, SCALES

ACROSS, ROWS = "across", "rows"
_FULL_SHARE = 0.95  # of the budget, since compression is not quite in proportion to rows
_ROUNDS = 4


@dataclass(frozen=True)
class Interactive:
    """One table of the page.

    Attributes:
        id: of its element, and of its payload.
        result: that it belongs to.
        views: the table by view: `rows` as it is, `across` told across ranks, if it is.
    """

    id: str
    result: Result
    views: Mapping[str, Table]

    @property
    def first(self) -> Table:
        """The view that is shown first."""
        return self.views.get(ACROSS, self.views[ROWS])

    @cached_property
    def names(self) -> Mapping[str, Mapping[str, str]]:
        """Short names, the same in all views."""
        return short_names(self.views[ROWS])

    @property
    def is_grid(self) -> bool:
        """Whether rows are cells below headers."""
        return self.views[ROWS].schema.kind != "entries" and len(self.views[ROWS]) > 0

    def payload_id(self, view: str) -> str:
        return self.id if view == ROWS else f"{self.id}--{view}"


def views(result: Result) -> dict[str, Interactive]:
    """The readable tables of a result, by name."""
    made = {}
    for name, table in readable(result).items():
        across = across_ranks(table)
        both = {ROWS: table} if across is None else {ROWS: table, ACROSS: across}
        made[name] = Interactive(f"{result.analyzer}-{name}", result, both)
    return made


def page_bytes(ranks: int) -> int:
    """How large a page may be: 12 MB up to 8 ranks, 25 MB from 64 on."""
    return int(np.interp(ranks, (8, 64), (12e6, 25e6)))


def payloads(tables: Sequence[Interactive], budget: int) -> tuple[dict[str, bytes], dict[str, int]]:
    """Packed rows by payload id, and rows held by payload id.

    Where all rows together exceed the budget, the largest tables are cut to one common size, each rank of a
    table equally: the first rows of a list, the largest nodes of a tree with their ancestors.
    """
    whole = {item.payload_id(view): table for item in tables for view, table in item.views.items()}
    names = {item.payload_id(view): item.names for item in tables for view in item.views}
    held = dict(whole)
    made = {name: _packed(table, names[name]) for name, table in whole.items()}
    share = _FULL_SHARE
    for _ in range(_ROUNDS):
        if sum(map(len, made.values())) <= budget:
            break
        cap = _cap(list(map(len, made.values())), int(budget * share))
        for name, payload in made.items():
            if len(payload) > cap:
                held[name] = _largest(whole[name], int(len(held[name]) * cap / len(payload)))
                made[name] = _packed(held[name], names[name])
        share *= _FULL_SHARE
    return made, {name: len(table) for name, table in held.items()}


def specification(item: Interactive, held: Mapping[str, int]) -> dict[str, Any]:
    """What the script needs to know of a table beside its rows."""
    return {
        "title": item.result.title,
        "tree": item.views[ROWS].schema.kind == "tree",
        "command": item.result.command or f"tracelens analyze {item.result.analyzer} PATH",
        "views": {
            view: {
                "payload": item.payload_id(view),
                "rows": len(table),
                "held": held[item.payload_id(view)],
                "size": size_column(table),
                "doc": one_line(table.schema.doc),
                "ranks": "rank" in table.columns,
                "steps": _has_steps(table),
                "columns": [_column(table, column) for column in shown_columns(table)],
            }
            for view, table in item.views.items()
        },
    }


def selectable(tables: Sequence[Interactive]) -> tuple[list[int], list[str]]:
    """Ranks and steps that the page can be narrowed to, in order."""
    ranks: set[int] = set()
    steps: dict[str, None] = {}
    for item in tables:
        table = item.views[ROWS]
        if "rank" in table.columns:
            ranks.update(np.unique(table.array("rank")).tolist())
        if _has_steps(table):
            coded = table.coded("step")
            steps |= dict.fromkeys(one_line(coded.values[code]) for code in np.unique(coded.codes).tolist())
    return sorted(ranks - {-1}), [step for step in steps if step]


def _has_steps(table: Table) -> bool:
    """Whether rows belong to steps that have names."""
    return any(column.name == "step" and column.is_text for column in table.schema.columns)


def _column(table: Table, column: Column) -> dict[str, Any]:
    fmt = column_format(table, column)
    kind = "text"
    if column.dtype == "bool":
        kind = "bool"
    elif column.is_number:
        kind = "percent" if column.unit in PERCENT else "number"
    made: dict[str, Any] = {
        "name": column.name,
        "label": label(column),
        "header": fmt.header,
        "title": one_line(" - ".join(filter(None, (column.name, column.doc)))),
        "kind": kind,
    }
    if column.prose:
        made["prose"] = True
    if column.is_number:
        made |= {"divisor": fmt.divisor, "decimals": fmt.decimals, "absent": fmt.absent, "unit": fmt.unit}
        if column.unit in SCALES:
            made["scales"] = {scale.name: scale.size for scale in SCALES[column.unit]}
    if column.unit == "efficiency":
        note = "note" if "note" in table.columns else ""
        made["explained"] = {"above": EXPLAIN_ABOVE, "note": note, "otherwise": EFFICIENCY_BEYOND}
    return made


def _packed(table: Table, names: Mapping[str, Mapping[str, str]]) -> bytes:
    """The payload: texts on one line, and beside long ones their short form."""
    columns = dict(table.columns)
    short = {}
    for column in table.schema.columns:
        if column.is_text:
            coded = table.coded(column.name)
            texts = list(map(one_line, coded.values))
            columns[column.name] = Coded(coded.codes, texts)
            if shorter := names.get(column.name):
                short[column.name] = [shorter.get(text, text) for text in texts]
    return packed(replace(table, columns=columns), short)


def _cap(sizes: list[int], budget: int) -> int:
    """The size to which the largest must be cut for all to fit."""
    ordered = np.sort(np.array(sizes))
    below = np.concatenate(([0], np.cumsum(ordered)[:-1]))
    caps = (budget - below) // np.arange(len(ordered), 0, -1)
    # The first whose fair share of what the smaller ones leave is less than its size.
    return int(max(caps[int(np.argmax(caps < ordered))], 0))


def _largest(table: Table, limit: int) -> Table:
    """About `limit` rows, equally many of each rank."""
    rank = table.array("rank") if "rank" in table.columns else np.zeros(len(table), np.int64)
    number = len(np.unique(rank))
    most = limit // max(number, 1)
    tree = table.schema.kind == "tree"
    size = size_column(table)
    order = np.lexsort((-table.array(size), rank)) if tree and size else np.argsort(rank, kind="stable")
    by_rank = rank[order]
    first = np.searchsorted(by_rank, by_rank)
    kept: Bool = np.zeros(len(table), np.bool_)
    kept[order[np.arange(len(table)) - first < most]] = True
    if tree:
        parents = parent_rows(table)
        above = parents[kept]
        while len(above := above[(above >= 0) & ~kept[above]]):
            kept[above] = True
            above = parents[np.unique(above)]
    return table.take(kept)
