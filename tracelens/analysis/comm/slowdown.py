"""How much slower computing kernels are while communication runs beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Float, Int
from tracelens.table import Column, Schema, Skip, codes, sums
from tracelens.trace import WORK_KINDS, Trace, Work, describe, union

ALL = "(all)"
FEWEST = 3
"""Calls of each sort that a mean is taken of."""

SLOWDOWN = Schema(
    "Computation slowed down by communication",
    (
        Column("rank", "int64"),
        Column("name", "category", doc="kernel"),
        Column("shapes", "category", doc="arguments of the op that launched it, '' where not recorded"),
        Column("blocks", "int64", "count", "thread blocks of the kernel, -1 where not recorded"),
        Column("overlapped_count", "int64", "count", "calls with communication at least half of their time"),
        Column("alone_count", "int64", "count", "calls with no communication"),
        Column("overlapped_mean_ns", "float64", "ns"),
        Column("alone_mean_ns", "float64", "ns"),
        Column("slowdown", "float64", "ratio", "overlapped mean / alone mean; 100% is no slowdown"),
        Column("extra_ns", "int64", "ns", "difference of the means, times overlapped calls; < 0 if faster"),
    ),
    doc="The same kernel at the same shapes and size, beside communication on another stream of its GPU "
    f"against without any; only where there are {FEWEST} calls of each. The row (all) has the sums; its "
    "alone mean is that of the same mix of kernels. Extra time is shown with its sign: below zero, the calls "
    "beside communication were faster, by chance or because their data differed.",
)


def slowdown(trace: Trace, work: Work, skips: list[Skip]) -> dict[str, Any] | None:
    """The rows of one rank, largest extra time first after the row for all; None, with a skip, if none.

    Args:
        trace: of the rank.
        work: its GPU work in scope.
        skips: where to say what could not be compared.
    """
    subject, extent = f"rank {trace.meta.rank}: slowdown", _whole(trace, work)
    comp = work.take((work.kind == WORK_KINDS.index("computation")) & extent)
    beside = _beside(comp, work.take(work.kind == WORK_KINDS.index("comm")))
    overlapped, alone = 2 * beside >= comp.dur, beside == 0
    if not overlapped.any():
        skips.append(Skip(subject, "no kernel ran beside communication for half of its time"))
        return None
    shape, texts = _shapes(trace, comp)
    blocks = trace.tables["events"].array("blocks")[comp.event]
    # One op may launch a kernel at several sizes; those that differ in blocks take differently long.
    group, (name, shape, blocks) = codes(comp.name, shape, blocks)
    count, other = (np.bincount(group[mask], minlength=len(name)) for mask in (overlapped, alone))
    enough = (count >= FEWEST) & (other >= FEWEST)
    if left := int(count[~enough].sum()):
        skips.append(
            Skip(
                f"{subject} of {left:,} kernel calls beside communication",
                f"needs {FEWEST} such calls of one kernel at the same shapes and blocks, {FEWEST} without",
            )
        )
    if not enough.any():
        return None
    time, usual = (sums(group[mask], comp.dur[mask], len(name)) for mask in (overlapped, alone))
    count, other, time, usual = count[enough], other[enough], time[enough], usual[enough]
    extra = np.rint(time - usual / other * count).astype(np.int64)
    order = np.argsort(-extra, kind="stable")
    rows = np.flatnonzero(enough)[order]
    return {
        "rank": np.full(len(rows) + 1, trace.meta.rank),
        "name": [ALL, *(comp.names[code] for code in name[rows].tolist())],
        "shapes": ["", *(texts[code] for code in shape[rows].tolist())],
        "blocks": np.append(-1, blocks[rows]),
        **_columns(count[order], other[order], time[order], usual[order] / other[order], extra[order]),
    }


def _columns(count: Int, other: Int, time: Int, usual: Float, extra: Int) -> dict[str, NDArray[Any]]:
    """The numbers of each row, after those of all rows together."""
    mean = time / count
    calls, whole, more = int(count.sum()), int(time.sum()), int(extra.sum())
    return {
        "overlapped_count": np.append(calls, count),
        "alone_count": np.append(other.sum(), other),
        "overlapped_mean_ns": np.append(whole / calls, mean),
        "alone_mean_ns": np.append((whole - more) / calls, usual),
        "slowdown": np.append(whole / (whole - more), mean / usual),
        "extra_ns": np.append(more, extra),
    }


def _whole(trace: Trace, work: Work) -> Bool:
    """Work that has an extent and is not cut off by the border of a step: how long it took is known."""
    events = trace.arrays
    cut = (events.start[work.event] != work.start) | (events.end[work.event] != work.end)
    measured: Bool = (work.dur > 0) & ~cut
    return measured


def _beside(comp: Work, comm: Work) -> Int:
    """For each computing kernel, ns during which communication runs on another stream of its GPU."""
    time = np.zeros(len(comp.event), dtype=np.int64)
    lane, (device, stream) = codes(comp.device, comp.stream)
    for place in range(len(device)):
        other = (comm.device == device[place]) & (comm.stream != stream[place])
        mine = lane == place
        time[mine] = union(comm.start[other], comm.end[other]).covered(comp.start[mine], comp.end[mine])
    return time


def _shapes(trace: Trace, work: Work) -> tuple[Int, list[str]]:
    """Code and text of the argument shapes and types of the launching op, '' where not recorded."""
    ops = trace.tables["ops"]
    place = trace.arrays.places(ops.array("event_id"))
    row = np.where(work.op >= 0, place[work.op], -1)
    shapes, dtypes = ops.columns["shapes"], ops.columns["dtypes"]
    pair, (shape, dtype) = codes(
        *(np.append(column.codes, -1)[row].astype(np.int64) for column in (shapes, dtypes))
    )
    texts: dict[str, int] = {}
    merged = [
        texts.setdefault(describe(shapes.values[one], dtypes.values[other]) if one >= 0 else "", len(texts))
        for one, other in zip(shape.tolist(), dtype.tolist(), strict=True)
    ]
    return np.array(merged, dtype=np.int64)[pair], list(texts)
