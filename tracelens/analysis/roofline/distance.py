"""Measured against roofline time: one row per op and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.analysis.common import call_time
from tracelens.analysis.roofline.bounds import BOUNDS, Bounds, explain
from tracelens.analysis.roofline.costing import Costing
from tracelens.arrays import Float, Int
from tracelens.devices import Device
from tracelens.table import RANK, Column, Schema, sums
from tracelens.trace import Work

ROOFLINE = Schema(
    "Distance from the roofline, by op and arguments",
    (
        RANK,
        Column("name", "category", doc="op, collective, copy or kernel"),
        Column("shapes", "category", doc="tensor arguments"),
        Column("dtype", "category", doc="element type of the arithmetic, which determines the peak"),
        Column("count", "int64", "count", "calls"),
        Column("dur_ns", "int64", "ns", "GPU time of all calls; union per call"),
        Column("roofline_ns", "int64", "ns", "roofline time of all calls; -1 without peaks of the device"),
        Column("efficiency", "float64", "efficiency", "roofline time / measured time, against peak"),
        Column("recoverable_ns", "int64", "ns", "measured - roofline time: what a perfect kernel would save"),
        Column("bound", "category", doc="limit: compute, memory, host link, gpu link"),
        Column("flops", "int64", "flops", "per call"),
        Column("read_bytes", "int64", "bytes", "per call, each tensor once"),
        Column("write_bytes", "int64", "bytes", "per call"),
        Column("link_bytes", "int64", "bytes", "per call, over the link to the host or other GPUs"),
        Column("flops_per_s", "float64", "flops/s", "achieved"),
        Column("bytes_per_s", "float64", "bytes/s", "achieved; on the link if that is the bound"),
        Column("intensity", "float64", "flops/byte", "FLOPs per byte read or written"),
        Column(
            "maf_efficiency", "float64", "efficiency", "against max-achievable FLOPs; -1 if none is published"
        ),
        Column("dims", "category", doc="sizes behind the FLOPs, for a GEMM M, N and K"),
        Column("note", "category", doc="notes on the figures", prose=True),
    ),
    doc="Roofline time: the longer of FLOPs at peak and bytes at full bandwidth. Largest recoverable time "
    "first.",
    key=("name", "shapes", "dtype", "flops", "read_bytes", "write_bytes", "link_bytes"),
    leading="recoverable_ns",
    descending=True,
)


def distances(
    rank: int, work: Work, counted: Costing, limits: Bounds, device: Device | None, projected: bool
) -> dict[str, Any]:
    """Rows of ROOFLINE for one rank, largest recoverable time first.

    Args:
        rank: of the work.
        work: its GPU work.
        counted: how it was counted.
        limits: what the device allows, by kind of call.
        device: whose roofs these are, None where it is not known.
        projected: whether the work ran on another one.
    """
    count, dur = _calls(work, counted)
    # Kinds whose calls all lie outside of the scope or step have no row.
    kept = np.flatnonzero(count)
    count, dur = count[kept], dur[kept]
    least = limits.roofline[kept] * count
    known = limits.roofline[kept] >= 0
    time = np.maximum(dur, 1)
    efficiency = np.where(known, least / time, -1.0)
    recoverable = np.where(known, np.maximum(dur - np.rint(least).astype(np.int64), 0), -1)
    maf = limits.maf[kept]
    maf_efficiency = np.where(maf >= 0, maf * count / time, -1.0)
    order = np.lexsort((-dur, -recoverable))
    kept, time = kept[order], time[order]
    return (
        _described(counted, kept, limits, (efficiency[order], maf_efficiency[order]), device, projected)
        | _rates(counted, kept, count[order], time)
        | {
            "rank": np.full(len(kept), rank),
            "count": count[order],
            "dur_ns": dur[order],
            "roofline_ns": np.where(known, np.rint(least), -1).astype(np.int64)[order],
            "efficiency": efficiency[order],
            "maf_efficiency": maf_efficiency[order],
            "recoverable_ns": recoverable[order],
        }
    )


def _calls(work: Work, counted: Costing) -> tuple[Int, Int]:
    """Number of calls and their GPU time, by kind of call."""
    rows = np.flatnonzero(counted.item >= 0)
    _, dur = call_time(work.take(rows), counted.call[rows])
    _, first = np.unique(counted.call[rows], return_index=True)
    item = counted.item[rows[first]]
    size = len(counted.items)
    return np.bincount(item, minlength=size), sums(item, dur, size)


def _rates(counted: Costing, kept: Int, count: Int, time: Int) -> dict[str, Any]:
    """FLOPs and bytes of one call, and how many of them a second were achieved."""
    costs = [counted.items[kind].cost for kind in kept.tolist()]

    def amounts(name: str) -> Int:
        return np.array([getattr(cost, name) for cost in costs], dtype=np.int64)

    flops, read, write, link = map(amounts, ("flops", "read_bytes", "write_bytes", "link_bytes"))
    linked = np.array([cost.link != "" for cost in costs], dtype=bool)
    rate = count / time * 1e9
    return {
        "flops": flops,
        "read_bytes": read,
        "write_bytes": write,
        "link_bytes": link,
        "flops_per_s": flops * rate,
        "bytes_per_s": np.where(linked, link, read + write) * rate,
        "intensity": flops / np.maximum(read + write, 1),
    }


def _described(
    counted: Costing,
    kept: Int,
    limits: Bounds,
    efficiencies: tuple[Float, Float],
    device: Device | None,
    projected: bool,
) -> dict[str, list[str]]:
    items = [counted.items[kind] for kind in kept.tolist()]
    bound = [BOUNDS[code] for code in limits.bound[kept].tolist()]
    notes = []
    reached = (efficiency.tolist() for efficiency in efficiencies)
    for item, limit, *of_item in zip(items, bound, *reached, strict=True):
        why = explain(item, limit, device, projected, *of_item) if device else ""
        notes.append("; ".join(filter(None, (why, item.note))))
    return {
        "name": [item.name for item in items],
        "shapes": [item.shapes for item in items],
        "dtype": [item.cost.dtype for item in items],
        "dims": [" ".join(f"{key}={value}" for key, value in item.cost.dims) for item in items],
        "bound": bound,
        "note": notes,
    }
