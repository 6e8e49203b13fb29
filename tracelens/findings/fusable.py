"""Matrix products next to tensor-parallel collectives of the same tensor."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.costs import BITS, OpCost
from tracelens.devices import Device
from tracelens.findings.rank_context import RankContext
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


class Pairs(NamedTuple):
    """Each product with the collective that comes directly after or before it.

    Attributes:
        row: the collective's place in the scene's work.
        op: event row of the product's op.
        kind: of the collective, code into `kinds`.
        cost: of the product, code into `costs`.
        message: bytes of the whole tensor.
        ranks: in the group.
        product_ns: GPU time of the product.
        serial: whether the one ends before the other begins.
    """

    row: Int
    op: Int
    kind: Int
    cost: Int
    message: Int
    ranks: Int
    product_ns: Int
    serial: Bool
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
    """Speed of light of a product fused with its collective, ns: the slowest of compute, memory and links.

    Args:
        cost: of this rank's product.
        kind: REDUCE, SCATTER or GATHER.
        message: bytes of the whole tensor that is reduced or gathered.
        ranks: in the group.
        device: whose data-sheet peaks count.
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


def pairs(scene: RankContext) -> Pairs | str:
    """The products of a scene that could be fused with a collective, or why there are none."""
    work = scene.work
    talk = _collectives(scene)
    if not len(talk.row):
        return "no all-reduce, reduce-scatter or all-gather of a tensor-parallel group"
    is_gemm = work.category == work.categories.index("gemm")
    computed = np.flatnonzero((work.kind == WORK_KINDS.index("computation")) & (scene.called >= 0))
    computed = computed[np.lexsort((work.start[computed], scene.called[computed]))]
    gemm_ops = np.unique(work.op[is_gemm & (work.op >= 0)])
    gather = talk.kind == _ORDER.index(GATHER)
    at = _before(scene, computed, talk)
    at = np.where(gather, at + 1, at)
    there = (at >= 0) & (at < len(computed))
    beside = computed[np.clip(at, 0, max(len(computed) - 1, 0))] if len(computed) else talk.row
    there &= np.isin(work.op[beside], gemm_ops) & (work.op[beside] >= 0)
    if not there.any():
        return (
            "no matrix product is directly before a reduction or behind a gather of a tensor-parallel group"
        )
    return _matching(scene, talk.take(there), work.op[beside[there]], work.forward[beside[there]] >= 0)


def _collectives(scene: RankContext) -> _Collectives:
    """The collectives of a scene but those of groups that are for something else."""
    events, work, table = scene.trace.arrays, scene.work, scene.trace.tables["collectives"]
    place = np.full(len(events.start), -1, dtype=np.int64)
    place[work.event] = np.arange(len(work.event))
    kernel = table.array("kernel_id")
    kind = np.array([_kind(name) for name in table.texts("collective")], dtype=np.int64)
    texts = {text: text.lower() for text in set(table.texts("group_description"))}
    named = {text: bool(_TENSOR.search(low)) for text, low in texts.items()}
    other = {text: bool(_OTHER.search(low)) for text, low in texts.items()}
    description = table.texts("group_description")
    allowed = np.array([not other[text] for text in description], dtype=bool)
    message = np.maximum(table.array("in_bytes"), table.array("out_bytes"))
    chosen = (kernel >= 0) & (kind >= 0) & allowed & (table.array("group_size") > 1) & (message > 0)
    chosen[chosen] = place[kernel[chosen]] >= 0
    rows = np.flatnonzero(chosen)
    row, record = place[kernel[rows]], table.array("event_id")[rows]
    on_host = ~events.where("kernel")[record]
    called = np.where(scene.called[row] >= 0, scene.called[row], np.where(on_host, events.start[record], -1))
    is_named = np.array([named[description[one]] for one in rows.tolist()], dtype=bool)
    found = _Collectives(row, kind[rows], message[rows], table.array("group_size")[rows], called, is_named)
    return found.take(called >= 0)


def _kind(collective: str) -> int:
    return next((_ORDER.index(kind) for name, kind in _KINDS.items() if name in collective), -1)


def _before(scene: RankContext, computed: Int, talk: _Collectives) -> Int:
    """Place in `computed` of the last computation called before each collective; -1 for none."""
    called, start = scene.called[computed], scene.work.start[computed]
    # A replayed graph calls all its kernels at once: there, GPU time tells the order.
    both = np.concatenate((called, talk.called)), np.concatenate((start, scene.work.start[talk.row]))
    order = np.lexsort((both[1], both[0]))
    before = np.cumsum(order < len(computed)) - 1
    place = np.empty(len(order), dtype=np.int64)
    place[order] = before
    return place[len(computed) :]


def _matching(scene: RankContext, talk: _Collectives, op: Int, backward: Bool) -> Pairs | str:
    """Pairs whose message is the product's result, or what goes into it."""
    group, _ = codes(*scene.ops.keys(op))
    _, first, of_op = np.unique(group, return_index=True, return_inverse=True)
    counted = [_cost(scene, one) for one in op[first].tolist()]
    costs = [one for one in counted if one is not None]
    place = np.array([-1 if one is None else costs.index(one) for one in counted], dtype=np.int64)[of_op]
    sizes = np.array([_sizes(one) for one in costs] or [(-1, -1, -1)], dtype=np.int64)[np.maximum(place, 0)]
    out, left, right = sizes.T
    gather = talk.kind == _ORDER.index(GATHER)
    same = np.where(gather, talk.message == left, talk.message == out)
    # Weights that are gathered, or gradients that are reduced, look alike where groups have no names.
    same = np.where(talk.named, same | (gather & (talk.message == right)), same & ~backward)
    keep = same & (place >= 0)
    # A product is fused with one collective.
    rows = np.flatnonzero(keep)
    rows = rows[np.unique(op[rows], return_index=True)[1]]
    if not len(rows):
        return "no matrix product next to a collective has its message as result or operand"
    talk, op, place = talk.take(rows), op[rows], place[rows]
    product, low, high = _extent(scene, op)
    start, end = scene.work.start[talk.row], scene.work.end[talk.row]
    serial = np.where(gather[rows], end <= low, start >= high)
    return Pairs(
        talk.row, op, talk.kind, place, talk.message, talk.ranks, product, serial, list(_ORDER), costs
    )


def _cost(scene: RankContext, op: int) -> OpCost | None:
    cost = scene.ops.cost(op)
    return cost if cost is not None and {"M", "N", "K"} <= dict(cost.dims).keys() else None


def _sizes(cost: OpCost) -> tuple[int, int, int]:
    """Bytes of the result and of the left and right operand."""
    dims = dict(cost.dims)
    elements = dims.get("B", 1) * BITS.get(cost.dtype, 0) // 8
    return cost.write_bytes, elements * dims["M"] * dims["K"], elements * dims["K"] * dims["N"]


def _extent(scene: RankContext, op: Int) -> tuple[Int, Int, Int]:
    """GPU time, first start and last end of the kernels of each op."""
    work = scene.work
    rows = np.flatnonzero((work.op >= 0) & np.isin(work.op, op))
    known, of_row = np.unique(work.op[rows], return_inverse=True)
    low, high = np.full(len(known), np.iinfo(np.int64).max), np.full(len(known), np.iinfo(np.int64).min)
    np.minimum.at(low, of_row, work.start[rows])
    np.maximum.at(high, of_row, work.end[rows])
    place = np.searchsorted(known, op)
    return sums(of_row, work.dur[rows], len(known))[place], low[place], high[place]
