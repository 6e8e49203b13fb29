"""Cuts of unequal layers: exact where there is one chunk a stage, never worse than even ones."""

from __future__ import annotations

import sys
from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import TracelensError
from tracelens.planner.pipeline import (
    Layers,
    Setting,
    Uniform,
    best_partition,
    even_shares,
    pipeline,
    round_robin,
    shortest,
)
from tracelens.planner.step_time import LayerTimes

COSTS = st.lists(st.integers(1, 30), min_size=2, max_size=8)
ENDS = st.tuples(st.integers(0, 40), st.integers(0, 40))


def longest(cost: list[int], ends: tuple[int, int], cuts: tuple[int, ...]) -> int:
    """The longest chunk of a cut; one without layers must have something else to do."""
    chunks = [sum(cost[low:high]) for low, high in pairwise(cuts)]
    chunks[0] += ends[0]
    chunks[-1] += ends[1]
    return max(chunks) if all(chunks) else 10**9


@given(COSTS, ENDS, st.data())
def test_the_longest_chunk_is_as_short_as_it_can_be(
    cost: list[int], ends: tuple[int, int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(2, len(cost)))
    shares = shortest(np.array(cost), ends, count)
    assert (len(shares), sum(shares)) == (count, len(cost))
    longest_ns = longest(cost, ends, (0, *np.cumsum(shares).tolist()))
    every = combinations_with_replacement(range(len(cost) + 1), count - 1)
    assert longest_ns == min(longest(cost, ends, (0, *cuts, len(cost))) for cuts in every)


def layer_times(forward: list[int], embedding: int = 0, head: int = 0) -> LayerTimes:
    ns = np.array(forward)
    return LayerTimes(ns, 2 * ns, 0 * ns, 0 * ns, (embedding, 2 * embedding), (head, 2 * head))


def test_a_heavy_head_gets_a_chunk_without_layers() -> None:
    assert shortest(np.array([1, 1, 1, 1]), (0, 100), 3) == (2, 2, 0)


def test_fewer_layers_than_chunks_are_refused() -> None:
    with pytest.raises(TracelensError, match="2 layers are too few for 4 chunks"):
        shortest(np.array([1, 1]), (5, 5), 4)


@given(COSTS, st.integers(0, 40), st.integers(0, 40), st.integers(1, 2), st.integers(1, 2))
def test_the_best_cut_is_never_slower_than_the_even_one(
    cost: list[int], embedding: int, head: int, stages: int, chunks: int
) -> None:
    stages, chunks = (stages, chunks) if stages * chunks <= len(cost) and stages > 1 else (1, 1)
    source = Layers(layer_times(cost, embedding, head))
    setting = {"schedules": ("interleaved",), "stages": stages, "micro_batches": 2 * stages, "chunks": chunks}
    even = pipeline(Setting(**setting), source)["summary"]["makespan_ns"][0]
    best = pipeline(Setting(**setting, best=True), source)
    assert best["summary"]["makespan_ns"][0] <= even
    assert best["partition"]["layers"].sum() == len(cost)
    # All of the model is still there.
    total = sum(cost) + embedding + head
    assert best["partition"]["forward_ns"].sum() == total
    assert best["partition"]["backward_ns"].sum() == 2 * total


@pytest.mark.parametrize("schedule", ["interleaved", "zb-v", "interleaved-overlap"])
def test_many_micro_batches_do_not_change_that(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tracelens.planner.pipeline.pipeline"], "_QUICK_PASSES", 600)
    source = Layers(layer_times([30, *[20] * 26], embedding=4, head=70))
    setting = {"schedules": (schedule,), "stages": 8, "micro_batches": 64, "chunks": 2}
    even, best = (
        pipeline(Setting(**setting, best=choice), source)["summary"]["makespan_ns"][0]  # type: ignore[arg-type]
        for choice in (False, True)
    )
    assert best < even


def test_layers_move_off_the_slowest_stage() -> None:
    # Two stages of two chunks; the head makes the last chunk, and with it stage 1, the slowest.
    layers = layer_times([10] * 8, head=15)
    seen = []

    def makespan(shares: tuple[int, ...]) -> int:
        seen.append(shares)
        chunks = Layers(layers).chunks(2, 4, shares).forward
        return int(max(chunks[0::2].sum(), chunks[1::2].sum()))

    found = best_partition(layers, round_robin(2, 2), [(2, 2, 2, 2)], makespan, makespan)
    assert (2, 2, 2, 2) in seen
    assert makespan(found) == 50


def test_shares_of_a_model_without_times_of_layers() -> None:
    result = pipeline(Setting(("gpipe",), 4, 8, layout="3,4,4,3"), Uniform(7_000_000, 14_000_000))
    table = result["partition"]
    assert table["layers"].tolist() == [3, 4, 4, 3]
    assert table["first_layer"].tolist() == [0, 3, 7, 11]
    assert table["forward_ns"].tolist() == [6_000_000, 8_000_000, 8_000_000, 6_000_000]
    # Each phase is paced by its slowest stage: one micro-batch through all, the others behind each other.
    assert result["summary"]["makespan_ns"].tolist() == [3 * (6 + 8 + 8 + 6 + 7 * 8) * 10**6]


@pytest.mark.parametrize(
    ("changes", "source", "problem"),
    [
        ({"layout": "3,4"}, Layers(layer_times([1] * 8)), "pp_layout 3,4 must have 2 chunks"),
        ({"layout": "a,b"}, Uniform(1, 2), "layers per chunk, as in 3,4,4,3"),
        (
            {"layout": "4,4", "best": True},
            Layers(layer_times([1] * 8)),
            "either a partition or --best-partition",
        ),
        ({"best": True}, Uniform(1, 2), "needs times of layers"),
        ({"best": True}, Uniform(1, 2, layers=8), "even shares are the best"),
    ],
)
def test_cuts_that_cannot_be_made(changes: dict[str, object], source: Layers | Uniform, problem: str) -> None:
    with pytest.raises(TracelensError, match=problem):
        pipeline(Setting(("1f1b",), 2, 4, **changes), source)  # type: ignore[arg-type]


def test_even_shares_are_those_of_a_layout() -> None:
    assert even_shares(7, 2, 2) == (2, 2, 2, 1)
    assert even_shares(7, 2, 2, "1,2,3,1") == (1, 2, 3, 1)
    with pytest.raises(TracelensError, match="too few"):
        even_shares(3, 2, 2)
