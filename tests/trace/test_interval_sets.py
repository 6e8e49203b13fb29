"""Sets of points in time against sets of integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.trace import Union, both, cut, difference, intersection, union

PIECES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=6)


def of(pieces: list[tuple[int, int]]) -> Union:
    start = np.array([begin for begin, _ in pieces], dtype=np.int64)
    return union(start, start + np.array([length for _, length in pieces], dtype=np.int64))


def points(some: Union) -> set[int]:
    return {at for low, high in zip(some.start, some.end, strict=True) for at in range(low, high)}


@given(PIECES, PIECES)
def test_as_sets_of_integers(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    first, second = of(one), of(other)
    left, right = points(first), points(second)
    for found, expected in (
        (intersection(first, second), left & right),
        (difference(first, second), left - right),
        (both(first, second), left | right),
    ):
        assert points(found) == expected
        assert (found.end > found.start).all()
        assert (found.start[1:] > found.end[:-1]).all()


@given(PIECES, PIECES)
def test_cut(rows: list[tuple[int, int]], inside: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in rows], dtype=np.int64)
    end = start + np.array([length for _, length in rows], dtype=np.int64)
    row, low, high = cut(start, end, of(inside))
    for at, (begin, length) in enumerate(rows):
        mine = row == at
        found = [point for a, b in zip(low[mine], high[mine], strict=True) for point in range(a, b)]
        assert sorted(found) == sorted(set(range(begin, begin + length)) & points(of(inside)))


@given(PIECES)
def test_complement(pieces: list[tuple[int, int]]) -> None:
    some = of(pieces)
    others = some.complement(0, 50)
    assert points(others) == set(range(50)) - points(some)
    assert (others.end > others.start).all()


def test_examples() -> None:
    one, other = of([(0, 10)]), of([(3, 2), (8, 4)])
    assert points(difference(one, other)) == {0, 1, 2, 5, 6, 7}
    assert [part.tolist() for part in cut(np.array([0, 4]), np.array([9, 20]), other)] == [
        [0, 0, 1, 1],
        [3, 8, 4, 8],
        [5, 9, 5, 12],
    ]
