"""Looking values up by an index that may be absent."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens.arrays import (
    distinct,
    first_rows,
    lookup,
    marked,
    median,
    numbered,
    ordered,
    percentiles,
    ranges,
    typical_step,
    unique,
)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float64, np.bool_])
def test_absent_indices_give_the_missing_value(dtype):
    values = np.array([0, 1, 1], dtype=dtype)
    result = lookup(values, np.array([2, -1, 0]), False)
    assert result.tolist() == [values[2], 0, 0]
    assert result.dtype == dtype


@pytest.mark.parametrize("count", [3, 60])
def test_few_and_many_indices_give_the_same(count):
    values, index = np.arange(10) ** 2, np.arange(count) % 11 - 1
    assert lookup(values, index, -7).tolist() == [values[at] if at >= 0 else -7 for at in index.tolist()]
    with pytest.raises(IndexError):
        lookup(values, np.where(index < 0, 10, index), -7)


def test_each_index_may_have_its_own_missing_value():
    assert lookup(np.array([10, 20]), np.array([-1, 1, -1]), np.array([7, 8, 9])).tolist() == [7, 20, 9]


def test_there_may_be_no_values_and_no_indices():
    empty = np.empty(0, dtype=np.int64)
    assert lookup(empty, np.array([-1, -1]), -5).tolist() == [-5, -5]
    assert lookup(empty, empty, -1).tolist() == []


def test_an_index_beyond_the_values_is_an_error():
    with pytest.raises(IndexError):
        lookup(np.array([1]), np.array([1]), -1)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 101, 999])
def test_percentiles_are_numpys(count):
    drawn = np.random.default_rng(count)
    for values in (drawn.integers(0, 10**12, count), drawn.random(count)):
        shares = (0, 1, 25, 50, 90, 99, 100)
        assert percentiles(values, *shares).tolist() == np.percentile(values, shares).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 100, 101])
def test_medians_are_numpys(count):
    drawn = np.random.default_rng(count)
    for values in (drawn.integers(0, 10**18, count), drawn.random(count), drawn.random((count, 3))):
        assert median(values).tolist() == np.median(values, axis=0).tolist()


@pytest.mark.parametrize("chosen", [[], [2], [0, 2, 3], [0, 1, 2, 3, 5, 6]])
def test_rows_of_marked_codes(chosen):
    codes = np.array([0, 2, 2, 7, 3, 6, 5], dtype=np.int32)
    is_marked = np.isin(np.arange(8), chosen)
    assert marked(codes, is_marked).tolist() == is_marked[codes].tolist()


@pytest.mark.parametrize("size", [6, 1000])
def test_groups_of_codes(size):
    used, position = distinct(np.array([5, 1, 1, 5, 0]), size)
    assert (used.tolist(), position.tolist()) == ([0, 1, 5], [2, 1, 1, 2, 0])
    assert first_rows(position, 3).tolist() == [4, 1, 0]


@pytest.mark.parametrize("runs", [1, 3, 100])
def test_runs_in_order_are_merged(runs):
    drawn = np.random.default_rng(runs)
    time = np.sort(drawn.integers(0, 200, (runs, 50)), axis=1).ravel()
    size = drawn.integers(0, 1 << 62, len(time)) * drawn.integers(0, 2, len(time))
    assert (ordered(time) == np.argsort(time, kind="stable")).all()
    assert (ordered(time, size) == np.lexsort((size, time))).all()
    assert (ordered(time, -time, size) == np.lexsort((size, -time, time))).all()


@pytest.mark.parametrize("sorted_keys", [1, 2, 3])
def test_ties_may_be_in_order_already(sorted_keys):
    drawn = np.random.default_rng(sorted_keys).integers(0, 4, (3, 500))
    in_order = np.lexsort(drawn[:sorted_keys][::-1])
    first, second, third = (key[in_order] for key in drawn)
    assert (ordered(first, second, third) == np.lexsort((third, second, first))).all()


@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
@pytest.mark.parametrize("largest", [1, 100, 1 << 40, 1 << 62])
def test_rows_in_order_of_keys_of_any_size(rows, largest):
    drawn = np.random.default_rng(rows)
    wide, narrow = drawn.integers(-largest, largest, rows), drawn.integers(-3, 3, rows).astype(np.int32)
    assert (ordered(wide, narrow) == np.lexsort((narrow, wide))).all()
    assert (ordered(narrow, wide, narrow) == np.lexsort((narrow, wide, narrow))).all()
    floats = np.where(narrow == 2, np.inf, wide / 3)
    assert (ordered(narrow, floats) == np.lexsort((floats, narrow))).all()
    assert (ordered(floats, narrow) == np.lexsort((narrow, floats))).all()
    for values in (wide, narrow):
        known, position = np.unique(values, return_inverse=True)
        used, place = numbered(values)
        assert used.dtype == values.dtype
        assert (used.tolist(), place.tolist()) == (known.tolist(), position.tolist())


def test_ranges_stand_one_behind_the_other():
    owner, number = ranges(np.array([5, 0, 7]), np.array([2, 0, 3]))
    assert owner.tolist() == [0, 0, 2, 2, 2]
    assert number.tolist() == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("values", [[], [3, 1, 3, -1], [[2, 1], [1, 2]]])
def test_distinct_values(values):
    assert unique(np.array(values, dtype=np.int64)).tolist() == sorted({*np.ravel(values)})


@pytest.mark.parametrize(
    ("durations", "ranks", "step"),
    [
        ([5], 1, 0),
        ([9, 5], 1, 1),
        ([9, 5], 2, 1),
        ([1, 6, 4, 5], 1, 3),
        ([1, 6, 4, 5, 4], 1, 2),
        ([90, 5], 1, 0),  # a recording that ended early
        ([100, 40, 60, 3], 1, 1),
        ([23, 632, 23], 2, 2),  # kernels were loaded in the second step
        ([500, 23], 2, 1),
    ],
)
def test_the_step_that_stands_for_a_run(durations, ranks, step):
    assert typical_step(durations, ranks) == step
