"""Micro-batches in flight: against schedules that are written down run by run."""

from __future__ import annotations

from itertools import product

import pytest

from tests.planner.pipeline.drawn import in_flight
from tracelens.planner.config import Config, override, preset
from tracelens.planner.memory import flight, warm_up
from tracelens.planner.pipeline import make_schedule


def config(pp: int, vpp: int, batches: int) -> Config:
    fields = f"ranks={pp} pp={pp} vpp={vpp} micro_batches={batches} layers={pp * vpp}"
    return override(preset("small"), fields.split())


def runs(pp: int, vpp: int, batches: int, stage: int, early: int) -> list[tuple[str, int]]:
    """Forwards and backwards of a rank in turn, each with the number of its chunk."""
    forward, backward = [], []
    for first in range(0, batches, pp):
        size = min(pp, batches - first)
        for chunk in range(vpp):
            forward += [("F", chunk)] * size
            backward += [("B", vpp - 1 - chunk)] * size
    order = forward[:early]
    for number, run in enumerate(backward):
        order.append(run)
        order += forward[early + number : early + number + 1]
    return order


CASES = [case for case in product((2, 4, 8), (1, 2, 4), (1, 2, 3)) if case[1] == 1 or case[0] > 1]


@pytest.mark.parametrize(("pp", "vpp", "rounds"), CASES)
def test_every_moment_of_every_rank(pp: int, vpp: int, rounds: int) -> None:
    batches = pp * rounds
    for stage in range(pp):
        early = pp - stage if vpp == 1 else 2 * (pp - stage - 1) + (vpp - 1) * pp + 1
        early = min(early, batches * vpp)
        assert warm_up(config(pp, vpp, batches), stage) == early
        counts, most, states = [0] * vpp, 0, set()
        order = runs(pp, vpp, batches, stage, early)
        for kind, chunk in order:
            if kind == "B":
                states.add((tuple(counts), chunk))
            counts[chunk] += 1 if kind == "F" else -1
            most = max(most, sum(counts))
        assert counts == [0] * vpp
        moments = flight(config(pp, vpp, batches), stage)
        assert moments.most == most
        after = {
            (tuple(row), chunk)
            for row, chunk in zip(moments.after.tolist(), moments.backward.tolist(), strict=True)
        }
        assert after <= states
        # None of those left out has more in flight of any chunk.
        for row, chunk in states:
            assert any(
                chunk == other and all(a <= b for a, b in zip(row, full, strict=True))
                for full, other in after
            )


def test_numbers_of_two_charts() -> None:
    assert warm_up(config(24, 4, 48), 0) == 119
    assert warm_up(config(48, 2, 96), 0) == 143
    assert warm_up(config(24, 4, 48), 23) == 73


def test_overlap_adds_a_forward() -> None:
    plain, more = (flight(config(4, 2, 16), 1, overlap).most for overlap in (False, True))
    assert more == plain + 1
    assert (warm_up(config(1, 1, 16), 0), warm_up(config(1, 1, 16), 0, overlap=True)) == (1, 2)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("vpp", [1, 2])
def test_with_overlap_as_many_are_in_flight_as_in_the_simulated_schedule(vpp: int, stage: int) -> None:
    schedule = make_schedule("1f1b-overlap" if vpp == 1 else "interleaved-overlap", 4, 16, vpp)
    held = in_flight(schedule.orders[stage]).max()
    assert flight(config(4, vpp, 16), stage, overlap=True).most == held


def test_few_micro_batches_are_all_in_flight() -> None:
    assert flight(config(8, 1, 8), 0).most == 8
    assert flight(config(4, 2, 4), 0).most == 8
