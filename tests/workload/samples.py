"""The groups of traces in sample_traces/, each a folder of runs with a MANIFEST.toml. No torch needed."""

from __future__ import annotations

import gzip
import hashlib
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from zstandard import ZstdDecompressor

from tracelens.recording.pack import scrub

FOLDER = Path(__file__).parents[2] / "sample_traces"


def needs(group: str) -> pytest.MarkDecorator:
    """Marks tests that read a group: skipped, with the command that records it, where it is not there."""
    return pytest.mark.skipif(
        not (FOLDER / group / "MANIFEST.toml").exists(),
        reason=f"needs sample_traces/{group}: python -m tests.workload.record_samples {group}",
    )


def manifest(group: str) -> dict[str, Any]:
    """What the recording of a group told of itself."""
    return tomllib.loads((FOLDER / group / "MANIFEST.toml").read_text())


def unpacked(path: Path) -> str:
    """The text of a trace."""
    packed = path.read_bytes()
    raw = gzip.decompress(packed) if path.suffix == ".gz" else ZstdDecompressor().decompress(packed)
    return raw.decode()


def check_files(group: str, runs: Collection[str], largest_bytes: int) -> None:
    """Assert that the files of a group are those of its manifest, small, and silent about the machine."""
    folder, told = FOLDER / group, manifest(group)
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("rank*.json.*")}
    assert set(told["runs"]) == set(runs)
    assert {name.partition("/")[0] for name in files} == set(runs)
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()} == told[
        "sha256"
    ]
    for path in files.values():
        assert path.stat().st_size <= largest_bytes
        text = unpacked(path)
        # It names no path of the machine it was made on.
        assert scrub(text, path.with_suffix(".gz").name) == text
