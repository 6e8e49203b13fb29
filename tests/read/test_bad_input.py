"""One intact event gives a report with the losses told; anything less is one line and exit code 2."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tracelens.cli import run as run_cli

KERNEL = {
    "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0,
    "args": {"device": 0, "stream": 7, "correlation": 1, "External id": 1},
}  # fmt: skip
LAUNCH = {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 2.0, "dur": 1.0,
    "args": {"correlation": 1, "External id": 1},
}  # fmt: skip
OP = {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 4.0,
    "args": {"External id": 1, "Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]},
}  # fmt: skip
FLOW = [
    {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 2.0, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 10.0, "cat": "ac2g", "name": "ac2g", "bp": "e"},
]
WHOLE = [OP, LAUNCH, *FLOW, KERNEL]


def text(events: list[Any], **rest: Any) -> bytes:
    """A trace as the profiler writes it."""
    return json.dumps({"schemaVersion": 1, **rest, "traceEvents": events}, indent=1).encode()


def without(event: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The event lacking some keys."""
    return {key: value for key, value in event.items() if key not in keys}


def zipped(**members: bytes) -> bytes:
    """A zip archive."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return target.getvalue()


GOOD = text(WHOLE)
MANY = text([{**KERNEL, "ts": 10.0 * number} for number in range(1, 400)])
EVENT = json.dumps(KERNEL)

NOTHING = {
    "empty file": b"",
    "empty gz": gzip.compress(b""),
    "gz of three bytes": gzip.compress(GOOD)[:3],
    "text": b"Traceback (most recent call last):\n",
    "blanks": b" \n\t ",
    "no trace": b'{"a": 1, "b": [1, 2]}',
    "number": b"17",
    "list of ints": b"[1, 2, 3]",
    "events that are ints": b'{"traceEvents": [1, 2, 3]}',
    "list of lists": b"[[1], [2]]",
    "other objects": b'[{"a": 1}, {"b": 2}]',
    "no events": b'{"traceEvents": []}',
    "events are an object": b'{"traceEvents": {"ph": "X"}}',
    "events are null": b'{"schemaVersion": 1, "traceEvents": null}',
    "only metadata": text([{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]),
    "no GPU events": text([OP, LAUNCH]),
    "only kernels without times": text([without(KERNEL, "ts", "dur")]),
    "utf-16": GOOD.decode().encode("utf-16"),
    "deep nesting": b"[" * 100_000,
    "deep nesting in an object": b'{"traceEvents": ' + b"[" * 100_000,
    "zip of nothing": zipped(),
    "zip cut off": zipped(a_json=GOOD)[:-30],
    "zst cut to its header": zstandard.compress(GOOD)[:6],
    "cut in the header": GOOD[:10],
}


@pytest.mark.parametrize("content", NOTHING.values(), ids=NOTHING.keys())
def test_nothing_to_report_is_one_line(
    content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    assert run_cli(["report", str(path), "-o", str(tmp_path / "r.html")]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(r"tracelens: [^\n]*trace\.json[^\n]*\n", err), err
    assert not (tmp_path / "r.html").exists()


def corrupt(old: str, new: str) -> bytes:
    """The whole trace and one more kernel, of which some text is damaged."""
    assert old in EVENT
    return text(WHOLE).replace(b"\n ]\n}", b",\n" + EVENT.replace(old, new).encode() + b"\n ]\n}")


# what is damaged -> (content, GPU events that must be in the report, what must be said, if anything)
SOMETHING: dict[str, tuple[bytes, int, str]] = {
    "nothing": (GOOD, 1, ""),
    "array form": (json.dumps(WHOLE).encode(), 1, ""),
    "array without its end": (json.dumps(WHOLE)[:-1].encode(), 1, ""),
    "no flows": (text([OP, LAUNCH, KERNEL]), 1, ""),
    "no shapes": (text([{**OP, "args": {"External id": 1}}, LAUNCH, *FLOW, KERNEL]), 1, ""),
    "ops without args": (text([without(OP, "args"), LAUNCH, *FLOW, KERNEL]), 1, ""),
    "args of other types": (text([{**OP, "args": [1]}, {**LAUNCH, "args": "x"}, KERNEL]), 1, ""),
    "args null": (text([{**OP, "args": None}, KERNEL]), 1, ""),
    "kernel without dur": (text([*WHOLE, without(KERNEL, "dur")]), 1, "without duration"),
    "kernel without ts": (text([*WHOLE, without(KERNEL, "ts")]), 1, "no start time"),
    "kernel without name": (text([*WHOLE, without(KERNEL, "name")]), 2, "no name"),
    "kernel named null": (text([*WHOLE, {**KERNEL, "name": None}]), 2, "no name"),
    "negative duration": (text([*WHOLE, {**KERNEL, "dur": -3}]), 2, "negative duration"),
    "NaN duration": (corrupt('"dur": 5.0', '"dur": NaN'), 1, "without duration"),
    "N/A stream": (corrupt('"stream": 7', '"stream": N/A'), 2, "text repaired"),
    "missing value": (corrupt('"stream": 7', '"stream": '), 2, "text repaired"),
    "infinite bandwidth": (corrupt('"stream": 7', '"stream": 7, "bandwidth": Infinity'), 2, "text repaired"),
    "trailing comma": (corrupt("}}", "},}"), 2, "text repaired"),
    "unescaped quotes": (corrupt('"gemm"', '"ge"mm" x"'), 2, "text repaired"),
    "backslash": (corrupt('"gemm"', '"ge\\mm"'), 2, "text repaired"),
    "control bytes": (corrupt('"gemm"', '"ge\x01\x0bmm"'), 2, "text repaired"),
    "a line break in a name": (corrupt('"gemm"', '"ge\nmm"'), 2, "text repaired"),
    "broken beyond repair": (corrupt('"ts": 10.0, ', '"ts": 10.0 :: , '), 1, "not valid JSON"),
    "invalid UTF-8": (GOOD.replace(b'"gemm"', b'"ge\xff\xfemm"'), 1, "text repaired"),
    "duplicate keys": (GOOD.replace(b'"name": "gemm"', b'"name": "a", "name": "gemm"'), 1, ""),
    "string numbers": (text([{**event, "ts": str(event["ts"])} for event in WHOLE]), 1, ""),
    "string durations": (text([OP, {**LAUNCH, "dur": "1.0"}, {**KERNEL, "dur": "5.0"}]), 1, ""),
    "64-bit stream": (text([OP, {**KERNEL, "args": {"stream": 2**64 - 1, "device": 0}}]), 1, "out of range"),
    "stream beyond 64 bits": (
        text([OP, {**KERNEL, "args": {"stream": 2**70, "device": 0}}]), 1, "out of range",
    ),
    "stream in hex": (text([OP, {**KERNEL, "args": {"stream": "0x0", "device": 0}}]), 1, ""),
    "5,000 digits": (
        text([*WHOLE, {**KERNEL, "args": {"x": 0}}]).replace(b'"x": 0', b'"x": 1' + b"0" * 5000), 2, "",
    ),
    "1e400": (corrupt('"dur": 5.0', '"dur": 1e400'), 1, "without duration"),
    "a name of a megabyte": (text([*WHOLE, {**KERNEL, "name": "k" * (1 << 20)}]), 2, ""),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD, 1, ""),
    "CRLF": (GOOD.replace(b"\n", b"\r\n"), 1, ""),
    "keys behind the events": (
        GOOD.replace(b"\n}", b',\n "traceName": "x", "distributedInfo": {"rank": 0}\n}'), 1, "",
    ),
    "ints among the events": (text([1, *WHOLE, "x", None]), 1, "not a trace event"),
    "counter": (
        text([*WHOLE, {"ph": "C", "name": "mem", "pid": 1, "ts": 1, "args": {"a": 1}}]), 1, "not analyzed",
    ),
    "end without begin": (
        text([*WHOLE, {"ph": "E", "name": "x", "pid": 1, "tid": 9, "ts": 1}]), 1, "partner",
    ),
    "truncated JSON": (MANY[: len(MANY) // 2], 100, "cut off"),
    "truncated gz": (gzip.compress(MANY)[:-200], 30, "truncated"),
    "truncated zst": (zstandard.compress(MANY * 40)[:-40], 30, ""),
    "gz by another name": (gzip.compress(GOOD), 1, ""),
    "zst by another name": (zstandard.compress(GOOD), 1, ""),
    "zip by another name": (zipped(a_json=GOOD), 1, ""),
    "gz in a zip": (zipped(a_json_gz=gzip.compress(GOOD)), 1, ""),
    "two gz members": (gzip.compress(GOOD[:300]) + gzip.compress(GOOD[300:]), 1, ""),
    "zeros behind the gz": (gzip.compress(GOOD) + b"\0" * 512, 1, ""),
}  # fmt: skip


ON_PAGES = {
    *("kernel without ts", "negative duration", "unescaped quotes", "backslash", "control bytes"),
    *("a line break in a name", "invalid UTF-8", "64-bit stream", "1e400", "a name of a megabyte"),
}
"""What a page shows otherwise, or must not: these are written as HTML, too."""


@pytest.mark.parametrize("case", SOMETHING)
def test_an_intact_event_gives_a_report_with_its_losses(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content, gpu_events, said = SOMETHING[case]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    target = tmp_path / "r.json"
    targets = [target, tmp_path / "r.html"] if case in ON_PAGES else [target]
    code = run_cli(["report", str(path), *(word for name in targets for word in ("-o", str(name)))])
    assert (code, capfd.readouterr().err.count("\n")) == (0, len(targets))
    found = json.loads(target.read_text())["results"]["input"]["tables"]
    (row,) = found["input"]
    assert row["gpu_events"] >= gpu_events
    if gpu_events < 30:
        assert row["gpu_events"] == gpu_events
    assert row["events_read"] == row["events_kept"] + row["events_dropped"]
    losses = " | ".join(loss["problem"] for loss in found.get("losses", []))
    if said:
        assert said in losses
    elif "truncated" not in path.name and gpu_events < 30:
        assert losses == ""


HOSTILE = ["<script>alert(1)</script>", "=cmd|' /C calc'!A0"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text([OP, LAUNCH, *FLOW, {**KERNEL, "name": name}]))
    outputs = [tmp_path / "r.html", tmp_path / "r.md", tmp_path / "r.json", tmp_path / "csv"]
    assert run_cli(["report", str(path), *(part for out in outputs for part in ("-o", str(out)))]) == 0
    page = outputs[0].read_text()
    assert "<script>alert(1)" not in page
    assert "<script>alert(1)" not in outputs[1].read_text()
    kernels = json.loads(outputs[2].read_text())["results"]["kernels"]["tables"]["kernels"]
    assert [row["name"] for row in kernels] == [name]
    cells = (outputs[3] / "kernels.kernels.csv").read_text()
    assert not re.search(r"(?:^|,)\"?=", cells, re.MULTILINE)


def test_a_trace_cut_at_any_byte_keeps_what_is_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    content = json.dumps({"traceEvents": [KERNEL] * 3}).encode()
    starts = [found.start() for found in re.finditer(rb'\{"ph"', content)]
    for end in range(0, len(content), 7):
        path.write_bytes(content[:end])
        whole = sum(
            content[start : start + len(EVENT)] == content[start:end][: len(EVENT)] for start in starts
        )
        code = run_cli(["analyze", "input", str(path), "--json"])
        out, err = capfd.readouterr()
        assert code == (0 if whole else 2), (end, err)
        if whole:
            found = json.loads(out)["tables"]
            assert found["input"][0]["gpu_events"] == whole
            assert any("cut off" in loss["problem"] for loss in found["losses"])


def test_several_traces_in_a_zip_are_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for rank in range(3):
            archive.writestr(f"rank{rank}.json", GOOD)
        archive.writestr("notes.txt", "hello")
    assert run_cli(["analyze", "input", str(path), "--json"]) == 0
    rows = json.loads(capfd.readouterr().out)["tables"]["input"]
    assert [(row["rank"], Path(row["path"]).name) for row in rows] == [
        (rank, f"job.zip!rank{rank}.json") for rank in range(3)
    ]
