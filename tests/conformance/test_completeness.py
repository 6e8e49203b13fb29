"""No real trace is doubted but those that are truly damaged, each with what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.conformance.corpus import Case
from tests.reference.traces import FOLDERS
from tracelens.table.result import Result

DAMAGED = {
    # Graph replays of 20 activities, most of them memsets; the host waits for the GPU for 158 ms in
    # cudaDeviceSynchronize, while nothing recorded runs for 64.7 ms between two memsets of one replay.
    "misc/negative_queue.json.gz": {"missing work"},
    # The second of two steps is 49 us long on the host: the recording ended when it began.
    "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz": {"cut"},
    # The host waits for the device for 115 of 174 ms before anything that ran there is recorded.
    "capture_traces/graph_capture_rank_0.1773709679453551615.pt.trace.json.gz": {"missing work"},
    # Cut out of a longer one: hipMemcpyWithStream waits 463 ms for four kernels of 6 us each, queued 123 us
    # after the begin behind work that is not recorded.
    "mi300x-serving/sglang_decode/sglang_Qwen3-8B_decode.json.gz": {"missing work"},
}


def _runs(folder: str) -> list[Any]:
    """Directories of ranks and single files, captures of graphs among them."""
    root = FOLDERS[folder]
    files = [*root.rglob("*.json.gz"), *root.rglob("*.json.zst")]
    paths = sorted({path.parent if path.name.startswith("rank") else path for path in files})
    return [pytest.param(path, id=path.relative_to(root).as_posix()) for path in paths]


def _check(result: Result, name: str) -> None:
    expected = next((doubts for path, doubts in DAMAGED.items() if name.endswith(path)), set())
    table = result["doubts"]
    assert set(table["doubt"].astype(str)) == expected, table.to_dict("records")


def test_the_corpus_is_complete_but_for_what_is_damaged(case: Case) -> None:
    _check(tracelens.analyze(case.run, "completeness"), case.name)


@pytest.mark.slow
@pytest.mark.parametrize("path", _runs("foreign"))
def test_the_foreign_traces_are_complete_but_for_what_is_damaged(path: Path) -> None:
    _check(tracelens.analyze(tracelens.load(path), "completeness"), path.as_posix())


@pytest.mark.parametrize("path", _runs("sample_traces"))
def test_the_sample_traces_are_complete(path: Path) -> None:
    _check(tracelens.analyze(tracelens.load(path), "completeness"), "")
