"""Which traces are the ranks of a job, and which are none."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import draw, draw_run, events, read
from tracelens.errors import ParseError
from tracelens.trace import TraceMeta, check_ranks, make_run

KERNEL = "s7 k | ==="
S = 10**9
NOON = 1_790_000_000 * S
NO_TIME = (0, -1)


def meta(path: str, rank: int = -1, world_size: int = -1, epoch_ns: int = 0) -> TraceMeta:
    return TraceMeta(path, "kineto", rank=rank, world_size=world_size, epoch_ns=epoch_ns)


def ranks(*metas: TraceMeta | str, **options: Any) -> list[int]:
    """The ranks of traces without time; a text is a path."""
    found = [meta(item) if isinstance(item, str) else item for item in metas]
    return check_ranks(found, [NO_TIME] * len(found), **options)


def refusal(*metas: TraceMeta | str) -> str:
    with pytest.raises(ParseError) as caught:
        ranks(*metas)
    return str(caught.value)


def test_ranks_are_in_order() -> None:
    run = make_run([draw(KERNEL, rank=1, name="b.json"), draw(KERNEL, rank=0, name="a.json")])
    assert run.ranks == [0, 1]
    assert [trace.meta.path for trace in run.traces] == ["a.json", "b.json"]


def test_checked_ranks_are_in_the_order_of_the_traces() -> None:
    assert ranks(meta("a", 2), meta("b", 0), meta("c", 1)) == [2, 0, 1]


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank3.json", 3),
        ("traces/step_rank-12.json.gz", 12),
        ("Rank_04_trace.json", 4),
        ("rank 7.json", 7),
        ("s3://bucket/rank5/rank6.json", 6),
        ("job.zip!rank2.json", 2),
        ("rank8.zip!rank1.json", 1),
        ("rank8.zip!trace.json", 8),
    ],
)
def test_the_rank_may_stand_in_the_file_name(path: str, rank: int) -> None:
    assert ranks(path) == [rank]
    assert ranks(path, meta("other.json", rank + 1)) == [rank, rank + 1]


def test_a_date_is_no_rank() -> None:
    assert ranks("rank20261121083000.json") == [0]


def test_what_the_trace_says_counts_more_than_its_name() -> None:
    assert make_run([draw(KERNEL, rank=5, name="rank3.json")]).ranks == [5]


def test_one_trace_needs_no_rank() -> None:
    run = make_run([draw(KERNEL)])
    assert run.ranks == [0]
    assert run.traces[0].meta.rank == 0


@pytest.mark.parametrize("path", ["trace_3.json", "r3.json", "rank3/trace.json"])
def test_one_trace_has_no_rank_by_any_number(path: str) -> None:
    assert ranks(path) == [0]


@pytest.mark.parametrize(
    "pattern",
    ["trace_{}.json", "d20/r{}.json.gz", "x-TP-{}.trace.json.gz", "{}/trace.json", "a.zip!gpu{}.json"],
)
def test_the_only_number_that_differs_is_the_rank_if_it_runs_from_0(pattern: str) -> None:
    assert ranks(*(pattern.format(rank) for rank in (1, 0, 2))) == [1, 0, 2]
    assert "which rank it is" in refusal(*(pattern.format(rank) for rank in (1, 2, 3)))
    assert "which rank it is" in refusal(*(pattern.format(rank) for rank in (0, 2)))


def test_a_folder_named_rank_need_not_begin_at_0() -> None:
    assert ranks("job7/rank_5/trace.json", "job7/rank_4/trace.json") == [5, 4]


@pytest.mark.parametrize(
    "paths",
    [
        ("step_0.json", "step_1.json"),
        ("model_iter0.json", "model_iter1.json"),
        ("a0_b0.json", "a1_b1.json"),
        ("a0.json", "b1.json"),
        ("a0.json", "a00.json"),
        ("host_4012.171.pt.trace.json", "host_4013.171.pt.trace.json"),
    ],
)
def test_ambiguous_names_are_refused(paths: tuple[str, str]) -> None:
    assert refusal(*paths) == (
        f"{paths[0]}: neither the trace nor its name says which rank it is; name it rank<N>.json"
    )


def test_numbers_must_agree_with_what_the_traces_say() -> None:
    assert ranks(meta("t_1.json", 1), "t_0.json") == [1, 0]
    assert refusal(meta("t_1.json", 0), "t_0.json").startswith("t_0.json: neither the trace")


def test_two_of_one_rank_are_refused_by_name() -> None:
    with pytest.raises(ParseError) as caught:
        make_run([draw(KERNEL, rank=1, name="a.json"), draw(KERNEL, rank=1, name="b.json")])
    assert str(caught.value) == (
        "b.json: is rank 1, and so is a.json; pass one of them, or compare two: tracelens diff a.json b.json"
    )


def test_all_of_one_rank_are_named_but_not_hundreds() -> None:
    compare = "pass one of them, or compare two: tracelens diff"
    named = [meta(f"{name}/r.json", 1) for name in "abc"]
    assert refusal(*named) == (
        f"c/r.json: is rank 1, and so are a/r.json and b/r.json; {compare} a/r.json b/r.json"
    )
    named = [meta(f"{name}/r.json", 1) for name in "abcdefgh"]
    assert refusal(*named).startswith("h/r.json: is rank 1, and so are a/r.json, b/r.json and 5 more; pass")


def test_recordings_of_one_folder_are_offered_as_a_list() -> None:
    named = [meta(f"t/{name}.json", 0) for name in "abcde"]
    assert refusal(*named) == (
        "t: holds 5 recordings of rank 0: a.json, b.json and 3 more; pass one of them, or compare two: "
        "tracelens diff t/a.json t/b.json"
    )
    assert refusal(*(meta(f"{name}.json", 0) for name in "abc")).startswith(".: holds 3 recordings")


def test_a_rank_by_name_is_told_so() -> None:
    text = refusal("x/rank1.json", "y/rank1.json")
    assert text.startswith("y/rank1.json: is rank 1 by its name, and so is x/rank1.json; pass one of them")


def test_several_without_a_rank_are_refused() -> None:
    with pytest.raises(ParseError, match=r"y\.json: neither the trace"):
        make_run([draw(KERNEL, rank=0), draw(KERNEL, name="y.json")])


def test_a_gap_is_refused_with_the_files_beside_it() -> None:
    assert refusal(meta("a", 0), meta("d", 3), meta("b", 1)) == (
        "d: is rank 3 and b is rank 1, but rank 2 between them is missing; "
        "pass it too, or --partial (partial=True) to go without"
    )
    assert "but ranks 1 and 2 between them are missing; pass them too" in refusal("rank0.json", "rank3.json")
    assert refusal("rank0.json", "rank4.json", "rank6.json", "rank10.json") == (
        "rank4.json: is rank 4 and rank0.json is rank 0, but ranks 1 to 3 between them are missing, and "
        "further up rank 5 and ranks 7 to 9; pass them too, or --partial (partial=True) to go without"
    )


def test_gaps_are_allowed_on_demand() -> None:
    assert ranks("rank6.json", "rank0.json", partial=True) == [6, 0]
    assert make_run([draw(KERNEL, rank=7), draw(KERNEL, rank=2)], partial=True).ranks == [2, 7]


def test_some_ranks_of_a_job_are_enough() -> None:
    assert ranks(*(meta(f"{rank}", rank, 8) for rank in (3, 4, 5))) == [3, 4, 5]


def test_jobs_of_two_sizes_are_no_job() -> None:
    assert refusal(meta("a", 0, 8), meta("b", 1), meta("c", 2, 16)) == (
        "c: has world size 16, but a has 8; pass the traces of one job"
    )


def test_one_recording_may_be_an_hour_long() -> None:
    metas = [meta("a", 0), meta("b", 1), meta("c", 2)]
    spans = [(NOON, NOON + 3600 * S), (NOON + 3600 * S, NOON + 3700 * S), (NOON + 60 * S, NOON + 3660 * S)]
    assert check_ranks(metas, spans) == [0, 1, 2]


@pytest.mark.parametrize(
    ("apart_s", "told"),
    [(21_601, "6 hours"), (150_000, "41 hours"), (400_000, "4 days")],
)
def test_recordings_far_apart_are_no_job(apart_s: int, told: str) -> None:
    metas = [meta("late", 0), meta("mid", 1), meta("early", 2)]
    first, late = NOON, NOON + (1 + apart_s) * S
    with pytest.raises(ParseError) as caught:
        check_ranks(metas, [(late, late + S), (first, first + 30 * S), (first, first + S)])
    assert str(caught.value) == (
        f"late: begins {told} after early ends; pass the traces of one recording, "
        "or compare two: tracelens diff early late"
    )


BOOT = 5000 * S


@pytest.mark.parametrize(
    ("first", "epoch", "second", "other_epoch", "comparable"),
    [
        (NOON, 0, NOON + 90_000 * S, 0, True),
        (BOOT, NOON, BOOT + 90_000 * S, NOON, True),
        (BOOT, NOON, NOON + BOOT + 90_000 * S, 0, True),
        (BOOT, NOON, BOOT, NOON + 90_000 * S, True),
        (NOON, NOON, NOON + 90_000 * S, NOON + 90_000 * S, True),
        (BOOT + 90_000 * S, NOON, BOOT, NOON + 90_000 * S, False),  # the same time
        (BOOT, 0, BOOT + 90_000 * S, 0, False),  # since each machine was started
        (BOOT, 0, NOON, 0, False),
        (BOOT, 5, BOOT + 90_000 * S, 5, False),
    ],
)
def test_only_clocks_that_count_from_1970_are_compared(
    first: int, epoch: int, second: int, other_epoch: int, comparable: bool
) -> None:
    metas = [meta("a", 0, epoch_ns=epoch), meta("b", 1, epoch_ns=other_epoch)]
    for order in permutations([(metas[0], first), (metas[1], second)]):
        chosen, starts = zip(*order, strict=True)
        spans = [(start, start + S) for start in starts]
        if comparable:
            with pytest.raises(ParseError, match="b: begins 24 hours after a ends"):
                check_ranks(chosen, spans)
        else:
            assert check_ranks(chosen, spans) == [item.rank for item in chosen]


def test_a_trace_without_time_is_compared_with_none() -> None:
    metas = [meta("a", 0, epoch_ns=NOON), meta("b", 1)]
    assert check_ranks(metas, [NO_TIME, (NOON + 90_000 * S, NOON + 90_001 * S)]) == [0, 1]


def test_times_are_those_of_all_events() -> None:
    early = draw(KERNEL, rank=0, name="a", start_ns=NOON)
    with pytest.raises(ParseError, match="b: begins 27 hours after a ends"):
        make_run([early, draw(KERNEL, rank=1, name="b", start_ns=NOON + 99_000 * S + 4000)])
    long = draw("s7 k | ==", rank=0, name="a", start_ns=NOON, ns_per_char=40_000 * S)
    assert make_run([long, draw(KERNEL, rank=1, start_ns=NOON + 99_000 * S)]).ranks == [0, 1]


def test_the_host_is_what_the_trace_says() -> None:
    assert draw(KERNEL, host_name="node7.example.org").meta.host == "node7.example.org"
    assert draw(KERNEL).meta.host == ""
    assert read(events(KERNEL), host_name=17).meta.host == ""


@given(st.permutations(range(12)), st.integers(0, 4))
def test_whole_runs_of_ranks_pass_in_any_order(order: list[int], first: int) -> None:
    wanted = [first + rank for rank in order]
    assert ranks(*(f"x/rank{rank}.json" for rank in wanted)) == wanted
    assert ranks(*(meta("same", rank, 16) for rank in wanted)) == wanted


@given(st.sets(st.integers(0, 20), min_size=2))
def test_a_set_of_ranks_passes_if_and_only_if_nothing_is_missing(wanted: set[int]) -> None:
    metas = [meta(f"{rank}", rank) for rank in wanted]
    whole = max(wanted) - min(wanted) == len(wanted) - 1
    if whole:
        assert ranks(*metas) == [*wanted]
    else:
        missing = min({*range(min(wanted), max(wanted))} - wanted)
        assert f" {missing} " in refusal(*metas)


def test_draw_run_numbers_its_ranks() -> None:
    assert draw_run(KERNEL, KERNEL, KERNEL).ranks == [0, 1, 2]
