"""The traces in sample_traces/ are what their manifests say, and small; recording them works without GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

import pytest

from tests.workload.sample_runs import CPU, LADDER, LADDER_LARGE, LARGEST_BYTES, ONE_GPU, PIPELINE, Sample
from tests.workload.samples import FOLDER, check_files, manifest, needs
from tracelens import analyze, load
from tracelens.planner.config import Toggles
from tracelens.trace import Run

GROUPS = {"cpu": CPU, "one_gpu": ONE_GPU, "pipeline": PIPELINE}
LARGEST_TOTAL = 31_000_000

of_each_group = pytest.mark.parametrize(
    ("group", "runs"), [pytest.param(name, runs, marks=needs(name)) for name, runs in GROUPS.items()]
)


@cache
def run(group: str, name: str) -> Run:
    return load(FOLDER / group / name)


def test_all_together_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) < LARGEST_TOTAL


def test_every_trace_belongs_to_a_manifest() -> None:
    listed = {
        folder.parent / name
        for folder in FOLDER.glob("*/MANIFEST.toml")
        for name in tomllib.loads(folder.read_text())["sha256"]
    }
    assert set(FOLDER.rglob("rank*.json.*")) == listed


@of_each_group
def test_the_files_are_those_of_the_manifest(group: str, runs: Mapping[str, Sample]) -> None:
    check_files(group, runs, LARGEST_BYTES)
    for name, sample in runs.items():
        assert sample.fields in manifest(group)["runs"][name]


@pytest.mark.parametrize(("group", "runs"), [("ladder", LADDER), ("ladder_large", LADDER_LARGE)])
def test_ladders_are_those_of_their_manifests(group: str, runs: Mapping[str, str]) -> None:
    check_files(group, runs, LARGEST_BYTES)
    assert manifest(group)["runs"] == runs


@of_each_group
def test_the_traces_are_of_those_settings(group: str, runs: Mapping[str, Sample]) -> None:
    for name, sample in runs.items():
        told = json.loads((FOLDER / group / name / "run.json").read_text())
        config = json.loads(json.dumps(sample.config.as_dict()))
        # Toggles that came after the recording are off.
        told["config"]["toggles"] = asdict(Toggles()) | told["config"]["toggles"]
        assert json.loads(json.dumps(told["config"])) == config
        assert len(run(group, name).traces) == sample.config.layout.ranks
        steps = analyze(run(group, name), "steps")["steps"]
        assert steps.groupby("rank").size().eq(sample.steps).all()


@needs("pipeline")
def test_interleaving_makes_the_bubble_smaller() -> None:
    bubble = {}
    for name in PIPELINE:
        table = analyze(run("pipeline", name), "pipeline")["bubble"]
        bubble[name] = table["bubble_fraction"].mean()
    assert bubble["interleaved"] < bubble["plain"]


# The runs as they are recorded, of a model that trains in a second on a CPU.
SMALLER = """
import sys
from tests.workload import record_samples, toggle_variants
toggle_variants.SIZE = (
    "layers=2 hidden=64 heads=2 kv_lora=32 dense_ffn=64 experts_count=4 top_k=2 expert_ffn=32 "
    "shared_ffn=32 vocab=256 seq=64 micro_batch=1"
)
sys.exit(record_samples.main(sys.argv[1:]))
"""


@pytest.mark.torch
@pytest.mark.rare
def test_recording_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SMALLER, "toggles", "--out", str(tmp_path)]
    done = subprocess.run(
        [*command, "--device", "cpu", "--run", "loss_fused", "--run", "sync_free_3"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = tomllib.loads((tmp_path / "toggles" / "MANIFEST.toml").read_text())
    assert set(told["runs"]) == {"loss_fused", "sync_free_3"}
    traces = {
        f"{name}/rank0{suffix}" for name in told["runs"] for suffix in (".json.zst", ".values.json.zst")
    }
    assert set(told["sha256"]) == traces
    assert analyze(load(tmp_path / "toggles" / "sync_free_3"), "moe").meta["sync_free_stage"] == 3


@pytest.mark.torch
def test_an_unknown_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.workload.record_samples import main

    assert main(["toggles", "--out", str(tmp_path), "--device", "cpu", "--run", "nothing"]) == 2
    told = capsys.readouterr().err
    assert told.splitlines()[-1].startswith("error: no run nothing in toggles: it has baseline, ")
