"""GEMMs next to tensor-parallel collectives of the same tensor."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.fusable.moe_stages import EXPOSED, StepWork
from tracelens.arrays import Bool, Float, Int, isin, numbered, ordered, unique
from tracelens.costs import OpCost
from tracelens.devices import Device
from tracelens.dtypes import BITS
from tracelens.table import codes, sums
from tracelens.trace import WORK_KINDS

REDUCE, SCATTER, GATHER = "all-reduce", "reduce-scatter", "all-gather"

_KINDS = {
    "allreduce": REDUCE, "all_reduce": REDUCE, "reduce_scatter": SCATTER, "allgather": GATHER,
    "all_gather": GATHER,
}  # fmt: skip
_ORDER = [REDUCE, SCATTER, GATHER]
# What frameworks call groups that hold the parts of one matrix, and others.
_TENSOR = re.compile(r"tensor|(?:^|[^a-z])tp(?:$|[^a-z])")
_OTHER = re.compile(
    r"expert|data|pipeline|context|embedding|optim|(?:^|[^a-z])(?:dp|ep|pp|cp|fsdp)(?:$|[^a-z])"
)


class GemmCollectivePairs(Struct, frozen=True):
    """Each GEMM with the collective directly after or before it."""

    row: Int  # the collective's place in the work of the context
    op: Int  # event row of the GEMM's op
    kind: Int  # of the collective, code into `kinds`
    cost: Int  # of the GEMM, code into `costs`
    message: Int  # bytes of the whole tensor
    ranks: Int  # in the group
    gemm_ns: Int  # GPU time of the GEMM
    serial: Bool  # whether the one ends before the other begins
    kinds: list[str]
    costs: list[OpCost]


class _Collectives(NamedTuple):
    """Collectives that may be tensor-parallel ones: place in the work, kind, bytes, ranks, when called."""

    row: Int
    kind: Int
    message: Int
    ranks: Int
    called: Int
    named: Bool

    def take(self, rows: Int | Bool) -> _Collectives:
        """Those at these places or under this mask."""
        return self._replace(**{name: getattr(self, name)[rows] for name in self._fields})


def fused_ns(cost: OpCost, kind: str, message: int, ranks: int, device: Device) -> float:
    """Speed of light of a GEMM fused with its collective, ns: the slowest of compute, memory and links.

    `message` is bytes of the whole tensor that is reduced or gathered; the device's data-sheet peaks count.
    """
    peak = device.peak(cost.engine, cost.dtype)
    rounds = 2 if kind == REDUCE else 1
    seconds = [0.0]
    if peak:
        seconds.append(cost.flops / peak)
    if device.hbm_bytes_per_s:
        seconds.append((cost.read_bytes + cost.write_bytes) / device.hbm_bytes_per_s)
    if device.gpu_link_bytes_per_s:
        seconds.append(rounds * (ranks - 1) / ranks * message / device.gpu_link_bytes_per_s)
    return max(seconds) * 1e9


def pairs(context: StepWork) -> GemmCollectivePairs | str:
    """The GEMMs of a rank that could be fused with a collective, or why there are none."""
    work, events, table = context.work, context.trace.arrays, context.trace.tables["collectives"]
    # The collectives of the rank except those of groups that are for something else.
    position_of = np.full(len(events.start), -1, dtype=np.int64)
    position_of[work.event] = np.arange(len(work.event))
    kernel = table.array("kernel_id")
    kind_of = np.array(
        [
            next((_ORDER.index(kind) for part, kind in _KINDS.items() if part in name), -1)
            for name in table.texts("collective")
        ],
        dtype=np.int64,
    )
    description = table.coded("group_description")
    named = description.mask(lambda text: _TENSOR.search(text.lower()))
    allowed = ~description.mask(lambda text: _OTHER.search(text.lower()))
    message = np.maximum(table.array("in_bytes"), table.array("out_bytes"))
    candidate = (kernel >= 0) & (kind_of >= 0) & allowed & (table.array("group_size") > 1) & (message > 0)
    candidate[candidate] = position_of[kernel[candidate]] >= 0
    rows = np.flatnonzero(candidate)
    position, record = position_of[kernel[rows]], table.array("event_id")[rows]
    on_host = ~events.where("kernel")[record]
    comm_called = np.where(
        context.called[position] >= 0, context.called[position], np.where(on_host, events.start[record], -1)
    )
    comm = _Collectives(
        row=position,
        kind=kind_of[rows],
        message=message[rows],
        ranks=table.array("group_size")[rows],
        called=comm_called,
        named=named[rows],
    ).take(comm_called >= 0)
    if not len(comm.row):
        return "no all-reduce, reduce-scatter or all-gather of a tensor-parallel group"
    is_gemm = work.category == work.categories.index("gemm")
    computed = np.flatnonzero((work.kind == WORK_KINDS.index("computation")) & (context.called >= 0))
    computed = computed[ordered(context.called[computed], work.start[computed])]
    gemm_ops = unique(work.op[is_gemm & (work.op >= 0)])
    gather = comm.kind == _ORDER.index(GATHER)
    # Place in `computed` of the last computation called before each collective; -1 for none.
    called, start = context.called[computed], context.work.start[computed]
    # A replayed graph calls all its kernels at once: there, GPU time tells the order.
    both = np.concatenate((called, comm.called)), np.concatenate((start, context.work.start[comm.row]))
    order = np.lexsort((both[1], both[0]))
    before = np.cumsum(order < len(computed)) - 1
    last_before = np.empty(len(order), dtype=np.int64)
    last_before[order] = before
    index = last_before[len(computed) :]
    index = np.where(gather, index + 1, index)
    has_gemm = (index >= 0) & (index < len(computed))
    beside = computed[np.clip(index, 0, max(len(computed) - 1, 0))] if len(computed) else comm.row
    has_gemm &= isin(work.op[beside], gemm_ops) & (work.op[beside] >= 0)
    if not has_gemm.any():
        return "no GEMM directly before a reduction or after a gather of a tensor-parallel group"
    # Pairs whose message is the GEMM's result or operand.
    comm, gather = comm.take(has_gemm), gather[has_gemm]
    op = work.op[beside[has_gemm]]
    group, _ = codes(*context.ops.keys(op))
    _, first, of_op = np.unique(group, return_index=True, return_inverse=True)
    costs: list[OpCost] = []
    code_of_group: list[int] = []
    for row in op[first].tolist():
        cost = context.ops.cost(row)
        if cost is None or not {"M", "N", "K"} <= dict(cost.dims).keys():
            code_of_group.append(-1)
            continue
        costs.append(cost)
        code_of_group.append(costs.index(cost))
    cost_code = np.array(code_of_group, dtype=np.int64)[of_op]
    operand_bytes = [(-1, -1, -1)] * (not costs)  # of the result, of the left and right operand
    for cost in costs:
        dims = dict(cost.dims)
        elements = dims.get("B", 1) * BITS.get(cost.dtype, 0) // 8
        operand_bytes.append(
            (cost.write_bytes, elements * dims["M"] * dims["K"], elements * dims["K"] * dims["N"])
        )
    sizes = np.array(operand_bytes, dtype=np.int64)[np.maximum(cost_code, 0)]
    out_bytes, left_bytes, right_bytes = sizes.T
    same = np.where(gather, comm.message == left_bytes, comm.message == out_bytes)
    # Weights that are gathered, or gradients that are reduced, look alike where groups have no names.
    same = np.where(
        comm.named,
        same | (gather & (comm.message == right_bytes)),
        same & ~(work.forward[beside[has_gemm]] >= 0),
    )
    keep = same & (cost_code >= 0)
    # A GEMM is fused with one collective.
    rows = np.flatnonzero(keep)
    rows = rows[np.unique(op[rows], return_index=True)[1]]
    if not len(rows):
        return "no GEMM next to a collective has its message as result or operand"
    comm, op, cost_code = comm.take(rows), op[rows], cost_code[rows]
    # GPU time, first start and last end of the kernels of each op.
    kernels = np.flatnonzero((work.op >= 0) & np.isin(work.op, op))
    known, of_row = numbered(work.op[kernels])
    limits = np.iinfo(np.int64)
    op_start, op_end = np.full(len(known), limits.max), np.full(len(known), limits.min)
    np.minimum.at(op_start, of_row, work.start[kernels])
    np.maximum.at(op_end, of_row, work.end[kernels])
    at = np.searchsorted(known, op)
    gemm_ns, low, high = sums(of_row, work.dur[kernels], len(known))[at], op_start[at], op_end[at]
    start, end = context.work.start[comm.row], context.work.end[comm.row]
    serial = np.where(gather[rows], end <= low, start >= high)
    return GemmCollectivePairs(
        row=comm.row,
        op=op,
        kind=comm.kind,
        cost=cost_code,
        message=comm.message,
        ranks=comm.ranks,
        gemm_ns=gemm_ns,
        serial=serial,
        kinds=list(_ORDER),
        costs=costs,
    )


def exposed_pairs(context: StepWork, gemm_pairs: GemmCollectivePairs) -> tuple[Int, Bool]:
    """How long each pair's collective runs beside no computation, ns, and which pairs run one by one.

    A collective that mostly runs beside computation is overlapped already, if not with this GEMM.
    """
    start, end = context.work.start[gemm_pairs.row], context.work.end[gemm_pairs.row]
    exposed = end - start - context.work.union("computation").covered(start, end)
    return exposed, gemm_pairs.serial & (exposed > EXPOSED * (end - start))


def speed_of_light(gemm_pairs: GemmCollectivePairs, device: Device | None) -> Float:
    """Speed of light of each pair, ns; 0 where the device is not known."""
    if device is None:
        return np.zeros(len(gemm_pairs.row))
    columns = (gemm_pairs.cost, gemm_pairs.kind, gemm_pairs.message, gemm_pairs.ranks)
    keys = list(zip(*(column.tolist() for column in columns), strict=True))
    limit = {
        (cost, kind, message, ranks): fused_ns(
            gemm_pairs.costs[cost], gemm_pairs.kinds[kind], message, ranks, device
        )
        for cost, kind, message, ranks in set(keys)
    }
    return np.array([limit[key] for key in keys])
