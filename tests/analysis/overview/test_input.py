"""What was read, and what of it was lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import draw, draw_run, events, read, records
from tracelens import analyze
from tracelens.analysis.common import device_names
from tracelens.trace import make_run

DRAWING = """
    op f   | ---
    launch |  a
    s7 k   |   aa ==
"""


def test_a_whole_trace() -> None:
    devices = [{"id": 0, "name": "AMD Instinct MI300X"}, {"id": 1, "name": "not used"}]
    result = analyze(make_run([draw(DRAWING, deviceProperties=devices)]), "input")
    # op, launch, two kernels and the two ends of an arrow
    assert records(result["input"]) == [(0, "drawn.json", "kineto", "AMD Instinct MI300X", 6, 6, 0, 2, 0.5)]
    assert "losses" not in result.tables
    assert result.skips == ()


def nameless(units: int) -> list[dict[str, Any]]:
    """A GPU whose driver gives it no name."""
    figures = {"totalGlobalMem": 206_000_000_000, "computeMajor": 9, "computeMinor": 4}
    return [{"id": 0, "name": "", "numSms": units, **figures}]


@pytest.mark.parametrize(
    ("properties", "device"),
    [
        ([{"id": 3, "name": "AMD Instinct MI300X"}], "AMD Instinct MI300X"),
        ([{"id": 3, "name": "NVIDIA H100"}, {"id": 4, "name": "NVIDIA A100"}], "unknown"),
        (
            [
                {
                    "id": 0,
                    "name": "",
                    "numSms": 304,
                    "totalGlobalMem": 206e9,
                    "computeMajor": 9,
                    "computeMinor": 4,
                }
            ],
            "AMD Instinct MI300X",
        ),
        (
            [
                {
                    "id": 0,
                    "name": "",
                    "numSms": 7,
                    "totalGlobalMem": 206e9,
                    "computeMajor": 9,
                    "computeMinor": 4,
                }
            ],
            "7 CUs, 9.4, 206 GB",
        ),
    ],
)
def test_a_device_is_called_by_what_is_known_of_it(properties: list[dict[str, Any]], device: str) -> None:
    run = make_run([draw(DRAWING, deviceProperties=properties)])
    assert analyze(run, "input")["input"]["device"].tolist() == [device]
    if device != "unknown":
        assert device_names(trace.meta for trace in run.traces) == [device]


def test_losses_are_counted_by_reason() -> None:
    drawn = events(DRAWING)
    broken = [
        {**drawn[0], "dur": -5},
        {key: value for key, value in drawn[0].items() if key != "dur"},
        {key: value for key, value in drawn[0].items() if key != "ts"},
        {"ph": "C", "name": "memory", "pid": 0, "ts": 1, "args": {"bytes": 5}},
        {"ph": "B", "name": "never ends", "pid": 0, "tid": 0, "ts": 1},
    ]
    result = analyze(make_run([read([*drawn, *broken])]), "input")
    (read_, kept, dropped) = records(result["input"], "events_read", "events_kept", "events_dropped")[0]
    assert (read_, kept, dropped) == (11, 7, 4)
    outcome = {
        what: (outcome, count)
        for what, outcome, count in records(result["losses"], "problem", "outcome", "count")
    }
    assert outcome == {
        "complete event without duration": ("dropped", 1),
        "no start time": ("dropped", 1),
        "kind of event that is not analyzed (counter, object, ...)": ("dropped", 1),
        "begin or end without its partner": ("dropped", 1),
        "negative duration set to 0": ("repaired", 1),
    }


def test_a_trace_without_gpu_work() -> None:
    result = analyze(make_run([draw("python f | --")]), "input")
    assert records(result["input"], "device", "gpu_events", "linked_fraction") == [("unknown", 0, 0.0)]
    assert result.skips == ()


def test_a_trace_without_a_gpu_says_whose_work_it_is() -> None:
    # The header names a GPU of the machine, which did nothing.
    devices = [{"id": 0, "name": "AMD Instinct MI300X"}]
    result = analyze(make_run([draw("op aten::mm | --  -", deviceProperties=devices)]), "input")
    assert records(result["input"], "device", "gpu_events", "linked_fraction") == [("cpu (host ops)", 2, 1.0)]
    (skip,) = result.skips
    assert skip.subject == "rank 0: GPU time"
    assert "the CPU counts as the device" in skip.reason
    assert "ProfilerActivity.CUDA" in skip.reason
    assert "CPU-only trace: GPU means the CPU" in result.doc


def test_several_gpus_in_one_trace_are_said_to_be_seen_as_one() -> None:
    result = analyze(
        make_run([
            draw("""
            s7 k          | ==
            s7 k device=1 | ==
        """)
        ]),
        "input",
    )  # fmt: skip
    assert [skip.subject for skip in result.skips] == ["rank 0: single GPUs"]


def test_each_rank_is_a_row() -> None:
    table = analyze(draw_run(DRAWING, "s7 k | =="), "input")["input"]
    assert records(table, "rank", "gpu_events", "linked_fraction") == [(0, 2, 0.5), (1, 1, 0.0)]
