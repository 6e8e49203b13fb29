"""Which traces are the ranks of a job."""

from __future__ import annotations

import pytest

from tests.builders import draw, draw_run
from tracelens.errors import ParseError
from tracelens.trace.run import make_run

KERNEL = "s7 k | ==="


def test_ranks_are_in_order() -> None:
    run = make_run([draw(KERNEL, rank=2), draw(KERNEL, rank=0)])
    assert run.ranks == [0, 2]


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank3.json", 3), ("step_rank-12.json.gz", 12), ("Rank_04_trace.json", 4), ("rank 7.json", 7)],
)
def test_the_rank_may_stand_in_the_file_name(name: str, rank: int) -> None:
    assert make_run([draw(KERNEL, name=name), draw(KERNEL, rank=99)]).ranks == [rank, 99]


def test_what_the_trace_says_counts_more_than_its_name() -> None:
    assert make_run([draw(KERNEL, rank=5, name="rank3.json")]).ranks == [5]


def test_one_trace_needs_no_rank() -> None:
    run = make_run([draw(KERNEL)])
    assert run.ranks == [0]
    assert run.traces[0].meta.rank == 0


def test_two_of_one_rank_are_refused_by_name() -> None:
    with pytest.raises(ParseError, match=r"b\.json: is rank 1, and so is a\.json"):
        make_run([draw(KERNEL, rank=1, name="a.json"), draw(KERNEL, rank=1, name="b.json")])


def test_several_without_a_rank_are_refused() -> None:
    with pytest.raises(ParseError, match=r"y\.json: which rank"):
        make_run([draw(KERNEL, rank=0), draw(KERNEL, name="y.json")])


def test_draw_run_numbers_its_ranks() -> None:
    assert draw_run(KERNEL, KERNEL, KERNEL).ranks == [0, 1, 2]
