"""What a command may import before it does its work: the dear libraries, and modules of ours, by count."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACE = "sample_traces/one_gpu/grouped/rank0.json.gz"
PAGES = {"typer", "pydantic", "numpy", "pandas", "msgspec", "jinja2", "rich", "dataclasses", "subprocess"}
REPORT = {
    "typer",
    "pydantic",
    "pandas",
    "plotly",
    "rich",
    "asyncio",
    "ssl",
    "socket",
    "subprocess",
    "importlib.metadata",
    "tracelens.planner",
}

SPY = """
import json, os, sys
def loaded(code, leave=os._exit):
    os.write(3, json.dumps(sorted(sys.modules)).encode())
    leave(code)
os._exit = loaded
from tracelens.cli import main
main()
"""


@cache
def modules(*arguments: str) -> tuple[str, ...]:
    """All modules that the process of a command has imported when it ends."""
    command = [sys.executable, "-c", SPY, *arguments]
    done = subprocess.run(
        ["bash", "-c", '"$@" 3>&1 >/dev/null', "bash", *command],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return tuple(json.loads(done.stdout))


def own(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.split(".")[0] == "tracelens"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["project", "--help"]], ids=" ".join)
def test_a_page_of_commands_imports_no_library(arguments: list[str]) -> None:
    names = modules(*arguments)
    assert PAGES.isdisjoint(names)
    assert len(own(names)) <= 12, own(names)


def test_a_report_imports_what_it_needs(tmp_path: Path) -> None:
    names = modules("report", TRACE, "-o", str(tmp_path / "report.html"))
    assert REPORT.isdisjoint(names)
    formats = {name.rpartition(".")[2] for name in names if name.startswith("tracelens.rendering.formats.")}
    assert formats == {"html", "json"}
    figures = {name.rpartition(".")[2] for name in names if name.startswith("tracelens.rendering.figures.")}
    assert figures.isdisjoint({"comparisons", "projections"})
    assert len(own(names)) <= 200, own(names)
