"""Mending what is wrong between and inside intact strings, for many events at once.

Bare words, missing values, trailing commas, bad escapes, control bytes and invalid UTF-8 leave quotes in
pairs, so that the structure of the text is known without walking over it token by token.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Int
from tracelens.read.json.repair import WORDS

_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair of surrogates is one character
    rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
    rb'|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
    rb"|\\"
)
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}\Z")
_WORD = re.compile(rb"0[xX][0-9a-fA-F]+|-?[A-Za-z_][\w/]*")
_VALID = (b"true", b"false", b"null")
_NO_CHARACTER = "\ufffd".encode()
_BLANKS = 64


def _bytes_mask(characters: bytes) -> Bool:
    mask = np.zeros(256, dtype=bool)
    mask[list(characters)] = True
    return mask


_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_IS_LETTER = _bytes_mask(_LETTERS)
_GOES_ON = _bytes_mask(_LETTERS + b"0123456789.+-")
_IS_BLANK = _bytes_mask(b" \t\r\n")
_CLOSES = _bytes_mask(b"}]")
_ENDS_VALUE = _bytes_mask(b",}]")
_FOLLOWS_STRING = _bytes_mask(b":,}]")
_NESTING = np.zeros(256, dtype=np.int64)
_NESTING[list(b"{[")] = 1
_NESTING[list(b"}]")] = -1


Edit = tuple[int, int, bytes]
"""Start and end of what is replaced, and by what."""


def mend_tokens(text: bytes) -> tuple[bytes, int]:
    """A JSON array of events with its broken tokens mended.

    Args:
        text: the array; strings whose quotes are broken make the answer useless, though not the call fail.

    Returns:
        (the mended text, number of events that were changed); the text need not be valid JSON.
    """
    edits: list[Edit] = []
    if not text.isascii():
        decoded = text.decode("utf-8", "replace").encode()
        if decoded != text:
            text = decoded
            edits += [(match.start(), match.start(), b"") for match in re.finditer(_NO_CHARACTER, text)]
    data = np.frombuffer(text, dtype=np.uint8)
    escapes, escaped_quotes = _escapes(text)
    quote = data == ord('"')
    quote[escaped_quotes] = False
    inside = (np.cumsum(quote, dtype=np.uint8) & 1).astype(bool)
    position = np.flatnonzero(~inside & ~_IS_BLANK[data])
    char = data[position]
    depth = np.cumsum(_NESTING[char])
    if inside[-1] or depth[-1] != 0 or ((char[:-1] == ord('"')) & ~_FOLLOWS_STRING[char[1:]]).any():
        return text, 0  # quotes or brackets are broken, too
    edits += escapes
    edits += [
        (offset, offset + 1, b"\\u%04x" % text[offset])
        for offset in np.flatnonzero(inside & (data < 0x20)).tolist()
    ]
    edits += _outside_strings(text, data, position)
    # Commas in the outermost list lie between events.
    borders = position[(char == ord(",")) & (depth == 1)]
    changed = np.unique(np.searchsorted(borders, [start for start, *_ in edits]))
    return _edited(text, edits), len(changed)


def follows_string(text: bytes, pos: int) -> bool:
    """Whether what stands at `pos` follows a string and must not: quotes are broken, beyond `mend_tokens`.

    All before `pos` is valid JSON.
    """
    before = text[max(pos - _BLANKS, 0) : max(pos, 0)].rstrip(b" \t\r\n")
    return before.endswith(b'"') and text[pos] >= 0x20 and text[pos] not in b":,}]\\"


def _escapes(text: bytes) -> tuple[list[Edit], list[int]]:
    """Edits of wrong escapes, and the places of quotes that do not end a string."""
    edits: list[Edit] = []
    quotes: list[int] = []
    if b"\\" in text:
        for match in _ESCAPE.finditer(text):
            escape = match.group()
            if escape == b"\\":
                edits.append((match.start(), match.end(), b"\\\\"))
            elif escape == b'\\"':
                quotes.append(match.start() + 1)
            elif len(escape) == 6 and _HALF_PAIR.match(escape):
                edits.append((*match.span(), b"\\ufffd"))
    return edits, quotes


def _outside_strings(text: bytes, data: NDArray[np.uint8], position: Int) -> list[Edit]:
    """Edits of commas, colons and words; `position` is of all that is neither blank nor in a string."""
    char = data[position]
    current, after = char[:-1], char[1:]
    trailing = position[:-1][(current == ord(",")) & _CLOSES[after]].tolist()
    missing = position[:-1][(current == ord(":")) & _ENDS_VALUE[after]].tolist()
    edits = [(start, start + 1, b"") for start in trailing]
    edits += [(start, start + 1, b": null") for start in missing]
    before = np.concatenate(([0], data[:-1]))[position]
    behind = np.concatenate((data[1:], [0]))[position]
    word = _IS_LETTER[char] | ((char == ord("-")) & _IS_LETTER[behind])
    word |= (char == ord("0")) & ((behind | 0x20) == ord("x"))
    for start in position[word & ~_GOES_ON[before]].tolist():
        match = _WORD.match(text, start)
        if match and match.group() not in _VALID:
            edits.append((*match.span(), _value(match.group())))
    return edits


def _value(word: bytes) -> bytes:
    """What a bare word stands for: a hexadecimal number is an id, most others are no value."""
    return b'"%s"' % word if word[:1] == b"0" else WORDS.get(word.decode(), "null").encode()


def _edited(text: bytes, edits: list[Edit]) -> bytes:
    parts: list[bytes] = []
    pos = 0
    for start, end, replacement in sorted(edits):
        if start >= pos:
            parts += (text[pos:start], replacement)
            pos = end
    return b"".join([*parts, text[pos:]])
