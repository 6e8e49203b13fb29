"""Work in a copy of the process: its result comes back whole, and it never outlives its use."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import tracelens
from tests.workers.test_local import contents
from tracelens.analysis import in_order
from tracelens.errors import TracelensError
from tracelens.workers import aside, beside
from tracelens.workers.aside import ForkedWork

SAMPLE = Path(__file__).parents[2] / "sample_traces" / "one_gpu/grouped/rank0.json.gz"

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot copy a process"),
    # Tests run beside numpy's threads, which the command line does without.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def gone(process: ForkedWork) -> bool:
    try:
        os.kill(process._pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_result_larger_than_a_pipe_comes_back() -> None:
    here = os.getpid()
    process = ForkedWork(lambda: (os.getpid(), b"x" * 5_000_000))
    ((pid, data),) = process.result()
    assert pid != here
    assert len(data) == 5_000_000
    assert gone(process)


def test_work_that_fails_there_is_left_to_be_done_here() -> None:
    def fail() -> None:
        raise ValueError("no")

    assert ForkedWork(fail).result() == ()


def test_a_copy_whose_result_nobody_wants_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_WORTH_EVENTS", 0)
    started = time.monotonic()
    with pytest.raises(KeyError), beside(lambda: time.sleep(60), 1, 2):
        raise KeyError
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(("events", "cores"), [(10, 8), (10**9, 1)])
def test_small_traces_and_single_cores_are_left_to_be_done_here(events: int, cores: int) -> None:
    with beside(lambda: 1, events, cores) as wait:
        assert wait() == ()


def test_a_report_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_WORTH_EVENTS", 0)
    monkeypatch.setenv("TRACELENS_JOBS", "2")
    assert any(item.slow for item in in_order())
    run = tracelens.load(SAMPLE)
    assert contents(tracelens.report(run, fork=True)) == contents(tracelens.report(run))


def test_errors_are_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_WORTH_EVENTS", 0)
    monkeypatch.setenv("TRACELENS_JOBS", "2")
    with pytest.raises(TracelensError, match="did you mean 'mi355x'"):
        tracelens.report(tracelens.load(SAMPLE), device="mi355", fork=True)
