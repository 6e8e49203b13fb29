"""Work in a copy of the process: what it makes comes back whole, and it never outlives its use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import tracelens
from tests.workers.test_local import contents
from tracelens.analysis import Combining, in_order
from tracelens.errors import TracelensError
from tracelens.rendering import RENDERERS, prepared
from tracelens.session import Reporting
from tracelens.workers import aside, beside, combine

SAMPLES = Path(__file__).parents[2] / "sample_traces"
SAMPLE = SAMPLES / "one_gpu/grouped/rank0.json.gz"

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot copy a process"),
    # Tests run beside numpy's threads, which the command line does without.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


def test_things_larger_than_a_pipe_come_back_in_order() -> None:
    def work() -> Iterator[tuple[int, bytes]]:
        yield os.getpid(), b"x" * 5_000_000
        yield os.getpid(), b"y"

    with beside(work, worth=True) as wait:
        ((first_pid, large),) = wait()
        ((second_pid, small),) = wait()
        assert wait() == ()
    assert first_pid == second_pid != os.getpid()
    assert (len(large), small) == (5_000_000, b"y")
    with pytest.raises(ProcessLookupError):
        os.kill(first_pid, 0)


def test_work_that_fails_there_is_left_to_be_done_here() -> None:
    def fail() -> Iterator[int]:
        yield 1
        raise ValueError("no")

    with beside(fail, worth=True) as wait:
        assert wait() == (1,)
        assert wait() == wait() == ()


def test_a_copy_that_nobody_waits_for_ends() -> None:
    def sleep() -> Iterator[None]:
        time.sleep(60)
        yield

    started = time.monotonic()
    with pytest.raises(KeyError), beside(sleep, worth=True):
        raise KeyError
    assert time.monotonic() - started < 30


def test_what_is_not_worth_a_copy_is_left_to_be_done_here() -> None:
    with beside(lambda: [1], worth=False) as wait:
        assert wait() == ()


def test_what_replays_the_run_is_combined_here_and_the_rest_in_a_copy() -> None:
    run = tracelens.load(SAMPLES / "pipeline/plain")
    combining = Combining(in_order(), lambda name: [items[name].part_of(trace) for trace in run.traces])
    items = {item.name: item for item in combining.missing}
    assert {item.name for item in combining.replaying()} == {
        "graph parts", "replays", "projector", "findings",
    }  # fmt: skip
    made = combine(combining, lambda results: {"": {it.analyzer: os.getpid() for it in results}}, worth=True)
    assert not combining.missing
    assert [result.analyzer for result in combining.results] == [item.name for item in in_order()]
    (pid,) = {*made[""].values()}
    assert pid != os.getpid()


@pytest.mark.parametrize("source", ["one_gpu/grouped", "ladder/ep4/00_baseline"])
def test_a_report_is_the_same(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(aside, "_WORTH_EVENTS", 0)
    monkeypatch.setenv("TRACELENS_JOBS", "2")
    assert any(item.slow for item in in_order())
    files = [str(path) for path in sorted((SAMPLES / source).glob("rank*.json*"))]
    with Reporting(files, fork=True) as reporting:
        report = reporting.report(ahead=partial(prepared, [tmp_path / "report.html"]))
    assert report.prepared["html"].keys() == {r.analyzer for r in report.results} - {"findings"}
    plain = tracelens.report(tracelens.load(*files))
    assert not plain.prepared
    assert contents(report) == contents(plain)
    html = RENDERERS.get("html").files
    assert html(report) == html(plain)


def test_what_cannot_be_prepared_is_made_with_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(result: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("tracelens.rendering.formats.html.drawn", fail)
    assert prepared(["report.html", "report.md"], []) == {"html": {}}
    report = tracelens.report(tracelens.load(SAMPLE), ["kernels"])
    assert prepared(["report.html"], report.results) == {}


def test_errors_are_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "_WORTH_EVENTS", 0)
    monkeypatch.setenv("TRACELENS_JOBS", "2")
    with pytest.raises(TracelensError, match="did you mean 'mi355x'"):
        tracelens.report(tracelens.load(SAMPLE), device="mi355", fork=True)
