"""Reductions and gathers across hosts in one flat ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Float, Int
from tracelens.findings.detectors.detector import Confidence, Detection, Quantity, detector
from tracelens.findings.step_counts import in_steps, step_count
from tracelens.table import Result, Table, codes
from tracelens.trace import union
from tracelens.units import duration

# How often the message goes round the ring.
_ROUNDS = {"allreduce": 2, "all_reduce": 2, "reduce_scatter": 1, "allgather": 1, "all_gather": 1}
# Parts of kernel names of algorithms that keep to the host as far as they can already.
_NOT_FLAT = ("TREE", "NVLS", "COLLNET", "PAT")
# Bandwidth depends on the size: one of about this ratio tells it.
_ALIKE = 4


class _Collectives(NamedTuple):
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
    title="Collectives across hosts in one flat ring",
    remedy="Use a hierarchical algorithm: reduce-scatter within the host, all-reduce of each rank's part "
    "across hosts, all-gather within the host (NCCL_ALGO=Tree comes close; HSDP or "
    "--num-distributed-optimizer-instances for gradients; a custom all-reduce as DriveNets built for "
    "128 KiB to 8 MiB); keep tensor-parallel groups within a host.",
    needs=("collectives",),
)
def hierarchical_all_reduce(results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
    """All-reduce, reduce-scatter or all-gather over hosts with several ranks each, as one flat ring."""
    participants = results["collectives"].data["participants"]
    if not len(participants):
        return "no collective is recorded on several ranks"
    hosts = set(participants.texts("host"))
    if "" in hosts or len(hosts) == 1:
        return "the traces do not name their hosts" if "" in hosts else "all ranks are on one host"
    collectives = _collectives(participants)
    across = (collectives.hosts > 1) & (collectives.rounds > 0) & (collectives.bytes > 0)
    if not across.any():
        return "no fully recorded all-reduce, reduce-scatter or all-gather spans hosts"
    across &= collectives.even & (collectives.ranks > collectives.hosts)
    if not across.any():
        return "groups that span hosts have one rank per host, or unequal numbers"
    if not (across & collectives.flat).any():
        return "kernels across hosts are not flat rings by their names"
    across &= collectives.flat
    expected, inside_known = _expected(collectives, across)
    gain = np.where(across, np.maximum(1 - expected / np.maximum(collectives.latency, 1), 0), 0)
    if not gain.any():
        return "a hierarchical algorithm saves no time: the links within a host are too slow"
    steps = step_count(results)
    counted = in_steps(participants) & (collectives.of_row >= 0) & across[collectives.of_row]
    ranks = np.unique(participants.array("rank")[counted]).tolist()
    confidence: Confidence = "medium" if inside_known and collectives.ring[across].all() else "low"
    return {
        rank: _detection(
            participants,
            np.flatnonzero(counted & (participants.array("rank") == rank)),
            collectives,
            (gain, expected),
            steps,
            confidence,
        )
        for rank in ranks
    } or "none of them is in a step"


def _collectives(participants: Table) -> _Collectives:
    """The collectives in a table of members."""
    first, order, size, nbytes, dur = (
        participants.array(name) for name in ("first_rank", "order", "group_size", "bytes", "dur_ns")
    )
    texts = {name: np.array(participants.texts(name)) for name in ("group", "collective", "host", "kernel")}
    coded = {name: np.unique(values, return_inverse=True) for name, values in texts.items()}
    group, keys = codes(coded["group"][1], first, coded["collective"][1], order)
    count = len(keys[0])
    participant_count = np.bincount(group, minlength=count)
    host_cell, (of_cell, _) = codes(group, coded["host"][1])
    on_host = np.bincount(host_cell)
    hosts = np.bincount(of_cell, minlength=count)
    most = np.zeros(count, dtype=np.int64)
    np.maximum.at(most, of_cell, on_host)
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
    complete = (participant_count == ranks) & (ranks > 1)
    even = most * hosts == ranks
    return _Collectives(
        np.where(complete[group], group, -1),
        rounds[keys[2]],
        message,
        np.maximum(ranks, 1),
        np.where(complete, hosts, 0),
        even,
        latency,
        flat,
        ring,
    )


def _rounds(collective: str) -> int:
    return next((rounds for name, rounds in _ROUNDS.items() if name in collective), 0)


def _expected(collectives: _Collectives, across: Bool) -> tuple[Float, bool]:
    """Time of each collective as a hierarchy, ns, and whether the bandwidth within a host was measured.

    Each of H hosts sends rounds x (H-1)/H of the message instead of (n-1)/n, at the rate that the flat ring
    had; before and after, the ranks within a host move rounds x (L-1)/L of it, at the rate of collectives
    of about that size inside of one host in the same run. Without any such, that part is left out.
    """
    n, hosts = collectives.ranks, np.maximum(collectives.hosts, 1)
    local = n // hosts
    ratio = (hosts - 1) / hosts / np.maximum((n - 1) / n, 1e-9)
    expected = collectives.latency * ratio
    inside = np.flatnonzero((collectives.hosts == 1) & (collectives.rounds > 0) & (collectives.bytes > 0))
    rate, known = collectives.bus[inside], True
    for size in np.unique(collectives.bytes[across]).tolist():
        similar = (collectives.bytes[inside] * _ALIKE >= size) & (collectives.bytes[inside] <= size * _ALIKE)
        of_size = across & (collectives.bytes == size)
        if similar.any():
            best = float(rate[similar].max())
            expected[of_size] += (collectives.rounds * (local - 1) / local * collectives.bytes)[
                of_size
            ] / best
        else:
            known = False
    return expected, known


def _detection(
    participants: Table,
    rows: Int,
    collectives: _Collectives,
    model: tuple[Float, Float],
    steps: int,
    confidence: Confidence,
) -> Detection:
    """What one rank loses; `model`: share of its time that each collective saves, and ns that remain."""
    index = collectives.of_row[rows]
    gain, expected = (values[index] for values in model)
    exposed, wait = participants.array("exposed_ns")[rows], participants.array("wait_ns")[rows]
    start, dur = participants.array("local_ts_ns")[rows], participants.array("dur_ns")[rows]
    n, hosts, sent = (
        collectives.ranks[index],
        collectives.hosts[index],
        collectives.rounds[index] * collectives.bytes[index],
    )
    flat, levels = float((sent * (n - 1) / n).sum()), float((sent * (hosts - 1) / hosts).sum())
    latency = collectives.latency[index]
    rate = float(sent.dot((n - 1) / n) / max(int(latency.sum()), 1)) * 1e9
    lost = (exposed > 0) & (gain > 0)
    saving = float((gain * exposed).sum()) / steps
    return Detection(
        (
            Quantity("collectives per step", len(rows) / steps, "count"),
            Quantity("bus bandwidth", rate, "bytes/s"),
            Quantity("bytes a host sends, flat", flat / steps, "bytes"),
            Quantity("bytes a host sends, by levels", levels / steps, "bytes"),
            Quantity("time without waiting", float(latency.sum()) / steps, "ns"),
            Quantity("expected by levels", float(expected.sum()) / steps, "ns"),
            Quantity("hosts", float(hosts.max()), "count"),
        ),
        saving,
        union((start + wait)[lost], (start + dur)[lost]),
        f"{len(rows) / steps:,.0f} collectives per step across {hosts.max()} hosts with {(n // hosts).max()} "
        f"ranks each transfer for {duration(latency.sum() / steps)} at {rate / 1e9:,.2f} GB/s; "
        f"hierarchical, a host sends {levels / max(flat, 1):.0%} of the bytes: "
        f"{duration(expected.sum() / steps)} expected",
        confidence,
    )
