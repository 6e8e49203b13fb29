"""The definitions of docs/concepts hold on the sample traces: computed again from the tables, not quoted."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracelens
from tracelens.analysis.host import CAUSES

ROOT = Path(__file__).parents[2]
EP4 = "sample_traces/ladder/ep4/00_baseline"


@cache
def load(sample: str = EP4) -> tracelens.Run:
    return tracelens.load(ROOT / sample)


@cache
def table(analyzer: str, name: str, sample: str = EP4) -> pd.DataFrame:
    return tracelens.analyze(load(sample), analyzer)[name]


def test_steps_follow_one_another_and_are_busy_or_idle() -> None:
    steps = table("timeline", "steps")
    np.testing.assert_array_equal(steps["total_ns"], steps["busy_ns"] + steps["idle_ns"])
    whole = table("timeline", "timeline").set_index(["metric", "rank"])["dur_ns"]
    of_rank = steps.groupby("rank")[["total_ns", "busy_ns"]].sum()
    np.testing.assert_array_equal(of_rank["busy_ns"], whole["busy"])
    # The first step begins at its mark on the host, a moment before the first GPU work.
    assert (of_rank["total_ns"] >= whole["total"]).all()
    assert (of_rank["total_ns"] < 1.02 * whole["total"]).all()


def test_waiting_ends_when_the_last_rank_starts() -> None:
    participants = table("collectives", "participants")
    key = ["group", "group_name", "collective", "order"]
    last_start = participants.groupby(key, observed=True)["ts_ns"].transform("max")
    waiting = np.minimum(last_start - participants["ts_ns"], participants["dur_ns"])
    np.testing.assert_array_equal(participants["wait_ns"], waiting)
    of_rank = participants.groupby("rank")[["dur_ns", "wait_ns"]].sum()
    ranks = table("collectives", "ranks").set_index("rank")
    np.testing.assert_array_equal(ranks["wait_ns"], of_rank["wait_ns"])
    np.testing.assert_array_equal(ranks["kernel_ns"], of_rank["dur_ns"])
    np.testing.assert_array_equal(ranks["comm_ns"], ranks["kernel_ns"] - ranks["wait_ns"])


def test_the_latency_is_the_shortest_kernel_and_bandwidths_are_those_of_nccl_tests() -> None:
    collectives = table("collectives", "collectives")
    key = ["group", "group_name", "collective", "order"]
    shortest = table("collectives", "participants").groupby(key, observed=True)["dur_ns"].min()
    np.testing.assert_array_equal(
        collectives.set_index(key)["latency_ns"].sort_index(), shortest.sort_index()
    )
    # Uneven all-to-alls move other bytes in other times: tests/analysis/comm/test_transfer.py.
    even = collectives[collectives["collective"] != "all_to_allv"]
    assert 0 < len(even) < len(collectives)
    np.testing.assert_allclose(even["algbw_bytes_per_s"], even["bytes"] / even["latency_ns"] * 1e9)
    size = collectives["group_size"]
    factor = np.where(collectives["collective"] == "allreduce", 2.0, 1.0) * (size - 1) / size
    np.testing.assert_allclose(collectives["busbw_bytes_per_s"], collectives["algbw_bytes_per_s"] * factor)


def test_idle_causes_add_up_to_the_idle_time_and_are_those_of_the_page() -> None:
    causes = table("idle", "causes")
    steps = table("timeline", "steps").groupby("rank")["idle_ns"].sum()
    np.testing.assert_array_equal(causes.groupby("rank")["dur_ns"].sum(), steps)
    page = (ROOT / "docs/concepts/idle.md").read_text()
    assert [cause for cause in CAUSES if f"`{cause}`" not in page] == []


def test_exposed_communication_is_what_is_not_hidden() -> None:
    overlap = table("overlap", "overlap", "sample_traces/ladder/ep4/06_overlap_shared")
    np.testing.assert_array_equal(overlap["exposed_ns"], overlap["comm_ns"] - overlap["hidden_ns"])
    np.testing.assert_allclose(overlap["hidden_fraction"], overlap["hidden_ns"] / overlap["comm_ns"])
    assert overlap["hidden_ns"].gt(0).any()
    timeline = table("timeline", "timeline", "sample_traces/ladder/ep4/06_overlap_shared")
    computing = timeline[timeline["metric"] == "computation"].set_index("rank")["dur_ns"]
    bound = np.minimum(overlap["comm_ns"], overlap["rank"].map(computing)) / overlap["comm_ns"]
    np.testing.assert_allclose(overlap["bound_fraction"], bound, rtol=1e-3)


def test_the_roofline_is_the_longer_of_flops_and_bytes() -> None:
    ops = table("roofline", "roofline")
    ops = ops[(ops["name"] == "aten::mm") & (ops["dtype"] == "bf16")]
    h200 = (
        989.4e12,
        4.8e12,
    )  # dense bf16 and memory bandwidth of the data sheet, see tracelens/devices/h200.toml
    moved = ops["read_bytes"] + ops["write_bytes"]
    least = ops["count"] * np.maximum(ops["flops"] / h200[0], moved / h200[1]) * 1e9
    np.testing.assert_allclose(ops["roofline_ns"], least, rtol=1e-2)
    np.testing.assert_allclose(ops["efficiency"], ops["roofline_ns"] / ops["dur_ns"], rtol=1e-3)
    np.testing.assert_allclose(ops["recoverable_ns"], ops["dur_ns"] - ops["roofline_ns"], atol=len(ops))


def test_mfu_is_flops_over_time_over_peak() -> None:
    steps = table("roofline", "utilisation")
    per_second = steps["flops"] / steps["dur_ns"] * 1e9
    np.testing.assert_allclose(steps["flops_per_s"], per_second)
    peak = per_second / steps["hfu"]
    np.testing.assert_allclose(peak, peak.iloc[0])
    np.testing.assert_allclose(
        steps["mfu"], (steps["flops"] - steps["recompute_flops"]) / steps["dur_ns"] * 1e9 / peak
    )


def test_a_saving_is_the_difference_of_two_replays() -> None:
    findings = table("findings", "findings")
    replayed = findings[findings["basis"] == "replayed"]
    assert len(replayed)
    for row in replayed.itertuples():
        projected = tracelens.whatif(load(), [row.scenario])["whatif"].iloc[0]
        assert row.saving_ns == projected["base_ns"] - projected["projected_ns"], row.scenario
    np.testing.assert_allclose(
        findings["fraction_of_step"], findings["additional_ns"] / projected["base_ns"], rtol=1e-5
    )
    assert findings["additional_ns"].is_monotonic_decreasing


def test_a_replay_without_changes_takes_the_recorded_step() -> None:
    result = tracelens.whatif(load(), ["identity"])
    (row,) = result["whatif"].itertuples()
    assert row.base_ns == row.projected_ns
    assert row.base_ns in [
        round(total) for total in table("timeline", "steps").groupby("step")["total_ns"].mean()
    ]
    (as_measured, durations_only) = result["explained"].itertuples()
    assert as_measured.replayed_ns == row.base_ns
    assert abs(durations_only.replayed_ns / row.base_ns - 1) < 0.01


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("gc", "garbage_collection"),
        ("host_delay", "silent_host"),
        ("token_skew", "token_load"),
        ("slow_kernels", "slow_kernels"),
        ("blocking_call", "blocking_call"),
        ("control", None),
    ],
)
def test_stragglers_are_significant_where_there_is_a_fault(fault: str, cause: str | None) -> None:
    late = table("stragglers", "stragglers", f"sample_traces/faults/{fault}")
    significant = late[late["significance"] == "significant"]
    assert list(zip(significant["rank"], significant["cause"], strict=True)) == (
        [(1, cause)] if cause else []
    )
    assert (significant["p_value"] < 0.01).all()


def test_doubts_come_with_a_cut_file(tmp_path: Path) -> None:
    whole = (ROOT / "sample_traces/one_gpu/loop/rank0.json.gz").read_bytes()
    (tmp_path / "rank0.json.gz").write_bytes(whole[:600_000])
    doubts = tracelens.analyze(tracelens.load(tmp_path / "rank0.json.gz"), "completeness")["doubts"]
    assert set(doubts["doubt"]) == {"short step", "truncated"}
    with pytest.raises(tracelens.TracelensError, match="cannot be trusted"):
        tracelens.gate(
            ROOT / "sample_traces/one_gpu/loop", tmp_path / "rank0.json.gz", ["kernel.count<=1.01"]
        )
