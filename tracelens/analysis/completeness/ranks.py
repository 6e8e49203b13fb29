"""Ranks against each other: one that begins late, ends early, or whose clock fits none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.completeness.doubts import Doubt, milliseconds, nowhere, over

APART_NS = 100_000
"""Ends of collectives on GPUs of one clock are at most 15 us apart, the median, in all undamaged runs.

On CPUs, the scheduler of a busy machine ends them milliseconds apart.
"""

LEAST = 5
"""Collectives that tell whether a clock fits."""

LEAST_RANKS = 4
"""So many ranks that one of them can be the odd one."""

SHORT = 0.75
"""A step with less than this share of the kernels that the other ranks' steps lead to expect is short."""

LEAST_KERNELS = 50

LATE = 0.1
"""A rank that begins later than this share of the recorded time after another one lacks its beginning."""


@dataclass(frozen=True)
class RankRecord:
    """What one rank says of its recording.

    Attributes:
        rank: of the trace.
        origin: its first event, ns.
        recorded_ns: from its first to its last event.
        last_ns: end of its last GPU work.
        gpus: numbers of its GPUs on its machine.
        cpu_only: no GPU did its work.
        kernels: step label to number of pieces of GPU work.
        edges: step label to when it began and ended on the GPU.
        doubts: about this rank alone.
        unchecked: what could not be checked, and why.
    """

    rank: int
    origin: int
    recorded_ns: int
    last_ns: int
    gpus: Collection[int]
    cpu_only: bool
    kernels: Mapping[str, int]
    edges: Mapping[str, tuple[int, int]]
    doubts: Sequence[Doubt]
    unchecked: Mapping[str, str] = field(default_factory=dict)


def between_ranks(records: Sequence[RankRecord], aligned: AlignedRun) -> Iterator[tuple[int, Doubt]]:
    """(rank, doubt) of ranks that differ from the others."""
    if len(records) < 2:
        return
    late = dict(_late(records, aligned))
    yield from late.items()
    yield from _lacking_steps(records, late)
    yield from _short_steps(records)
    yield from _clocks(records, aligned)


def _lacking_steps(records: Sequence[RankRecord], late: Collection[int]) -> Iterator[tuple[int, Doubt]]:
    """Ranks without steps that most others have: all ranks of a job record the same steps."""
    ranks_with = Counter(label for record in records for label in record.kernels)
    common = [label for label, count in ranks_with.items() if 2 * count >= len(records)]
    for record in records:
        missing = [label for label in common if label not in record.kernels]
        before = [label for label in missing if _before_first(label, record, records)]
        after = [label for label in missing if label not in before]
        if not record.kernels and (record.rank in late or len(records) == 2):
            # Nothing says on which side its steps lie, nor which of two ranks is the odd one.
            after = []
        end = record.origin + record.recorded_ns
        for name, labels, where in (
            ("cut", before, over([record.origin], [record.origin])),
            ("ends early", after, over([min(record.last_ns, end)], [end])),
        ):
            if labels:
                evidence = (
                    f"lacks {', '.join(labels[:3])}, recorded on {ranks_with[labels[0]]} of "
                    f"{len(records)} ranks"
                )
                begins = "begins late: it " if name == "cut" else ""
                yield record.rank, Doubt(name, len(labels), f"it {begins}{evidence}", where)


def _before_first(label: str, record: RankRecord, records: Sequence[RankRecord]) -> bool:
    """Whether others have this step before the first one of the rank."""
    first = next(iter(record.kernels), None)
    for other in records:
        labels = list(other.kernels)
        if first in labels and label in labels:
            return labels.index(label) < labels.index(first)
    return False


def _late(records: Sequence[RankRecord], aligned: AlignedRun) -> Iterator[tuple[int, Doubt]]:
    """Ranks that begin long after another one has communicated, and took no part in that.

    A rank with all steps of the others lacks nothing: a slow one comes late to its first step as well.
    """
    labels = {label for record in records for label in record.kernels}
    begin = {record.rank: record.origin + aligned.shift.get(record.rank, 0) for record in records}
    typical = float(np.median([record.recorded_ns for record in records]))
    number = {rank.rank: len(rank.start) for rank in aligned.ranks}
    for record in records:
        if labels and labels <= record.kernels.keys():
            continue
        before = max(
            int((rank.end + aligned.shift.get(rank.rank, 0) <= begin[record.rank]).sum())
            for rank in aligned.ranks
        )
        late_ns = begin[record.rank] - min(begin.values())
        if late_ns > LATE * typical and before and number[record.rank] < max(number.values()):
            yield (
                record.rank,
                Doubt(
                    "cut",
                    before,
                    f"it begins {milliseconds(late_ns)} after the first rank, which had communicated "
                    f"{before:,} times by then",
                    over([record.origin], [record.origin]),
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
            expected_kernels = expected[row] * typical[column]
            if expected_kernels < LEAST_KERNELS:
                continue
            begin, end = record.edges[labels[column]]
            yield (
                record.rank,
                Doubt(
                    "short step",
                    1,
                    f"{labels[column]} has {counts[row, column]:,.0f} kernels; its other steps and the "
                    f"same step on other ranks suggest {expected_kernels:,.0f}",
                    over([begin], [end]),
                ),
            )


def _clocks(records: Sequence[RankRecord], aligned: AlignedRun) -> Iterator[tuple[int, Doubt]]:
    """Ranks whose collectives do not end with those of the others, whatever the offset of their clock.

    Ranks of one machine read one clock. Where machines have no names, ranks whose GPUs have different numbers
    are of one: alone on another machine, a rank would have the first GPU there.
    """
    with_gpus = {record.rank for record in records if not record.cpu_only}
    hosts = Counter(clock.host for clock in aligned.clocks)
    named = any(rank.host for rank in aligned.ranks)
    gpus = {gpu for record in records for gpu in record.gpus}
    one_machine = not named and len(gpus) == sum(len(record.gpus) for record in records) >= len(records)
    if one_machine and len(records) >= LEAST_RANKS and sorted(hosts.values())[:-1] == [1]:
        odd = next(clock for clock in aligned.clocks if hosts[clock.host] == 1)
        # Offsets count from the lowest rank, which may itself be the one that is off.
        apart = abs(odd.offset_ns or next(clock.offset_ns for clock in aligned.clocks if clock.offset_ns))
        yield (
            odd.rank,
            Doubt(
                "clock",
                odd.collectives,
                f"its clock is {milliseconds(apart)} off that of the other {len(records) - 1} ranks, "
                "which agree",
                nowhere(),
            ),
        )
    for clock in aligned.clocks:
        if clock.rank in with_gpus and clock.collectives >= LEAST and clock.residual_ns > APART_NS:
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
