"""Results of a run as its analyzers would make them, with the figures that a test is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.analysis.host import HOST_CAUSES
from tracelens.findings import DETECTORS
from tracelens.rendering.summary import run_summary
from tracelens.table import Column, Result, Schema, Skip, Summary, Tile
from tracelens.units import Unit

MS = 1_000_000
H200 = "NVIDIA H200"
COMPLETE = {"complete": True, "doubts": {}}


def result(analyzer: str, skips: Sequence[Skip] = (), meta: Mapping[str, Any] | None = None,
           **tables: Sequence[Mapping[str, Any]]) -> Result:  # fmt: skip
    """A result whose columns are the keys of its rows; the end of a name says the unit."""
    data = {name: _schema(name, rows[0]).from_rows(rows) for name, rows in tables.items() if rows}
    return Result(analyzer, analyzer, data, skips=tuple(skips), meta=meta or {})


def _schema(title: str, row: Mapping[str, Any]) -> Schema:
    def column(name: str, value: Any) -> Column:
        unit: Unit = "ns" if name.endswith("_ns") else ""
        kinds = {str: "category", bool: "bool", int: "int64", float: "float64"}
        return Column(name, kinds[type(value)], unit)  # type: ignore[arg-type]

    return Schema(title, tuple(column(name, value) for name, value in row.items()))


def steps(
    *durations_ms: Sequence[float],
    computation: float = 0.5,
    comm: float = 0.0,
    idle: float = 0.0,
    label: str = "ProfilerStep#{}",
    peaks: Mapping[int, int] | None = None,
) -> Result:
    """The steps of each rank, all with the same shares; `peaks` are bytes by rank."""
    rows = [
        {
            "rank": rank,
            "step": label.format(number),
            "dur_ns": round(ms * MS),
            "computation_ns": round(ms * MS * computation),
            "comm_ns": round(ms * MS * comm),
            "exposed_comm_ns": round(ms * MS * comm),
            "idle_ns": round(ms * MS * idle),
        }
        for rank, of_rank in enumerate(durations_ms)
        for number, ms in enumerate(of_rank)
    ]
    metrics = [
        {"rank": rank, "metric": "memory.peak", "value": float(peak)} for rank, peak in (peaks or {}).items()
    ]
    return result("steps", steps=rows, metrics=metrics)


def utilisation(*mfus: float, mbu: float = -1, dur_ms: float = 100, skips: Sequence[Skip] = ()) -> Result:
    """The MFU of each rank in its first step, and their MBU; negative where it is unknown."""
    rows = [
        {
            "rank": rank,
            "step": "ProfilerStep#0",
            "dur_ns": round(dur_ms * MS),
            "mfu": mfu,
            "flops": max(mfu, 0.0) * 1e12,
            "mbu": float(mbu),
        }
        for rank, mfu in enumerate(mfus)
    ]
    return result("roofline", skips, utilisation=rows)


def roofline(*ops: tuple[str, float, float], coverage: float = 1.0, bound: str = "memory") -> Result:
    """Ops of rank 0 as (name, ms, ms by the roofline)."""
    rows = [
        {
            "name": name,
            "bound": bound,
            "dur_ns": round(ms * MS),
            "roofline_ns": round(least * MS),
            "recoverable_ns": round((ms - least) * MS),
        }
        for name, ms, least in ops
    ]
    parts = [{"dur_ns": row["dur_ns"]} for row in rows]
    return result("roofline", meta={"coverage": coverage}, roofline=rows, coverage=parts)


def idle(rank: int = 0, **causes_ms: float) -> Result:
    """Idle time by cause; _ stands for a blank."""
    rows = [
        {"rank": rank, "cause": cause.replace("_", " "), "dur_ns": round(ms * MS), "once_ns": 0}
        for cause, ms in causes_ms.items()
    ]
    return result("idle", causes=rows)


def communication(*ranks: tuple[float, float, float], total_ms: float = 100) -> list[Result]:
    """Of each rank the time of its communication kernels, their waiting, and what is not matched, in ms."""
    rows = [
        {
            "rank": rank,
            "kernel_ns": round(kernel * MS),
            "comm_ns": round((kernel - sync) * MS),
            "wait_ns": round(sync * MS),
            "exposed_ns": round(kernel * MS),
            "unmatched_ns": round(unmatched * MS),
        }
        for rank, (kernel, sync, unmatched) in enumerate(ranks)
    ]
    states = [
        {"rank": rank, "state": state, "ts_ns": round(start * MS), "dur_ns": round(ms * MS)}
        for rank, (kernel, sync, _) in enumerate(ranks)
        for state, start, ms in (
            ("waiting", 0, sync),
            ("communication", sync, kernel - sync),
            ("gemm", kernel, total_ms - kernel),
        )
    ]
    steps = [{"step": "ProfilerStep#0", "ts_ns": 0, "dur_ns": round(total_ms * MS)}]
    return [result("collectives", ranks=rows), result("step_timeline", states=states, steps=steps)]


def findings(*found: tuple[str, str, float, str], base_ms: float = 100, more_ms: float = 0) -> Result:
    """Findings as (name, scenario, saving in ms, confidence); each saves `more_ms` more by itself."""
    fix_of = {item.scenario: item.fix for _, item in DETECTORS.items() if item.scenario}
    rows = [
        {
            "finding": name,
            "scenario": scenario,
            "fix": fix_of.get(scenario, ""),
            "additional_ns": round(ms * MS),
            "saving_ns": round((ms + more_ms) * MS),
            "fraction_of_step": ms / base_ms,
            "confidence": sure,
        }
        for name, scenario, ms, sure in found
    ]
    return result("findings", meta={"step": "ProfilerStep#0", "base_ns": round(base_ms * MS)}, findings=rows)


def serving(*kinds: tuple[int, str, int, float, int], engine: str = "vLLM") -> Result:
    """Steps of an engine as (rank, kind, count, ms of all of them, tokens)."""
    rows = [
        {"rank": rank, "kind": kind, "count": count, "dur_ns": round(ms * MS), "tokens": tokens}
        for rank, kind, count, ms, tokens in kinds
    ]
    return result("serving", ranks=rows, summary=[{"engine": engine}])


def summary(*results: Result, devices: Sequence[str] = (H200,), **meta: Any) -> Summary:
    """The summary of a report with these results; `meta` adds to that of the report."""
    report_meta = {"devices": list(devices), "ranks": [0], "trust": COMPLETE, **meta}
    made = run_summary(results, report_meta, HOST_CAUSES)
    assert made is not None
    return made


def tile(made: Summary, name: str) -> Tile:
    """A tile by name."""
    return {each.name: each for each in made.tiles}[name]


def names(made: Summary) -> list[str]:
    """The names of the tiles, in order."""
    return [each.name for each in made.tiles]
