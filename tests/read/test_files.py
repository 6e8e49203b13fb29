"""Which files are meant, and that remote ones are read as local ones are."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard

import tracelens
from tests.builders import events, write
from tracelens import analyze, load
from tracelens.errors import DamageKind, MissingExtra, ParseError, TracelensError
from tracelens.native import PURE
from tracelens.read import TraceFiles, files, is_url, open_source, parse
from tracelens.read.files import shown_url
from tracelens.workers import Children

DRAWING = events("s7 k | === ==")


def trace_files(paths: Iterable[str]) -> list[str]:
    return TraceFiles(paths).all()


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(path: str) -> str:
    with pytest.raises(TracelensError) as caught:
        trace_files([path])
    return str(caught.value)


def test_captures_are_no_ranks_unless_they_are_named(folder: Path) -> None:
    touch(folder, "t/rank0.json", "t/capture_traces/rank0.json", "capture_traces/rank1.json")
    for pattern in ("t*", "t/*", "t/**", "**/*.json", "*"):
        assert trace_files([pattern]) == ["t/rank0.json"], pattern
    assert trace_files(["t/capture_traces"]) == ["t/capture_traces/rank0.json"]
    assert trace_files(["t/capture_traces/*"]) == ["t/capture_traces/rank0.json"]


def test_a_directory_is_in_natural_order(folder: Path) -> None:
    touch(folder, *(f"t/rank{rank}.json" for rank in (10, 2, 0, 1)), "t/a.json.gz", "t/rank02.json")
    names = ["a.json.gz", *(f"rank{rank}.json" for rank in ("0", "1", "02", "2", "10"))]
    assert trace_files(["t"]) == trace_files(["t/"]) == [f"t/{name}" for name in names]


def test_a_directory_gives_what_is_named_like_a_trace(folder: Path) -> None:
    touch(folder, "t/a.JSON", "t/b.json.zst", "t/c.zip", "t/d.pt.trace.json", "t/notes.txt", "t/._a.json")
    touch(folder, "t/folder.json/inside.json")
    assert trace_files(["t"]) == ["t/a.JSON", "t/b.json.zst", "t/c.zip", "t/d.pt.trace.json"]


def test_the_sidecar_of_a_run_is_no_trace(folder: Path) -> None:
    touch(folder, "t/rank0.json.gz", "t/run.json", "node1/run.json", "node1/rank8.json.gz", "alone/run.json")
    assert trace_files(["t"]) == ["t/rank0.json.gz"]
    assert trace_files(["t/*"]) == ["t/rank0.json.gz"]
    assert trace_files(["[nt]*"]) == ["node1/rank8.json.gz", "t/rank0.json.gz"]
    assert trace_files(["t/run.json"]) == ["t/run.json"]
    assert trace_files(["alone"]) == ["alone/run.json"]


def test_what_is_named_is_taken_in_the_order_given(folder: Path) -> None:
    touch(folder, "b.txt", "a.json", "d/2.json", "d/1.json")
    given = ["b.txt", "-", "d", "a.json", "missing.json"]
    assert trace_files(given) == ["b.txt", "-", "d/1.json", "d/2.json", "a.json", "missing.json"]


def test_a_pattern_is_in_natural_order(folder: Path) -> None:
    touch(folder, *(f"t/rank{rank}.json.gz" for rank in (10, 9, 2)), "t/other.json.gz")
    assert trace_files(["t/rank*.json.gz"]) == [f"t/rank{rank}.json.gz" for rank in (2, 9, 10)]
    assert trace_files([str(folder / "t" / "rank?.json.gz")]) == [
        f"{folder}/t/rank{rank}.json.gz" for rank in (2, 9)
    ]
    assert trace_files(["t/rank[19]*"]) == ["t/rank9.json.gz", "t/rank10.json.gz"]


def test_a_pattern_reaches_into_folders(folder: Path) -> None:
    touch(folder, "t/node10/r.json", "t/node2/deep/r.json", "t/node2/r.json", "t/log.txt", "t/empty/x.txt")
    assert trace_files(["t/*"]) == ["t/node2/r.json", "t/node10/r.json"]
    both = ["t/node2/deep/r.json", "t/node2/r.json", "t/node10/r.json"]
    assert trace_files(["t/**/*.json"]) == trace_files(["t/**"]) == both


def test_a_pattern_leaves_notes_out_unless_it_finds_nothing_else(folder: Path) -> None:
    touch(folder, "t/a.txt", "t/b.json")
    assert trace_files(["t/*"]) == ["t/b.json"]
    assert trace_files(["t/*.txt"]) == ["t/a.txt"]


def test_a_name_may_hold_the_characters_of_a_pattern(folder: Path) -> None:
    touch(folder, "t[1].json", "t1.json", "d*/x.json")
    assert trace_files(["t[1].json", "d*"]) == ["t[1].json", "d*/x.json"]


def test_a_file_is_read_once(folder: Path) -> None:
    touch(folder, "t/1.json", "t/2.json")
    os.symlink("t", "link")
    given = ["t/2.json", "t", "./t/1.json", str(folder / "t"), "t/*.json", "link", "-", "-"]
    assert trace_files(given) == ["t/2.json", "t/1.json", "-"]


SUFFIXES = ".json, .json.gz, .json.zst, .zip, .trace, .trace.gz"


def test_nothing_found_is_told_by_name(folder: Path) -> None:
    touch(folder, "t/notes.txt", "up/node0/r.json", "bare/x/notes.txt")
    assert refusal("t") == f"t: holds no trace, only files of other kinds (1 .txt); looked for {SUFFIXES}"
    assert refusal("up") == "up: holds no trace itself; pass up/node0"
    assert refusal("bare") == f"bare: holds no trace; looked for {SUFFIXES}; for its folders, pass 'bare/*'"
    assert refusal("t/rank*.json") == "t/rank*.json: no file matches this pattern"
    assert refusal("bare/*") == f"bare/*: matches folders without a trace (looked for {SUFFIXES})"


def test_a_directory_of_runs_is_offered_as_a_list(folder: Path) -> None:
    touch(folder, "two/loop/rank0.json", "two/loop/run.json", "two/grouped/rank0.json", "two/MANIFEST.toml")
    assert refusal("two") == (
        "two: holds 2 runs: grouped, loop; name one, or compare two: tracelens diff two/grouped two/loop"
    )
    touch(folder, *(f"many/{job}/{run}/rank0.json" for job in "ab" for run in range(4)), "many/.git/x.json")
    assert refusal("many").startswith("many: holds 8 runs: a/0, a/1, a/2, a/3, b/0, ... (8); name one, or ")
    touch(folder, "deep/1/2/3/4/rank0.json")
    assert refusal("deep").startswith("deep: holds no trace; looked for")


def test_hosts_of_one_job_are_joined_by_a_pattern(folder: Path) -> None:
    touch(folder, *(f"job/host{rank // 2}/rank{rank}.json" for rank in range(4)))
    assert refusal("job").endswith("; if they are one job, pass 'job/*'")
    assert trace_files(["job/*"]) == [f"job/host{rank // 2}/rank{rank}.json" for rank in range(4)]


def test_a_ladder_is_not_blamed_for_its_index(folder: Path) -> None:
    touch(folder, "ep4/ladder.json", "ep4/00_baseline/rank0.json", "ep4/01_fused/rank0.json")
    assert refusal("ep4") == (
        "ep4: holds 2 runs: 00_baseline, 01_fused; name one, or report on the ladder: "
        "tracelens workload ladder --from ep4"
    )
    touch(folder, "t/ladder.json", "t/replay.json", "t/rank0.json")
    assert trace_files(["t"]) == ["t/rank0.json"]


def test_a_closed_directory_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    (folder / "t").mkdir()
    monkeypatch.setattr(os, "listdir", refuse)
    assert refusal("t") == "t: cannot be listed (Permission denied); check its permissions"


def test_local_files_may_be_given_as_urls(folder: Path) -> None:
    touch(folder, "t/rank0.json", "t/rank1.json")
    wanted = [f"{folder}/t/rank0.json", f"{folder}/t/rank1.json"]
    assert trace_files([f"file://{folder}/t"]) == trace_files([f"file://{folder}/t/*.json", "t"]) == wanted


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("s3://bucket/x.json", True),
        ("HTTPS://host/x.json", True),
        ("abfs+x.y-z://a", True),
        ("simplecache::s3://bucket/x.json", True),
        ("C://traces/x.json", False),
        ("C:\\traces\\x.json", False),
        ("traces/s3://x.json", False),
        ("a::b.json", False),
        ("-", False),
    ],
)
def test_what_is_a_url(path: str, remote: bool) -> None:
    assert is_url(path) is remote


def test_reports_show_no_passwords() -> None:
    assert shown_url("https://me:secret@host:81/a/b.json?sig=1#x") == "https://host:81/a/b.json"
    assert shown_url("https://host") == "https://host"
    assert shown_url("s3://bucket/a?b@c.json") == "s3://bucket/a?b@c.json"


def test_remote_files_count_as_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)  # no request is made
    monkeypatch.setenv("TRACELENS_JOBS", "2")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: object())
    monkeypatch.setenv(PURE, "1")  # the native core decodes in threads
    assert len(Children([str(write(tmp_path / "small.json", DRAWING))]).processes) == 0
    assert len(Children(["s3://bucket/x.json"]).processes) == 1


def packed(suffix: str, content: bytes) -> bytes:
    """The content, compressed as a suffix says."""
    if suffix == ".zip":
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("rank0.json", content)
        return target.getvalue()
    pack = {".json": bytes, ".json.gz": gzip.compress, ".json.zst": zstandard.compress}
    return pack[suffix](content)


FORMS = [".json", ".json.gz", ".json.zst", ".zip"]


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory."""
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def content(rank: int, tmp_path: Path) -> bytes:
    return write(tmp_path / "one.json", DRAWING * 2000, rank=rank).read_bytes()


