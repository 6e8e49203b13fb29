"""Faults planted into recorded runs: the first finding is the fault, and saves what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.fault_cases import Case, assert_first

ROOT = Path(__file__).parents[2]
CONTROL, GROUPED, EP4 = (
    "tests/conformance/planted/control_1",
    "sample_traces/one_gpu/grouped",
    "sample_traces/ladder/ep4/01_grouped_gemm",
)
STRAGGLER = "silent_host stragglers"
CASES = [
    # run, fault, share, ranks, first finding, words of its title
    Case(CONTROL, "pause:start", 0.4, "1", STRAGGLER, "ilent"),
    Case(CONTROL, "pause:middle", 0.4, "1", STRAGGLER, "ilent"),
    Case(CONTROL, "pause:anywhere", 0.6, "1", STRAGGLER, "ilent"),
    Case(CONTROL, "gc:middle", 0.4, "0,1", "garbage_collection", "Garbage"),
    Case(CONTROL, "slow_host", 0.5, "1", "stragglers", "rank 1, whose host launches late"),
    Case(CONTROL, "slow_gpu", 1.4, "1", "stragglers", "rank 1, whose GPU is slower"),
    Case(GROUPED, "pause:middle", 0.4, "0", "silent_host python_code", ""),
    Case(GROUPED, "loader:start", 0.4, "0", "data_loading", "next batch"),
    pytest.param(Case(EP4, "pause:end", 0.4, "1", STRAGGLER, "ilent"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_first_finding_is_what_was_planted(case: Case) -> None:
    assert_first(case, ROOT / case.run)
