"""Throughput by micro-batch size: it rises and saturates."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tracelens.devices import device
from tracelens.planner.config import MODELS, Config, Layout, Training, override
from tracelens.planner.step_time import ROOFLINE, Estimate, Machine, estimate

SIZES = (1, 2, 4, 8, 12)
FUSED = ["experts=grouped", "permute=fused", "router=fused", "loss=fused", "dispatch=dedup", "sync_free=2"]


def steps(name: str, changes: list[str], machine: Machine | None = None) -> list[Estimate]:
    """DeepSeek-V2-Lite on eight GPUs, by sequences per micro-batch."""
    layout = Layout(ranks=8, ep=8)
    configs = (
        Config(MODELS["deepseek_v2_lite"], layout, training=Training(micro_batch=size, micro_batches=4))
        for size in SIZES
    )
    return [estimate(override(config, changes), device(name), machine) for config in configs]


@pytest.mark.parametrize("name", ["mi355x", "mi300x", "mi325x", "h200"])
@pytest.mark.parametrize("changes", [[], FUSED], ids=["plain", "fused"])
def test_throughput_rises_and_saturates(name: str, changes: list[str]) -> None:
    rates = [step.tokens_per_s for step in steps(name, changes)]
    # Beyond the size at which it saturates it may fall a little with the bandwidth of large buffers.
    assert all(larger > 0.99 * smaller for smaller, larger in pairwise(rates))
    assert rates[3] > 1.15 * rates[0]
    assert rates[4] < 1.02 * rates[3]


def test_on_mi355x_it_rises_clearly_where_the_roofline_hardly_does() -> None:
    rates = [step.tokens_per_s for step in steps("mi355x", FUSED)]
    bounds = [step.tokens_per_s for step in steps("mi355x", FUSED, ROOFLINE)]
    assert all(larger > smaller for smaller, larger in pairwise(rates))
    assert rates[3] > 1.8 * rates[0]
    assert bounds[3] < 1.15 * bounds[0]
    assert all(rate < bound for rate, bound in zip(rates, bounds, strict=True))
