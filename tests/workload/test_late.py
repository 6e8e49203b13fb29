"""Runs with a late rank: the recorded ones are what their manifest says, and recording works without GPUs."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tracelens.recording.scrub import scrub

FOLDER = Path(__file__).parents[2] / "sample_traces" / "late_rank"
MANIFEST = tomllib.loads((FOLDER / "MANIFEST.toml").read_text())


def test_manifest_lists_exactly_the_files_that_are_there() -> None:
    there = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.json.gz")}
    assert set(MANIFEST["sha256"]) == there
    assert {name.partition("/")[0] for name in there} == set(MANIFEST["faults"])


@pytest.mark.parametrize("name", sorted(MANIFEST["sha256"]))
def test_file_is_what_the_manifest_says(name: str) -> None:
    packed = (FOLDER / name).read_bytes()
    assert hashlib.sha256(packed).hexdigest() == MANIFEST["sha256"][name]
    assert len(packed) < 250_000
    text = gzip.decompress(packed).decode()
    assert scrub(text, name.rpartition("/")[2]) == text  # names no path of the machine it was made on


def test_recording_on_cpus(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra workload")
    out = tmp_path / "late"
    command = [sys.executable, "-m", "tracelens.workload.late", "--out", str(out), "--ranks", "2"]
    done = subprocess.run(
        [*command, "--device", "cpu", "--fault", "late_launch", "--fault", "garbage_collection"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    manifest = tomllib.loads((out / "MANIFEST.toml").read_text())
    assert set(manifest["faults"]) == {"late_launch", "garbage_collection"}
    assert len(manifest["sha256"]) == 4
    late = gzip.decompress((out / "garbage_collection" / "rank1.json.gz").read_bytes()).decode()
    assert late.count("ProfilerStep#") >= 3
    assert "Python GC" in late
    assert "Python GC" not in gzip.decompress((out / "late_launch" / "rank1.json.gz").read_bytes()).decode()


def test_an_odd_number_of_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the extra workload")
    command = [sys.executable, "-m", "tracelens.workload.late", "--out", str(tmp_path), "--ranks", "3"]
    done = subprocess.run(
        [*command, "--device", "cpu"], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: --ranks must be an even number, not 3"
