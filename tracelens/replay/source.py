"""Python source: templates, and how what comes from a trace stands in them."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import median
from typing import TYPE_CHECKING, Any

from tracelens.replay.arguments import Argument, Tensor
from tracelens.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

WIDTH = 110
_FEW = 5
_INDENT = "    "
_SIMPLE = re.compile(r"[\w .,:;/()+*-]*", re.ASCII)
_UNPRINTABLE = re.compile(r"[^ -~]")


def render(template: str, /, **data: Any) -> str:
    """A script from a template; text of a trace goes in through `plain`, `literal` or `code` only."""
    return _environment().get_template(template).render(version=__version__, **data)


def plain(text: str) -> str:
    """Text for one line of a comment: printable ASCII, shortened in its middle."""
    clean = _UNPRINTABLE.sub("?", text)
    most = WIDTH - 2
    return clean if len(clean) <= most else f"{clean[: most - 33]}...{clean[-30:]}"


def timed(times_us: Sequence[float], devices: Sequence[str]) -> str:
    """How many calls there were, and how long they took where, for a comment."""
    calls = "1 call" if len(times_us) == 1 else f"{len(times_us):,} calls"
    return (
        f"{calls} of {median(times_us):,.1f} us (median; {min(times_us):,.1f} to {max(times_us):,.1f}) on "
        f"{', '.join(devices) or 'an unknown device'}"
    )


def literal(value: Any) -> str:
    """Source of a text, number, None, or list or tuple of these."""
    if isinstance(value, str):
        return f'"{value}"' if _SIMPLE.fullmatch(value) else ascii(value)
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
            return f"ends({literal(argument.dtype)}, {repeated(argument.given[0])})"
        given = (argument.dtype, argument.shape, argument.stride, *argument.given)
        return f"{argument.maker}({', '.join(map(literal, given))})"
    if isinstance(argument, list):
        items = [code(one) for one in argument]
        if len(items) > 1 and len(set(items)) == 1 and isinstance(argument[0], Tensor):
            return f"[{items[0]} for _ in range({len(items)})]"
        return f"[{', '.join(items)}]"
    return literal(argument)


def lines(items: Sequence[str], indent: int) -> list[str]:
    """Items of a list as lines, each with a comma behind it: tensors one a line if there are only a few."""
    found: list[str] = []
    for item in items:
        packed = len(items) > _FEW or "(" not in item + found[-1] if found else False
        if packed and len(found[-1]) + len(item) + 2 <= WIDTH - indent:
            found[-1] += f" {item},"
        else:
            found += textwrap.wrap(
                f"{item},", WIDTH - indent, subsequent_indent="    ", break_long_words=False
            )
    return found


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


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("tracelens.replay"),
        autoescape=False,  # Python, not HTML; see render
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    made.filters["plain"] = plain
    made.filters["literal"] = literal
    return made
