"""Can this recording be trusted? What contradicts itself, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.common import NO_GPU
from tracelens.analysis.completeness.doubts import DOUBT_TABLE, DOUBTS, STRETCHES, Doubt
from tracelens.analysis.completeness.file import file_losses
from tracelens.analysis.completeness.graphs import missing_graph_kernels
from tracelens.analysis.completeness.holes import missing_work, waiting_at_the_end
from tracelens.analysis.completeness.launches import missing_kernels, missing_launches
from tracelens.analysis.completeness.order import clock, overlapping_kernels
from tracelens.analysis.completeness.ranks import RankRecord, between_ranks
from tracelens.analysis.completeness.recording import Recording
from tracelens.analysis.completeness.steps import steps
from tracelens.table import Result, Skip, result
from tracelens.trace import Trace, both

SHOWN = 1000
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


TABLES = {"doubts": DOUBT_TABLE, "stretches": STRETCHES}


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
    rows = np.sort(np.argsort(-dur, kind="stable")[:SHOWN]).tolist()
    return [
        {
            "rank": rank,
            "doubt": doubt.name,
            "local_ts_ns": int(doubt.where.start[row]),
            "dur_ns": int(dur[row]),
        }
        for row in rows
    ]
