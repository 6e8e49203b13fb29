"""FLOPs, bytes and roofline time of each kernel: its share of those of its op call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.roofline import BOUNDS, Costing, bounds, costing
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.devices import Device
from tracelens.table import Coded, codes, sums
from tracelens.trace import Trace, Work, exclusive

AMOUNTS = ("flops", "read_bytes", "write_bytes", "link_bytes")


class _Calls(NamedTuple):
    """The counted calls, one entry a counted piece of work.

    Attributes:
        row: position of the piece in the work.
        item: index into the costing's `items`.
        call_ns: GPU time of the call: union of its work.
        fraction: of the call's time that is this piece's; those of a call add up to 1.
        group: number of the call.
        is_longest: whether the piece has the largest fraction of its call; one piece of each call.
    """

    row: Int
    item: Int
    call_ns: Int
    fraction: Float
    group: Int
    is_longest: Bool


def kernel_costs(trace: Trace, work: Work, device: Device | None) -> dict[str, Any]:
    """The columns of costs of each piece of work, -1 and "" where they are not known.

    Args:
        trace: of the rank.
        work: any of its work.
        device: whose peaks set the roofline, None where they are not known.
    """
    counted = costing(trace, work)
    calls = _calls(work, counted)
    limits = bounds(counted.items, device)
    costs = [item.cost for item in counted.items]
    amounts = {
        name: np.array([getattr(cost, name) for cost in costs], dtype=np.int64)[calls.item]
        for name in AMOUNTS
    }
    is_link = np.array([cost.link != "" for cost in costs], dtype=bool)[calls.item]
    moved = np.where(is_link, amounts["link_bytes"], amounts["read_bytes"] + amounts["write_bytes"])
    least = limits.roofline[calls.item]
    ns = np.maximum(calls.call_ns, 1)
    numbers = {name: _divided(amount, calls) for name, amount in amounts.items()} | {
        "flops_per_s": amounts["flops"] / ns * 1e9,
        "bytes_per_s": moved / ns * 1e9,
        "roofline_ns": np.where(least >= 0, least * calls.fraction, -1.0),
        "efficiency": np.where(least >= 0, least / ns, -1.0),
    }
    bound = np.full(len(counted.items) + 1, BOUNDS.index(""))
    bound[:-1] = limits.bound
    item, reason = (np.where(code >= 0, code, -1) for code in (counted.item, counted.reason))
    return {name: _spread(values, calls.row, len(work.event)) for name, values in numbers.items()} | {
        "dtype": Coded.used(item, [*(cost.dtype for cost in costs), ""]),
        "bound": Coded.used(bound[item], BOUNDS),
        "uncounted": Coded.used(reason, [*counted.reasons, ""]),
    }


def _calls(work: Work, counted: Costing) -> _Calls:
    row = np.flatnonzero(counted.item >= 0)
    start, end = work.start[row], work.end[row]
    group, (calls,) = codes(counted.call[row])
    # Within a call the kernel that started first owns the time, so shares add up to the call's GPU time.
    own_ns = end - exclusive(start, end, group)
    call_ns = sums(group, own_ns, len(calls))[group]
    is_longest = np.zeros(len(row), dtype=bool)
    is_longest[largest(own_ns, group)] = True
    fraction = np.where(call_ns > 0, own_ns / np.maximum(call_ns, 1), is_longest)
    return _Calls(row, counted.item[row], call_ns, fraction, group, is_longest)


def largest(values: Int, group: Int) -> Int:
    """Position of the largest value of each group; of equal ones the last."""
    order = np.lexsort((values, group))
    return order[np.flatnonzero(np.diff(group[order], append=-1))]


def _divided(amount: Int, calls: _Calls) -> Int:
    """Whole numbers by fraction; the longest piece takes what rounding leaves, so sums are exact."""
    part = np.where(calls.is_longest, 0, np.floor(amount * calls.fraction).astype(np.int64))
    others = sums(calls.group, part, int(calls.group.max(initial=-1)) + 1)[calls.group]
    return np.where(calls.is_longest, amount - others, part)


def _spread(values: NDArray[Any], row: Int, count: int) -> NDArray[Any]:
    position = np.full(count, -1, dtype=np.int64)
    position[row] = np.arange(len(row))
    return lookup(values, position, -1)
