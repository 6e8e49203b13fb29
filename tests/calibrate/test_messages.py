"""Messages among ranks of gloo: the command with torchrun, rates by set clocks, and ranks that fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tracelens.cli import run
from tracelens.devices import COLLECTIVES, Bandwidth, device, read_device

SIZES, UNEVEN = (4096, 16384), (16384,)
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
PATIENCE_S = 100
"""Below the two minutes that a rank waits in a collective."""

# Clocks by which each call takes 1 ms on the first rank and 2 ms on the second.
CLOCKS = """
Stopwatch.in_a_row = lambda *_: 1e-3 * (1 + rank)
"""
NO_MEMORY = """
zeros = torch.zeros
def broken(size, **more):
    if size == 16384 // 4 and rank == 1:
        raise RuntimeError("out of memory\\nof 80 GB")
    return zeros(size, **more)
torch.zeros = broken
"""
LEAVES = """
if rank == 1:
    os._exit(3)
"""
SCRIPT = """
import json, os, sys, torch
from tracelens.calibrate import calibrate
from tracelens.calibrate.timing import Stopwatch
from tracelens.devices import device
rank = int(os.environ["RANK"])
{change}
done = calibrate("cpu", only=["messages"], base=device("h100"))
if rank == 0:
    curves = [curve for curve in done.device.measured.bandwidths if curve.ranks > 1]
    rates = {{f"{{c.name}} {{c.skew:g}}": c.bytes_per_s for c in curves}}
    print(json.dumps({{"rates": rates, "failures": done.failures}}))
"""


def torchrun(ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run(
        [*command, *words], check=False, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE_S
    )


def outcome(tmp_path: Path, change: str) -> dict[str, Any]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(change=change))
    done = torchrun(2, str(script))
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def of_ranks(path: Path, ranks: int) -> list[Bandwidth]:
    return [curve for curve in read_device(path).measured.bandwidths if curve.ranks == ranks]


def test_ranks_add_their_messages_to_a_device_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    for ranks, base in ((2, "h100"), (3, str(path))):
        words = ["calibrate", "--device", "cpu", "--only", "messages", "--update", base, "-o", str(path)]
        done = torchrun(ranks, "-m", "tracelens", *words)
        assert done.returncode == 0, done.stderr
        assert "not measured" not in done.stderr
    bundled, measured = device("h100").measured, read_device(path).measured
    assert (measured.gemms, measured.launch) == (bundled.gemms, bundled.launch)
    assert measured.message_ranks == "2 and 3 ranks"
    for ranks in (2, 3):
        even = [curve for curve in of_ranks(path, ranks) if curve.skew == 1]
        assert sorted(curve.name for curve in even) == sorted(COLLECTIVES)
        assert all(curve.size_bytes == SIZES for curve in even)
        assert all(curve.ranks_per_node == ranks for curve in even)
        uneven = [(curve.name, curve.skew) for curve in of_ranks(path, ranks) if curve.skew > 1]
        assert uneven == [("all_to_all", 1.5), ("all_to_all", 2)]
        assert f"{ranks} of CPU, {ranks} per node" in measured.about[f"ranks_{ranks}"]
    assert measured.about["date"] == bundled.about["date"]


def test_a_rate_is_of_the_slowest_rank(tmp_path: Path) -> None:
    result = outcome(tmp_path, CLOCKS)
    assert result["failures"] == []
    factors = {"all_reduce": 1, "all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 0.5, "send_recv": 1}
    expected = {f"{name} 1": [size * factor / 2e-3 for size in SIZES] for name, factor in factors.items()}
    expected |= {f"all_to_all {skew}": [size * 0.5 / 2e-3 for size in UNEVEN] for skew in ("1.5", "2")}
    assert result["rates"].keys() == expected.keys()
    for name, rates in expected.items():
        assert result["rates"][name] == pytest.approx(rates), name


def test_a_rank_without_memory_fails_the_measurement_on_all(tmp_path: Path) -> None:
    result = outcome(tmp_path, NO_MEMORY)
    # Buffers of 16 kB: not those of parts of the ranks, nor of what an uneven all-to-all sends.
    failed = {name for name, reason in result["failures"] if reason == "rank 1: out of memory"}
    assert failed == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"}
    assert len(result["failures"]) == len(failed)
    assert result["rates"].keys() == {"all_to_all 1.5", "all_to_all 2"}


def test_a_rank_that_leaves_ends_the_others(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(change=LEAVES))
    assert torchrun(2, str(script)).returncode != 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--only", "messages"], "messages need ranks: torchrun"),
        (["--only", "mesages"], "unknown part 'mesages'; did you mean 'messages'?"),
        (["--only", "memory"], "no device file of CPU: name one with --update, or measure gemms, too"),
        (["--update", "h1000"], "unknown device 'h1000'; did you mean"),
    ],
)
def test_what_cannot_be_measured_alone_is_one_line(
    words: list[str], problem: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", "--device", "cpu", "-o", str(tmp_path / "x.toml"), *words]) == 2
    err = capfd.readouterr().err
    assert problem in err
    assert err.count("\n") == 1


def test_one_part_alone_keeps_the_rest_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    words = ["calibrate", "--device", "cpu", "--only", "memory", "--update", "h200", "-o", str(path)]
    assert run(words) == 0
    kept, measured = device("h200").measured, read_device(path).measured
    assert (measured.gemms, measured.attention) == (kept.gemms, kept.attention)
    assert {curve.name for curve in measured.bandwidths} == {curve.name for curve in kept.bandwidths}
    copy = next(curve for curve in measured.bandwidths if curve.name == "copy")
    assert copy.size_bytes == (2 << 16, 2 << 18)
