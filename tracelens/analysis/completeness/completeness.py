"""Can this recording be trusted? What contradicts itself, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.common import NO_GPU
from tracelens.analysis.completeness.doubts import (
    DOUBT_TABLE,
    DOUBTS,
    STRETCHES,
    Doubt,
    Recording,
    file_losses,
    milliseconds,
    nowhere,
    over,
)
from tracelens.analysis.completeness.one_rank import (
    SHORT_STEP_SHARE,
    clock,
    missing_graph_kernels,
    missing_kernels,
    missing_launches,
    missing_work,
    overlapping_kernels,
    steps,
    waiting_at_the_end,
)
from tracelens.table import Result, Skip, result
from tracelens.trace import Trace, both

STRETCHES_SHOWN = 1000
"""Stretches of one doubt about a rank; the longest are kept."""
HOST_ENDS = "without a GPU, each rank's scheduler decides when its share of a collective ends"
CHECKS = (
    file_losses,
    missing_kernels,
    missing_launches,
    missing_graph_kernels,
    missing_work,
    waiting_at_the_end,
    steps,
    clock,
    overlapping_kernels,
)

TABLES = {"doubts": DOUBT_TABLE, "stretches": STRETCHES}

ENDS_APART_NS = 100_000
"""Ends of collectives on GPUs of one clock are at most 15 us apart, the median, in all undamaged runs.

