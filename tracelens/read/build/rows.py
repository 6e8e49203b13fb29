"""Which row of a table is which decoded event."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tracelens.arrays import Int
from tracelens.read.json import Columns


class EventRows(NamedTuple):
    """The events that become rows, and what happened to the others."""

    table: Columns
    source: Int
    dropped: Counter[str]
    first_drop: dict[str, int]
    repaired: Counter[str]
    kept: int
