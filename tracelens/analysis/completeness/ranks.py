"""Ranks against each other: one whose recording ends before that of the others, or whose clock fits none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.completeness.doubts import Doubt, milliseconds, nowhere, over

APART_NS = 100_000
"""Ends of collectives on one clock are at most 15 us apart, the median, in all undamaged runs."""

LEAST = 5
"""Collectives that tell whether a clock fits."""

LEAST_RANKS, ONE_MACHINE = 4, 8
"""So many ranks that one of them can be the odd one, and are of one machine."""

SHORT = 0.75
"""A step with less than this share of the kernels that the other ranks' steps lead to expect is short."""

LEAST_KERNELS = 50


@dataclass(frozen=True)
class RankRecord:
    """What one rank says of its recording.

    Attributes:
        rank: of the trace.
        origin: its first event, ns.
        recorded_ns: from its first to its last event.
        last_ns: end of its last GPU work.
        kernels: step label to number of pieces of GPU work.
        edges: step label to when it began and ended on the GPU.
        doubts: about this rank alone.
        unchecked: what could not be checked, and why.
    """

    rank: int
    origin: int
    recorded_ns: int
    last_ns: int
    kernels: Mapping[str, int]
    edges: Mapping[str, tuple[int, int]]
    doubts: Sequence[Doubt]
    unchecked: Mapping[str, str] = field(default_factory=dict)


def between_ranks(records: Sequence[RankRecord], aligned: AlignedRun) -> Iterator[tuple[int, Doubt]]:
    """(rank, doubt) of ranks that differ from the others."""
    if len(records) < 2:
        return
    yield from _lacking_steps(records)
    yield from _short_steps(records)
    yield from _clocks(records, aligned)


def _lacking_steps(records: Sequence[RankRecord]) -> Iterator[tuple[int, Doubt]]:
    """Ranks without steps that most others have."""
    ranks_with = Counter(label for record in records for label in record.kernels)
    common = [label for label, count in ranks_with.items() if 2 * count > len(records)]
    for record in records:
        missing = [label for label in common if label not in record.kernels]
        if missing:
            end = record.origin + record.recorded_ns
            yield (
                record.rank,
                Doubt(
                    "ends early",
                    len(missing),
                    f"it has no {', '.join(missing[:3])}, as {ranks_with[missing[0]]} of {len(records)} do",
                    over([min(record.last_ns, end)], [end]),
                ),
            )


def _short_steps(records: Sequence[RankRecord]) -> Iterator[tuple[int, Doubt]]:
    """Steps with fewer kernels than the rank's other steps and the other ranks lead to expect."""
    labels = [label for label in records[0].kernels if all(label in record.kernels for record in records)]
    if len(labels) < 2:
        return
    counts = np.array([[record.kernels[label] for label in labels] for record in records], dtype=float)
    typical = np.maximum(np.median(counts, axis=0), 1)
    share = counts / typical
    expected = np.max(share, axis=1)
    for row, record in enumerate(records):
        for column in np.flatnonzero(share[row] < SHORT * expected[row]).tolist():
            wanted = expected[row] * typical[column]
            if wanted < LEAST_KERNELS:
                continue
            begin, end = record.edges[labels[column]]
            yield (
                record.rank,
                Doubt(
                    "short step",
                    1,
                    f"{labels[column]} has {counts[row, column]:,.0f} kernels; by its other steps and the "
                    f"same step of other ranks there should be {wanted:,.0f}",
                    over([begin], [end]),
                ),
            )


def _clocks(records: Sequence[RankRecord], aligned: AlignedRun) -> Iterator[tuple[int, Doubt]]:
    """Ranks whose collectives do not end with those of the others, whatever the offset of their clock.

    Ranks of one machine read one clock. Where machines have no names, and the ranks are no more than one
    machine has, a single rank that reads another clock than all the others is no other machine's.
    """
    known = {record.rank for record in records}
    hosts = Counter(clock.host for clock in aligned.clocks)
    named = any(rank.host for rank in aligned.ranks)
    if not named and LEAST_RANKS <= len(records) <= ONE_MACHINE and sorted(hosts.values())[:-1] == [1]:
        odd = next(clock for clock in aligned.clocks if hosts[clock.host] == 1)
        # Offsets count from the lowest rank, which may itself be the one that is off.
        apart = abs(odd.offset_ns or next(clock.offset_ns for clock in aligned.clocks if clock.offset_ns))
        yield (
            odd.rank,
            Doubt(
                "clock",
                odd.collectives,
                f"its clock is {milliseconds(apart)} apart from that of the other {len(records) - 1} ranks, "
                "which agree",
                nowhere(),
            ),
        )
    for clock in aligned.clocks:
        if clock.rank in known and clock.collectives >= LEAST and clock.residual_ns > APART_NS:
            yield (
                clock.rank,
                Doubt(
                    "clock",
                    clock.collectives,
                    f"its collectives end {milliseconds(clock.residual_ns)} apart from those of the other "
                    f"ranks, the median of {clock.collectives:,}",
                    nowhere(),
                ),
            )
