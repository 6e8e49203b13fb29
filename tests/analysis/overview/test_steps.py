"""What each step took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from msgspec.structs import replace

import tracelens
from tests.analysis.drawings import Drawing, drawings
from tests.analysis.moe_traces import Model, recorded
from tests.builders import aligned, draw, draw_run, events, read, records
from tracelens import analyze
from tracelens.analysis.moe import blocking
from tracelens.rendering.formats import one_result
from tracelens.table import Result
from tracelens.trace import PacePart, Trace, make_run, select_step


def drawn(text: str, **options: Any) -> Result:
    return analyze(make_run([draw(text, **options)]), "steps")


def values(result: Result, metric: str) -> list[float]:
    table = result["metrics"]
    return table[table["metric"] == metric]["value"].tolist()


TWO = """
                                  | 0    5    10   15   20   25   30
    step 1                        |   --------------
    step 2                        |                 --------------
    op aten::mm                   |   ---           ---   ---
    op aten::copy_                |         --
    op record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=8 out=8 dtype=Half |      --
    launch                        |   a  b  c       d     e
    launch cudaStreamSynchronize  |             ---
    s7 gemm                       | ==  aaaa         ddd   ee
    s9 ncclDevKernel_AllReduce    |       bbbb
    s7 copy bytes=64              |            cc
"""


def test_times_and_counts_of_whole_steps() -> None:
    metrics = drawn(aligned(TWO))
    times = ("dur_ns", "computation_ns", "comm_ns", "exposed_comm_ns", "idle_ns")
    columns = ("step", *times, "kernels", "launches", "blocking_calls")
    # The first step begins with its mark; what was queued before has run by then.
    assert records(metrics["steps"], *columns) == [
        ("ProfilerStep#1", 14000, 4000, 4000, 2000, 6000, 2, 3, 1),
        ("ProfilerStep#2", 14000, 5000, 0, 0, 9000, 2, 2, 0),
    ]
    assert values(metrics, "step.time") == [14000, 14000]
    assert values(metrics, "memcpy.time") == [2000, 0]
    assert values(metrics, "idle.fraction") == [6 / 14, 9 / 14]
    assert values(metrics, "comm.bytes") == [16, 0]
    assert values(metrics, "op[aten::mm].time") == [4000, 5000]
    assert values(metrics, "op[aten::mm].count") == [1, 2]
    assert values(metrics, "category[gemm].count") == [1, 2]
    assert values(metrics, "op[aten::copy_].time") == [2000]  # no row where there is none


AHEAD = """
                | 0    5    10   15   20   25   30   35
    step 1      | ----
    step 2      |     ----
    step 3      |         ----
    op aten::mm | --- --- ---
    launch      | ab  cd  ef
    s7 gemm     | ====aaaaabbbbbcccccdddddeeeeefffff
