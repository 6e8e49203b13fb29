"""The collectives of a recorded run against the speed of light of its links.

Which nodes the ranks of a group are on decides the least time of its collectives; a fit over message sizes
gives the run's own latency and bandwidth. A GEMM whose operand a collective gathers, or whose result it
reduces, is paired with it: the work of tensor parallelism.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV, AlignedRun, MatchedCollective, align_run, fit
from tracelens.analysis.common import own_device
from tracelens.analysis.roofline import costing
from tracelens.devices import Device
from tracelens.dtypes import element_bytes, short_dtype
from tracelens.errors import TracelensError
from tracelens.planner.bounds.model import TRACE_TABLES, Bound, Platform, assumed, gemm_seconds
from tracelens.planner.collectives import (
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    measured_time,
    pair_seconds,
    ring_seconds,
    traffic_seconds,
)
from tracelens.registry import purpose
from tracelens.table import Result, Skip
from tracelens.trace import WORK_KINDS, Run, Trace, collective_of
from tracelens.units import EXPLAIN_ABOVE

_STEPS = {"all_reduce": 2}
"""Least steps of a collective, where it is not one."""


class Place(NamedTuple):
    """A process group on its nodes."""

    ranks: int  # of the group
    nodes: int  # number of nodes
    near: int  # fewest ranks of the group on one of them


class LinkBound(NamedTuple):
    """Least time of a collective, seconds."""

    transfer_s: float  # its bytes over the busiest link
    latency_s: float  # of its steps
    between: bool  # whether the network is among its links
    measured_s: float  # as messages on the device were measured; -1: they were not

    @property
    def limit(self) -> str:
        """What it waits for most: links, network, or latency where the steps take longer than the bytes."""
        if self.latency_s > self.transfer_s:
            return "latency"
        return "network" if self.between else "links"


class Limited(NamedTuple):
    """A collective with its bound."""

    collective: MatchedCollective
    bound: LinkBound


_GATHER = "all-gather + GEMM"
_REDUCE = {"reduce_scatter": "GEMM + reduce-scatter", "all_reduce": "GEMM + all-reduce"}


class RecordedGemm(NamedTuple):
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
    gemm: RecordedGemm


def traced_device(run: Run) -> Device:
    """The device of all ranks; raises TracelensError where they have none, or several."""
    devices = {own_device(trace) for trace in run.traces}
    device = devices.pop() if len(devices) == 1 else None
    if device is None:
        names = sorted({name for trace in run.traces for name in trace.meta.devices.values()})
        reason = f"GPUs are {', '.join(names)}" if names else "no GPU is named"
        raise TracelensError(f"the traces do not name one known device ({reason}): pass --device")
    return device


def trace_bounds(run: Run, platform: Platform) -> Result:
    """How far are a run's collectives, and the GEMMs next to them, from the speed of light of its links?

    It takes all ranks of a job: waiting cannot be removed from those of one rank.

    Returns:
        tables `collectives` (by group and message size), `fit`, `pairs` (a GEMM and its collective) and
        `assumptions`.
    """
    aligned = align_run(run)
    node_of = node_numbers(aligned, platform)
    known, skips = limited(aligned, node_of, platform)
    fitted, fit_skips = fit_rows(known)
    pairs = pair_rows(run, aligned, node_of, platform)
    if not aligned.collectives:
        reason = "no collective is matched across ranks, which separates waiting from transfer"
        skips.append(Skip("collectives against their links", f"{reason}: pass the traces of all ranks"))
    elif not pairs:
        reason = "no all-gather, reduce-scatter or all-reduce has the size of a GEMM next to it"
        skips.append(Skip("GEMMs next to collectives", reason))
    rows = {
        "collectives": transfer_rows(known, node_of),
        "fit": fitted,
        "pairs": pairs,
        "assumptions": assumed(platform, tuple(dict.fromkeys(row["dtype"] for row in pairs))),
    }
    return Result(
        "trace_bounds",
        "Collectives against the speed of light",
        {name: TRACE_TABLES[name].from_rows(of_table) for name, of_table in rows.items() if of_table},
        doc=purpose(trace_bounds),
        skips=(*aligned.skips, *skips, *fit_skips),
        meta={"device": platform.device.name, "ranks": len(run.traces)},
        command="tracelens project bounds",
    )


def node_numbers(aligned: AlignedRun, platform: Platform) -> dict[int, int]:
    """Node of each rank: its host where the run has all ranks of its groups, else by the GPUs per node."""
    host = {clock.rank: clock.host for clock in aligned.clocks}
    grouped = {
        rank
        for communication in aligned.ranks
        for record in communication.records
        for rank in record.group_ranks
    }
    if grouped <= set(host):
        return host
    return {rank: rank // platform.gpus_per_node for rank in grouped | set(host)}


def place(collective: MatchedCollective, node_of: Mapping[int, int]) -> Place:
    """Where the group of a collective is."""
    record = collective.participants[0].record
    ranks = record.group_ranks or tuple(participant.rank for participant in collective.participants)
    if collective.collective == SEND_RECV:
        ranks = tuple(participant.rank for participant in collective.participants)
    on_node = Counter(node_of.get(rank, -1) for rank in ranks)
    return Place(len(ranks), len(on_node), min(on_node.values()))


def link_bound(
    collective: MatchedCollective, node_of: Mapping[int, int], platform: Platform
) -> LinkBound | None:
    """The least time of a collective on its links; None where its kind or size is not recorded.

    An all-to-all with recorded split sizes takes those; one without is taken as even.
    """
    size, kind = collective.bytes, collective_of(collective.collective)
    group = place(collective, node_of)
    if collective.collective == SEND_RECV:
        kind = "send_recv"
    if size <= 0 or group.ranks < 2 or kind in ("", "barrier"):
        return None
    rates, skew = platform.rates(), 1.0
    match kind:
        case "send_recv":
            transfer_s = pair_seconds(size, group.nodes == 1, rates)
        case "all_to_all":
            # The bound of the same message that the latency is of.
            if (matrices := collective.traffic) is None:
                transfer_s = all_to_all_seconds(collective.transfer.bytes, group.ranks, group.near, rates)
            else:
                ranks, sent, _ = matrices
                own = ranks.index(collective.transfer.rank)
                moved = np.maximum(sent.sum(axis=1), sent.sum(axis=0)) - np.diag(sent)
                skew = float(max(moved[own] / max(moved.mean(), 1), 1.0))
                of_rank = np.zeros_like(sent)
                of_rank[own], of_rank[:, own] = sent[own], sent[:, own]
                transfer_s = traffic_seconds(of_rank.tolist(), [node_of[rank] for rank in ranks], rates)
        case "all_reduce":
            nodes = max(group.ranks // group.near, 1)
            transfer_s = all_reduce_seconds(size, nodes, group.near, rates)
        case "broadcast":
            transfer_s = broadcast_seconds(size, group.nodes, group.near, rates)
        case _:
            transfer_s = ring_seconds(size, group.ranks, group.near, rates)
    step_ns = platform.link_step_ns if group.nodes == 1 else platform.nic_step_ns
    message = collective.transfer.bytes if kind == "all_to_all" else size
    measured = measured_time(kind, message, group.ranks, group.near, rates, skew)
    return LinkBound(
        transfer_s=transfer_s,
        latency_s=_STEPS.get(kind, 1) * step_ns / 1e9,
        between=group.nodes > 1,
        measured_s=measured.seconds if measured else -1.0,
    )


def limited(
    aligned: AlignedRun, node_of: Mapping[int, int], platform: Platform
) -> tuple[list[Limited], list[Skip]]:
    """The collectives with a bound, and why others have none."""
    known, unknown = [], dict[tuple[str, str], int]()
    for collective in aligned.collectives:
        bound = link_bound(collective, node_of, platform)
        if bound is None:
            key = (collective.collective, collective.group)
            unknown[key] = unknown.get(key, 0) + 1
        else:
            known.append(Limited(collective, bound))
    reason = "no message size is recorded, or nothing crosses a link"
    skips = [Skip(f"bound of {count} {name} in {group}", reason) for (name, group), count in unknown.items()]
    return known, skips


def transfer_rows(known: Sequence[Limited], node_of: Mapping[int, int]) -> list[dict[str, Any]]:
    """Rows of TRANSFERS, most time above the bound first."""
    same: dict[tuple[str, str, int], list[Limited]] = {}
    for item in known:
        size = item.collective.bytes
        key = (item.collective.collective, item.collective.group, 1 << size.bit_length() - 1)
        same.setdefault(key, []).append(item)
    rows: list[dict[str, Any]] = []
    for (name, group, bucket), of_key in same.items():
        where = place(of_key[0].collective, node_of)
        latencies = [item.collective.transfer.ns for item in of_key]
        bounds_ns = [item.bound.transfer_s * 1e9 for item in of_key]
        measured_s = [item.bound.measured_s for item in of_key]
        achieved = sum(bounds_ns) / max(sum(latencies), 1)
        rows.append(
            {
                "collective": name,
                "group": group,
                "from_bytes": bucket,
                "count": len(of_key),
                "ranks": where.ranks,
                "nodes": where.nodes,
                "latency_ns": float(median(latencies)),
                "bound_ns": median(bounds_ns),
                "measured_ns": -1.0 if min(measured_s) < 0 else median(measured_s) * 1e9,
                "achieved": achieved,
                "excess_ns": sum(latencies) - sum(bounds_ns),
                "limited_by": max(of_key, key=lambda item: item.collective.bytes).bound.limit,
                "note": above(achieved, name),
            }
        )
    return sorted(rows, key=lambda row: -row["excess_ns"])


def fit_rows(known: Sequence[Limited]) -> tuple[list[dict[str, Any]], list[Skip]]:
    """Rows of FITTED, and why a collective has none."""
    lines, skips = fit([item.collective for item in known])
    largest: dict[tuple[str, str], Limited] = {}
    for item in known:
        key = (item.collective.collective, item.collective.group)
        if key not in largest or item.collective.bytes > largest[key].collective.bytes:
            largest[key] = item
    rows = []
    for line in lines:
        name, group, beta = (line[column][0] for column in ("collective", "group", "beta_bytes_per_s"))
        item = largest[name, group]
        allowed = item.collective.transfer.bytes / item.bound.transfer_s
        rows.append(
            {
                "collective": name,
                "group": group,
                "collectives": line["collectives"][0],
                "alpha_ns": line["alpha_ns"][0],
                "beta_bytes_per_s": beta,
                "link_bytes_per_s": allowed,
                "achieved": beta / allowed,
                "note": above(beta / allowed, name),
            }
        )
    return rows, skips


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
    rows: list[dict[str, Any]] = []
    for (operation, group, shape, dtype), of_key in same.items():
        gemm = of_key[0].gemm
        links = [link_bound(pair.collective, node_of, platform) for pair in of_key]
        limit = Bound(
            gemm=gemm_seconds(gemm.flops, gemm.dtype, platform),
            memory=gemm.moved / platform.device.hbm_bytes_per_s,
            links=median(link.transfer_s for link in links if link is not None),
        )
        gemm_ns = float(median(pair.gemm.end - pair.gemm.start for pair in of_key))
        latency_ns = float(median(pair.collective.transfer.ns for pair in of_key))
        achieved = limit.overlapped * 1e9 / max(gemm_ns + latency_ns, 1)
        rows.append(
            {
                "operation": operation,
                "group": group,
                "shape": shape,
                "dtype": dtype,
                "count": len(of_key),
                "gemm_dur_ns": gemm_ns,
                "latency_ns": latency_ns,
                "compute_ns": max(limit.gemm, limit.memory) * 1e9,
                "link_ns": limit.links * 1e9,
                "overlapped_ns": limit.overlapped * 1e9,
                "serial_ns": limit.serial * 1e9,
                "limited_by": limit.limit,
                "achieved": achieved,
                "note": above(achieved, operation),
            }
        )
    return sorted(rows, key=lambda row: -row["count"] * (row["gemm_dur_ns"] + row["latency_ns"]))


def above(achieved: float, collective: str) -> str:
    """Why an efficiency is above what the links allow."""
    if achieved <= EXPLAIN_ABOVE:
        return ""
    in_network = ", or reduced in the network" if "reduce" in collective else ""
    return f"faster than these links: other rates{in_network}"


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


def gemms(trace: Trace) -> list[RecordedGemm]:
    """The GEMMs of a rank with recorded sizes, by start."""
    work = trace.work
    counted = costing(trace, work)
    computes = work.kind == WORK_KINDS.index("computation")
    by_call: dict[int, RecordedGemm] = {}
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
            by_call[call] = RecordedGemm(
                start=start,
                end=end,
                m=sizes["M"],
                n=sizes["N"],
                k=sizes["K"],
                dtype=cost.dtype,
                flops=cost.flops,
                moved=moved,
            )
    return sorted(by_call.values(), key=lambda gemm: gemm.start)
