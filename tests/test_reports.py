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
COMMANDS, PUBLIC = (
    {
        name: shlex.split(arguments)
        for name, arguments in re.findall(rf"^{kind}_(\w+) := (.+)$", MAKEFILE, re.MULTILINE)
        if name != "REPORTS"
    }
    for kind in ("REPORT", "PUBLIC")
)
FILES = sorted(path.name for path in (ROOT / "reports").iterdir())


LONG = {"ladder_large_ep4"}
"""Reports of so many traces that only the slow tests make them again."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in COMMANDS],
)
def remade(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The reports of one command, made from the repository's root as `make reports` does, but at once."""
    folder = tmp_path_factory.mktemp("reports")
    targets = [folder / name for name in FILES if name.partition(".")[0] == request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert run([*COMMANDS[request.param], *(word for path in targets for word in ("-o", str(path)))]) == 0
    return targets


def test_there_is_a_report_of_each_command() -> None:
    assert {name.partition(".")[0] for name in FILES} == {*COMMANDS, *PUBLIC}
    assert len(COMMANDS) > 3


def test_reports_are_current(remade: list[Path]) -> None:
    """In JSON integers and texts exactly; floats to rounding, which differs between builds of numpy."""
    for path in remade:
        current = (ROOT / "reports" / path.name).read_text()
        if path.suffix == ".json":
            _same(json.loads(path.read_text()), json.loads(current), "")
        else:
            assert path.read_text() == current


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_reports_on_public_traces_are_current(
    name: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus)
    assert run([*PUBLIC[name], "-o", str(tmp_path / "report.md")]) == 0
    assert (tmp_path / "report.md").read_text() == (ROOT / "reports" / f"{name}.md").read_text()


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
