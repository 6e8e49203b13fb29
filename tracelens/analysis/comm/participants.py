"""Each rank's part in each collective: waiting, and what is exposed of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.comm.matching import MatchedCollective, Participant
from tracelens.analysis.comm.records import RankCommunication
from tracelens.table import RANK, STEP, Column, Schema

PARTICIPANTS = Schema(
    "Collectives by rank",
    (
        RANK,
        Column("host", "category", doc="the rank's host, '' where not recorded"),
        Column("collective", "category", doc="as the trace names it; send/recv: a send with its receive"),
        Column("group", "category", doc="process group: what it is for, and its ranks"),
        Column(
            "first_rank",
            "int64",
            doc="lowest rank of the group in the run; identifies groups of the same name",
        ),
        Column("group_name", "category", doc="by which the program knows the group, often a number"),
        Column("order", "int64", "count", "position among the collectives of the group"),
        STEP,
        Column("kernel", "category", doc="communication kernel on this rank"),
        Column("bytes", "int64", "bytes", "largest message of any rank, as in `collectives`; -1 if unknown"),
        Column("group_size", "int64", "count", "ranks in the process group"),
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


class _Share(NamedTuple):
    """One rank's share of a collective: lowest rank, bytes and the rank's own waiting."""

    collective: MatchedCollective
    participant: Participant
    first: int
    size: int
    wait: int


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
