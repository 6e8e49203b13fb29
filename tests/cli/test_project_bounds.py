"""`tracelens project bounds` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run as run_cli

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TENSOR = str(SAMPLES / "toggles/tensor")
COMMAND = ["project", "bounds"]


def test_the_challenge_is_the_default(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run_cli(COMMAND) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("Least times on 8 x mi300x")
    assert "GEMM + reduce-scatter 39.8 µs" in out
    assert "hierarchical" in out


def test_json_is_one_object(capfd: pytest.CaptureFixture[str]) -> None:
    shapes = ["--gemm-rs", "512x512x512", "--ag-gemm", "512X512X512", "--nodes", "4"]
    layer = ["--all-to-all", "experts=64 topk=6 hidden=2048 tokens=32"]
    assert run_cli([*COMMAND, *shapes, *layer, "--device", "mi355x", "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["analyzer"] == "bounds"
    assert [row["operation"] for row in value["tables"]["gemms"]] == [
        "GEMM + reduce-scatter",
        "all-gather + GEMM",
    ]
    assert [row["dtype"] for row in value["tables"]["all_to_all"]] == ["bf16", "bf16"]
    assert {row["nodes"] for row in value["tables"]["all_reduce"]} == {1, 4}
    assert value["meta"]["device"] == "mi355x"


def test_every_format_is_written(written: Callable[..., Path]) -> None:
    page = (written(*COMMAND) / "report.html").read_text()
    assert "All-reduce of 16 GPUs on 2 nodes" in page
    assert "GEMM + reduce-scatter: least time by resource" in page


def test_a_trace_is_compared_with_its_links(
    written: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    page = (written(*COMMAND, TENSOR) / "report.html").read_text()
    assert "Transfer time of collectives against their links" in page
    assert "GEMMs next to collectives against their bounds" in page
    assert run_cli([*COMMAND, TENSOR]) == 0
    assert capfd.readouterr().out.startswith("all_to_allv of EP 0-1")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gemm-rs", "512x512"], "'512x512' is not of the form 8192x8192x29568"),
        (["--gemm-rs", "512x512x100"], "k=100 is not a multiple of the 8 GPUs"),
        (["--all-to-all", "experts=8 topk=2"], "not of the form 'experts=256 topk=8"),
        (["--gemm-rs", "8x8x8", "--dtype", "bf61"], "--dtype bf61: no element type"),
        (["--assume", "nic=1"], "nic_bytes_per_s"),
        (["--assume", "nic_bytes_per_s"], "is not of the form name=value"),
        (["--assume", "nic_bytes_per_s=50"], "use 50e9 for a 400 Gb/s link"),
        (["--device", "mi3000x"], "mi300x"),
        (["--device", "h200", "--device-file", "x.toml"], "pass only one"),
        (["--step", "2"], "--step is for traces"),
        ([str(SAMPLES / "cpu/tiny")], "the traces do not name one known device"),
        ([TENSOR, "--nodes", "2"], "--nodes is not for traces"),
        ([TENSOR, "--ag-gemm", "8x8x8"], "a shape is not for traces"),
        (["-o", "b.doc"], "no format is written as '.doc'"),
    ],
)
def test_errors_are_one_line(arguments: list[str], problem: str, refused: Callable[..., str]) -> None:
    assert problem in refused(*COMMAND, *arguments)
