"""What every format must do, whatever it is: one suite over all that are registered."""

from __future__ import annotations

import io
import re
import zipfile

import pytest

from tests.rendering import sample
from tracelens.rendering import RENDERERS, Renderer
from tracelens.rendering.tables import one_line
from tracelens.table import Report

EVERY = pytest.mark.parametrize(
    "renderer", [item for _, item in RENDERERS.items()], ids=lambda item: item.name
)
NAMES = [name for name, _ in RENDERERS.items()]


def readable_text(renderer: Renderer, report: Report) -> str:
    """All that a format says about a report, unescaped and on one line."""
    contents = renderer.files(report)
    texts = [f"{name} " for name in contents]
    for content in contents.values():
        if content[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(content)) as book:
                texts += [book.read(name).decode() for name in book.namelist()]
        else:
            texts.append(content.decode())
    text = (
        " ".join(texts).encode().decode("unicode_escape", "replace")
        if renderer.name == "json"
        else " ".join(texts)
    )
    for escaped, plain in (("&lt;", "<"), ("&gt;", ">"), ("&#34;", '"'), ("&#39;", "'"), ("&amp;", "&")):
        text = text.replace(escaped, plain)
    return " ".join(re.sub(r"\\(?=[^\sa-zA-Z0-9])", "", text).split())


def test_the_known_formats_are_registered() -> None:
    assert NAMES == ["console", "csv", "html", "json", "markdown", "xlsx"]


@EVERY
def test_renders_nasty_names(renderer: Renderer) -> None:
    files = renderer.files(sample.report())
    assert all(isinstance(content, bytes) and content for content in files.values())
    assert all("/" not in name for name in files)
    if renderer.suffix:
        assert len(files) == 1
        assert next(iter(files)).endswith(renderer.suffix)


@EVERY
def test_renders_an_empty_report(renderer: Renderer) -> None:
    assert renderer.files(sample.empty())


@EVERY
def test_names_every_table_and_result(renderer: Renderer) -> None:
    report = sample.report()
    text = readable_text(renderer, report)
    for result in report.results:
        for name in result.tables:
            assert result.schemas[name].title in text or name in text, f"{renderer.name}: {name} is missing"
        assert result.title in text or result.analyzer in text


@EVERY
def test_says_what_was_skipped_and_why(renderer: Renderer) -> None:
    report = sample.report()
    text = readable_text(renderer, report)
    for result in report.results:
        for skip in result.skips:
            assert one_line(skip.subject) in text
            assert one_line(skip.reason) in text


@EVERY
def test_the_same_report_gives_the_same_bytes(renderer: Renderer) -> None:
    assert dict(renderer.files(sample.report())) == dict(renderer.files(sample.report()))


@EVERY
def test_is_documented(renderer: Renderer) -> None:
    assert renderer.doc
    assert renderer.name.isidentifier()
