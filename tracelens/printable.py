"""Text of traces, files and command lines without anything that a terminal or a log reader acts on."""

from __future__ import annotations

import re
from unicodedata import category

_CI_COMMAND = re.compile(r"##(?=\w*\[)")
"""GitHub Actions `##[set-output]`, Azure Pipelines `##vso[...]`, TeamCity `##teamcity[...]`."""


def printable(text: str) -> str:
    r"""`text` as it may stand in an error or a log.

    White space is one blank, control and invisible characters are their escapes (`\x1b`, `\u202e`), and
    commands of CI runners are none.
    """
    return without_commands(visible(" ".join(text.split())))


def visible(text: str) -> str:
    r"""`text` with escapes for what cannot be seen: controls, line ends, bidi marks, lone surrogates.

    >>> visible("a\tb\u202e")
    'a\\tb\\u202e'
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def without_commands(text: str) -> str:
    r"""`text` without the commands that CI runners read anywhere in a line: `##vso[` becomes `##\vso[`."""
    return _CI_COMMAND.sub(r"##\\", text) if "##" in text else text


def _visible(char: str) -> str:
    # Blanks of other widths (U+00A0, U+3000) are seen, though Python calls them unprintable.
    if char.isprintable() or category(char) == "Zs":
        return char
    return char.encode("unicode_escape").decode("ascii")
