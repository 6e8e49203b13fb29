"""Python source of what comes from a trace: literals, and calls of the functions that make inputs."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from tracelens.reproducers.inputs import Argument, Tensor
from tracelens.reproducers.scripts.outline import DATA

WIDTH = 110
_FEW = 5
_INDENT = "    "
_UNPRINTABLE = re.compile(r"[^ -~]")


class Source(NamedTuple):
    """Python source made of data.

    Attributes:
        text: as it stands in a script.
        outline: the same without the data, see outline.py: one expression, if nothing else is said.
    """

    text: str
    outline: str = DATA


def plain(text: str, most: int = WIDTH - len(f'{_INDENT}"",')) -> str:
    """Text of a trace for people to read: one line of printable ASCII, shortened in its middle."""
    clean = _UNPRINTABLE.sub("?", text)
    return clean if len(clean) <= most else f"{clean[: most - 33]}...{clean[-30:]}"


def about(texts: Sequence[str]) -> Source:
    """What a script says about itself: a list with one text a line."""
    items = "".join(f"{_INDENT}{literal(plain(text))},\n" for text in texts)
    return Source(f"[\n{items}]")


def in_graph(sources: Iterable[str]) -> list[str]:
    """What a script says of calls that graphs replay; `sources` are where these are recorded."""
    origins = {"capture": "its capture", "twin": "a run without graphs"}
    return [
        f"Replayed by a graph: op and arguments are those of {origins[source]}."
        for source in sources
        if source in origins
    ]


def timed(times_us: Sequence[float], devices: Sequence[str]) -> str:
    """Number of calls, their times and devices."""
    calls = "1 call" if len(times_us) == 1 else f"{len(times_us):,} calls"
    return (
        f"{calls} of {median(times_us):,.1f} us (median; {min(times_us):,.1f} to {max(times_us):,.1f}) on "
        f"{', '.join(devices) or 'an unknown device'}"
    )


def literal(value: Any) -> str:
    """Source of a text, number, None, or list or tuple of these; text becomes escaped ASCII."""
    if isinstance(value, str):
        escaped = value.encode("unicode_escape").decode("ascii").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, list | tuple):
        inner = ", ".join(map(literal, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    raise TypeError(f"no source for {type(value).__name__}")


def repeated(values: Sequence[int]) -> str:
    """Source of a list of numbers, short where all are the same."""
    if len(values) > 3 and len(set(values)) == 1:
        return f"[{values[0]}] * {len(values)}"
    return literal(list(values))


def code(argument: Argument) -> str:
    """Source of an argument."""
    if isinstance(argument, Tensor):
        if argument.maker == "number":
            return f"number({literal(argument.dtype)})"
        if argument.maker == "ends":
            return f"ends({literal(argument.dtype)}, {repeated(argument.maker_args[0])})"
        maker_args = (argument.dtype, argument.shape, argument.stride, *argument.maker_args)
        return f"{argument.maker}({', '.join(map(literal, maker_args))})"
    if isinstance(argument, list):
        items = [code(element) for element in argument]
        if len(items) > 1 and len(set(items)) == 1 and isinstance(argument[0], Tensor):
            return f"[{items[0]} for _ in range({len(items)})]"
        return f"[{', '.join(items)}]"
    return literal(argument)


def call_arguments(arguments: Sequence[Argument]) -> Source:
    """Source of the list of arguments of a call, in a statement with an indent of one."""
    items = "".join(f"{2 * _INDENT}{line}\n" for line in lines([code(argument) for argument in arguments], 8))
    return Source(f"[\n{items}{_INDENT}]")


def lines(items: Sequence[str], indent: int) -> list[str]:
    """Items of a list as lines, each with a comma behind it: tensors one a line if there are only a few."""
    wrapped_lines: list[str] = []
    for item in items:
        packed = len(items) > _FEW or "(" not in item + wrapped_lines[-1] if wrapped_lines else False
        if packed and len(wrapped_lines[-1]) + len(item) + 2 <= WIDTH - indent:
            wrapped_lines[-1] += f" {item},"
        else:
            wrapped_lines += textwrap.wrap(
                f"{item},", WIDTH - indent, subsequent_indent="    ", break_long_words=False
            )
    return wrapped_lines


def mapping(values: Mapping[str, float], taken: int) -> str:
    """Source of a dict of numbers above 0, to four digits or more; `taken`: columns in front of it."""
    rows = [""]
    for name, value in values.items():
        item = f"{literal(name)}: {f'{value:.0f}' if value >= 1e4 else f'{value:.4g}'}, "
        if taken + len(rows[-1]) + len(item) > WIDTH:
            taken = len(_INDENT)
            rows.append("")
        rows[-1] += item
    return "{" + f"\n{_INDENT}".join(row.rstrip() for row in rows).rstrip(",") + "}"
