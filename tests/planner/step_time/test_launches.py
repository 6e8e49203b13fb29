"""Launches of a step: counts against traces, and when the host is the bottleneck."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

import tracelens
from tests.planner.step_time.test_step import H200, SAMPLES, read_config, run
from tracelens.planner.config import Config, override
from tracelens.planner.step_time import (
    STEP,
    Launches,
    LaunchTime,
    Machine,
    ends_launches,
    estimate,
    layer_launches,
)

RUNS = {
    "ladder/ep4/00_baseline": 0.005,
    "ladder/ep4/01_grouped_gemm": 0.005,
    "ladder/ep4/02_fusion": 0.005,
    "ladder/ep4/03_dedup": 0.02,
    "ladder/ep4/04_sync_free_2": 0.02,
    "ladder/ep4/05_sync_free_3": 0.005,
    "pipeline/plain": 0.05,
    "pipeline/interleaved": 0.05,
    "one_gpu/loop": 0.1,
    "one_gpu/grouped": 0.1,
    "toggles/loss_fused": 0.15,
    "toggles/tensor": 0.15,
}
"""Recorded runs, and how far the count may be off: library calls of small GEMMs differ."""


def counted(config: Config) -> int:
    """Launches of a step of the first stage."""
    layout, model = config.layout, config.model
    total = ends_launches(config, True, layout.pp == 1)
    for chunk in layout.chunks(model.layers)[0 :: layout.pp]:
        for layer in chunk:
            launches = layer_launches(config, layer >= model.dense_layers)
            recomputed = launches.forward if layer in config.toggles.recompute_layer_ids else 0
            total += launches + Launches(recomputed, 0)
    return sum(total) * config.training.micro_batches + STEP


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_counts_are_those_of_recorded_steps(name: str) -> None:
    folder = Path(SAMPLES) / name
    config = read_config(json.loads((folder / "run.json").read_text())["config"])
    steps = tracelens.analyze(tracelens.load(str(folder)), "steps")["steps"]
    launches = steps.loc[steps["rank"] == steps["rank"].min(), "launches"].median()
    assert counted(config) == pytest.approx(launches, rel=RUNS[name])


def test_a_slow_host_makes_the_step_as_long_as_its_launches() -> None:
    config = override(run("deepseek_v2_lite", 2, ranks=8, ep=8), ["experts=grouped", "sync_free=2"])
    slow = estimate(config, H200, Machine(launch_ns=1e6))
    launches = counted(config)
    # Norms of 26 MoE layers and a dense one: one launch each takes a millisecond.
    assert slow.step_ns == pytest.approx(launches * 1e6, rel=1e-6)
    assert slow.parts["launch"] > 0
    fast = estimate(config, H200, Machine(launch_ns=1.0))
    assert fast.parts["launch"] == 0
    assert fast.step_ns == estimate(config, H200, Machine(launches="none")).step_ns


def test_a_graph_is_one_launch() -> None:
    config = override(
        run("deepseek_v2_lite", 2, ranks=8, ep=8), ["experts=grouped", "sync_free=3", "graph=step"]
    )
    assert estimate(config, H200, Machine(launch_ns=1e6)).parts["launch"] == 0


def test_a_host_that_reads_sizes_cannot_run_ahead_of_the_forward() -> None:
    # Forward launches take longer than the forward, all launches less than the step.
    config = override(run("deepseek_v2_lite", 1, ranks=8, ep=8), ["experts=grouped"])
    waiting, free = (
        estimate(override(config, [f"sync_free={level}"]), H200, Machine(launch_ns=24e3)) for level in (2, 3)
    )
    assert waiting.parts["launch"] > 0
    host = LaunchTime(config, H200, Machine(launch_ns=24e3))
    assert host.has_syncs
    assert host.both(Launches(2, 3)) == 5 * 24e3
    assert free.parts["launch"] == 0


def test_cost_of_a_launch_is_that_of_the_device_or_as_assumed() -> None:
    config = run("deepseek_v2_lite", 1, ranks=8, ep=8)
    cost = H200.measured.launch
    host = LaunchTime(config, H200, Machine())
    assert (host.forward_ns, host.backward_ns) == (cost.forward_ns, cost.backward_ns)
    assert host.both(Launches(3, 2)) == 3 * cost.forward_ns + 2 * cost.backward_ns
    assert LaunchTime(config, replace(H200), Machine(launches="none")).both(Launches(3, 2)) == 0
