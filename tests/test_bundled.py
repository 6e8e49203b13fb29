"""Data files that were parsed when the package was built, and those that have changed since."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tracelens import bundled
from tracelens.bundled import bundled_toml

PACKAGE = Path(bundled.__file__).parent


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where parsed files are looked for: nothing is there yet."""
    folder = tmp_path / "compiled"
    monkeypatch.setattr(bundled, "COMPILED", folder)
    return folder


def test_parsed_files_say_the_same(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(PACKAGE.rglob("*.toml"))
    from_sources = [bundled_toml(file) for file in files]
    bundled.compile_into(compiled)

    def unneeded(_: str) -> None:
        raise AssertionError("a file is parsed")

    monkeypatch.setattr(tomllib, "loads", unneeded)
    assert repr([bundled_toml(file) for file in files]) == repr(from_sources)


def test_a_file_that_has_changed_is_parsed_again(compiled: Path, tmp_path: Path) -> None:
    bundled.compile_into(compiled)
    changed = tmp_path / "drivers.toml"
    (source,) = PACKAGE.rglob("drivers.toml")
    changed.write_bytes(source.read_bytes() + b"[new]\n")
    assert bundled_toml(changed) == bundled_toml(source) | {"new": {}}
