"""A ladder of optimisations: what each rung brought, and which parts of the step it changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.common import device_names, noted
from tracelens.compare.diff import TAIL, ratio
from tracelens.compare.ladder.rungs import LadderRun, Rung
from tracelens.compare.ladder.steps import LEVELS, WATERFALL, AblationStep, in_words, strides
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip, Table, stack
from tracelens.trace import Run

RUNGS = Schema(
    "Rungs",
    (
        Column("rung", "int64", "count", "0 for the baseline"),
        Column("name", "str"),
        Column("timed_ns", "int64", "ns", "of a step without the profiler, median"),
        Column("spread", "float64", "ratio", "distance of the quartiles of these steps / their median"),
        Column("tokens_per_s", "int64", doc="of all ranks, from the timed steps"),
        Column("speedup", "float64", doc="throughput / the baseline's"),
        Column("gain", "float64", "ratio", "throughput / that of the rung before, less 1"),
        Column("noise", "category", doc="whether the gain is beyond the noise between timed steps"),
        Column("peak_bytes", "int64", "bytes", "of device memory, of the rank with most"),
        Column("traced_ns", "int64", "ns", "of a recorded step, mean"),
    ),
    doc="Each rung keeps what those before it changed; all else is the same.",
)
CHANGED = Schema(
    "What each rung changed",
    (
        Column("rung", "int64", "count"),
        Column("name", "str"),
        Column("adds", "str", doc="toggles on top of the rung before"),
        Column("delta_ns", "int64", "ns", "of the traced step"),
        Column("purpose", "str", prose=True),
        Column("by_category", "str", doc="what has most of the difference", prose=True),
        Column("by_cause", "str", doc="the same step time by what became of the calls", prose=True),
        Column("calls", "str", doc="edits with most time", prose=True),
    ),
    doc="From the traces alone, each rung against the one before it. All parts of one kind together are the "
    "difference of the two steps.",
)
TOTAL = Schema(
    "The whole way",
    (
        Column("level", "category", doc=", ".join(LEVELS)),
        Column("name", "category"),
        Column("delta_ns", "int64", "ns", "of all rungs together"),
        Column("share", "float64", "ratio", "of the difference between last rung and baseline"),
        Column("most", "str", doc="rung that changed most of it"),
        Column("most_delta_ns", "int64", "ns", "by so much"),
    ),
    doc="The rows of each table add up to the traced step of the last rung less that of the baseline.",
)


def ladder(climb: LadderRun, runs: Iterable[Run]) -> Result:
    """How much each optimisation brought, on top of those before it, and where in the step it did so.

    Args:
        climb: what was measured.
        runs: the traces of each rung, in order; they are taken one by one, and two at a time are held.

    Returns:
        tables `rungs`, `changed` (of each rung, in words), `total` and `waterfall`. meta: preset, devices,
        ranks; base_ns, last_ns and delta_ns, traced steps of baseline and last rung; speedup, throughput of
        the last rung / the baseline's, -1 where one was not timed.

    Raises:
        TracelensError: a rank has no GPU work.
    """
    climbed, metas, skips = strides(climb, runs)
    traced = [climbed[0].base_ns, *(stride.cand_ns for stride in climbed)]
    rungs, lacks = _rungs(climb, traced)
    waterfall = stack(WATERFALL, [stride.waterfall for stride in climbed])
    found = Result(
        "ladder",
        "Ladder of optimisations",
        {
            "rungs": rungs,
            "changed": CHANGED.table(_changed(climb, climbed)),
            "total": TOTAL.table(_total(waterfall)),
            "waterfall": waterfall,
        },
        doc=purpose(ladder),
        skips=(*(Skip(f"rung {name}", reason) for name, reason in climb.left), *lacks, *skips),
        meta={
            "preset": climb.preset,
            "devices": device_names(metas),
            "ranks": len({meta.rank for meta in metas}),
            "base_ns": traced[0],
            "last_ns": traced[-1],
            "delta_ns": traced[-1] - traced[0],
            "speedup": float(rungs.array("speedup")[-1]),
        },
        command="tracelens workload ladder --from DIR",
    )
    return noted(found, metas)


def _rungs(climb: LadderRun, traced: Sequence[int]) -> tuple[Table, list[Skip]]:
    """RUNGS, and what was not measured."""
    skips = []
    if any(rung.peak_bytes < 0 for rung in climb.rungs):
        skips.append(Skip("peak memory", "torch counts the memory of GPUs alone, and this ran on none"))
    untimed = [rung.name for rung in climb.rungs if not rung.timed_ms]
    if untimed:
        skips.append(Skip(f"throughput of {', '.join(untimed)}", "no step was timed; run the ladder again"))
    median, spread = np.array([_typical(rung.timed_ms) for rung in climb.rungs]).T
    rate = np.where(median > 0, climb.tokens / np.maximum(median, 1e-9) * 1e3, -1.0)
    known = (rate > 0) & (rate[0] > 0)
    gain = np.where((rate[1:] > 0) & (rate[:-1] > 0), rate[1:] / rate[:-1] - 1, -1.0)
    return RUNGS.table(
        {
            "rung": np.arange(len(rate)),
            "name": [rung.name for rung in climb.rungs],
            "timed_ns": np.rint(np.where(median > 0, median * 1e6, -1)).astype(np.int64),
            "spread": spread,
            "tokens_per_s": np.rint(rate).astype(np.int64),
            "speedup": np.where(known, rate / rate[0], -1.0),
            "gain": np.concatenate(([0.0], gain)),
            "noise": ["", *map(_noise, climb.rungs[:-1], climb.rungs[1:])],
            "peak_bytes": np.array([rung.peak_bytes for rung in climb.rungs], dtype=np.int64),
            "traced_ns": np.array(traced, dtype=np.int64),
        }
    ), skips


def _typical(timed_ms: Sequence[float]) -> tuple[float, float]:
    """Median, and the distance of the quartiles in medians; -1 for no steps."""
    if not timed_ms:
        return -1.0, -1.0
    low, median, high = np.percentile(timed_ms, (25, 50, 75)).tolist()
    return median, (high - low) / median


def _noise(before: Rung, after: Rung) -> str:
    """Whether the step times of two rungs differ by more than those of each do."""
    if min(len(before.timed_ms), len(after.timed_ms)) < 2:
        return "unknown"
    found = ratio(np.array(before.timed_ms), np.array(after.timed_ms), TAIL)
    return "within" if found.low <= 1 <= found.high else "beyond"


def _changed(climb: LadderRun, climbed: Sequence[AblationStep]) -> dict[str, list[Any]]:
    rungs = climb.rungs[1:]
    return {
        "rung": list(range(1, len(climb.rungs))),
        "name": [rung.name for rung in rungs],
        "adds": [rung.adds for rung in rungs],
        "delta_ns": [stride.cand_ns - stride.base_ns for stride in climbed],
        "purpose": [rung.purpose for rung in rungs],
        "by_category": [in_words(stride.waterfall, "category") for stride in climbed],
        "by_cause": [in_words(stride.waterfall, "cause") for stride in climbed],
        "calls": [stride.calls for stride in climbed],
    }


def _total(waterfall: Table) -> dict[str, list[Any]]:
    """Rows of TOTAL: all rungs together."""
    found = list(_summed(waterfall))
    whole = sum(delta for level, _, delta, *_ in found if level == LEVELS[0])
    found.sort(key=lambda row: (LEVELS.index(row[0]), -abs(row[2])))
    levels, names, deltas, most, by = (list(column) for column in zip(*found, strict=True))
    return {
        "level": levels,
        "name": names,
        "delta_ns": deltas,
        "share": [delta / whole if whole else 0.0 for delta in deltas],
        "most": most,
        "most_delta_ns": by,
    }


def _summed(waterfall: Table) -> Iterator[tuple[str, str, int, str, int]]:
    """(level, name, difference, rung with most of it, difference there) of each part."""
    keys = zip(waterfall.texts("level"), waterfall.texts("name"), strict=True)
    parts: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for key, ns, rung in zip(
        keys, waterfall.array("delta_ns").tolist(), waterfall.texts("rung_name"), strict=True
    ):
        parts.setdefault(key, []).append((ns, rung))
    for (level, name), told in parts.items():
        most, rung = max(told, key=lambda one: abs(one[0]))
        yield level, name, sum(ns for ns, _ in told), rung, most
