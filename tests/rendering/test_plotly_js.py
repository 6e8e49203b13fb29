"""The library for figures, compressed when the package was built, and that of another version."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tracelens.rendering import plotly_js


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where the compressed script is looked for: nothing is there yet."""
    folder = tmp_path / "compiled"
    monkeypatch.setattr(plotly_js, "COMPILED", folder)
    plotly_js.packed_plotly.cache_clear()
    yield folder
    plotly_js.packed_plotly.cache_clear()


def test_the_digest_is_that_of_the_script(compiled: Path) -> None:
    payload, digest = plotly_js.packed_plotly()
    script = gzip.decompress(base64.b64decode(payload))
    assert b"plotly.js" in script
    assert digest == plotly_js.script_digest(script)


def test_the_compiled_one_is_the_same(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_source = plotly_js.packed_plotly()
    plotly_js.compile_into(compiled)
    plotly_js.packed_plotly.cache_clear()

    def unneeded(_: bytes) -> None:
        raise AssertionError("the script is compressed")

    monkeypatch.setattr(plotly_js, "_packed", unneeded)
    assert plotly_js.packed_plotly() == from_source


def test_another_version_is_compressed_again(
    compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plotly_js.compile_into(compiled)
    other = tmp_path / "plotly.min.js"
    other.write_bytes(b'const text = "</SCRIPT>"')
    monkeypatch.setattr(plotly_js, "_shipped", lambda: other)
    payload, _ = plotly_js.packed_plotly()
    assert gzip.decompress(base64.b64decode(payload)) == rb'const text = "<\/SCRIPT>"'
