"""Rates and waiting of uneven all-to-alls, against a schedule of pairs that is played through by the us."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import tracelens
from tracelens.analysis.comm import MatchedCollective, Participant
from tracelens.analysis.comm.records import Record

LINK = 400_000
"""Bytes per us into each rank, and out of it."""


def record(sent: list[int], received: list[int]) -> Record:
    return Record(
        kernel=0,
        step="",
        collective="all_to_allv",
        group="0",
        description="",
        group_ranks=tuple(range(len(sent))),
        size=len(sent),
        dtype="Byte",
        sent=sum(sent),
        received=sum(received),
        sent_to=tuple(sent) if any(sent) else (),
        received_from=tuple(received) if any(received) else (),
    )


def played(start_us: list[int], sent: list[list[int]]) -> MatchedCollective:
    return schedule(start_us, sent)[0]


def schedule(start_us: list[int], sent: list[list[int]]) -> tuple[MatchedCollective, np.ndarray]:
    """As recorded: data moves as soon as its sender is there, and a rank ends when its own is done.

    With it the part of the link into each rank (columns) that is used in each us (rows).
    """
    left = np.array(sent, dtype=float)
    np.fill_diagonal(left, 0)
    ranks, end_us, now = len(start_us), [0] * len(start_us), 0
    used = []
    while not all(end_us):
        there = np.array([now >= start for start in start_us])
        free_out, free_in = np.where(there, LINK, 0.0), np.full(ranks, float(LINK))
        for source in range(ranks):
            for target in range(ranks):
                moved = min(left[source, target], free_out[source], free_in[target])
                left[source, target] -= moved
                free_out[source] -= moved
                free_in[target] -= moved
        used.append(1 - free_in / LINK)
        now += 1
        for rank in range(ranks):
            if there[rank] and not end_us[rank] and not left[rank].any() and not left[:, rank].any():
                end_us[rank] = now
    collective = MatchedCollective(
        collective="all_to_allv",
        group="",
        order=0,
        participants=tuple(
            Participant(rank, record(sent[rank], [row[rank] for row in sent]), start * 1000, end * 1000)
            for rank, (start, end) in enumerate(zip(start_us, end_us, strict=True))
        ),
    )
    return collective, np.array(used)


def rate(collective: MatchedCollective) -> float:
    """Bytes per us over links."""
    transfer, size = collective.transfer, collective.participants[0].record.size
    return transfer.bytes * (size - 1) / size / transfer.ns * 1000


RANKS = st.integers(2, 5)
RUNS = RANKS.flatmap(
    lambda ranks: st.tuples(
        st.lists(st.integers(0, 60), min_size=ranks, max_size=ranks),
        st.lists(
            st.lists(st.integers(0, 20).map(lambda size: size * LINK // 4), min_size=ranks, max_size=ranks),
            min_size=ranks,
            max_size=ranks,
        ),
    )
)


@given(RUNS)
def test_no_rate_is_above_the_link(run: tuple[list[int], list[list[int]]]) -> None:
    assert rate(played(*run)) <= LINK * (1 + 1e-6)  # whole bytes


def test_together_the_busiest_rank_moves_at_the_rate_of_the_link() -> None:
    assert rate(played([0, 0, 0], [[9, LINK * 30, 0], [0, 0, 0], [0, LINK * 10, 0]])) == pytest.approx(LINK)


def test_a_receiver_that_comes_late_did_not_receive_all_in_its_own_time() -> None:
    # 40 us of data; 25 of them moved before rank 1 began.
    collective = played([0, 25], [[0, LINK * 40], [0, 0]])
    assert [each.end - each.start for each in collective.participants] == [40_000, 15_000]
    assert (collective.transfer.ns, rate(collective)) == (40_000, pytest.approx(LINK))


def test_who_is_not_in_the_run_may_have_sent_before() -> None:
    whole = played([0, 25, 25], [[0, LINK * 40, 0], [0, 0, LINK * 5], [0, 0, 0]])
    partly = replace(whole, participants=whole.participants[1:])
    # What rank 1 sends takes no more than its own time; a third of a message is taken to stay.
    assert (partly.transfer.rank, rate(partly)) == (1, pytest.approx(LINK * 5 * 2 / 3 / 15))


@given(RUNS)
def test_waiting_is_an_upper_bound_and_by_how_much(run: tuple[list[int], list[list[int]]]) -> None:
    """Until the last rank arrives a link into another stands still for no longer than the waiting.

    It is used for no more than the data of those who were there before.
    """
    start_us, sent = run
    collective, used = schedule(start_us, sent)
    last_us = max(start_us)
    for rank, _, start, end in collective.participants:
        unused_us = (1 - used[start // 1000 : min(last_us, end // 1000), rank]).sum()
        earlier = sum(sent[sender][rank] for sender in range(len(sent)) if start_us[sender] < last_us)
        earlier -= sent[rank][rank] if start_us[rank] < last_us else 0
        wait_us = collective.wait_ns[rank] / 1000
        assert wait_us - earlier / LINK - 1e-6 <= unused_us <= wait_us + 1e-6


SAMPLES = Path(__file__).parents[3] / "sample_traces"


@pytest.mark.parametrize("name", ["faults/token_skew", "ladder/ep4/03_dedup", "cpu/tiny"])
def test_waiting_and_moving_are_all_of_the_kernels(name: str) -> None:
    result = tracelens.analyze(tracelens.load(SAMPLES / name), "collectives")
    for table in (result["ranks"], result["summary"]):
        assert (table["comm_ns"] >= 0).all()
        assert (table["wait_ns"] >= 0).all()
        assert (table["comm_ns"] + table["wait_ns"] == table["kernel_ns"]).all()
    participants = result["participants"]
    assert participants["wait_ns"].between(0, participants["dur_ns"]).all()
