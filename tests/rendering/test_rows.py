"""Cutting tables and trees."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.rendering import sample
from tracelens.rendering.tables import Tree, cut, details, for_people, more, readable, select
from tracelens.table import Column, Report, Result, Schema, Skip

SCHEMA = Schema(
    "Tree",
    (
        Column("rank", "int64"),
        Column("node", "int64"),
        Column("parent", "int64"),
        Column("name", "str"),
        Column("dur_ns", "int64", "ns"),
    ),
    kind="tree",
)


def grown(parents: list[int], sizes: list[int], ranks: int = 1) -> Tree:
    """select() on a tree whose node i has the given parent; every rank has the same numbers."""
    count = len(parents)
    data = {
        "rank": np.repeat(np.arange(ranks), count),
        "node": np.tile(np.arange(count), ranks),
        "parent": np.tile(np.array(parents, np.int64), ranks),
        "name": ["n"] * count * ranks,
        "dur_ns": np.tile(np.array(sizes, np.int64), ranks),
    }
    return select(SCHEMA.table(data), LIMIT)


LIMIT = 8


@given(st.lists(st.tuples(st.integers(-1, 30), st.integers(0, 100)), max_size=40), st.integers(1, 3))
def test_chosen_nodes_form_a_tree(nodes: list[tuple[int, int]], ranks: int) -> None:
    parents = [min(parent, index - 1) for index, (parent, _) in enumerate(nodes)]
    tree = grown(parents, [size for _, size in nodes], ranks)
    count = len(nodes)
    assert len(tree.rows) == len(set(tree.rows)) == min(count * ranks, LIMIT)
    for index, row in enumerate(tree.rows):
        parent = tree.parent[index]
        assert parent < index
        if parents[row % count] < 0:
            assert (parent, tree.depth[index]) == (-1, 0)
        else:  # the ancestors of a chosen node are chosen, in the same rank
            assert tree.rows[parent] == row - row % count + parents[row % count]
            assert tree.depth[index] == tree.depth[parent] + 1
        own = sum(parent == row % count for parent in parents)
        assert tree.left_out[index] == own - tree.parent.count(index)


def test_larger_siblings_come_first_and_the_smallest_are_left_out() -> None:
    tree = grown([-1, 0, 0, 0, 2, 2, 0, 0, 0, 0], [100, 5, 60, 20, 40, 20, 4, 3, 2, 1])
    assert tree.rows == [0, 2, 4, 5, 3, 1, 6, 7]
    assert tree.depth == [0, 1, 2, 2, 1, 1, 1, 1]
    assert tree.left_out[0] == 2


def test_a_parent_that_is_not_there_makes_a_root_and_a_cycle_loses_no_row() -> None:
    tree = grown([99, 2, 1], [5, 5, 5])
    assert sorted(tree.rows) == [0, 1, 2]
    assert tree.depth[0] == 0


def test_cut_of_a_tree_begins_with_the_name() -> None:
    result = sample.breakdown(2)
    part = cut(result.data["breakdown"], 10)
    assert [shown.column.name for shown in part.columns][:2] == ["name", "rank"]
    assert not {"node", "parent"} & {shown.column.name for shown in part.columns}
    assert part.count == 10
    assert "10 of 53 rows; the smallest are left out" in more(result, part)


def test_more_says_where_the_rest_is() -> None:
    result = sample.ranking("ops", "dur_ns", 1234)
    part = cut(result.data["ops"], 200)
    assert (
        more(result, part)
        == "200 of 1,234 rows; all of them: tracelens analyze ops PATH --json or -o DIR for CSV"
    )
    assert more(result, cut(result.data["ops"], 2000)) == ""


def test_a_result_without_any_row_says_why_and_nothing_else() -> None:
    columns = (Column("rank", "int64"),)
    empty = {
        name: Schema(name, columns, detail=name == "fine").table({"rank": []}) for name in ("plain", "fine")
    }
    silent = Result("a", "A", empty)
    assert list(readable(silent)) == ["plain"]
    assert "fine" in details(silent)
    told = replace(silent, skips=(Skip("rank 0", "nothing to see"),))
    assert readable(told) == {}
    assert details(told) == ""
    full = Schema("full", columns).table({"rank": [1]})
    assert list(readable(replace(told, data={**empty, "full": full}))) == ["plain", "full"]


def test_results_that_say_nothing_are_gathered_at_the_end() -> None:
    columns = (Column("rank", "int64"),)
    empty, full = (Schema("T", columns).table({"rank": rows}) for rows in ([], [1]))
    silent = Result(
        "a", "Silent", {"t": empty}, skips=(Skip("rank 0", "no label"), Skip("rank 1", "no label"))
    )
    spoken = Result("b", "Spoken", {"t": full}, skips=(Skip("rank 0", "half of it"),))
    report = Report((silent, spoken))
    first, last = for_people(report).results
    assert first is spoken
    assert [(skip.subject, skip.reason) for skip in last.skips] == [("Silent", "no label")]
    assert for_people(Report((silent,))).results == (silent,)
    assert for_people(Report((spoken,))).results == (spoken,)


def test_what_several_results_lack_in_part_is_gathered_for_all_ranks_together() -> None:
    table = Schema("T", (Column("rank", "int64"),)).table({"rank": [1]})

    def result(name: str, *skips: Skip) -> Result:
        return Result(name, name.title(), {"t": table}, skips=skips)

    memory = [Skip(f"rank {rank}: memory", "no events") for rank in range(4)]
    fits = [Skip(f"fit {number}", "one size") for number in range(5)]
    report = Report((result("steps", *memory), result("comm", *fits, Skip("rank 0", "alone"))))
    assert for_people(report) == report
    *spoken, gathered = for_people(report, parts=True).results
    assert tuple(spoken) == report.results
    assert [(skip.subject, skip.reason) for skip in gathered.skips] == [
        ("Steps: memory", "no events"),
        ("Comm: fit 0; fit 1; fit 2 and 2 more", "one size"),
        ("Comm", "alone"),
    ]
    assert for_people(Report(report.results[:1]), parts=True).results == report.results[:1]
