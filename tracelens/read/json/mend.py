"""Mending JSON text.

Mended is what was seen in the wild: unescaped quotes, backslashes and control bytes in names, invalid UTF-8,
halves of surrogate pairs, bare `N/A`, `NaN`, `Infinity` and `None`, a missing value (`"k": ,`), trailing
commas.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r'"|'  # a string starts
    r"(?<![\w.+-])(?:0[xX][0-9a-fA-F]+|-?[A-Za-z_][\w/]*)|"  # bare words, most of them stand for "no value"
    r",(?=\s*[}\]])|"  # trailing comma
    r":(?=\s*[,}\]])"  # missing value
)
WORDS = {"true": "true", "false": "false", "True": "true", "False": "false"}
"""Bare words that are values; all others stand for none."""
# What may be passed over at once: structure, numbers, words and strings without escapes, if valid.
_FINE = re.compile(
    r"(?:[\s{}\[\]]++"
    r'|"[^"\\\x00-\x1f]*+"(?=\s*+(?:[:,}\]]|$))'
    r"|:(?!\s*+[,}\]])"
    r"|,(?!\s*+[}\]])"
    r"|(?<![\w.+-])(?:-?\d[\d.eE+-]*+(?![\w/])|(?:true|false|null)(?![\w/])))*+"
)
# A string that needs no mending, where JSON goes on behind it.
_INTACT = re.compile(
    r'"[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*"(?=\s*(?:[:,}\]]|$))'
)
# Otherwise a quote ends a string only before } or ], after a comma a new key or value, and a key before :
_CLOSING = r'\}|\]|$|,\s*(?:["{\[\-\d]|true|false|null|N/A|NaN|-?Infinity)'
_CLOSING_VALUE = re.compile(rf'"(?=\s*(?:{_CLOSING}))')
_CLOSING_ANY = re.compile(rf'"(?=\s*(?::|{_CLOSING}))')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_UNSAFE = re.compile(r'[\x00-\x1f"\\]')
_SURROGATE = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def repair_text(text: bytes) -> bytes:
    """A valid-JSON reading of `text` where one is plausible; words without a value become null.

    The result need not be valid JSON: text that is cut off stays cut off, nothing is invented. Text that
    is valid JSON stays as it is.
    """
    source = text.decode("utf-8", "replace")
    out: list[str] = []
    pos = 0
    before = ""
    while match := _TOKEN.search(source, fine.end() if (fine := _FINE.match(source, pos)) else pos):
        between = source[pos : match.start()]
        before = between.rstrip()[-1:] or before
        out.append(between)
        token = match.group()
        pos = match.end()
        if token == '"':
            if intact := _INTACT.match(source, match.start()):
                out.append(_whole_pairs(intact.group()))
                pos = intact.end()
            elif closing := (_CLOSING_VALUE if before == ":" else _CLOSING_ANY).search(source, pos):
                out.append(f'"{_escape(source[pos : closing.start()])}"')
                pos = closing.end()
            else:  # an open string stays as it is
                out.append(source[match.start() :])
                pos = len(source)
        elif token == ":":
            out.append(": null")
        elif token != ",":
            out.append(f'"{token}"' if token[0] == "0" else WORDS.get(token, "null"))
        before = token[0] if token in ",:" else "v"
    out.append(source[pos:])
    return "".join(out).encode()


def _whole_pairs(text: str) -> str:
    """The text without halves of surrogate pairs, which are no characters."""
    if "\\" not in text:
        return text
    return _SURROGATE.sub(lambda match: r"\ufffd" if match.group(1) else match.group(), text)


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
    return _whole_pairs("".join(out))
