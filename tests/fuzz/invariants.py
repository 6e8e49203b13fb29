"""What holds of every result, whatever the trace says."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tracelens.table import Report, Result, Table
from tracelens.trace import Run

_SIGNED = re.compile(
    r"delta|change|diff|offset|skew|share|low|high|^value$|^base$|^cand$|difference|saving|slack|ts_ns|at_ns|lag|drift|"
    r"end_ns|start_ns|excess|gap|estimate|limit|^gain$|^error$|^extra_ns$",
)
"""Columns whose values may be below zero: differences, moments, and figures of any kind."""
_ROUNDING = 1e-6


def of_run(run: Run) -> Iterator[str]:
    """What is wrong with the traces as read."""
    for trace in run.traces:
        meta = trace.meta
        if meta.read != meta.kept + sum(meta.dropped.values()):
            yield f"read: {meta.read} events read, {meta.kept} kept and {sum(meta.dropped.values())} dropped"
        for name, table in trace.tables.items():
            yield from _table(
                f"trace {name}", table, signed=("pid", "tid", "ts_ns", "correlation_id", "event_id")
            )


def of_report(report: Report) -> Iterator[str]:
    """What is wrong with the results."""
    for result in report.results:
        for name, table in result.data.items():
            yield from _table(f"{result.analyzer}.{name}", table)
        yield from _numbers(f"{result.analyzer}.meta", result.meta)
        if result.analyzer in _SUMS:
            yield from _SUMS[result.analyzer](result)


def _table(title: str, table: Table, signed: tuple[str, ...] = ()) -> Iterator[str]:
    for column in table.schema.columns:
        if column.dtype not in ("int64", "float64") or not len(table):
            continue
        values = table.array(column.name)
        if not np.isfinite(values).all():
            yield f"{title}: {column.name} is not finite"
            continue
        low, high = values.min(), values.max()
        if column.unit == "fraction" and not (high <= 1 + _ROUNDING):
            yield f"{title}: {column.name} is above 1"
        if column.name in signed or _SIGNED.search(column.name):
            continue
        if column.unit and ((values < 0) & (values != -1)).any():
            yield f"{title}: {column.name} is negative"
        if column.unit == "fraction" and low < 0 and low != -1:
            yield f"{title}: {column.name} is below 0"


def _numbers(title: str, value: Any) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{title}: not finite"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{title}.{key}", item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(title, item)


def _rows(result: Result, name: str) -> Iterator[dict[str, Any]]:
    table = result.data.get(name)
    if table is None:
        return
    columns = {
        column.name: table.texts(column.name)
        if column.dtype in ("str", "category")
        else table.array(column.name).tolist()
        for column in table.schema.columns
    }
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _breakdown(result: Result) -> Iterator[str]:
    own: dict[tuple[int, int], int] = {}
    below: dict[tuple[int, int], int] = defaultdict(int)
    parents = set()
    for row in _rows(result, "breakdown"):
        own[row["rank"], row["node"]] = row["exclusive_ns"]
        below[row["rank"], row["parent"]] += row["exclusive_ns"]
        parents.add((row["rank"], row["parent"]))
    for key in parents:
        if key in own and own[key] != below[key]:
            yield "breakdown: children do not add up to their parent"
            return


def _timeline(result: Result) -> Iterator[str]:
    ranks: dict[int, dict[str, int]] = defaultdict(dict)
    for row in _rows(result, "timeline"):
        ranks[row["rank"]][row["metric"]] = row["dur_ns"]
    for metrics in ranks.values():
        parts = ("computation", "exposed_comm", "exposed_memcpy", "exposed_memset")
        if metrics["busy"] != sum(metrics[name] for name in parts):
            yield "timeline: exposed parts do not add up to busy"
        if metrics["total"] != metrics["busy"] + metrics["idle"]:
            yield "timeline: busy and idle do not add up to total"


def _idle(result: Result) -> Iterator[str]:
    whole: dict[int, float] = defaultdict(float)
    for row in _rows(result, "causes" if "causes" in result.data else next(iter(result.data), "")):
        whole[row["rank"]] += row["fraction_of_idle"]
    for total in whole.values():
        if total and abs(total - 1) > _ROUNDING:
            yield "idle: causes do not add up to the idle time"
            return


def _step_timeline(result: Result) -> Iterator[str]:
    end_of: dict[int, int] = {}
    whole: dict[int, int] = defaultdict(int)
    for row in _rows(result, "states") if "states" in result.data else ():
        if row["dur_ns"] <= 0 or end_of.get(row["rank"], row["ts_ns"]) != row["ts_ns"]:
            yield "step_timeline: states overlap or leave a hole"
            return
        end_of[row["rank"]] = row["ts_ns"] + row["dur_ns"]
        whole[row["rank"]] += row["dur_ns"]
    for row in _rows(result, "shares"):
        whole[row["rank"]] -= row["dur_ns"]
    if any(whole.values()):
        yield "step_timeline: the states do not add up to the shares"
    for name in ("steps", "states", "kernels", "marks"):
        if name in result.data and (result.data[name].array("ts_ns") < 0).any():
            yield f"step_timeline: {name} before the begin"


def _diff(result: Result) -> Iterator[str]:
    base, cand = result.meta["base_ns"], result.meta["cand_ns"]
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in _rows(result, "waterfall"):
        for place, name in enumerate(("base_ns", "cand_ns", "delta_ns")):
            sums[row["level"]][place] += row[name]
    for level, found in sums.items():
        if found != [base, cand, cand - base]:
            yield f"diff: level {level} of the waterfall does not add up to the steps"


_SUMS = {
    "breakdown": _breakdown,
    "timeline": _timeline,
    "idle": _idle,
    "step_timeline": _step_timeline,
    "diff": _diff,
}
