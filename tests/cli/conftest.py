"""What tests of commands share; the commands run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens.cli import run

FORMATS = ("report.html", "report.md", "report.json", "report.xlsx", "csv")


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that is wrong: exit code 2, nothing on stdout, one line on stderr, which it returns."""

    def call(*arguments: str) -> str:
        capfd.readouterr()
        assert run(arguments) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.endswith("\n")
        return err

    return call


@pytest.fixture
def written(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Path]:
    """Run a command with an output of every format, all below the folder that is returned."""

    def call(*arguments: str) -> Path:
        targets = [tmp_path / name for name in FORMATS]
        assert run([*arguments, *(word for path in targets for word in ("-o", str(path)))]) == 0
        out, err = capfd.readouterr()
        assert out == ""
        assert err.splitlines() == [f"wrote {path}" for path in targets]
        assert all(path.exists() for path in targets)
        return tmp_path

    return call
