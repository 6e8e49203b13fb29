"""Faults planted into recordings of other programs: the first finding is the fault, and saves what it costs.

The fast ones are in tests/findings/test_planted_faults.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance.fault_cases import Case, assert_first
from tests.reference.traces import FOLDERS

ROOT = Path(__file__).parents[2]
RECORDINGS = Path(os.environ.get("TRACELENS_RECORDINGS", ROOT.parent / "shared" / "recordings"))
EP2, MEGATRON, STACK = (
    "recordings/nvidia-h100-ep2/nosync",
    "foreign/nvidia-h200-megatron/faults/control",
    "foreign/nvidia-h200-hf/dsv2_grouped_stack_mem.json.zst",
)
STRAGGLER = "silent_host stragglers"
CASES = [
    # run, fault, share, ranks, first finding, words of its title
    pytest.param(Case(EP2, "pause:middle", 0.4, "1", STRAGGLER, "ilent"), marks=pytest.mark.rare),
    Case(EP2, "pause:start", 0.4, "1", STRAGGLER, "ilent"),
    Case(EP2, "gc:middle", 0.4, "0", "garbage_collection stragglers", "arbage"),
    Case(EP2, "slow_gpu", 1.4, "1", "stragglers", "rank 1, whose GPU is slower"),
    Case(MEGATRON, "pause:start", 3.0, "5", STRAGGLER, "ilent"),
    pytest.param(Case(STACK, "pause:middle", 0.4, "0", "silent_host", "Silent host"), marks=pytest.mark.rare),
    Case(STACK, "gc:middle", 0.4, "0", "garbage_collection", "Garbage"),
    Case(STACK, "pause:middle", 3.0, "0", "silent_host", "Silent host"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_first_finding_is_what_was_planted(case: Case) -> None:
    group, _, name = case.run.partition("/")
    path = (RECORDINGS if group == "recordings" else FOLDERS[group]) / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    assert_first(case, path)
