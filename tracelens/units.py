"""Units of columns, and how amounts are written: times, bytes, rates, percentages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Unit = Literal[
    "", "ns", "bytes", "fraction", "ratio", "efficiency", "count", "flops", "flops/s", "bytes/s", "flops/byte"
]  # fmt: skip
"""A fraction lies in 0 to 1; a ratio may exceed 1; an efficiency is a share of what the hardware allows, and
beyond EXPLAIN_ABOVE stands with its reason. All three are shown as percentages."""

PERCENT = ("fraction", "ratio", "efficiency")

EXPLAIN_ABOVE = 1.05
"""An efficiency above this needs an explanation; clocks and rounding stay below."""

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
GB = 10**9


class Scale(Struct, frozen=True):
    """A multiple of a unit.

    Attributes:
        least: columns are written in it from this peak on.
        size: of one.
        name: 'ms'.
        decimals: in a column.
    """

    least: float
    size: float
    name: str
    decimals: int


SCALES: Mapping[str, tuple[Scale, ...]] = {
    # Columns of times switch at ten of the larger unit, so that their small values keep their digits.
    "ns": (Scale(1e10, 1e9, "s", 3), Scale(1e7, 1e6, "ms", 3), Scale(0, 1e3, "µs", 2)),
    "bytes": (
        Scale(TIB, TIB, "TiB", 2),
        Scale(GIB, GIB, "GiB", 2),
        Scale(MIB, MIB, "MiB", 2),
        Scale(KIB, KIB, "KiB", 2),
        Scale(0, 1, "B", 0),
    ),
    "bytes/s": (Scale(1e12, 1e12, "TB/s", 2), Scale(1e9, 1e9, "GB/s", 2), Scale(0, 1e6, "MB/s", 2)),
    "flops": (
        Scale(1e15, 1e15, "PFLOP", 2),
        Scale(1e12, 1e12, "TFLOP", 2),
        Scale(1e9, 1e9, "GFLOP", 2),
        Scale(0, 1e6, "MFLOP", 2),
    ),
    "flops/s": (
        Scale(1e15, 1e15, "PFLOP/s", 2),
        Scale(1e12, 1e12, "TFLOP/s", 1),
        Scale(0, 1e9, "GFLOP/s", 2),
    ),
    "flops/byte": (Scale(0, 1, "FLOP/B", 1),),
}
"""Unit to its multiples, largest first; other units have none."""


def scale_of(unit: str, peak: float) -> Scale:
    """The multiple in which a column with this largest magnitude is written."""
    return next(scale for scale in SCALES[unit] if peak >= scale.least)


def largest_scale(unit: str, value: float) -> Scale:
    """The largest multiple of which a single value is at least one."""
    return next((scale for scale in SCALES[unit] if abs(value) >= scale.size), SCALES[unit][-1])


def milliseconds(ns: float, decimals: int = 2, sign: str = "") -> str:
    """A time in milliseconds, whatever its size: '1,234.50 ms'."""
    return f"{ns / 1e6:{sign},.{decimals}f} ms"


def gib(size_bytes: float, decimals: int = 1) -> str:
    """A size in GiB: '64.0 GiB'."""
    return f"{size_bytes / GIB:,.{decimals}f} GiB"


def size_text(size_bytes: float) -> str:
    """A size in its largest unit, three digits: '128 KiB', '29.7 MiB'."""
    scale = largest_scale("bytes", size_bytes)
    value = size_bytes / scale.size
    return f"{value:.{three_digit_decimals(value) if value % 1 else 0}f} {scale.name}"


def three_digit_decimals(value: float) -> int:
    """How many decimals give a value three digits."""
    return max(3 - len(str(int(abs(value)))), 0)


def three_digits(value: float) -> str:
    """A count or rate to three digits: '18,200'."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"


def plural(count: float, noun: str) -> str:
    """A count with its noun: '1 step', '2 steps', of a mean with three digits '2.25 steps'."""
    text = f"{count:,}" if isinstance(count, int) else three_digits(count)
    return f"{text} {noun}{'' if text == '1' else 's'}"


def times(count: float) -> str:
    """How often: 'once', '2.25 times'."""
    text = three_digits(count)
    return "once" if text == "1" else f"{text} times"


def duration(ns: float) -> str:
    """A duration for a sentence, three digits.

    >>> duration(1_840_000)
    '1.84 ms'
    """
    for name, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            value = ns / size
            return f"{value:.{three_digit_decimals(value)}f} {name}"
    return f"{ns:.0f} ns"


def amount(value: float, unit: str) -> str:
    """A metric with its unit, four digits: '12.3 ms', '1.5 GiB', '31.2%', '1,966'."""
    if unit == "fraction":
        return f"{value:.2%}"
    if unit not in ("ns", "bytes"):
        return f"{value:,.6g}" if value % 1 else f"{value:,.0f}"
    scale = largest_scale(unit, value)
    return f"{value / scale.size:{'.0f' if scale.size == 1 else '.4g'}} {scale.name}"
