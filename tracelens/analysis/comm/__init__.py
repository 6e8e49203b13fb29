"""Communication: collectives matched across ranks, clocks, waiting against transfer, overlap."""

from tracelens.analysis.comm.clocks import aligned, clocks
from tracelens.analysis.comm.collectives import alignment
from tracelens.analysis.comm.matching import SEND_RECV, Group, MatchedCollective, Participant, base_ns, match
from tracelens.analysis.comm.messages import traffic_matrices
from tracelens.analysis.comm.records import POINT_TO_POINT, RankCommunication, Record, rank_communication
from tracelens.analysis.comm.waiting import bus_factor

__all__ = [
    "POINT_TO_POINT",
    "SEND_RECV",
    "Group",
    "MatchedCollective",
    "Participant",
    "RankCommunication",
    "Record",
    "aligned",
    "alignment",
    "base_ns",
    "bus_factor",
    "clocks",
    "match",
    "rank_communication",
    "traffic_matrices",
]
