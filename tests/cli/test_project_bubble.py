"""`tracelens project bubble` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run as run_cli

EXAMPLE = ["project", "bubble", "--pp", "16", "--global-tokens", "2097152", "--nodes", "64"]


def test_the_published_example(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run_cli([*EXAMPLE, "--seq", "4096", "--mbs", "1", "--vpp", "6"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith("The pipeline idles 13.51% of the time")
    assert "15 / (15 + 16 x 6) = 13.51%" in out
    assert "figure 10" in out


def test_json_is_one_object(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_cli([*EXAMPLE, "--json"]) == 0
    value = json.loads(capfd.readouterr().out)
    assert value["analyzer"] == "bubble"
    assert [round(row["bubble_ratio"], 4) for row in value["tables"]["bubble"]] == [0.4839, 0.9375]
    assert value["meta"]["micro_batches"] == 16


def test_every_format_is_written(written: Callable[..., Path]) -> None:
    page = (written(*EXAMPLE) / "report.html").read_text()
    assert "Pipeline bubble by chunks per stage: 16 stages" in page


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--global-tokens", "1000"], "not a whole number of micro-batches"),
        (["--pp", "7"], "not a multiple of pp x cp x tp = 7"),
        (["--vpp", "100000000"], "vpp must be 1 to 1000"),
        (["-o", "b.doc"], "no format is written as '.doc'"),
    ],
)
def test_errors_are_one_line(more: list[str], problem: str, refused: Callable[..., str]) -> None:
    assert problem in refused(*EXAMPLE, *more)
