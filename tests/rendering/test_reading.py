"""Tables as people read them: one a level, and places in traces as one column."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tests.rendering import sample
from tracelens.rendering.formats import console_text
from tracelens.rendering.tables import by_level, column_formats, cut, meta_items, more, readable, with_places
from tracelens.table import Column, Report, Schema, Table

LEVELS = Schema(
    "Time",
    (
        Column("level", "category"),
        Column("name", "str"),
        Column("op", "str"),
        Column("dur_ns", "int64", "ns"),
    ),
    doc="All of it.",
    kind="levels",
)


def levelled(*counts: int) -> Table:
    """So many rows in the levels "op", "a b", "c2", ..."""
    names = ["op", "a b", *(f"c{number}" for number in range(2, len(counts)))]
    level = [name for name, count in zip(names, counts, strict=False) for _ in range(count)]
    texts = [f"row {number}" for number in range(len(level))]
    return LEVELS.table({"level": level, "name": texts, "op": texts, "dur_ns": np.arange(len(level))})


def test_each_level_is_a_table() -> None:
    parts = by_level("time", levelled(3, 2))
    assert list(parts) == ["time-op", "time-a-b"]
    first, second = parts.values()
    assert (first.schema.title, first.schema.doc, first.schema.brief) == ("Time by op", "All of it.", False)
    assert (second.schema.title, second.schema.doc, second.schema.brief) == ("Time by a b", "", True)
    assert first.schema.names == ["name", "dur_ns"]
    assert second.schema.names == ["name", "op", "dur_ns"]
    assert second.texts("name") == ["row 3", "row 4"]
    assert second.array("dur_ns").tolist() == [3, 4]


def test_a_level_of_one_row_repeats_the_whole() -> None:
    assert list(by_level("time", levelled(3, 1, 2))) == ["time-op", "time-c2"]
    assert list(by_level("time", levelled(1, 1))) == ["time-op", "time-a-b"]


def test_other_tables_stay_as_they_are() -> None:
    flat = sample.ranking("ops", "dur_ns").data["ops"]
    assert by_level("ops", flat) == {"ops": flat}
    tree = sample.diff().data["icicle"]
    assert by_level("icicle", tree) == {"icicle": tree}
    many = levelled(*[2] * 20)
    assert by_level("time", many) == {"time": many}
    none = levelled()
    assert by_level("time", none) == {"time": none}
    assert with_places(flat) is flat


def test_a_brief_table_has_a_third_of_the_rows() -> None:
    table = levelled(40)
    brief = replace(table, schema=replace(table.schema, brief=True))
    assert [cut(one, 15).count for one in (table, brief)] == [15, 5]
    assert cut(brief, 2).count == 1


def test_a_place_is_a_rank_and_a_time() -> None:
    table = with_places(sample.diff(3).data["changes"])
    assert table.schema.names == ["kind", "base", "cand", "delta_ns", "in_base", "in_cand"]
    assert table.texts("in_base")[1] == "rank 1 at 551.890 ms"
    assert table.texts("in_cand") == ["rank 0 at 57.000 ms", "", "rank 0 at 57.000 ms"]
    assert table.schema.columns[-1].doc == "the same in the candidate"
    assert "Perfetto" in table.schema.doc


def test_a_rank_or_a_time_alone_is_no_place() -> None:
    findings = sample.findings().data["findings"]
    assert with_places(findings) is findings


def test_sides_and_their_difference_have_one_unit() -> None:
    table = sample.diff(3).data["waterfall"]
    small = {**table.columns, "delta_ns": np.full(len(table), 1234)}
    changed = Table(table.schema, small)
    units = {
        name: column_formats(changed)[column.name].unit
        for name in ("base_ns", "cand_ns", "delta_ns")
        for column in table.schema.columns
        if column.name == name
    }
    assert units == {"base_ns": "ms", "cand_ns": "ms", "delta_ns": "ms"}
    assert meta_items(
        {"base_ns": 46_892_225, "cand_ns": 49_378_903, "delta_ns": 2_486_678, "gap_ns": 1500}
    ) == [
        ("base", "46.892 ms"),
        ("cand", "49.379 ms"),
        ("delta", "2.487 ms"),
        ("gap", "1.50 µs"),
    ]


def test_a_result_names_the_command_that_makes_it() -> None:
    result = sample.diff(40)
    table = readable(result)["waterfall-cause"]
    assert more(result, cut(table, 10)) == (
        "10 of 40 rows; all of them: tracelens diff BASE CAND --json or -o DIR for CSV"
    )


def test_only_the_first_table_goes_without_its_heading() -> None:
    text = console_text(Report((sample.diff(3, names=("a", "b", "c")),)), width=120)
    assert [line for line in text.splitlines() if line.startswith(("Waterfall", "What changed"))][1:] == [
        "What changed?",
        "Waterfall by cause",
        "Waterfall by stage",
        "What changed",
    ]
