"""Decoding in several processes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.once import made_once
from tracelens.errors import TracelensError
from tracelens.native import PURE, core
from tracelens.read import open_source
from tracelens.read.json import Chunk, Part, Splitter, decode_all, encode, merge
from tracelens.workers import Children, jobs


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A trace of some 6 MB: a dozen chunks."""
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "pid": 1,
        "tid": 1,
        "dur": 0.5,
        "args": {"Input type": ["float"] * 8},
    }
    events = [event | {"name": f"op{number % 50}", "ts": 1.0 * number} for number in range(40_000)]

    def write(folder: Path) -> None:
        (folder / "large.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))

    return str(made_once(tmp_path_factory, "large", write) / "large.json")


@pytest.mark.usefixtures("each_core")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_processes_reads_the_same(
    large: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACELENS_JOBS", str(count))
    events = tracelens.load(large).traces[0].events
    assert events["ts_ns"].tolist() == [1000 * number for number in range(40_000)]
    assert events["name"].tolist() == [f"op{number % 50}" for number in range(40_000)]


@pytest.mark.parametrize("shares", [[0, 1], [1, 0, 0], [0, 0, 1, 1, 1, 0]])
def test_whoever_decodes_a_chunk_values_are_numbered_as_they_appear(large: str, shares: list[int]) -> None:
    """Codes decide the order of equals in tables, so they must not depend on which process was free."""
    parts = [Part(), Part()]
    for chunk in Splitter(open_source(large)[0]).chunks():
        assert encode(parts[shares[chunk.index % len(shares)]], chunk) is None
    merged = merge(parts)
    assert merged.names == [f"op{number}" for number in range(50)]
    assert merged.columns.name.tolist() == [number % 50 for number in range(40_000)]


def test_the_native_core_decodes_in_threads(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_JOBS", "3")
    monkeypatch.delenv(PURE, raising=False)
    if core() is None:
        pytest.skip("the native core is not built")
    with Children([large]) as children:
        assert (children.processes, children.threads) == ([], 2)
    monkeypatch.setenv(PURE, "1")
    with Children([large]) as children:
        assert (len(children.processes), children.threads) == (2, 0)


def test_an_error_in_a_thread_is_raised_where_the_trace_is_read(
    large: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = threading.Event()

    def take(self: Any, chunk: Chunk) -> None:
        if threading.current_thread() is not threading.main_thread():
            failed.set()
            raise MemoryError("no more")
        assert failed.wait(10)

    monkeypatch.setattr("tracelens.read.json.pool._Decoder.take", take)
    with pytest.raises(MemoryError, match="no more"):
        decode_all(Splitter(open_source(large)[0]), threads=1)


def test_a_process_that_dies_is_an_error_not_a_hole(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PURE, "1")
    monkeypatch.setenv("TRACELENS_JOBS", "2")
    with Children([large]) as children:
        (process,) = children.processes
        process.kill()
        process.wait()
        with pytest.raises(
            TracelensError, match=r"a decoding process died \(exit code -9\); try TRACELENS_JOBS=1"
        ):
            decode_all(Splitter(open_source(large)[0]), children.processes)


def test_children_end_with_the_load(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PURE, "1")
    monkeypatch.setenv("TRACELENS_JOBS", "3")
    with Children([large]) as children:
        assert len(children.processes) == 2
    assert [process.returncode for process in children.processes] == [0, 0]


def test_small_inputs_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_JOBS", "4")
    small = tmp_path / "small.json"
    small.write_text("[]")
    with Children([str(small), str(tmp_path / "missing.json")]) as children:
        assert children.processes == []


@pytest.mark.parametrize("value", ["²", "1000", "0", "-1", "two", "1.5"])
def test_a_bad_number_of_jobs(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACELENS_JOBS", value)
    with pytest.raises(TracelensError, match="give a number of processes, 1 to 999"):
        jobs()
