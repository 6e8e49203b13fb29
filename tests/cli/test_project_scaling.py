"""`tracelens project scaling` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tracelens.cli import run as run_cli

SCALING = ["project", "scaling", "--device", "mi300x"]
LARGE = [*SCALING, "--model", "moe_2t", "--gpus", "1024", "--network", "mi300x-8x400g"]
SMALL = [*SCALING, "--model", "deepseek_v2_lite", "--gpus", "16"]


def test_the_figures_of_the_guide(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--ep", "8,64", "--dispatch", "alltoall,deepep", "--micro-batches", "16"]
    assert run_cli([*LARGE, *options, "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    value = json.loads(out)
    assert value["analyzer"] == "scaling"
    assert list(value["tables"]) == ["scaling", "breakdown", "exchange", "published", "assumptions"]
    assert [(row["dispatch"], row["ep"]) for row in value["tables"]["scaling"]] == [
        ("alltoall", 8), ("alltoall", 64), ("deepep", 8), ("deepep", 64),
    ]  # fmt: skip
    assert {"pp": 16, "micro_batches": 16, "overlapped": ["deepep"]}.items() <= value["meta"].items()
    notes = {row["name"]: row["note"] for row in value["tables"]["assumptions"]}
    assert "MORI" in notes["nic_efficiency"]
    assert "exchange_overlap" not in notes


def test_it_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*SMALL, "--ep", "8,16", "--overlap", "none"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("From EP 8 to 16, alltoall keeps ")
    assert "tracelens project scaling of deepseek_v2_lite on 16 x mi300x" in lines[:3]
    for text in ("Throughput by expert parallelism", "Time of a step", "One dispatch"):
        assert text in out


def test_every_format_is_written(written: Callable[..., Path]) -> None:
    folder = written(*SMALL, "--ep", "8,16")
    page = (folder / "report.html").read_text()
    assert "Time of a step by ranks that share the experts, and dispatch" in page
    assert "Tokens/s per GPU, and speedup over alltoall" in page


def test_the_layout_can_be_set(capfd: pytest.CaptureFixture[str]) -> None:
    layout = ["--pp", "8", "--vpp", "3", "--cp", "2", "--mbs", "2", "--micro-batches", "8", "--seq", "8192"]
    more = ["--recompute", "full", "--set", "aux_loss=0", "--assume", "jitter=0.1", "--dispatch", "dedup"]
    assert run_cli([*LARGE, "--ep", "16", *layout, *more, "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    sizes = {"pp": 8, "vpp": 3, "cp": 2, "micro_batch": 2, "micro_batches": 8, "seq": 8192}
    assert (sizes | {"recomputed_layers": 96, "dp": 64}).items() <= value["meta"].items()
    (row,) = value["tables"]["breakdown"]
    # Waiting for the slowest of 16 ranks counts as p2p.
    assert row["p2p"] > 0.05


def test_a_network_file_counts(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "net.toml"
    steps = []
    for nics in (8, 1):
        file.write_text(f"node = 8\nnics = {nics}\nnic_bytes_per_s = 50e9\n")
        options = ["--ep", "16", "--dispatch", "alltoall", "--overlap", "none", "--network", str(file)]
        assert run_cli([*SMALL, *options, "--json"]) == 0
        value = json.loads(capfd.readouterr().out)
        steps.append(value["tables"]["exchange"][0]["dur_ns"])
    assert steps[1] == pytest.approx(8 * steps[0], rel=0.1)


def test_a_recorded_routing_counts(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # All six experts of each token on one of two nodes, equally many tokens on each.
    first = np.random.default_rng(0).random((4096, 32)).argsort(axis=1)[:, :6]
    np.save(tmp_path / "local.npy", first + 32 * (np.arange(4096)[:, None] % 2))
    options = ["--ep", "16", "--overlap", "none", "--json"]
    exchanges = []
    for more in ([], ["--routing", str(tmp_path / "local.npy")]):
        assert run_cli([*SMALL, *options, *more]) == 0
        value = json.loads(capfd.readouterr().out)
        exchanges.append({row["dispatch"]: row for row in value["tables"]["exchange"]})
    balanced, local = exchanges
    assert local["deepep"]["nodes_per_token"] == 1 < balanced["deepep"]["nodes_per_token"]
    assert local["deepep"]["nic_bytes"] < 0.6 * balanced["deepep"]["nic_bytes"]
    assert value["meta"]["routing"] == "recorded"
    (tmp_path / "bad.npy").write_text("no array")
    assert run_cli([*SMALL, *options, "--routing", str(tmp_path / "bad.npy")]) == 2
    assert "bad.npy: not a NumPy array" in capfd.readouterr().err
    np.savez(tmp_path / "several.npz", first, first)
    assert run_cli([*SMALL, *options, "--routing", str(tmp_path / "several.npz")]) == 2
    assert "several.npz: holds several arrays" in capfd.readouterr().err
    assert run_cli([*SMALL, *options, "--routing", str(tmp_path / "missing.npy")]) == 2
    assert "missing.npy: cannot be read" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ep", "8", "--dispatch", "broadcast"], "unknown dispatch 'broadcast'"),
        (["--ep", "8", "--overlap", "all"], "unknown dispatch 'all'"),
        (["--ep", "eight"], "--ep must be numbers, as in 8,16, not 'eight'"),
        (["--ep", "3"], "no layout is valid"),
        (["--ep", "8", "--network", "mi300x"], "unknown network 'mi300x'"),
        (["--ep", "8", "--network", "none.toml"], "none.toml: no such file"),
        (["--ep", "8", "--assume", "nic=1"], "unknown assumption 'nic'"),
        (["--ep", "8", "--recompute", "some"], "--recompute is none, full, or layers"),
        (["--ep", "8", "--dispatch", ""], "nothing to compare"),
    ],
)
def test_wrong_requests(options: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*SMALL, *options]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 1
