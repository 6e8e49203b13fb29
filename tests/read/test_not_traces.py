"""Files that are no traces: what they are, and what to pass instead."""

from __future__ import annotations

import pickle
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run
from tracelens.errors import ParseError
from tracelens.read import parse

ROOT = Path(__file__).parents[2]
LOOP = ROOT / "sample_traces/one_gpu/loop"


def refusal(path: Path) -> str:
    """What is said of a file, after its name."""
    with pytest.raises(ParseError) as caught:
        parse(str(path))
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text.removeprefix(str(path))


def sqlite(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table kernels (name)")


def office(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", "<workbook/>")


def content(data: bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(data) and None


@pytest.mark.parametrize(
    ("name", "make", "kind"),
    [
        ("x.parquet", content(b"PAR1\x15\x04"), "a Parquet file"),
        ("snapshot.pickle", content(pickle.dumps({"segments": []})), "a CUDA memory snapshot"),
        ("numbers.pickle", content(pickle.dumps([1, 2])), "a Python pickle"),
        ("report.sqlite", sqlite, "an SQLite database"),
        ("report.nsys-rep", content(b"\x01\x02NV"), "a report of NVIDIA Nsight"),
        ("results.csv", content(b"Name,Calls,TotalDurationNs\ngemm,3,10\n"), "a text table"),
        ("page.html", content(b"<!doctype html><p>404</p>"), "HTML or XML"),
        ("tables.xlsx", office, "an Office document"),
        ("x.pftrace", content(b"\x0a\x10\x08"), "perhaps a Perfetto protobuf"),
    ],
)
def test_other_files_are_called_by_their_name(
    name: str, make: Callable[[Path], None], kind: str, tmp_path: Path
) -> None:
    make(tmp_path / name)
    text = refusal(tmp_path / name)
    assert f": not a trace but {kind}" in text
    assert "; " in text


def test_plain_text_is_not_guessed_at(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("step 1, loss 2.5\nstep 2\n")
    assert refusal(tmp_path / "log.txt").startswith(" (byte 0): not a JSON trace")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": "tracelens.run/1", "files": {}}', "describes the recording next to it"),
        ('{\n "schema": "tracelens.ladder/1"}', "is the index of a ladder"),
        ('{"schema":"tracelens.baseline/1","runs":[]}', "is a baseline of tracelens gate"),
        ('{"tracelens": "0.1.0", "scripts": []}', "is a list of replay scripts"),
        ('{"schema_version":1,"results":{}}', "is a JSON report of tracelens"),
        ('{"schema_version":1,"analyzer":"idle"}', "is a JSON report of tracelens"),
        ('{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "is an execution trace (Chakra)"),
        ('{"rocprofiler-sdk-tool": []}', "is JSON of rocprofv3"),
        ('{"pg_config": {}, "entries": []}', "is a dump of the NCCL flight recorder"),
        (
            '{"schemaVersion": 1, "distributedInfo": {"pg_config": [',
            "is a torch trace that is cut off before its first event",
        ),
        ('{"a": {"schema": "tracelens.run/1"}}', 'JSON without a "traceEvents" list'),
    ],
)
def test_json_of_other_kinds(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    assert refusal(tmp_path / "x.json").startswith(f": {said}")


def test_what_tracelens_writes_is_recognised(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outputs = [tmp_path / "r.html", tmp_path / "r.json"]
    assert run(["report", str(LOOP), "--only", "input", *(f"-o{path}" for path in outputs)]) == 0
    capfd.readouterr()
    assert "a report of tracelens" in refusal(outputs[0])
    assert "a JSON report of tracelens" in refusal(outputs[1])
    assert "describes the recording" in refusal(LOOP / "run.json")
    assert "index of a ladder" in refusal(ROOT / "sample_traces/ladder/ep4/ladder.json")
