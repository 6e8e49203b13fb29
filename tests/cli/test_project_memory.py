"""`tracelens project memory` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli import run as run_cli

TRILLION = ["project", "memory", "--model", "moe_1t", "--gpus", "768"]


def told(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run_cli([*arguments, "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_it_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    layout = ["--pp", "24", "--ep", "8", "--cp", "2", "--vpp", "4", "--device", "mi300x"]
    assert run_cli([*TRILLION, *layout, "--convention", "brief"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("tracelens project memory of moe_1t: 118.1 GB on the GPU with most\n")
    for text in ("Memory by component", "activations.experts", "Pipeline ranks", "Does it fit", "yes"):
        assert text in out
    assert "768 GPUs pp=24" in out


def test_json_has_the_tables(capfd: pytest.CaptureFixture[str]) -> None:
    found = told(
        capfd, *TRILLION, "--pp", "24", "--ep", "8", "--vpp", "4", "--device", "h200", "--device", "b200"
    )
    assert found["analyzer"] == "memory"
    assert list(found["tables"]) == ["memory", "ranks", "fits"]
    rows = found["tables"]["memory"]
    assert {"pp_rank", "component", "bytes"} < set(rows[0])
    assert {"parameters", "gradients", "main_parameters", "optimizer"} < {row["component"] for row in rows}
    assert {row["pp_rank"] for row in rows} == set(range(24))
    # As many micro-batches as fill the pipeline.
    assert found["tables"]["ranks"][0]["in_flight"] == 119
    assert [row["device"] for row in found["tables"]["fits"]] == ["h200", "b200"]
    peaks = [row["peak_bytes"] for row in found["tables"]["ranks"]]
    assert peaks == sorted(peaks, reverse=True)
    assert found["meta"]["worst_bytes"] == peaks[0]


def peak(capfd: pytest.CaptureFixture[str], *arguments: str) -> int:
    options = ["project", "memory", "--model", "small", "--gpus", "8", *arguments]
    return int(told(capfd, *options)["meta"]["worst_bytes"])


@pytest.mark.parametrize(
    ("option", "less"),
    [
        (["--mbs", "8"], False),
        (["--seq", "8192"], False),
        (["--imbalance", "2"], False),
        (["--precision", "fp32"], False),
        (["--precision", "bf16-fp32-gradients"], False),
        (["--precision", "bf16-no-main"], True),
        (["--optimizer", "sgd"], True),
        (["--recompute", "full"], True),
        (["--recompute", "0,1,2,3,4"], True),
        (["--recompute", "attention"], True),
        (["--tp", "2"], True),
        (["--set", "loss=fused", "--set", "permute=fused"], True),
    ],
)
def test_options_reach_the_projection(
    option: list[str], less: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    base = peak(capfd, "--mbs", "4") if "--mbs" in option else peak(capfd)
    found = peak(capfd, *option)
    assert (found < base) == less
    assert found != base


def test_pipeline_options(capfd: pytest.CaptureFixture[str]) -> None:
    stages = ["--pp", "4", "--vpp", "2", "--set", "layers=8", "--micro-batches", "32"]
    base = peak(capfd, *stages)
    assert peak(capfd, *stages, "--overlap") > base
    assert peak(capfd, *stages, "--stage-buffers", "all") > base


def test_layouts_are_compared_in_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    layouts = ["pp=24 ep=8 vpp=4", "pp=24 ep=8 vpp=4 cp=2", "pp=48 ep=8 vpp=2"]
    options = [part for text in layouts for part in ("--layout", text)]
    page, data = tmp_path / "memory.html", tmp_path / "memory.json"
    devices = ["--device", "mi300x", "--device", "mi355x"]
    written = ["-o", str(page), "-o", str(data)]
    assert run_cli([*TRILLION, "--convention", "brief", *options, *devices, *written]) == 0
    assert capfd.readouterr().err == f"wrote {page}\nwrote {data}\n"
    assert "Memory of the GPU with most, by layout" in page.read_text()
    fits = json.loads(data.read_text())["results"]["memory"]["tables"]["fits"]
    assert [(row["layout"], row["device"], row["fits"]) for row in fits] == [
        (layouts[0], "mi300x", "no"), (layouts[0], "mi355x", "yes"),
        (layouts[1], "mi300x", "yes"), (layouts[1], "mi355x", "yes"),
        (layouts[2], "mi300x", "no"), (layouts[2], "mi355x", "yes"),
    ]  # fmt: skip


def test_a_reserve_and_a_device_of_ones_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('name = "mine"\nhbm_bytes = 24e9\nhbm_bytes_per_s = 1e12\n[matrix]\nbf16 = 1e14\n')
    found = told(
        capfd, "project", "memory", "--model", "tiny", "--device-file", str(mine), "--reserve", "1.5"
    )
    (row,) = found["tables"]["fits"]
    assert (row["device"], row["memory_bytes"], row["reserve_bytes"]) == ("mine", 24 * 10**9, 1_500_000_000)
    assert found["skips"][0]["subject"] == "memory of mine in real bytes"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nope"], "unknown model (nor is it a file) 'nope'"),
        (["--model", "moe_1t", "--gpus", "10", "--pp", "3"], "10 ranks are no multiple of pp x cp x tp = 3"),
        (["--model", "tiny", "--recompute", "some"], "--recompute is none, attention, full, or layers"),
        (["--model", "tiny", "--device", "foo"], "unknown device 'foo'"),
        (["--model", "tiny", "--convention", "brief"], "take convention=exact"),
        (["--model", "tiny", "--imbalance", "0.5"], "imbalance must be at least 1"),
        (["--model", "tiny", "--set", "nothing=3"], "unknown config field 'nothing'"),
        (["--model", "tiny", "--layout", "pp:2"], "'pp:2' is not of the form field=value"),
        (["--model", "tiny", "-o", "memory.doc"], "memory.doc"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["project", "memory", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
