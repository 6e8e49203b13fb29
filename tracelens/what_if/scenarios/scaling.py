"""The same program at another size: more ranks, another element type, larger batches.

Kernels scale with their roofline times, transfers with the planner's model of collectives.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV, MatchedCollective
from tracelens.analysis.roofline import least_ns, reachable_time
from tracelens.arrays import Bool, Float, Int, lookup, unique
from tracelens.costs import OpCost
from tracelens.devices import Device
from tracelens.dtypes import BITS, short_dtype
from tracelens.errors import TracelensError
from tracelens.trace import WORK_KINDS, Trace, matching
from tracelens.units import duration
from tracelens.what_if.graph import Edge, Edit, Node
from tracelens.what_if.scenario import NotApplicable, ScenarioContext, number, scenario, work_costs
from tracelens.what_if.scenarios.changes import ALL_TO_ALLS

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
    for meeting in np.flatnonzero(larger).tolist():
        collective = collectives[meeting]
        device = graph.ranks[int(graph.rank[meetings[meeting]])].device
        size = records[meeting].size
        factors[meeting] = transfer_ratio(collective, times, device, machine)
        waits[meeting] = spread[meeting] * (expected_maximum(size * times) - expected_maximum(size))
    # The later arrival prolongs the meeting: no rank resumes before the transfer is over.
    edit.dur[meetings] = np.rint(edit.dur[meetings] * factors + waits).astype(np.int64)
    sizes = [records[meeting].size for meeting in np.flatnonzero(larger).tolist()]
    between = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    return (
        f"{len(sizes):,} collectives over {between} ranks grow by {times}x; nodes have {machine.node} "
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
    record = collective.participants[0].record
    before, after = (transfer_seconds(collective, device, machine, grown) for grown in (1, times))
    tokens = collective.collective.startswith(_SPLITS) and _OF_TOKENS.search(record.description)
    return (times if tokens else 1) * after / before


def transfer_seconds(
    collective: MatchedCollective, device: Device | None, machine: Machine, times: int = 1
) -> float:
    """Seconds per byte of the full message among `times` as many ranks as recorded.

    Raises:
        NotApplicable: the group leaves its node and the link rate is unknown.
    """
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
    close = near if near < size or times == 1 else grown % room or room if grown > room else grown
    return _seconds(collective.collective, grown, close, device, machine)


def _seconds(collective: str, count: int, near: int, device: Device | None, machine: Machine) -> float:
    """Seconds per byte of the full message."""
    from tracelens.planner import LinkRates, all_to_all_seconds, ring_seconds

    rates = LinkRates(0.0, machine.nic_bytes_per_s, False) if device is None else machine.rates(device)
    if not rates.links:
        if near < count:
            raise NotApplicable(
                "the device's link rate is unknown, and groups leave their node: give --device"
            )
        # The link rate cancels in the ratio of the two times.
        rates = rates._replace(links=1.0, is_mesh=False)
    if collective.startswith(ALL_TO_ALLS):
        return all_to_all_seconds(1, count, near, rates)
    return ring_seconds(1, count, near, rates)


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
