"""Comparisons of real traces: a before/after pair, and one model on two kinds of GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelens
from tests.conformance.corpus import Case
from tracelens.compare.diff import diff
from tracelens.compare.diff.breakdown import GROUPED
from tracelens.table import Result


def compared(corpus: Path, base: str, cand: str) -> Result:
    return diff(tracelens.load(corpus / base), tracelens.load(corpus / cand))


@pytest.fixture(scope="module")
def grouping(corpus: Path) -> Result:
    return compared(corpus, "nvidia-h100-hf/dsv2_eager.json.gz", "nvidia-h100-hf/dsv2_grouped.json.gz")


def test_the_waterfall_is_the_difference_to_the_nanosecond(grouping: Result) -> None:
    table = grouping["waterfall"]
    for _, rows in table.groupby("level", observed=True):
        assert rows["base_ns"].sum() == grouping.meta["base_ns"]
        assert rows["cand_ns"].sum() == grouping.meta["cand_ns"]
        assert rows["delta_ns"].sum() == grouping.meta["delta_ns"]


def test_the_loop_that_became_grouped_products_comes_first(grouping: Result) -> None:
    first, second = grouping["waterfall"].iloc[:2].itertuples()
    assert (first.level, first.name) == ("cause", GROUPED)
    assert first.delta_ns < -390_000_000
    assert first.base_count > 15_000
    assert first.cand_count < 400
    assert second.name == "idle: launch overhead"
    assert second.delta_ns < -200_000_000
    change = grouping["changes"].iloc[0]
    assert (change["kind"], change["noise"]) == ("exchanged", "beyond")
    assert "aten::_grouped_mm" in change["cand"]


def test_what_both_have_takes_the_same_time(grouping: Result) -> None:
    rows = grouping["waterfall"].set_index(["level", "name"])
    same = rows.loc[("cause", "same kernels")]
    assert same["cand_ns"] == pytest.approx(same["base_ns"], rel=0.1)
    shared = rows.loc[("stage", "shared expert")]
    assert shared["cand_ns"] == pytest.approx(shared["base_ns"], rel=0.02)


def test_one_model_on_two_kinds_of_gpu_is_aligned(corpus: Path) -> None:
    name = "Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    result = compared(corpus, f"mi300x/{name}", f"h100/{name}")
    assert result.meta["aligned_fraction"] >= 0.95
    pairs = result["substitutions"]
    assert pairs["base_kernel"].astype(str).str.startswith("Cijk_").any()
    assert len(pairs) > 10


def test_a_trace_against_itself_is_all_zero(small: Case) -> None:
    if any(not len(trace.work.event) for trace in small.run.traces):
        pytest.skip("no GPU work on some rank, so no step time to compare")
    result = diff(small.run, small.run)
    assert not result["waterfall"]["delta_ns"].any()
    assert not len(result["changes"])
    assert result.meta["delta_ns"] == 0
