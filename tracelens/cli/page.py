"""Help pages: how they are laid out, whoever knows what is on them.

The layout is that of typer without rich: paragraphs and lists in columns, broken between words.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

MAX_WIDTH, MIN_WIDTH = 120, 50
"""Columns of a page; between them, as many as the terminal has."""

Rows = Sequence[tuple[str, str]]
HELP_OPTION = ("-h, --help", "Show this message and exit.")

_NAME_COLUMNS = 34
_INDENT = "  "
_EXAMPLES = "Examples:\n"


class Page(NamedTuple):
    """What is on a help page."""

    path: str  # `tracelens project memory`
    arguments: str
    text: str
    sections: Mapping[str, Rows]  # by heading
    examples: Sequence[str]

    def laid_out(self, width: int) -> str:
        """The page in lines of at most `width` columns, where no word is longer."""
        blocks = [_usage(self.path, self.arguments, width)]
        if self.text:
            blocks.append(_paragraphs(self.text, width, _INDENT))
        for heading, rows in self.sections.items():
            if rows:
                blocks.append("\n".join([f"{heading}:", *_list(rows, width)]))
        if self.examples:
            lines = [line for example in self.examples for line in _broken(example, width - len(_INDENT))]
            blocks.append("\n".join(["Examples:", *(f"{_INDENT}{line}" for line in lines)]))
        return "\n\n".join(blocks)


def terminal_width() -> int:
    """Columns of a page in this terminal; two stay empty."""
    import shutil

    return max(min(shutil.get_terminal_size().columns, MAX_WIDTH) - 2, MIN_WIDTH)


def described(doc: str | None) -> tuple[str, list[str]]:
    """The text of a docstring up to its examples, and these, each in one line; an indented line goes on."""
    first, _, rest = (doc or "").partition("\n")
    text, _, block = f"{first.strip()}\n{textwrap.dedent(rest)}".partition(_EXAMPLES)
    examples: list[str] = []
    for line in textwrap.dedent(block).splitlines():
        if line.startswith(" ") and examples:
            examples[-1] += f" {line.strip()}"
        elif line:
            examples.append(line)
    return text.strip(), examples


class _Wrapper(textwrap.TextWrapper):
    """Breaks a word that is longer than a line where the line ends, not at a hyphen."""

    def _handle_long_word(
        self, reversed_chunks: list[str], cur_line: list[str], cur_len: int, width: int
    ) -> None:
        columns = max(width - cur_len, 1)
        word = reversed_chunks[-1]
        cur_line.append(word[:columns])
        reversed_chunks[-1] = word[columns:]


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> str:
    return _Wrapper(
        width, initial_indent=first, subsequent_indent=others, replace_whitespace=False
    ).fill(text)  # fmt: skip


def _paragraphs(text: str, width: int, indent: str = "") -> str:
    """Each paragraph wrapped, with the indentation of its first line."""
    wrapped = []
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        lines = paragraph.splitlines()
        own = indent + " " * (len(lines[0]) - len(lines[0].lstrip()))
        wrapped.append(_wrapped(" ".join([lines[0].lstrip(), *lines[1:]]), width, own, own))
    return "\n\n".join(wrapped)


def _usage(path: str, arguments: str, width: int) -> str:
    prefix = f"Usage: {path} "
    if width >= len(prefix) + 20:
        return _wrapped(arguments, width, prefix, " " * len(prefix))
    indent = " " * (len("Usage: ") + 4)
    return f"{prefix}\n{_wrapped(arguments, width, indent, indent)}"


def _list(rows: Rows, width: int) -> Iterator[str]:
    """Names and, beside them, what they mean; below them where the name is too long."""
    columns = min(max(len(name) for name, _ in rows), _NAME_COLUMNS, width // 3)
    indent = " " * (len(_INDENT) + columns + 2)
    for name, meaning in rows:
        lines = _paragraphs(meaning, max(width - columns - 4, 10)).splitlines() if meaning else []
        if lines and len(name) <= columns:
            yield f"{_INDENT}{name.ljust(columns)}  {lines.pop(0)}"
        else:
            yield f"{_INDENT}{name}"
        yield from (f"{indent}{line}" for line in lines)


def _broken(command_line: str, width: int) -> Iterator[str]:
    """A command in lines of a shell, broken before options."""
    line = ""
    for part in re.split(r" (?=-)", command_line):
        if line and len(line) + len(part) + 3 > width:
            yield f"{line} \\"
            line = f"    {part}"
        else:
            line = f"{line} {part}" if line else part
    yield line
