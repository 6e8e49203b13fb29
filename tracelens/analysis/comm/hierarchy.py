"""What a hierarchical algorithm would make of collectives across hosts that run as one flat ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm.matching import MatchedCollective
from tracelens.analysis.comm.records import RankCommunication
from tracelens.arrays import Bool, Float, Int
from tracelens.table import codes

# How often the message goes round the ring.
_ROUNDS = {"allreduce": 2, "all_reduce": 2, "reduce_scatter": 1, "allgather": 1, "all_gather": 1}
# Parts of kernel names of algorithms that keep to the host as far as they can already.
_NOT_FLAT = ("TREE", "NVLS", "COLLNET", "PAT")
# Bandwidth depends on the size: one of about this ratio tells it.
_ALIKE = 4


class HostSpans(NamedTuple):
    """Collectives and the hosts that they span, one element each.

    Attributes:
        rounds: how often the message goes round.
        bytes: of the message.
        ranks: in the group.
        hosts: that they are on; 0 where one of them has no name.
        even: whether there are as many ranks on each host.
        latency: shortest duration, ns.
        flat: whether the kernel's name does not say otherwise.
        ring: whether the kernel's name says that it is a ring.
    """

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

    @property
    def across(self) -> Bool:
        """Which are reductions or gathers over several hosts."""
        return (self.hosts > 1) & (self.rounds > 0) & (self.bytes > 0)

    @property
    def divisible(self) -> Bool:
        """Which of them have the same number of ranks on each host, and several."""
        return self.across & self.even & (self.ranks > self.hosts)

    def expected(self) -> tuple[Float, bool]:
        """Time of each as a hierarchy, ns, and whether the bandwidth within a host was measured.

        Each of H hosts sends rounds x (H-1)/H of the message instead of (n-1)/n, at the rate that the flat
        ring had; before and after, the ranks within a host move rounds x (L-1)/L of it, at the rate of
        collectives of about that size inside of one host in the same run. Without any such, that part is
        left out.
        """
        flat = self.divisible & self.flat
        n, hosts = self.ranks, np.maximum(self.hosts, 1)
        local = n // hosts
        ratio = (hosts - 1) / hosts / np.maximum((n - 1) / n, 1e-9)
        expected = self.latency * ratio
        inside = np.flatnonzero((self.hosts == 1) & (self.rounds > 0) & (self.bytes > 0))
        rate, known = self.bus[inside], True
        for size in np.unique(self.bytes[flat]).tolist():
            similar = (self.bytes[inside] * _ALIKE >= size) & (self.bytes[inside] <= size * _ALIKE)
            of_size = flat & (self.bytes == size)
            if similar.any():
                best = float(rate[similar].max())
                expected[of_size] += (self.rounds * (local - 1) / local * self.bytes)[of_size] / best
            else:
                known = False
        return expected, known

    def gain(self) -> Float:
        """Share of the time of each that a hierarchy saves; 0 where it saves none."""
        expected, _ = self.expected()
        saved = np.maximum(1 - expected / np.maximum(self.latency, 1), 0)
        return np.where(self.divisible & self.flat, saved, 0.0)

    def reason(self) -> str:
        """Why a hierarchy helps none of them; "" if it does."""
        if not self.across.any():
            return "no fully recorded all-reduce, reduce-scatter or all-gather spans hosts"
        if not self.divisible.any():
            return "groups that span hosts have one rank per host, or unequal numbers"
        if not (self.divisible & self.flat).any():
            return "kernels across hosts are not flat rings by their names"
        if not self.gain().any():
            return "a hierarchical algorithm saves no time: the links within a host are too slow"
        return ""


class Part(NamedTuple):
    """One rank's part in each of several collectives, one element a part.

    Attributes:
        number: of the collective.
        host: of the rank, "" if unknown.
        kernel: name of its kernel.
        bytes: of the message.
        dur: of the kernel, ns.
        size: ranks in the group.
    """

    number: Int
    host: Sequence[str]
    kernel: Sequence[str]
    bytes: Int
    dur: Int
    size: Int


def host_spans(parts: Part, names: Sequence[str]) -> HostSpans:
    """The hosts that collectives span; of those that not all ranks recorded, none.

    Args:
        parts: of all ranks.
        names: of the collectives, by number.
    """
    count, number = len(names), parts.number
    host = np.unique(np.array(parts.host, dtype=np.str_), return_inverse=True)[1].ravel()
    kernels, kernel = np.unique(np.array(parts.kernel, dtype=np.str_), return_inverse=True)
    host_cell, (of_cell, _) = codes(number, host)
    hosts = np.bincount(of_cell, minlength=count)
    most, ranks = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.maximum.at(most, of_cell, np.bincount(host_cell))
    np.maximum.at(ranks, number, parts.size)
    latency = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(latency, number, parts.dur)
    message = np.full(count, -1, dtype=np.int64)
    np.maximum.at(message, number, parts.bytes)
    flat, ring = np.ones(count, dtype=bool), np.ones(count, dtype=bool)
    upper = [name.upper() for name in kernels.tolist()]
    hierarchical = np.array([any(f"_{word}" in name for word in _NOT_FLAT) for name in upper], dtype=bool)
    is_ring = np.array(["_RING" in name for name in upper], dtype=bool)
    np.logical_and.at(flat, number, ~hierarchical[kernel.ravel()])
    np.logical_and.at(ring, number, is_ring[kernel.ravel()])
    complete = (np.bincount(number, minlength=count) == ranks) & (ranks > 1)
    return HostSpans(
        np.array([_rounds(name) for name in names], dtype=np.int64),
        message,
        np.maximum(ranks, 1),
        np.where(complete, hosts, 0),
        most * hosts == ranks,
        latency,
        flat,
        ring,
    )


def spans_of(ranks: Sequence[RankCommunication], collectives: Sequence[MatchedCollective]) -> HostSpans | str:
    """The hosts that matched collectives span, or why they are not known."""
    hosts = {rank.rank: rank.host for rank in ranks}
    kernels = {rank.rank: rank.kernels for rank in ranks}
    if "" in hosts.values() or len(set(hosts.values())) == 1:
        return "the traces do not name their hosts" if "" in hosts.values() else "all ranks are on one host"
    rows = [
        (
            number,
            hosts[part.rank],
            kernels[part.rank][part.record.kernel],
            part.record.bytes,
            part.end - part.start,
            part.record.size,
        )
        for number, collective in enumerate(collectives)
        for part in collective.participants
    ]
    if not rows:
        return "no collective is recorded on several ranks"
    number, host, kernel, size, dur, ranks_of = zip(*rows, strict=True)
    part = Part(np.array(number), host, kernel, np.array(size), np.array(dur), np.array(ranks_of))
    return host_spans(part, [collective.collective for collective in collectives])


def _rounds(name: str) -> int:
    return next((rounds for collective, rounds in _ROUNDS.items() if collective in name), 0)
