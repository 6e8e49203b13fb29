"""JSON text that may be broken: walking over it without keeping what it says, and mending an event.

Texts are walked over decoded as latin-1, so that positions are byte offsets and invalid UTF-8 is no obstacle.
Mended is what was seen in the wild: unescaped quotes, backslashes and control bytes in names, invalid UTF-8,
halves of surrogate pairs, bare `N/A`, `NaN`, `Infinity` and `None`, a missing value (`"k": ,`), trailing
commas.
"""

from __future__ import annotations

import json
import re
from typing import Any

_BETWEEN = re.compile(r"[ \t\r\n,]*+")

# Numbers are not looked at: `int` refuses those of more than 4,300 digits.
_scan = json.JSONDecoder(parse_int=len, parse_float=len).raw_decode
_decode = json.JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) < 4000 else float(digits)
).raw_decode
# What a truncated file ends with: an open string, part of a literal, a comma.
_CUT_OFF = re.compile(r'(?:"(?:[^"\\]++|\\.?)*+|t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\.|[eE][+-]?|,\s*)\Z')
_LISTS = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[\]]', re.DOTALL)
_GOES_ON = re.compile(r"\s*+[,}\]]")
# A key of the outer object, its end, or what a truncated file has of them.
_BEHIND_EVENTS = re.compile(
    r"[\s\0]*+(?:(?=(\}))|,[\s\0]*+(?=(\}|\Z|"
    r'"(?:[^"\\]++|\\.)*+(?:\Z|"[\s\0]*+(?::|\Z)))))',
    re.DOTALL,
)
_NOTHING = re.compile(r"[\s\0]*+\Z")
# Each character may be looked at again so often on average, and some more in a short text.
_AGAIN, _SOME = 16, 1 << 20
_MENDING = 4
"""Mending takes so many times as long as scanning."""
_WINDOW = 1 << 12
_DEEP = 1 << 12
"""Charged where the scanner does not say how far it came."""


class Text(str):
    """Text in which an error is found at no cost: JSONDecodeError counts the lines before its position."""

    def count(self, *_: Any) -> int:
        """Always 0: nobody reads the line numbers."""
        return 0

    def rfind(self, *_: Any) -> int:
        """Always -1, likewise for columns."""
        return -1


class Effort:
    """How many characters may be looked at again, so that hostile text cannot make the work quadratic.

    True as long as there are any left.
    """

    def __init__(self, size: int) -> None:
        self._left = _AGAIN * size + _SOME

    def __bool__(self) -> bool:
        return self._left > 0

    def spend(self, characters: int) -> None:
        """Count characters that were looked at."""
        self._left -= characters


class ListDepth:
    """Whether a list that begins behind `start` is still open further on, as in an event that is cut off.

    Asked at ascending positions.
    """

    def __init__(self, source: str, start: int, effort: Effort) -> None:
        self._source, self._pos, self._effort = source, start, effort
        self._depth = 0

    def inside_at(self, pos: int) -> bool:
        """Whether one is open at `pos`."""
        self._effort.spend(pos - self._pos)
        for match in _LISTS.finditer(self._source, self._pos, pos):
            token = match.group()
            if token[0] != '"':
                self._depth += 1 if token == "[" else -1
            elif match.end() == pos:  # a string that may go on behind
                self._pos = match.start()
                return self._depth > 0
        self._pos = pos
        return self._depth > 0


def skip(source: str, pos: int) -> int:
    """The first position from `pos` on that holds neither a blank nor a comma."""
    match = _BETWEEN.match(source, pos)
    return match.end() if match else pos


def value_end(source: Text, pos: int, effort: Effort | None = None) -> int:
    """Where the JSON value at `pos` ends; -1 if none starts there or it is broken.

    `effort` is charged for what is walked over in vain.
    """
    return _value(source, pos, effort)[1]


def is_event(source: Text, pos: int, effort: Effort | None = None) -> bool:
    """Whether an intact object with a phase starts at `pos`: an event, as far as text can tell."""
    value, end = _value(source, pos, effort)
    if effort is not None:
        effort.spend(max(end - pos, 0))
    return isinstance(value, dict) and "ph" in value


def _value(source: Text, pos: int, effort: Effort | None) -> tuple[Any, int]:
    try:
        return _scan(source, pos)
    except json.JSONDecodeError as error:
        walked = error.pos - pos
    except (ValueError, RecursionError):
        walked = _DEEP
    if effort is not None:
        effort.spend(walked)
    return None, -1


def ends_events(source: Text, pos: int, stop: int, last: bool, effort: Effort) -> bool:
    """Whether the bracket at `pos` may close the event list: only keys of the outer object follow.

    The same text inside a nested list goes on with a second closing bracket or with another event. `last`:
    the input ends at `stop`; otherwise the keys must go on there. `effort` is charged for the text behind.
    """
    follows = _BEHIND_EVENTS.match(source, pos + 1, stop)
    if follows is None:
        return last and _NOTHING.match(source, pos + 1, stop) is not None
    start, size = follows.start(follows.lastindex or 0), _WINDOW
    while effort:
        is_rest = start + size >= stop
        members = "{" + source[start : min(start + size, stop)]
        members = members.rstrip(" \t\r\n\0") if is_rest else members
        answer = _is_rest_of_object(Text(members), is_rest, last, effort)
        if answer is not None:
            return answer and source.find('"ph"', start + size, stop) < 0
        size *= 4
    return False


def _is_rest_of_object(members: Text, is_rest: bool, last: bool, effort: Effort) -> bool | None:
    """Whether an object goes on to the end of the input, or behind it; None where more text is needed."""
    try:
        _, end = _scan(members)
        effort.spend(end)
    except json.JSONDecodeError as error:
        effort.spend(error.pos)
        if error.pos >= len(members) or (last and _CUT_OFF.match(members, error.pos)):
            return True if is_rest else None
        if not last:
            return False
        effort.spend(_MENDING * len(members))
        members = Text(repair_text(members.encode("latin-1")).decode("latin-1"))
        end = value_end(members, 0)
        if end < 0:
            return False if is_rest else None
    except RecursionError:
        return last
    behind = members[end:]
    return last and not _GOES_ON.match(behind) and '"ph"' not in behind


def first_value(text: str) -> tuple[Any, str]:
    """The JSON value at the start of `text`, and what follows it; raises ValueError or RecursionError."""
    value, end = _decode(text)
    return value, text[end:]


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
