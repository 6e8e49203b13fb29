"""The gate on repeated recordings: every choice of runs against every other, as docs/gate.md shows."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.compare.gate import recorded
from tests.compare.gate.recorded import Run
from tracelens.compare.gate import Samples, gate, read_rule

PAGE = Path(__file__).parents[3] / "docs" / "gate.md"
HOST = [
    tuple(Run(pace, ()) for pace in runs) for runs in (recorded.SAME, recorded.SLOWER_2, recorded.SLOWER_8)
]
GPU = (recorded.GPU_SAME, recorded.GPU_SLOWER_2, recorded.GPU_SLOWER_8)
CANDIDATES = ("the same", "2% slower", "8% slower")


def samples(runs: Sequence[Run], metric: str) -> list[Samples]:
    """Recordings with one metric."""
    result = []
    for number, run in enumerate(runs):
        values = 1e6 * np.array([run.pace if metric == "step.pace" else run.steps])
        parts = ("before", "after") if metric == "step.pace" else ()
        steps = tuple(map(str, range(values.shape[1])))
        result.append(Samples(f"run {number}", (0,), steps, {metric: values}, {metric: "ns"}, parts=parts))
    return result


def pairs(
    base: Sequence[Run], candidate: Sequence[Run], count: int
) -> Iterator[tuple[tuple[Run, ...], tuple[Run, ...]]]:
    """Every choice of so many runs per side; no run is on both."""
    for first in combinations(base, count):
        for second in combinations([run for run in candidate if run not in first], count):
            yield first, second


def verdicts(base: Sequence[Run], candidate: Sequence[Run], count: int, metric: str) -> Counter[str]:
    rule = [read_rule(f"{metric}<=1.01")]
    return Counter(
        gate(samples(first, metric), samples(second, metric), rule).verdict
        for first, second in pairs(base, candidate, count)
    )


def rows() -> Iterator[str]:
    yield "| program | metric | runs per side | candidate | pairs | pass | fail | inconclusive |"
    yield "|---|---|--:|---|--:|--:|--:|--:|"
    for program, groups, metrics in (
        ("GPU-bound", GPU, ("step.pace", "step.time")),
        ("host-bound", HOST, ("step.pace",)),
    ):
        for metric in metrics:
            for count in (1, 2, 3):
                for name, runs in zip(CANDIDATES, groups, strict=True):
                    seen = verdicts(groups[0], runs, count, metric)
                    if total := sum(seen.values()):
                        cells = " | ".join(f"{seen[word]}" for word in ("pass", "fail", "inconclusive"))
                        yield f"| {program} | `{metric}` | {count} | {name} | {total} | {cells} |"


def test_the_page_shows_what_the_gate_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = "\n".join(rows())
    made = re.sub(
        r"(?s)(<!-- recorded -->\n).*?(<!-- end -->)", lambda mark: f"{mark[1]}{table}\n{mark[2]}", text
    )
    if os.environ.get("UPDATE_GOLD"):
        PAGE.write_text(made, encoding="utf-8")
    assert made == PAGE.read_text(encoding="utf-8"), "docs/gate.md differs; if meant, UPDATE_GOLD=1"


@pytest.mark.parametrize("groups", [GPU, HOST], ids=["GPU-bound", "host-bound"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_runs_of_one_program_never_fail(groups: Sequence[Sequence[Run]], count: int) -> None:
    assert not verdicts(groups[0], groups[0], count, "step.pace")["fail"]


def test_two_per_cent_are_found_from_three_runs_a_side_and_eight_from_one() -> None:
    same, slower_2, slower_8 = GPU
    three, one = verdicts(same, slower_2, 3, "step.pace"), verdicts(same, slower_8, 1, "step.pace")
    assert three["fail"] >= 0.9 * sum(three.values())
    assert one["fail"] == sum(one.values()) == 12


def test_without_pace_nothing_fails_that_is_the_same() -> None:
    for count in (1, 2, 3):
        assert not verdicts(GPU[0], GPU[0], count, "step.time")["fail"]
