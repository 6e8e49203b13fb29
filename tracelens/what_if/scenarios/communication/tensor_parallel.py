"""Collectives of dense layers: by levels across hosts, or overlapped with the GEMM beside them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import spans_of
from tracelens.analysis.fusable import StepWork, exposed_pairs, pairs, speed_of_light
from tracelens.arrays import Float, Int
from tracelens.devices import Device
from tracelens.trace import Trace
from tracelens.units import duration
from tracelens.what_if.graph import Edge, Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario


@scenario("hierarchical_all_reduce")
def hierarchical_all_reduce(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Collectives across hosts are hierarchical: first within each host, then across hosts.

    Assumes:
        Over H hosts, (H-1)/H of the bytes cross them, at the measured rate. Waiting for late ranks stays.
    """
    meetings, collectives = context.meetings()
    spans = spans_of(context.recorded.collectives.aligned.ranks, collectives)
    if isinstance(spans, str):
        raise NotApplicable(spans)
    if reason := spans.reason():
        raise NotApplicable(reason)
    _, inside_known = spans.expected()
    gain = spans.gain()
    edit.set_dur(meetings, edit.dur[meetings] * (1 - gain))
    links = "as measured in this run" if inside_known else "free where this run has none of their size"
    return (
        f"{int((gain > 0).sum()):,} collectives send (H-1)/H instead of (n-1)/n of their bytes between "
        f"H hosts, at the measured rate; transfers within a host are {links}; waiting for late ranks stays"
    )


class OverlapPairs(NamedTuple):
    """GEMMs of one rank that do not overlap the collective of their tensor.

    Attributes:
        row: position of the collective in the rank's work.
        gemm_ns: GPU time of the GEMM.
        least_ns: of both together at the speed of light, 0 if unknown.
        reason: why there are none, "" if there are.
    """

    row: Int
    gemm_ns: Int
    least_ns: Float
    reason: str


def overlap_pairs(trace: Trace, device: Device | None) -> OverlapPairs:
    """GEMMs of a rank that could overlap a collective and do not."""
    step = StepWork(trace, device)
    empty = np.empty(0, dtype=np.int64)
    if not len(step.work.event):
        return OverlapPairs(empty, empty, np.empty(0), "no GPU work")
    gemms = pairs(step)
    if isinstance(gemms, str):
        return OverlapPairs(empty, empty, np.empty(0), gemms)
    _, serial = exposed_pairs(step, gemms)
    if not serial.any():
        reason = f"the collectives of all {len(serial)} tensor-parallel GEMMs are overlapped"
        return OverlapPairs(empty, empty, np.empty(0), reason)
    least_ns = speed_of_light(gemms, device)
    return OverlapPairs(step.rows[gemms.row[serial]], gemms.gemm_ns[serial], least_ns[serial], "")


@scenario("gemm_collective_overlap", reads=(overlap_pairs,))
def gemm_collective_overlap(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GEMMs overlap the collective of their tensor: the longer of both remains (GEMM+RS, AG+GEMM).

    Assumes:
        GEMM and transfer both run at full speed, but no faster than the device allows. Waiting for late ranks
        stays.
    """
    graph, by_rank = context.gpu_graph(), context.read(overlap_pairs)
    if all(part.reason for part in by_rank):
        raise NotApplicable("; ".join(dict.fromkeys(part.reason for part in by_rank)))
    gemm_ns, least_ns = (np.zeros(len(graph)) for _ in range(2))
    for rank, part in enumerate(by_rank):
        nodes = graph.nodes(rank, Node.WORK, Node.ARRIVE)
        row, first = np.unique(graph.work[nodes], return_index=True)
        node = nodes[first[np.searchsorted(row, part.row)]]
        gemm_ns[node], least_ns[node] = part.gemm_ns, part.least_ns
    # A meeting hides no more than behind the shortest of its ranks' GEMMs.
    arrival = np.flatnonzero(graph.edge == Edge.ARRIVAL)
    met = np.unique(graph.dst[arrival])
    gemm_ns[met] = np.inf
    np.minimum.at(gemm_ns, graph.dst[arrival], gemm_ns[graph.src[arrival]])
    np.maximum.at(least_ns, graph.dst[arrival], least_ns[graph.src[arrival]])
    gemm_ns[graph.kind == Node.ARRIVE] = 0
    rows = np.flatnonzero((gemm_ns > 0) & (graph.dur > 0))
    own_ns = graph.dur[rows].astype(float)
    together_ns = np.maximum(np.maximum(gemm_ns[rows], own_ns), least_ns[rows])
    hidden_ns = np.clip(gemm_ns[rows] + own_ns - together_ns, 0, own_ns)
    edit.set_dur(rows, edit.dur[rows] * (1 - hidden_ns / np.maximum(own_ns, 1)))
    return (
        f"{len(rows):,} transfers hide {duration(hidden_ns.sum())} behind their GEMMs: of each pair the "
        "longer one remains, at least the speed of light where the device is known; both run at full "
        "speed, and waiting for late ranks stays"
    )
