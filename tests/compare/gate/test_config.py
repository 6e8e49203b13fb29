"""Where the gate's rules are read from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.compare.gate import GateSettings, settings
from tracelens.errors import TracelensError

PYPROJECT = '[tool.tracelens.gate]\nrules = ["step.time<=1.03"]\nconfidence = 0.95\n'
OWN = '[gate]\nrules = ["kernel.count<=1.0"]\n'


def test_the_nearest_file_with_a_section(tmp_path: Path) -> None:
    inner = tmp_path / "one" / "two"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "one" / "pyproject.toml").write_text("[tool.other]\n")
    assert settings(start=inner) == GateSettings(("step.time<=1.03",), 0.95, str(tmp_path / "pyproject.toml"))
    (inner / "tracelens.toml").write_text(OWN)
    assert settings(start=inner) == GateSettings(("kernel.count<=1.0",), None, str(inner / "tracelens.toml"))


def test_a_file_by_name(tmp_path: Path) -> None:
    for text in (OWN, PYPROJECT):
        path = tmp_path / "gate.toml"
        path.write_text(text)
        assert settings(str(path)).file == str(path)


def test_no_file_is_no_rules(tmp_path: Path) -> None:
    assert settings(start=tmp_path) == GateSettings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no section [gate] or [tool.tracelens.gate]"),
        ("[gate", "name another file with --config"),
        ("gate = 3", "gate is not a table"),
        ("[gate]\nrule = []", "[gate] has no key 'rule'; known: rules, confidence"),
        ("[gate]\nrules = 'step.time<=1'", "is not a list of strings"),
        ("[gate]\nrules = [1]", "is not a list of strings"),
        ("[gate]\nconfidence = true", "confidence of [gate] is not a number"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tracelens.toml"
    path.write_text(text)
    with pytest.raises(TracelensError) as caught:
        settings(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match="no such file"):
        settings(str(tmp_path / "no.toml"))
