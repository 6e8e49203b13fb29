"""Collectives matched across ranks, their time split into waiting and moving data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm.aligned import AlignedRun
from tracelens.analysis.comm.clocks import Clock
from tracelens.analysis.comm.matching import MatchedCollective
from tracelens.analysis.comm.messages import ALL_TO_ALL, FIT, TRAFFIC, all_to_all, fit, traffic
from tracelens.analysis.comm.participants import PARTICIPANTS, participant_rows
from tracelens.analysis.comm.records import RankCommunication
from tracelens.analysis.comm.waiting import RANKS, SUMMARY, bus_factor, rank_rows, summary_rows, waits
from tracelens.dtypes import short_dtype
from tracelens.table import RANK, Column, Result, Schema, Skip, result
from tracelens.trace import Scope

COLLECTIVES = Schema(
    "Collectives across ranks",
    (
        Column("collective", "category", doc="as recorded; send/recv: a send with its receive"),
        Column("group", "category", doc="process group: what it is for, and its ranks"),
        Column("order", "int64", "count", "position among the collectives of the group"),
        Column("ranks", "int64", "count", "ranks that recorded it"),
        Column("bytes", "int64", "bytes", "largest message of any rank; for all-gather the whole buffer"),
        Column("latency_ns", "int64", "ns", "shortest duration: the last rank to arrive does not wait"),
        Column("start_skew_ns", "int64", "ns", "last start - first start"),
        Column("end_skew_ns", "int64", "ns", "last end - first end"),
        Column("algbw_bytes_per_s", "float64", "bytes/s", "bytes / latency"),
        Column("busbw_bytes_per_s", "float64", "bytes/s", "algbw x share of the data that crosses links"),
        Column("last_rank", "int64", doc="last to arrive"),
        Column("step", "category", doc="step in which the lowest rank launched it"),
        Column("dtype", "category", doc="element type"),
        Column("group_size", "int64", "count", "ranks in the process group"),
        Column("description", "category", doc="the program's name for the group"),
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
            "residual_ns", "int64", "ns", "median spread of a collective's ends after that; -1: not measured"
        ),
        Column("collectives", "int64", "count", "collectives used for the estimate"),
    ),
    doc="Estimated from the ends of collectives, which all ranks reach almost simultaneously.",
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


@analyzer("collectives", title="Collectives and waiting", order=80, shared=("aligned run",), tables=TABLES)
def collectives(aligned: AlignedRun, *, scope: Scope = "all") -> Result:
    """Which ranks wait for which in communication, and how fast does data move once all have arrived?

    A collective's kernel runs from the rank's own arrival to completion: time before the last rank arrives
    is waiting (synchronization), the rest is communication.

    Reading:
        Split the kernel time first: waiting (sync) calls for `stragglers`, transfer (comm) for a look at
        `summary` and its bandwidths. `caused_wait_ns` says whom the others wait for.

    Limits:
        Waiting needs the traces of all ranks of a group; of those that are missing, one may have arrived
        still later. Custom all-reduces of vLLM, SGLang and AITER have no recorded group: they are matched if
        they span all ranks of the job and no graph replays them.

    Args:
        aligned: the run.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `ranks` (kernel = comm + sync), `summary`, `collectives`, `fit`, `all_to_all`, `traffic`,
        `clocks` and `participants` (each collective by rank).
    """
    ranks, on_one_clock = aligned.ranks, aligned.collectives
    communicating = {rank.rank for rank in ranks if len(rank.start)}
    waiting = waits(on_one_clock)
    skips = [*aligned.skips, *_nothing(ranks, aligned.clocks), *_incomplete(on_one_clock)]
    traffic_rows, traffic_skips = traffic(on_one_clock)
    fit_rows, fit_skips = fit(on_one_clock)
    tables = {
        "ranks": RANKS.concat(rank_rows(ranks, waiting)),
        "summary": SUMMARY.concat(summary_rows(on_one_clock)),
        "collectives": COLLECTIVES.concat(_rows(on_one_clock)),
        "fit": FIT.concat(fit_rows),
        "all_to_all": ALL_TO_ALL.concat(all_to_all(on_one_clock)),
        "traffic": TRAFFIC.concat(traffic_rows),
        "clocks": CLOCKS.concat(
            _clock_rows([clock for clock in aligned.clocks if clock.rank in communicating and len(ranks) > 1])
        ),
        "participants": PARTICIPANTS.concat(participant_rows(ranks, on_one_clock)),
    }
    return result(tables, [*skips, *traffic_skips, *fit_skips], scope=scope)


def _rows(collectives: Sequence[MatchedCollective]) -> list[dict[str, Any]]:
    """Rows of COLLECTIVES, in order of time."""
    rows = []
    for collective in collectives:
        record = collective.participants[0].record
        rate = collective.bytes / max(collective.latency_ns, 1) * 1e9 if collective.bytes >= 0 else -1.0
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
                "busbw_bytes_per_s": [
                    rate * bus_factor(collective.collective, record.size) if rate >= 0 else -1.0
                ],
                "last_rank": [collective.last.rank],
                "step": [record.step],
            }
        )
    return rows


def _clock_rows(rank_clocks: Sequence[Clock]) -> list[dict[str, Any]]:
    known = (
        clock if clock.collectives else clock._replace(residual_ns=-1)  # nothing was compared
        for clock in rank_clocks
    )
    return [{name: [value] for name, value in clock._asdict().items()} for clock in known]


def _incomplete(collectives: Sequence[MatchedCollective]) -> list[Skip]:
    """Collectives with ranks missing from the run: another may have arrived still later."""
    incomplete = sum(
        len(collective.participants) < collective.participants[0].record.size for collective in collectives
    )
    reason = "some ranks of the group are not in the run and may have arrived later"
    return [Skip(f"all waiting in {incomplete} collective(s)", reason)] if incomplete else []


def _nothing(ranks: Sequence[RankCommunication], rank_clocks: Sequence[Clock]) -> list[Skip]:
    """Ranks without communication, kernels without records, and ranks of unknown clock offset."""
    silent = [rank.rank for rank in ranks if not len(rank.start)]
    skips = [Skip(f"rank {rank}", "no communication kernel in the trace") for rank in silent]
    for rank in ranks:
        unrecorded = len(rank.start) - len({record.kernel for record in rank.records})
        if unrecorded:
            subject = f"rank {rank.rank}: waiting in {unrecorded} communication kernel(s)"
            skips.append(Skip(subject, "the trace does not record their group, size and order"))
    if any(clock.collectives for clock in rank_clocks):
        reason = "no collective shared with rank 0's host, so its offset is unknown"
        unknown = [clock.rank for clock in rank_clocks if not clock.collectives and clock.rank not in silent]
        skips += [Skip(f"clock of rank {rank}", reason) for rank in unknown]
    return skips
