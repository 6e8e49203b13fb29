"""What the tests of formats read: outputs of the commands on hostile runs, made once."""

from __future__ import annotations

import json
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.hostile import reports
from tests.hostile.payloads import SHORT
from tests.hostile.traces import write_run
from tests.once import made_once
from tracelens.cli import run
from tracelens.table import Report

SUFFIXES = ("html", "md", "json", "xlsx", "txt")


class Outputs(NamedTuple):
    """What commands wrote.

    Attributes:
        folder: their files: report.html, diff.md, fused.json, gate.xml, ..., and CSV directories.
        out: standard output of each by name.
        err: standard error.
    """

    folder: Path
    out: dict[str, str]
    err: dict[str, str]


@pytest.fixture(scope="session")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """Reports, comparisons, verdicts and fused traces of two hostile runs."""
    folder = made_once(tmp_path_factory, "hostile", write_outputs)
    with (folder / "printed.json").open(encoding="utf-8") as file:
        return Outputs(folder / "outputs", *json.load(file))


def write_outputs(folder: Path) -> None:
    """Run the commands; what they print goes into a file of its own."""
    # One of the very long texts: in all of a trace they say nothing more, and take long.
    payloads = [*SHORT, "<" + "x" * 5000]
    base = str(write_run(folder / "base", payloads))
    cand = str(write_run(folder / "cand", payloads, slower=1.5))
    target = folder / "outputs"

    def files(name: str) -> list[str]:
        paths = [*(target / f"{name}.{suffix}" for suffix in SUFFIXES), f"{target / name}.csv/"]
        return [word for path in paths for word in ("-o", str(path))]

    verdict = ["--junit", str(target / "gate.xml"), "--markdown", str(target / "gate.md"), "--github"]
    commands = {
        "report": ["report", base, *files("report")],
        "diff": ["diff", base, cand, *files("diff")],
        "fuse": ["fuse", base, "-o", str(target / "fused.json")],
        "whatif": ["project", "whatif", base, *files("whatif")],
        "gate": ["gate", base, cand, "--rule", "kernel.count<=0.5", *verdict],
        "console": ["report", base, "--only", "kernels", "--only", "scopes"],
        "json": ["analyze", "ops", base, "--json"],
    }
    out, err = {}, {}
    for name, arguments in commands.items():
        stdout, stderr = TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True), StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr):
            code = run(arguments)
        stdout.seek(0)
        out[name], err[name] = stdout.read(), stderr.getvalue()
        assert code in (0, int(name == "gate")), f"{name}: {err[name]}"
    (folder / "printed.json").write_text(json.dumps((out, err)), encoding="utf-8")


@pytest.fixture(scope="session")
def tables() -> Report:
    """Every table of the package with a payload in every cell of text."""
    return reports.every_table()


@pytest.fixture(scope="session")
def figured() -> Report:
    """Every kind of figure with payloads for names."""
    return reports.every_figure()


@pytest.fixture(scope="session", params=["tables", "figured"])
def report(request: pytest.FixtureRequest) -> Report:
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
