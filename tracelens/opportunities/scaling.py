"""The same program at another size: another device, more ranks, larger batches.

Kernels scale with their times at the rates of a device, transfers with the planner's model of collectives. On
another device, a kernel is priced by the rates of both: measured, else modeled. Where either is neither, both
are of data sheets, so that no measurement is compared with a peak.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import SEND_RECV, MatchedCollective
from tracelens.analysis.roofline import CostColumns, Counted, bounds, least_ns, reachable_time
from tracelens.arrays import Bool, Float, Int, lookup, unique
from tracelens.costs import OpCost
from tracelens.devices import DATA_SHEET, MEASURED, Device, memory_rate, read_device
from tracelens.devices import device as device_named
from tracelens.dtypes import BITS
from tracelens.errors import TracelensError
from tracelens.trace import WORK_KINDS, Trace, collective_of, fitting
from tracelens.what_if import NotApplicable, ScenarioContext, number, scenario, work_costs
from tracelens.what_if.graph import ALL_TO_ALLS, Edge, Edit, Node

if TYPE_CHECKING:
    from tracelens.planner.step_time import Machine

LEAST_SHARE = 0.005
"""Of the time of kernels, from which a kind of them is named: a smaller one would be 0% or so."""

_MEMORY, _LINK, _UNKNOWN = "memory-bound kernels", "copies over a link", "kernels without a cost model"

_SIZES = np.geomspace(1 << 12, 1 << 34, 200)
"""Bytes at which memory rates are looked up."""

_TIMES = re.compile(r"x?([1-9]\d{0,5})$")
# What programs call their groups: Megatron-LM's parallel_state and torch's meshes, by words.
_BY_DATA_OR_EXPERTS = re.compile(
    r"data|expert|optimizer|(?:^|_)(?:dp|edp|ep|moe|fsdp|hsdp)(?:_|$)", re.IGNORECASE
)
_INSIDE_A_MODEL = re.compile(r"tensor|pipeline|context|(?:^|_)(?:tp|pp|cp|sp|mp)(?:_|$)", re.IGNORECASE)
_OF_TOKENS = re.compile(r"expert|(?:^|_)(?:ep|moe)(?:_|$)", re.IGNORECASE)
_SPLITS = ("all_gather", "allgather", "_allgather", "reduce_scatter", "_reduce_scatter")

_GEMM_DIMS = {"M", "N", "K"}
# Kernels of plain elementwise ops have a "lambda" in their names.
_OPTIMIZER = re.compile(r"multi_tensor|foreach|adam|lamb(?!da)|sgd|clip_grad", re.IGNORECASE)
_OF_PARAMETERS = re.compile(r"data|dp|embedding|optim|default", re.IGNORECASE)


class RankCosts(Struct, frozen=True):
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
    parameters = fitting(work.names, work.name, _OPTIMIZER)
    has_op = work.op >= 0
    parameters[has_op] |= fitting(trace.arrays.names, trace.arrays.name[work.op[has_op]], _OPTIMIZER)
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
    """The run on another device: kernels scale as the measured or modeled rates of both, the host stays.

    Assumes:
        Kernels keep their share of the rates that a device reaches for their sizes: those that were measured,
        else modeled (GEMMs of AMD GPUs by macro tiles), else those of the data sheets of both. Where the
        memory of both was measured, what a kernel takes beyond its bytes stays. A kernel without a cost model
        counts as one that only moves bytes.
        Transfers scale as the planner's model of links and network has them, latency included.
        Host time, launches and stream gaps stay the same.
    """
    target = read_device(argument) if argument.endswith(".toml") else device_named(argument)
    graph = context.gpu_graph()
    priced_ns: dict[tuple[str, str], float] = defaultdict(float)
    devices, keeps_communication = [], False
    for index, rank in enumerate(graph.ranks):
        if rank.device is None:
            raise NotApplicable(f"rank {rank.number}: unknown device; give --device")
        devices.append(rank.device)
        items, item = context.read(counted)[index]
        nodes = graph.nodes(index, Node.WORK)
        row, dur_ns = graph.work[nodes], edit.dur[nodes].astype(float)
        computes = ~rank.is_comm[row]
        kind = lookup(item, row, -1)[computes]
        prices = Prices.of(items, rank.device, target)
        edit.set_dur(nodes[computes], prices.scaled(dur_ns[computes], kind))
        keeps_communication |= bool(dur_ns[~computes].any())
        spent_ns = np.bincount(kind + 1, dur_ns[computes], minlength=len(items) + 1)
        # The first is of kind -1, whose price is the last.
        for name, ns in zip(prices.name, np.roll(spent_ns, -1).tolist(), strict=True):
            priced_ns[name] += ns
    total_ns = max(sum(priced_ns.values()), 1.0)
    shares = [
        f"{ns / total_ns:.0%} {name} ({basis})"
        for (name, basis), ns in sorted(priced_ns.items(), key=lambda each: -each[1])
        if ns >= LEAST_SHARE * total_ns
    ]
    host = "host time, launches and stream gaps stay the same"
    if target.vendor != devices[0].vendor:
        host += ", although launches go through another vendor's software"
    parts = [
        f"kernels keep their efficiency on {target.title} instead of {devices[0].title}; the rates of both "
        f"are, by the time of kernels: {', '.join(shares) or 'none'}",
        _change_transfers(context, edit, devices, target),
        host,
        "communication recorded on one rank only keeps its time" if keeps_communication else "",
    ]
    return "; ".join(filter(None, parts))


class Prices(Struct, frozen=True):
    """Kinds of calls on two devices, of one array element each; the last is for work without a cost model."""

    name: list[tuple[str, str]]  # what they are, and what their rates are known from
    before_ns: Float  # at the rates of the device that they ran on; -1 where not known
    after_ns: Float  # at those of the other
    keeps_rest: Bool  # whether what they take beyond that stays, instead of scaling
    curve_ns: tuple[Float, Float]  # of both devices, for as many bytes as each of _SIZES

    @classmethod
    def of(cls, items: list[Counted], recorded: Device, target: Device) -> Prices:
        both, name, before_ns, after_ns = (recorded, target), [], [], []
        unknown = (_UNKNOWN, _bases(*(memory_rate(device, _SIZES[-1]).basis for device in both)))
        for item, *by_sheet in zip(items, *_by_data_sheets(items, *both), strict=True):
            reached = [reachable_time(item.name, item.cost, device) for device in both]
            bases = _bases(*(DATA_SHEET if item.cost.link else each.basis for each in reached))
            least_ns = by_sheet if bases == DATA_SHEET else [each.ns for each in reached]
            known = min(least_ns) > 0
            name.append((_kind(item.cost), bases) if known else unknown)
            before_ns.append(least_ns[0] if known else -1.0)
            after_ns.append(least_ns[1] if known else -1.0)
        keeps_rest = [kind in (_MEMORY, _UNKNOWN) and basis == MEASURED for kind, basis in (*name, unknown)]
        return cls(
            name=[*name, unknown],
            before_ns=np.array([*before_ns, -1.0]),
            after_ns=np.array([*after_ns, -1.0]),
            keeps_rest=np.array(keeps_rest),
            curve_ns=(_curve_ns(recorded), _curve_ns(target)),
        )

    def scaled(self, dur_ns: Float, kind: Int) -> Float:
        """Durations on the other device of work of these kinds; -1 is the last."""
        before, after = self.before_ns[kind], self.after_ns[kind]
        # Of a kernel of which nothing is known, as many bytes as would take all of its time.
        moved = np.interp(dur_ns, self.curve_ns[0], _SIZES)
        guessed = [np.interp(moved, _SIZES, curve) for curve in self.curve_ns]
        before, after = np.where(before < 0, guessed[0], before), np.where(before < 0, guessed[1], after)
        # Bytes that came from a cache change nothing.
        share = dur_ns / np.maximum(before, 1e-9)
        share = np.where(self.keeps_rest[kind], np.minimum(share, 1.0), share)
        result: Float = dur_ns + (after - before) * share
        return result


def _kind(cost: OpCost) -> str:
    dims = dict(cost.dims)
    if cost.link:
        return _LINK
    if cost.engine != "matrix" or not cost.flops:
        return _MEMORY
    if dims.get("G", 1) > 1 or {"E", "rows"} <= dims.keys():
        return "grouped GEMMs"
    if dims.keys() >= _GEMM_DIMS:
        return "GEMMs"
    return "attention" if "Nq" in dims else "other matrix work"


def _bases(before: str, after: str) -> str:
    """What the rates of two devices are known from; where one is from a data sheet, both are."""
    if DATA_SHEET in (before, after):
        return DATA_SHEET
    return before if before == after else f"{before} -> {after}"


def _by_data_sheets(
    items: list[Counted], recorded: Device, target: Device
) -> tuple[list[float], list[float]]:
    """Least times on both devices, -1 where not known; max-achievable where both publish it for the type."""
    costs = CostColumns.of(item.cost for item in items)
    known = [bounds(costs, device) for device in (recorded, target)]
    both = (known[0].maf > 0) & (known[1].maf > 0)
    return tuple(np.where(both, bound.maf, bound.roofline).tolist() for bound in known)


@lru_cache(maxsize=8)
def _curve_ns(device: Device) -> Float:
    """How long a device takes for as many bytes as each of _SIZES; all ranks of a run ask for the same."""
    return np.array([size * 1e9 / memory_rate(device, size).per_s for size in _SIZES.tolist()])


def _change_transfers(context: ScenarioContext, edit: Edit, devices: list[Device], target: Device) -> str:
    """Scale the transfers of collectives that meet; says how."""
    from tracelens.planner.step_time import Machine

    meetings, collectives = context.meetings()
    if not len(meetings):
        return ""
    machine, recorded = Machine(), [devices[rank] for rank in context.graph.rank[meetings].tolist()]
    transfers = [
        transfer_ratio(collective, device, target, machine)
        for collective, device in zip(collectives, recorded, strict=True)
    ]
    ratio = np.array([transfer.ratio for transfer in transfers])
    edit.set_dur(meetings, edit.dur[meetings] * ratio)
    parts = []
    if measured := sum(transfer.is_measured for transfer in transfers):
        parts.append(
            f"transfers of {measured:,} collectives change as messages measured by size among "
            f"{devices[0].measured.message_ranks} of {devices[0].title} and "
            f"{target.measured.message_ranks} of {target.title}"
        )
    rest = [transfer.ratio for transfer in transfers if not transfer.is_measured]
    if rest and not all(device.gpu_link_bytes_per_s for device in (target, *devices)):
        parts.append("collectives keep their time, as a device's link rate is unknown")
    elif rest:
        between = " to ".join(dict.fromkeys((f"{min(rest):.2f}", f"{max(rest):.2f}")))
        parts.append(
            f"transfers of {len(rest):,} collectives scale by {between}, latency included, by the planner's "
            f"model of links ({machine.node} GPUs per node, "
            f"{machine.nic_bytes_per_s / 1e9:g} GB/s network each)"
        )
    return "; ".join(parts)


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
    factors, waits, measured = np.ones(len(collectives)), np.zeros(len(collectives)), 0
    for meeting in np.flatnonzero(larger).tolist():
        collective = collectives[meeting]
        device = graph.ranks[int(graph.rank[meetings[meeting]])].device
        size = records[meeting].size
        factors[meeting], is_measured = transfer_ratio(collective, device, device, machine, times)
        measured += is_measured
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
        f"the last rank arrives {waits[larger].mean() / 1e3:,.0f} µs later on average; tensor, context and "
        "pipeline groups and all kernels stay the same"
    )


class TransferRatio(NamedTuple):
    """Transfer time of a collective / that of the recorded one."""

    ratio: float
    is_measured: bool  # as the times of its bytes are on both devices


def transfer_ratio(
    collective: MatchedCollective,
    recorded: Device | None,
    target: Device | None,
    machine: Machine,
    times: int = 1,
) -> TransferRatio:
    """Of a collective on `target` and over `times` the ranks.

    As measured on both devices inside a node, else by the model of `tracelens.planner.collectives`, which
    holds for messages of any size; 1 where links are unknown. Gathered or scattered data grows with the ranks
    if it is tokens (expert groups), not if it is parameters or gradients.

    Raises:
        NotApplicable: the group leaves its node and the link rate is unknown.
    """
    from tracelens.planner import LinkRates, measured_time, modeled_seconds

    record = collective.participants[0].record
    if record.size < 2:
        return TransferRatio(1.0, False)
    kind = collective_of(collective.collective)
    tokens = collective.collective.startswith(_SPLITS) and _OF_TOKENS.search(record.description)
    growth = times if tokens else 1
    groups = [_ranks(collective, 1, machine), _ranks(collective, times, machine)]
    rates = [
        LinkRates(0.0, machine.nic_bytes_per_s, False) if device is None else machine.rates(device)
        for device in (recorded, target)
    ]
    sizes = (collective.bytes, collective.bytes * growth)
    before, after = (
        measured_time(kind, size, *group, rate)
        for size, group, rate in zip(sizes, groups, rates, strict=True)
    )
    if before and after:
        return TransferRatio(after.seconds / before.seconds, True)
    if not all(rate.links for rate in rates):
        if recorded is not target:
            return TransferRatio(1.0, False)
        if any(near < count for count, near in groups):
            raise NotApplicable(
                "the device's link rate is unknown, and groups leave their node: give --device"
            )
        # The link rate cancels in the ratio of the two times.
        rates = [rate._replace(links=1.0, is_mesh=False) for rate in rates]
    before_s, after_s = (
        modeled_seconds(kind, 1, *group, rate) for group, rate in zip(groups, rates, strict=True)
    )
    return TransferRatio(growth * after_s / before_s, False)


def _ranks(collective: MatchedCollective, times: int, machine: Machine) -> tuple[int, int]:
    """Ranks of a group that grows, and of these on one node, the last, least filled one of several."""
    record = collective.participants[0].record
    size, near = record.size, min(record.size, machine.node)
    if record.group_ranks:
        # Group ranks on the node of the first one; consecutive ranks where the trace truncates the list.
        first_node = record.group_ranks[0] // machine.node
        near = sum(rank // machine.node == first_node for rank in record.group_ranks)
    if near < size or times == 1:
        return size * times, near
    rank_stride = record.group_ranks[1] - record.group_ranks[0] if len(record.group_ranks) > 1 else 1
    room = max(machine.node // max(rank_stride, 1), near)
    grown = size * times
    return grown, grown % room or room if grown > room else grown


def time_ratio(before: OpCost, after: OpCost, device: Device, unknown: float = 1.0) -> float:
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
    return time_ratio(before, after, device, unknown)


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
        return grown._replace(dims=_times(cost, "rows" if "rows" in dims else "B", factor))
    if dims["K"] in tokens and dims["M"] not in tokens:
        return grown._replace(write_bytes=cost.write_bytes, dims=_times(cost, "K", factor))
    weights = dims.get("G", 1) * dims["K"] * dims["N"] * BITS.get(cost.dtype, 0) // 8
    weights = min(weights, cost.read_bytes)
    read = weights + round((cost.read_bytes - weights) * factor)
    return grown._replace(read_bytes=read, dims=_times(cost, "M", factor))


def _times(cost: OpCost, dim: str, factor: float) -> tuple[tuple[str, int], ...]:
    """Its sizes with one of them larger."""
    return tuple((name, max(round(size * factor), 1) if name == dim else size) for name, size in cost.dims)
