"""What a finding promises is what `project whatif` prints, on every trace; and findings are in that order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracelens
from tests.conformance.corpus import Case, of_each_kind
from tracelens.findings import DETECTORS
from tracelens.table import Result
from tracelens.trace import Run


@pytest.fixture
def findings(case: Case) -> tuple[Run, Result]:
    return case.run, case.result("findings")


@of_each_kind
def test_a_saving_is_what_whatif_prints(findings: tuple[Run, Result]) -> None:
    """Of findings, and of detections that the replay shows to be none."""
    run, result = findings
    rows, checked = result["findings"], result["checks"]
    scenarios = sorted({*rows["scenario"], *checked["scenario"]} - {""})
    if not scenarios:
        pytest.skip("nothing of this trace is replayed")
    projected = tracelens.whatif(run, scenarios)
    table = projected["whatif"].set_index("scenario")
    assert set(table.index) == set(scenarios)
    assert projected.meta["step"] == result.meta["step"]
    for row in rows[rows["scenario"] != ""].itertuples():
        same = table.loc[row.scenario]
        assert row.saving_ns == same["base_ns"] - same["projected_ns"]
        assert 0 <= row.low_ns <= row.saving_ns <= row.high_ns
    for row in checked[checked["scenario"] != ""].itertuples():
        assert row.saving_ns == table.loc[row.scenario, "base_ns"] - table.loc[row.scenario, "projected_ns"]


@of_each_kind
def test_findings_are_in_order_of_what_they_add(findings: tuple[Run, Result]) -> None:
    _, result = findings
    table: pd.DataFrame = result["findings"]
    additional = table["additional_ns"].to_numpy()
    # A symptom that adds most is second all the same, unless it adds more than all causes together.
    symptom = table["detector"].map(lambda name: DETECTORS.get(name).symptom).to_numpy(dtype=bool)
    if len(table) > 1 and additional[0] < additional[1]:
        assert symptom[1]
        assert additional[1] <= additional[~symptom].sum()
    assert (np.diff(additional[1:]) <= 0).all()
    assert (additional <= table["saving_ns"]).all()
    base: Any = result.meta.get("base_ns")
    if base is None:
        return
    assert additional.sum() <= base + len(table)
    assert table["fraction_of_step"].to_numpy() == pytest.approx(additional / max(base, 1), abs=1e-6)


@of_each_kind
def test_a_symptom_stands_below_the_cause_that_it_names(findings: tuple[Run, Result]) -> None:
    _, result = findings
    above: set[str] = set()
    for row in result["findings"].itertuples():
        assert row.explained_by in above | {""}
        above.add(row.detector)


@of_each_kind
def test_a_basis_is_told(findings: tuple[Run, Result]) -> None:
    """Without a scenario there is a reason, and low confidence."""
    _, result = findings
    for row in result["findings"].itertuples():
        assert row.basis in ("replayed", "upper bound")
        assert (row.basis == "upper bound") == bool(row.upper_bound)
        assert row.scenario or row.basis == "upper bound"
        assert row.basis == "replayed" or row.confidence == "low"
