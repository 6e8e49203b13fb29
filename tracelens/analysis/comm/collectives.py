"""Collectives matched across ranks: waiting and moving data, messages, bandwidths, hierarchies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm.aligned import AlignedRun, MatchedCollective, Participant, waits_caused
from tracelens.analysis.comm.records import NO_COMMUNICATION, RankCommunication
from tracelens.arrays import Bool, Float, Int, median, unique
from tracelens.devices import bus_factor
from tracelens.dtypes import short_dtype
from tracelens.table import RANK, STEP, Column, Result, Schema, Skip, codes, result
from tracelens.trace import Scope

_NAMED = Column("collective", "category", doc="as the trace names it; send/recv: a send with its receive")
_GROUP = Column("group", "category", doc="process group")
_GROUP_RANKS = Column("group", "category", doc="process group: what it is for, and its ranks")
_ORDER = Column("order", "int64", "count", "position among the collectives of the group")
_GROUP_SIZE = Column("group_size", "int64", "count", "ranks in the process group")
_DESCRIPTION = Column("description", "category", doc="the program's name for the group")
_BUSBW = Column(
    "busbw_bytes_per_s", "float64", "bytes/s", "algbw x share of the data that crosses links", absent=-1
)
COLLECTIVES = Schema(
    "Collectives across ranks",
    (
        Column("collective", "category", doc="as recorded; send/recv: a send with its receive"),
        _GROUP_RANKS,
        _ORDER,
        Column("ranks", "int64", "count", "ranks that recorded it"),
        Column(
            "bytes",
            "int64",
            "bytes",
            "largest message of any rank; for all-gather the whole buffer",
            absent=-1,
        ),
        Column("latency_ns", "int64", "ns", "shortest duration: the last rank to arrive does not wait"),
        Column("start_skew_ns", "int64", "ns", "last start - first start"),
        Column("end_skew_ns", "int64", "ns", "last end - first end"),
        Column(
            "algbw_bytes_per_s",
            "float64",
            "bytes/s",
            "bytes / latency; of an uneven all-to-all those of the rank that moved most per time, to "
            "send, or to receive since its first sender arrived",
            absent=-1,
        ),
        _BUSBW,
        Column("last_rank", "int64", doc="last to arrive"),
        Column("step", "category", doc="step in which the lowest rank launched it"),
        Column("dtype", "category", doc="element type"),
        _GROUP_SIZE,
        _DESCRIPTION,
        Column("group_name", "category", doc="the program's identifier for it, often a number"),
        Column("ts_ns", "int64", "ns", "first start, by the clock of the first rank"),
    ),
    doc="Bandwidths in decimal units, by the conventions of nccl-tests.",
)
CLOCKS = Schema(
    "Clocks",
    (
        RANK,
        Column("host", "int64", doc="ranks of one host share a clock"),
        Column("offset_ns", "int64", "ns", "relative to the first host; already subtracted from all times"),
        Column(
            "residual_ns",
            "int64",
            "ns",
            "median spread of a collective's ends after that; missing: not measured",
            absent=-1,
        ),
        Column("collectives", "int64", "count", "collectives used for the estimate"),
    ),
    doc="Estimated from the ends of collectives, which all ranks reach almost simultaneously.",
)

RANKS = Schema(
    "Communication of each rank",
    (
        RANK,
        Column("kernel_ns", "int64", "ns", "time of all communication kernels = comm + wait"),
        Column("comm_ns", "int64", "ns", "part transferring"),
        Column(
            "wait_ns",
            "int64",
            "ns",
            "part waiting for ranks that arrived later; missing: no collective matched",
            absent=-1,
        ),
        Column("wait_fraction", "float64", "fraction", "wait / kernel", absent=-1),
        Column("exposed_ns", "int64", "ns", "exposed: the GPU computes nothing at that time"),
        Column("unmatched_ns", "int64", "ns", "part of comm: kernels without a matched collective"),
        Column("kernels", "int64", "count", "communication kernels"),
        Column("last_arrivals", "int64", "count", "collectives at which this rank arrived last", absent=-1),
        Column(
            "others_wait_ns", "int64", "ns", "waiting of all other ranks while this one was last", absent=-1
        ),
    ),
    doc="A kernel waits until the last rank of its collective arrives, then transfers data.",
)
SUMMARY = Schema(
    "By group, collective and size",
    (
        _NAMED,
        _GROUP,
        Column(
            "from_bytes",
            "int64",
            "bytes",
            "message sizes from this up to twice as much; missing: not recorded",
            absent=-1,
        ),
        Column("count", "int64", "count", "collectives"),
        Column("kernel_ns", "int64", "ns", "time of the kernels of all ranks = comm + wait"),
        Column("comm_ns", "int64", "ns", "part transferring"),
        Column("wait_ns", "int64", "ns", "part waiting for ranks that arrived later"),
        Column("wait_fraction", "float64", "fraction", "wait / kernel"),
        Column("latency_median_ns", "float64", "ns", "median duration on the last rank to arrive"),
        Column("start_skew_median_ns", "float64", "ns", "median of last start - first start"),
        Column("end_skew_median_ns", "float64", "ns", "median of last end - first end"),
        Column("algbw_bytes_per_s", "float64", "bytes/s", "total bytes / total latency", absent=-1),
        _BUSBW,
        _GROUP_SIZE,
        _DESCRIPTION,
    ),
    doc="By power-of-two message size, without waiting: latency is that of the last rank to arrive. "
    "Kernels that serve several sends and receives count once for each.",
)

PARTICIPANTS = Schema(
    "Collectives by rank",
    (
        RANK,
        Column("host", "category", doc="the rank's host, '' where not recorded"),
        _NAMED,
        _GROUP_RANKS,
        Column(
            "first_rank",
            "int64",
            doc="lowest rank of the group in the run; identifies groups of the same name",
        ),
        Column("group_name", "category", doc="by which the program knows the group, often a number"),
        _ORDER,
        STEP,
        Column("kernel", "category", doc="communication kernel on this rank"),
        Column(
            "bytes",
            "int64",
            "bytes",
            "largest message of any rank, as in `collectives`; missing if unknown",
            absent=-1,
        ),
        _GROUP_SIZE,
        Column("local_ts_ns", "int64", "ns", "start of the kernel, by the clock of the rank's own trace"),
        Column("ts_ns", "int64", "ns", "the same by the clock of the first rank"),
        Column("dur_ns", "int64", "ns", "duration of the kernel"),
        Column("wait_ns", "int64", "ns", "part waiting, until the last rank arrived"),
        Column(
            "exposed_ns",
            "int64",
            "ns",
            "part transferring and exposed: the GPU computes nothing at that time",
        ),
    ),
    detail=True,
    key=(),
)

ALL_TO_ALL = Schema(
    "All-to-alls",
    (
        _GROUP,
        _ORDER,
        Column("bytes", "int64", "bytes", "sent by all ranks, including data that stays on its rank"),
        Column("wall_ns", "int64", "ns", "first start to last end"),
        Column("throughput_bytes_per_s", "float64", "bytes/s", "bytes / wall time"),
        Column("largest_rank", "int64", doc="rank that receives most"),
        Column("imbalance", "float64", "ratio", "largest / mean bytes received"),
    ),
    detail=True,
)
TRAFFIC = Schema(
    "Bytes from rank to rank",
    (
        _GROUP,
        Column("from_rank", "int64", doc="rank that sends"),
        Column("to_rank", "int64", doc="rank that receives; the same for data that stays"),
        Column("count", "int64", "count", "all-to-alls"),
        Column("sent_bytes", "int64", "bytes", "by the sender's record"),
        Column("received_bytes", "int64", "bytes", "by the receiver's record"),
    ),
    doc="Sums over all all-to-alls with recorded split sizes.",
    detail=True,
)
FIT = Schema(
    "Latency and bandwidth",
    (
        _NAMED,
        _GROUP,
        Column("collectives", "int64", "count", "collectives behind the fit"),
        Column("alpha_ns", "float64", "ns", "latency of an empty message"),
        Column("beta_bytes_per_s", "float64", "bytes/s", "asymptotic bandwidth"),
        Column("residual_ns", "float64", "ns", "RMS residual of the fit"),
    ),
    doc="Least-squares fit of latency = alpha + bytes / beta with alpha >= 0, per group and collective.",
)

TABLES = {
    "ranks": RANKS,
    "summary": SUMMARY,
    "collectives": COLLECTIVES,
    "fit": FIT,
    "all_to_all": ALL_TO_ALL,
    "traffic": TRAFFIC,
    "clocks": CLOCKS,
    "participants": PARTICIPANTS,
}


# How often the message goes round the ring.
_ROUNDS = {"allreduce": 2, "all_reduce": 2, "reduce_scatter": 1, "allgather": 1, "all_gather": 1}
# Parts of kernel names of algorithms that keep to the host as far as they can already.
_NOT_FLAT = ("TREE", "NVLS", "COLLNET", "PAT")
# Bandwidth depends on the message size: that of a size within this ratio stands for it.
_ALIKE_SIZE_RATIO = 4


class _Share(Struct, frozen=True):
    """One rank's share of a collective."""

    collective: MatchedCollective
    participant: Participant
    first: int  # lowest rank
    size: int  # bytes
    wait: int  # of this rank, ns


