"""GEMMs whose operands a collective gathers, or whose results it reduces: the work of tensor parallelism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.comm import AlignedRun, MatchedCollective
from tracelens.analysis.roofline import costing
from tracelens.dtypes import element_bytes, short_dtype
from tracelens.planner.bounds.operations import Bound, gemm_seconds
from tracelens.planner.bounds.placement import link_bound
from tracelens.planner.bounds.platform import Platform
from tracelens.trace import WORK_KINDS, Run, Trace, collective_of
from tracelens.units import EXPLAIN_ABOVE

_GATHER = "all-gather + GEMM"
_REDUCE = {"reduce_scatter": "GEMM + reduce-scatter", "all_reduce": "GEMM + all-reduce"}


class Gemm(NamedTuple):
    """A GEMM of a rank: its kernels' first start and last end by the rank's clock, sizes, FLOPs and bytes."""

    start: int
    end: int
    m: int
    n: int
    k: int
    dtype: str
    flops: int
    moved: int

    @property
    def operands(self) -> tuple[int, int]:
        """Bytes of the two factors."""
        item = element_bytes(self.dtype)
        return self.m * self.k * item, self.k * self.n * item

    @property
    def result(self) -> int:
        """Bytes of the product, in the element type of the factors."""
        return self.m * self.n * element_bytes(self.dtype)


class Pair(NamedTuple):
    """A collective of a rank and the GEMM next to it."""

    operation: str
    collective: MatchedCollective
    gemm: Gemm


def pair_rows(
    run: Run, aligned: AlignedRun, node_of: Mapping[int, int], platform: Platform
) -> list[dict[str, Any]]:
    """Rows of PAIRS, by total time."""
    same: dict[tuple[str, str, str, str], list[Pair]] = {}
    for pair in pairs(run, aligned):
        gemm = pair.gemm
        shape = f"{gemm.m}x{gemm.n}x{gemm.k}"
        key = (pair.operation, pair.collective.group, shape, short_dtype(gemm.dtype))
        same.setdefault(key, []).append(pair)
    rows = [_row(key, of_key, node_of, platform) for key, of_key in same.items()]
    return sorted(rows, key=lambda row: -row["count"] * (row["gemm_dur_ns"] + row["latency_ns"]))


def _row(
    key: tuple[str, str, str, str], same: list[Pair], node_of: Mapping[int, int], platform: Platform
) -> dict[str, Any]:
    operation, group, shape, dtype = key
    gemm = same[0].gemm
    links = [link_bound(pair.collective, node_of, platform) for pair in same]
    limit = Bound(
        gemm_seconds(gemm.flops, gemm.dtype, platform),
        gemm.moved / platform.device.hbm_bytes_per_s,
        median(link.transfer_s for link in links if link is not None),
    )
    gemm_ns = float(median(pair.gemm.end - pair.gemm.start for pair in same))
    latency_ns = float(median(pair.collective.latency_ns for pair in same))
    achieved = limit.overlapped * 1e9 / max(gemm_ns + latency_ns, 1)
    return {
        "operation": operation,
        "group": group,
        "shape": shape,
        "dtype": dtype,
        "count": len(same),
        "gemm_dur_ns": gemm_ns,
        "latency_ns": latency_ns,
        "compute_ns": max(limit.gemm, limit.memory) * 1e9,
        "link_ns": limit.links * 1e9,
        "overlapped_ns": limit.overlapped * 1e9,
        "serial_ns": limit.serial * 1e9,
        "limited_by": limit.limit,
        "achieved": achieved,
        "note": above(achieved),
    }


def above(achieved: float) -> str:
    """Why an efficiency is above what the links allow."""
    return (
        "faster than these links: other rates, or reduced in the network" if achieved > EXPLAIN_ABOVE else ""
    )


def pairs(run: Run, aligned: AlignedRun) -> Iterator[Pair]:
    """The pairs of all ranks.

    A pair is told by its neighbourhood and its size: the first GEMM to start once an all-gather has ended,
    if one of its operands is as large as the gathered buffer, and the last GEMM to end before a
    reduce-scatter or all-reduce starts, if its result is as large as the message.
    """
    matched = {
        (participant.rank, participant.record.kernel): collective
        for collective in aligned.collectives
        for participant in collective.participants
    }
    communication = {rank.rank: rank for rank in aligned.ranks}
    for trace in run.traces:
        rank = communication[trace.meta.rank]
        multiplied = gemms(trace)
        starts = np.array([gemm.start for gemm in multiplied], dtype=np.int64)
        by_end = sorted(multiplied, key=lambda gemm: gemm.end)
        ends = np.array([gemm.end for gemm in by_end], dtype=np.int64)
        for record in rank.records:
            collective = matched.get((rank.rank, record.kernel))
            kind = collective_of(record.collective)
            if collective is None:
                continue
            if kind == "all_gather":
                following = int(np.searchsorted(starts, rank.end[record.kernel]))
                if following < len(multiplied) and record.received in multiplied[following].operands:
                    yield Pair(_GATHER, collective, multiplied[following])
            elif kind in _REDUCE:
                before = int(np.searchsorted(ends, rank.start[record.kernel], side="right")) - 1
                if before >= 0 and by_end[before].result == record.sent:
                    yield Pair(_REDUCE[kind], collective, by_end[before])


def gemms(trace: Trace) -> list[Gemm]:
    """The GEMMs of a rank with recorded sizes, by start."""
    work = trace.work
    counted = costing(trace, work)
    computes = work.kind == WORK_KINDS.index("computation")
    by_call: dict[int, Gemm] = {}
    for row in np.flatnonzero((counted.item >= 0) & computes).tolist():
        cost = counted.items[counted.item[row]].cost
        sizes = dict(cost.dims)
        if cost.engine != "matrix" or set(sizes) != {"M", "N", "K"}:
            continue
        call, start, end = int(counted.call[row]), int(work.start[row]), int(work.end[row])
        if call in by_call:
            by_call[call] = by_call[call]._replace(
                start=min(start, by_call[call].start), end=max(end, by_call[call].end)
            )
        else:
            moved = cost.read_bytes + cost.write_bytes
            by_call[call] = Gemm(
                start, end, sizes["M"], sizes["N"], sizes["K"], cost.dtype, cost.flops, moved
            )
    return sorted(by_call.values(), key=lambda gemm: gemm.start)
