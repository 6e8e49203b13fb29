"""Tables of the page that readers sort, filter and copy: how the script shows their columns, and all rows.

`assets/js/grid.js` brings them to life. What it shows of a cell equals what Python writes, so the first rows,
which stand in the page as HTML, do not change when it takes over. All rows travel as a payload that the page
unpacks when somebody looks: base64 of gzip of u32 length of the header, the header as JSON, and the arrays,
little-endian, each at a multiple of 8 bytes behind the header's end. The header is {"rows", "columns": {name:
{"type": "i1", "i2", "i4" or "f8", "at": offset, "first": value for differences, "texts": [...] for text,
"short": {index of a text: its short form} where it has one}}}. `assets/js/payload.js` reads it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.arrays import Int, distinct, ordered, unique
from tracelens.rendering.tables import (
    EFFICIENCY_BEYOND,
    across_ranks,
    column_formats,
    each_on_one_line,
    label,
    one_line,
    parent_rows,
    position_on_rank,
    readable,
    short_names,
    shown_columns,
    size_column,
)
from tracelens.table import Result, Table
from tracelens.units import EXPLAIN_ABOVE, PERCENT, SCALES

ACROSS, ROWS = "across", "rows"
_FULL_SHARE = 0.95  # of the budget, since compression is not quite in proportion to rows
_ROUNDS = 4


class Derived(NamedTuple):
    """What is derived from a table of a result."""

    across: Table | None  # the table told across ranks
    names: Mapping[str, Mapping[str, str]]  # short ones
    columns: Mapping[str, list[dict[str, Any]]]  # by view


class Interactive(Struct, frozen=True, dict=True):
    """One table of the page."""

    id: str  # of its element, and of its payload
    result: Result  # that it belongs to
    views: Mapping[str, Table]  # the table by view: `rows` as it is, `across` told across ranks, if it is
    known: Derived | None = None  # what was derived from its result before

    @property
    def first(self) -> Table:
        return self.views.get(ACROSS, self.views[ROWS])

    @cached_property
    def names(self) -> Mapping[str, Mapping[str, str]]:
        """Short names, the same in all views."""
        return self.known.names if self.known else short_names(self.views[ROWS])

    @cached_property
    def columns(self) -> Mapping[str, list[dict[str, Any]]]:
        """What the script needs to know of the shown columns, by view."""
        if self.known:
            return self.known.columns
        return {view: _columns(table) for view, table in self.views.items()} if self.is_grid else {}

    @property
    def derived(self) -> Derived:
        """What is derived from its result."""
        return Derived(self.views.get(ACROSS), self.names, self.columns)

    @property
    def is_grid(self) -> bool:
        """Whether rows are cells below headers."""
        return self.views[ROWS].schema.kind != "entries" and len(self.views[ROWS]) > 0

    def payload_id(self, view: str) -> str:
        return self.id if view == ROWS else f"{self.id}--{view}"


_INTEGERS = ("i1", "i2", "i4")


def views(result: Result, derived: Mapping[str, Derived] | None = None) -> dict[str, Interactive]:
    """The readable tables of a result, by name; `derived` is what is known of each."""
    items = {}
    for name, table in readable(result).items():
        known = derived[name] if derived else None
        across = known.across if known else across_ranks(table)
        both = {ROWS: table} if across is None else {ROWS: table, ACROSS: across}
        items[name] = Interactive(f"{result.analyzer}-{name}", result, both, known)
    return items


def page_bytes(ranks: int) -> int:
    """How large a page may be: 6 MB up to 8 ranks, 16 MB from 64 on."""
    return int(np.interp(ranks, (8, 64), (6e6, 16e6)))


def all_rows(tables: Iterable[Interactive]) -> dict[str, bytes]:
    """All rows of tables, packed, by payload id."""
    return {
        item.payload_id(view): packed(table, item.names)
        for item in tables
        if item.is_grid
        for view, table in item.views.items()
    }


def payloads(
    tables: Sequence[Interactive], budget: int, whole: Mapping[str, bytes]
) -> tuple[dict[str, bytes], dict[str, int]]:
    """Packed rows by payload id, and rows held by payload id; `whole` are those of `all_rows`.

    Where all rows together exceed the budget, the largest tables are cut to one common size, each rank of a
    table equally: the first rows of a list, the largest nodes of a tree with their ancestors.
    """
    of = {
        item.payload_id(view): _Whole(table, item.names)
        for item in tables
        for view, table in item.views.items()
    }
    held = {name: len(each.table) for name, each in of.items()}
    made = {name: whole[name] for name in of}
    share = _FULL_SHARE
    for _ in range(_ROUNDS):
        if sum(map(len, made.values())) <= budget:
            break
        # The size to which the largest must be cut for all to fit: the first one whose fair share of what the
        # smaller ones leave is less than its size.
        sizes = np.sort(np.array(list(map(len, made.values()))))
        below = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        caps = (int(budget * share) - below) // np.arange(len(sizes), 0, -1)
        cap = int(max(caps[int(np.argmax(caps < sizes))], 0))
        for name, payload in made.items():
            if len(payload) > cap:
                part = of[name].largest(int(held[name] * cap / len(payload)))
                held[name], made[name] = len(part), packed(part, of[name].names)
        share *= _FULL_SHARE
    return made, held


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
                "columns": item.columns[view],
            }
            for view, table in item.views.items()
        },
    }


def _columns(table: Table) -> list[dict[str, Any]]:
    """What the script needs to know of the columns that are shown."""
    formats = column_formats(table)
    columns = []
    for column in shown_columns(table):
        fmt = formats[column.name]
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
            made |= {
                "divisor": fmt.divisor,
                "decimals": fmt.decimals,
                "absent": column.absent,
                "unit": fmt.unit,
            }
            if column.unit in SCALES:
                made["scales"] = {scale.name: scale.size for scale in SCALES[column.unit]}
        if column.unit == "efficiency":
            note = "note" if "note" in table.columns else ""
            made["explained"] = {"above": EXPLAIN_ABOVE, "note": note, "otherwise": EFFICIENCY_BEYOND}
        columns.append(made)
    return columns


def selectable(tables: Sequence[Interactive]) -> tuple[list[int], list[str]]:
    """Ranks and steps that the page can be narrowed to, in order."""
    ranks: set[int] = set()
    steps: dict[str, None] = {}
    for item in tables:
        table = item.views[ROWS]
        if "rank" in table.columns:
            ranks.update(unique(table.array("rank")).tolist())
        if _has_steps(table):
            coded = table.coded("step")
            steps |= dict.fromkeys(one_line(coded.values[code]) for code in unique(coded.codes).tolist())
    return sorted(ranks - {-1}), [step for step in steps if step]


def _has_steps(table: Table) -> bool:
    """Whether rows belong to steps that have names."""
    return any(column.name == "step" and column.is_text for column in table.schema.columns)


class _Whole(Struct, frozen=True, dict=True):
    """A table that may be cut."""

    table: Table
    names: Mapping[str, Mapping[str, str]]  # short ones

    def largest(self, limit: int) -> Table:
        """About `limit` rows, equally many of each rank."""
        ranks = int((self._before == 0).sum())
        kept = self._before < limit // max(ranks, 1)
        if self.table.schema.kind == "tree":
            above = self._parents[kept]
            while len(above := above[(above >= 0) & ~kept[above]]):
                kept[above] = True
                above = self._parents[unique(above)]
        return self.table.take(np.flatnonzero(kept))

    @cached_property
    def _before(self) -> Int:
        """How many rows of its rank are before each row: of a tree the larger ones."""
        table = self.table
        rank = table.array("rank") if "rank" in table.columns else np.zeros(len(table), np.int64)
        size = size_column(table) if table.schema.kind == "tree" else ""
        order = ordered(-table.array(size)) if size else np.arange(len(table))
        before = np.empty(len(table), np.int64)
        before[order] = position_on_rank(rank[order])
        return before

    @cached_property
    def _parents(self) -> Int:
        return parent_rows(self.table)


def packed(table: Table, names: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> bytes:
    """The payload of a table; integers beyond 2**53 are rounded, infinities stay.

    Integers that mostly grow, such as start times, are stored as differences; texts, on one line, by
    dictionary, with their short `names` beside them.
    """
    import orjson

    blocks: list[bytes] = []
    columns: dict[str, Any] = {}
    end = 0
    for column in table.schema.columns:
        entry: dict[str, Any] = {}
        if column.is_text:
            coded = table.coded(column.name)
            used, values = distinct(coded.codes, len(coded.values))
            entry["texts"] = texts = each_on_one_line([coded.values[code] for code in used.tolist()])
            if short := names.get(column.name):
                entry["short"] = {
                    str(index): short[text] for index, text in enumerate(texts) if text in short
                }
        else:
            values = table.array(column.name)
        # The narrowest type that the page can read; of integers that mostly grow, the differences.
        if values.dtype.kind == "f":
            array = values.astype("<f8")
        else:
            numbers = values.astype(np.int64)
            steps = np.diff(numbers, prepend=numbers[:1])
            plain, delta = _width(numbers), _width(steps)
            if delta < plain:
                array, entry["first"] = steps.astype(f"<{_INTEGERS[delta]}"), int(numbers[0])
            else:
                array = numbers.astype(f"<{(*_INTEGERS, 'f8')[plain]}")
        entry |= {"type": array.dtype.str[1:], "at": end}
        block = array.tobytes()
        block += bytes(-len(block) % 8)
        end += len(block)
        blocks.append(block)
        columns[column.name] = entry
    header = orjson.dumps({"rows": len(table), "columns": columns})
    header += b" " * (-(len(header) + 4) % 8)
    return compressed(b"".join((len(header).to_bytes(4, "little"), header, *blocks)))


def compressed(content: bytes) -> bytes:
    """Base64 of gzip."""
    from isal import igzip

    return base64.b64encode(igzip.compress(content, compresslevel=3, mtime=0))


def elements(payloads: Mapping[str, bytes]) -> Iterator[bytes]:
    """The script elements that carry payloads in a page, by id: in pieces, as they are most of it."""
    for name, payload in payloads.items():
        yield b'<script type="application/octet-stream" id="payload-%b">' % name.encode()
        yield payload
        yield b"</script>\n"


def _width(numbers: NDArray[np.int64]) -> int:
    """Index into `_INTEGERS` of the narrowest type; beyond them, of a float."""
    peak = max(int(numbers.max(initial=0)), -int(numbers.min(initial=0)) - 1)
    return next((index for index, bits in enumerate((7, 15, 31)) if peak < 2**bits), len(_INTEGERS))
