"""Text of traces in Markdown: shown as it is, linking to nothing, fetching nothing and notifying nobody."""

from __future__ import annotations

import re

from tracelens.printable import without_commands
from tracelens.rendering.tables import one_line

# What Markdown acts on within a line or at its start, each made literal by a backslash.
_SPECIAL = re.compile(
    r"[\\`*\[\]|~$]|(?<![^\W_])_|_(?![^\W_])|^[#+-]|^=(?==*$)|^:(?=:)|^\d{1,9}(?=[.)](?:\s|$))"
)
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})

# Links, mentions and emoji are looked for in the finished page, where backslashes and entities are gone; what
# is code is left alone. A table is cut at every bar and code ends at a backtick: neither is part of a word.
_WORD = re.compile(r"[^\s`|]+")
_LIVE = re.compile(
    r"""
    @                                          # mentions, e-mail addresses, commits of users
    | :// | \b(?:https?|ftp|mailto|xmpp):\S     # any address, shortened ones too
    | www\.
    | [#!]\d | \bGH-\d                         # issues, merge requests
    | :[\w+-]+:                                # emoji
    | (?<![0-9a-z])[0-9a-f]{7,40}(?![0-9a-z])  # commits
    | \$                                       # formulas
    | [\w-]\.(?:[a-z]{2}|com|org|net|edu|gov|mil|int|biz|info|pro|web|xxx|aero|asia|coop|museum|name|shop
        |dev|app|xn--[a-z0-9-]+|рф)(?![\w])    # bare domains
    | //[\w-]+\.\w                             # addresses without a protocol
    """,
    re.IGNORECASE | re.VERBOSE,
)


def escaped(text: str) -> str:
    """`text` on one line, as it reads, with nothing in it that Markdown, HTML or GitHub acts on.

    Words that would become links, mentions, references, emoji or formulas are code; all else is escaped.
    """
    line = without_commands(one_line(text).strip())
    parts, end = [], 0
    for word in _WORD.finditer(line):
        if _LIVE.search(word[0]):
            # Punctuation around it belongs to the sentence.
            start, stop = word.span()
            start += word[0].startswith("(")
            code = line[start:stop].rstrip("),;.")
            parts += [_plain(line[end:start], end), f"`{code}`"]
            end = start + len(code)
    return "".join([*parts, _plain(line[end:], end)])


def code(text: str) -> str:
    """`text` on one line as code, which can be copied as it is; the fence is longer than any in it."""
    line = without_commands(one_line(text))
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _plain(text: str, start: int) -> str:
    """Text without live words; only at the start of a line do some signs mean something."""
    if not text:
        return ""
    before = "" if start == 0 else "x"
    return _SPECIAL.sub(_backslashed, before + text)[len(before) :].translate(_HTML)


def _backslashed(match: re.Match[str]) -> str:
    # A number at the start would begin a list: the sign behind it is escaped, not the digits.
    return f"{match[0]}\\" if match[0].isdecimal() else f"\\{match[0]}"
