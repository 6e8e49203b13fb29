"""Tables across ranks: medians, extremes, worst ranks; trees merged by path; cuts that leave out no rank."""

from __future__ import annotations

import re
from collections import defaultdict
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.rendering import RENDERERS
from tracelens.rendering.formats import console_text, fragment, markdown_text
from tracelens.rendering.tables import across_ranks, compared, cut, more, readable
from tracelens.table import Column, Report, Result, Schema, Table

files = RENDERERS.get("html").files


RANK = Column("rank", "int64")
KERNELS = Schema(
    "Kernels",
    (
        RANK,
        Column("name", "category"),
        Column("count", "int64", "count"),
        Column("sum_ns", "int64", "ns"),
        Column("mean_ns", "float64", "ns", intensive=True),
        Column("efficiency", "float64", "efficiency"),
        Column("note", "str", prose=True),
    ),
    leading="sum_ns",
    descending=True,
)
TREE = Schema(
    "Tree",
    (
        RANK,
        Column("node", "int64"),
        Column("parent", "int64"),
        Column("name", "category"),
        Column("dur_ns", "int64", "ns"),
    ),
    kind="tree",
)
GAPS = Schema(
    "Gaps",
    (RANK, Column("ts_ns", "int64", "ns"), Column("dur_ns", "int64", "ns"), Column("cause", "str")),
    key=(),
    leading="dur_ns",
    descending=True,
)


def across(table: Table) -> list[dict[str, Any]]:
    """The rows across ranks."""
    result = across_ranks(table)
    assert result is not None
    names = result.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*map(result.values, names), strict=True)]


def test_each_thing_is_one_row_with_its_spread() -> None:
    table = KERNELS.from_rows(
        [
            (0, "mm", 10, 100, 10.0, 0.5, "a"),
            (0, "add", 4, 40, 10.0, 0.9, ""),
            (1, "mm", 12, 160, 13.0, 0.4, "b"),
            (2, "mm", 10, 120, 12.0, 0.6, "c"),
            (2, "add", 6, 90, 15.0, 0.7, ""),
        ]
    )
    mm, add = across(table)
    assert mm == {
        "name": "mm", "ranks": 3, "sum_median_ns": 120, "sum_min_ns": 100, "sum_max_ns": 160,
        "worst_rank": 1, "spread": (160 - 100) / 160, "count": 10, "mean_ns": 12.0, "efficiency": 0.5,
        "note": "b",
    }  # fmt: skip
    # Rank 1 has no add: no time and no call of it, but no mean and no efficiency either.
    assert add == {
        "name": "add", "ranks": 2, "sum_median_ns": 40, "sum_min_ns": 0, "sum_max_ns": 90,
        "worst_rank": 2, "spread": 1.0, "count": 4, "mean_ns": 12.5, "efficiency": 0.8, "note": "",
    }  # fmt: skip


def test_of_rates_the_least_is_the_worst() -> None:
    schema = Schema("T", (RANK, Column("step", "str"), Column("mfu", "float64", "efficiency", absent=-1)))
    (row,) = across(schema.from_rows([(0, "1", 0.4), (1, "1", 0.3), (2, "1", -1.0)]))
    assert (row["mfu_median"], row["mfu_min"], row["mfu_max"]) == (0.35, 0.3, 0.4)
    assert row["worst_rank"] == 1


def test_ranks_that_are_alike_have_no_worst_and_unknown_numbers_no_spread() -> None:
    (row,) = across(KERNELS.from_rows([(rank, "mm", 1, 50, 50.0, 0.5, "") for rank in (0, 1)]))
    assert (row["worst_rank"], row["spread"]) == (-1, 0.0)
    unknown = [(rank, name, 1, ns, 1.0, 0.5, "") for rank in (0, 1) for name, ns in (("a", 7), ("b", -1))]
    assert [row["sum_max_ns"] for row in across(KERNELS.from_rows(unknown))] == [7, -1]


