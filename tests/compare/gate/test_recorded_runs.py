"""The gate on repeated recordings: every choice of runs against every other, as docs/gate.md shows."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import TypeVar

import numpy as np
import pytest

from tests.compare.gate import recorded
from tests.compare.gate.recorded import Run, four_programs
from tests.effort import THOROUGH
from tracelens.compare.gate import Samples, default_rules, gate

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


T = TypeVar("T")


def pairs(
    base: Sequence[T], candidate: Sequence[T], count: int
) -> Iterator[tuple[tuple[T, ...], tuple[T, ...]]]:
    """Every choice of so many runs per side; no run is on both."""
    for first in combinations(base, count):
        for second in combinations([run for run in candidate if all(run is not one for one in first)], count):
            yield first, second


def verdicts(base: Sequence[Run], candidate: Sequence[Run], count: int, metric: str) -> Counter[str]:
    rule = [rule for rule in default_rules() if rule.metric == metric]
    return Counter(
        gate(samples(first, metric), samples(second, metric), rule, advise=False).verdict
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


CHANGES = {
    "same": ("", ""),
    "gpu1": ("computation.time", "GPU work"),
    "gpu2": ("computation.time", "GPU work"),
    "gpu5": ("computation.time", "GPU work"),
    "bytes": ("comm.bytes", "bytes of collectives"),
    "waits": ("step.pace", "pace"),
    "host5": ("step.pace", "pace"),
    "host20": ("step.pace", "pace"),
}
"""Changes of the four programs: the metric that shows how large they came out, in words."""
MOST_PAIRS = None if THOROUGH else 40
"""Choices of several runs per side that are gated; of single runs all are."""


@cache
def of_four(program: str, change: str, count: int) -> Counter[str]:
    """Verdicts of the built-in rules on choices of runs, and how often each metric failed."""
    runs = four_programs()
    chosen = list(pairs(runs[program, "same"], runs[program, change], count))
    if count > 1 and MOST_PAIRS is not None and len(chosen) > MOST_PAIRS:
        chosen = Random(0).sample(chosen, MOST_PAIRS)
    found: Counter[str] = Counter()
    for base, candidate in chosen:
        verdict = gate(base, candidate, advise=False)
        found[verdict.verdict] += 1
        found.update(outcome.metric for outcome in verdict.failed)
    return found


def total(found: Counter[str]) -> int:
    return sum(found[word] for word in WORDS)


def rows_of_four() -> Iterator[str]:
    yield "| program | change | runs per side | pairs | pass | fail | inconclusive | what fails |"
    yield "|---|---|--:|--:|--:|--:|--:|---|"
    runs = four_programs()
    for program, change in sorted(runs, key=lambda key: (key[0], list(CHANGES).index(key[1]))):
        metric, words = CHANGES[change]
        effect = "none"
        if metric:
            before, after = (
                np.mean([run.each_step(metric).mean() for run in runs[program, name]])
                for name in ("same", change)
            )
            effect = f"{100 * (after / before - 1):+.1f}% {words}"
        for count in (1, 3):
            found = of_four(program, change, count)
            cells = " | ".join(f"{found[word]}" for word in WORDS)
            failed = ", ".join(f"`{name}` {found[name]}" for name in sorted(set(found) - set(WORDS)))
            yield f"| `{program}` | {effect} | {count} | {total(found)} | {cells} | {failed} |"


WORDS = ("pass", "fail", "inconclusive")


@pytest.mark.slow
def test_the_page_shows_what_the_gate_says() -> None:
    text = made = PAGE.read_text(encoding="utf-8")
    tables = {"recorded": rows} | ({} if THOROUGH else {"four programs": rows_of_four})
    for name, of_table in tables.items():
        table = "\n".join(of_table())
        made = re.sub(
            rf"(?s)(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda mark, table=table: f"{mark[1]}{table}\n{mark[2]}",  # type: ignore[misc]
            made,
        )
    if os.environ.get("UPDATE_GOLD"):
        PAGE.write_text(made, encoding="utf-8")
        text = made
    assert made == text, "docs/gate.md differs; if meant, UPDATE_GOLD=1"


@pytest.mark.parametrize("groups", [GPU, HOST], ids=["GPU-bound", "host-bound"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_runs_of_one_program_never_fail(groups: Sequence[Sequence[Run]], count: int) -> None:
    seen = verdicts(groups[0], groups[0], count, "step.pace")
    assert not seen["fail"]
    assert seen["inconclusive"] <= 0.1 * sum(seen.values())


def test_two_per_cent_are_found_from_three_runs_a_side_and_eight_from_one() -> None:
    same, slower_2, slower_8 = GPU
    three, one = verdicts(same, slower_2, 3, "step.pace"), verdicts(same, slower_8, 1, "step.pace")
    assert three["fail"] >= 0.9 * sum(three.values())
    assert one["fail"] == sum(one.values()) == 12


def test_without_pace_nothing_fails_that_is_the_same() -> None:
    for count in (1, 2, 3):
        assert not verdicts(GPU[0], GPU[0], count, "step.time")["fail"]


PROGRAMS = sorted({program for program, _ in four_programs()})


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_built_in_rules_fail_none_of_four_programs_and_decide_most(count: int) -> None:
    found = [of_four(program, "same", count) for program in PROGRAMS]
    assert not any(seen["fail"] for seen in found)
    assert sum(seen["inconclusive"] for seen in found) <= 0.1 * sum(map(total, found))


@pytest.mark.parametrize("program", ["ep", "gpu", "host"])
@pytest.mark.parametrize(
    "change", ["gpu1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpu2", "gpu5"))]
)
def test_single_runs_find_one_per_cent_of_gpu_work(program: str, change: str) -> None:
    found = of_four(program, change, 1)
    assert found["fail"] == total(found) == 32


def test_single_runs_find_bytes() -> None:
    found = of_four("ep", "bytes", 1)
    assert found["comm.bytes"] == total(found) == 32


def test_three_runs_a_side_find_a_rank_that_comes_late() -> None:
    found = of_four("ep", "waits", 3)
    assert found["fail"] >= 0.9 * total(found)
