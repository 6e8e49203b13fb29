"""Small inputs that ask for much: memory stays below 200 MB + 40 bytes a byte; a report or one line ends it.

Of compressed traces within the limits it is the bytes of their JSON text that count.

Growth tests stand beside them: salvage of four times as much looks at four times as much.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import os
import random
import re
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard

from tests.effort import effort
from tracelens.errors import ParseError, TracelensError
from tracelens.limits import VARIABLE, Limits, limits, parse_limits
from tracelens.read import TraceFiles, open_source, parse
from tracelens.read.json import Splitter
from tracelens.read.source import BLOCK

KERNEL: dict[str, Any] = {
    "ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0,
    "args": {"device": 0, "stream": 7, "correlation": 1},
}  # fmt: skip
OP: dict[str, Any] = {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1.0, "dur": 4.0,
    "args": {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]},
}  # fmt: skip
REDUCE: dict[str, Any] = {
    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 8, "ts": 30.0, "dur": 5.0,
    "args": {
        "device": 0, "stream": 8, "Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8,
        "dtype": "Float", "Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    },
}  # fmt: skip
GLOO: dict[str, Any] = {
    "ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 1, "tid": 1, "ts": 50.0, "dur": 4.0,
    "args": {"Input Dims": [[[2, 3]]], "Input type": ["TensorList"]},
}  # fmt: skip
HUGE = 2**63 - 1
MEGABYTE = 1_000_000
MOST_BYTES, MOST_PER_BYTE = 200 * MEGABYTE, 40


def trace(*events: dict[str, Any], **header: Any) -> bytes:
    """A trace as the profiler writes it."""
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": list(events)}).encode()


def with_args(event: dict[str, Any], **args: Any) -> dict[str, Any]:
    """The event with other arguments."""
    return {**event, "args": {**event["args"], **args}}


def many(count: int, text: bytes = json.dumps(KERNEL).encode()) -> bytes:
    """A trace of equal events."""
    return b'{"traceEvents": [\n' + b",\n".join([text] * count) + b"\n]}"


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


BLANKS = b'{"traceEvents": [' + b" " * (150 * MEGABYTE)
FEW, MANY = 20 * MEGABYTE, 600_000
TINY = b'{"ph":"i","ts":1}'
NESTED = b'{"a":' * 200_000


class Bomb(NamedTuple):
    """A file and what must come of it: exit code, and what stands on stdout or stderr."""

    content: Callable[[], bytes]
    code: int
    said: str
    name: str = "trace.json"


BOMBS = {
    "gz of blanks": Bomb(lambda: gzip.compress(BLANKS), 2, "--limit decompression_ratio"),
    "gz of equal events": Bomb(lambda: gzip.compress(many(MANY, TINY)), 2, "--limit decompression_ratio"),
    "zst of blanks": Bomb(lambda: zstandard.compress(BLANKS), 2, "--limit decompression_ratio"),
    "zst asking for 2 GB": Bomb(
        lambda: zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters(window_log=31)
        ).compressobj().compress(b"x") + b"\x28\xb5\x2f\xfd\x00\xa8" + b"\0" * 64,
        2, "trace.json",
    ),
    "zip of blanks": Bomb(lambda: zipped({"a.json": BLANKS}), 2, "decompression_ratio"),
    "bz2 in a zip": Bomb(lambda: zipped({"a.json": BLANKS[:FEW]}, zipfile.ZIP_BZIP2), 2, "bzip2 are not"),
    "lzma in a zip": Bomb(lambda: zipped({"a.json": BLANKS[:FEW]}, zipfile.ZIP_LZMA), 2, "lzma are not"),
    "bz2": Bomb(lambda: bz2.compress(BLANKS[:FEW]), 2, "compressed with bzip2; unpack it first"),
    "gz in a zip": Bomb(lambda: zipped({"a.json.gz": gzip.compress(BLANKS)}), 2, "decompression_ratio"),
    "gz in a gz": Bomb(lambda: gzip.compress(gzip.compress(BLANKS)), 2, "gzip inside another compression"),
    "zip of many members": Bomb(
        lambda: zipped({f"rank{number}.json": b"" for number in range(25_000)}), 2, "archive_members"
    ),
    "one long string": Bomb(lambda: trace(KERNEL, {**KERNEL, "name": "k" * (20 * MEGABYTE)}), 0, "cut there"),
    "one large event": Bomb(
        lambda: b'{"traceEvents": [' + b",".join(
            [json.dumps(KERNEL).encode()] * 8000 + [b'{"ph": "X", "x": "' + b"y" * (70 * MEGABYTE) + b'"}']
            + [json.dumps(KERNEL).encode()] * 8000
        ) + b"]}",
        0, "larger than the limit",
    ),
    "blanks for events": Bomb(lambda: BLANKS[: 70 * MEGABYTE], 2, "--limit event_bytes"),
    "a long header": Bomb(lambda: b'{"a": "' + b"x" * (70 * MEGABYTE), 2, "--limit header_bytes"),
    "deep nesting": Bomb(lambda: trace(KERNEL)[:-2] + b", " + NESTED, 0, "not valid JSON"),
    "deep lists in arguments": Bomb(
        lambda: trace(KERNEL, with_args(OP, a="x")).replace(b'"x"', b"[" * 5000 + b"]" * 5000),
        0, "not valid JSON",
    ),
    "nested lists of events": Bomb(lambda: b'{"traceEvents":[' * 5000, 2, "no intact trace event"),
    "world size": Bomb(
        lambda: trace(GLOO, distributedInfo={"rank": 0, "world_size": 2**31}), 0, "world_size 2147483648 was"
    ),
    "world size of a rank's worth of memory": Bomb(
        lambda: trace(*[{**GLOO, "ts": 50 + 9 * at} for at in range(500)],
                      distributedInfo={"rank": 0, "world_size": 2**17}),
        0, "Traces read",
    ),
    "rank": Bomb(lambda: trace(OP, KERNEL, distributedInfo={"rank": HUGE}), 0, "distributedInfo.rank"),
    "group ranks": Bomb(
        lambda: trace(with_args(REDUCE, **{"Process Group Ranks": f"[0, {HUGE}]", "Group size": HUGE})),
        0, "impossible group ranks",
    ),
    "message size": Bomb(lambda: trace(with_args(REDUCE, **{"In msg nelems": HUGE})), 0, "Traces read"),
    "shapes": Bomb(lambda: trace(with_args(OP, **{"Input Dims": [[HUGE] * 64] * 99})), 0, "Traces read"),
    "threads and processes": Bomb(lambda: trace({**OP, "tid": HUGE, "pid": 2**64}), 0, "Traces read"),
    "long durations": Bomb(
        lambda: trace(KERNEL, *[{**KERNEL, "dur": 4e15}] * 99), 0, "duration out of range"
    ),
    "far starts": Bomb(
        lambda: trace({**KERNEL, "ts": -(2**50)}, {**KERNEL, "ts": 2**52}, KERNEL), 0, "start time out"
    ),
    "rank in the name": Bomb(lambda: trace(KERNEL), 0, "Traces read", "rank999999999.json"),
}  # fmt: skip

_SERVER = """
import json, os, sys
import tracelens.analysis, tracelens.cli.app, tracelens.rendering, tracelens.read

