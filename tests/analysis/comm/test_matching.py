"""Collectives of ranks whose recordings lack some: who is matched with whom, and what is lost."""

from __future__ import annotations

import pytest

from tests.builders import aligned, draw_run, records
from tracelens import analyze
from tracelens.analysis.comm import Participant, Record, match_collectives

GROUP, MS = (0, 1, 2), 1_000_000


def collective(rank: int, number: int, kind: str = "allreduce", *, ran: bool = True) -> Participant:
    """About one every 10 ms, in which all ranks end together; the clock of rank 2 is an hour ahead."""
    record = Record(
        0 if ran else -1, "", kind, "dp", "", GROUP, len(GROUP), "BFloat16", sent=64, received=64, sent_to=(),
        received_from=(),
    )  # fmt: skip
    end = 10 * MS * number + number**3 % 11 * MS // 2 + (3600 * 1000 * MS if rank == 2 else 0)
    return Participant(rank, record, end - (rank + 1) * MS, end)


def matched_numbers(*of_ranks: list[int]) -> tuple[list[list[int]], dict[int, int]]:
    """Of each matched collective the numbers that its ranks put in, and what each rank lacks."""
    ranks = {rank: [collective(rank, number) for number in numbers] for rank, numbers in enumerate(of_ranks)}
    number_of = {id(each): number for rank, numbers in enumerate(of_ranks)
                 for each, number in zip(ranks[rank], numbers, strict=True)}  # fmt: skip
    matched, _, lacking = match_collectives("dp", ranks)
    return [[number_of[id(each)] for each in collective.participants] for collective in matched], lacking


@pytest.mark.parametrize("lost", [[3], [1], [18], [4, 5], [2, 9, 17]])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_lacks_some_between_others(lost: list[int], rank: int) -> None:
    everything = [*range(20)]
    left = [number for number in everything if number not in lost]
    matched, lacking = matched_numbers(*(left if each == rank else everything for each in GROUP))
    assert matched == [[number] * (3 - (number in lost)) for number in everything]
    assert lacking == {rank: len(lost)}


def test_each_rank_lacks_another_one() -> None:
    of_ranks = [[number for number in range(9) if number != 2 * rank + 1] for rank in GROUP]
    of_ranks[0].remove(8)
    matched, lacking = matched_numbers(*of_ranks)
    assert all(len(set(numbers)) == 1 for numbers in matched)
    assert lacking == {0: 1, 1: 1, 2: 1}


def test_recordings_that_begin_and_end_at_different_times_lack_nothing() -> None:
    matched, lacking = matched_numbers([*range(3, 20)], [*range(20)], [*range(15)])
    assert all(len(set(numbers)) == 1 for numbers in matched)
    assert [numbers[0] for numbers in matched] == [*range(20)]
    assert not lacking


def test_a_record_without_kernel_keeps_its_place() -> None:
    ranks = {rank: [collective(rank, n, ran=(rank, n) != (1, 2)) for n in range(5)] for rank in (0, 1)}
    matched, skips, lacking = match_collectives("dp", ranks)
    assert [[each.end // (10 * MS) for each in one.participants] for one in matched] == [
        [n, n] for n in (0, 1, 3, 4)
    ]
    assert not skips
    assert not lacking  # that its kernel is lost the launch call tells


def test_other_kinds_tell_without_times() -> None:
    kinds = ["allreduce", "broadcast", "allreduce", "reduce", "allreduce"]
    whole = [collective(0, number, kind) for number, kind in enumerate(kinds)]
    lacks = [collective(1, number, kind) for number, kind in enumerate(kinds) if number != 3]
    matched, skips, lacking = match_collectives("dp", {0: whole, 1: lacks})
    assert [one.collective for one in matched] == ["allreduce", "broadcast", "allreduce", "allreduce"]
    assert not skips
    assert lacking == {1: 1}


RECORD = "op record_param_comms collective=allreduce group=0 ranks=[0,1,2] size=3 in=50 out=50 dtype=Half"
RANK = f"""
    {RECORD}                     | {{record}}
    launch                       | {{launch}}
    s9 ncclDevKernel_AllReduce   | {{kernel}}
    launch cudaDeviceSynchronize |                         --
"""
RECORDS, CALLS, KERNELS = "-   -   -   -   -", "a   b   c   d   e", "    aa  bb  cc  dd  ee"


def test_a_lost_kernel_shifts_no_waiting() -> None:
    """Rank 1 comes one late to each; its third kernel is not recorded."""
    on_time, late = (
        aligned(RANK.format(record=RECORDS, launch=CALLS, kernel=kernel))
        for kernel in (KERNELS, "     a   b       d   e")
    )
    run = draw_run(on_time, late, on_time)
    table = analyze(run, "collectives")["collectives"]
    assert records(table, "ranks", "start_skew_ns") == [
        (3, 1000), (3, 1000), (2, 0), (3, 1000), (3, 1000)
    ]  # fmt: skip
    doubts = analyze(run, "completeness")["doubts"]
    assert records(doubts, "rank", "doubt", "count") == [(1, "missing kernels", 1)]


def test_a_collective_of_which_a_rank_lacks_everything() -> None:
    whole = aligned(RANK.format(record=RECORDS, launch=CALLS, kernel=KERNELS))
    lacks = aligned(
        RANK.format(
            record="-   -       -   -", launch=CALLS.replace("c", " "), kernel=KERNELS.replace("cc", "  ")
        )
    )
    doubts = analyze(draw_run(whole, lacks, whole), "completeness")["doubts"]
    assert records(doubts, "rank", "doubt", "count") == [(1, "missing collectives", 1)]
