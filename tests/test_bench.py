"""Budgets: which figures fail, which say that a budget can be lowered, and what is measured once more."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from benchmarks import budgets, measure
from benchmarks.budgets import Figure
from benchmarks.cases import cases


def cpu(case: str, value: float) -> Figure:
    return Figure(case, "cpu", value, "DOM parses")


def never(names: Collection[str]) -> list[Figure]:
    raise AssertionError(f"measured again: {names}")


@pytest.mark.parametrize(
    ("value", "word", "fails"),
    [
        (11.6, "over", True),
        (11.4, "within", False),
        (10.0, "within", False),
        (8.6, "within", False),
        (8.4, "under", False),
    ],
)
def test_a_figure_next_to_its_budget(value: float, word: str, fails: bool) -> None:
    (judgement,) = budgets.judged([cpu("report", value)], [cpu("report", 10.0)])
    assert (judgement.word, judgement.fails) == (word, fails)


def test_what_has_no_budget_fails() -> None:
    known = [cpu("report", 10.0), Figure("gate", "cpu", 10.0, "imports of numpy")]
    found = [cpu("diff", 10.0), cpu("gate", 10.0)]  # a new case; one whose yardstick is another now
    assert [item.word for item in budgets.judged(found, known)] == ["no budget", "no budget"]
    assert all(item.fails for item in budgets.judged(found, known))


def test_what_is_not_measured_is_not_judged() -> None:
    assert budgets.settled([], [cpu("report", 10.0)], never) == []


def test_a_budget_of_no_case() -> None:
    assert budgets.unmeasured([cpu("old", 1.0), cpu("report", 10.0)], ["report"]) == ["old"]


@pytest.mark.parametrize(("second", "value", "word"), [(10.5, 10.5, "within"), (14.0, 13.0, "over")])
def test_what_is_over_is_measured_once_more(second: float, value: float, word: str) -> None:
    asked = []

    def again(names: Collection[str]) -> list[Figure]:
        asked.append(set(names))
        return [cpu("report", second)]

    found = [cpu("report", 13.0), cpu("diff", 10.0)]
    first, other = budgets.settled(found, [cpu("report", 10.0), cpu("diff", 10.0)], again)
    assert asked == [{"report"}]
    assert (first.figure.value, first.word) == (value, word)
    assert other.word == "within"


@pytest.mark.parametrize("value", [5.0, 10.0, 11.4])
def test_nothing_else_is_measured_again(value: float) -> None:
    (judgement,) = budgets.settled([cpu("report", value)], [cpu("report", 10.0)], never)
    assert not judgement.fails


def test_sentences() -> None:
    limits = [cpu("slow", 10.0), cpu("fast", 10.0), cpu("same", 10.0)]
    found = [cpu("slow", 12.0), cpu("fast", 7.0), cpu("same", 10.0), cpu("new", 1.0)]
    assert budgets.told(budgets.judged(found, limits)) == [
        "slow: cpu 12 DOM parses, 20% over the budget of 10",
        "fast: cpu 7 DOM parses; the budget of 10 can be lowered",
        "new: cpu 1 DOM parses has no budget",
    ]


def test_the_table() -> None:
    found = [cpu("slow", 12.0), cpu("fast", 7.0), Figure("fast", "memory", 250.0, "MB")]
    text = budgets.table(
        budgets.judged(found, [cpu("slow", 10.0), cpu("fast", 10.0)]), {"slow": 6, "fast": 3.5}
    )
    assert [line.split() for line in text.splitlines()] == [
        ["case", "CPU", "s", "cpu", "budget", "memory", "budget"],
        ["slow", "6.00", "12!", "10", "-", "-"],
        ["fast", "3.50", "7v", "10", "250?", "-"],
    ]


def test_the_file(tmp_path: Path) -> None:
    file = tmp_path / "budgets.toml"
    assert budgets.read(file) == []
    budgets.write([cpu("a", 12.3456), Figure("b", "modules", 561, "modules")], ["b", "a"], file)
    assert budgets.read(file) == [Figure("b", "modules", 561, "modules"), cpu("a", 12.3)]
    # Cases that were not measured keep their budgets, those that are gone lose them.
    budgets.write([cpu("c", 5.0)], ["a", "c"], file)
    assert budgets.read(file) == [cpu("a", 12.3), cpu("c", 5.0)]


def test_cases_of_every_check_have_budgets() -> None:
    names = [case.name for case in cases()]
    assert budgets.unmeasured(budgets.read(), names) == []
    assert {case.name for case in cases() if case.quick} <= {figure.case for figure in budgets.read()}


def test_time_and_memory_of_children_count() -> None:
    child = "x = bytearray(b'x') * 80_000_000; sum(range(3_000_000)); import time; time.sleep(0.2)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    alone = measure.run(["python3", "-c", "pass"])
    usage = measure.run(["python3", "-c", parent])
    assert usage.cpu_s > alone.cpu_s
    assert usage.pss_bytes > 80_000_000


def test_a_command_that_fails() -> None:
    with pytest.raises(measure.CommandFailed, match="exit 4: oh no"):
        measure.run(["sh", "-c", "echo oh no >&2; exit 4"])
