"""The picture of the step: every rank a lane, colored by what it does, drawn in the page.

The tables are those of result `step_timeline`. What a page needs before anything is unpacked (colors, words,
which ranks to compare) travels as JSON; the time of each rank by state is also a table that needs no script.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.arrays import Float, ordered
from tracelens.rendering.figures import colors_of
from tracelens.rendering.interactive import packed
from tracelens.rendering.tables import one_line
from tracelens.table import Coded, Result, Rows, Table

ANALYZER = "step_timeline"
LANES = 16
"""Ranks that are all drawn as lanes; of more, a heat map and the lanes of three."""
CAUSES = 4
"""Causes of idle time with a column of their own."""

_TABLES = ("steps", "states", "kernels", "traces", "marks", "messages")
_LONGEST = "longest gap"
_NO_COMPUTATION = {"communication", "waiting", "copy", "fill", "idle"}
"""States that are no computation."""
_LABELS = {
    "gemm": "GEMM",
    "grouped_gemm": "grouped GEMM",
    "moe_routing": "MoE routing",
    "communication": "communication",
    "waiting": "waiting for ranks",
}


class HeatCell(Struct, frozen=True):
    """One time of a rank."""

    ms: float  # of the step
    heat: float  # where it lies between the column's smallest value, 0, and its largest, 1
    fraction: float | None  # of the rank's time in the step; None for single gaps


class Picture(Struct, frozen=True):
    """What the page needs to draw the step."""

    title: str  # heading
    # for the script, JSON-able: colors and labels of states, ranks to compare, clocks
    data: Mapping[str, Any]
    payloads: Mapping[str, bytes]  # packed tables by the name under which the page asks for them
    columns: tuple[str, ...]  # of the heat map
    rows: tuple[tuple[int, tuple[HeatCell, ...]], ...]  # (rank, its cells); one row a rank
    step: str  # name of the step that the cells are of and the picture opens with, "" for a whole recording

    @property
    def many(self) -> bool:
        """Whether there are too many ranks for a lane each."""
        return len(self.rows) > LANES


def picture(results: Sequence[Result]) -> Picture | None:
    """The picture of a report's results; None where they have no GPU time to show."""
    result = next((result for result in results if result.analyzer == ANALYZER), None)
    if result is None or not all(len(result.data.get(name, ())) for name in ("steps", "states")):
        return None
    tables = {name: result.data[name] for name in _TABLES if name in result.data}
    steps = tables["steps"].texts("step")
    typical = result.meta.get("typical_step")
    number = steps.index(typical) if typical in steps else 0
    begin, dur = (int(tables["steps"].array(name)[number]) for name in ("ts_ns", "dur_ns"))
    states = tables["states"]
    # The states in the step; every rank keeps a row.
    start = np.clip(states.array("ts_ns"), begin, begin + dur)
    end = np.clip(states.array("ts_ns") + states.array("dur_ns"), begin, begin + dur)
    ranks, times = _heat(Table(states.schema, {**states.columns, "ts_ns": start, "dur_ns": end - start}))
    if not times:
        return None
    whole = np.maximum(sum(ns for name, ns in times.items() if name != _LONGEST), 1)
    cells = []
    for name, ns in times.items():
        low, high = ns.min(), ns.max()
        heat = (ns - low) / (high - low if high > low else 1)
        fraction = [None] * len(ns) if name == _LONGEST else (ns / whole).tolist()
        cells.append(map(HeatCell, (ns / 1e6).tolist(), heat.tolist(), fraction))
    names = {one_line(text) for text in states.coded("state").values}
    if "kernels" in tables:
        names |= {one_line(text) for text in tables["kernels"].coded("category").values}
    traces = tables.get("traces")
    traced = list(map(str, traces.values("rank"))) if traces else []
    hosts = map(one_line, traces.values("host")) if traces else ()
    offsets_ns = traces.values("first_event_offset_ns") if traces else ()
    # The ranks that say most when not all have room: the slowest waits least, the fastest most. Where no rank
    # waits, those with most and least computation.
    busy = times.get("computation", np.zeros(len(ranks)))
    slow_first = np.argsort(times.get(_LABELS["waiting"], -busy), kind="stable")
    slowest, middle, fastest = (ranks[slow_first[row]] for row in (0, len(ranks) // 2, -1))
    return Picture(
        title=f"The step on {len(ranks)} ranks" if len(ranks) > 1 else "The step",
        data={
            "colors": colors_of(names),
            "labels": {name: _LABELS.get(name, name.replace("_", " ")) for name in sorted(names)},
            "hosts": {rank: host for rank, host in zip(traced, hosts, strict=True) if host},
            "first_event_offset_ns": dict(zip(traced, offsets_ns, strict=True)),
            "compared": {"slowest": slowest, "typical": middle, "fastest": fastest},
            "step": number,
        },
        payloads={
            f"step-{name}": packed(end_to_end(table) if name == "states" else table)
            for name, table in tables.items()
            if name != "traces"
        },
        columns=tuple(times),
        rows=tuple(zip(ranks, zip(*cells, strict=True), strict=True)),
        step=one_line(steps[number]),
    )


def end_to_end(states: Table) -> Table:
    """The states without their starts, which are the most of a payload: each begins where the last one ends.

    Time that no state covers, from 0 on, is a row with state "".
    """
    states = states.take(ordered(states.array("rank"), states.array("ts_ns")))
    rank, start = states.array("rank"), states.array("ts_ns")
    end = start + states.array("dur_ns")
    same = np.append(False, rank[1:] == rank[:-1])[: len(rank)]
    hole = start - np.where(same, np.append(0, end[:-1])[: len(end)], 0)
    before = np.flatnonzero(hole)
    columns: dict[str, Any] = {
        "rank": np.insert(rank, before, rank[before]),
        "dur_ns": np.insert(states.array("dur_ns"), before, hole[before]),
    }
    for name in ("state", "detail"):
        text = states.coded(name)
        codes = np.insert(text.codes, before, len(text.values))
        columns[name] = Coded(codes, [*text.values, ""])
    schema = replace(
        states.schema, columns=tuple(column for column in states.schema.columns if column.name != "ts_ns")
    )
    return Table(schema, columns)


def _heat(states: Table) -> tuple[list[int], dict[str, Float]]:
    """Ranks, and ns of each of them by column; the last column is the longest gap, which is no sum."""
    rank_of, (ranks,) = states.group("rank")
    state, detail = states.coded("state"), states.coded("detail")
    dur_ns = states.array("dur_ns").astype(float)
    none = np.zeros(len(ranks))

    def by_text(column: Coded, rows: Rows) -> dict[str, Float]:
        """The time of each rank, by the text of a column."""
        cell = rank_of[rows] * len(column.values) + column.codes[rows]
        sums = np.bincount(cell, dur_ns[rows], len(ranks) * len(column.values))
        return dict(zip(column.values, sums.reshape(len(ranks), -1).T, strict=True))

    of_state = defaultdict(lambda: none, by_text(state, slice(None)))
    columns = {
        "computation": sum((ns for name, ns in of_state.items() if name not in _NO_COMPUTATION), none),
        "communication": of_state["communication"],
        _LABELS["waiting"]: of_state["waiting"],
        "copies": of_state["copy"] + of_state["fill"],
    }
    idle = np.flatnonzero(state.equals("idle"))
    of_cause = by_text(detail, idle)
    largest = sorted(of_cause, key=lambda cause: -of_cause[cause].sum())
    for cause in largest[:CAUSES]:
        columns[f"idle: {one_line(cause)}" if cause else "idle"] = of_cause[cause]
    columns["idle: other causes"] = sum((of_cause[cause] for cause in largest[CAUSES:]), none)
    longest = columns[_LONGEST] = np.zeros_like(none)
    np.maximum.at(longest, rank_of[idle], dur_ns[idle])
    return ranks, {name: times for name, times in columns.items() if times.any()}
