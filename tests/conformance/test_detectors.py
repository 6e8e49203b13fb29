"""What every detector measures on every trace: the table in detectors.md, to be read as well as compared.

UPDATE_GOLD=1 writes it anew, for review in the diff.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

import tracelens
from tests.conformance.corpus import FOREIGN, Case, everywhere
from tracelens.findings import DETECTORS
from tracelens.findings.findings import SHOWN
from tracelens.table import Result

GOLD = Path(__file__).with_name("detectors.md")
ROOT = Path(__file__).parents[2]
SAMPLE_TRACES = ROOT / "sample_traces"
SAMPLES = ("one_gpu", "faults", "ladder", "pipeline", "serving")
"""Groups of samples that have sections."""
HEAD = """# What the detectors measure on real traces

One section a trace, one row a detector that found its signature there: figures of a step on the rank that
loses most; the detector's estimate of the saving, and the saving, which is the replay's where a scenario is
named, both as mean of the ranks. Of the others the trace has no signature; the table `checks` of
`tracelens analyze findings --json` says why. Findings are those whose estimate and saving are above
{shown:.1%} of a step.

"""


def section(name: str, result: Result) -> str:
    """The table of one trace."""
    checked, signals = result["checks"], result["measurements"]
    step = signals[signals["measure"] == "step"]["value"].mean()
    base = result.meta.get("base_ns", step)
    rows = [
        "| detector | ranks | estimate | saving | of the step | replayed as | finding | measured |",
        "|---|--:|--:|--:|--:|---|---|---|",
    ]
    for row in checked[checked["ranks"] > 0].itertuples():
        mine = signals[signals["detector"] == row.detector]
        estimate = mine[mine["measure"] == "estimate"]
        worst = estimate.loc[estimate["value"].idxmax(), "rank"]
        of_worst = mine["rank"].isna() if worst is pd.NA else mine["rank"] == worst
        shown = mine[of_worst & (mine["measure"] != "estimate")]
        measured = "; ".join(f"{one.measure}: {figure(one.value, one.unit)}" for one in shown.itertuples())
        found = "yes" if row.verdict == "finding" else ""
        saved = " | ".join(figure(ns, "ns") for ns in (row.estimate_ns, row.saving_ns))
        share = f"{row.saving_ns / max(base, 1):.1%}"
        rows.append(
            f"| {row.detector} | {row.ranks} | {saved} | {share} | {row.scenario} | {found} | {measured} |"
        )
    return f"## {name}\n\n" + "\n".join(rows) + "\n"


def figure(value: float, unit: str) -> str:
    """A figure with its unit, to three digits."""
    if unit in ("fraction", "ratio"):
        return f"{value:.1%}"
    scales = {
        "ns": (1e6, "ms"), "flops/s": (1e12, "TFLOP/s"), "bytes/s": (1e9, "GB/s"), "bytes": (1e6, "MB"),
        "flops": (1e9, "GFLOP"),
    }  # fmt: skip
    scale, name = scales.get(unit, (1.0, ""))
    return f"{value / scale:,.3g} {name}".strip()


def compare(name: str, result: Result) -> None:
    """Fail unless the table of this trace is the one in the gold file."""
    text = section(name, result)
    gold = GOLD.read_text() if GOLD.is_file() else HEAD.format(shown=SHOWN)
    if os.environ.get("UPDATE_GOLD"):
        parts = dict(re.findall(r"^## (.+?)\n\n(.*?)(?=^## |\Z)", gold, re.MULTILINE | re.DOTALL))
        parts[name] = text.partition("\n\n")[2]
        tables = (f"## {key}\n\n{parts[key].strip()}\n" for key in sorted(parts))
        GOLD.write_text(HEAD.format(shown=SHOWN) + "\n".join(tables))
        gold = GOLD.read_text()
    assert text in gold, f"{name} differs from {GOLD.name}; if meant, UPDATE_GOLD=1\n{text}"


@everywhere
def test_a_trace_shows_what_it_did(case: Case) -> None:
    name = section_of(case)
    if not name:
        pytest.skip("has no section")
    compare(name, case.result("findings"))


def section_of(case: Case) -> str:
    """The section of a trace of the corpus or of SAMPLES, "" of others."""
    if case.path.is_relative_to(FOREIGN):
        return ""
    if not case.path.is_relative_to(SAMPLE_TRACES):
        return case.name
    name = case.path.relative_to(SAMPLE_TRACES)
    return f"sample_traces/{name.as_posix()}" if name.parts[0] in SAMPLES else ""


def test_no_finding_without_a_signature(case: Case) -> None:
    result = case.result("findings")
    checked, found = result["checks"], result["findings"]
    assert set(checked["detector"]) == {name for name, _ in DETECTORS.items()}
    seen = checked[checked["ranks"] > 0]
    assert set(found["detector"]) <= set(seen["detector"])
    assert all(reason for reason in checked[checked["ranks"] == 0]["verdict"])
    assert (found["saving_ns"] > 0).all()
    assert (found["additional_ns"] <= found["saving_ns"]).all()


def test_savings_together_are_no_longer_than_a_step(case: Case) -> None:
    result = case.result("findings")
    signals = result["measurements"]
    step = result.meta.get("base_ns", signals[signals["measure"] == "step"]["value"].mean())
    assert result["findings"]["additional_ns"].sum() <= step * 1.001


@cache
def findings(name: str) -> Result:
    """Of a sample."""
    return tracelens.analyze(tracelens.load(SAMPLE_TRACES / name), "findings")


def test_what_the_expert_loop_is_projected_to_save_is_what_grouping_saved() -> None:
    results = [findings(f"one_gpu/{name}") for name in ("loop", "grouped")]
    steps = [one["measurements"].set_index("measure").loc["step", "value"] for one in results]
    found = results[0]["findings"].set_index("detector")
    assert "expert_loop" not in set(results[1]["findings"]["detector"])
    assert found.loc["expert_loop", "saving_ns"] == pytest.approx(steps[0] - steps[1], rel=0.1)


def test_an_expert_loop_stands_above_the_launches_that_it_makes_late() -> None:
    found = findings("one_gpu/loop")["findings"]
    by_detector = found.set_index("detector")
    assert by_detector.loc["expert_loop", "position"] < by_detector.loc["launch_bound", "position"]
    assert by_detector.loc["launch_bound", "explained_by"] == "expert_loop"
    assert (
        by_detector.loc["launch_bound", "additional_ns"] < 0.5 * by_detector.loc["launch_bound", "saving_ns"]
    )


@pytest.mark.parametrize("fault", ["gc", "slow_kernels", "host_delay", "token_skew"])
def test_waiting_for_a_late_rank_is_no_all_to_all_to_be_hidden(fault: str) -> None:
    found = findings(f"faults/{fault}")["findings"]
    assert found["detector"][0].startswith("stragglers")
    exposed = found.set_index("detector").loc["exposed_all_to_all"]
    assert exposed["explained_by"].startswith("stragglers")
