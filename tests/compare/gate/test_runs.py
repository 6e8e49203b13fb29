"""Several runs a side, patterns of names, single ranks, and effects that are too small to matter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare.gate.gate_sides import side
from tracelens.compare.gate import Side, gate, of_metrics, read_rule


def runs(name: str, *means: float) -> list[object]:
    return [side(f"{name}{n}", metrics={"step.time": [mean, mean * 1.001]}) for n, mean in enumerate(means)]


def test_runs_are_the_sample() -> None:
    rule = [read_rule("step.time<=1.01")]
    verdict = gate(runs("a", 100, 100.2, 99.9), runs("b", 105, 105.2, 104.9), rule)  # type: ignore[arg-type]
    (outcome,) = verdict.outcomes
    assert (verdict.verdict, outcome.runs, outcome.steps, outcome.source) == ("fail", (3, 3), (6, 6), "runs")
    assert (verdict.base, verdict.candidate) == ("a0 and 2 more", "b0 and 2 more")
    noisy = gate(runs("a", 100, 120, 90), runs("b", 105, 125, 95), rule)  # type: ignore[arg-type]
    assert noisy.verdict == "inconclusive"


BASE = side(
    "base",
    ranks=(0, 3),
    metrics={
        "step.time": [[100e6, 100e6], [200e6, 200e6]],
        "op[aten::mm].time": [4e6, 4e6],
        "op[aten::addmm].time": [1e6, 1e6],
        "kernel[a gemm b].time": [3e6, 3e6],
    },
)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("op[aten::*mm].time", 5e6),
        ("op[aten::*mm]", 5e6),
        ("kernel[*gemm*].time", 3e6),
        ("rank[3].step.time", 200e6),
        ("rank[0].step", 100e6),
        ("rank[3].op[aten::m*].time", 4e6),
    ],
)
def test_patterns_and_ranks(metric: str, value: float) -> None:
    (outcome,) = gate(BASE, BASE, [read_rule(f"{metric}<=1.0")]).outcomes
    assert (outcome.base, outcome.unit, outcome.status) == (value, "ns", "pass")


def test_small_effects_do_not_fail() -> None:
    slower = side("cand", ranks=(0, 3), metrics={"step.time": [150e6] * 2, "op[aten::mm].time": [4.4e6] * 2})
    rule = [read_rule("op[aten::mm].time<=1.05")]
    assert gate(BASE, slower, rule).verdict == "fail"
    assert gate(BASE, slower, rule, min_effect=0.01).verdict == "pass"
    assert gate(BASE, slower, rule, min_effect=0.001).verdict == "fail"


def test_the_largest_moves_of_stored_metrics() -> None:
    slower = side("cand", metrics={"step.time": [150e6] * 2, "op[aten::mm].time": [9e6] * 2})
    causes = of_metrics(Side.of(BASE), Side.of(slower))
    assert [(cause.name, round(cause.delta_ns)) for cause in causes] == [
        ("op[aten::mm]", 5e6),
        ("op[aten::addmm]", -1e6),
    ]
    assert np.isclose(causes[0].base_ns, 4e6)