def test_where_absent_is_not_zero_only_ranks_with_the_row_count() -> None:
    schema = Schema(
        "Layers",
        (RANK, Column("layer", "int64"), Column("dur_ns", "int64", "ns")),
        key=("layer",),
        absent_is_zero=False,
    )
    rows = across(schema.from_rows([(0, 0, 10), (0, 1, 20), (1, 0, 30)]))
    assert [(row["layer"], row["dur_min_ns"], row["dur_median_ns"]) for row in rows] == [
        (0, 10, 20),
        (1, 20, 20),
    ]


def test_the_leading_quantity_is_one_that_is_known() -> None:
    columns = (
        RANK,
        Column("op", "str"),
        Column("dur_ns", "int64", "ns"),
        Column("recoverable_ns", "int64", "ns", absent=-1),
    )
    schema = Schema("T", columns, leading="recoverable_ns")
    known = across_ranks(schema.from_rows([(0, "a", 3, 1), (1, "a", 4, 2)]))
    assert known is not None
    assert "recoverable_median_ns" in known.columns
    no_peaks = across_ranks(schema.from_rows([(0, "a", 3, -1), (1, "a", 4, -1)]))
    assert no_peaks is not None
    assert "dur_median_ns" in no_peaks.columns


@pytest.mark.parametrize(
    "table",
    [
        KERNELS.from_rows([]),
        KERNELS.from_rows([(3, "mm", 1, 1, 1.0, 0.5, "")]),
        GAPS.from_rows([(0, 1, 5, "x"), (1, 1, 5, "x")]),
        Schema("Clocks", (RANK, Column("offset_ns", "int64", "ns"))).from_rows([(0, 1), (1, 2)]),
        Schema("Job", (Column("name", "str"), Column("dur_ns", "int64", "ns"))).from_rows([("a", 1)]),
    ],
    ids=["empty", "one rank", "events", "a row is a rank", "no rank"],
)
def test_there_may_be_nothing_to_compare(table: Table) -> None:
    assert across_ranks(table) is None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(-5, 50)), max_size=30))
def test_figures_are_those_of_a_plain_computation(rows: list[tuple[int, int, int]]) -> None:
    """Of a column that may not be unknown, -1 is a number."""
    schema = Schema("T", (RANK, Column("thing", "int64"), Column("delta_ns", "int64", "ns")), key=("thing",))
    unique = {(rank, thing): ns for rank, thing, ns in rows}
    table = schema.from_rows([(rank, thing, ns) for (rank, thing), ns in sorted(unique.items())])
    ranks = {rank for rank, _ in unique}
    if len(ranks) < 2:
        assert across_ranks(table) is None
        return
    by_thing: dict[int, dict[int, int]] = defaultdict(lambda: dict.fromkeys(ranks, 0))
    for (rank, thing), ns in unique.items():
        by_thing[thing][rank] = ns
    for row in across(table):
        values = by_thing[row["thing"]]
        assert row["delta_min_ns"] == min(values.values())
        assert row["delta_max_ns"] == max(values.values())
        assert row["delta_median_ns"] == round(median(values.values()))
        if row["worst_rank"] >= 0:
            present = {rank: ns for rank, ns in values.items() if (rank, row["thing"]) in unique}
            assert present[row["worst_rank"]] == max(present.values())


def test_trees_are_merged_by_path_and_children_add_up() -> None:
    table = TREE.from_rows(
        [
            (0, 0, -1, "step", 100),
            (0, 1, 0, "gemm", 60),
            (0, 2, 1, "mm[8]", 60),
            (0, 3, 0, "idle", 40),
            (1, 0, -1, "step", 120),
            (1, 1, 0, "idle", 80),
            (1, 2, 0, "gemm", 40),
            (1, 3, 2, "mm[9]", 40),
        ]
    )
    rows = across(table)
    assert [(row["node"], row["parent"], row["name"]) for row in rows] == [
        (0, -1, "step"),
        (1, 0, "idle"),
        (2, 0, "gemm"),
        (3, 2, "mm[8]"),
        (4, 2, "mm[9]"),
    ]
    assert [row["dur_mean_ns"] for row in rows] == [110, 60, 50, 30, 20]
    assert [row["ranks"] for row in rows] == [2, 2, 2, 1, 1]
    assert [row["worst_rank"] for row in rows] == [1, 1, 0, 0, 1]


