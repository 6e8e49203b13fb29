"""`tracelens calibrate` where it cannot run, and what takes its files; tests/calibrate runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tracelens.cli import run
from tracelens.devices import device, device_toml


def test_without_torch_it_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", "calibrate", "-o", str(tmp_path / "x.toml")],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "tracelens: tracelens calibrate needs an optional library: pip install 'tracelens-moe[workload]' "
        "(in a checkout: pip install '.[workload]')\n"
    )
    assert not (tmp_path / "x.toml").exists()


def test_an_output_that_cannot_be_written_is_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "is a directory" in refused("calibrate", "-o", str(tmp_path)).lower()


def test_a_projection_takes_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(device_toml(replace(device("h200"), name="mine")))
    layout = ["--search", "--model", "deepseek_v2_lite", "--gpus", "8", "--pp", "1", "--ep", "8", "--tp", "1"]
    steps = []
    for name in ("h200", str(path)):
        assert run(["project", "memory", *layout, "--cp", "1", "--device", name, "--json"]) == 0
        steps.append(json.loads(capfd.readouterr().out)["tables"]["layouts"][0])
    assert [step.pop("device") for step in steps] == ["h200", "mine"]
    assert steps[0]["step_ns"] == steps[1]["step_ns"]
