"""The example reports in reports/ are what the command makes of the sample traces today (`make reports`)."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli import run

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text().replace("\\\n", "")
COMMANDS = {
    name: shlex.split(arguments)
    for name, arguments in re.findall(r"^REPORT_(\w+) := (.+)$", MAKEFILE, re.MULTILINE)
}
FILES = sorted(path.name for path in (ROOT / "reports").iterdir())


@pytest.fixture
def remade(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report made from the repository's root as `make reports` does."""
    monkeypatch.chdir(ROOT)
    target = tmp_path / request.param
    assert run([*COMMANDS[target.stem], "-o", str(target)]) == 0
    return target


def test_there_is_a_report_of_each_command() -> None:
    assert {name.partition(".")[0] for name in FILES} == set(COMMANDS)
    assert len(COMMANDS) > 3


@pytest.mark.parametrize("remade", [name for name in FILES if name.endswith(".md")], indirect=True)
def test_markdown_is_current(remade: Path) -> None:
    assert remade.read_text() == (ROOT / "reports" / remade.name).read_text()


@pytest.mark.parametrize("remade", [name for name in FILES if name.endswith(".json")], indirect=True)
def test_json_is_current(remade: Path) -> None:
    """Integers and texts exactly; floats to rounding, which differs between builds of numpy."""
    _same(json.loads(remade.read_text()), json.loads((ROOT / "reports" / remade.name).read_text()), "")


def _same(new: Any, old: Any, where: str) -> None:
    assert type(new) is type(old), where
    if isinstance(new, dict):
        assert list(new) == list(old), where
        for key in new:
            _same(new[key], old[key], f"{where}/{key}")
    elif isinstance(new, list):
        assert len(new) == len(old), where
        for place, (left, right) in enumerate(zip(new, old, strict=True)):
            _same(left, right, f"{where}/{place}")
    elif isinstance(new, float):
        assert new == pytest.approx(old, rel=1e-12, abs=1e-12), where
    else:
        assert new == old, where
