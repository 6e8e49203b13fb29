"""The traces in sample_traces/ are what their manifest says, and small. No torch needed."""

from __future__ import annotations

import gzip
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tracelens.recording.scrub import count_events, scrub

FOLDER = Path(__file__).parents[2] / "sample_traces"
MANIFEST: list[dict[str, Any]] = tomllib.loads((FOLDER / "MANIFEST.toml").read_text())["trace"]
FILES = [entry["file"] for entry in MANIFEST]
KEYS = {"what", "origin", "device", "software", "recorded", "sha256", "bytes", "steps", "config", "events"}
LARGEST_FILE = 1_500_000
LARGEST_PAIR = 2_500_000
PAIR = ("moe_loop.json.gz", "moe_grouped.json.gz")


def test_manifest_lists_exactly_the_files_that_are_there() -> None:
    assert sorted(FILES) == sorted(path.name for path in FOLDER.glob("*.json*"))


def test_all_together_are_small() -> None:
    assert sum((FOLDER / name).stat().st_size for name in PAIR) < LARGEST_PAIR


def test_the_pair_differs_in_the_experts_alone() -> None:
    loop, grouped = (next(entry for entry in MANIFEST if entry["file"] == name) for name in PAIR)
    assert loop["config"] | {"experts": "grouped"} == grouped["config"]
    for key in ("device", "software", "steps", "stack"):
        assert loop[key] == grouped[key]


@pytest.mark.parametrize("entry", MANIFEST, ids=FILES)
def test_file_is_what_the_manifest_says(entry: dict[str, Any]) -> None:
    assert set(entry) >= KEYS
    packed = (FOLDER / entry["file"]).read_bytes()
    assert hashlib.sha256(packed).hexdigest() == entry["sha256"]
    assert len(packed) == entry["bytes"] < LARGEST_FILE
    text = gzip.decompress(packed).decode()
    assert count_events(text) == entry["events"]
    assert scrub(text, entry["file"]) == text  # names no path of the machine it was made on
    trace = json.loads(text)
    assert trace["workload"] == entry["config"]
    marks = {e["name"] for e in trace["traceEvents"] if str(e.get("name", "")).startswith("ProfilerStep#")}
    assert len(marks) == entry["steps"]
