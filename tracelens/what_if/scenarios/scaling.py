"""The same program at another size: another device, more ranks, another element type, larger batches.

Kernels scale with their roofline times, transfers with the links or the planner's model of collectives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV, MatchedCollective
from tracelens.analysis.roofline import Counted, bounds, least_ns, reachable_time
from tracelens.arrays import Bool, Float, Int, lookup, unique
from tracelens.costs import OpCost
from tracelens.devices import MEASURED, Device, memory_rate, read_device
from tracelens.devices import device as device_named
from tracelens.dtypes import BITS, short_dtype
from tracelens.errors import TracelensError
from tracelens.trace import WORK_KINDS, Trace, collective_of, matching
from tracelens.units import duration
from tracelens.what_if.graph import Edge, Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario, work_costs
from tracelens.what_if.scenarios.changes import ALL_TO_ALLS, GPUS_PER_NODE

if TYPE_CHECKING:
    from tracelens.planner.step_time import Machine

_TIMES = re.compile(r"x?([1-9]\d{0,5})$")
# What programs call their groups: Megatron-LM's parallel_state and torch's meshes, by words.
_BY_DATA_OR_EXPERTS = re.compile(
    r"data|expert|optimizer|(?:^|_)(?:dp|edp|ep|moe|fsdp|hsdp)(?:_|$)", re.IGNORECASE
)
_INSIDE_A_MODEL = re.compile(r"tensor|pipeline|context|(?:^|_)(?:tp|pp|cp|sp|mp)(?:_|$)", re.IGNORECASE)
_OF_TOKENS = re.compile(r"expert|(?:^|_)(?:ep|moe)(?:_|$)", re.IGNORECASE)
_SPLITS = ("all_gather", "allgather", "_allgather", "reduce_scatter", "_reduce_scatter")

_GEMM_DIMS = {"M", "N", "K"}
_SUM_BITS = 16
"""Results and sums of narrower GEMMs are written in 16 bits."""
# Kernels of plain elementwise ops have a "lambda" in their names.
_OPTIMIZER = re.compile(r"multi_tensor|foreach|adam|lamb(?!da)|sgd|clip_grad", re.IGNORECASE)
_OF_PARAMETERS = re.compile(r"data|dp|embedding|optim|default", re.IGNORECASE)


class RankCosts(NamedTuple):
    """What the GPU work of one rank has to do."""

    cost: Int  # index into `costs` of each piece of work, -1 for none
    costs: Sequence[OpCost]  # of the calls
    names: Sequence[str]  # of their ops
    backward: Bool  # which pieces of work are backward
    parameters: Bool  # which are of the size of the parameters, not of the batch
    communication: Bool  # which are communication
    shortest_ns: int  # of its kernels
    device: Device | None  # that it ran on, None if unknown


def counted(trace: Trace, device: Device | None) -> tuple[list[Counted], Int]:
    """Kinds of calls of a rank with their costs, and the index among them of each activity, -1 for none."""
    costs = trace.once(work_costs)
    return costs.items, costs.item


def costs(trace: Trace, device: Device | None) -> RankCosts:
    """What the GPU work of a rank has to do."""
    work, counted = trace.work, trace.once(work_costs)
    kernels = work.dur[work.is_kernel & (work.dur > 0)]
    optimizer = matching(trace.arrays.names, _OPTIMIZER)
    parameters = matching(work.names, _OPTIMIZER)[work.name]
    parameters |= lookup(optimizer, lookup(trace.arrays.name, work.op, -1), False)
    return RankCosts(
        cost=counted.item,
        costs=[item.cost for item in counted.items],
        names=[item.name for item in counted.items],
        backward=work.forward >= 0,
        parameters=parameters,
        communication=work.kind == WORK_KINDS.index("comm"),
        shortest_ns=int(kernels.min()) if len(kernels) else 0,
        device=device,
    )


@scenario("device", argument="=NAME or FILE.toml", usual=(), reads=(counted,), in_reports=False)
def other_device(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """The run on another device: each kernel scales with its roofline time, the host stays the same.

    Assumes:
        Where both devices' memory was measured by size, the time that the bytes take changes as the measured
        rates do, and the rest of each kernel's time stays; a kernel without a cost model counts as one that
        only moves bytes. GEMMs, and other devices, keep their share of the roofline by data sheets; there, a
        kernel without a cost model scales with memory bandwidth.
        Transfers within a node scale with its links where both rates are known, others keep their time.
        Host time, launches and stream gaps stay the same.
    """
    target = read_device(argument) if argument.endswith(".toml") else device_named(argument)
    graph = context.gpu_graph()
    scaled_ns = {"roofline": 0.0, "memory": 0.0, "alone": 0.0}
    recorded_devices = []
    for index, rank in enumerate(graph.ranks):
        recorded = rank.device
        if recorded is None:
            raise NotApplicable(f"rank {rank.number}: unknown device; give --device")
        recorded_devices.append(recorded)
        items, item = context.read(counted)[index]
        factor, modelled = ratios(items, item, recorded, target)
        nodes = graph.nodes(index, Node.WORK)
        work_row = graph.work[nodes]
        comm = rank.is_comm[work_row]
        dur_ns = edit.dur[nodes].astype(float)
        factor = factor[work_row]
        if measured := _is_measured(recorded) and _is_measured(target):
            by_memory = ~modelled[work_row] | _moves_bytes(items, item)[work_row]
            curve = MemoryCurves(recorded, target)
            rows = np.flatnonzero(by_memory & (dur_ns > 0))
            moved = lookup(_moved(items), lookup(item, work_row[rows], -1), -1.0)
            factor[rows] = curve.scaled(dur_ns[rows], moved) / dur_ns[rows]
        scaled_ns["alone"] += dur_ns[comm].sum()
        scaled_ns["roofline"] += dur_ns[~comm & modelled[work_row]].sum()
        scaled_ns["memory"] += dur_ns[~comm & ~modelled[work_row]].sum()
        edit.set_dur(nodes, np.where(comm, dur_ns, dur_ns * factor))
    recorded = recorded_devices[0]
    meetings, collectives = context.meetings()
    ratio_by_size = np.array(
        [
            _between_devices(collective, recorded_devices[rank], target)
            for rank, collective in zip(graph.rank[meetings].tolist(), collectives, strict=True)
        ]
    )
    by_size = ratio_by_size > 0
    edit.set_dur(meetings[by_size], edit.dur[meetings[by_size]] * ratio_by_size[by_size])
    size = np.array([collective.participants[0].record.size for collective in collectives])[~by_size]
    meetings = meetings[~by_size]
    near = meetings[size <= GPUS_PER_NODE] if len(meetings) else meetings
    link_rates = np.array([device.gpu_link_bytes_per_s for device in recorded_devices])[graph.rank[near]]
    transfers = ""
    if len(meetings) and (not target.gpu_link_bytes_per_s or not (link_rates > 0).all()):
        transfers = "collectives keep their time, as a device's link rate is unknown"
    elif len(meetings):
        edit.set_dur(near, edit.dur[near] * link_rates / target.gpu_link_bytes_per_s)
        across = len(meetings) - len(near)
        transfers = (
            f"transfers of {len(near):,} collectives scale with the links of a node"
            f" ({recorded.gpu_link_bytes_per_s / target.gpu_link_bytes_per_s:.2f}), latency included"
            + (
                f", those of {across:,} over more than {GPUS_PER_NODE} ranks keep their time"
                if across
                else ""
            )
        )
    unknown = scaled_ns["memory"] / max(scaled_ns["memory"] + scaled_ns["roofline"], 1)
    parts = [
        f"bytes move at the rates measured by size on {target.title} instead of {recorded.title}; GEMMs keep "
        f"their roofline efficiency by data sheets; {unknown:.0%} of GPU time has no cost model and counts "
        "as moving bytes"
        if measured
        else f"kernels keep their roofline efficiency on {target.title} instead of {recorded.title}, by data "
        f"sheets; {unknown:.0%} of GPU time has no cost model and scales with memory bandwidth "
        f"({recorded.hbm_bytes_per_s / target.hbm_bytes_per_s:.2f})",
        f"transfers of {by_size.sum():,} collectives change as messages measured by size among "
        f"{recorded.measured.message_ranks} of {recorded.title} and {target.measured.message_ranks} of "
        f"{target.title}"
        if by_size.any()
        else "",
        transfers,
        "host time, launches and stream gaps stay the same",
        "communication recorded on one rank only keeps its time" if scaled_ns["alone"] else "",
    ]
    return ", ".join(filter(None, parts))


_SIZES = np.geomspace(1 << 12, 1 << 34, 200)
"""Bytes at which curves are looked up."""


class MemoryCurves:
    """How long moving bytes takes on two devices that were measured, by size."""

    def __init__(self, recorded: Device, target: Device) -> None:
        self._before_ns, self._after_ns = _curve_ns(recorded), _curve_ns(target)

    def scaled(self, dur_ns: Float, moved: Float) -> Float:
        """Durations on the other device of kernels that move so many bytes; -1 where that is not known."""
        # Of a kernel of which nothing is known, as many as would take all of its time.
        guessed = np.interp(dur_ns, self._before_ns, _SIZES)
        moved = np.where(moved < 0, guessed, moved)
        before, after = (np.interp(moved, _SIZES, curve) for curve in (self._before_ns, self._after_ns))
        # What a kernel takes beyond its bytes, and bytes that came from a cache, change nothing.
        share = np.minimum(1.0, dur_ns / np.maximum(before, 1e-9))
        result: Float = dur_ns + (after - before) * share
        return result


@lru_cache(maxsize=8)
def _curve_ns(device: Device) -> Float:
    """How long a device takes for as many bytes as each of _SIZES; all ranks of a run ask for the same."""
    return np.array([size * 1e9 / memory_rate(device, size).per_s for size in _SIZES.tolist()])


def _is_measured(device: Device) -> bool:
    return memory_rate(device, 1 << 26).source == MEASURED


def _moved(items: list[Counted]) -> Float:
    return np.array([item.cost.read_bytes + item.cost.write_bytes for item in items], dtype=float)


def _moves_bytes(items: list[Counted], item: Int) -> Bool:
    """Which activities have a cost without matrix work."""
    moves = np.array([entry.cost.engine != "matrix" and not entry.cost.link for entry in items], dtype=bool)
    return lookup(moves, item, False)


def ratios(items: list[Counted], item: Int, recorded: Device, target: Device) -> tuple[Float, Bool]:
    """Time on `target` / time on `recorded` of each of a rank's activities, and which of them are modeled.

    `items` and `item` are from `counted`.

    Uses max-achievable FLOP/s if both devices publish it for the type, else the data sheets' peaks.
    """
    known_bounds = [bounds(items, device) for device in (recorded, target)]
    both = (known_bounds[0].maf > 0) & (known_bounds[1].maf > 0)
    before, after = (np.where(both, bound.maf, bound.roofline) for bound in known_bounds)
    known = (before > 0) & (after > 0)
    memory = recorded.hbm_bytes_per_s / target.hbm_bytes_per_s
    ratio = np.where(known, after / np.where(known, before, 1.0), memory)
    return lookup(ratio, item, memory), lookup(known, item, False)


@scenario("ranks", argument="=xTIMES", usual=())
def ranks(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Weak scaling: more ranks with the same work each; data and expert groups grow.

    Assumes:
        Messages keep their efficiency, latency included. Arrivals spread as measured. Tensor, context and
        pipeline groups and all kernels stay the same.
    """
    # Reports change no size: they need none of the planner.
    from tracelens.planner import expected_maximum
    from tracelens.planner.step_time import Machine

    parsed = _TIMES.match(argument.strip())
    if not parsed or int(parsed[1]) < 2:
        raise TracelensError(
            f"scenario ranks={argument}: write ranks=x4 for four times the ranks, at least x2"
        )
    times, machine = int(parsed[1]), Machine()
    graph, (meetings, collectives) = context.gpu_graph(), context.meetings()
    # Groups of data and experts grow with the run, as do unknown ones; those inside a model do not.
    records = [collective.participants[0].record for collective in collectives]
    larger = np.array(
        [
            collective.collective != SEND_RECV
            and record.size >= 2
            and bool(
                _BY_DATA_OR_EXPERTS.search(record.description)
                or not _INSIDE_A_MODEL.search(record.description)
            )
            for collective, record in zip(collectives, records, strict=True)
        ],
        dtype=bool,
    )
    if not larger.any():
        raise NotApplicable("no collective of a data or expert group recorded on several ranks")
    # The standard deviation of the ranks' arrivals at each meeting, ns.
    edges = np.flatnonzero(graph.edge == Edge.ARRIVAL)
    row = np.searchsorted(meetings, graph.dst[edges])
    late = (graph.start[graph.dst[edges]] - graph.start[graph.src[edges]]).astype(float)
    arrivals = np.bincount(row, minlength=len(meetings))
    mean = np.bincount(row, late, len(meetings)) / np.maximum(arrivals, 1)
    squares = np.bincount(row, (late - mean[row]) ** 2, len(meetings))
    spread = np.sqrt(squares / np.maximum(arrivals - 1, 1))
    factors, waits = np.ones(len(collectives)), np.zeros(len(collectives))
    measured = 0
    for meeting in np.flatnonzero(larger).tolist():
        collective = collectives[meeting]
        device = graph.ranks[int(graph.rank[meetings[meeting]])].device
        size = records[meeting].size
        by_size = measured_ratio(collective, times, device, machine)
        measured += by_size is not None
        factors[meeting] = by_size or transfer_ratio(collective, times, device, machine)
        waits[meeting] = spread[meeting] * (expected_maximum(size * times) - expected_maximum(size))
    # The later arrival prolongs the meeting: no rank resumes before the transfer is over.
    edit.dur[meetings] = np.rint(edit.dur[meetings] * factors + waits).astype(np.int64)
    sizes = [records[meeting].size for meeting in np.flatnonzero(larger).tolist()]
    between = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    among = next((rank.device.measured.message_ranks for rank in graph.ranks if rank.device), "")
    by_curves = f"{measured:,} change as messages measured on the device among {among}; " if measured else ""
    return (
        f"{len(sizes):,} collectives over {between} ranks grow by {times}x; nodes have {machine.node} "
        f"GPUs with {machine.nic_bytes_per_s / 1e9:g} GB/s network each; {by_curves}messages keep their "
        "efficiency, latency included; arrivals are normally distributed with the measured spread of each "
        "collective, so "
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
    growth = _growth(collective, times, machine)
    before = _seconds(collective.collective, growth.ranks, growth.near, device, machine)
    after = _seconds(collective.collective, growth.grown, growth.grown_near, device, machine)
    return growth.bytes * after / before


def measured_ratio(
    collective: MatchedCollective, times: int, device: Device | None, machine: Machine
) -> float | None:
    """As `transfer_ratio`, by the times of its bytes that were measured on the device; None without both."""
    growth = _growth(collective, times, machine)
    before = _measured_s(collective, collective.bytes, growth.ranks, growth.near, device, machine)
    size = collective.bytes * growth.bytes
    after = _measured_s(collective, size, growth.grown, growth.grown_near, device, machine)
    return after / before if before and after else None


class _Growth(NamedTuple):
    """A process group, and what it grows to."""

    ranks: int
    near: int  # of these, ranks on one node
    grown: int
    grown_near: int
    bytes: int  # message / that of the smaller group


def _growth(collective: MatchedCollective, times: int, machine: Machine) -> _Growth:
    record = collective.participants[0].record
    size, near = record.size, min(record.size, machine.node)
    if record.group_ranks:
        # Group ranks on the node of the first one; consecutive ranks where the trace truncates the list.
        first_node = record.group_ranks[0] // machine.node
        near = sum(rank // machine.node == first_node for rank in record.group_ranks)
    rank_stride = record.group_ranks[1] - record.group_ranks[0] if len(record.group_ranks) > 1 else 1
    room = max(machine.node // max(rank_stride, 1), near)
    grown = size * times
    # In a group over several nodes, the ranks on the last, least filled node send most to other nodes.
    close = near if near < size else grown % room or room if grown > room else grown
    tokens = collective.collective.startswith(_SPLITS) and _OF_TOKENS.search(record.description)
    return _Growth(size, near, grown, close, times if tokens else 1)


def _measured_s(
    collective: MatchedCollective, size: float, count: int, near: int, device: Device | None, machine: Machine
) -> float:
    """Seconds of so many bytes as measured on the device, 0 where they were not."""
    from tracelens.planner import measured_time

    kind = collective_of(collective.collective)
    known = measured_time(kind, size, count, near, machine.rates(device)) if device else None
    return known.seconds if known else 0.0


def _between_devices(collective: MatchedCollective, recorded: Device, target: Device) -> float:
    """Time of a collective inside a node on `target` / on `recorded`, as measured on both; else -1."""
    from tracelens.planner.step_time import Machine

    count = collective.participants[0].record.size
    near = min(count, GPUS_PER_NODE)
    before, after = (
        _measured_s(collective, collective.bytes, count, near, device, Machine())
        for device in (recorded, target)
    )
    return after / before if before and after else -1.0


def _seconds(collective: str, count: int, near: int, device: Device | None, machine: Machine) -> float:
    """Seconds per byte of the full message."""
    from tracelens.planner import LinkRates, modeled_seconds

    rates = LinkRates(0.0, machine.nic_bytes_per_s, False) if device is None else machine.rates(device)
    if not rates.links:
        if near < count:
            raise NotApplicable(
                "the device's link rate is unknown, and groups leave their node: give --device"
            )
        # The link rate cancels in the ratio of the two times.
        rates = rates._replace(links=1.0, is_mesh=False)
    return modeled_seconds(collective_of(collective), 1, count, near, rates)


@scenario("dtype", argument="=TYPE", usual=(), reads=(costs,), in_reports=False)
def dtype(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GEMMs multiply in TYPE (fp8, bf16, fp32, ...); from 16 bits, the model and its messages are in it.

    Assumes:
        Each GEMM keeps its share of the roofline. Results stay at least 16 bits wide: of narrower types,
        casts, scales, other kernels and messages stay the same. Else other kernels of floating-point numbers,
        the optimizer and messages take as much time as they move bytes.
    """
    if argument not in BITS:
        raise TracelensError(f"scenario dtype={argument}: unknown type (known: {', '.join(BITS)})")
    graph, changed, before_ns, after_ns = context.gpu_graph(), 0, 0.0, 0.0
    new, replaced, other_ns = BITS[argument], set[str](), [0.0, 0.0]
    for rank, part in enumerate(context.read(costs)):
        ratio = np.ones(len(part.costs) + 1)
        multiplied = np.zeros(len(part.costs) + 1, dtype=bool)
        for row, cost in enumerate(part.costs):
            multiplied[row] = cost.engine == "matrix" and cost.flops > 0
            if multiplied[row] and cost.dtype != argument and cost.dtype in BITS:
                replaced.add(cost.dtype)
                if part.device is None:
                    raise NotApplicable(f"trace {rank}: unknown device; give --device")
                if not part.device.peak("matrix", argument):
                    raise NotApplicable(
                        f"{part.device.title} has no matrix units for {argument}, by its device file"
                    )
                old = BITS[cost.dtype]
                of_type = cost._replace(
                    dtype=argument,
                    read_bytes=round(cost.read_bytes * new / old),
                    write_bytes=round(cost.write_bytes * (max(new, _SUM_BITS) / max(old, _SUM_BITS))),
                )
                ratio[row] = _ratio(cost, of_type, part.device)
        nodes = graph.nodes(rank, Node.WORK)
        work = graph.work[nodes]
        gemms = multiplied[part.cost[work]]
        dur_ns = edit.dur[nodes].astype(float)
        factor = ratio[part.cost[work]]
        # Those of the model: a type of which no GEMM is was not meant, such as that of a loss.
        if new >= _SUM_BITS and replaced:
            moved = np.ones(len(part.costs) + 1)
            for row, cost in enumerate(part.costs):
                if not multiplied[row] and not cost.link and cost.dtype in replaced:
                    moved[row] = new / BITS[cost.dtype]
            factor = np.where(gemms, factor, moved[part.cost[work]])
            of_optimizer = part.parameters[work] & (part.cost[work] < 0)
            factor[of_optimizer] = new / max(BITS[name] for name in replaced)
        edit.set_dur(nodes, dur_ns * factor)
        after = edit.dur[nodes].astype(float)
        before_ns, after_ns = before_ns + float(dur_ns[gemms].sum()), after_ns + float(after[gemms].sum())
        other_ns[0] += float(dur_ns[~gemms].sum())
        other_ns[1] += float(after[~gemms].sum())
        changed += int((gemms & (factor != 1)).sum())
    if not changed:
        raise NotApplicable(f"no GEMM of another type than {argument} with recorded shapes")
    rest = "casts, scales, other kernels and messages stay the same"
    if new >= _SUM_BITS:
        meetings, collectives = context.meetings()
        types = [short_dtype(each.participants[0].record.dtype) for each in collectives]
        factor = np.array([new / BITS[name] if name in replaced else 1.0 for name in types], dtype=float)
        edit.set_dur(meetings, edit.dur[meetings] * factor)
        rest = (
            f"other kernels take {duration(other_ns[1])} instead of {duration(other_ns[0])}, as much as "
            f"they move fewer or more bytes, transfers of {int((factor != 1).sum()):,} messages likewise"
        )
    return (
        f"{changed:,} GEMMs and attentions read operands in {argument}: {duration(after_ns)} instead of "
        f"{duration(before_ns)} over all ranks; each keeps its share of the roofline; results stay at least "
        f"16 bits wide; {rest}"
    )


def _ratio(before: OpCost, after: OpCost, device: Device, unknown: float = 1.0) -> float:
    """Least time of one call / that of another; `unknown` where one of them is."""
    least = [least_ns(cost, device) for cost in (before, after)]
    return least[1] / least[0] if min(least) > 0 else unknown


@scenario("batch", argument="=FACTOR", usual=(), reads=(costs,), in_reports=False)
def batch(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """FACTOR times as many tokens in each micro-batch.

    Assumes:
        GEMMs and attention scale as the device's rates for their sizes, other work with a cost model with
        its roofline time; weights keep their size. Other kernels scale by FACTOR. Messages of tokens scale,
        latency included. Optimizer, gradient messages and host stay the same.
    """
    factor, graph = number(argument, f"batch={argument}"), context.gpu_graph()
    modelled_ns, total_ns = 0.0, 0.0
    for rank, part in enumerate(context.read(costs)):
        if part.device is None:
            raise NotApplicable(f"trace {rank}: unknown device; give --device")
        # The first sizes of GEMMs of the forward pass are numbers of tokens.
        forward = unique(part.cost[(part.cost >= 0) & ~part.backward]).tolist()
        dims = [dict(part.costs[row].dims) for row in forward]
        tokens = frozenset(sizes["M"] for sizes in dims if sizes.keys() >= _GEMM_DIMS)
        ratio, of_backward = np.full((2, len(part.costs) + 1), factor)
        for row, (name, cost) in enumerate(zip(part.names, part.costs, strict=True)):
            ratio[row] = _grown(name, cost, _of_batch(cost, factor, frozenset()), part.device, factor)
            of_backward[row] = _grown(name, cost, _of_batch(cost, factor, tokens), part.device, factor)
        nodes = graph.nodes(rank, Node.WORK)
        work = graph.work[nodes]
        scale = np.where(part.backward[work], of_backward[part.cost[work]], ratio[part.cost[work]])
        scale[part.parameters[work] | part.communication[work]] = 1.0
        own_ns = edit.dur[nodes].astype(float)
        fixed: Float = np.minimum(own_ns, part.shortest_ns)
        edit.set_dur(nodes, fixed + (own_ns - fixed) * scale)
        modelled_ns += float(own_ns[(part.cost[work] >= 0) & ~part.communication[work]].sum())
        total_ns += float(own_ns[~part.communication[work]].sum())
    meetings, collectives = context.meetings()
    of_tokens = np.array(
        [
            collective.collective == SEND_RECV
            or collective.collective.startswith(ALL_TO_ALLS)
            or not _OF_PARAMETERS.search(collective.participants[0].record.description or "default")
            for collective in collectives
        ],
        dtype=bool,
    )
    edit.set_dur(meetings[of_tokens], edit.dur[meetings[of_tokens]] * factor)
    edit.tokens *= factor
    return (
        f"{modelled_ns / max(total_ns, 1):.0%} of the GPU time has a cost model: GEMMs and attention scale "
        "as the device's rates for their sizes, the rest with its roofline time; weights keep their size; "
        f"other kernels scale by {factor:g}; each keeps the time of the shortest kernel; transfers of "
        f"{int(of_tokens.sum()):,} messages of tokens scale, latency included; the optimizer, gradient "
        "messages and the host stay the same"
    )


def _grown(name: str, before: OpCost, after: OpCost, device: Device, unknown: float) -> float:
    """Time of a larger call / that of the recorded one; of GEMMs at the rates for their sizes."""
    if before.engine == "matrix":
        needed = [reachable_time(name, cost, device).ns for cost in (before, after)]
        if min(needed) > 0:
            return needed[1] / needed[0]
    return _ratio(before, after, device, unknown)


def _of_batch(cost: OpCost, factor: float, tokens: frozenset[int]) -> OpCost:
    """The same call with more tokens.

    Of a GEMM's three matrices two have a row per token; the third is a weight, or its gradient, which is a
    sum over as many as one of `tokens`.
    """
    grown = cost._replace(
        flops=round(cost.flops * factor),
        read_bytes=round(cost.read_bytes * factor),
        write_bytes=round(cost.write_bytes * factor),
    )
    dims = dict(cost.dims)
    if cost.engine != "matrix":
        return grown
    if not dims.keys() >= _GEMM_DIMS or dims.get("B", 1) > 1:
        return grown._replace(dims=_times(cost, "B", factor))
    if dims["K"] in tokens and dims["M"] not in tokens:
        return grown._replace(write_bytes=cost.write_bytes, dims=_times(cost, "K", factor))
    weights = dims.get("G", 1) * dims["K"] * dims["N"] * BITS.get(cost.dtype, 0) // 8
    weights = min(weights, cost.read_bytes)
    read = weights + round((cost.read_bytes - weights) * factor)
    return grown._replace(read_bytes=read, dims=_times(cost, "M", factor))


def _times(cost: OpCost, dim: str, factor: float) -> tuple[tuple[str, int], ...]:
    """Its sizes with one of them larger."""
    return tuple((name, max(round(size * factor), 1) if name == dim else size) for name, size in cost.dims)
