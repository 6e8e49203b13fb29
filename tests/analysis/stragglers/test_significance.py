"""Which ranks are significant stragglers: drawn runs of which it is known what was chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.analysis.stragglers.test_stragglers import COLUMN, LATE, ORDINARY, ranks
from tests.builders import draw_run, records
from tracelens import analyze
from tracelens.analysis.stragglers import NOISE, SIGNIFICANT, SMALL, TOO_FEW
from tracelens.analysis.stragglers.segments import median_of_others, weighted_median
from tracelens.analysis.stragglers.stragglers import ALIKE, ALPHA
from tracelens.table import Result

Late = Sequence[Sequence[tuple[int, int]]]
"""By step and all-reduce: the rank that is late, and by how many columns."""


def drawn(late: Late, length: int, count: int = 4) -> Result:
    """Steps of all-reduces that would take this many columns."""
    reduce = (
        f"record_param_comms collective=allreduce group=0 ranks={list(range(count))} size={count} in=8 out=8 "
        "dtype=Float"
    ).replace(", ", ",")
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    texts = []
    for rank in range(count):
        asks, launches, kernels, marks, number = "", "", "", [], 0
        for step in late:
            begin = len(asks)
            for last, columns in step:
                own = columns if last == rank else 0
                asks += "-" + " " * (length + 1)
                launches += letters[number] + " " * (length + 1)
                kernels += " " * (own + 2) + letters[number] * (length - own)
                number += 1
            marks.append(" " * begin + "-" * (len(asks) - begin))
        rows = [(f"step {index}", mark) for index, mark in enumerate(marks, 1)]
        rows += [(f"op {reduce}", asks), ("launch", launches), ("s9 ncclDevKernel_AllReduce", kernels)]
        width = max(len(label) for label, _ in rows)
        texts.append("\n".join(f"{label:{width}} | {line}" for label, line in rows))
    return analyze(draw_run(*texts, ns_per_char=COLUMN), "stragglers")


def worst(result: Result) -> tuple[int, float, str]:
    """Rank, p-value and verdict of the first row."""
    row: tuple[int, float, str] = records(result["stragglers"], "rank", "p_value", "significance")[0]
    return row


def named(result: Result) -> set[int]:
    return {rank for rank, is_named in records(result["stragglers"], "rank", "significant") if is_named}


NOBODY = (0, 0)


def test_the_same_rank_at_the_same_place_of_each_step() -> None:
    result = drawn([[NOBODY, (2, 5), NOBODY, NOBODY]] * 4, 10)
    rank, p_value, verdict = worst(result)
    assert (rank, verdict) == (2, SIGNIFICANT)
    assert 0 <= p_value < ALPHA
    assert named(result) == {2}
    # The others lose nothing, and no step differs from another.
    columns = ("excess_ns", "excess_low_ns", "excess_high_ns")
    assert records(result["stragglers"], *columns)[0] == (5 * COLUMN,) * 3


def test_now_one_rank_and_now_another() -> None:
    steps = [[(step, 5), ((step + 1) % 4, 5), ((step + 2) % 4, 5)] for step in range(4)]
    assert not named(drawn(steps, 10))


def test_a_run_of_late_collectives_in_one_step_is_one_event() -> None:
    """Rank 1 is last at most collectives and for most of the waiting, but in one step only."""
    result = drawn([[NOBODY] * 6, [NOBODY] * 6, [(1, 8)] * 6, [NOBODY] * 6], 10)
    assert worst(result)[0] == 1
    assert worst(result)[2] == NOISE
    low, effect, high = records(result["stragglers"], "excess_low_ns", "excess_ns", "excess_high_ns")[0]
    assert effect == pytest.approx(6 * 8 * COLUMN / 3)  # of four steps the first is left out
    assert low < 0 < effect < high


def test_one_long_wait_does_not_hide_a_rank_that_is_always_late() -> None:
    late = [[NOBODY, (3, 30), NOBODY, NOBODY] for _ in range(4)]
    late[2][0] = (0, 65)
    assert named(drawn(late, 70)) == {3}


def test_always_last_by_little_is_how_devices_differ() -> None:
    result = drawn([[(1, 1)] * 3] * 4, 70)
    assert worst(result) == (1, None, SMALL)
    assert records(result["stragglers"], "excess_ns")[0] == (3 * COLUMN,)
    assert ALIKE > 3 / (3 * 72)


@pytest.mark.parametrize(("count", "steps"), [(8, 1), (2, 2)])
def test_of_few_steps_nobody_can_tell(count: int, steps: int) -> None:
    result = drawn([[NOBODY, (1, 6), NOBODY]] * steps, 10, count)
    rank, p_value, verdict = worst(result)
    assert (rank, verdict) == (1, TOO_FEW)
    assert p_value >= ALPHA
    assert not named(result)


def test_two_steps_of_eight_ranks_can_tell() -> None:
    late = [NOBODY] * 5 + [(6, 38)] + [NOBODY] * 7
    assert named(drawn([late] * 2, 40, 8)) == {6}
    # At another place of each step it is as probable as for any two delays to hit one rank.
    assert not named(drawn([late, late[1:] + late[:1]], 40, 8))


def drawn_hosts(stalls: Sequence[Sequence[Sequence[int]]], length: int, *, op: bool = True) -> Result:
    """Steps of all-reduces, each launched behind an op that takes no time unless it stalls.

    Args:
        stalls: by rank, step and all-reduce, in columns of 100 us.
        length: of an all-reduce, columns.
        op: whether the op is recorded; else the host is silent.
    """
    reduce = "record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=8 out=8 dtype=Float"
    texts = []
    for of_rank in stalls:
        letters = iter("abcdefghijklmnopqrstuvwxyz")
        adds, asks, launches, kernels, marks = "", "", "", "", []
        for step in of_rank:
            marks.append(" " * len(asks) + "-" * (len(step) * (length + 2)))
            for columns in step:
                letter = next(letters)
                adds += ("-" * columns or "!").ljust(length + 2)
                asks += (" " * columns + "-").ljust(length + 2)
                launches += (" " * columns + letter).ljust(length + 2)
                kernels += " " * (columns + 1) + letter * (length + 1 - columns)
        rows = [(f"step {index}", mark) for index, mark in enumerate(marks, 1)]
        rows += [('op aten::add_ shapes=[[8]] types=["float"]', adds)] if op else []
        rows += [(f"op {reduce}", asks), ("launch", launches), ("s9 ncclDevKernel_AllReduce", kernels)]
        width = max(len(label) for label, _ in rows)
        texts.append("\n".join(f"{label:{width}} | {line}" for label, line in rows))
    return analyze(draw_run(*texts, ns_per_char=100_000), "stragglers")


AWAKE = [[0, 0, 0]] * 3
STALLS = [[0, 9, 0], [0, 0, 14], [19, 0, 0]]
"""A scheduler takes the core somewhere in each step."""


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_that_stalls_somewhere_in_each_step(rank: int, steps: int) -> None:
    stalls = [AWAKE[:steps], AWAKE[:steps]]
    stalls[rank] = STALLS[:steps]
    result = drawn_hosts(stalls, 20)
    assert named(result) == {rank}
    assert records(result["stragglers"], "cause")[0] == ("stalled_host",)
    assert worst(result)[1] >= ALPHA  # few steps tell nothing but by its size
    silent = drawn_hosts(stalls, 20, op=False)
    assert named(silent) == {rank}
    assert records(silent["stragglers"], "cause")[0] == ("silent_host",)


@pytest.mark.parametrize(
    "stalls",
    [
        [AWAKE, [STALLS[0], AWAKE[0], STALLS[2]]],  # in one step it does not
        [[[14, 0, 0], [9, 0, 0], [0, 14, 0]], STALLS],  # so does the other
    ],
)
def test_stalls_that_do_not_stand_out(stalls: Sequence[Sequence[Sequence[int]]]) -> None:
    result = drawn_hosts(stalls, 20)
    assert "stalled_host" in set(result["causes"]["cause"])
    assert not named(result)


def test_time_that_others_wait() -> None:
    run = ranks(ORDINARY, ORDINARY, ORDINARY, LATE["late_launch"])
    (fraction,) = records(analyze(run, "stragglers")["stragglers"], "fraction_of_recorded_time")[0]
    # Others wait 7 of the 22 columns from the first call to the last end.
    assert fraction == pytest.approx(7 / 22)


def test_inherited_lateness_is_not_tested() -> None:
    result = analyze(ranks(ORDINARY, ORDINARY, ORDINARY, LATE["inherited"]), "stragglers")
    assert worst(result) == (3, None, "not tested")


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_the_median_of_the_others(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 4, (count, 5)).astype(float)
    expected = [np.median(np.delete(values, row, axis=0), axis=0) for row in range(count)]
    assert np.array_equal(median_of_others(values), np.array(expected))


def test_the_weighted_median() -> None:
    values = np.array([[1.0], [2.0], [9.0]])
    assert weighted_median(values, np.array([1.0, 1.0, 3.0]))[0] == 9
    assert weighted_median(values, np.array([1.0, 1.0, 2.0]))[0] == 5.5
    assert weighted_median(values, np.zeros(3))[0] == 2
