"""Communication: collectives matched across ranks, clocks, waiting against transfer, overlap."""

from tracelens.analysis.comm.aligned import AlignedRun, align, align_run
from tracelens.analysis.comm.hierarchy import HostSpans, Part, host_spans, spans_of
from tracelens.analysis.comm.kinds import collective_kinds
from tracelens.analysis.comm.matching import SEND_RECV, Group, MatchedCollective, Participant
from tracelens.analysis.comm.messages import fit, traffic_matrices
from tracelens.analysis.comm.overlap import NOT_RECORDED, communication_labels
from tracelens.analysis.comm.records import POINT_TO_POINT, RankCommunication, Record, rank_communication
from tracelens.analysis.comm.waiting import bus_factor

__all__ = [
    "NOT_RECORDED",
    "POINT_TO_POINT",
    "SEND_RECV",
    "AlignedRun",
    "Group",
    "HostSpans",
    "MatchedCollective",
    "Part",
    "Participant",
    "RankCommunication",
    "Record",
    "align",
    "align_run",
    "bus_factor",
    "collective_kinds",
    "communication_labels",
    "fit",
    "host_spans",
    "rank_communication",
    "spans_of",
    "traffic_matrices",
]