@analyzer(
    "collectives",
    title="Collectives and waiting",
    order=80,
    shared=("aligned run",),
    tables=TABLES,
    sums_steps=True,
)
def collectives(aligned: AlignedRun, *, scope: Scope = "all") -> Result:
    """Which ranks wait for which in communication, and how fast does data move once all have arrived?

    A collective's kernel runs from the rank's own arrival to completion: time before the last rank arrives
    is waiting (synchronization), the rest is communication.

    Reading:
        Split the kernel time first: waiting (sync) calls for `stragglers`, transfer (comm) for a look at
        `summary` and its bandwidths. `others_wait_ns` says whom the others wait for.

    Limits:
        Waiting needs the traces of all ranks of a group; of those that are missing, one may have arrived
        still later. Custom all-reduces of vLLM, SGLang and AITER have no recorded group: they are matched if
        they span all ranks of the job and no graph replays them.

    Args:
        aligned: the run.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `ranks` (kernel = comm + wait), `summary`, `collectives`, `fit`, `all_to_all`, `traffic`,
        `clocks` and `participants` (each collective by rank).
    """
    ranks, on_one_clock = aligned.ranks, aligned.collectives
    communicating = {rank.rank for rank in ranks if len(rank.start)}
    compared_clocks = [
        clock if clock.collectives else clock._replace(residual_ns=-1)  # nothing was compared
        for clock in aligned.clocks
        if clock.rank in communicating and len(ranks) > 1
    ]
    rows = []
    for collective in on_one_clock:
        record, transfer = collective.participants[0].record, collective.transfer
        rate = transfer.bytes / max(transfer.ns, 1) * 1e9 if collective.bytes >= 0 else -1.0
        rows.append(
            {
                "collective": [collective.collective],
                "group": [collective.group],
                "description": [record.description],
                "group_name": [record.group],
                "order": [collective.order],
                "ranks": [len(collective.participants)],
                "group_size": [record.size],
                "dtype": [short_dtype(record.dtype)],
                "bytes": [collective.bytes],
                "ts_ns": [collective.start],
                "latency_ns": [collective.latency_ns],
                "start_skew_ns": [collective.start_skew_ns],
                "end_skew_ns": [collective.end_skew_ns],
                "algbw_bytes_per_s": [rate],
                "busbw_bytes_per_s": [_busbw(rate, collective.collective, record.size)],
                "last_rank": [collective.last.rank],
                "step": [record.step],
            }
        )
    traffic_rows, traffic_skips = traffic(on_one_clock)
    fit_rows, fit_skips = fit(on_one_clock)
    tables = {
        "ranks": RANKS.concat(rank_rows(ranks, on_one_clock)),
        "summary": SUMMARY.concat(summary_rows(on_one_clock)),
        "collectives": COLLECTIVES.concat(rows),
        "fit": FIT.concat(fit_rows),
        "all_to_all": ALL_TO_ALL.concat(all_to_all(on_one_clock)),
        "traffic": TRAFFIC.concat(traffic_rows),
        "clocks": CLOCKS.concat(
            [{name: [value] for name, value in clock._asdict().items()} for clock in compared_clocks]
        ),
        "participants": PARTICIPANTS.concat(participant_rows(ranks, on_one_clock)),
    }
    # Ranks, kernels, clocks and collectives of which the waiting is not known, or not all of it.
    silent = [rank.rank for rank in ranks if not len(rank.start)]
    skips = [Skip(f"rank {rank}", NO_COMMUNICATION) for rank in silent]
    for rank in ranks:
        unrecorded = len(rank.start) - len({record.kernel for record in rank.records})
        if unrecorded:
            subject = f"rank {rank.rank}: waiting in {unrecorded} communication kernel(s)"
            skips.append(Skip(subject, "the trace does not record their group, size and order"))
    if any(clock.collectives for clock in aligned.clocks):
        reason = "no collective shared with rank 0's host, so its offset is unknown"
        unknown = [clock for clock in aligned.clocks if not clock.collectives and clock.rank not in silent]
        skips += [Skip(f"clock of rank {clock.rank}", reason) for clock in unknown]
    incomplete = sum(
        len(collective.participants) < collective.participants[0].record.size for collective in on_one_clock
    )
    if incomplete:
        reason = "some ranks of the group are not in the run and may have arrived later"
        skips.append(Skip(f"all waiting in {incomplete} collective(s)", reason))
    return result(tables, [*aligned.skips, *skips, *traffic_skips, *fit_skips], scope=scope)


