"""Each single edit of a real trace is named by the comparison, and nothing else is."""

from __future__ import annotations

from functools import cache

import pytest

from tests.builders import read
from tests.compare.diff.edits import EDITS, Program, random_edit
from tests.effort import effort
from tracelens.compare.diff import diff
from tracelens.table import Result
from tracelens.trace import Run, make_run

SAMPLES = ("one_gpu/grouped", "one_gpu/loop")
SEEDS = effort(2 * len(EDITS), 200)


@cache
def program(name: str) -> Program:
    return Program(name)


@cache
def base(name: str) -> Run:
    return make_run([read(program(name).events, **program(name).header)])


def named(result: Result) -> list[tuple[str, str, str]]:
    """Kind, base and candidate of all changes."""
    table = result["changes"]
    return list(zip(table["kind"].astype(str), table["base"], table["cand"], strict=True))


def check(sample: str, seed: int) -> None:
    edit = random_edit(program(sample), seed)
    cand = make_run([read(edit.events, **program(sample).header)])
    result = diff(base(sample), cand)
    assert named(result) == [(edit.kind, edit.base, edit.cand)]
    sums = result["waterfall"].groupby("level", observed=True)["delta_ns"].sum()
    assert set(sums) == {result.meta["delta_ns"]}


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_trace_against_itself_is_all_zero(sample: str) -> None:
    result = diff(base(sample), base(sample))
    assert named(result) == []
    assert not result["waterfall"]["delta_ns"].any()
    assert not len(result["substitutions"])
    assert result.meta["delta_ns"] == 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_single_edit_is_named_and_nothing_else(seed: int) -> None:
    check("one_gpu/grouped", seed)


@pytest.mark.parametrize("seed", range(len(EDITS)))
def test_edits_in_a_trace_with_an_expert_loop_are_named(seed: int) -> None:
    check("one_gpu/loop", seed)
