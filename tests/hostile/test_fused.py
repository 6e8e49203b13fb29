"""A fused trace: names are names, whatever they are, and the structure is ours."""

from __future__ import annotations

import json
from collections import Counter

import tracelens
from tests.hostile.conftest import Outputs

KEYS = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "bp"}
ARGUMENTS = {
    "shapes", "op", "correlation", "recorded correlation", "bytes", "blocks", "collective", "group",
    "group description", "group ranks", "dtype", "recorded dur_ns", "name", "labels", "sort_index",
}  # fmt: skip


def refuse(text: str) -> float:
    raise ValueError(text)


def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs), "a key stands twice"
    return dict(pairs)


def test_structure(outputs: Outputs) -> None:
    text = (outputs.folder / "fused.json").read_bytes().decode()
    fused = json.loads(text, parse_constant=refuse, object_pairs_hook=once)
    assert set(fused) == {
        "schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "fusedRanks", "traceEvents",
        "deviceProperties",
    }  # fmt: skip
    events = fused["traceEvents"]
    assert len(events) > 2000
    assert {event["ph"] for event in events} == {"M", "X", "s", "f"}
    assert all(set(event) <= KEYS for event in events)
    assert all(isinstance(event[key], int) for event in events for key in ("pid", "tid"))
    processes = Counter(
        event["pid"] for event in events if event["ph"] == "M" and event["name"] == "process_name"
    )
    assert set(processes.values()) == {1}
    assert {event["pid"] for event in events} == set(processes)
    names = {key for event in events for key in event.get("args", {})}
    assert "correlation" in names
    assert {event["name"] for event in events if event["ph"] == "M"} == {
        "process_name", "process_labels", "process_sort_index", "thread_name", "thread_sort_index",
    }  # fmt: skip
    assert not [event for event in events if event["ph"] == "X" and event["dur"] < 0]


def test_it_reads_back(outputs: Outputs) -> None:
    run = tracelens.load(outputs.folder / "fused.json")
    assert len(run.traces) == 1
    assert len(run.traces[0].arrays.start) > 1000
