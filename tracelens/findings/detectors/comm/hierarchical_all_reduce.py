"""Reductions and gathers over several hosts in one flat ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens.analysis.stragglers import duration
from tracelens.arrays import Bool, Float, Int
from tracelens.findings.detectors.detector import Confidence, Detection, Quantity, detector
from tracelens.findings.step_counts import in_steps, step_count
from tracelens.table import Result, Table, codes
from tracelens.trace import union

# How often the message goes round the ring.
_ROUNDS = {"allreduce": 2, "all_reduce": 2, "reduce_scatter": 1, "allgather": 1, "all_gather": 1}
# Parts of kernel names of algorithms that keep to the host as far as they can already.
_NOT_FLAT = ("TREE", "NVLS", "COLLNET", "PAT")
# Bandwidth depends on the size: one of about this ratio tells it.
_ALIKE = 4


class _Instances(NamedTuple):
    """Collectives of which all ranks are known, one element each.

    Attributes:
        of_row: place here of each row of the table of members, -1 for others.
        rounds: how often the message goes round.
        bytes: of the message.
        ranks: in the group.
        hosts: that they are on; 0 where one of them has no name.
        even: whether there are as many ranks on each host.
        latency: shortest duration, ns.
        flat: whether the kernel's name does not say otherwise.
        ring: whether the kernel's name says that it is a ring.
    """

    of_row: Int
    rounds: Int
    bytes: Int
    ranks: Int
    hosts: Int
    even: Bool
    latency: Int
    flat: Bool
    ring: Bool

    @property
    def bus(self) -> Float:
        """Bytes per ns over each link of the ring, as nccl-tests count it."""
        return self.rounds * (self.ranks - 1) / self.ranks * self.bytes / np.maximum(self.latency, 1)


@detector(
    "hierarchical_all_reduce",
    title="Collectives over several hosts in one flat ring",
    remedy="Go by levels: reduce-scatter inside the host, all-reduce of each rank's part across hosts, "
    "all-gather inside (NCCL_ALGO=Tree comes close; HSDP or "
    "--num-distributed-optimizer-instances for gradients; a custom all-reduce as DriveNets built for "
    "128 KiB to 8 MiB); keep tensor-parallel groups within a host.",
    needs=("collectives",),
)
def hierarchical_all_reduce(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """All-reduce, reduce-scatter or all-gather over hosts with several ranks each, as one flat ring."""
    members = results["collectives"].data["members"]
    if not len(members):
        return "no collective was recorded on several ranks"
    hosts = set(members.texts("host"))
    if "" in hosts or len(hosts) == 1:
        return "the traces do not name their hosts" if "" in hosts else "all ranks are on one host"
    found = _instances(members)
    across = (found.hosts > 1) & (found.rounds > 0) & (found.bytes > 0)
    if not across.any():
        return "no all-reduce, reduce-scatter or all-gather of which all ranks are known goes between hosts"
    across &= found.even & (found.ranks > found.hosts)
    if not across.any():
        return "the groups that go between hosts have one rank on each host, or not as many on each"
    if not (across & found.flat).any():
        return "the kernels between hosts are no flat rings by their names"
    across &= found.flat
    expected, inside_known = _expected(found, across)
    gain = np.where(across, np.maximum(1 - expected / np.maximum(found.latency, 1), 0), 0)
    if not gain.any():
        return "by levels they would take no less time: links inside a host are too slow for it"
    steps = step_count(results)
    counted = in_steps(members) & (found.of_row >= 0) & across[found.of_row]
    ranks = np.unique(members.array("rank")[counted]).tolist()
    confidence: Confidence = "medium" if inside_known and found.ring[across].all() else "low"
    return {
        rank: _signal(
            members,
            np.flatnonzero(counted & (members.array("rank") == rank)),
            found,
            (gain, expected),
            steps,
            confidence,
        )
        for rank in ranks
    } or "none of them is in a step"


def _instances(members: Table) -> _Instances:
    """The collectives in a table of members."""
    first, order, size, nbytes, dur = (
        members.array(name) for name in ("first_rank", "order", "group_size", "bytes", "dur_ns")
    )
    texts = {name: np.array(members.texts(name)) for name in ("group", "collective", "host", "kernel")}
    coded = {name: np.unique(some, return_inverse=True) for name, some in texts.items()}
    group, keys = codes(coded["group"][1], first, coded["collective"][1], order)
    count = len(keys[0])
    there = np.bincount(group, minlength=count)
    place, (of_place, _) = codes(group, coded["host"][1])
    on_host = np.bincount(place)
    hosts = np.bincount(of_place, minlength=count)
    most = np.zeros(count, dtype=np.int64)
    np.maximum.at(most, of_place, on_host)
    ranks = np.zeros(count, dtype=np.int64)
    np.maximum.at(ranks, group, size)
    latency = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(latency, group, dur)
    message = np.full(count, -1, dtype=np.int64)
    np.maximum.at(message, group, nbytes)
    rounds = np.array([_rounds(name) for name in coded["collective"][0].tolist()], dtype=np.int64)
    names = [name.upper() for name in coded["kernel"][0].tolist()]
    hierarchical = np.array([any(f"_{word}" in name for word in _NOT_FLAT) for name in names])
    is_ring = np.array(["_RING" in name for name in names])
    flat, ring = np.ones(count, dtype=bool), np.ones(count, dtype=bool)
    np.logical_and.at(flat, group, ~hierarchical[coded["kernel"][1]])
    np.logical_and.at(ring, group, is_ring[coded["kernel"][1]])
    whole = (there == ranks) & (ranks > 1)
    even = most * hosts == ranks
    return _Instances(
        np.where(whole[group], group, -1),
        rounds[keys[2]],
        message,
        np.maximum(ranks, 1),
        np.where(whole, hosts, 0),
        even,
        latency,
        flat,
        ring,
    )


def _rounds(collective: str) -> int:
    return next((rounds for name, rounds in _ROUNDS.items() if name in collective), 0)


def _expected(found: _Instances, across: Bool) -> tuple[Float, bool]:
    """What each instance would take by levels, ns, and whether the bandwidth inside a host was measured.

    Each of H hosts sends rounds x (H-1)/H of the message instead of (n-1)/n, at the rate that the flat ring
    had; before and after, the ranks inside a host exchange rounds x (L-1)/L of it, at the rate of collectives
    of about that size inside of one host in the same run. Without any such, that part is left out.
    """
    n, hosts = found.ranks, np.maximum(found.hosts, 1)
    local = n // hosts
    ratio = (hosts - 1) / hosts / np.maximum((n - 1) / n, 1e-9)
    expected = found.latency * ratio
    inside = np.flatnonzero((found.hosts == 1) & (found.rounds > 0) & (found.bytes > 0))
    rate, known = found.bus[inside], True
    for size in np.unique(found.bytes[across]).tolist():
        alike = (found.bytes[inside] * _ALIKE >= size) & (found.bytes[inside] <= size * _ALIKE)
        some = across & (found.bytes == size)
        if alike.any():
            best = float(rate[alike].max())
            expected[some] += (found.rounds * (local - 1) / local * found.bytes)[some] / best
        else:
            known = False
    return expected, known


def _signal(
    members: Table,
    rows: Int,
    found: _Instances,
    model: tuple[Float, Float],
    steps: int,
    confidence: Confidence,
) -> Detection:
    """What one rank loses; `model` is the share of its time that each instance wins, and what is left, ns."""
    at = found.of_row[rows]
    gain, expected = (some[at] for some in model)
    exposed, wait = members.array("exposed_ns")[rows], members.array("wait_ns")[rows]
    start, dur = members.array("own_ts_ns")[rows], members.array("dur_ns")[rows]
    n, hosts, sent = found.ranks[at], found.hosts[at], found.rounds[at] * found.bytes[at]
    flat, levels = float((sent * (n - 1) / n).sum()), float((sent * (hosts - 1) / hosts).sum())
    latency = found.latency[at]
    rate = float(sent.dot((n - 1) / n) / max(int(latency.sum()), 1)) * 1e9
    lost = (exposed > 0) & (gain > 0)
    saving = float((gain * exposed).sum()) / steps
    return Detection(
        (
            Quantity("collectives a step", len(rows) / steps, "count"),
            Quantity("bus bandwidth", rate, "bytes/s"),
            Quantity("bytes a host sends, flat", flat / steps, "bytes"),
            Quantity("bytes a host sends, by levels", levels / steps, "bytes"),
            Quantity("time without waiting", float(latency.sum()) / steps, "ns"),
            Quantity("expected by levels", float(expected.sum()) / steps, "ns"),
            Quantity("hosts", float(hosts.max()), "count"),
        ),
        saving,
        union((start + wait)[lost], (start + dur)[lost]),
        f"{len(rows) / steps:,.0f} collectives a step over {hosts.max()} hosts with {(n // hosts).max()} "
        f"ranks each move data for {duration(latency.sum() / steps)} at {rate / 1e9:,.2f} GB/s; by levels a "
        f"host sends {levels / max(flat, 1):.0%} of the bytes: {duration(expected.sum() / steps)} expected",
        confidence,
    )