@pytest.mark.parametrize("suffix", FORMS)
def test_a_remote_file_reads_like_a_local_one(suffix: str, memory: Any, tmp_path: Path) -> None:
    data = packed(suffix, content(0, tmp_path))
    memory.pipe(f"/t/rank0{suffix}", data)
    (tmp_path / f"rank0{suffix}").write_bytes(data)
    url = f"memory://t/rank0{suffix}"
    (local,), (remote,) = parse(str(tmp_path / f"rank0{suffix}")), parse(url)
    assert local.events.equals(remote.events)
    assert len(remote.events) == 4000
    assert remote.meta.path == (f"{url}!rank0.json" if suffix == ".zip" else url)
    assert remote.meta.problems == ()


def test_remote_directories_and_patterns(memory: Any) -> None:
    names = ["rank10.json", "rank2.json", "rank1.json.gz", "notes.txt", ".rank3.json", "more/rank0.json"]
    for name in names:
        memory.pipe(f"/t/{name}", b"x")
    there = [f"memory://t/{name}" for name in ("rank1.json.gz", "rank2.json", "rank10.json")]
    assert trace_files(["memory://t"]) == trace_files(["memory://t/"]) == there
    assert trace_files(["memory://t/rank?.*", "memory://t/rank2.json"]) == there[:2]
    assert trace_files(["memory://t/**/*.json"])[0] == "memory://t/more/rank0.json"
    assert trace_files(["memory://t/*"]) == ["memory://t/more/rank0.json", *there]
    assert trace_files(["memory://t/notes.txt"]) == ["memory://t/notes.txt"]
    assert refusal("memory://") == (
        f"memory://: holds no trace; looked for {SUFFIXES}; for its folders, pass 'memory://*'"
    )
    assert trace_files(["memory://*"]) == there
    assert refusal("memory://t/x*.json") == "memory://t/x*.json: no file matches this pattern"


