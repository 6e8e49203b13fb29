"""Steps, passes of micro-batches, passes through MoE layers, and messages, by the clock of the picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.comm import SEND_RECV, AlignedRun
from tracelens.analysis.step_timeline.rank import RankTimeline
from tracelens.analysis.step_timeline.schemas import MARKS, MESSAGES
from tracelens.arrays import Int
from tracelens.table import Coded, Result, Table
from tracelens.trace import is_step
from tracelens.units import amount

COMMON = -1
"""Stands for the common clock among those of the ranks."""

_PHASE = {"forward": "F", "backward": "B"}


def marks(results: Mapping[str, Result], parts: Sequence[RankTimeline], start: Mapping[int, int]) -> Table:
    """The marks of all ranks, by rank and depth.

    Args:
        results: of `moe`, `pipeline` and `serving`.
        parts: of the ranks.
        start: rank to what is added to its times to get them since the first instant shown; that of the
            first rank, by whose clock most results are, at -1.
    """
    steps = [_steps(part, start[part.rank]) for part in parts]
    by_kind = {"step": steps} if any(len(rows["rank"]) for rows in steps) else {}
    for kind, analyzer, name, names in (
        ("serving", "serving", "steps", _serving),
        ("pipeline", "pipeline", "spans", _spans),
        ("moe_layer", "moe", "passes", _layers),
    ):
        table = results[analyzer].data.get(name)
        if table is None or not len(table):
            continue
        # Passes through layers have the times of their rank.
        shift = [start[rank if kind == "moe_layer" else COMMON] for rank in table.values("rank")]
        times = table.array("ts_ns") + np.array(shift, dtype=np.int64)
        by_kind[kind] = [_rows(table.array("rank"), names(table), times, table.array("dur_ns"))]
    rows = [
        row | {"kind": [kind] * len(row["rank"]), "depth": np.full(len(row["rank"]), depth)}
        for depth, (kind, parts_of_kind) in enumerate(by_kind.items())
        for row in parts_of_kind
    ]
    table = MARKS.concat(rows)
    # A serving step without kernels lasts as long as its mark on the host, maybe before all GPU work.
    table = table.take(table.array("ts_ns") >= 0)
    return table.take(np.lexsort((table.array("ts_ns"), table.array("depth"), table.array("rank"))))


def _rows(rank: Int, names: list[str], start: Int, dur: Int) -> dict[str, Any]:
    return {"rank": rank, "name": Coded.of(names), "ts_ns": start, "dur_ns": dur}


def _steps(part: RankTimeline, start: int) -> dict[str, Any]:
    """The whole steps of a rank."""
    whole = [number for number, step in enumerate(part.labels) if step and is_step(step)]
    begin, end = part.edges[:-1][whole], part.edges[1:][whole]
    names = [part.labels[number] for number in whole]
    return _rows(np.full(len(whole), part.rank), names, begin + start, end - begin)


def _serving(table: Table) -> list[str]:
    """What a step serves: "decode 32" of 32 tokens."""
    columns = map(table.values, ("kind", "dummy", "tokens", "requests"))
    names = []
    for kind, dummy, tokens, requests in zip(*columns, strict=True):
        size = tokens if tokens >= 0 else requests
        name = f"dummy {kind}" if dummy and kind != "idle" else kind
        names.append(f"{name} {size}" if size >= 0 and not dummy else name)
    return names


def _spans(table: Table) -> list[str]:
    chunks = len(set(table.values("chunk"))) > 1
    rows = zip(table.values("phase"), table.values("microbatch"), table.values("chunk"), strict=True)
    return [
        f"{_PHASE[phase]} micro-batch {microbatch}{f' chunk {chunk}' if chunks else ''}"
        for phase, microbatch, chunk in rows
    ]


def _layers(table: Table) -> list[str]:
    rows = zip(table.values("layer"), table.values("phase"), strict=True)
    return [f"layer {layer} {phase}" for layer, phase in rows]


def messages(aligned: AlignedRun, origin: int, end: int) -> Table:
    """Sends with their receives that lie in the picture.

    Args:
        aligned: the run.
        origin: first instant shown, ns by the common clock.
        end: last instant.
    """
    rows = []
    for pair in aligned.collectives:
        sender, receiver = pair.participants[0], pair.participants[-1]
        if pair.collective == SEND_RECV and origin <= sender.start and receiver.end <= end:
            size = f": {amount(pair.bytes, 'bytes')}" if pair.bytes >= 0 else ""
            times = sender.start - origin, receiver.end - origin
            rows.append((sender.rank, times[0], receiver.rank, times[1], f"{pair.group}{size}"))
    return MESSAGES.from_rows(rows)
