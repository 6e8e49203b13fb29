"""Runs on GPUs whose last rank was made late in a known way: who and why, from the traces alone.

They are the group `faults` of record_samples.py. No torch needed to read them.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.builders import records
from tests.workload.fault_variants import CONTROL, LARGEST_BYTES, NAMES
from tests.workload.samples import FOLDER, check_files, manifest, needs
from tracelens import analyze, load
from tracelens.table import Result
from tracelens.workload.faults import Fault
from tracelens.workload.faults.faults import KINDS

GROUP = "faults"
there = needs(GROUP)


@cache
def found(name: str, analyzer: str) -> Result:
    return analyze(load(FOLDER / GROUP / name), analyzer)


def injected(name: str) -> Fault:
    """The truth, by the manifest."""
    return Fault.parse(manifest(GROUP)["runs"][name])


def findings(name: str) -> set[str]:
    return {str(one) for one in found(name, "findings")["findings"]["detector"]}


@there
def test_files_are_those_of_the_manifest() -> None:
    check_files(GROUP, NAMES, LARGEST_BYTES)


@there
@pytest.mark.parametrize("kind", KINDS)
def test_the_late_rank_is_named_with_its_cause(kind: str) -> None:
    """It comes first, most of what it cost is laid to that cause, and it costs most of all waiting."""
    fault = injected(kind)
    columns = ("rank", "cause", "fraction_of_others_wait", "fraction_of_all_wait")
    rank, cause, of_rank, of_all = records(found(kind, "stragglers")["stragglers"], *columns)[0]
    assert (rank, cause) == (fault.rank, KINDS[fault.kind].cause)
    assert of_rank > 0.5
    assert of_all > 0.5


@there
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_beyond_noise_and_nobody_else_is(kind: str) -> None:
    beyond = found(kind, "stragglers")["stragglers"]["significant"].tolist()
    assert beyond[0]
    assert not any(beyond[1:])


@there
@pytest.mark.parametrize("kind", KINDS)
def test_the_finding_names_it_too(kind: str) -> None:
    detector = "stragglers_load" if KINDS[kind].cause == "token_load" else "stragglers"
    table = found(kind, "findings")["findings"]
    (evidence,) = table[table["detector"].eq(detector)]["evidence"]
    assert f"most for rank {injected(kind).rank} " in evidence
    assert KINDS[kind].cause.replace("_", " ") in evidence


@there
def test_without_a_fault_no_rank_is_named() -> None:
    assert not found(CONTROL, "stragglers")["stragglers"]["significant"].any()
    assert not findings(CONTROL) & {"stragglers", "stragglers_load", "stragglers_unexplained"}
