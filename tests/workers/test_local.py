"""Ranks analyzed in several processes: the same result, and errors that arrive whole."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

import tracelens
from tests.builders import aligned, events, write
from tracelens.errors import TracelensError
from tracelens.table import Report
from tracelens.workers import children, start
from tracelens.workers.tasks import Local, Task

# Tests run beside numpy's threads, which the command line does without.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

RECORD = "op record_param_comms collective=allreduce group=0 ranks=[0,1,2] size=3 in=5 out=5 dtype=Half"
RANK = aligned(f"""
    step 1   | --------------
    step 2   |               --------------
    {RECORD} |   -   -         -
    op aten::mm shapes=[[2,3],[3,4]] types=["float","float"] |  -            -
    launch   |  ab  d        c   e
    s7 gemm  |   aaa          ccccc
    s9 ncclDevKernel_AllReduce |      bbb ddd          ee
""")


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Three ranks, each a column later than the one before."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(3):
        write(folder / f"rank{rank}.json", events(RANK, start_ns=1000 * rank), rank=rank)
    return folder


@pytest.fixture(params=[1, 2, pytest.param(4, marks=pytest.mark.slow)])
def processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """That many processes, for files of any size."""
    count: int = request.param
    monkeypatch.setenv("TRACELENS_JOBS", str(count))
    monkeypatch.setattr(children, "_WORTH_BYTES", 0)
    return count


@pytest.fixture(params=[False, True], ids=["started", "copied"])
def fork(request: pytest.FixtureRequest) -> bool:
    """Whether they are copies of this one."""
    if request.param and not hasattr(os, "fork"):
        pytest.skip("this system cannot copy a process")
    return bool(request.param)


def contents(report: Report) -> list[object]:
    """Everything in a report, as plain values."""
    return [
        report.meta,
        *(
            (
                result.analyzer, result.title, result.doc, result.skips, result.meta,
                [
                    (name, column.name, table.values(column.name))
                    for name, table in result.data.items()
                    for column in table.schema.columns
                ],
            )
            for result in report.results
        ),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"scope": "linked"}, {"step": "2"}, {"device": "mi355x"}], ids=str)
def test_the_same_as_in_one_process(ranks: Path, processes: int, fork: bool, options: dict[str, str]) -> None:
    apart = tracelens.report_files(ranks, fork=fork, **options)
    together = tracelens.report(tracelens.load(ranks), **options)
    assert contents(apart) == contents(together)


def test_only_some_analyzers(ranks: Path, processes: int, fork: bool) -> None:
    report = tracelens.report_files(ranks, names=["kernels", "timeline"], fork=fork)
    assert [result.analyzer for result in report.results] == ["kernels", "timeline"]


def test_one_file_is_one_run(ranks: Path) -> None:
    report = tracelens.report_files(ranks / "rank2.json", names=["ops"])
    assert report.meta["ranks"] == [2]


def test_a_file_that_cannot_be_read_is_the_same_line_as_ever(ranks: Path, processes: int, fork: bool) -> None:
    (ranks / "rank1.json").write_text("{}")
    with pytest.raises(TracelensError) as alone:
        tracelens.load(ranks)
    with pytest.raises(TracelensError) as apart:
        tracelens.report_files(ranks, fork=fork)
    assert str(apart.value) == str(alone.value)
    assert "rank1.json" in str(apart.value)


def test_a_step_that_is_not_there(ranks: Path, processes: int) -> None:
    with pytest.raises(TracelensError, match="7"):
        tracelens.report_files(ranks, step="7")


def test_an_unknown_analyzer_is_told_before_the_work(ranks: Path) -> None:
    with pytest.raises(TracelensError, match="did you mean 'kernels'"):
        tracelens.report_files(ranks, names=["kernel"])


def test_two_files_of_one_rank(ranks: Path, processes: int) -> None:
    write(ranks / "rank7.json", events(RANK), rank=1)
    with pytest.raises(TracelensError, match="rank 1"):
        tracelens.report_files(ranks)


def test_a_process_that_dies_is_an_error_that_names_the_file(
    ranks: Path, fork: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_JOBS", "2")
    monkeypatch.setattr(children, "_WORTH_BYTES", 0)
    files = [str(ranks / f"rank{rank}.json") for rank in range(3)]
    with start(files, fork=fork) as execute:
        assert isinstance(execute, Local)
        (process,) = execute.processes
        process.kill()
        process.wait()
        with pytest.raises(TracelensError, match=r"rank\d.json died \(exit code -9\); try TRACELENS_JOBS=1"):
            list(execute([Task(file, -1, ("kernels",), None, ()) for file in files]))


def test_children_end_with_the_report(ranks: Path, processes: int, fork: bool) -> None:
    with start([str(ranks / "rank0.json")] * 3, fork=fork) as execute:
        assert isinstance(execute, Local)
        running = list(execute.processes)
        assert len(running) == min(processes - 1, 2)
    assert [process.wait() for process in running] == [0] * len(running)


@pytest.mark.parametrize("error", [None, KeyError])
def test_copies_end_whether_or_not_they_were_asked(
    ranks: Path, error: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_JOBS", "4")
    monkeypatch.setattr(children, "_WORTH_BYTES", 0)
    with suppress(KeyError), start([str(ranks / "rank0.json")] * 4, fork=True) as execute:
        assert isinstance(execute, Local)
        running = list(execute.processes)
        if error is not None:
            raise error
    assert [process.wait() for process in running] == [0 if error is None else -signal.SIGKILL] * 3
