"""Groups by integer keys, and statistics of them, against plain Python."""

from __future__ import annotations

from statistics import mean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.table import codes, stats

# Small keys are counted; keys far apart do not fit into one number.
KEYS = st.one_of(st.integers(-3, 3), st.sampled_from([-(1 << 62), 1 << 40, (1 << 62) - 1]))


@given(st.lists(st.tuples(KEYS, KEYS, KEYS), max_size=8))
def test_groups_are_in_order_of_their_keys(rows: list[tuple[int, int, int]]) -> None:
    group, keys = codes(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)
    distinct = sorted(set(rows))
    assert group.tolist() == [distinct.index(row) for row in rows]
    assert list(zip(*(key.tolist() for key in keys), strict=True)) == distinct


@given(st.lists(st.tuples(st.integers(0, 3), KEYS), min_size=1, max_size=8))
def test_statistics(rows: list[tuple[int, int]]) -> None:
    group, values = np.array(rows, dtype=np.int64).T
    found = stats(group, values // 8, 4)  # sums fit
    for number in range(4):
        own = [value // 8 for of, value in rows if of == number] or [0]
        assert found.number[number] == sum(of == number for of, _ in rows)
        assert (found.total[number], found.min[number], found.max[number]) == (sum(own), min(own), max(own))
        assert np.isclose(found.mean[number], mean(own))
        assert np.isclose(found.median[number], median(own))


@pytest.mark.parametrize("span", [1 << 29, 1 << 40])
def test_statistics_of_groups_in_four_bytes(span: int) -> None:
    group = np.array([7, 7, 0, 7], dtype=np.int32)
    found = stats(group, np.array([span, 1, 5, 2]), 8)
    assert (found.median[7], found.median[0]) == (2, 5)
    assert (found.min[7], found.max[7]) == (1, span)
