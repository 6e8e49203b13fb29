"""Files of a bounded size: what is left out of too large a trace, and that what is left is a trace."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tracelens.errors import TracelensError
from tracelens.recording.pack import TooLarge, pack, split

STEPS = range(7, 10)
STEP_US = 1000.0


def events(frames: bool) -> list[dict[str, Any]]:
    """Three steps of 20 calls, each of which launches a kernel that runs late, some in the next step."""
    noise = random.Random(0)
    found: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0.0, "args": {"name": "python"}}
    ]

    def add(category: str, name: str, ts: float, dur: float, tid: int, **args: Any) -> None:
        found.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": tid,
                "ts": ts,
                "dur": dur,
                "args": args,
            }
        )

    for step in STEPS:
        start = step * STEP_US
        add("user_annotation", f"ProfilerStep#{step}", start, STEP_US - 1, 1)
        for call in range(20):
            at, number = start + 10 + call * 45, step * 100 + call
            add("cpu_op", f"aten::op{noise.randrange(10**6)}", at, 30.0, 1)
            add("cuda_runtime", "cudaLaunchKernel", at + 5, 3.0, 1, correlation=number)
            add("kernel", f"gemm{noise.randrange(10**6)}", at + 400, 20.0, 7, correlation=number, device=0)
            if frames:
                for depth in range(9):
                    add("python_function", f"f{noise.randrange(10**9)}", at + depth / 10, 30.0 - depth, 1)
    return found


def compact(event: dict[str, Any]) -> str:
    """An event as torch 2.11 lays it out: several keys a line."""
    args = event.pop("args", {})
    keys = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.items())
    return "  {\n    " + keys + ',\n    "args": {\n      ' + json.dumps(args)[1:-1] + "\n    }\n  }"


def spread(event: dict[str, Any]) -> str:
    """An event as torch 2.13 lays it out: one key a line, and empty lines."""
    args = event.pop("args", {})
    keys = ",\n    ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in event.items())
    return "  {\n    " + keys + '\n    ,\n    "args": {\n      ' + json.dumps(args)[1:-1] + "\n    }\n  }"


HEADER = ' {\n  "schemaVersion": 1,\n  "deviceProperties": [\n  {\n    "id": 0, "name": "GPU"\n  }\n  ],\n'
LAYOUTS = {
    "compact": (HEADER + '  "traceEvents": [\n', compact, '\n  ],\n  "traceName": "/home/me/rank0.json"\n}'),
    "spread": (HEADER + '    "traceEvents": [\n    \n', spread, '\n  ],"traceName": "/home/me/rank0.json" }'),
}


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def write_raw(folder: Path, layout: str, frames: bool) -> Path:
    header, shown, tail = LAYOUTS[layout]
    path = folder / ".rank0.json.part"
    path.write_text(header + ",\n".join(shown(event) for event in events(frames)) + tail)
    return path


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def categories(trace: dict[str, Any]) -> dict[str, int]:
    count: dict[str, int] = {}
    for event in trace["traceEvents"]:
        count[event.get("cat", "")] = count.get(event.get("cat", ""), 0) + 1
    return count


def size(folder: Path, raw: Path, **options: Any) -> int:
    """Bytes that a trace takes with no bound."""
    return pack(raw, folder / "whole.json.gz", STEPS, max_bytes=None, **options).bytes


def test_what_fits_is_written_as_it_is(tmp_path: Path, layout: str) -> None:
    raw, out = write_raw(tmp_path, layout, frames=True), tmp_path / "rank0.json.gz"
    packed = pack(raw, out, STEPS, frames=True)
    assert gzip.decompress(out.read_bytes()) == raw.read_bytes()
    assert (packed.steps, packed.frames, packed.bytes) == (STEPS, True, out.stat().st_size)
    assert packed.left_out(STEPS, True) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [".rank0.json.part", "rank0.json.gz"]


def test_keys_are_added_at_the_top(tmp_path: Path, layout: str) -> None:
    raw, out = write_raw(tmp_path, layout, frames=True), tmp_path / "rank0.json.gz"
    metadata = {"config": {"text": 'a "b"\n\\c ü'}, "distributedInfo": {"rank": 3, "world_size": 4}}
    pack(raw, out, STEPS, metadata=metadata)
    assert read(out) == metadata | read_text(raw)
    assert list(tracelens.load(out).ranks) == [3]


def test_frames_go_first(tmp_path: Path, layout: str) -> None:
    raw, out = write_raw(tmp_path, layout, frames=True), tmp_path / "rank0.json.gz"
    most = size(tmp_path, raw) - 1
    packed = pack(raw, out, STEPS, frames=True, max_bytes=most)
    assert (packed.steps, packed.frames) == (STEPS, False)
    assert out.stat().st_size == packed.bytes <= most
    trace = read(out)
    assert trace["tracelens_cut"]["left_out"] == ["Python frames and allocations"]
    whole = [event for event in events(True) if event.get("cat") != "python_function"]
    assert trace["traceEvents"] == whole
    assert trace["traceName"] == "/home/me/rank0.json"


@pytest.mark.parametrize("frames", [True, False])
def test_then_steps_from_the_last_on(tmp_path: Path, layout: str, frames: bool) -> None:
    """With the kernels of the kept steps, also those that run in a later one, and of no other."""
    raw, out = write_raw(tmp_path, layout, frames=frames), tmp_path / "rank0.json.gz"
    most = size(tmp_path, write_raw(tmp_path, layout, frames=False)) - 1
    raw = write_raw(tmp_path, layout, frames=frames)
    packed = pack(raw, out, STEPS, frames=frames, max_bytes=most)
    assert packed.steps == range(7, 9)
    lost = ["Python frames and allocations"] * frames + ["step 9"]
    assert packed.left_out(STEPS, frames) == lost == read(out)["tracelens_cut"]["left_out"]
    assert categories(read(out)) == {
        "": 1,
        "user_annotation": 2,
        "cpu_op": 40,
        "cuda_runtime": 40,
        "kernel": 40,
    }
    kernels = [event for event in read(out)["traceEvents"] if event.get("cat") == "kernel"]
    assert {event["args"]["correlation"] // 100 for event in kernels} == {7, 8}
    assert any(event["ts"] >= 9 * STEP_US for event in kernels)
    run = tracelens.load(out)
    assert len(run.traces[0].arrays.start) == 1 * 2 + 40 * 3


def test_one_step_is_the_least(tmp_path: Path, layout: str) -> None:
    raw, out = write_raw(tmp_path, layout, frames=False), tmp_path / "rank0.json.gz"
    whole = size(tmp_path, raw)
    packed = pack(raw, out, STEPS, max_bytes=int(whole * 0.6))
    assert packed.steps == range(7, 8)
    assert packed.left_out(STEPS, False) == ["steps 8 to 9"]
    out.unlink()
    with pytest.raises(TooLarge, match=r"rank0\.json\.gz was not written: one step .* max_bytes=100;"):
        pack(raw, out, STEPS, max_bytes=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".rank0.json.part", "whole.json.gz"]


def test_the_mark_of_an_unfinished_step_goes_and_its_events_stay(tmp_path: Path, layout: str) -> None:
    raw, out = write_raw(tmp_path, layout, frames=False), tmp_path / "rank0.json.gz"
    packed = pack(raw, out, range(7, 9), unfinished=9)
    assert packed.left_out(range(7, 9), False) == []
    trace = read(out)
    assert "tracelens_cut" not in trace
    gone = [event for event in events(False) if event not in trace["traceEvents"]]
    assert [event["name"] for event in gone] == ["ProfilerStep#9"]


def test_paths_are_shortened_when_asked_for(tmp_path: Path, layout: str) -> None:
    raw, out = write_raw(tmp_path, layout, frames=False), tmp_path / "rank0.json.gz"
    pack(raw, out, STEPS, paths=False)
    assert read(out) == read_text(raw) | {"traceName": "rank0.json.gz"}


def test_a_path_that_cannot_be_shortened(tmp_path: Path, layout: str) -> None:
    raw, out = write_raw(tmp_path, layout, frames=False), tmp_path / "rank0.json.gz"
    raw.write_text(raw.read_text().replace("aten::op", "/data/me/op", 1))
    with pytest.raises(TracelensError, match="still contains a path"):
        pack(raw, out, STEPS, paths=False)
    assert not out.exists()


def read_text(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_an_unknown_layout_is_written_whole_but_not_cut(tmp_path: Path) -> None:
    raw, out = tmp_path / ".rank0.json.part", tmp_path / "rank0.json.gz"
    raw.write_text(json.dumps({"traceEvents": events(False)}))
    pack(raw, out, STEPS)
    assert read(out) == read_text(raw)
    out.unlink()
    with pytest.raises(TracelensError, match="unknown layout"):
        pack(raw, out, STEPS, max_bytes=1000)
    assert not out.exists()


def test_a_trace_without_events(tmp_path: Path, layout: str) -> None:
    header, _, tail = LAYOUTS[layout]
    raw = tmp_path / "raw"
    raw.write_text(header + tail.removeprefix("\n"))
    assert len(list(split(raw))) == 2
    pack(raw, tmp_path / "out.json.gz", STEPS, paths=False)
    assert read(tmp_path / "out.json.gz")["traceEvents"] == []
