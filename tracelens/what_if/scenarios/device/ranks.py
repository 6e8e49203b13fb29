"""Weak scaling: more ranks with the same work each."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tracelens.analysis.comm import SEND_RECV, MatchedCollective
from tracelens.arrays import Float, Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner import Rates, all_to_all_seconds, expected_maximum, ring_seconds
from tracelens.planner.step_time import Machine
from tracelens.what_if.graph import Edge, Edit, Graph
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario

_TIMES = re.compile(r"x?([1-9]\d{0,5})$")
# What programs call their groups: Megatron-LM's parallel_state and torch's meshes, by words.
_BY_DATA_OR_EXPERTS = re.compile(
    r"data|expert|optimizer|(?:^|_)(?:dp|edp|ep|moe|fsdp|hsdp)(?:_|$)", re.IGNORECASE
)
_INSIDE_A_MODEL = re.compile(r"tensor|pipeline|context|(?:^|_)(?:tp|pp|cp|sp|mp)(?:_|$)", re.IGNORECASE)
_OF_TOKENS = re.compile(r"expert|(?:^|_)(?:ep|moe)(?:_|$)", re.IGNORECASE)
_SPLITS = ("all_gather", "allgather", "_allgather", "reduce_scatter", "_reduce_scatter")


@scenario("ranks", argument="=xTIMES", usual=())
def ranks(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Weak scaling: more ranks with the same work each; data and expert groups grow.

    Assumes:
        Messages keep their efficiency, latency included. Arrivals spread as measured. Tensor, context and
        pipeline groups and all kernels stay the same.
    """
    parsed = _TIMES.match(argument.strip())
    if not parsed or int(parsed[1]) < 2:
        raise TracelensError(
            f"scenario ranks={argument}: write ranks=x4 for four times the ranks, at least x2"
        )
    times, machine = int(parsed[1]), Machine()
    graph, (meetings, collectives) = context.gpu_graph(), context.meetings()
    larger = np.array([_grows(collective) for collective in collectives], dtype=bool)
    if not larger.any():
        raise NotApplicable("no collective of a data or expert group recorded on several ranks")
    factors, waits, spread = np.ones(len(collectives)), np.zeros(len(collectives)), _spread(graph, meetings)
    for meeting in np.flatnonzero(larger).tolist():
        collective = collectives[meeting]
        device = graph.ranks[int(graph.rank[meetings[meeting]])].device
        size = collective.participants[0].record.size
        factors[meeting] = transfer_ratio(collective, times, device, machine)
        waits[meeting] = spread[meeting] * (expected_maximum(size * times) - expected_maximum(size))
    # The later arrival prolongs the meeting: no rank resumes before the transfer is over.
    edit.dur[meetings] = np.rint(edit.dur[meetings] * factors + waits).astype(np.int64)
    sizes = [collectives[meeting].participants[0].record.size for meeting in np.flatnonzero(larger).tolist()]
    return (
        f"{len(sizes):,} collectives over {_range(sizes)} ranks grow by {times}x; nodes have {machine.node} "
        f"GPUs with {machine.nic_bytes_per_s / 1e9:g} GB/s network each; messages keep their efficiency, "
        "latency included; arrivals are normally distributed with the measured spread of each collective, so "
        f"the last rank arrives {waits[larger].mean() / 1e3:,.0f} us later on average; tensor, context and "
        "pipeline groups and all kernels stay the same"
    )


def transfer_ratio(
    collective: MatchedCollective, times: int, device: Device | None, machine: Machine
) -> float:
    """Transfer time of a collective over `times` the ranks / that of the recorded one.

    See `tracelens.planner.collectives` for the model; it holds for messages of any size. Gathered or
    scattered data grows with the ranks if it is tokens (expert groups), not if it is parameters or gradients.

    Raises:
        NotApplicable: the group leaves its node and the link rate is unknown.
    """
    size, near = collective.participants[0].record.size, _neighbours(collective, machine.node)
    record = collective.participants[0].record
    rank_stride = record.group_ranks[1] - record.group_ranks[0] if len(record.group_ranks) > 1 else 1
    room = max(machine.node // max(rank_stride, 1), near)
    grown = size * times
    # In a group over several nodes, the ranks on the last, least filled node send most to other nodes.
    close = near if near < size else grown % room or room if grown > room else grown
    before = _seconds(collective.collective, size, near, device, machine)
    after = _seconds(collective.collective, grown, close, device, machine)
    tokens = collective.collective.startswith(_SPLITS) and _OF_TOKENS.search(record.description)
    return (times if tokens else 1) * after / before


def _grows(collective: MatchedCollective) -> bool:
    """Whether a collective's group grows with the run."""
    record = collective.participants[0].record
    if collective.collective == SEND_RECV or record.size < 2:
        return False
    return bool(_BY_DATA_OR_EXPERTS.search(record.description)) or not _INSIDE_A_MODEL.search(
        record.description
    )


def _neighbours(collective: MatchedCollective, node: int) -> int:
    """Group ranks on the node of the first one; consecutive ranks if the trace truncates the list."""
    record = collective.participants[0].record
    if not record.group_ranks:
        return min(record.size, node)
    first = record.group_ranks[0] // node
    return sum(rank // node == first for rank in record.group_ranks)


def _seconds(collective: str, count: int, near: int, device: Device | None, machine: Machine) -> float:
    """Seconds per byte of the full message."""
    rates = Rates(0.0, machine.nic_bytes_per_s, False) if device is None else machine.rates(device)
    if not rates.links:
        if near < count:
            raise NotApplicable(
                "the device's link rate is unknown, and groups leave their node: give --device"
            )
        # The link rate cancels in the ratio of the two times.
        rates = rates._replace(links=1.0, is_mesh=False)
    if collective.startswith(("all_to_all", "alltoall")):
        return all_to_all_seconds(1, count, near, rates)
    return ring_seconds(1, count, near, rates)


def _spread(graph: Graph, meetings: Int) -> Float:
    """Standard deviation of the ranks' arrivals at each meeting, ns."""
    edges = np.flatnonzero(graph.edge == Edge.ARRIVAL)
    meeting = np.searchsorted(meetings, graph.dst[edges])
    late = (graph.start[graph.dst[edges]] - graph.start[graph.src[edges]]).astype(float)
    count = np.bincount(meeting, minlength=len(meetings))
    mean = np.bincount(meeting, late, len(meetings)) / np.maximum(count, 1)
    squares = np.bincount(meeting, (late - mean[meeting]) ** 2, len(meetings))
    deviation: Float = np.sqrt(squares / np.maximum(count - 1, 1))
    return deviation


def _range(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return f"{low}" if low == high else f"{low} to {high}"
