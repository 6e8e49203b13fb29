"""`tracelens workload`: what it says without torch, of bad settings, and of a run on two CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run
from tracelens.planner.config import HELP


def test_without_a_command_its_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workload"]) == 0
    assert "Train or serve the bundled MoE model" in capsys.readouterr().out


def test_every_setting_is_an_option_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workload", "run", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, text in HELP.items():
        assert f"--{name.replace('_', '-')} " in shown
        assert text.split(":")[0].lower() in shown.lower()


def test_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["name", "layers", "dense", "hidden"]
    assert next(line for line in lines if line.startswith("deepseek_v3 ")).split()[1:4] == ["61", "3", "7168"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "tinny"], "unknown preset 'tinny'; did you mean 'tiny'?"),
        (["--experts", "group"], "unknown experts 'group'; did you mean 'grouped'?"),
        (["--ranks", "two"], "ranks must be a whole number, not 'two'"),
        (["--set", "top_k=99"], "top_k (99) exceeds experts_count (8)"),
        (["--sync-free", "3"], "needs experts=grouped"),
        (["--inject", "rank=0,kind=gcc"], "unknown kind of fault 'gcc'; did you mean 'gc'?"),
    ],
)
def test_bad_settings_are_one_line(arguments: list[str], message: str, refused: Callable[..., str]) -> None:
    assert message in refused("workload", "run", *arguments)


def test_without_torch_it_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", "workload", "run"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "tracelens: tracelens workload needs an optional library: pip install 'tracelens-moe[workload]' "
        "(in a checkout: pip install '.[workload]')\n"
    )


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "--device must be cuda or cpu, not tpu"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--inject", "rank=0,kind=gc", "--inject", "rank=4,kind=gc"], "no rank 4 in a run of 1"),
        (["-o", "OUT", "--steps", "6"], "the recording needs 10 steps, the run has 6"),
        (["-o", "OUT", "--profile-start", "3", "--profile-end", "3"], "no step to record from 3 to 3"),
        (["--device", "cuda", "--ranks", "64", "--set", "experts_count=64"], "64 ranks need as many GPUs"),
        (
            ["-o", "OUT", "--memory", "--overlap-exchange", "1f1b"],
            "--memory cannot be recorded with overlap_exchange=1f1b",
        ),
        (
            ["--ranks", "2", "--dispatch", "deepep", "--dtype", "bfloat16"],
            ": dispatch=deepep needs the library",
        ),
    ],
)
def test_a_job_that_cannot_run(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path / "out") if text == "OUT" else text for text in arguments]
    assert run(["workload", "run", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """The folder of a run on two CPU ranks, and what it printed."""
    folder: Path = tmp_path_factory.mktemp("run") / "traces"
    arguments = [
        "--preset",
        "tiny",
        "--ranks",
        "2",
        "--experts",
        "grouped",
        "--scrub",
        "--json",
        "-o",
        str(folder),
    ]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tracelens", "workload", "run", "--device", "cpu", *arguments],
        capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.torch
def test_a_run_tells_what_it_came_to(recorded: tuple[Path, dict[str, object]]) -> None:
    _, told = recorded
    assert told["toggles"] == {"experts": "grouped"}
    assert (told["ranks"], told["device"], told["timed_steps"]) == (2, "cpu", 4)
    assert len(told["loss"]) == 10  # type: ignore[arg-type]
    assert told["tokens_per_s"] == pytest.approx(256 / told["step_ms"] * 1e3)  # type: ignore[operator]
    assert told["config"]["model"]["layers"] == 3  # type: ignore[index]


@pytest.mark.torch
def test_a_run_writes_a_trace_a_rank_and_a_sidecar(recorded: tuple[Path, dict[str, object]]) -> None:
    folder, told = recorded
    written = sorted(path.name for path in folder.iterdir() if not path.name.endswith(".values.json.zst"))
    assert written == ["rank0.json.gz", "rank1.json.gz", "run.json"]
    sidecar = json.loads((folder / "run.json").read_text())
    assert sidecar["config"] == told["config"]
    assert sidecar["mesh"]["ep"] == 2


@pytest.mark.torch
def test_the_report_explains_the_run(
    recorded: tuple[Path, dict[str, object]], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder, _ = recorded
    assert run(["analyze", "moe", str(folder), "--json"]) == 0
    tables = json.loads(capfdbinary.readouterr().out)["tables"]
    assert {row["stage"] for row in tables["stages"]} == {
        "router", "dispatch", "permute", "experts", "combine", "shared expert",
    }  # fmt: skip
    assert {row["rank"] for row in tables["layers"]} == {0, 1}
    assert run(["report", str(folder), "--full"]) == 0
    report = capfdbinary.readouterr().out.decode()
    assert "cpu (host ops)" in report
    assert "c10d::alltoall_base_" in report