def rank_rows(
    ranks: Sequence[RankCommunication], collectives: Sequence[MatchedCollective]
) -> list[dict[str, Any]]:
    """Rows of RANKS, one a rank with communication, from collectives by one clock.

    A kernel of several sends and receives waits until the last of all its partners is there.
    """
    sync_ns: dict[tuple[int, int], int] = {}  # of each rank and kernel with a matched collective
    last: Counter[int] = Counter()  # rank to number of collectives at which it arrived last
    caused: Counter[int] = Counter()  # rank to what the others waited for it there, ns
    for collective, wait_ns in zip(collectives, waits_caused(collectives), strict=True):
        latest, wait = collective.last.rank, collective.wait_ns
        last[latest] += 1
        caused[latest] += wait_ns
        for participant in collective.participants:
            key = (participant.rank, participant.record.kernel)
            sync_ns[key] = max(sync_ns.get(key, 0), wait[participant.rank])
    rows = []
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        if not len(rank.start):
            continue
        dur = (rank.end - rank.start).tolist()
        kernel = sum(dur)
        waits_ns = [sync_ns.get((rank.rank, number)) for number in range(len(dur))]
        sync = sum(wait or 0 for wait in waits_ns)
        unmatched = sum(ns for ns, wait in zip(dur, waits_ns, strict=True) if wait is None)
        matched = any(wait is not None for wait in waits_ns)
        rows.append(
            {
                "rank": [rank.rank],
                "kernel_ns": [kernel],
                "comm_ns": [kernel - sync],
                "wait_ns": [sync if matched else -1],
                "wait_fraction": [sync / max(kernel, 1) if matched else -1.0],
                "exposed_ns": [rank.exposed_ns],
                "unmatched_ns": [unmatched],
                "kernels": [len(dur)],
                "last_arrivals": [last[rank.rank] if matched else -1],
                "others_wait_ns": [caused[rank.rank] if matched else -1],
            }
        )
    return rows


