"""Hand-built steps on many ranks: what the picture of the step is drawn from."""

from __future__ import annotations

from typing import Any

from tests.rendering.sample import IMAGE, NS, RANK, SCRIPT, coded, table
from tracelens.table import Column, Report, Result, Table

MS = 1_000_000
STEP_NS = 100 * MS
KERNELS = 2_000
"""Of each rank in a step: half of them of 20 us on stream 7, 5 us apart; the rest later, end to end."""


def _text(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "category") for name in names)


def _times(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "int64", NS) for name in names)


def _table(title: str, columns: tuple[Column, ...], rows: list[tuple[Any, ...]]) -> Table:
    data = {
        column.name: coded([row[at] for row in rows])
        if column.dtype == "category"
        else [row[at] for row in rows]
        for at, column in enumerate(columns)
    }
    return table(title, columns, data, drawn=True)


def states(ranks: int, steps: int) -> Table:
    """gemm 0-40, grouped GEMM 40-60, all-to-all 60-70, waiting 70-(80 - rank/ranks), idle until 100 ms."""
    rows: list[tuple[Any, ...]] = []
    for rank in range(ranks):
        late = 10 * MS * rank // max(ranks, 1)
        ends = [(40, "gemm", ""), (60, "grouped_gemm", SCRIPT), (70, "communication", "all-to-all, EP 0-3")]
        for step in range(steps):
            start = step * STEP_NS
            for end_ms, state, detail in ends:
                rows.append((rank, start, step * STEP_NS + end_ms * MS - start, state, detail))
                start = step * STEP_NS + end_ms * MS
            until = step * STEP_NS + 80 * MS - late
            rows.append((rank, start, until - start, "waiting", f"rank {ranks - 1}"))
            rows.append((rank, until, (step + 1) * STEP_NS - until, "idle", ("host late", IMAGE)[rank % 2]))
    return _table("States", (RANK, *_times("ts_ns", "dur_ns"), *_text("state", "detail")), rows)


def kernels(ranks: int, steps: int, per_rank: int = KERNELS) -> Table:
    """Short ones on stream 7, then four collectives on stream 20 and a grouped GEMM with an evil name."""
    rows: list[tuple[Any, ...]] = []
    for step in range(steps):
        for rank in range(ranks):
            start = step * STEP_NS
            for number in range(per_rank):
                name = ("Cijk_Ailk_Bljk", SCRIPT, "elementwise_kernel")[number % 3]
                kind = ("gemm", "grouped_gemm", "elementwise")[number % 3]
                where = (f"layers.{number // 100}.mlp", "experts", "model.py:12 forward")
                at = start + number * 25_000
                rows.append((rank, 7, at, 20_000, name, kind, "aten::mm", "[[4096, 4096]]", *where))
            late = 10 * MS * rank // max(ranks, 1)
            at = start + 60 * MS
            wait = ("ncclDevKernel", "communication", "c10d::alltoall", "[[8]]", "", "", "")
            rows.append((rank, 20, at, 20 * MS - late, *wait))
    columns = (
        RANK,
        Column("stream", "int64"),
        *_times("ts_ns", "dur_ns"),
        *_text("name", "category", "op", "shapes", "module", "stage", "source"),
    )
    return _table("Kernels", columns, rows)


def step_timeline(ranks: int = 4, steps: int = 2, per_rank: int = KERNELS) -> Result:
    """Ranks in two steps of 100 ms; the later a rank's number, the shorter it waits."""
    windows = [
        (f"ProfilerStep#{step + 3}", step * STEP_NS, STEP_NS, ranks * per_rank) for step in range(steps)
    ]
    marks = [
        (rank, "moe_layer", f"layer {layer} forward", step * STEP_NS + layer * 20 * MS, 18 * MS, 0)
        for rank in range(ranks)
        for step in range(steps)
        for layer in range(3)
    ]
    marks += [
        (rank, "pipeline", f"F micro-batch {rank}", rank * 5 * MS, 30 * MS, 1)
        for rank in range(min(ranks, 16))
    ]
    busy = (RANK, Column("step", "str"), *_times("dur_ns"))
    per_step = [(rank, window[0], 80 * MS) for window in windows for rank in range(ranks)]
    tables = {
        "busy": table(
            "Busy time", busy, {column.name: [row[at] for row in per_step] for at, column in enumerate(busy)}
        ),
        "steps": table(
            "Steps",
            (*_text("step"), *_times("ts_ns", "dur_ns"), Column("kernels", "int64"), Column("shown", "bool")),
            {
                "step": coded([row[0] for row in windows]),
                "ts_ns": [row[1] for row in windows],
                "dur_ns": [row[2] for row in windows],
                "kernels": [row[3] for row in windows],
                "shown": [step == 0 for step in range(steps)],
            },
            drawn=True,
        ),
        "states": states(ranks, steps),
        "kernels": kernels(ranks, 1, per_rank),
        "traces": _table(
            "Traces",
            (RANK, *_text("host"), *_times("first_event_offset_ns")),
            [(rank, f"node{rank // 2}", -MS * rank) for rank in range(ranks)],
        ),
        "marks": _table(
            "Marks",
            (RANK, *_text("kind", "name"), *_times("ts_ns", "dur_ns"), Column("depth", "int64")),
            marks,
        ),
    }
    return Result("step_timeline", "The step on every rank", tables)


def report(ranks: int = 4, per_rank: int = KERNELS) -> Report:
    """The picture alone."""
    return Report((step_timeline(ranks, per_rank=per_rank),), title="Report of " + SCRIPT)