def test_an_archive_in_an_archive_of_drivers(memory: Any, tmp_path: Path) -> None:
    memory.pipe("/job.zip", packed(".zip", content(0, tmp_path)))
    (found,) = trace_files(["zip://*.json::memory://job.zip"])
    assert found == "zip://rank0.json::memory://job.zip"
    assert len(parse(found)[0].events) == 4000


def test_ranks_of_a_remote_directory_are_a_run(memory: Any, tmp_path: Path) -> None:
    for rank in (0, 1):
        memory.pipe(f"/t/r{rank}.json.gz", gzip.compress(content(rank, tmp_path)))
    run = tracelens.load("memory://t")
    assert [(trace.meta.rank, trace.meta.path) for trace in run.traces] == [
        (0, "memory://t/r0.json.gz"),
        (1, "memory://t/r1.json.gz"),
    ]


def test_a_remote_file_that_is_missing_is_told(memory: Any) -> None:
    with pytest.raises(ParseError) as caught:
        open_source("memory://t/rank0.json")
    assert str(caught.value) == "memory://t/rank0.json: no such file or directory"


def test_without_fsspec_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsspec", "fsspec.core"):
        monkeypatch.setitem(sys.modules, name, None)
    assert refusal("s3://b/t") == (
        "s3://b/t: reading s3:// addresses needs an optional library: pip install 'tracelens-moe[remote]' "
        "(in a checkout: pip install '.[remote]')"
    )
    with pytest.raises(MissingExtra, match="pip install 'tracelens-moe\\[remote\\]'"):
        open_source("s3://b/rank0.json")


