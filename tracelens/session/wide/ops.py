"""Rows of the wide table of op calls, from the kernels that they launched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracelens.analysis.common import call_time
from tracelens.arrays import Int
from tracelens.session.wide.costs import AMOUNTS, largest
from tracelens.table import codes, sums
from tracelens.trace import Trace, Work

_OF_LONGEST = (
    *("step", "stage", "layer", "microbatch", "phase", "module", "source", "category", "forward_op"),
    *("shapes", "dtype", "bound", "op_source"),
)


def op_rows(trace: Trace, work: Work, kernels: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of OPS of one rank: the ops that launched GPU work themselves.

    Args:
        trace: of the rank.
        work: any of its work.
        kernels: columns of KERNELS of this work.
    """
    row = np.flatnonzero(work.op >= 0)
    launched = work.take(row)
    call, (op,) = codes(launched.op)
    _, dur = call_time(launched, launched.op)
    longest = row[largest(launched.dur, call)]
    first = np.full(len(op), np.iinfo(np.int64).max)
    np.minimum.at(first, call, launched.start)
    events = trace.arrays
    start = events.start[op]
    columns = {name: kernels[name].take(longest) for name in _OF_LONGEST}
    columns |= _costs(kernels, row, call, dur)
    columns |= {
        "rank": np.full(len(op), trace.meta.rank),
        "name": kernels["op"].take(longest),
        "thread": events.tid[op],
        "host_ts_ns": start,
        "host_dur_ns": np.where(events.copied[op], -1, events.end[op] - start),
        "ts_ns": first,
        "dur_ns": dur,
        "kernels": np.bincount(call, minlength=len(op)),
        "op_id": op,
    }
    return columns


def _costs(kernels: Mapping[str, Any], row: Int, call: Int, dur: Int) -> dict[str, Any]:
    """The columns of costs of each call: sums of those of its kernels.

    Where some kernels are not counted, amounts are those of the others, and rates are not known.

    Args:
        kernels: columns of KERNELS.
        row: of each kernel that an op launched.
        call: number of its op call.
        dur: GPU time of each call, ns.
    """
    columns = {name: kernels[name][row] for name in (*AMOUNTS, "roofline_ns")}
    counted, count = columns["flops"] >= 0, len(dur)
    is_counted, has_roofline = (
        np.bincount(call, ~known, count) == 0 for known in (counted, columns["roofline_ns"] >= 0)
    )
    none = np.bincount(call, counted, count) == 0
    link, memory = columns["link_bytes"], columns["read_bytes"] + columns["write_bytes"]
    moved = sums(call, np.where(counted, np.where(link > 0, link, memory), 0), count)
    amounts = {name: sums(call, np.where(counted, columns[name], 0), count) for name in AMOUNTS}
    roofline_ns, ns = np.bincount(call, columns["roofline_ns"], count), np.maximum(dur, 1)
    return {name: np.where(none, -1, amount) for name, amount in amounts.items()} | {
        "flops_per_s": np.where(is_counted, amounts["flops"] / ns * 1e9, -1.0),
        "bytes_per_s": np.where(is_counted, moved / ns * 1e9, -1.0),
        "roofline_ns": np.where(has_roofline, roofline_ns, -1.0),
        "efficiency": np.where(has_roofline, roofline_ns / ns, -1.0),
        # The reason for most of what is not counted.
        "uncounted": kernels["uncounted"].take(
            row[largest(np.where(counted, -1, kernels["dur_ns"][row]), call)]
        ),
    }
