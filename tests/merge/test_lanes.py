"""Slices on rows, against a count of crossings one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.merge.reading import crossings
from tracelens.merge import cut_overruns, has_crossings, lanes
from tracelens.trace import nest
from tracelens.trace.links import TOLERANCE_NS

Interval = tuple[int, int]

intervals = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda item: (item[0], sum(item))), max_size=30
).map(lambda found: sorted(found, key=lambda item: (item[0], -item[1])))


def columns(found: list[Interval]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(found, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def overlaps(found: list[Interval]) -> int:
    """Pairs that share some time, or of which one without extent lies within the other."""
    pairs = [(one, two) for place, one in enumerate(found) for two in found[place + 1 :]]
    return sum(max(one[0], two[0]) < min(one[1], two[1]) for one, two in pairs)


@given(st.lists(intervals, max_size=4))
def test_tracks_with_crossings_are_found(tracks: list[list[Interval]]) -> None:
    start, end = columns([item for found in tracks for item in found])
    track = np.repeat(np.arange(len(tracks)), [len(found) for found in tracks])
    expected = [number for number, found in enumerate(tracks) if crossings(found)]
    assert has_crossings(track, start, end).tolist() == expected


TRIED = st.sampled_from([2, 64])


@given(intervals, TRIED)
def test_no_lane_has_crossings(found: list[Interval], scanned: int) -> None:
    lane = lanes(*columns(found), nested=True, scanned=scanned)
    parts = [[item for item, at in zip(found, lane, strict=True) if at == number] for number in range(31)]
    assert [crossings(part) for part in parts] == [0] * 31
    assert sorted(set(lane.tolist())) == list(range(int(lane.max(initial=-1)) + 1))
    if not crossings(found):
        assert not lane.any()


@given(intervals, TRIED)
def test_lanes_without_nesting_have_no_overlaps(found: list[Interval], scanned: int) -> None:
    lane = lanes(*columns(found), nested=False, scanned=scanned)
    for number in set(lane.tolist()):
        assert overlaps([item for item, at in zip(found, lane, strict=True) if at == number]) == 0


def test_what_crosses_moves_alone() -> None:
    found = [(0, 10), (5, 20), (6, 8), (12, 15), (18, 22), (30, 31)]
    assert lanes(*columns(found), nested=True).tolist() == [0, 1, 0, 0, 0, 0]


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 3000)), max_size=20),
)
def test_children_end_with_their_parents(found: list[Interval]) -> None:
    start = np.array([low for low, _ in found], dtype=np.int64)
    end = start + np.array([dur for _, dur in found], dtype=np.int64)
    parent, _ = nest(np.zeros_like(start), start, end, np.zeros_like(start))
    cut = cut_overruns(start, end, parent)
    assert (cut >= start).all()
    assert (end - cut >= 0).all()
    assert (end - cut).max(initial=0) <= TOLERANCE_NS * len(found)
    child = parent >= 0
    inside = (cut[child] <= cut[parent[child]]) | (start[child] >= cut[parent[child]])
    assert inside.all()
