"""Communication: collectives matched across ranks, clocks, waiting against transfer, overlap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.analysis.comm.aligned import (
        SEND_RECV,
        AlignedRun,
        MatchedCollective,
        Participant,
        align,
        align_run,
        match_collectives,
        match_messages,
        waits_caused,
    )
    from tracelens.analysis.comm.collectives import (
        HostKernels,
        HostSpans,
        fit,
        host_spans,
        spans_of,
    )
    from tracelens.analysis.comm.overlap import NOT_RECORDED, communication_labels
    from tracelens.analysis.comm.records import (
        NO_COMMUNICATION,
        POINT_TO_POINT,
        RankCommunication,
        Record,
        Repetition,
        collective_kinds,
        rank_communication,
        regathers,
    )
    from tracelens.analysis.common import Group

__all__ = [
    "NOT_RECORDED",
    "NO_COMMUNICATION",
    "POINT_TO_POINT",
    "SEND_RECV",
    "AlignedRun",
    "Group",
    "HostKernels",
    "HostSpans",
    "MatchedCollective",
    "Participant",
    "RankCommunication",
    "Record",
    "Repetition",
    "align",
    "align_run",
    "collective_kinds",
    "communication_labels",
    "fit",
    "host_spans",
    "match_collectives",
    "match_messages",
    "rank_communication",
    "regathers",
    "spans_of",
    "waits_caused",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "analysis.comm.aligned": (
            "SEND_RECV AlignedRun MatchedCollective Participant align align_run match_collectives "
            "match_messages waits_caused"
        ),
        "analysis.comm.collectives": "HostKernels HostSpans fit host_spans spans_of",
        "analysis.comm.overlap": "NOT_RECORDED communication_labels",
        "analysis.comm.records": (
            "NO_COMMUNICATION POINT_TO_POINT RankCommunication Record Repetition collective_kinds "
            "rank_communication regathers"
        ),
        "analysis.common": "Group",
    },
)
