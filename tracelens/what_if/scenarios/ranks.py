"""So many times the ranks, each with the work that it has (weak scaling)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from tracelens.analysis.comm import SEND_RECV, MatchedCollective
from tracelens.arrays import Float, Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner import Rates, all_to_all_seconds, ring_seconds
from tracelens.planner.step_time import Machine
from tracelens.what_if.graph import ARRIVAL, MEET, Edit, Graph
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.scenarios.devices import device_of

_TIMES = re.compile(r"x?([1-9]\d{0,5})$")
# What programs call their groups: Megatron-LM's parallel_state and torch's meshes, by words.
_BY_DATA_OR_EXPERTS = re.compile(
    r"data|expert|optimizer|(?:^|_)(?:dp|edp|ep|moe|fsdp|hsdp)(?:_|$)", re.IGNORECASE
)
_INSIDE_A_MODEL = re.compile(r"tensor|pipeline|context|(?:^|_)(?:tp|pp|cp|sp|mp)(?:_|$)", re.IGNORECASE)
_OF_TOKENS = re.compile(r"expert|(?:^|_)(?:ep|moe)(?:_|$)", re.IGNORECASE)
_FAR = 9.0
"""Standard deviations beyond which the normal distribution has nothing that counts."""
_SPLITS = ("all_gather", "allgather", "_allgather", "reduce_scatter", "_reduce_scatter")


@scenario("ranks", argument="=xTIMES", usual=())
def ranks(scene: ScenarioContext, edit: Edit, argument: str) -> str:
    """So many times the ranks with the same work each: groups over data and experts grow."""
    found = _TIMES.match(argument.strip())
    if not found or int(found[1]) < 2:
        raise TracelensError(
            f"scenario ranks={argument}: write ranks=x4 for four times the ranks, at least x2"
        )
    times, machine = int(found[1]), Machine()
    graph, instances = scene.recorded.graph, scene.recorded.exchanges.instances
    if all(trace.meta.cpu_only for trace in graph.run.traces):
        raise NotApplicable("the host does all the work of this run, and no GPU's links carry its messages")
    meetings = np.flatnonzero(graph.kind == MEET)
    chosen = [instances[one] for one in graph.instance[meetings].tolist()]
    larger = np.array([_grows(one) for one in chosen], dtype=bool)
    if not larger.any():
        raise NotApplicable("no collective over data or experts that several ranks of the run recorded")
    factors, waits, spread = np.ones(len(chosen)), np.zeros(len(chosen)), _spread(graph, meetings)
    for at in np.flatnonzero(larger).tolist():
        one = chosen[at]
        device = device_of(scene, graph.run.traces[int(graph.rank[meetings[at]])])
        size = one.participants[0].record.size
        factors[at] = transfer_ratio(one, times, device, machine)
        waits[at] = spread[at] * (expected_maximum(size * times) - expected_maximum(size))
    # A transfer that begins later: no rank goes on before it is over.
    edit.dur[meetings] = np.rint(edit.dur[meetings] * factors + waits).astype(np.int64)
    sizes = [one.participants[0].record.size for one, grown in zip(chosen, larger, strict=True) if grown]
    return (
        f"{len(sizes):,} collectives over {_range(sizes)} ranks now have {times} times as many; a node has "
        f"{machine.node} GPUs and {machine.nic_bytes_per_s / 1e9:g} GB/s to others for each; messages keep "
        "their efficiency, latency included; ranks arrive as if drawn from one normal distribution with the "
        f"spread that each collective shows, so the last comes {waits[larger].mean() / 1e3:,.0f} us later; "
        "groups inside of a model (tensor, context, pipeline) and all work stay as they are"
    )


def transfer_ratio(one: MatchedCollective, times: int, device: Device | None, machine: Machine) -> float:
    """Transfer time of a collective over so many times the ranks / that of the recorded one.

    How bytes travel is told in `tracelens.planner.collectives`, and holds for messages of any size.
    What is gathered or scattered grows with the ranks where it is tokens (groups of experts), and stays where
    it is parameters or gradients.

    Raises:
        NotApplicable: the group leaves its node and the links' rate is not known.
    """
    size, near = one.participants[0].record.size, _neighbours(one, machine.node)
    record = one.participants[0].record
    stride = record.group_ranks[1] - record.group_ranks[0] if len(record.group_ranks) > 1 else 1
    room = max(machine.node // max(stride, 1), near)
    grown = size * times
    # Of a group that fills some nodes the ranks on the last one, where they are fewest, send most away.
    close = near if near < size else grown % room or room if grown > room else grown
    before = _seconds(one.collective, size, near, device, machine)
    after = _seconds(one.collective, grown, close, device, machine)
    tokens = one.collective.startswith(_SPLITS) and _OF_TOKENS.search(record.description)
    return (times if tokens else 1) * after / before


def expected_maximum(count: int) -> float:
    """Expected largest of so many draws from the standard normal distribution.

    The integral of x n phi(x) Phi(x)^(n-1) (Tippett, Biometrika 17, 1925), here by parts.
    """
    x = np.linspace(-_FAR, _FAR, 4_001)
    below = np.array([0.5 * (1 + math.erf(one / math.sqrt(2))) for one in x.tolist()])
    # By parts: what lies above each point, less what lies below it on the other side of zero.
    return float(_FAR - np.trapezoid(below**count, x))


def _grows(one: MatchedCollective) -> bool:
    """Whether a collective's group has more ranks when the run has."""
    record = one.participants[0].record
    if one.collective == SEND_RECV or record.size < 2:
        return False
    return bool(_BY_DATA_OR_EXPERTS.search(record.description)) or not _INSIDE_A_MODEL.search(
        record.description
    )


def _neighbours(one: MatchedCollective, node: int) -> int:
    """Ranks of a group on the node of its first one; where the trace cut the list off, ranks that follow."""
    record = one.participants[0].record
    if not record.group_ranks:
        return min(record.size, node)
    first = record.group_ranks[0] // node
    return sum(rank // node == first for rank in record.group_ranks)


def _seconds(collective: str, count: int, near: int, device: Device | None, machine: Machine) -> float:
    """Per byte of the full message."""
    rates = Rates(0.0, machine.nic_bytes_per_s, False) if device is None else machine.rates(device)
    if not rates.links:
        if near < count:
            raise NotApplicable(
                "the device's link rate is not known, and groups leave their node: give --device"
            )
        # The links' rate is in both times, and falls out of their ratio.
        rates = rates._replace(links=1.0, is_mesh=False)
    if collective.startswith(("all_to_all", "alltoall")):
        return all_to_all_seconds(1, count, near, rates)
    return ring_seconds(1, count, near, rates)


def _spread(graph: Graph, meetings: Int) -> Float:
    """Standard deviation of the ranks' arrivals at each meeting, ns."""
    place = np.full(len(graph), -1, dtype=np.int64)
    place[meetings] = np.arange(len(meetings))
    edges = np.flatnonzero(graph.edge == ARRIVAL)
    at = place[graph.dst[edges]]
    late = (graph.start[graph.dst[edges]] - graph.start[graph.src[edges]]).astype(float)
    count = np.bincount(at, minlength=len(meetings))
    mean = np.bincount(at, late, len(meetings)) / np.maximum(count, 1)
    squares = np.bincount(at, (late - mean[at]) ** 2, len(meetings))
    found: Float = np.sqrt(squares / np.maximum(count - 1, 1))
    return found


def _range(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return f"{low}" if low == high else f"{low} to {high}"
