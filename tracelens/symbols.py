"""Mangled C++ symbols (Itanium ABI) as far as a reader needs them.

torch's profiler demangles names by the C++ library. What is still mangled in a trace is what that library
could not read, such as new types, so it would not help to ask it again.
"""

from __future__ import annotations

import re
from functools import lru_cache

_LENGTH = re.compile(r"(\d{1,4})")
_FIRST_LENGTH = re.compile(r"(?:St|L)?(\d{1,4})")  # of a name in std, or of one file
_PIECE = re.compile(
    r"(?P<integer>L[a-z](?P<sign>n?)(?P<digits>\d+)E)|(?P<bf16>DF16b)|(?P<half>DF16_)|(?P<skip>[ST][0-9A-Z]*_)"
)
_ENUM, _ENUM_VALUE = re.compile(r"L(?=[NS\d])"), re.compile(r"E(n?\d+)E")
_BOOLEANS = {"Lb0E": "false", "Lb1E": "true"}
_SUFFIX = re.compile(r"(?: \[clone [^\]]*\]|\.kd)+$")
_MOST = 60
"""Template arguments that are kept."""


def qualified_name(symbol: str) -> tuple[str, str]:
    """(leading qualified name, what follows) of a mangled symbol: of `_ZN5aiter3addIfEEvv` `aiter::add`."""
    parts, position = _names(symbol, 3 if symbol.startswith("_ZN") else 2, _FIRST_LENGTH)
    return "::".join(parts), symbol[position:]


@lru_cache(maxsize=4096)
def demangled(symbol: str) -> str:
    """A symbol as readable text: its name, and the names and numbers among its template arguments.

    These stand one behind the other without their nesting. Text that is no mangled symbol stays as it is, but
    for what a compiler appends to names of kernels (`.kd`, `[clone ...]`).
    """
    text = _SUFFIX.sub("", symbol)
    if not text.startswith("_Z"):
        return text
    name, rest = qualified_name(text)
    if not name:
        return text
    arguments = _arguments(rest) if rest.startswith("I") else []
    return f"{name}<{', '.join(arguments)}>" if arguments else name


def _names(symbol: str, position: int, length: re.Pattern[str] = _LENGTH) -> tuple[list[str], int]:
    """(names that stand there one behind the other, where they end)."""
    parts: list[str] = []
    while match := length.match(symbol, position):
        position = match.end() + int(match[1])
        part = symbol[match.end() : position]
        if not part.startswith("_GLOBAL__N_"):
            parts.append(part)
    return parts, min(position, len(symbol))


def _arguments(rest: str) -> list[str]:
    arguments: list[str] = []
    position, in_enum = 0, False
    while position < len(rest) and len(arguments) < _MOST:
        names, behind = _names(rest, position)
        if in_enum and (value := _ENUM_VALUE.match(rest, position)):
            arguments.append(value[1].replace("n", "-"))
            position, in_enum = value.end(), False
        elif names:
            arguments.append("::".join(names))
            position = behind
        elif piece := _PIECE.match(rest, position):
            if piece["integer"]:
                number = f"{'-' if piece['sign'] else ''}{piece['digits']}"
                arguments.append(_BOOLEANS.get(piece["integer"], number))
            elif not piece["skip"]:
                arguments.append("bf16" if piece["bf16"] else "half")
            position = piece.end()
        elif _ENUM.match(rest, position):
            position, in_enum = position + 1, True
        else:
            position = behind + 1
    return arguments
