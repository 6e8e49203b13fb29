"""Every detector says what it measures, from when on, and what it cannot see."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracelens
from tracelens.findings import DETECTORS, Detector
from tracelens.what_if import SCENARIOS

SAMPLES = Path(__file__).parents[2] / "sample_traces"
FOLDERS = ("faults/gc", "ladder/ep4/00_baseline", "pipeline/plain", "serving/tbo_token", "toggles/tensor")
ITEMS = dict(DETECTORS.items())


def declares(detector: Detector, measure: str) -> bool:
    """Whether a measure is declared; words in capitals stand for names."""
    return any(
        re.fullmatch(
            "".join(
                "[^,]+" if re.fullmatch("[A-Z]{4,}", word) else re.escape(word)
                for word in re.split(r"\b([A-Z]{4,})\b", declared)
            ),
            measure,
        )
        for declared in detector.measures
    )


@pytest.mark.parametrize("name", ITEMS)
def test_it_is_described(name: str) -> None:
    item = ITEMS[name]
    assert item.measures
    assert all(meaning.strip() for meaning in item.measures.values())
    assert item.threshold.strip()
    assert item.limits.endswith(".")


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item.scenario])
def test_it_asks_for_a_scenario_that_there_is(name: str) -> None:
    scenario = SCENARIOS.find(re.split("[=:]", ITEMS[name].scenario)[0])
    assert scenario is not None
    assert scenario.in_reports  # what it reads is read where findings are made


def _literals(module: str) -> Iterator[str]:
    """The measures that a module of detectors names as literals."""
    source = inspect.getsource(importlib.import_module(module))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Quantity":
            measure = node.args[0]
            if isinstance(measure, ast.Constant):
                yield str(measure.value)


def test_what_the_code_measures_is_declared() -> None:
    modules = {item.function.__module__ for item in ITEMS.values()}
    for module in modules:
        detectors = [item for item in ITEMS.values() if item.function.__module__ == module]
        for measure in _literals(module):
            assert any(declares(item, measure) for item in detectors), f"{module}: {measure}"


@pytest.mark.slow
def test_what_runs_measure_is_declared() -> None:
    measured = set()
    for folder in FOLDERS:
        table = tracelens.report_files(SAMPLES / folder, names=["findings"])["findings"]["measurements"]
        measured |= set(zip(table["detector"], table["measure"], strict=True))
    detections = {(name, measure) for name, measure in measured if name and measure != "estimate"}
    assert len({name for name, _ in detections}) > 15
    for name, measure in detections:
        assert declares(ITEMS[name], measure), f"{name}: {measure}"


def test_every_scenario_says_what_it_assumes() -> None:
    silent = [
        name
        for name, item in SCENARIOS.items()
        if name != "identity" and "\nAssumes:\n" not in (inspect.getdoc(item.change) or "")
    ]
    assert not silent
