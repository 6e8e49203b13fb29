"""Programs of users, projected: against the same program with the change, measured without the profiler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tracelens
from tracelens.table import Result
from tracelens.what_if import whatif

FOLDER = Path(
    os.environ.get("TRACELENS_RECORDINGS", Path(__file__).parents[2].parent / "shared" / "recordings")
)
CASTS = "scale:*copy*=0+all_to_all_bandwidth=2x"
"""No casts to fp32 and back, and half the bytes on the links."""


def projected(name: str, scenario: str) -> tuple[float, Result]:
    """The step under a scenario, ms."""
    if not (FOLDER / name).exists():
        pytest.skip(f"no {FOLDER / name}: set TRACELENS_RECORDINGS")
    result = whatif(tracelens.load(FOLDER / name), [scenario])
    return float(result["whatif"]["projected_ns"][0]) / 1e6, result


@pytest.mark.parametrize(
    ("name", "scenario", "measured_ms", "within"),
    [
        ("nvidia-h100-ep2/base", "no_blocking", 66.95, 0.07),
        ("nvidia-h100-ep2/slowhost", "median_pace", 70.12, 0.1),
        ("nvidia-h100-ep2/fp32", CASTS, 70.12, 0.1),
        ("nvidia-h200-dsv3/decode_eager", "step_graph", 4.23, 0.07),
        ("nvidia-h100-fsdp2/fsdp", "keep_parameters", 87.19, 0.05),
    ],
)
def test_a_change_projects_what_was_measured_with_it(
    name: str, scenario: str, measured_ms: float, within: float
) -> None:
    step_ms, result = projected(name, scenario)
    assert step_ms == pytest.approx(measured_ms, rel=within)
    low_ns, high_ns = (result.data["whatif"].array(f"rerun_{end}_ns")[0] for end in ("low", "high"))
    assert low_ns <= measured_ms * 1e6 <= high_ns


def test_parameters_that_stay_take_memory() -> None:
    """15.73 GiB at the peak against 13.54 were measured, 2.19 more."""
    _, result = projected("nvidia-h100-fsdp2/fsdp", "keep_parameters")
    assert "holds 2.28" in result["assumptions"]["assumption"][0]


@pytest.mark.parametrize("name", ["nvidia-h100-fsdp2/fsdp", "nvidia-h200-dsv3/dsv3_grouped"])
def test_no_graph_is_faster_than_no_host(name: str) -> None:
    assert projected(name, "step_graph")[0] >= projected(name, "launch_free")[0]


def test_a_finding_names_the_parameters_that_are_gathered_twice() -> None:
    projected_ms, result = projected("nvidia-h100-fsdp2/fsdp", "keep_parameters")
    findings = tracelens.analyze(tracelens.load(FOLDER / "nvidia-h100-fsdp2/fsdp"), "findings")["findings"]
    found = findings[findings["detector"] == "parameters_regathered"]
    assert found["position"].tolist() == [1]
    saving_ms = result.meta["base_ns"] / 1e6 - projected_ms
    assert found["saving_ns"].tolist() == [pytest.approx(saving_ms * 1e6, rel=1e-6)]
