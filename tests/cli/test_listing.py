"""`tracelens list devices` and `tracelens list costs`."""

import pytest

from tracelens.cli import run
from tracelens.costs import COSTS
from tracelens.devices import devices
from tracelens.what_if import SCENARIOS


def listed(kind: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert run(["list", kind]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out.splitlines()


def test_devices_with_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = listed("devices", capsys)
    assert header.split()[:3] == ["name", "title", "units"]
    assert [row.split()[0] for row in rows[: len(devices())]] == [item.name for item in devices()]
    lines = {row.split()[0]: row for row in rows}
    assert lines["mi300x"].split() == [
        "mi300x", "AMD", "Instinct", "MI300X",
        "304", "192", "5.325", "1307", "2615", "163.4", "708", "448", "AMD",
    ]  # fmt: skip
    assert lines["mi355x"].split()[4:] == ["256", "288", "8", "2517", "5033", "157.3", "-", "537.6", "AMD"]
    assert lines["h100"].endswith("secondary")
    assert "TFLOP/s" in rows[-2]
    assert rows[-1].endswith("NAME.toml")


def test_numbers_stand_below_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = listed("devices", capsys)
    end = header.index("units") + len("units")
    assert all(row[end - 1] in "-0123456789" and row[end] == " " for row in rows[: len(devices())])


def test_costs_with_their_module_and_what_they_count(capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed("costs", capsys)
    assert len(rows) == len(list(COSTS.items()))
    lines = {row.split()[0]: row for row in rows}
    assert lines["aten::mm"].split() == ["aten::mm", "gemm", "(M,", "K)", "x", "(K,", "N)."]


def test_scenarios_with_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed("scenarios", capsys)
    assert len(rows) == len(list(SCENARIOS.items()))
    lines = {row.split()[0]: row for row in rows}
    assert SCENARIOS.get("no_blocking").doc[:20] in lines["no_blocking[=CALL_OR_OP]"]
    assert "scale:PATTERN=FACTOR" in lines
