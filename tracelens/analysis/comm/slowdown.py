"""How much slower computing kernels are while communication overlaps them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.table import RANK, Column, Schema, Skip, codes, sums
from tracelens.trace import WORK_KINDS, Trace, Work, describe, union

ALL = "(all)"
FEWEST = 3
"""Calls of each sort that a mean is taken of."""

SLOWDOWN = Schema(
    "Computation slowed down by communication",
    (
        RANK,
        Column("name", "category", doc="kernel"),
        Column("shapes", "category", doc="arguments of the op that launched it, '' where not recorded"),
        Column("blocks", "int64", "count", "thread blocks of the kernel, -1 where not recorded"),
        Column(
            "overlapped_count",
            "int64",
            "count",
            "calls overlapped by communication for at least half of their time",
        ),
        Column("alone_count", "int64", "count", "calls without communication"),
        Column("overlapped_mean_ns", "float64", "ns", "mean duration of the overlapped calls"),
        Column("alone_mean_ns", "float64", "ns", "mean duration of the calls without communication"),
        Column("slowdown", "float64", "ratio", "overlapped mean / alone mean; 100%: no slowdown"),
        Column("extra_ns", "int64", "ns", "difference of means x overlapped calls; negative if faster"),
    ),
    doc="Same kernel, shapes and grid: overlapped by communication on another stream of its GPU against "
    f"alone, with at least {FEWEST} calls of each. (all) sums over kernels, with the alone mean of "
    "the same mix. Negative extra time: overlapped calls were faster, by coincidence or because their "
    "data differed.",
    key=("name", "shapes", "blocks"),
    leading="extra_ns",
    absent_is_zero=False,
)


def slowdown(trace: Trace, work: Work, skips: list[Skip]) -> dict[str, Any] | None:
    """The rows of one rank, largest extra time first after the row for all; None, with a skip, if none.

    Args:
        trace: of the rank.
        work: its GPU work in scope.
        skips: where to say what could not be compared.
    """
    subject, measured = f"rank {trace.meta.rank}: slowdown", _measured(trace, work)
    comp = work.take((work.kind == WORK_KINDS.index("computation")) & measured)
    beside = _beside(comp, work.take(work.kind == WORK_KINDS.index("comm")))
    overlapped, alone = 2 * beside >= comp.dur, beside == 0
    if not overlapped.any():
        skips.append(Skip(subject, "no kernel is overlapped by communication for half of its time"))
        return None
    shape, texts = _shapes(trace, comp)
    # One op may launch a kernel at several sizes; those that differ in blocks take differently long.
    group, (name, shape, blocks) = codes(comp.name, shape, comp.blocks)
    overlapped_count, alone_count = (
        np.bincount(group[mask], minlength=len(name)) for mask in (overlapped, alone)
    )
    enough = (overlapped_count >= FEWEST) & (alone_count >= FEWEST)
    if too_few := int(overlapped_count[~enough].sum()):
        skips.append(
            Skip(
                f"{subject} of {too_few:,} kernel calls under communication",
                f"needs {FEWEST} overlapped and {FEWEST} alone calls of the same kernel, shapes and blocks",
            )
        )
    if not enough.any():
        return None
    overlapped_ns, alone_ns = (sums(group[mask], comp.dur[mask], len(name)) for mask in (overlapped, alone))
    overlapped_count, alone_count, overlapped_ns, alone_ns = (
        overlapped_count[enough],
        alone_count[enough],
        overlapped_ns[enough],
        alone_ns[enough],
    )
    extra = np.rint(overlapped_ns - alone_ns / alone_count * overlapped_count).astype(np.int64)
    order = np.argsort(-extra, kind="stable")
    rows = np.flatnonzero(enough)[order]
    return {
        "rank": np.full(len(rows) + 1, trace.meta.rank),
        "name": [ALL, *(comp.names[code] for code in name[rows].tolist())],
        "shapes": ["", *(texts[code] for code in shape[rows].tolist())],
        "blocks": np.append(-1, blocks[rows]),
        **_columns(
            overlapped_count[order],
            alone_count[order],
            overlapped_ns[order],
            alone_ns[order] / alone_count[order],
            extra[order],
        ),
    }


def _columns(
    overlapped_count: Int, alone_count: Int, overlapped_ns: Int, alone_mean: Float, extra_ns: Int
) -> dict[str, NDArray[Any]]:
    """The numbers of each row, after those of all rows together."""
    mean = overlapped_ns / overlapped_count
    calls, total, total_extra = int(overlapped_count.sum()), int(overlapped_ns.sum()), int(extra_ns.sum())
    return {
        "overlapped_count": np.append(calls, overlapped_count),
        "alone_count": np.append(alone_count.sum(), alone_count),
        "overlapped_mean_ns": np.append(total / calls, mean),
        "alone_mean_ns": np.append((total - total_extra) / calls, alone_mean),
        "slowdown": np.append(total / (total - total_extra), mean / alone_mean),
        "extra_ns": np.append(total_extra, extra_ns),
    }


def _measured(trace: Trace, work: Work) -> Bool:
    """Work that has an extent and is not cut off by the border of a step: how long it took is known."""
    events = trace.arrays
    cut = (events.start[work.event] != work.start) | (events.end[work.event] != work.end)
    measured: Bool = (work.dur > 0) & ~cut
    return measured


def _beside(comp: Work, comm: Work) -> Int:
    """For each computing kernel, ns during which communication runs on another stream of its GPU."""
    overlapped_ns = np.zeros(len(comp.event), dtype=np.int64)
    lane, (device, stream) = codes(comp.device, comp.stream)
    for number in range(len(device)):
        concurrent = (comm.device == device[number]) & (comm.stream != stream[number])
        on_lane = lane == number
        overlapped_ns[on_lane] = union(comm.start[concurrent], comm.end[concurrent]).covered(
            comp.start[on_lane], comp.end[on_lane]
        )
    return overlapped_ns


def _shapes(trace: Trace, work: Work) -> tuple[Int, list[str]]:
    """Code and text of the argument shapes and types of the launching op, '' where not recorded."""
    ops = trace.tables["ops"]
    op_row = trace.arrays.places(ops.array("event_id"))
    row = lookup(op_row, work.op, -1)
    shapes, dtypes = ops.columns["shapes"], ops.columns["dtypes"]
    pair, (shape, dtype) = codes(
        *(np.append(column.codes, -1)[row].astype(np.int64) for column in (shapes, dtypes))
    )
    texts: dict[str, int] = {}
    merged = [
        texts.setdefault(
            describe(shapes.values[shape_code], dtypes.values[dtype_code]) if shape_code >= 0 else "",
            len(texts),
        )
        for shape_code, dtype_code in zip(shape.tolist(), dtype.tolist(), strict=True)
    ]
    return np.array(merged, dtype=np.int64)[pair], list(texts)
