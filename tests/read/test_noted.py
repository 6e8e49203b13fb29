"""Rows in groups from the values beside a trace, whatever stands there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

import tracelens
from tracelens.filenames import VALUES
from tracelens.trace import TraceMeta

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::_grouped_mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
ENDS = {"shape": [3], "dtype": "int32"}


def loaded(folder: Path, content: bytes | None, event: dict[str, Any] = EVENT) -> TraceMeta:
    """What is known of a trace with this file of values beside it."""
    path = folder / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [event]}))
    if content is not None:
        (folder / f"rank0{VALUES}").write_bytes(zstandard.ZstdCompressor().compress(content))
    return tracelens.load(path).traces[0].meta


def values(*calls: tuple[int, list[list[int]], list[int]]) -> bytes:
    """A file of calls: how many are alike, shapes of the operands, rows of the groups."""
    listed = [
        {
            "op": "aten::_grouped_mm",
            "count": count,
            "arguments": [*({"shape": shape} for shape in shapes), ENDS | {"sizes": sizes}, None],
        }
        for count, shapes, sizes in calls
    ]
    plain = {"op": "aten::add", "count": 1, "arguments": [{"shape": [64, 8]}, {"value": 1}, None]}
    return json.dumps({"schema": "tracelens.values/1", "step": 3, "calls": [*listed, plain]}).encode()


def test_forward_and_gradients_cut_one_dimension(tmp_path: Path) -> None:
    rows, columns, weights = [[64, 8], [3, 8, 16]], [[3, 16, 8], [8, 64]], [[8, 64], [64, 16]]
    content = values((1, rows, [3, 0, 7]), (2, columns, [3, 0, 7]), (1, weights, [3, 0, 11]))
    assert loaded(tmp_path, content).group_rows == {64: 11}  # of 10, 10, 10 and 14


def test_full_buffers_and_unclear_ones_are_left_out(tmp_path: Path) -> None:
    full = (1, [[10, 8], [3, 8, 16]], [3, 0, 7])
    square = (1, [[8, 8], [8, 8]], [1, 1, 1])  # the one dimension that there is
    unclear = (1, [[8, 64], [64, 8]], [1, 1, 1])  # either may be cut
    stacked = (1, [[3, 4, 8], [3, 8, 16]], [1, 1, 1])
    more = (1, [[12, 8], [3, 8, 16]], [9, 9, 9])
    assert loaded(tmp_path, values(full, square, unclear, stacked, more)).group_rows == {8: 3}


def test_only_grouped_gemms_need_them(tmp_path: Path) -> None:
    assert loaded(tmp_path, None).group_rows == {}
    content = values((1, [[64, 8], [3, 8, 16]], [3, 0, 7]))
    assert loaded(tmp_path, content, EVENT | {"name": "aten::mm"}).group_rows == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"schema": "tracelens.values/2", "calls": []}',
        values((-1, [[64, 8]], [1])),
        values((1, [[64, 8]], [-1])),
        values((1, [[64, 8]], [1 << 60])),
    ],
    ids=range(8),
)
def test_what_nobody_recorded_is_a_problem_and_no_more(tmp_path: Path, content: bytes) -> None:
    meta = loaded(tmp_path, content)
    (problem,) = meta.problems
    assert "rank0.values.json.zst: rows of grouped GEMMs not read" in problem
    assert meta.group_rows == {}
