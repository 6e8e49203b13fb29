"""Markdown: text is shown as it is, links to nothing, fetches nothing and notifies nobody."""

from __future__ import annotations

import re
import sys

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.hostile.conftest import Outputs
from tests.hostile.payloads import PAYLOADS
from tracelens.printable import without_commands
from tracelens.rendering.formats import escaped, markdown_text
from tracelens.rendering.tables import one_line
from tracelens.table import Report

# https://github.github.com/gfm/#autolinks-extension- and GitHub's references, in text that is no code.
LIVE = {
    "address": r"(?:https?|ftp|mailto|xmpp):\S|www\.\S",
    "e-mail or mention": r"@[A-Za-z0-9]|[\w.+-]@",
    "issue": r"#\d|\bGH-\d",
    "commit": r"\b[0-9a-f]{7,40}\b",
    "domain": r"\w\.(?:com|org|net|example)\b",
    "emoji": r":[a-z0-9_+-]+:",
    "formula": r"\$",
}
INERT = {
    "paragraph", "heading", "bullet_list", "ordered_list", "list_item", "strong", "em",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip


# Cells are cut; the parser takes its time for the rest.
SHORT = [payload[:300] for payload in PAYLOADS]


def parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"])


def flat(tokens: list[Token]) -> list[Token]:
    return [token for outer in tokens for token in (outer, *(outer.children or ()))]


def check(text: str) -> list[Token]:
    """No element but those of the format, nothing live outside of code."""
    tokens = flat(parser().parse(text))
    kinds = {re.sub("_(open|close)$", "", token.type) for token in tokens}
    assert kinds <= INERT | {"inline", "text", "code_inline", "softbreak", "text_special"}, kinds - INERT
    shown = "\n".join(token.content for token in tokens if token.type in ("text", "text_special"))
    for what, pattern in LIVE.items():
        assert not re.findall(pattern, shown)[:3], what
    assert not re.search(r"^[ \t]*::|##\w*\[", text, re.MULTILINE)
    assert all(char.isprintable() or char == "\n" for char in text)
    return tokens


def read(tokens: list[Token]) -> str:
    """The text that a reader sees."""
    return "".join(token.content for token in tokens if token.type in ("text", "text_special", "code_inline"))


FRAMES = ("{}", "- {}", "**{}**: x", "| a |\n| :--- |\n| {} |", "| a |\n| :--- |\n| {} | b |")


@pytest.mark.parametrize("payload", SHORT, ids=range(len(SHORT)))
def test_text_is_shown_as_it_is(payload: str) -> None:
    expected = " ".join(without_commands(one_line(payload)).split())
    for frame in FRAMES:
        tokens = check(frame.format(escaped(payload)))
        seen = " ".join(read(tokens).split())
        assert expected in seen if expected else True, frame
        assert len(seen) <= len(expected) + 4, frame


def test_every_table(tables: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[markdown_text.__module__], "ROWS", 5)
    tokens = check(markdown_text(tables))
    shown = sum(not table.schema.detail for result in tables.results for table in result.exported.values())
    assert sum(token.type == "heading_open" for token in tokens) >= len(tables.results) + 1
    assert shown > 50


@pytest.mark.parametrize("name", ["report", "diff", "whatif", "gate"])
def test_markdown_of_commands(outputs: Outputs, name: str) -> None:
    check((outputs.folder / f"{name}.md").read_text())
