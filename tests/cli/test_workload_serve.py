"""`tracelens workload serve`: its options, what it says of bad ones, and of a run on two CPU ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run
from tracelens.workload.serving import HELP

ROOT = Path(__file__).parents[2]


def test_every_setting_is_an_option_with_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workload", "serve", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, text in HELP.items():
        assert f"--{name.replace('_', '-')} " in shown
        assert text.split(":")[0].lower() in shown.lower()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "tinny"], "unknown preset 'tinny'; did you mean 'tiny'?"),
        (["--tbo", "tokens"], "unknown tbo 'tokens'; did you mean 'token'?"),
        (["--slots", "many"], "slots must be a whole number, not 'many'"),
        (["--prompt-max", "4"], "prompt_max (4) is below prompt_min (8)"),
        (["--set", "experts=loop", "--set", "sync_free=1"], "experts is a field of training runs"),
    ],
)
def test_bad_settings_are_one_line(arguments: list[str], message: str, refused: Callable[..., str]) -> None:
    assert message in refused("workload", "serve", *arguments)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--device", "cpu", "--graph", "on"],
            "graph=on needs a GPU, and this run is on cpu",
        ),
        (["--ranks", "5"], "expert_ffn (48) must be a multiple of ranks = 5"),
        (["-o", "OUT", "--ticks", "5"], "the recording needs 56 ticks, the run has 5"),
        (["--device", "cuda", "--ranks", "16"], "16 ranks need as many GPUs"),
    ],
)
def test_a_run_that_cannot_be_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(tmp_path / "out") if text == "OUT" else text for text in arguments]
    assert run(["workload", "serve", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_torch_it_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", "workload", "serve"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "tracelens: tracelens workload needs an optional library: pip install 'tracelens-moe[workload]' "
        "(in a checkout: pip install '.[workload]')\n"
    )


def served(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A run on two CPU ranks."""
    done = subprocess.run(
        [
            sys.executable, "-W", "ignore", "-m", "tracelens", "workload", "serve", "--device", "cpu",
            "--ranks", "2", "--layers", "2", *arguments,
        ],
        capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.torch
def test_a_run_tells_what_it_came_to_and_writes_traces(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = tmp_path / "traces"
    options = ["--ticks", "20", "--profile-start", "14", "--profile-end", "18", "--rate", "0.5"]
    told = json.loads(
        served("--json", "-o", str(folder), "--prefill-delayer", "on", "--scrub", *options).stdout
    )
    assert (told["ranks"], told["device"]) == (2, "cpu")
    assert told["serving"] == {"prefill_delayer": "on"}
    assert told["ticks"] == 20 == told["prefill_ticks"] + told["decode_ticks"] + told["idle_ticks"]
    assert told["timed_ticks"] == 4
    assert told["tokens_per_s"] > 0
    assert 0 <= told["padding_fraction"] < 1
    assert told["config"]["serving"]["rate"] == 0.5
    assert told["config"]["model"]["layers"] == 2
    written = sorted(path.name for path in folder.iterdir() if not path.name.endswith(".values.json.zst"))
    assert written == ["rank0.json.gz", "rank1.json.gz", "run.json"]
    assert run(["report", str(folder), "--full"]) == 0
    report = capfdbinary.readouterr().out.decode()
    assert "Serving steps of all ranks" in report
    assert "ATOM" in report


@pytest.mark.rare
@pytest.mark.torch
def test_a_run_in_words() -> None:
    lines = served("--ticks", "24", "--tbo", "token", "--rate", "0.5").stderr.splitlines()
    assert lines[0] == "tiny on 2 x cpu: tbo=token"
    assert lines[1].endswith("output tokens/s (16 timed ticks)")
    assert lines[2].startswith("time to first token: ")
    assert any(line.startswith("24 ticks: ") and " in two batches" in line for line in lines)
    assert lines[-1].startswith("padding: ")
