"""Nesting against a plain O(n^2) model, and the sums over subtrees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import draw
from tracelens.table import ancestor_sums, nearest, subtree_sums
from tracelens.trace import nest
from tracelens.trace.links import TOLERANCE_NS

pytestmark = pytest.mark.usefixtures("each_core")

# (thread, start, length, rank); in units of half the tolerance, so that some overruns are within it.
UNIT = TOLERANCE_NS // 2
spans = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 16), st.integers(0, 9), st.integers(0, 2)), max_size=12
)
Span = tuple[int, int, int, int]


def nested(spans: list[Span]) -> tuple[list[int], list[int]]:
    table = np.array(spans, dtype=np.int64).reshape(-1, 4)
    thread, start, length, rank = table.T
    parent, depth = nest(thread, start * UNIT, (start + length) * UNIT, rank)
    return parent.tolist(), depth.tolist()


def model(spans: list[Span]) -> tuple[list[int], list[int]]:
    """The latest event that began before this one and lasts until its end."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], spans[i][1], -spans[i][2], spans[i][3], i))
    parent, depth = [-1] * len(spans), [0] * len(spans)

    def contains(outer: Span, inner: Span) -> bool:
        outer_end, inner_end = (outer[1] + outer[2]) * UNIT, (inner[1] + inner[2]) * UNIT
        begin = inner[1] * UNIT
        runs = begin < outer_end or begin == inner_end == outer_end
        return outer[0] == inner[0] and runs and inner_end <= outer_end + TOLERANCE_NS

    for index, row in enumerate(order):
        for outer in reversed(order[:index]):
            if contains(spans[outer], spans[row]):
                parent[row], depth[row] = outer, depth[outer] + 1
                break
    return parent, depth


@given(spans)
def test_nest_against_the_model(spans: list[Span]) -> None:
    assert nested(spans) == model(spans)


@given(spans)
def test_order_of_rows_does_not_matter_where_extents_differ(spans: list[Span]) -> None:
    distinct = list({span[:3]: span for span in spans}.values())
    parent, depth = nested(distinct)
    back_parent, back_depth = nested(distinct[::-1])
    last = len(distinct) - 1
    assert [last - p if p >= 0 else -1 for p in reversed(back_parent)] == parent
    assert back_depth[::-1] == depth


def test_a_child_may_overrun_its_parent_a_little() -> None:
    zero = np.zeros(2, dtype=np.int64)
    start = np.array([0, 500])
    for overrun, want in ((TOLERANCE_NS, 0), (TOLERANCE_NS + 1, -1)):
        parent, _ = nest(zero, start, np.array([10_000, 10_000 + overrun]), zero)
        assert parent.tolist() == [-1, want]


def test_a_step_that_crosses_a_frame() -> None:
    #  f  0-10            the frame in which the step begins: takes no more children after 4
    #  S      4-20        the step: not inside f, so a sibling of it
    #  c        5-9       in S, though f still runs
    #  g            12-18 the frame in which it ends
    start, end = np.array([0, 4, 5, 12]) * 1000, np.array([10, 20, 9, 18]) * 1000
    parent, depth = nest(np.zeros(4, dtype=np.int64), start, end, np.zeros(4, dtype=np.int64))
    assert parent.tolist() == [-1, -1, 1, 1]
    assert depth.tolist() == [0, 0, 1, 1]


def test_the_lower_rank_is_outside_where_extents_are_equal() -> None:
    same = np.full(3, 7)
    parent, depth = nest(np.zeros(3, dtype=np.int64), same, same + 5, np.array([2, 0, 1]))
    assert parent.tolist() == [2, -1, 1]
    assert depth.tolist() == [2, 0, 1]


def test_kinds_of_equal_extent_nest_from_python_to_launch() -> None:
    trace = draw("""
        launch      | aaaa
        op aten::mm | ----
        scope fwd   | ----
        python f    | ----
        s7 k        |     a
    """)
    names = trace.events["name"].astype(str).tolist()
    parent = trace.tables["events"].array("parent_id").tolist()
    assert [names[row] if row >= 0 else "" for row in parent] == ["aten::mm", "fwd", "f", "", ""]


def test_threads_do_not_nest_into_each_other() -> None:
    trace = draw("""
        op a tid=1 | --------
        op b tid=2 |   ---
        op c tid=1 |    --
    """)
    assert trace.tables["events"].array("parent_id").tolist() == [-1, -1, 0]


def test_gpu_work_and_gpu_annotations_do_not_nest() -> None:
    trace = draw("""
        gpu region | --------
        s7 k       |  ---
        s7 k       |   =
    """)
    assert trace.tables["events"].array("parent_id").tolist() == [-1, -1, -1]
    assert trace.events["depth"].tolist() == [0, 0, 0]


@given(spans, st.lists(st.booleans(), min_size=12, max_size=12))
def test_nearest_climbs_to_the_chosen(spans: list[Span], chosen: list[bool]) -> None:
    parent, depth = nested(spans)
    mask = np.array(chosen[: len(spans)], dtype=bool)
    got = nearest(np.array(parent, dtype=np.int64), np.array(depth, dtype=np.int64), mask)
    for row in range(len(spans)):
        ancestor = row
        while ancestor >= 0 and not mask[ancestor]:
            ancestor = parent[ancestor]
        assert got[row] == ancestor


@given(spans, st.lists(st.integers(0, 5), min_size=12, max_size=12), st.booleans())
def test_ancestor_sums(spans: list[Span], numbers: list[int], parents_first: bool) -> None:
    parent, values = (
        np.array(nested(spans)[0], dtype=np.int64),
        np.array(numbers[: len(spans)], dtype=np.int64),
    )
    if not parents_first:
        parent, values = np.where(parent < 0, -1, len(parent) - 1 - parent)[::-1], values[::-1]
    before = values.tolist()
    want = []
    for row in range(len(spans)):
        total, ancestor = 0, row
        while ancestor >= 0:
            total, ancestor = total + before[ancestor], int(parent[ancestor])
        want.append(total)
    assert ancestor_sums(parent, values).tolist() == want
    assert values.tolist() == before, "the argument was changed"


@given(spans, st.lists(st.integers(0, 5), min_size=12, max_size=12))
def test_subtree_sums(spans: list[Span], numbers: list[int]) -> None:
    parent, depth = nested(spans)
    values = np.array(numbers[: len(spans)], dtype=np.int64)
    want = [0] * len(spans)
    for row in range(len(spans)):
        ancestor = row
        while ancestor >= 0:
            want[ancestor] += numbers[row]
            ancestor = parent[ancestor]
    got = subtree_sums(np.array(parent, dtype=np.int64), np.array(depth, dtype=np.int64), values)
    assert got.tolist() == want
    assert values.tolist() == numbers[: len(spans)], "the argument was changed"