On CPUs, the scheduler of a busy machine ends them milliseconds apart.
"""
LEAST_COLLECTIVES = 5
"""Collectives that tell whether a clock fits."""
LEAST_RANKS = 4
"""So many ranks that one of them can be the odd one."""
LEAST_STEP_KERNELS = 50
LATE_START_SHARE = 0.1
"""A rank that begins later than this share of the recorded time after another one lacks its beginning."""


@dataclass(frozen=True)
class RankRecord:
    """What one rank says of its recording."""

    rank: int  # of the trace
    origin: int  # its first event, ns
    recorded_ns: int  # from its first to its last event
    last_ns: int  # end of its last GPU work
    gpus: Collection[int]  # numbers of its GPUs on its machine
    cpu_only: bool  # no GPU did its work
    kernels: Mapping[str, int]  # step label to number of pieces of GPU work
    edges: Mapping[str, tuple[int, int]]  # step label to when it began and ended on the GPU
    doubts: Sequence[Doubt]  # about this rank alone
    unchecked: Mapping[str, str] = field(default_factory=dict)  # what could not be checked, and why


def rank_record(trace: Trace) -> RankRecord:
    """What speaks against the recording of one rank, and what the comparison of ranks needs."""
    recording = Recording(trace)
    work, marked = recording.work, recording.steps
    checks = (file_losses,) if trace.meta.cpu_only else CHECKS
    unchecked = {"GPU work": NO_GPU, "ends of collectives": HOST_ENDS} if trace.meta.cpu_only else {}
    if len(work.event) and not trace.meta.cpu_only and not (recording.correlation[work.event] > 0).any():
        unchecked = {"launches and kernels": "neither carries a correlation id"}
    count = np.bincount(marked.of_work, minlength=len(marked.labels))
    whole = [*marked.whole] if marked.marked else []
    return RankRecord(
        rank=trace.meta.rank,
        origin=recording.origin,
        recorded_ns=recording.recorded_ns,
        last_ns=int(work.end.max(initial=recording.origin)),
        gpus=np.unique(work.device[work.device >= 0]).tolist(),
        cpu_only=trace.meta.cpu_only,
        kernels={marked.labels[step]: int(count[step]) for step in whole},
        edges={marked.labels[step]: (int(marked.edges[step]), int(marked.edges[step + 1])) for step in whole},
        doubts=[*chain.from_iterable(check(recording) for check in checks)],
        unchecked=unchecked,
    )


@analyzer(
    "completeness",
    title="Completeness of the recording",
    order=995,
    part=rank_record,
    shared=("aligned run",),
    tables=TABLES,
)
def completeness(records: Sequence[RankRecord], aligned: AlignedRun) -> Result:
    """Is anything missing from the recording or contradictory in it, and which figures does that affect?

    Everything is judged by the recording itself: launch calls by their kernels, steps, streams, graph replays
    and ranks by their siblings.

    Reading:
        No row means no sign of missing or contradictory data. `affects` names the figures that a doubt makes
        unreliable.

    Limits:
        What is missing in every step, stream and rank alike leaves no contradiction.

    Args:
        records: from `rank_record`.
        aligned: the run.

    Returns:
        tables `doubts`, most time first, and `stretches`, when they hold.
    """
    doubts = [(record.rank, doubt) for record in records for doubt in record.doubts]
    doubts += between_ranks(records, aligned)
    by_rank = {record.rank: record for record in records}
    merged = _merged(doubts)
    rows = [_row(by_rank[rank], doubt) for rank, doubt in merged]
    weight = list(DOUBTS)
    rows.sort(key=lambda row: (-row["dur_ns"], weight.index(row["doubt"]), row["rank"]))
    tables = {
        "doubts": DOUBT_TABLE.from_rows(rows),
        "stretches": STRETCHES.from_rows(list(chain.from_iterable(_stretches(*case) for case in merged))),
    }
    skips = [
        Skip(f"rank {record.rank}: {what}", why)
        for record in records
        for what, why in record.unchecked.items()
    ]
    doubted = {rank for rank, _ in merged}
    believed = [
        Skip(f"rank {record.rank}: doubts", "no sign of missing or contradictory data")
        for record in records
        if record.rank not in doubted and not record.unchecked
    ]
    return result(tables, [*believed, *skips])


def _merged(doubts: Sequence[tuple[int, Doubt]]) -> list[tuple[int, Doubt]]:
    """One doubt of each kind about each rank."""
    merged: dict[tuple[int, str], Doubt] = {}
    for rank, doubt in doubts:
        known = merged.get((rank, doubt.name))
        merged[rank, doubt.name] = doubt if known is None else _joined(known, doubt)
    return [(rank, doubt) for (rank, _), doubt in merged.items()]


def _joined(first: Doubt, other: Doubt) -> Doubt:
    evidence = "; ".join(dict.fromkeys((first.evidence, other.evidence)))
    return Doubt(first.name, first.count + other.count, evidence, both(first.where, other.where))


def _row(record: RankRecord, doubt: Doubt) -> dict[str, Any]:
    """A row of DOUBT_TABLE."""
    where, ts_ns = doubt.where, -1
    if len(where.start):
        ts_ns = max(int(where.start[np.argmax(where.end - where.start)]) - record.origin, 0)
    return {
        "rank": record.rank,
        "doubt": doubt.name,
        "dur_ns": where.total,
        "fraction": min(where.total / record.recorded_ns, 1.0),
        "count": doubt.count,
        "ts_ns": ts_ns,
        "evidence": doubt.evidence,
        "affects": DOUBTS[doubt.name].affects,
    }


def _stretches(rank: int, doubt: Doubt) -> list[dict[str, Any]]:
    """Rows of STRETCHES, the longest of a doubt in order of time."""
    dur = doubt.where.end - doubt.where.start
    rows = np.sort(np.argsort(-dur, kind="stable")[:STRETCHES_SHOWN]).tolist()
    return [
        {
            "rank": rank,
            "doubt": doubt.name,
            "local_ts_ns": int(doubt.where.start[row]),
            "dur_ns": int(dur[row]),
        }
        for row in rows
    ]


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
        if late_ns > LATE_START_SHARE * typical and before and number[record.rank] < max(number.values()):
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
        for column in np.flatnonzero(share[row] < SHORT_STEP_SHARE * expected[row]).tolist():
            expected_kernels = expected[row] * typical[column]
            if expected_kernels < LEAST_STEP_KERNELS:
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
    for reading in aligned.clocks:
        if (
            reading.rank in with_gpus
            and reading.collectives >= LEAST_COLLECTIVES
            and reading.residual_ns > ENDS_APART_NS
        ):
            yield (
                reading.rank,
                Doubt(
                    "clock",
                    reading.collectives,
                    f"its collectives end {milliseconds(reading.residual_ns)} apart from those of the other "
                    f"ranks, the median of {reading.collectives:,}",
                    nowhere(),
                ),
            )
