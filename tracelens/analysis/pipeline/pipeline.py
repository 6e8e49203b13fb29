"""The pipeline bubble: idle time of the stages on every rank, split by cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.pipeline.micro_batches import FORWARD, Passes, passes
from tracelens.analysis.pipeline.stages import (
    PARTS,
    Pipeline,
    absent,
    extent,
    is_complete,
    lane_of,
    numbered,
    pipelines,
    shortened,
    window_of,
)
from tracelens.table import RANK, STEP, Column, Result, Schema, Skip, result
from tracelens.trace import Scope

BUBBLE = Schema(
    "Bubble",
    (
        RANK,
        STEP,
        Column("stage", "int64", doc="position in the pipeline, from 0"),
        Column("stages", "int64", "count", "PP"),
        Column("micro_batches", "int64", "count", "GA, per step"),
        Column("chunks", "int64", "count", "VPP, of the model on each rank"),
        Column("bubble_fraction", "float64", "fraction", "share of the pipeline's phase of the step"),
        Column(
            "expected_fraction", "float64", "fraction", "(PP - 1) / (PP - 1 + GA VPP), the theoretical bubble"
        ),
        Column("bubble_ns", "int64", "ns", "outside spans: ramp + p2p wait + imbalance + other idle"),
        Column(
            "ramp_ns",
            "int64",
            "ns",
            "before all stages have started their backward passes, or after one runs out of forward passes",
        ),
        Column("p2p_wait_ns", "int64", "ns", "in a send or receive whose data is ready"),
        Column("imbalance_ns", "int64", "ns", "while the stage it waits for computes"),
        Column(
            "other_idle_ns",
            "int64",
            "ns",
            "the rest: nothing to wait for, nothing launched, or it waits for a stage that is not in the run",
        ),
        Column(
            "overlapped_ns",
            "int64",
            "ns",
            "of the bubble, overlapped by other GPU work such as gradient sync",
        ),
        Column("forward_ns", "int64", "ns", "in forward passes"),
        Column("backward_ns", "int64", "ns", "in backward passes, not overlapped by a forward pass"),
        Column("other_ns", "int64", "ns", "outside the phase: data, gradient sync, optimizer"),
        Column("step_ns", "int64", "ns", "wall time of the step"),
        Column("bubble_ideal_ratio", "float64", "ratio", "bubble / (forward + backward)"),
        Column("expected_ideal_ratio", "float64", "ratio", "(PP - 1) / (GA VPP), the theoretical ratio"),
    ),
    doc="The pipeline phase of a step runs from the first forward to the last backward pass of any stage. "
    "Theory assumes equal passes and free messages. The ideal ratio, bubble against bubble-free time, "
    "is Megatron-LM's convention. The pipeline is full from the last stage's first backward pass "
    "until a stage ends its last forward pass; idle time outside is the ramp, in theory the whole "
    "bubble unless the schedule is interleaved.",
    key=("step", "stage"),
    leading="bubble_ns",
    absent_is_zero=False,
)

SPANS = Schema(
    "Forward and backward of each micro-batch",
    (
        RANK,
        STEP,
        Column("stage", "int64", doc="position in the pipeline, from 0"),
        Column("chunk", "int64", doc="among the rank's chunks of the model, from 0"),
        Column("micro_batch", "int64", doc="from 0"),
        Column("phase", "category", doc="forward or backward"),
        Column("ts_ns", "int64", "ns", "start of its first GPU work, by the clock of the first rank"),
        Column("dur_ns", "int64", "ns", "to the end of its last GPU work"),
        Column("busy_ns", "int64", "ns", "with its GPU work running"),
    ),
    doc="Without annotations that name them, the autograd graph separates forward from backward passes. "
    "Messages between the ranks give chunks and micro-batches; where some of the ranks are not in the "
    "run, they follow the order of Megatron-LM's interleaved schedule.",
    detail=True,
    key=(),
)

WAITS = Schema(
    "Pieces of the bubble",
    (
        RANK,
        STEP,
        Column("part", "category", doc=", ".join(PARTS)),
        Column("ts_ns", "int64", "ns", "by the clock of the first rank"),
        Column("dur_ns", "int64", "ns", "length of the piece"),
        Column("local_ts_ns", "int64", "ns", "start, by the clock of the rank's own trace"),
    ),
    detail=True,
    key=(),
)


TABLES = {"bubble": BUBBLE, "spans": SPANS, "waits": WAITS}


@analyzer("pipeline", title="Pipeline", order=86, part=passes, shared=("aligned run",), tables=TABLES)
def pipeline(ranks: Sequence[Passes], aligned: AlignedRun, *, scope: Scope = "all") -> Result:
    """How large is the pipeline bubble on each rank, and what causes it?

    All ranks of a pipeline are aligned to one clock. Idle time inside a forward or backward is not part of
    the bubble.

    Reading:
        Compare `bubble_fraction` with `expected_fraction`. What lies above it is in `p2p_wait_ns`,
        `imbalance_ns` and `other_idle_ns`.

    Limits:
        Where stages are not in the run, micro-batches are numbered in the order of Megatron-LM's schedule.
        Steps that are only partly recorded are skipped.

    Args:
        ranks: from `passes`.
        aligned: the run.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `bubble` (one row a rank and step), `spans` and `waits`.
    """
    skips = []
    for rank in ranks:
        if not rank.spans:
            reason = "no pipeline: no send or receive of a pipeline group, no annotations that name stages"
            if rank.staged:
                reason = "no forward or backward pass of the pipeline has GPU work"
            skips.append(Skip(f"rank {rank.rank}", reason))
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    for stages, stages_there in pipelines(ranks, aligned.shift, skips):
        skips += absent(stages, stages_there)
        for label in dict.fromkeys(span.step for stage in stages_there for span in stage.part.spans):
            placed = {stage.part.rank: (stage, lane_of(stage, label)) for stage in stages_there}
            lanes = [lane for _, lane in placed.values() if lane.spans]
            # A rank whose steps bear other labels has no window of this one.
            windows = {rank: window_of(stage, label) for rank, (stage, lane) in placed.items() if lane.spans}
            if missing := [rank for rank in placed if rank not in windows]:
                subject = f"step {label} of rank {shortened(missing)}"
                skips.append(Skip(subject, "no forward or backward pass recorded in a step of this label"))
            line = numbered(lanes, stages)
            if isinstance(line, str):
                cut = [lane.rank for lane in lanes if not is_complete(lane)]
                subject = f"step {label} of rank {shortened(cut or [lane.rank for lane in lanes])}"
                skips.append(Skip(subject, f"{line}: step only partly recorded"))
                continue
            subject = f"step {label} of rank {shortened([lane.rank for lane in lanes])}"
            if not line.size.sure:
                reason = "neither messages nor warm-up show the chunks per rank; assuming one"
                skips.append(Skip(f"chunks in {subject}", reason))
            if line.assumed:
                reason = f"{line.assumed}; assuming the order of Megatron-LM's interleaved schedule"
                skips.append(Skip(f"chunks and micro-batches in {subject}", reason))
            whole, size = Pipeline(line), line.size
            for number, lane in enumerate(line.lanes):
                waits = whole.waits(number)
                window = windows[lane.rank]
                forward = extent(lane.of(FORWARD)).total
                computed = lane.busy.total
                bubble = whole.end - whole.start - computed
                parts = {
                    f"{part}_ns": [sum(wait.end - wait.start for wait in waits if wait.part == part)]
                    for part in PARTS
                }
                inside = max(min(window[1], whole.end) - max(window[0], whole.start), 0)
                work = size.micro_batches * size.chunks
                low = np.array([wait.start for wait in waits], np.int64)
                high = np.array([wait.end for wait in waits], np.int64)
                rows["bubble"].append(
                    {
                        "rank": [lane.rank],
                        "step": [label],
                        "stage": [lane.stage],
                        "stages": [size.stages],
                        "micro_batches": [size.micro_batches],
                        "chunks": [size.chunks],
                        "step_ns": [window[1] - window[0]],
                        "forward_ns": [forward],
                        "backward_ns": [computed - forward],
                        "other_ns": [window[1] - window[0] - inside],
                        "bubble_ns": [bubble],
                        "bubble_fraction": [bubble / max(whole.end - whole.start, 1)],
                        **parts,
                        "overlapped_ns": [int(lane.other.covered(low, high).sum())],
                        "expected_fraction": [(size.stages - 1) / (size.stages - 1 + work)],
                        "bubble_ideal_ratio": [bubble / max(computed, 1)],
                        "expected_ideal_ratio": [(size.stages - 1) / work],
                    }
                )
                chunks = sorted({span.virtual for span in lane.spans})  # of the rank, in the whole model
                spans = sorted(lane.spans, key=lambda span: span.start)
                rows["spans"].append(
                    {
                        "rank": [lane.rank] * len(spans),
                        "step": [label] * len(spans),
                        "stage": [lane.stage] * len(spans),
                        "chunk": [chunks.index(span.virtual) for span in spans],
                        "micro_batch": [span.micro_batch for span in spans],
                        "phase": [span.phase for span in spans],
                        "ts_ns": [span.start for span in spans],
                        "dur_ns": [span.end - span.start for span in spans],
                        "busy_ns": [span.busy_ns for span in spans],
                    }
                )
                if waits:
                    shift = placed[lane.rank][0].shift
                    rows["waits"].append(
                        {
                            "rank": [lane.rank] * len(waits),
                            "step": [label] * len(waits),
                            "part": [wait.part for wait in waits],
                            "ts_ns": [wait.start for wait in waits],
                            "dur_ns": [wait.end - wait.start for wait in waits],
                            "local_ts_ns": [wait.start - shift for wait in waits],
                        }
                    )
    tables = {
        name: TABLES[name].concat(sorted(table_rows, key=lambda row: row["rank"][0]))
        for name, table_rows in rows.items()
    }
    return result(tables, skips, scope=scope)
