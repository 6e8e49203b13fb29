"""Which ranks are late beyond noise: on runs of which it is known whether chance alone made them late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.analysis.stragglers.test_stragglers import COLUMN, LATE, ORDINARY, ranks
from tests.builders import draw_run, records
from tracelens import analyze
from tracelens.analysis.stragglers.significance import ALIKE, ALPHA, _tail_bound

FOUR = "record_param_comms collective=allreduce group=0 ranks=[0,1,2,3] size=4 in=8 out=8 dtype=Float"


def drawn(late: Sequence[tuple[int, int]], length: int) -> list[tuple[int, float, bool]]:
    """Rank, chance and whether beyond noise, of four ranks.

    Args:
        late: at each all-reduce the rank that is late, and by how many columns.
        length: columns of an all-reduce of the others.
    """
    texts = []
    for rank in range(4):
        asks, kernels = "", ""
        for number, (last, columns) in enumerate(late):
            begin = columns if last == rank else 0
            asks += "-" + " " * (length + 1)
            kernels += " " * (begin + 2) + chr(ord("a") + number) * (length - begin)
        launches = "".join(chr(ord("a") + number) + " " * (length + 1) for number in range(len(late)))
        texts.append(f"op {FOUR} | {asks}\nlaunch{'':{len(FOUR) - 3}} | {launches}\n")
        texts[-1] += f"s9 ncclDevKernel_AllReduce{'':{len(FOUR) - 23}} | {kernels}\n"
    table = analyze(draw_run(*texts, ns_per_char=COLUMN), "stragglers")["stragglers"]
    return records(table, "rank", "p_value", "significant")


def test_always_the_same_rank() -> None:
    rows = drawn([(2, 5)] * 8, 10)
    assert rows[0][0] == 2
    assert rows[0][1] < ALPHA
    assert rows[0][2]
    assert not any(beyond for _, _, beyond in rows[1:])


def test_now_one_rank_and_now_another() -> None:
    assert not any(beyond for _, _, beyond in drawn([(number % 4, 5) for number in range(12)], 10))


def test_one_long_wait_of_many_is_chance() -> None:
    """It is nine tenths of all waiting, but came once."""
    late = [(number % 4, 1) for number in range(12)]
    late[5] = (1, 60)
    rows = drawn(late, 70)
    assert rows[0][0] == 1
    assert not any(beyond for _, _, beyond in rows)


def test_one_long_wait_does_not_hide_a_rank_that_is_always_late() -> None:
    late = [(3, 12)] * 12
    late[4] = (0, 65)
    rows = {rank: beyond for rank, _, beyond in drawn(late, 70)}
    assert rows[3]
    assert not rows[0]


def test_always_last_by_little_is_how_devices_differ() -> None:
    assert drawn([(1, 1)] * 12, 70)[0] == (1, -1, False)


def test_of_few_collectives_nobody_can_tell() -> None:
    run = ranks(ORDINARY, ORDINARY, ORDINARY, LATE["late_launch"])
    rank, chance, beyond, fraction = records(
        analyze(run, "stragglers")["stragglers"], "rank", "p_value", "significant", "time_fraction"
    )[0]
    assert (rank, beyond) == (3, True)
    assert chance > ALPHA
    # Others wait 7 of the 22 columns from the first call to the last end.
    assert fraction == pytest.approx(7 / 22)
    assert fraction > ALIKE


def waits(seed: int, odds: float) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Waits with a long tail, and to which of them the one rank came by chance."""
    random = np.random.default_rng(seed)
    return random.pareto(1.2, 40) + 0.1, random.random(40) < odds


@pytest.mark.parametrize("odds", [0.5, 0.25, 0.125])
def test_the_bound_holds(odds: float) -> None:
    """As much or more is rare as often as the bound says, at most."""
    chances = []
    for seed in range(1000):
        wait, is_blamed = waits(seed, odds)
        chances.append(_tail_bound(wait, np.full(len(wait), odds), float(wait[is_blamed].sum())))
    for bound in (0.5, 0.1, ALPHA):
        assert np.mean(np.array(chances) <= bound) <= bound


@pytest.mark.parametrize(("size", "count"), [(2, 5), (4, 3), (8, 10)])
def test_all_of_equal_waits_is_as_probable_as_a_row_of_equal_throws(size: int, count: int) -> None:
    wait, odds = np.full(count, 7.0), np.full(count, 1 / size)
    assert _tail_bound(wait, odds, 7.0 * count) == pytest.approx(size**-count, rel=1e-3)
    assert _tail_bound(wait, odds, 0.0) == 1
    assert _tail_bound(np.zeros(0), np.zeros(0), 0.0) == 1