for line in sys.stdin:
    arguments, folder, environment = json.loads(line)
    child = os.fork()
    if child == 0:
        for descriptor, name in ((0, os.devnull), (1, "stdout"), (2, "stderr")):
            file = name if descriptor == 0 else os.path.join(folder, f".{name}")
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv[1:] = arguments
        tracelens.cli.main()
    _, status, usage = os.wait4(child, 0)
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps([os.waitstatus_to_exitcode(status), peak]), flush=True)
"""
"""Runs commands, each in a copy of a process that has imported what they need: starting takes longest."""


@cache
def server() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        text=True,
    )


@pytest.fixture(scope="module", autouse=True)
def no_server_is_left() -> Iterator[None]:
    yield
    if server.cache_info().currsize:
        server().communicate()
        server.cache_clear()


class Ended(NamedTuple):
    """How a command ended, and the most memory that one of its processes took."""

    code: int
    out: str
    err: str
    peak_bytes: int


def run(*arguments: str, cwd: Path) -> Ended:
    """Run the command line in a process of its own."""
    process = server()
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([arguments, str(cwd), {**os.environ, "COLUMNS": "200"}]), file=process.stdin, flush=True)
    code, peak = json.loads(process.stdout.readline())
    out, err = ((cwd / f".{name}").read_text() for name in ("stdout", "stderr"))
    return Ended(code, out, err, peak)


def check(ended: Ended, input_bytes: int) -> None:
    """What holds of any input."""
    assert ended.code in (0, 2)
    assert "Traceback" not in ended.err
    assert ended.peak_bytes <= MOST_BYTES + MOST_PER_BYTE * input_bytes
    if ended.code == 2:
        assert ended.out == ""
        assert re.fullmatch(r"tracelens: [^\n]+\n", ended.err), ended.err


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_ends_in_a_report_or_one_line(bomb: Bomb, tmp_path: Path) -> None:
    path = tmp_path / bomb.name
    path.write_bytes(bomb.content())
    ended = run("analyze", "input", bomb.name, cwd=tmp_path)
    check(ended, path.stat().st_size)
    assert ended.code == bomb.code, ended.err
    assert re.search(bomb.said, " ".join((ended.out + ended.err).split())), ended.out + ended.err


TINY_EVENTS: dict[str, Callable[[int], bytes]] = {
    "nothing": lambda number: b"{}",
    "numbers": lambda number: b"1",
    "no time": lambda number: b'{"ph":"X"}',
    "instants": lambda number: TINY,
    "flows": lambda number: b'{"ph":"s"}',
    "async": lambda number: b'{"ph":"b"}',
    "phases": lambda number: b'{"ph":"%x"}' % number,
    "broken": lambda number: b'{"ph" 1}',
}


@pytest.mark.parametrize(
    ("event", "compress"),
    list(zip(TINY_EVENTS.values(), cycle([gzip.compress, zstandard.compress]), strict=False)),
    ids=TINY_EVENTS.keys(),
)
def test_tiny_events_take_memory_in_proportion_to_their_text(
    event: Callable[[int], bytes], compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    # What cannot be compressed keeps the file within the ratio that is allowed.
    pad = base64.b64encode(random.Random(0).randbytes(MEGABYTE // 4))
    text = b'{"pad": "' + pad + b'", "traceEvents": [' + b",".join(map(event, range(MANY // 3))) + b"]}"
    (tmp_path / "trace.json").write_bytes(compress(text))
    ended = run("analyze", "input", "trace.json", cwd=tmp_path)
    check(ended, len(text))
    assert "decompression_ratio" not in ended.err


@pytest.mark.parametrize("damage", ['"dur" 5.5', '"dur": N/A'], ids=["beyond mending", "bare word"])
def test_a_trace_of_which_every_event_is_broken_is_cut_into_chunks(damage: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(broken('"dur": 5.5', damage)(20_000))
    (source,) = open_source(str(tmp_path / "trace.json"))
    assert max(len(chunk.text) for chunk in Splitter(source).chunks()) < 2 * BLOCK


def test_limits_can_be_raised_by_option_and_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(many(80_000)))
    refused = run("analyze", "input", "t.json.gz", "--limit", "decompression_ratio=2", cwd=tmp_path)
    assert (refused.code, "decompression_ratio" in refused.err) == (2, True)
    monkeypatch.setenv(VARIABLE, "decompression_ratio=2,decompressed_bytes=1M")
    assert run("analyze", "input", "t.json.gz", cwd=tmp_path).code == 2
    raised = ("--limit", "decompression_ratio=5000", "--limit", "decompressed_bytes=1G")
    assert run("analyze", "input", "t.json.gz", *raised, cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    "entry", ["ranks", "ranks=", "ranks=-1", "ranks=0", "ranks=1e9", "ranks=²", "rank=1", "=2"]
)
def test_a_wrong_limit_is_one_line(entry: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(trace(KERNEL))
    ended = run("analyze", "input", "t.json", "--limit", entry, cwd=tmp_path)
    check(ended, 0)
    assert ended.code == 2


def test_limits_are_read_with_units() -> None:
    assert parse_limits("") == Limits()
    assert parse_limits("ranks=7").ranks == 7
    assert parse_limits(" ranks = 2k , event_bytes=1.5Gi").event_bytes == 3 << 29
    assert parse_limits("ranks=1,ranks=2").ranks == 2
    with pytest.raises(TracelensError, match="did you mean 'ranks'"):
        parse_limits("rank=7")


ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ALIASES, "config_values"),
        ("a: &a [*a]", "contains itself"),
        ("x: " + "y" * 5 * MEGABYTE, "config_bytes"),
        ("a: " + "[" * 5000, "not YAML"),
    ],
    ids=["aliases", "circle", "size", "nesting"],
)
def test_a_model_file_is_refused_before_it_grows(text: str, said: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "model.yaml").write_text(text)
    ended = run("project", "memory", "--model", "model.yaml", cwd=tmp_path)
    check(ended, len(text))
    assert ended.code == 2
    assert said in ended.err


def test_only_regular_files_are_taken_from_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    (folder / "deep").mkdir(parents=True)
    for name in ("rank0.json", "deep/rank1.json"):
        (folder / name).write_bytes(trace(KERNEL))
    os.mkfifo(folder / "rank2.json")
    (folder / "rank3.json").symlink_to("/dev/zero")
    (folder / "rank4.json").symlink_to("rank4.json")
    (folder / "loop").symlink_to("..")
    (folder / "deep" / "loop").symlink_to("../..")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s.json"))
    assert TraceFiles([str(folder)]).all() == [str(folder / "rank0.json")]
    found = TraceFiles([f"{folder}/**/*.json"]).all()
    assert sorted(os.path.basename(file) for file in found) == ["rank0.json", "rank1.json"]
    ended = run("analyze", "input", "traces", cwd=tmp_path)
    check(ended, 0)
    assert ended.code == 0


def test_a_pipe_that_is_named_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", 'cat > "$0"', str(pipe)], stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        writer.stdin.write(trace(KERNEL))
        writer.stdin.close()
        assert run("analyze", "input", str(pipe), cwd=tmp_path).code == 0


def test_a_pipe_without_a_writer_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    ended = run("analyze", "input", "pipe", cwd=tmp_path)
    assert ended.code == 2
    assert ended.err == "tracelens: pipe: a pipe that nobody writes to; start its writer, or name a file\n"


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_a_device_is_refused(device: str, tmp_path: Path) -> None:
    ended = run("analyze", "input", device, cwd=tmp_path)
    check(ended, 0)
    assert ended.code == 2


# Broken text

EVENT = (
    '{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 10.25, "dur": 5.5, '
    '"args": {"stream": 7, "grid": [32, 4, 1], "correlation": 12}}'
)


def broken(old: str, new: str) -> Callable[[int], str]:
    """Events of which each has the same damage."""
    assert old in EVENT
    return lambda count: '{"traceEvents": [\n' + ",\n".join([EVENT.replace(old, new)] * count) + "\n]}"


def after_an_event(text: str) -> Callable[[int], str]:
    """An intact event, and behind it the same text again and again."""
    return lambda count: '{"traceEvents": [' + EVENT + text * count


BROKEN = {
    "bare word": broken('"stream": 7', '"stream": N/A'),
    "infinity": broken('"stream": 7', '"stream": 7, "bw": inf'),
    "missing value": broken('"stream": 7', '"stream": '),
    "trailing comma": broken("}}", "},}"),
    "open string": broken('"gemm"', '"gemm'),
    "quote in a string": broken('"gemm"', '"ge"mm"'),
    "bad escape": broken('"gemm"', '"ge\\mm"'),
    "half a surrogate pair": broken('"gemm"', '"ge\\ud800mm"'),
    "control byte": broken('"gemm"', '"ge\x01mm"'),
    "missing comma": broken(', "pid"', ' "pid"'),
    "missing brace": broken("}}", "}"),
    "missing bracket": broken("4, 1]", "4, 1"),
    "extra bracket": broken("}}", "}}]"),
    "two colons": broken('"ts": ', '"ts": :: '),
    "cut": broken(EVENT[60:], ""),
    "other types": broken('"gemm"', '["gemm"]'),
    "lists of events in the header": lambda count: '{"traceEvents":[' * count,
    "lists of events in keys": lambda count: (
        '{"a": [' + ", ".join(['{"traceEvents":[1]}'] * count) + '], "traceEvents": [' + EVENT + "]}"
    ),
    "open lists": after_an_event("[" * 10),
    "open objects": after_an_event(', {"a"' + ":{" * 10),
    "objects in objects": after_an_event(', {"ph": "X", "args": '),
    "ends of lists": after_an_event('], "a": ['),
    "ends with keys": after_an_event('], "a": x, "b": []'),
    "quotes": after_an_event(', {"ph": " x'),
    "colons": after_an_event(":" * 30),
    "backslashes": after_an_event(', {"ph": "' + "\\" * 29),
    "commas": after_an_event("," * 30),
    "blanks": after_an_event(" " * 30),
    "text": lambda count: '{"traceEvents": [' + EVENT + ', {"ph": "X", "name": "' + "}, {" * 20 * count,
}


SIZE = effort(2000, 4000)


def cpu_s(text: str, path: Path) -> float:
    """Processor time of reading a trace, whatever comes of it."""
    path.write_text(text)
    started = time.process_time()
    with suppress(ParseError):
        parse(str(path))
    return time.process_time() - started


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN.keys())
def test_reading_broken_text_is_linear(make: Callable[[int], str], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    cpu_s(make(10), path)
    small = large = float("inf")
    for _ in range(4):  # a busy machine may slow one of both down
        small, large = (min(best, cpu_s(make(n), path)) for best, n in ((small, SIZE), (large, 8 * SIZE)))
        # 8 times as much text takes 8 times as long, or 64 times where reading is quadratic. What does not
        # depend on the size, and noise, may take 50 ms.
        if large <= 24 * max(small, 0.05):
            return
    pytest.fail(f"{small:.2f} s to {large:.2f} s")


def test_salvage_loses_nothing_that_can_be_mended(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for name in ("bare word", "infinity", "missing value", "quote in a string", "bad escape", "control byte"):
        path.write_text(BROKEN[name](2000))
        (read,) = parse(str(path))
        assert (read.meta.kept, read.meta.repaired["text repaired"], dict(read.meta.dropped)) == (
            2000,
            2000,
            {},
        )


def test_events_beyond_a_limit_are_counted_and_the_next_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "event_bytes=1M")
    large = '{"ph": "X", "name": "' + "x" * 3 * MEGABYTE + '"}'
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [' + ", ".join([EVENT] * 9000 + [large] + [EVENT] * 9000) + "]}")
    (read,) = parse(str(path))
    assert (read.meta.read, read.meta.kept, sum(read.meta.dropped.values())) == (18_001, 18_000, 1)
    (offset,) = read.meta.first_drop.values()
    assert path.read_text()[offset : offset + 4] == '{"ph'
    assert limits().event_bytes == MEGABYTE
