"""`tracelens calibrate` where it cannot run, and what takes its files; tests/calibrate runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tracelens.cli import run
from tracelens.devices import device, device_toml, measured_rates


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


def test_what_was_measured_is_told_first_and_beside_what_is_possible() -> None:
    known = device("h200")
    rate = known.measured.best_gemm("bf16")
    assert rate is not None
    told = measured_rates(known)
    assert f"GEMM bf16 {rate / 1e12:.0f} TFLOP/s ({rate / known.matrix['bf16']:.0%} of its peak)" in told
    assert f"{known.measured.launch.kernel_ns / 1e3:.2f} µs per launch" in told
    nothing = replace(known, measured=type(known.measured)())
    assert measured_rates(nothing) == f"{known.title}: nothing could be measured"
