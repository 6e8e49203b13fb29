"""Recorded runs: unchanged durations give back the step, and scenarios come close to what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import tracelens
from tests.effort import of_its_kind
from tests.what_if.replays import check_explained, check_identity
from tracelens.devices import Bandwidth, Measured, device, device_toml
from tracelens.trace import Run
from tracelens.what_if import whatif

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
FOLDERS = sorted({path.parent for path in SAMPLES.rglob("rank*.json.*") if of_its_kind(path.parent)})
LADDER = SAMPLES / "ladder" / "ep4"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(SAMPLES)))
def test_nothing_changed_gives_back_the_step(folder: Path) -> None:
    run = tracelens.load(folder)
    check_identity(run)
    check_explained(run, 0.05)


def test_balanced_tokens_are_what_a_run_without_skew_measured() -> None:
    """A run in which one rank gets twice the tokens, against the same run without that."""
    skewed = whatif(tracelens.load(SAMPLES / "faults" / "token_skew"), ["balanced"])
    control = whatif(tracelens.load(SAMPLES / "faults" / "control"), ["identity"]).meta["base_ns"]
    projected = int(skewed["whatif"]["projected_ns"][0])
    assert skewed.meta["base_ns"] / control > 1.15
    assert projected / control == pytest.approx(1, abs=0.1)


def test_balanced_all_to_alls_take_measured_times(tmp_path: Path) -> None:
    """At one rate they shrink as their bytes do; where all take as long, they keep their time."""
    run, left = tracelens.load(LADDER / "00_baseline"), []
    sizes = (1, 1 << 30)
    for name, rates in (("plain", ()), ("flat", (1e11, 1e11)), ("same", (1e2, 1e2 * sizes[1]))):
        curves = (Bandwidth("all_to_all", sizes, rates, 4, 4),) if rates else ()
        path = tmp_path / f"{name}.toml"
        path.write_text(device_toml(replace(device("h200"), measured=Measured(bandwidths=curves))))
        text = whatif(run, ["balanced"], device=str(path))["assumptions"]["assumption"][0]
        before, after = re.findall(r"(\S+) ms", text)
        left.append(float(after) / float(before))
        assert ("at the rates measured among 4 ranks" in text) == (name != "plain")
    assert left == [left[0], left[0], 1.0]
    assert left[0] < 0.99


def test_without_garbage_collection_a_run_is_what_one_without_it_measured() -> None:
    """A run in which both ranks collect garbage for tens of milliseconds, against the same run without."""
    paused = whatif(tracelens.load(SAMPLES / "faults" / "gc"), ["no_garbage_collection"])
    control = whatif(tracelens.load(SAMPLES / "faults" / "control"), ["identity"]).meta["base_ns"]
    assert paused.meta["base_ns"] / control > 1.5
    assert int(paused["whatif"]["projected_ns"][0]) / control == pytest.approx(1, abs=0.1)


def test_sync_free_layers_take_away_waiting_only() -> None:
    """Measured sync-free layers launch more: without that the projection is too low, with it within 12 %.

    The host sets the pace of these runs, so each launch more costs what a launch takes on the path.
    """
    before = tracelens.load(LADDER / "03_dedup")
    result = whatif(before, ["sync_free"])
    projected = int(result["whatif"]["projected_ns"][0])
    path = result["critical_path"]
    host = path[(path["scenario"] == "sync_free") & (path["category"] == "host")]["dur_ns"].sum()
    launches = _launches(before)
    for rung in ("04_sync_free_2", "05_sync_free_3"):
        run = tracelens.load(LADDER / rung)
        measured = tracelens.analyze(run, "steps")["steps"]["dur_ns"].mean()
        assert 0.8 < projected / measured < 0.9
        more = (_launches(run) - launches) * host / launches
        assert (projected + more) / measured == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(
    "name", ["pipeline/plain", "toggles/baseline", "toggles/exchange", "toggles/tensor", "faults/gc"]
)
def test_no_scenario_that_removes_something_makes_a_step_longer(name: str) -> None:
    """Others move work, or launch twice: balanced, two_batch_overlap."""
    table = whatif(tracelens.load(SAMPLES / name))["whatif"]
    kept = ~table["scenario"].isin(["balanced", "two_batch_overlap"])
    assert (kept & (table["scenario"] != "identity")).sum() >= 6
    assert (table["projected_ns"] <= table["base_ns"])[kept].all()


def test_a_step_as_one_graph_is_what_one_measured() -> None:
    """Sync-free layers launched one by one, 15.2 and 44.5 ms, and as a graph, 1.9 and 19.9 ms.

    The kernels of the first graph follow each other 0.56 us apart, not 0.2.
    """
    for before, after in (
        ("toggles/sync_free_3", "toggles/graph_step"),
        ("ladder/ep4/07_manual_gc", "ladder/ep4/08_graph"),
    ):
        projected = whatif(tracelens.load(SAMPLES / before), ["step_graph"])["whatif"]["projected_ns"][0]
        measured = whatif(tracelens.load(SAMPLES / after), ["identity"]).meta["base_ns"]
        assert int(projected) / measured == pytest.approx(1, abs=0.15)


FUSED = "fused_permute+fused_router+fused_loss"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "scenario"),
    [
        ("00_baseline", "01_grouped_gemm", "grouped_gemm"),
        ("01_grouped_gemm", "02_fusion", FUSED),
        ("02_fusion", "03_dedup", "dispatch=dedup"),
        ("03_dedup", "05_sync_free_3", "sync_free"),
        ("06_overlap_shared", "07_overlap_1f1b", "overlap_1f1b"),
        ("06_overlap_shared", "09_graph", "step_graph"),
    ],
)
def test_rungs_of_a_busy_gpu_are_what_was_measured(before: str, after: str, scenario: str) -> None:
    """Four ranks of a ladder on which the host is never too slow: 156 to 117 ms a step."""
    folder = SAMPLES / "ladder_large" / "ep4"
    projected = whatif(tracelens.load(folder / before), [scenario])["whatif"]["projected_ns"][0]
    measured = whatif(tracelens.load(folder / after), ["identity"]).meta["base_ns"]
    assert int(projected) / measured == pytest.approx(1, abs=0.07)


def _launches(run: Run) -> int:
    steps = tracelens.analyze(run, "steps")["steps"]
    return int(steps["launches"].median())
