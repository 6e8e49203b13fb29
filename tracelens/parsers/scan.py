"""Walking over JSON text without keeping what it says: where a value ends, where the event list ends.

Texts are decoded as latin-1, so that positions are byte offsets and invalid UTF-8 is no obstacle.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tracelens.parsers.repair import repair_text

BLANK = " \t\r\n"


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 4000 else float(digits)


# Numbers are not looked at: `int` refuses those of more than 4,300 digits.
_scan = json.JSONDecoder(parse_int=len, parse_float=len).raw_decode
_decode = json.JSONDecoder(parse_int=_integer).raw_decode
# What a truncated file ends with: an open string, part of a literal, a comma.
_CUT_OFF = re.compile(r'(?:"(?:[^"\\]|\\.?)*|t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\.|[eE][+-]?|,\s*)\Z')
_LISTS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]]')
_GOES_ON = re.compile(r"\s*[,}\]]")


def skip(source: str, pos: int, characters: str) -> int:
    """The first position from `pos` on that holds none of `characters`."""
    while pos < len(source) and source[pos] in characters:
        pos += 1
    return pos


def value_end(source: str, pos: int) -> int:
    """Where the JSON value at `pos` ends; -1 if none starts there or it is broken."""
    return _value(source, pos)[1]


def is_event(source: str, pos: int) -> bool:
    """Whether an intact object with a phase starts at `pos`: an event, as far as text can tell."""
    value, _ = _value(source, pos)
    return isinstance(value, dict) and "ph" in value


def _value(source: str, pos: int) -> tuple[Any, int]:
    try:
        return _scan(source, pos)
    except (ValueError, RecursionError):
        return None, -1


def ends_events(source: str, pos: int, stop: int, last: bool) -> bool:
    """Whether the bracket at `pos` may close the event list: only keys of the outer object follow.

    The same text inside a nested list goes on with a second closing bracket or with another event.

    Args:
        source: the text.
        pos: of the bracket.
        stop: where the text ends.
        last: whether the input ends there as well; otherwise the keys must go on behind `stop`.
    """
    rest = source[pos + 1 : stop].strip(BLANK + "\0")
    if not rest or rest[0] not in ",}":
        return last and not rest
    members = "{" + rest.removeprefix(",")
    try:
        _, end = _scan(members)
    except json.JSONDecodeError as error:
        if error.pos >= len(members) or (last and _CUT_OFF.match(members, error.pos)):
            return True
        members = repair_text(members.encode("latin-1")).decode("latin-1")
        end = value_end(members, 0)
    except RecursionError:
        return last
    behind = members[end:]
    return last and end > 0 and not _GOES_ON.match(behind) and '"ph"' not in behind


def inside_list(source: str, start: int, pos: int) -> bool:
    """Whether a list that begins behind `start` is still open at `pos`, as in an event that is cut off."""
    marks = [found.group() for found in _LISTS.finditer(source, start, pos)]
    return marks.count("[") > marks.count("]")


def first_value(text: str) -> tuple[Any, str]:
    """The JSON value at the start of `text`, and what follows it; raises ValueError or RecursionError."""
    value, end = _decode(text)
    return value, text[end:]
