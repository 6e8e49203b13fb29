"""The projection of Megatron-core against its peaks on a GPU, which it predicted."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tracelens.planner.config import Config, Layout, Model, Toggles, Training
from tracelens.planner.memory import Assumptions, StageMemory, Stages

CASES = tomllib.loads((Path(__file__).parent / "megatron_peaks.toml").read_text())["case"]
NAMED = [pytest.param(case, id=case["name"]) for case in CASES]


def projected(case: dict[str, Any]) -> tuple[StageMemory, StageMemory]:
    """The stage by its tensors, and with what the allocator reserves."""
    config = Config(
        Model(**case["model"]),
        Layout(**case["layout"]),
        Toggles(**case["toggles"]),
        Training(**case["training"]),
    )
    stages = Stages(config, Assumptions(framework="megatron", layers="local", **case["assumptions"]))
    stage = stages.stage(case["pp_rank"])
    return stage, stages.reserved(stage)


@pytest.mark.parametrize("case", NAMED)
def test_a_measured_layout(case: dict[str, Any]) -> None:
    allocated, reserved = projected(case)
    assert allocated.total == pytest.approx(case["allocated"], rel=0.03)
    assert reserved.total == pytest.approx(case["reserved"], rel=0.05)


@pytest.mark.parametrize("case", NAMED)
def test_its_prediction_before_the_measurement(case: dict[str, Any]) -> None:
    assert case["predicted"]["allocated"] == pytest.approx(case["allocated"], rel=0.05)
    assert case["predicted"]["reserved"] == pytest.approx(case["reserved"], rel=0.05)


def test_what_is_measured() -> None:
    layouts = [case["layout"] for case in CASES]
    assert len({tuple(layout.values()) for layout in layouts}) >= 6
    assert {case["assumptions"]["recompute"] for case in CASES} == {"none", "full", "moe", "mla_up_proj"}
    assert any(layout["vpp"] > 1 for layout in layouts)
    assert {case["model"]["attention"] for case in CASES} == {"mla", "gqa"}
