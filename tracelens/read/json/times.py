"""Times as profilers write them, decimal microseconds, to whole nanoseconds without rounding."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import numpy as np

from tracelens.read.json.event import MISSING, Number

# Below this many microseconds a double holds every nanosecond: its spacing there is under 1 ns.
EXACT_BELOW_US = float(1 << 43)

# Whole numbers that JSON text gives exactly; a float may have been rounded to a whole number.
_EXACT_TYPES = {int, type(None)}
_MOST_DIGITS = 18


def exact_ns(text: str | bytes) -> int:
    """Microseconds as decimal text to whole nanoseconds, without floating point; MISSING if no number.

    >>> exact_ns("1712195495519689.047")
    1712195495519689047
    """
    digits = text if isinstance(text, str) else bytes(text).decode("ascii", "replace")
    digits = digits.strip().strip('"').strip()
    units, _, fraction = digits.partition(".")
    if len(fraction) <= 3 and len(units) < 19 and digits.isascii() and (units + fraction).isdigit() and units:
        value = int(units) * 1000 + int(fraction.ljust(3, "0"))
    else:
        try:
            number = Decimal(digits)
            if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
                return int(MISSING)
            value = int((number * 1000).to_integral_value())
        except InvalidOperation:
            return int(MISSING)
    return value if abs(value) < 1 << 62 else int(MISSING)


def nanoseconds(values: list[Number]) -> np.ndarray | None:
    """Times in microseconds to int64 nanoseconds, or None where that needs the exact text."""
    try:
        us = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    size = np.abs(us)
    if (size >= EXACT_BELOW_US).any() and not set(map(type, values)) <= _EXACT_TYPES:
        return None
    whole_us = np.floor(us)
    fraction = us - whole_us
    with np.errstate(invalid="ignore"):
        if (size >= 2.0**53).any():
            return None
        ns = whole_us.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64)
    return np.where(np.isfinite(us), ns, MISSING)
