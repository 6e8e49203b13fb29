"""No real trace is doubted but those that are truly damaged, each with what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelens
from tests.conformance.corpus import FOREIGN, Case, everywhere
from tracelens.table import Result

DAMAGED = {
    # Graph replays of 20 activities, most of them memsets; the host waits for the GPU for 158 ms in
    # cudaDeviceSynchronize, while nothing recorded runs for 64.7 ms between two memsets of one replay.
    "misc/negative_queue.json.gz": {"missing work"},
    # The second of two steps is 49 us long on the host: the recording ended when it began.
    "mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz": {"cut"},
}


CAPTURES = sorted(FOREIGN.rglob("capture_traces/*.json.gz"))


def _check(result: Result, name: str) -> None:
    expected = next((doubts for path, doubts in DAMAGED.items() if name.endswith(path)), set())
    table = result["doubts"]
    assert set(table["doubt"].astype(str)) == expected, table.to_dict("records")


@everywhere
def test_recordings_are_complete_but_for_what_is_damaged(case: Case) -> None:
    _check(case.result("completeness"), case.name)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_captures_of_graphs_are_complete_but_for_what_is_damaged(path: Path) -> None:
    _check(tracelens.analyze(tracelens.load(path), "completeness"), path.as_posix())
