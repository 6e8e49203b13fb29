"""Mending JSON text that profilers got wrong, one event at a time.

Seen in the wild: unescaped quotes, backslashes and control bytes in names, invalid UTF-8, bare `N/A`,
`NaN` and `Infinity`, a missing value (`"k": ,`), trailing commas.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r'"|'  # a string starts
    r"-?(?:NaN|Infinity|inf|nan)\b|N/A|\bNone\b|"  # bare words that stand for "no value"
    r",(?=\s*[}\]])|"  # trailing comma
    r":(?=\s*[,}\]])"  # missing value
)
# A quote ends a string only where JSON can go on: before : , } ] and, after a comma, a new key or value.
_CLOSING = re.compile(r'"(?=\s*(?::|\}|\]|$|,\s*(?:["{\[\-\d]|true|false|null|N/A|NaN|-?Infinity)))')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_UNSAFE = re.compile(r'[\x00-\x1f"\\]')


def repair_text(text: bytes) -> bytes:
    """A valid-JSON reading of `text` where one is plausible; words without a value become null.

    The result need not be valid JSON: text that is cut off stays cut off, nothing is invented.
    """
    source = text.decode("utf-8", "replace")
    out: list[str] = []
    pos = 0
    while match := _TOKEN.search(source, pos):
        out.append(source[pos : match.start()])
        token = match.group()
        pos = match.end()
        if token == '"':
            closing = _CLOSING.search(source, pos)
            if closing is None:
                out.append(source[match.start() :])
                return "".join(out).encode()
            out.append(f'"{_escape(source[pos : closing.start()])}"')
            pos = closing.end()
        elif token == ":":
            out.append(": null")
        elif token != ",":
            out.append("null")
    out.append(source[pos:])
    return "".join(out).encode()


def _escape(body: str) -> str:
    """Escape what may not stand in a JSON string, leaving valid escapes as they are."""
    out: list[str] = []
    pos = 0
    while match := _UNSAFE.search(body, pos):
        out.append(body[pos : match.start()])
        valid = _ESCAPE.match(body, match.start())
        if valid:
            out.append(valid.group())
            pos = valid.end()
        else:
            char = match.group()
            out.append(f"\\{char}" if char in '"\\' else f"\\u{ord(char):04x}")
            pos = match.end()
    out.append(body[pos:])
    return "".join(out)
