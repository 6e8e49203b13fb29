"""Device events of categories that are not known: their work cannot be told from a CPU-only trace's."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.errors import ParseError
from tracelens.read.build.rows import EventRows
from tracelens.read.json import Encoded
from tracelens.trace import EVENT_KINDS, GPU_KINDS


def unread_device_events(
    path: str,
    table: Encoded,
    rows: EventRows,
    kind: Int,
    kinds: Mapping[str, str],
    accelerators: re.Pattern[str],
) -> tuple[str, ...]:
    """What is not read of the devices, for people: one sentence a category.

    Args:
        path: the input as the user named it.
        table: as decoded.
        rows: its events.
        kind: code into EVENT_KINDS of each.
        kinds: the known categories.
        accelerators: how categories of accelerators begin.

    Raises:
        ParseError: nothing else in the trace is GPU work.
    """
    known = np.array([name.lower() in kinds for name in table.categories], dtype=bool)
    named = np.array([bool(accelerators.match(name.lower())) for name in table.categories], dtype=bool)
    category = rows.table.category
    # Kineto gives both to what a device did; accelerators' own profilers draw arrows with a category.
    on_stream = (rows.table.device >= 0) & (rows.table.stream >= 0) & ~known[category]
    has_ops = bool((kind == EVENT_KINDS.index("op")).any())
    counts = _counts(table.columns.category, named & ~known) if named.any() else {}
    counts |= _counts(category[on_stream & ~named[category]], ~known) if has_ops else {}
    if not counts:
        return ()
    unread = tuple(
        f"not read: {count:,} device event{'s' * (count != 1)} of category {table.categories[code]!r}"
        for code, count in counts.items()
    )
    if np.isin(kind, [EVENT_KINDS.index(name) for name in GPU_KINDS]).any():
        return unread
    raise ParseError(
        path,
        f"{'; '.join(unread)}, and nothing else in the trace is GPU work; export it with Kineto's categories "
        f"({', '.join(name for name, of in kinds.items() if of == 'kernel')}, gpu_memcpy, gpu_memset)",
    )


def _counts(category: Int, mask: Bool) -> dict[int, int]:
    """Number of events of each wanted category."""
    number = np.bincount(category[category >= 0], minlength=len(mask))
    return {code: int(number[code]) for code in np.flatnonzero(mask & (number > 0)).tolist()}