def summary_rows(collectives: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Rows of SUMMARY, most kernel time first."""
    groups: dict[tuple[str, str, int], list[MatchedCollective]] = {}
    for collective in collectives:
        bucket = 1 << max(collective.bytes, 1).bit_length() - 1 if collective.bytes >= 0 else -1
        groups.setdefault((collective.collective, collective.group, bucket), []).append(collective)
    rows = []
    for (name, group, bucket), alike in groups.items():
        record = alike[0].participants[0].record
        kernel = sum(member.end - member.start for matched in alike for member in matched.participants)
        sync = sum(sum(matched.wait_ns.values()) for matched in alike)
        transfers = [matched.transfer for matched in alike]
        moving = sum(transfer.ns for transfer in transfers)
        rate = sum(transfer.bytes for transfer in transfers) / max(moving, 1) * 1e9 if bucket >= 0 else -1.0
        rows.append(
            {
                "collective": [name],
                "group": [group],
                "description": [record.description],
                "group_size": [record.size],
                "from_bytes": [bucket],
                "count": [len(alike)],
                "kernel_ns": [kernel],
                "comm_ns": [kernel - sync],
                "wait_ns": [sync],
                "wait_fraction": [sync / max(kernel, 1)],
                "latency_median_ns": [float(median([matched.latency_ns for matched in alike]))],
                "start_skew_median_ns": [float(median([matched.start_skew_ns for matched in alike]))],
                "end_skew_median_ns": [float(median([matched.end_skew_ns for matched in alike]))],
                "algbw_bytes_per_s": [rate],
                "busbw_bytes_per_s": [_busbw(rate, name, record.size)],
            }
        )
    return sorted(rows, key=lambda row: -row["kernel_ns"][0])


def _busbw(algbw: float, collective: str, ranks: int) -> float:
    """Bus bandwidth, -1 where the message size is not recorded."""
    return algbw * bus_factor(collective, ranks) if algbw >= 0 else -1.0


def participant_rows(
    ranks: Sequence[RankCommunication], collectives: Sequence[MatchedCollective]
) -> list[dict[str, Any]]:
    """Rows of PARTICIPANTS, by rank.

    Args:
        ranks: of the run.
        collectives: by the clock of the first rank.
    """
    of_rank: dict[int, list[_Share]] = {rank.rank: [] for rank in ranks}
    for collective in collectives:
        wait, size = collective.wait_ns, collective.bytes
        first = min(wait)
        for participant in collective.participants:
            of_rank[participant.rank].append(
                _Share(collective, participant, first, size, wait[participant.rank])
            )
    rows = []
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        shares = of_rank[rank.rank]
        kernel = np.array([share.participant.record.kernel for share in shares], dtype=np.int64)
        waited = np.array([share.wait for share in shares], dtype=np.int64)
        start, end = rank.start[kernel], rank.end[kernel]
        rows.append(
            {
                "rank": [rank.rank] * len(shares),
                "host": [rank.host] * len(shares),
                "collective": [share.collective.collective for share in shares],
                "group": [share.collective.group for share in shares],
                "first_rank": [share.first for share in shares],
                "group_name": [share.participant.record.group for share in shares],
                "order": [share.collective.order for share in shares],
                "step": [share.participant.record.step for share in shares],
                "kernel": [rank.kernels[index] for index in kernel.tolist()],
                "bytes": [share.size for share in shares],
                "group_size": [share.participant.record.size for share in shares],
                "local_ts_ns": start,
                "ts_ns": np.array([share.participant.start for share in shares], dtype=np.int64),
                "dur_ns": end - start,
                "wait_ns": waited,
                "exposed_ns": rank.alone.covered(start + waited, end),
            }
        )
    return rows


def all_to_all(collectives: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Rows of ALL_TO_ALL: one per all-to-all, in order of time."""
    rows = []
    for collective in collectives:
        received = [max(participant.record.received, 0) for participant in collective.participants]
        if not collective.collective.startswith(("all_to_all", "alltoall")) or not sum(received):
            continue
        total = sum(max(participant.record.sent, 0) for participant in collective.participants)
        largest = int(np.argmax(received))
        rows.append(
            {
                "group": [collective.group],
                "order": [collective.order],
                "bytes": [total],
                "wall_ns": [collective.wall_ns],
                "throughput_bytes_per_s": [total / max(collective.wall_ns, 1) * 1e9],
                "largest_rank": [collective.participants[largest].rank],
                "imbalance": [max(received) * len(received) / sum(received)],
            }
        )
    return rows


def traffic(collectives: Sequence[MatchedCollective]) -> tuple[list[dict[str, Any]], list[Skip]]:
    """Rows of TRAFFIC, and a Skip where senders and receivers disagree."""
    sums: dict[tuple[str, int, int], list[int]] = {}
    wrong = 0
    for collective in collectives:
        if (matrices := collective.traffic) is None:
            continue
        ranks, sent, received = matrices
        wrong += int((sent != received).any())
        for row, sender in enumerate(ranks):
            for column, receiver in enumerate(ranks):
                cell = sums.setdefault((collective.group, sender, receiver), [0, 0, 0])
                cell[0] += 1
                cell[1] += int(sent[row, column])
                cell[2] += int(received[row, column])
    rows = [
        {
            "group": [group],
            "from_rank": [sender],
            "to_rank": [receiver],
            "count": [count],
            "sent_bytes": [sent_bytes],
            "received_bytes": [received_bytes],
        }
        for (group, sender, receiver), (count, sent_bytes, received_bytes) in sorted(sums.items())
    ]
    reason = "sent and received bytes disagree between the ranks"
    return rows, [Skip(f"traffic of {wrong} all-to-all(s)", reason)] if wrong else []


def fit(collectives: Sequence[MatchedCollective]) -> tuple[list[dict[str, Any]], list[Skip]]:
    """Rows of FIT, and why a collective has none."""
    groups: dict[tuple[str, str], list[MatchedCollective]] = {}
    for collective in collectives:
        if collective.bytes > 0:
            groups.setdefault((collective.collective, collective.group), []).append(collective)
    rows, skips = [], []
    for (name, group), matched in groups.items():
        _, size, time = (
            np.array(column, dtype=float) for column in zip(*(each.transfer for each in matched), strict=True)
        )
        subject = f"latency and bandwidth of {name} in {group}"
        if len(unique(size)) < 2:
            skips.append(Skip(subject, "all its messages have the same size"))
            continue
        # The least squares line that is not below 0 at 0.
        apart = size - size.mean()
        slope = float(apart @ (time - time.mean()) / (apart @ apart))
        alpha = float(time.mean() - slope * size.mean())
        if alpha < 0:
            slope, alpha = float(size @ time / (size @ size)), 0.0
        if slope <= 0:
            skips.append(Skip(subject, "its time does not grow with message size"))
            continue
        residual = time - (alpha + slope * size)
        rows.append(
            {
                "collective": [name],
                "group": [group],
                "collectives": [len(matched)],
                "alpha_ns": [alpha],
                "beta_bytes_per_s": [1e9 / slope],
                "residual_ns": [float(np.sqrt((residual**2).mean()))],
            }
        )
    return rows, skips


class HostSpans(Struct, frozen=True):
    """Collectives and the hosts that they span, one element each."""

    rounds: Int  # how often the message goes round
    bytes: Int  # of the message
    ranks: Int  # in the group
    hosts: Int  # that they are on; 0 where one of them has no name
    even: Bool  # whether there are as many ranks on each host
    latency: Int  # shortest duration, ns
    flat: Bool  # whether the kernel's name does not say otherwise
    ring: Bool  # whether the kernel's name says that it is a ring

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
        for size in unique(self.bytes[flat]).tolist():
            similar = (self.bytes[inside] * _ALIKE_SIZE_RATIO >= size) & (
                self.bytes[inside] <= size * _ALIKE_SIZE_RATIO
            )
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


class HostKernels(Struct, frozen=True):
    """One rank's part in each of several collectives, one element a part."""

    number: Int  # of the collective
    host: Sequence[str]  # of the rank, "" if unknown
    kernel: Sequence[str]  # name of its kernel
    bytes: Int  # of the message
    dur: Int  # of the kernel, ns
    size: Int  # ranks in the group


def host_spans(parts: HostKernels, names: Sequence[str]) -> HostSpans:
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
        rounds=np.array(
            [next((rounds for kind, rounds in _ROUNDS.items() if kind in name), 0) for name in names],
            dtype=np.int64,
        ),
        bytes=message,
        ranks=np.maximum(ranks, 1),
        hosts=np.where(complete, hosts, 0),
        even=most * hosts == ranks,
        latency=latency,
        flat=flat,
        ring=ring,
    )


def spans_of(ranks: Sequence[RankCommunication], collectives: Sequence[MatchedCollective]) -> HostSpans | str:
    """The hosts that matched collectives span, or why they are not known."""
    hosts = {rank.rank: rank.host for rank in ranks}
    kernels = {rank.rank: rank.kernels for rank in ranks}
    if "" in hosts.values() or len(set(hosts.values())) == 1:
        return "the traces do not name their hosts" if "" in hosts.values() else "all ranks are on one host"
    parts = [(number, part) for number, matched in enumerate(collectives) for part in matched.participants]
    if not parts:
        return "no collective is recorded on several ranks"
    kernels_of_parts = HostKernels(
        number=np.array([number for number, _ in parts]),
        host=[hosts[part.rank] for _, part in parts],
        kernel=[kernels[part.rank][part.record.kernel] for _, part in parts],
        bytes=np.array([part.record.bytes for _, part in parts]),
        dur=np.array([part.end - part.start for _, part in parts]),
        size=np.array([part.record.size for _, part in parts]),
    )
    return host_spans(kernels_of_parts, [collective.collective for collective in collectives])
