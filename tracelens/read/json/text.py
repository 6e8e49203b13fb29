"""Walking over JSON text that may be broken, without keeping what it says.

Texts are walked over decoded as latin-1, so that positions are byte offsets and invalid UTF-8 is no obstacle.
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
        from tracelens.read.json.mend import repair_text  # few traces are broken

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
