"""Interval sums against a model that keeps every single nanosecond in a set."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.trace import Union, clip, exclusive, exclusive_pieces, interval_of, shares, union
from tracelens.trace.intervals import subtract

Pairs = list[tuple[int, int]]
Int = np.ndarray

# Small numbers, so that touching, nested and equal intervals come up all the time; length 0 included.
pairs = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12).map(
    lambda spans: [(start, start + length) for start, length in spans]
)
grouped = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(0, 4)), max_size=14)


def columns(spans: Pairs) -> tuple[Int, Int]:
    table = np.array(spans, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def points(spans: Pairs) -> set[int]:
    return {time for start, end in spans for time in range(start, end)}


def as_set(spans: Union) -> set[int]:
    return points(list(zip(spans.start.tolist(), spans.end.tolist(), strict=True)))


@given(pairs)
def test_union_covers_the_same_points(spans: Pairs) -> None:
    got = union(*columns(spans))
    assert as_set(got) == points(spans)
    assert got.total == len(points(spans))


@given(pairs)
def test_union_is_sorted_and_does_not_touch(spans: Pairs) -> None:
    got = union(*columns(spans))
    assert (got.end > got.start).all()
    assert (got.start[1:] > got.end[:-1]).all()


def test_union_leaves_out_inverted_intervals() -> None:
    got = union(np.array([5, 1]), np.array([3, 2]))
    assert (got.start.tolist(), got.end.tolist()) == ([1], [2])


@given(pairs)
def test_gaps_are_the_holes(spans: Pairs) -> None:
    inside = points(spans)
    holes = {time for time in range(min(inside), max(inside)) if time not in inside} if inside else set()
    assert as_set(union(*columns(spans)).gaps()) == holes


@given(pairs, pairs)
def test_covered(spans: Pairs, windows: Pairs) -> None:
    inside = points(spans)
    got = union(*columns(spans)).covered(*columns(windows))
    assert got.tolist() == [len(points([pair]) & inside) for pair in windows]


@given(pairs, st.lists(st.integers(-3, 45), max_size=6))
def test_covered_before(spans: Pairs, times: list[int]) -> None:
    got = union(*columns(spans)).covered_before(np.array(times, dtype=np.int64))
    assert got.tolist() == [sum(point < time for point in points(spans)) for time in times]


@given(pairs, st.lists(pairs, max_size=3))
def test_subtract(spans: Pairs, removed: list[Pairs]) -> None:
    left = points(spans).difference(*(points(other) for other in removed))
    assert subtract(union(*columns(spans)), *(union(*columns(other)) for other in removed)) == len(left)


@given(pairs, st.integers(-2, 40), st.integers(0, 20))
def test_clip(spans: Pairs, low: int, length: int) -> None:
    start, end = clip(*columns(spans), low, low + length)
    assert (end >= start).all()
    kept = [points([pair]) & set(range(low, low + length)) for pair in spans]
    assert [points([pair]) for pair in zip(start.tolist(), end.tolist(), strict=True)] == kept


def owners(spans: list[tuple[int, int, int]]) -> Counter[int]:
    """Row to nanoseconds: each point goes to who started first in its group; of equals to the earlier."""
    share: Counter[int] = Counter()
    for group in {g for _, _, g in spans}:
        for time in range(50):
            running = [
                (start, row)
                for row, (start, length, g) in enumerate(spans)
                if g == group and start <= time < start + length
            ]
            if running:
                share[min(running)[1]] += 1
    return share


def arrays(spans: list[tuple[int, int, int]]) -> tuple[Int, Int, Int]:
    table = np.array(spans, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 0] + table[:, 1], table[:, 2]


@given(grouped)
def test_exclusive_gives_each_point_to_who_started_first(spans: list[tuple[int, int, int]]) -> None:
    start, end, group = arrays(spans)
    own = exclusive(start, end, group)
    want = owners(spans)
    assert (end - own).tolist() == [want[row] for row in range(len(spans))]
    assert ((own >= start) & (own <= end)).all()


@given(grouped)
def test_exclusive_where_one_number_would_overflow(spans: list[tuple[int, int, int]]) -> None:
    # Groups so far apart that lifting one above the other leaves int64: they are halved until it fits.
    start, end, group = arrays(spans)
    wide = exclusive(start << 40, end << 40, group << 20)
    assert (wide >> 40).tolist() == exclusive(start, end, group).tolist()


def test_exclusive_of_groups_in_four_bytes() -> None:
    """Lifted by their groups, times need eight."""
    start, end = np.array([0, 1 << 29, 1 << 29]), np.array([1 << 30, 1 << 30, 1 << 30])
    group = np.array([0, 0, 7], dtype=np.int32)
    assert exclusive(start, end, group).tolist() == [0, 1 << 30, 1 << 29]


def test_exclusive_in_one_group_over_a_century() -> None:
    # One broken time stamp makes the span as long as int64 allows; a single group needs no lifting.
    start, end = np.array([0, 5, (1 << 62) - 2]), np.array([10, 20, 1 << 62])
    assert exclusive(start, end, np.zeros(3, dtype=np.int64)).tolist() == [0, 10, (1 << 62) - 2]


@given(st.lists(st.tuples(st.integers(5, 30), st.integers(0, 8), st.integers(0, 3)), max_size=12),
       st.lists(st.integers(0, 45), min_size=2, max_size=5))  # fmt: skip
def test_shares_against_every_point(spans: list[tuple[int, int, int]], borders: list[int]) -> None:
    edges = np.array(sorted(borders))
    start, end, priority = arrays(spans)
    row, window, dur = shares(start, end, priority, edges)
    want: Counter[tuple[int, int]] = Counter()
    for time in range(int(edges[0]), int(edges[-1])):
        running = [(p, s, r) for r, (s, length, p) in enumerate(spans) if s <= time < s + length]
        if running:
            place = int(np.searchsorted(edges, time, side="right")) - 1
            want[min(running)[2], place] += 1
    got = Counter({(r, w): d for r, w, d in zip(row.tolist(), window.tolist(), dur.tolist(), strict=True)})
    assert +got == want
    assert len(set(zip(row.tolist(), window.tolist(), strict=True))) == len(row), "a pair came twice"
    assert (dur >= 0).all()


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(0, 2)), min_size=1, max_size=12))
def test_shares_names_every_interval(spans: list[tuple[int, int, int]]) -> None:
    # Work without extent has no share, but it has been there: at any border, the last one included.
    start, end, priority = arrays(spans)
    low, high = int(start.min()), int(end.max())
    row, _, _ = shares(start, end, priority, np.array([low, (low + high) // 2, max(high, low + 1)]))
    assert set(row.tolist()) == set(range(len(spans)))


@given(grouped)
def test_exclusive_pieces_are_what_shares_adds_up(spans: list[tuple[int, int, int]]) -> None:
    start, end = columns([(low, low + length) for low, length, _ in spans])
    priority = np.array([level for _, _, level in spans], dtype=np.int64)
    row, low, high = exclusive_pieces(start, end, priority)
    assert (high > low).all()
    assert (low[1:] >= high[:-1]).all()
    assert ((low >= start[row]) & (high <= end[row])).all()
    borders = np.array([0, 100])
    share_row, _, dur = shares(start, end, priority, borders)
    spent, want = (np.zeros(len(spans), dtype=np.int64) for _ in range(2))
    np.add.at(spent, row, high - low)
    np.add.at(want, share_row, dur)
    assert spent.tolist() == want.tolist()


def test_shares_by_hand() -> None:
    #     0  1  2  3  4  5  6  7  8  9 10 11        windows [0, 6) and [6, 12)
    # 0   [--------------)                           priority 0: 0-5 is its own
    # 1         [--------------------)               priority 0: 3-10, but 0 started first: 5-10
    # 2      [-----------------------------)         priority 1: 1-12, minus 0-10: 10-12
    start, end = np.array([0, 3, 1]), np.array([5, 10, 12])
    row, window, dur = shares(start, end, np.array([0, 0, 1]), np.array([0, 6, 12]))
    got = {(r, w): d for r, w, d in zip(row.tolist(), window.tolist(), dur.tolist(), strict=True)}
    assert got == {(0, 0): 5, (1, 0): 1, (1, 1): 4, (2, 0): 0, (2, 1): 2}


@pytest.mark.parametrize("function", [union, exclusive])
def test_nothing(function: object) -> None:
    empty = np.empty(0, dtype=np.int64)
    if function is union:
        assert union(empty, empty).total == 0
        assert union(empty, empty).gaps().total == 0
        assert union(empty, empty).covered(np.array([1]), np.array([5])).tolist() == [0]
    else:
        assert exclusive(empty, empty, empty).tolist() == []


def test_interval_of_is_the_last_begun_interval_that_holds_a_time():
    start, end = np.array([0, 10, 12]), np.array([5, 20, 14])
    assert interval_of(start, end, np.array([-1, 0, 5, 11, 13, 15])).tolist() == [-1, 0, -1, 1, 2, -1]
    empty = np.empty(0, dtype=np.int64)
    assert interval_of(empty, empty, np.array([3])).tolist() == [-1]
