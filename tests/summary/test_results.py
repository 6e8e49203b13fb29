"""Verdicts and tiles of comparisons and projections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.summary.sample import MS, names, result, tile
from tracelens.rendering.summary import result_summary
from tracelens.session import (
    project_bounds,
    project_bubble,
    project_memory,
    project_pipeline,
    project_scaling,
    search_layouts,
)
from tracelens.table import Result, Summary

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def summed_up(made: Result) -> Summary:
    summary = result_summary(made)
    assert summary is not None
    return summary


def row(level: str, name: str, base_ms: float, cand_ms: float, noise: str = "beyond") -> dict[str, Any]:
    """A row of the waterfall of a diff."""
    base, cand = round(base_ms * MS), round(cand_ms * MS)
    return {
        "level": level,
        "name": name,
        "base_ns": base,
        "cand_ns": cand,
        "delta_ns": cand - base,
        "noise": noise,
    }


def diff(
    base_ms: float, cand_ms: float, *rows: Mapping[str, Any], pace: tuple[float, float] | None = None
) -> Summary:
    meta = {"base_ns": base_ms * MS, "cand_ns": cand_ms * MS}
    paces = [
        {"side": side, "step_ns": ms * MS} for side, ms in zip(("base", "cand"), pace or (), strict=False)
    ]
    return summed_up(result("diff", meta=meta, waterfall=rows, pace=paces))


def test_a_diff_names_the_largest_changes_beyond_the_noise() -> None:
    made = diff(
        58.4,
        53.1,
        row("cause", "other kernels", 5, 5.1),
        row("cause", "expert GEMMs", 20, 15.9),
        row("cause", "idle: launch overhead", 10, 8, "within"),
        row("cause", "copies", 4, 3.4),
    )
    assert (
        made.verdict
        == "9.1% faster: 58.4 ms to 53.1 ms a recorded step; expert GEMMs -4.10 ms, copies -600 µs."
    )
    assert names(made) == ["base_step_time", "cand_step_time", "change", "change_1", "change_2"]
    assert tile(made, "change").value == pytest.approx(-5.3 * MS)
    assert tile(made, "change_1").value == pytest.approx(-4.1 * MS)


SAME = (20, 20, 8, 12)
"""Work before and after of a rank, and idle time before and after, ms."""


@pytest.mark.parametrize(
    ("of_ranks", "noise", "named"),
    [
        ([SAME, SAME, (20, 30, 8, 12), SAME], "within", (2, 10)),
        ([SAME, SAME, (20, 30, 8, 12), (20, 29, 8, 12)], "beyond", None),  # two ranks are
        ([(20, 30, 8, 2), (20, 30, 2, 8)], "beyond", None),  # all are
        ([SAME, SAME, (20, 20, 8, 30)], "beyond", (2, 22)),
        ([SAME, SAME, (20, 20, 8, 30)], "within", None),  # idle time moves between ranks in any run
        ([(20, 10, 8, 8), (20, 35, 8, 8)], "within", (1, 15)),
    ],
)
def test_a_diff_names_the_rank_on_which_most_of_it_lies(
    of_ranks: list[tuple[int, int, int, int]], noise: str, named: tuple[int, int] | None
) -> None:
    rows = [
        {
            "rank": rank,
            **{f"{side}_work_ns": ms * MS for side, ms in zip(("base", "cand"), times[:2], strict=True)},
            **{f"{side}_idle_ns": ms * MS for side, ms in zip(("base", "cand"), times[2:], strict=True)},
            "work_delta_ns": (times[1] - times[0]) * MS,
            "idle_delta_ns": (times[3] - times[2]) * MS,
            "cause": "same kernels",
        }
        for rank, times in enumerate(of_ranks)
    ]
    meta = {"base_ns": 40 * MS, "cand_ns": 52 * MS, "step_noise": noise}
    waterfall = [row("cause", "same kernels", 20, 23)]
    made = summed_up(result("diff", meta=meta, waterfall=waterfall, ranks=rows))
    assert ("most of it on rank" in made.verdict) == ("change_rank" in names(made)) == (named is not None)
    if named:
        assert (tile(made, "change_rank").label, tile(made, "change_rank").value) == (
            f"Rank {named[0]}",
            named[1] * MS,
        )
        assert f"on rank {named[0]}: " in made.verdict


def test_a_diff_looks_at_stages_where_causes_within_the_noise_explain_most() -> None:
    made = diff(
        70,
        40,
        row("cause", "idle: launch overhead", 25, 5, "within"),
        row("cause", "experts", 10, 8),
        row("stage", "(idle)", 36, 6),
    )
    assert made.verdict == "43% faster: 70.0 ms to 40.0 ms a recorded step; idle -30.0 ms."


@pytest.mark.parametrize(
    ("noise", "end"),
    [("within", "no part of it exceeds the noise."), ("unknown", "with single steps the noise is unknown.")],
)
def test_a_diff_without_certain_changes_names_none(noise: str, end: str) -> None:
    made = diff(50, 60, row("cause", "experts", 20, 30, noise))
    assert made.verdict == f"20% slower: 50.0 ms to 60.0 ms a recorded step; {end}"
    assert names(made) == ["base_step_time", "cand_step_time", "change"]


def test_a_diff_of_equal_runs_says_so() -> None:
    assert (
        diff(50, 50.1, row("cause", "experts", 20, 20.1, "within")).verdict
        == "No change: 50.0 ms to 50.1 ms a recorded step."
    )


def test_a_diff_has_the_steps_without_the_profiler() -> None:
    made = diff(50, 40, row("cause", "experts", 20, 10), pace=(40, 30))
    assert "; without the profiler 25% faster: 40.0 ms to 30.0 ms; " in made.verdict
    assert tile(made, "cand_step_time").note == "without the profiler 30.0 ms"


def rung(name: str, timed_ms: float, gain: float, noise: str = "beyond") -> dict[str, Any]:
    timed = round(timed_ms * MS)
    return {"name": name, "timed_ns": timed, "tokens_per_s": 1000, "gain": float(gain), "noise": noise}


def test_a_ladder_names_what_gains_and_what_loses() -> None:
    rungs = [
        rung("baseline", 40, 0, ""),
        rung("fast", 20, 1.0),
        rung("maybe", 19, 2.0, "within"),
        rung("slow", 25, -0.2),
    ]
    meta = {"base_ns": 60 * MS, "last_ns": 35 * MS, "speedup": 1.6}
    made = summed_up(result("ladder", meta=meta, rungs=rungs))
    assert made.verdict == (
        "1.60 x the throughput: 40.0 ms to 25.0 ms a step without the profiler over 3 rungs; "
        "fast gains most (+100%), slow loses most (-20%)."
    )
    assert tile(made, "speedup").text == "1.60 x"


def test_an_untimed_ladder_has_the_recorded_steps() -> None:
    meta = {"base_ns": 60 * MS, "last_ns": 30 * MS, "speedup": None}
    made = summed_up(
        result("ladder", meta=meta, rungs=[rung("baseline", 0, 0, ""), rung("fast", 0, -1.0, "")])
    )
    assert made.verdict == "60.0 ms to 30.0 ms a step as recorded over 1 rung."


def test_memory_fits_or_not_by_how_much() -> None:
    sizes = {"gpus": 768, "pp": 24, "ep": 8, "vpp": 4}
    projected = project_memory("moe_1t", devices=["mi300x", "mi355x"], **sizes)  # type: ignore[arg-type]
    made = summed_up(projected)
    fits = projected.tables["fits"].set_index("device")
    assert list(fits["fits"]) == ["no", "yes"]
    assert tile(made, "peak_memory").value == projected.meta["worst_bytes"]
    assert (tile(made, "fits_mi300x").text, tile(made, "fits_mi355x").text) == ("does not fit", "fits")
    spare = fits["free_bytes"] / 2**30
    assert f"does not fit mi300x ({-spare['mi300x']:.1f} GiB too much)" in made.verdict
    assert f"fits mi355x ({spare['mi355x']:.1f} GiB to spare)" in made.verdict


def test_a_search_names_the_fastest_layout_or_that_none_fits() -> None:
    found = search_layouts("moe_1t", 8, devices=["mi300x"], ep=8, pp=1, cp=1, tp=1, vpp=1)
    assert summed_up(found).verdict.startswith("No layout fits mi300x: the smallest needs ")
    found = search_layouts("deepseek_v2_lite", 8, devices=["mi300x"])
    best = found.tables["layouts"].iloc[0]
    made = summed_up(found)
    best_layout = f"Fastest on 8 x mi300x: {found.meta['best']['mi300x']}, "
    assert re.match(rf"{re.escape(best_layout)}[\d,]+ s a step, [\d,]+ tokens/s", made.verdict)
    assert tile(made, "step_time_mi300x").value == best["step_ns"]
    assert tile(made, "step_time_mi300x").note == "projected"
    roofline = ["matrix=achievable", "launches=none"]
    bound = summed_up(search_layouts("deepseek_v2_lite", 8, devices=["mi300x"], assume=roofline))
    assert re.match(r"Fastest on 8 x mi300x: \S+, at least [\d,]+ s a step, at most [\d,]+", bound.verdict)
    assert tile(bound, "step_time_mi300x").note == "lower bound"


def test_scaling_says_what_is_kept_and_which_dispatch_is_faster() -> None:
    projected = project_scaling("moe_2t", 1024, "mi300x", ep=(8, 64))
    made = summed_up(projected)
    rows = projected.tables["scaling"].set_index(["dispatch", "ep"])
    kept = [f"{rows.loc[(name, 64), 'relative']:.0%}" for name in ("alltoall", "deepep")]
    low, high = (f"{rows.loc[('deepep', ep), 'speedup']:.2f}" for ep in (8, 64))
    assert made.verdict == (
        f"From EP 8 to 64, alltoall keeps {kept[0]} and deepep {kept[1]} of its tokens/s; "
        f"deepep is {low} to {high} times as fast as alltoall."
    )
    assert tile(made, "best").text == "deepep, EP 8"
    assert tile(made, "kept_deepep").value == rows.loc[("deepep", 64), "relative"]
    alone = summed_up(project_scaling("moe_2t", 64, "mi300x", ep=8, pp=1, dispatch="dedup"))
    assert alone.verdict.startswith("Dedup, EP 8: ")


def test_schedules_are_compared_with_the_first() -> None:
    made = summed_up(project_pipeline(pp=4, micro_batches=8, forward_ms=1, schedules=["1f1b", "zb-v"]))
    assert made.verdict.startswith("zb-v takes 25.5 ms for all micro-batches (4 stages, 8 micro-batches); ")
    assert made.verdict.endswith("; 23% less than 1f1b.")
    assert [each.label for each in made.tiles] == ["zb-v", "1f1b"]


def test_a_bubble_says_what_twice_the_chunks_would_do() -> None:
    projected = project_bubble(16, 2**25, 64)
    made = summed_up(projected)
    assert tile(made, "bubble").value == projected.data["bubble"].array("bubble_ratio")[0]
    assert made.verdict.endswith("VPP 2 would make it 2.85%.")


def test_bounds_name_the_fastest_all_reduce_of_all_nodes() -> None:
    made = summed_up(project_bounds(device="mi300x", nodes=4))
    assert "fastest all-reduce on 4 nodes: one-shot, two-shot from" in made.verdict
    assert [each.label for each in made.tiles] == [
        "all-to-all per expert",
        "all-to-all per GPU",
        "GEMM + reduce-scatter",
        "all-gather + GEMM",
    ]


def test_collectives_are_compared_with_their_links() -> None:
    made = summed_up(project_bounds(SAMPLES / "toggles/tensor"))
    assert made.verdict.startswith("all_to_allv of EP 0-1 reaches 66% of the speed of its links")
    assert made.tiles[0].unit == "fraction"


def scenario(name: str, ms: float, tokens: float = 1) -> dict[str, Any]:
    """A row of the table whose base is 50 ms."""
    columns = ("projected", "low", "high", "rerun_low", "rerun_high")
    return {"scenario": name, "gain": tokens * 50 / ms - 1} | {
        f"{column}_ns": round(ms * MS) for column in columns
    }


@pytest.mark.parametrize(
    ("rows", "end"),
    [
        ([("a", 40), ("b", 42.5)], "a would bring it to 40 ms, b to 42.5 ms."),
        ([("a", 50)], "no clear gain."),
        ([("a", 60)], "a would bring it to 60 ms."),
        ([("twice", 80, 2)], "twice would bring it to 80 ms for 2 times the tokens, +25% tokens/s."),
        ([("half", 40, 0.5)], "half would bring it to 40 ms for 0.5 times the tokens, -38% tokens/s."),
        ([("twice", 100, 2)], "no clear gain."),
        ([], "no scenario applies."),
    ],
)
def test_whatif_names_the_scenarios_that_save_most(rows: list[tuple[Any, ...]], end: str) -> None:
    meta = {"step": "ProfilerStep#1", "base_ns": 50 * MS, "recorded_ns": 50 * MS}
    made = summed_up(result("whatif", meta=meta, whatif=[scenario(*each) for each in rows]))
    assert made.verdict == f"50.0 ms a step as measured; {end}"


def test_whatif_promises_nothing_where_the_interval_holds_the_base() -> None:
    meta = {"step": "ProfilerStep#1", "base_ns": 50 * MS, "recorded_ns": 50 * MS}
    unclear = scenario("a", 45) | {"rerun_high_ns": 51 * MS}
    made = summed_up(result("whatif", meta=meta, whatif=[unclear]))
    assert made.verdict == "50.0 ms a step as measured; no clear gain."
    assert made.tiles[1].note == "no clear gain"


def test_whatif_says_where_its_base_is_not_the_recorded_step() -> None:
    meta = {"step": "all steps", "base_ns": 40 * MS, "recorded_ns": 50 * MS}
    made = summed_up(result("whatif", meta=meta))
    assert made.verdict.startswith("40.0 ms for all steps without the profiler, 50.0 ms with it; ")


def test_other_results_have_no_summary() -> None:
    assert result_summary(result("kernels")) is None
