"""What the profiler and the reading of the file say themselves: records that were lost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracelens.analysis.completeness.doubts import Doubt, nowhere
from tracelens.analysis.completeness.recording import Recording

_TRUNCATED = re.compile(r"truncated|cut off|damaged", re.IGNORECASE)
SHARE = 0.0005
"""Up to this share of the events may be dropped by reading without a doubt."""


def file_losses(recording: Recording) -> Iterator[Doubt]:
    """Truncation of the file, events that could not be read, and losses that the profiler reports."""
    meta = recording.meta
    cut = [problem for problem in meta.problems if _TRUNCATED.search(problem)]
    if cut:
        yield Doubt("truncated", 1, "; ".join(cut), nowhere())
    dropped = sum(meta.dropped.values())
    if dropped > SHARE * meta.read:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in meta.dropped.items())
        yield Doubt(
            "dropped events", dropped, f"{dropped:,} of {meta.read:,} events not read: {reasons}", nowhere()
        )
    if meta.losses:
        yield Doubt("dropped events", len(meta.losses), "; ".join(meta.losses), nowhere())
