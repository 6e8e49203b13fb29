"""Who waited for whom: collectives matched across ranks, their time split into waiting and moving data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm.clocks import Clock, aligned, clocks
from tracelens.analysis.comm.matching import MatchedCollective, base_ns, match
from tracelens.analysis.comm.messages import ALL_TO_ALL, FIT, TRAFFIC, all_to_all, fit, traffic
from tracelens.analysis.comm.participants import MEMBERS, member_rows
from tracelens.analysis.comm.records import RankComms, comms
from tracelens.analysis.comm.waiting import RANKS, SUMMARY, bus_factor, rank_rows, summary_rows, waits
from tracelens.table import Column, Result, Schema, Skip, result, stack
from tracelens.trace import Run, Scope, short_dtype

INSTANCES = Schema(
    "Collectives, each on all its ranks",
    (
        Column("collective", "category", doc="send/recv for a send with its receive"),
        Column("group", "category", doc="process group"),
        Column("order", "int64", "count", "position among the collectives of the group"),
        Column("ranks", "int64", "count", "ranks that recorded it"),
        Column("bytes", "int64", "bytes", "largest message of a rank; of an all-gather the whole buffer"),
        Column("latency_ns", "int64", "ns", "shortest duration: the last to arrive waits for nobody"),
        Column("start_skew_ns", "int64", "ns", "last start - first start"),
        Column("end_skew_ns", "int64", "ns", "last end - first end"),
        Column("algbw_bytes_per_s", "float64", "bytes/s", "bytes / latency"),
        Column("busbw_bytes_per_s", "float64", "bytes/s", "algbw x the share that crosses the links"),
        Column("last_rank", "int64", doc="who arrived last"),
        Column("step", "category", doc="of the lowest rank"),
        Column("dtype", "category"),
        Column("group_size", "int64", "count"),
        Column("description", "category", doc="what the program calls the group"),
        Column("ts_ns", "int64", "ns", "first start, by the clock of the first rank"),
    ),
    doc="Bandwidths in decimal units, by the conventions of nccl-tests.",
)

CLOCKS = Schema(
    "Clocks",
    (
        Column("rank", "int64"),
        Column("host", "int64", doc="ranks of one host share a clock"),
        Column("offset_ns", "int64", "ns", "against the first host, already taken off all times here"),
        Column("residual_ns", "int64", "ns", "median distance of a collective's ends after that"),
        Column("instances", "int64", "count", "collectives that it is measured by"),
    ),
    doc="Estimated from the ends of collectives, which all ranks reach almost together.",
)


@analyzer("collectives", title="Collectives and waiting", order=80, part=comms)
def collectives(ranks: Sequence[RankComms], *, scope: Scope = "all") -> Result:
    """Who waits for whom in communication, and how fast is the data moved once all are there?

    A collective's kernel runs from the rank's own arrival until the data is there: what lies before the last
    rank's arrival is waiting (synchronisation), the rest is communication.

    Args:
        ranks: from `comms`.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `ranks` (kernel = comm + sync), `summary`, `instances`, `fit`, `all_to_all`, `traffic`,
        `clocks` and `members` (of each instance, by rank).
    """
    found = match(ranks)
    clock = clocks(ranks, found.instances)
    offset = {one.rank: one.offset_ns for one in clock}
    of_rank = {one.rank: one for one in ranks}
    instances = [instance._replace(members=aligned(instance, offset)) for instance in found.instances]
    waited = waits(instances)
    skips = [*found.skips, *_nothing(ranks, clock), *_incomplete(instances)]
    exchanged, wrong = traffic(instances)
    fitted, unfit = fit(instances)
    tables = {
        "ranks": stack(RANKS, rank_rows(ranks, waited)),
        "summary": stack(SUMMARY, summary_rows(instances)),
        "instances": stack(INSTANCES, _rows(instances)),
        "fit": stack(FIT, fitted),
        "all_to_all": stack(ALL_TO_ALL, all_to_all(instances)),
        "traffic": stack(TRAFFIC, exchanged),
        "clocks": stack(CLOCKS, _clock_rows([one for one in clock if len(of_rank[one.rank].start)])),
        "members": stack(MEMBERS, member_rows(ranks, instances)),
    }
    return result(tables, [*skips, *wrong, *unfit], scope=scope)


class Alignment(NamedTuple):
    """All ranks by one clock.

    Attributes:
        offsets: rank to ns that are added to its times to get them by the clock of the first rank.
        waits: (rank, what and for whom, start, duration) of all waiting, ns by the rank's own clock.
    """

    offsets: dict[int, int]
    waits: list[tuple[int, str, int, int]]


def alignment(run: Run) -> Alignment:
    """The clocks of a run and who waits when, for views that show all ranks side by side."""
    ranks = [comms(trace) for trace in run.traces]
    found = match(ranks)
    clock = {one.rank: one.offset_ns for one in clocks(ranks, found.instances)}
    own = {one.rank: one for one in ranks}
    rows = []
    for instance in found.instances:
        there = instance._replace(members=aligned(instance, clock))
        for member in there.members:
            wait = there.wait_ns[member.rank]
            if wait > 0:
                label = f"{instance.collective}: waits for rank {there.last.rank}"
                rows.append((member.rank, label, int(own[member.rank].start[member.record.kernel]), wait))
    return Alignment(
        {one.rank: base_ns(one, ranks[0]) - clock[one.rank] for one in ranks},
        rows,
    )


def _rows(instances: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Rows of INSTANCES, in order of time."""
    rows = []
    for instance in instances:
        record = instance.members[0].record
        rate = instance.bytes / max(instance.latency_ns, 1) * 1e9 if instance.bytes >= 0 else -1.0
        rows.append(
            {
                "collective": [instance.collective],
                "group": [instance.group],
                "description": [record.description],
                "order": [instance.order],
                "ranks": [len(instance.members)],
                "group_size": [record.size],
                "dtype": [short_dtype(record.dtype)],
                "bytes": [instance.bytes],
                "ts_ns": [min(member.start for member in instance.members)],
                "latency_ns": [instance.latency_ns],
                "start_skew_ns": [instance.start_skew_ns],
                "end_skew_ns": [instance.end_skew_ns],
                "algbw_bytes_per_s": [rate],
                "busbw_bytes_per_s": [
                    rate * bus_factor(instance.collective, record.size) if rate >= 0 else -1.0
                ],
                "last_rank": [instance.last.rank],
                "step": [record.step],
            }
        )
    return rows