"""


def test_a_host_that_runs_ahead_does_not_decide_how_long_a_step_takes() -> None:
    metrics = drawn(AHEAD)
    assert records(metrics["steps"], "dur_ns", "kernels") == [(10000, 2), (10000, 2), (10000, 2)]
    assert analyze(make_run([draw(AHEAD)]), "timeline")["steps"]["total_ns"].tolist() == [
        4000,
        10000,
        10000,
        10000,
    ]


def test_work_of_another_stream_does_not_hold_a_step_up() -> None:
    metrics = drawn("""
        step 1      | ----------
        step 2      |           ----------
        op aten::mm |  --        --
        launch      |  ab        c
        s7 gemm     |   aaa       ccc
        s9 copy     |    bbbbbbbbbbbb
    """)
    assert records(metrics["steps"], "dur_ns") == [(10000,), (10000,)]
    # Its time counts where it runs, it itself where it was called.
    assert values(metrics, "memcpy.time") == values(metrics, "category[copy].time") == [5000, 2000]
    assert values(metrics, "category[copy].count") == [1]


def test_without_marks_all_is_one_step() -> None:
    metrics = drawn("s7 gemm | ==  ==")
    assert records(metrics["steps"], "step", "dur_ns", "idle_ns") == [("(whole trace)", 6000, 2000)]
    assert any("call prof.step()" in skip.reason for skip in metrics.skips)


def test_one_step_alone() -> None:
    run = select_step(make_run([draw(aligned(TWO))]), "2")
    assert records(analyze(run, "steps")["steps"], "step", "dur_ns", "kernels") == [
        ("ProfilerStep#2", 14000, 2)
    ]


def test_what_is_not_there_is_said() -> None:
    reasons = {skip.subject: skip.reason for skip in drawn(AHEAD).skips}
    assert set(reasons) == {"rank 0: comm.bytes", "rank 0: moe", "rank 0: memory.peak", "rank 0: step.pace"}
    assert "profile_memory=True" in reasons["rank 0: memory.peak"]


def memory(ts: float, allocated: int, device_type: int = 1) -> dict[str, Any]:
    args = {"Total Allocated": allocated, "Bytes": 64, "Device Id": 0, "Device Type": device_type, "Addr": 1}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "ts": ts,
        "pid": 100,
        "tid": 1,
        "args": args,
    }


def test_peak_of_memory_in_each_step() -> None:
    text = """
        step 1 | -----
        step 2 |      -----
        step 3 |           -----
        s7 k   |  ==   ==   ==
    """
    recorded_memory = [
        memory(1, 100),
        memory(2, 700),
        memory(3, 300),
        memory(7, 900, device_type=0),
        memory(12, 200),
    ]
    result = analyze(make_run([read([*events(text), *recorded_memory])]), "steps")
    # Nothing happens in the second step: what was allocated before still is; the host's memory is another.
    assert values(result, "memory.peak") == [700, 300, 300]
    table = result["metrics"]
    assert set(table[table["metric"] == "memory.peak"]["unit"]) == {"bytes"}


@pytest.mark.parametrize(
    "model", [Model(), Model(ranks=4, exchange="all_to_all", naming="scopes")], ids=["loop", "exchange"]
)
def test_stages_of_moe_layers_as_in_the_moe_analyzer(model: Model) -> None:
    run, _ = recorded(model)
    result, moe = analyze(run, "steps"), analyze(run, "moe")
    steps = result["steps"].groupby("rank").size()
    for row in moe["stages"].itertuples():
        table = result["metrics"]
        of_metric = table[
            (table["rank"] == row.rank) & (table["metric"] == f"moe.{row.stage.replace(' ', '_')}.time")
        ]
        whole, count = row.forward_ns + row.backward_ns + row.recompute_ns, int(steps[row.rank])
        assert of_metric["value"].sum() == pytest.approx(whole * count, abs=3 * count)
    assert sum(values(result, "moe.blocking_calls")) == moe["passes"]["blocking_count"].sum()


@given(drawings)
def test_parts_add_up_to_the_step(drawing: Drawing) -> None:
    result = drawn(drawing.text)
    by_metric = {
        str(metric): np.array(values(result, metric)) for metric in result["metrics"]["metric"].unique()
    }
    assert (by_metric["busy.time"] + by_metric["idle.time"] == by_metric["step.time"]).all()
    parts = ("computation.time", "exposed_comm.time", "memcpy.time", "memset.time")
    assert (sum(by_metric[name] for name in parts) == by_metric["busy.time"]).all()
    classes = sum(
        rows.sum() for name, rows in by_metric.items() if name.startswith("category[") and "].time" in name
    )
    assert classes == by_metric["busy.time"].sum()
    timeline = analyze(make_run([draw(drawing.text)]), "timeline")
    if "steps" in timeline.tables and len(by_metric["step.time"]):
        marked = timeline["steps"]
        whole = marked[~marked["step"].str.startswith("(")]
        assert by_metric["step.time"].sum() <= whole["total_ns"].sum()


def test_ranks_stand_below_each_other() -> None:
    result = analyze(draw_run(AHEAD, AHEAD), "steps")
    assert result["steps"]["rank"].tolist() == [0, 0, 0, 1, 1, 1]


def test_a_large_trace_is_a_small_baseline(corpus: Path) -> None:
    run = tracelens.load(corpus / "nvidia-h100-hf" / "dsv2_grouped.json.gz")
    result = analyze(run, "steps")
    assert len(one_result(result, {})) < 250_000
    assert result["steps"]["kernels"].nunique() == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ns_resolution", "negative_queue", "hta_control", "hta_test", "nccl_data"])
def test_recorded_steps_have_the_same_kernels(corpus: Path, name: str) -> None:
    """The marks of some of these are far from when the GPU came to the step."""
    steps = analyze(tracelens.load(corpus / "misc" / f"{name}.json.gz"), "steps")["steps"]
    assert steps["kernels"].nunique() == 1
    assert steps["dur_ns"].std() < 0.03 * steps["dur_ns"].mean()


def paced(rank: int, *parts: PacePart) -> Trace:
    trace = draw(aligned(TWO))
    return replace(trace, meta=replace(trace.meta, rank=rank, pace=parts))


BEFORE, AFTER = PacePart("before", 2, 8, 80_000, 1600, 16), PacePart("after", 15, 6, 78_000)


def test_steps_without_the_profiler_stand_beside_those_with_it() -> None:
    """Recorded steps of 14 us; 10 us without the profiler before them, 13 us after them."""
    steps = analyze(make_run([paced(0, BEFORE, AFTER)]), "steps")
    columns = ("rank", "part", "first_step", "steps", "step_ns", "profiled_ns", "tokens_per_s")
    assert records(steps["pace"], *columns) == [
        (0, "before", 2, 8, 10_000, 14_000, 2e7),
        (0, "after", 15, 6, 13_000, 14_000, None),
    ]
    assert steps["pace"]["samples_per_s"].fillna(0).tolist() == pytest.approx([2e5, 0])
    assert steps["pace"]["profiler_cost"].tolist() == pytest.approx([0.4, 1 / 13])
    assert steps.meta["step_without_profiler_ns"] == round(158_000 / 14)  # of all steps
    assert steps.meta["step_without_profiler_range_ns"] == [10_000, 13_000]
    assert steps.meta["profiler_cost"] == pytest.approx(14 / (158 / 14) - 1)
    assert steps.meta["tokens_per_s"] == pytest.approx(2e7)
    metrics = steps["metrics"].query("metric == 'step.pace'")
    assert records(metrics, "step", "value", "unit") == [("before", 10_000, "ns"), ("after", 13_000, "ns")]
    assert "rank 0: step.pace" not in {skip.subject for skip in steps.skips}


def test_a_few_steps_at_the_start_count_only_where_there_are_no_others() -> None:
    """Three slow ones before, twenty after."""
    few = PacePart("before", 2, 3, 90_000)
    steps = analyze(make_run([paced(0, few, PacePart("after", 12, 20, 200_000))]), "steps")
    assert records(steps["pace"], "part", "step_ns") == [("before", 30_000), ("after", 10_000)]
    assert steps.meta["step_without_profiler_ns"] == 10_000
    assert values(steps, "step.pace") == [10_000]
    alone = analyze(make_run([paced(0, few)]), "steps")
    assert alone.meta["step_without_profiler_ns"] == 30_000
    assert values(alone, "step.pace") == [30_000]


def test_a_rank_without_a_pace_says_so_and_the_others_are_shown() -> None:
    steps = analyze(make_run([paced(0), paced(1, BEFORE)]), "steps")
    assert records(steps["pace"], "rank", "part") == [(1, "before")]
    assert steps.meta["step_without_profiler_ns"] == 10_000
    assert [skip.subject for skip in steps.skips if "pace" in skip.subject] == ["rank 0: step.pace"]


def test_a_report_begins_with_the_step_without_the_profiler() -> None:
    report = tracelens.report(make_run([paced(0, BEFORE)]), ["steps", "timeline"])
    assert report.meta["step_without_profiler_ns"] == 10_000
    assert report.meta["profiler_cost"] == pytest.approx(0.4)
    assert "step_without_profiler_range_ns" not in report.meta
    assert "step_without_profiler_ns" not in tracelens.report(make_run([paced(0)]), ["steps"]).meta


def test_without_step_marks_the_host_may_be_done_before_the_gpu_begins() -> None:
    metrics = drawn("""
        launch                        | a b
        launch cudaStreamSynchronize  |     ---
        s7 gemm                       |        aa bb
    """)
    assert records(metrics["steps"], "step", "kernels", "launches", "blocking_calls") == [
        ("(whole trace)", 2, 2, 1)
    ]


def test_a_copy_and_the_synchronize_behind_it_in_one_op_are_one_wait() -> None:
    drawing = """
        step 0                        | ---------------------------------------------
        op aten::item                 |    --------------
        launch                        | a
        launch cudaMemcpyAsync        |     CCCCCC
        launch cudaStreamSynchronize  |           ---  SYNC
        s7 gemm                       |  aaaaaa
        s7 copy                       |        CC
    """
    one = drawing.replace("SYNC", "")
    assert waits(one) == (1, 9_000)
    # Two of the program's own in a row: the second one is outside of the op.
    assert waits(drawing.replace("SYNC", "  ----")) == (2, 13_000)
    # Within the op, too, where the first one is no copy, or something was launched in between.
    assert waits(one.replace("cudaMemcpyAsync", "cudaEventSynchronize").replace("C", "-"))[0] == 2
    assert waits(one.replace("aaaaaa", "aaaaaabb").replace("| a", "| a         b"))[0] == 2


def waits(drawing: str) -> tuple[int, int]:
    """Blocking calls of the one step, and the time that the host is blocked."""
    trace = draw(aligned(drawing))
    (count,) = values(analyze(make_run([trace]), "steps"), "blocking_calls")
    return int(count), int(trace.once(blocking).blocked_ns.sum())


def test_launches_are_unknown_where_none_is_recorded() -> None:
    metrics = drawn("s7 gemm | == ===")
    assert records(metrics["steps"], "kernels", "launches") == [(2, None)]
    assert values(metrics, "launch.count") == []
    assert any("launch.count" in skip.subject for skip in metrics.skips)
