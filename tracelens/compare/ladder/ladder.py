"""A ladder of optimizations: the gain of each rung, and which parts of the step it changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.common import device_names, noted
from tracelens.compare.diff import TAIL, ratio
from tracelens.compare.ladder.rungs import LadderRun, Rung
from tracelens.compare.ladder.steps import LEVELS, RUNG, WATERFALL, AblationStep, ablation_steps, in_words
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip, Table
from tracelens.trace import Run

RUNGS = Schema(
    "Rungs",
    (
        RUNG,
        Column("name", "str", doc="what the rung adds, in short; the first one is the baseline"),
        Column("timed_ns", "int64", "ns", "median step time without the profiler"),
        Column("spread", "float64", "ratio", "interquartile range of these steps / their median"),
        Column("tokens_per_s", "int64", doc="all ranks, from the timed steps"),
        Column("speedup", "float64", doc="throughput / baseline throughput"),
        Column("gain", "float64", "ratio", "throughput / that of the rung before - 1"),
        Column("noise", "category", doc="does the gain exceed the step-to-step noise?"),
        Column("peak_bytes", "int64", "bytes", "device memory of the worst rank"),
        Column("traced_ns", "int64", "ns", "mean recorded step"),
    ),
    doc="Each rung adds to the changes of the earlier rungs.",
)
CHANGED = Schema(
    "What each rung changed",
    (
        RUNG,
        Column("name", "str", doc="what the rung adds, in short; the first one is the baseline"),
        Column("adds", "str", doc="toggles added to the rung before"),
        Column("delta_ns", "int64", "ns", "of the traced step"),
        Column("purpose", "str", doc="what the toggles are for", prose=True),
        Column("by_category", "str", doc="categories with most of the difference", prose=True),
        Column("by_cause", "str", doc="causes with most of the difference", prose=True),
        Column("calls", "str", doc="edits with the most time", prose=True),
    ),
    kind="entries",
    doc="From the traces alone, each rung against the one before it. The parts of one kind add up to the "
    "difference of the two steps.",
)
TOTAL = Schema(
    "All rungs together",
    (
        Column("level", "category", doc=", ".join(LEVELS)),
        Column("name", "category", doc="of the part"),
        Column("delta_ns", "int64", "ns", "of all rungs together"),
        Column("share", "float64", "ratio", "share of the difference between last rung and baseline"),
        Column("top_rung", "str", doc="rung with the largest change"),
        Column("top_delta_ns", "int64", "ns", "change by that rung"),
    ),
    kind="levels",
    doc="The rows of each level add up to the traced step of the last rung minus that of the baseline.",
)


TABLES = {"rungs": RUNGS, "changed": CHANGED, "total": TOTAL, "waterfall": WATERFALL}


def ladder(ladder_run: LadderRun, runs: Iterable[Run]) -> Result:
    """The gain of each optimization on top of those before it, and where in the step it comes from.

    Args:
        ladder_run: what was measured.
        runs: the traces of each rung, in order; at most two are held at a time.

    Returns:
        tables `rungs`, `changed` (each rung in words), `total` and `waterfall`. meta: preset, devices, ranks;
        base_ns, last_ns and delta_ns, traced steps of baseline and last rung; speedup, throughput of the last
        rung / the baseline's, -1 if one was not timed.

    Raises:
        TracelensError: a rank has no GPU work.
    """
    steps, metas, skips = ablation_steps(ladder_run, runs)
    traced = [steps[0].base_ns, *(step.cand_ns for step in steps)]
    rungs, lacks = _rungs(ladder_run, traced)
    waterfall = WATERFALL.concat([step.waterfall for step in steps])
    result = Result(
        "ladder",
        "Ladder of optimizations",
        {
            "rungs": rungs,
            "changed": CHANGED.table(_changed(ladder_run, steps)),
            "total": TOTAL.table(_total(waterfall)),
            "waterfall": waterfall,
        },
        doc=purpose(ladder),
        skips=(*(Skip(f"rung {name}", reason) for name, reason in ladder_run.not_run), *lacks, *skips),
        meta={
            "preset": ladder_run.preset,
            "devices": device_names(metas),
            "ranks": len({meta.rank for meta in metas}),
            "base_ns": traced[0],
            "last_ns": traced[-1],
            "delta_ns": traced[-1] - traced[0],
            "speedup": float(rungs.array("speedup")[-1]),
        },
        command="tracelens workload ladder --from DIR",
    )
    return noted(result, metas)


def _rungs(ladder_run: LadderRun, traced: Sequence[int]) -> tuple[Table, list[Skip]]:
    """RUNGS, and what was not measured."""
    skips = []
    if any(rung.peak_bytes < 0 for rung in ladder_run.rungs):
        skips.append(Skip("peak memory", "CPU-only run: torch tracks peak memory on GPUs only"))
    untimed = [rung.name for rung in ladder_run.rungs if not rung.timed_ms]
    if untimed:
        skips.append(Skip(f"throughput of {', '.join(untimed)}", "no timed step; run the ladder again"))
    median, spread = np.array([_typical(rung.timed_ms) for rung in ladder_run.rungs]).T
    rate = np.where(median > 0, ladder_run.tokens / np.maximum(median, 1e-9) * 1e3, -1.0)
    known = (rate > 0) & (rate[0] > 0)
    gain = np.where((rate[1:] > 0) & (rate[:-1] > 0), rate[1:] / rate[:-1] - 1, -1.0)
    return RUNGS.table(
        {
            "rung": np.arange(len(rate)),
            "name": [rung.name for rung in ladder_run.rungs],
            "timed_ns": np.rint(np.where(median > 0, median * 1e6, -1)).astype(np.int64),
            "spread": spread,
            "tokens_per_s": np.rint(rate).astype(np.int64),
            "speedup": np.where(known, rate / rate[0], -1.0),
            "gain": np.concatenate(([0.0], gain)),
            "noise": ["", *map(_noise, ladder_run.rungs[:-1], ladder_run.rungs[1:])],
            "peak_bytes": np.array([rung.peak_bytes for rung in ladder_run.rungs], dtype=np.int64),
            "traced_ns": np.array(traced, dtype=np.int64),
        }
    ), skips


def _typical(timed_ms: Sequence[float]) -> tuple[float, float]:
    """Median, and interquartile range / median; -1 without steps."""
    if not timed_ms:
        return -1.0, -1.0
    low, median, high = np.percentile(timed_ms, (25, 50, 75)).tolist()
    return median, (high - low) / median


def _noise(before: Rung, after: Rung) -> str:
    """Whether the step times of two rungs differ by more than the step-to-step noise."""
    if min(len(before.timed_ms), len(after.timed_ms)) < 2:
        return "unknown"
    interval = ratio(np.array(before.timed_ms), np.array(after.timed_ms), TAIL)
    return "within" if interval.low <= 1 <= interval.high else "beyond"


def _changed(ladder_run: LadderRun, steps: Sequence[AblationStep]) -> dict[str, list[Any]]:
    rungs = ladder_run.rungs[1:]
    return {
        "rung": list(range(1, len(ladder_run.rungs))),
        "name": [rung.name for rung in rungs],
        "adds": [rung.adds for rung in rungs],
        "delta_ns": [step.cand_ns - step.base_ns for step in steps],
        "purpose": [rung.purpose for rung in rungs],
        "by_category": [in_words(step.waterfall, "category") for step in steps],
        "by_cause": [in_words(step.waterfall, "cause") for step in steps],
        "calls": [step.calls for step in steps],
    }


def _total(waterfall: Table) -> dict[str, list[Any]]:
    """Rows of TOTAL: all rungs together."""
    keys = (waterfall.texts(column) for column in ("level", "name", "rung_name"))
    parts: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for level, name, rung, ns in zip(*keys, waterfall.array("delta_ns").tolist(), strict=True):
        parts.setdefault((level, name), []).append((ns, rung))
    rows = []
    for (level, name), changes in parts.items():
        most_ns, rung = max(changes, key=lambda change: abs(change[0]))
        rows.append((level, name, sum(ns for ns, _ in changes), rung, most_ns))
    rows.sort(key=lambda row: (LEVELS.index(row[0]), -abs(row[2])))
    levels, names, deltas, most, most_deltas = (list(column) for column in zip(*rows, strict=True))
    total_ns = sum(delta for level, delta in zip(levels, deltas, strict=True) if level == LEVELS[0])
    return {
        "level": levels,
        "name": names,
        "delta_ns": deltas,
        "share": [delta / total_ns if total_ns else 0.0 for delta in deltas],
        "top_rung": most,
        "top_delta_ns": most_deltas,
    }