def test_siblings_of_one_name_stay_apart() -> None:
    nodes = [(rank, node, -1, "same", 10 * (node + 1)) for rank in range(3) for node in range(2)]
    assert [row["dur_mean_ns"] for row in across(TREE.from_rows(nodes))] == [20, 10]


def test_a_cycle_is_no_tree() -> None:
    table = TREE.from_rows([(rank, node, 1 - node, "n", 5) for rank in range(2) for node in range(2)])
    assert across_ranks(table) is None


def gaps(ranks: int, rows: int) -> Table:
    """Rank 1 has the longest gaps, each rank its longest first."""
    return GAPS.from_rows(
        [
            (rank, place, 10_000 * (rank == 1) + 1000 - place, f"cause {rank}")
            for rank in range(ranks)
            for place in range(rows)
        ]
    )


def test_a_cut_of_events_has_the_longest_of_each_rank() -> None:
    part = cut(gaps(8, 200), 20)
    cells = {shown.column.name: shown.cells for shown in part.columns}
    assert np.bincount(cells["rank"]).min() == 2
    assert cells["dur_ns"] == sorted(cells["dur_ns"], reverse=True)
    assert cells["rank"][0] == 1
    assert "20 of 1,600 rows, the longest of each rank" in more(Result("idle", "Idle", {}), part)


def test_where_ranks_are_too_many_the_note_counts_those_left_out() -> None:
    part = cut(gaps(64, 3), 20)
    cells = {shown.column.name: shown.cells for shown in part.columns}
    assert len(set(cells["rank"])) == 20
    assert 1 in cells["rank"]
    note = more(Result("idle", "Idle", {}), part)
    assert "20 of 192 rows, the longest of 20 ranks; 44 ranks are left out" in note


def test_rows_in_one_order_of_all_ranks_are_cut_at_the_end() -> None:
    rows = [(rank, 0, 100 - place, "x") for place, rank in enumerate((3, 3, 3, 0, 1, 2))]
    shown = cut(GAPS.from_rows(rows), 3).columns[0]
    assert shown.cells == [3, 3, 3]


def kernels_of(ranks: int) -> Result:
    """200 kernels a rank, of which the last rank has one for itself, the largest of its own."""
    rows = [(r, f"kernel {n}", 1, 10_000 - n, 1.0, 0.5, "") for r in range(ranks) for n in range(200)]
    rows.append((ranks - 1, "only there", 1, 9_000_000, 1.0, 0.5, ""))
    rows.sort(key=lambda row: (row[0], -row[3]))
    return Result("kernels", "Kernels", {"kernels": KERNELS.from_rows(rows), "gaps": gaps(ranks, 200)})


@pytest.mark.parametrize("ranks", [8, 64])
def test_no_rank_is_absent_from_any_format_for_people(ranks: int) -> None:
    """Each rank's first rows alone would fill every table."""
    result = kernels_of(ranks)
    report = Report((result,))
    texts = {
        "console": console_text(report, width=160),
        "markdown": markdown_text(report),
        "html": files(report)["report.html"].decode(),
        "notebook": fragment(result),
    }
    for name, text in texts.items():
        assert "only there" in text, name
        shown = {int(rank) for rank in re.findall(r"cause (\d+)", text)}
        left_out = re.search(r"(\d+) ranks are left out", text)
        assert len(shown) + int(left_out[1] if left_out else 0) == ranks, name
        assert 1 in shown, name


def test_tables_for_people_are_compared_and_those_for_programs_are_not() -> None:
    result = kernels_of(3)
    assert len(compared(result)["kernels"]) == 201
    assert len(readable(result)["kernels"]) == len(result.data["kernels"]) == 601
    assert compared(result)["gaps"] is result.data["gaps"]
