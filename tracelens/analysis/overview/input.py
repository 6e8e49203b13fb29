"""What was read, and what of it could not be used."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import HOST, NO_GPU
from tracelens.table import RANK, Column, Result, Schema, Skip, result
from tracelens.trace import Run, gpu_work

INPUT = Schema(
    "Traces read",
    (
        RANK,
        Column("path", "str", doc="file that was read"),
        Column("format", "str", doc="parser that read it, as in `tracelens list parsers`"),
        Column("device", "str", doc="device that did the work: the GPU, or the CPU in a CPU-only trace"),
        Column("events_read", "int64", "count", "records in the file"),
        Column("events_kept", "int64", "count", "records that became events"),
        Column("events_dropped", "int64", "count", "read = kept + dropped"),
        Column("gpu_events", "int64", "count", "in a CPU-only trace the host ops that count as kernels"),
        Column(
            "linked_fraction", "float64", "fraction", "of GPU events whose launch call or op is in the trace"
        ),
    ),
    key=(),
)
LOSSES = Schema(
    "Problems in the traces",
    (
        RANK,
        Column("problem", "str", doc="what is wrong with the events or the file"),
        Column(
            "outcome", "str", doc="dropped: left out; repaired: used after repair; problem: with the file"
        ),
        Column("count", "int64", "count", "affected events"),
        Column("first_byte", "int64", "bytes", "of the first one, -1 if unknown", intensive=True),
    ),
    key=("problem", "outcome"),
)


TABLES = {"input": INPUT, "losses": LOSSES}


@analyzer("input", title="Input", order=7, tables=TABLES)
def inputs(run: Run) -> Result:
    """What was read, and was any of it lost?

    Reading:
        `events_dropped` should be 0; `losses` says what was lost and where. GPU work outside
        `linked_fraction` belongs to no op, since its launch call is not in the trace.

    Limits:
        Counts what the file says. `completeness` looks for what the profiler lost without saying.

    Returns:
        tables `input`, one row a trace, and `losses` where events were dropped or mended.
    """
    metas = [trace.meta for trace in run.traces]
    rows, losses, skips = [], [], []
    for trace, meta in zip(run.traces, metas, strict=True):
        work = gpu_work(trace)
        linked = float(work.linked.mean()) if len(work.event) else 0.0
        if work.cpu_only:
            skips.append(Skip(f"rank {meta.rank}: GPU time", NO_GPU))
        used = sorted({meta.devices.get(int(device), "") for device in np.unique(work.device)} - {""})
        if len(np.unique(work.device)) > 1:
            skips.append(
                Skip(f"rank {meta.rank}: single GPUs", "several GPUs in one trace are treated as one")
            )
        rows.append(
            {
                "rank": np.array([meta.rank]),
                "path": [meta.path],
                "format": [meta.format],
                "device": [HOST if work.cpu_only else ", ".join(used) or "unknown"],
                "events_read": np.array([meta.read]),
                "events_kept": np.array([meta.kept]),
                "events_dropped": np.array([sum(meta.dropped.values())]),
                "gpu_events": np.array([len(work.event)]),
                "linked_fraction": np.array([linked]),
            }
        )
        entries = [
            (loss, "dropped", count, meta.first_drop.get(loss, -1)) for loss, count in meta.dropped.items()
        ]
        entries += [(loss, "repaired", count, -1) for loss, count in meta.repaired.items()]
        entries += [(loss, "problem", 0, -1) for loss in meta.problems]
        losses += [(meta.rank, *entry) for entry in entries]
    tables = {"input": INPUT.concat(rows)}
    if losses:
        rank, loss, outcome, count, first = zip(*losses, strict=True)
        tables["losses"] = LOSSES.table(
            {
                "rank": np.array(rank),
                "problem": list(loss),
                "outcome": list(outcome),
                "count": np.array(count),
                "first_byte": np.array(first),
            }
        )
    return result(tables, skips)