def _clock_rows(clock: Sequence[Clock]) -> list[dict[str, Any]]:
    return [{name: [value] for name, value in one._asdict().items()} for one in clock]


def _incomplete(instances: Sequence[MatchedCollective]) -> list[Skip]:
    """Collectives of which not all ranks are there: another may have arrived still later."""
    part = sum(len(instance.members) < instance.members[0].record.size for instance in instances)
    reason = "not all ranks of their groups are in the run; who is missing may have come still later"
    return [Skip(f"all waiting in {part} collective(s)", reason)] if part else []


def _nothing(ranks: Sequence[RankComms], clock: Sequence[Clock]) -> list[Skip]:
    """Ranks and kernels of which nothing can be said, and ranks whose clock nothing shows."""
    silent = [one.rank for one in ranks if not len(one.start)]
    skips = [Skip(f"rank {rank}", "no communication kernel in the trace") for rank in silent]
    for one in ranks:
        loose = len(one.start) - len({record.kernel for record in one.records})
        if loose:
            subject = f"rank {one.rank}: waiting in {loose} communication kernel(s)"
            skips.append(Skip(subject, "the trace has no record of their group, size and order"))
    if any(one.instances for one in clock):
        reason = "no collective shared with the host of rank 0 tells its offset"
        unknown = [one.rank for one in clock if not one.instances and one.rank not in silent]
        skips += [Skip(f"clock of rank {rank}", reason) for rank in unknown]
    return skips