def test_without_a_driver_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    wanted = "reading s3:// addresses needs a library that is not installed (Install s3fs to access S3)"
    assert refusal("s3://b/t") == f"s3://b/t: {wanted}"
    with pytest.raises(ParseError) as caught:
        open_source("s3://b/rank0.json")
    assert str(caught.value) == f"s3://b/rank0.json: {wanted}"


def test_an_unknown_protocol_is_told() -> None:
    pytest.importorskip("fsspec")
    assert refusal("gopher://host/t") == "gopher://host/t: cannot be opened (Protocol not known: gopher)"


def test_what_a_driver_raises_is_one_line(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PermissionError("no\ncredentials")

    monkeypatch.setattr(type(memory), "glob", fail)
    monkeypatch.setattr(type(memory), "open", fail)
    assert refusal("memory://t/*") == "memory://t/*: cannot be listed (no credentials)"
    with pytest.raises(ParseError) as caught:
        open_source("memory://t/rank0.json")
    assert str(caught.value) == "memory://t/rank0.json: cannot be opened (no credentials)"


def test_a_connection_lost_on_the_way_keeps_what_came(
    memory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = write(tmp_path / "one.json", DRAWING * 8000).read_bytes()

    class Lossy(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > len(data) // 2:
                raise ValueError("connection lost")
            return super().read(min(size or 0, 4096))

    monkeypatch.setattr(type(memory), "open", lambda *_, **__: Lossy(data))
    monkeypatch.setattr(files, "_PAUSES_S", ())
    (trace,) = parse("memory://t/rank0.json")
    assert 0 < len(trace.events) < 16000
    damage = trace.meta.damage
    assert damage is not None
    assert (damage.kind, damage.reason) == (DamageKind.READ_ERROR, "reading failed (connection lost)")
    # Of a part is said that it is one.
    with pytest.raises(ParseError, match=r"rank0\.json: reading failed .*--partial"):
        load("memory://t/rank0.json")
    (part,) = load("memory://t/rank0.json", partial=True).traces
    assert len(part.events) == len(trace.events)
    doubts = analyze(load("memory://t/rank0.json", partial=True), "completeness")["doubts"]
    assert ("truncated", True) in [
        (doubt.doubt, "reading failed" in doubt.evidence) for doubt in doubts.itertuples()
    ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a web server that lists and serves tmp_path/www; it knows no ranges."""
    pytest.importorskip("aiohttp")
    (tmp_path / "www").mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.send_error(403)  # as servers of signed addresses do

        def do_GET(self) -> None:
            if "secret" in self.path:
                self.send_error(401)
            else:
                super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www"))) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()
        thread.join()


@pytest.mark.parametrize("suffix", FORMS)
def test_a_web_server_need_not_know_ranges(suffix: str, server: str, tmp_path: Path) -> None:
    (tmp_path / "www" / f"rank0{suffix}").write_bytes(packed(suffix, content(0, tmp_path)))
    (trace,) = parse(f"{server}/rank0{suffix}?signature=abc")
    assert (len(trace.events), trace.meta.problems) == (4000, ())
    assert "signature" not in json.dumps(trace.meta.path)


class Broken(NamedTuple):
    """How a server breaks a body off."""

    url: str
    answers: list[str]  # what was asked for: the range, or "" for all


@pytest.fixture
def broken(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broken]:
    """A server that ends each of its first answers after a part of what is left, by the parameter."""
    pytest.importorskip("aiohttp")
    parts, ranges, changes = request.param
    body, answers = write(tmp_path / "rank0.json", DRAWING * 40_000).read_bytes(), list[str]()

    class Cutting(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            answers.append(asked)
            first = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and ranges else 0
            rest = body[first:]
            self.send_response(206 if asked and ranges else 200)
            self.send_header("Content-Length", str(len(rest)))
            self.send_header("ETag", f'"{len(answers) if changes else 1}"')
            self.end_headers()
            part = parts[len(answers) - 1] if len(answers) <= len(parts) else 1.0
            self.wfile.write(rest[: round(len(rest) * part)])

    with ThreadingHTTPServer(("127.0.0.1", 0), Cutting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Broken(f"http://127.0.0.1:{server.server_port}/rank0.json", answers)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("broken", [((0.3, 0.5), True, False), ((0.9,), True, False)], indirect=True)
def test_a_body_that_ends_early_is_asked_for_from_there_on(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_PAUSES_S", (0.0, 0.0))
    (trace,) = load(broken.url).traces
    assert (len(trace.events), trace.meta.damage) == (80_000, None)
    first, *further = broken.answers
    assert first == ""
    assert all(answer.startswith("bytes=") for answer in further)


@pytest.mark.parametrize(
    "broken",
    [
        ((0.3, *(0.0,) * 9), True, False),  # and nothing more comes
        ((0.3,), False, False),  # by a server that knows no ranges
        ((0.3,), True, True),  # of a file that was written anew
    ],
    indirect=True,
)
def test_a_body_that_stays_short_is_refused(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_PAUSES_S", (0.0, 0.0))
    with pytest.raises(ParseError, match="reading failed"):
        load(broken.url)


@pytest.mark.parametrize("tenth", range(10))
def test_a_disk_error_at_any_place_is_refused(
    tenth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "rank0.json.gz", DRAWING * 2000)
    data = path.read_bytes()

    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() + max(size or 0, 0) > len(data) * tenth // 10:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().read(size)

    monkeypatch.setattr(Path, "open", lambda *_, **__: Failing(data))
    with pytest.raises(ParseError, match=r"Input/output error"):
        load(path)


def test_a_web_server_that_lists_its_files(server: str, tmp_path: Path) -> None:
    touch(tmp_path / "www", "t/rank10.json", "t/rank9.json", "t/notes.txt", "t/n/rank0.json")
    found = [f"{server}/t/rank9.json", f"{server}/t/rank10.json"]
    assert trace_files([f"{server}/t/"]) == found
    assert trace_files([f"{server}/t/rank*.json"]) == found
    assert trace_files([f"{server}/t/missing.json?a=*", "-"]) == [f"{server}/t/missing.json?a=*", "-"]


def test_what_a_web_server_refuses_is_told(server: str) -> None:
    with pytest.raises(ParseError) as caught:
        open_source(f"{server}/rank0.json")
    assert str(caught.value) == f"{server}/rank0.json: no such file or directory"
    with pytest.raises(ParseError, match=r"secret\.json: cannot be opened \(401, message='Unauthorized'"):
        open_source(f"{server}/secret.json")
