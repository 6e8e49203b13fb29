"""Templates that were compiled when the package was built, and those that have changed since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest

from tests.rendering import sample
from tracelens.rendering import RENDERERS, templates


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where compiled templates are looked for."""
    monkeypatch.setattr(templates, "COMPILED", tmp_path)
    templates.environment.cache_clear()
    yield tmp_path
    templates.environment.cache_clear()


def page() -> bytes:
    (content,) = RENDERERS.get("html").files(sample.small()).values()
    return content


def test_compiled_templates_make_the_same_page(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_sources = page()
    templates.compile_into(compiled)
    templates.environment.cache_clear()

    def unneeded(*_: object, **__: object) -> None:
        raise AssertionError("a template is compiled")

    monkeypatch.setattr(jinja2.Environment, "compile", unneeded)
    assert page() == from_sources


def test_templates_that_have_changed_are_compiled_again(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = templates.digest()
    (compiled / before).mkdir()
    changed = compiled / "assets"
    changed.mkdir()
    for path in templates.ASSETS.glob("*.j2"):
        changed.joinpath(path.name).write_text(path.read_text("utf-8").replace("<main", "<main data-new"))
    monkeypatch.setattr(templates, "ASSETS", changed)
    assert templates.digest() != before
    assert b"<main data-new" in page()
