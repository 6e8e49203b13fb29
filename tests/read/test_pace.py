"""The pace in a trace's header and in the files beside it, whatever stands there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tracelens.read import TraceFiles
from tracelens.trace import PacePart, mean_step_ns

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
BEFORE = {"steps": [2, 5], "dur_ns": 300, "tokens": 30}
AFTER = {"steps": [12, 32], "dur_ns": 2200, "tokens": None, "samples": 4}


def write(folder: Path, pace: Any, beside: dict[str, Any], rank: int = 0) -> Path:
    """A trace with this header, and files beside it by name."""
    header = {"tracelens": {"pace": pace}, "distributedInfo": {"rank": rank, "world_size": rank + 1}}
    path = folder / f"rank{rank}.json"
    path.write_text(json.dumps({**header, "traceEvents": [EVENT]}))
    for name, document in beside.items():
        (folder / name).write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def parts(path: Path) -> list[str]:
    return [part.name for part in tracelens.load(path).traces[0].meta.pace]


@pytest.mark.parametrize("rank", [0, 3])
def test_what_came_after_the_window_stands_beside_the_trace(tmp_path: Path, rank: int) -> None:
    whole = {"recording": "ab", "before": BEFORE, "after": AFTER}
    beside = {"run.json": {"pace": whole, "facts": {}}} if rank == 0 else {"rank3.pace.json": whole}
    path = write(tmp_path, {"recording": "ab", "before": BEFORE}, beside, rank)
    pace = tracelens.load(path).traces[0].meta.pace
    assert pace == (PacePart("before", 2, 3, 300, 30, -1), PacePart("after", 12, 20, 2200, -1, 4))
    assert [part.step_ns for part in pace] == [100, 110]
    assert mean_step_ns(pace) == 110  # three steps at the start do not count beside twenty
    assert mean_step_ns(pace[:1]) == 100
    assert pace[0].per_s(pace[0].tokens) == pytest.approx(1e8)
    assert TraceFiles([str(tmp_path)]).all() == [str(path)]  # what is beside is no trace


@pytest.mark.parametrize(
    "beside",
    [
        {},
        {"run.json": "{"},
        {"run.json": "[]"},
        {"run.json": {"pace": None}},
        {"run.json": {"pace": {"recording": "other", "before": BEFORE, "after": AFTER}}},
        {"run.json": {"pace": {"recording": "ab", "after": {"steps": [3, 4], "dur_ns": 0}}}},
        {"rank0.pace.json": {"recording": "ab", "after": AFTER}},
    ],
)
def test_without_a_readable_file_of_the_same_recording_the_header_counts(
    tmp_path: Path, beside: dict[str, Any]
) -> None:
    assert parts(write(tmp_path, {"recording": "ab", "before": BEFORE}, beside)) == ["before"]


@pytest.mark.parametrize(
    "pace",
    [
        7,
        [],
        {"before": 7},
        {"before": {"steps": [5], "dur_ns": 3}},
        {"before": {"steps": [2, 5], "dur_ns": -3}},
        {"before": {"steps": [2, 5], "dur_ns": 1e300}},
        {"before": {"steps": [2, 5], "dur_ns": 3, "tokens": "many"}},
        {"before": {"steps": [2, 2**70], "dur_ns": 3}},
    ],
)
def test_a_header_that_cannot_be_read_is_a_problem_and_no_pace(tmp_path: Path, pace: Any) -> None:
    meta = tracelens.load(write(tmp_path, pace, {})).traces[0].meta
    assert meta.pace == ()
    assert any("without the profiler" in problem for problem in meta.problems)


@pytest.mark.parametrize("recorder", [None, 7, {}, {"pace": None}, {"pace": {"recording": "ab"}}])
def test_recordings_without_a_pace(tmp_path: Path, recorder: Any) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"tracelens": recorder, "traceEvents": [EVENT]}))
    meta = tracelens.load(path).traces[0].meta
    assert (meta.pace, meta.problems) == ((), ())


def test_steps_that_are_none_are_no_part(tmp_path: Path) -> None:
    assert parts(write(tmp_path, {"before": {"steps": [5, 5], "dur_ns": 3}}, {})) == []
