"""A ladder of optimizations: the gain of each rung, and which parts of the step it changed.

`tracelens workload ladder` writes the measurements to ladder.json beside the traces: one JSON object, whose
`schema` changes with every incompatible change.

    schema          "tracelens.ladder/1"
    preset          name of the model
    device          "cuda" (NVIDIA and AMD) or "cpu"
    ranks           processes of each rung
    tokens_a_step   of all ranks, the same in each rung
    config          of the baseline: model, layout, toggles, training
    rungs           in order, the baseline first: folder (of its traces, beside this file), name, adds (texts
                    toggle=value), purpose, toggles (all that differ from the default), timed_ms (each timed
                    step, its slowest rank), typical_ms (their median), peak_bytes (of the rank with most;
                    null on a CPU), loss (of each step)
    left            rungs that were not run: name, adds, reason
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.common import device_names, noted
from tracelens.compare.diff import diff
from tracelens.compare.noise import ratio
from tracelens.compare.thresholds import NAMED_SHARE, TAIL
from tracelens.errors import TracelensError
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip, Table
from tracelens.trace import Run, TraceMeta
from tracelens.trace.graphs import with_twin

RUNG = Column("rung", "int64", "count", "0 for the baseline")

RUNGS = Schema(
    "Rungs",
    (
        RUNG,
        Column("name", "str", doc="what the rung adds, in short; the first one is the baseline"),
        Column("timed_ns", "int64", "ns", "median step time without the profiler", absent=-1),
        Column("spread", "float64", "ratio", "interquartile range of these steps / their median", absent=-1),
        Column("tokens_per_s", "int64", doc="all ranks, from the timed steps", absent=-1),
        Column("speedup", "float64", doc="throughput / baseline throughput", absent=-1),
        Column("gain", "float64", "ratio", "throughput / that of the rung before - 1", absent=-1),
        Column("noise", "category", doc="does the gain exceed the step-to-step noise?"),
        Column("peak_bytes", "int64", "bytes", "device memory of the worst rank", absent=-1),
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

LEVELS = ("category", "cause", "stage")
"""Levels of the diff's waterfall that a ladder reports."""

TOTAL = Schema(
    "All rungs together",
    (
        Column("level", "category", doc=", ".join(LEVELS)),
        Column("name", "category", doc="of the part"),
        Column("delta_ns", "int64", "ns", "of all rungs together"),
        Column(
            "fraction_of_difference",
            "float64",
            "ratio",
            "share of the difference between last rung and baseline",
        ),
        Column("top_rung", "str", doc="rung with the largest change"),
        Column("top_delta_ns", "int64", "ns", "change by that rung"),
    ),
    kind="levels",
    doc="The rows of each level add up to the traced step of the last rung minus that of the baseline.",
)

WATERFALL = Schema(
    "Waterfall by rung",
    (
        RUNG,
        Column("rung_name", "category", doc="toggles of the rung, in short"),
        Column("level", "category", doc=", ".join(LEVELS)),
        Column("name", "category", doc="of the part"),
        Column("base_ns", "int64", "ns", "per step of the rung before"),
        Column("cand_ns", "int64", "ns", "per step of this rung"),
        Column("delta_ns", "int64", "ns", "this rung - the rung before"),
        Column("noise", "category", doc="does the difference exceed the step-to-step noise?"),
    ),
    doc="For each rung, the rows of each level add up to its traced step and to that of the rung before.",
    detail=True,
)

TABLES = {"rungs": RUNGS, "changed": CHANGED, "total": TOTAL, "waterfall": WATERFALL}

_SHOWN, _EDITS = 5, 3
_TIMES = ("slower", "faster", "other types", "other shapes", "other kernels")
"""Kinds of changes that keep the calls."""


class AblationStep(NamedTuple):
    """From one rung to the next."""

    base_ns: int  # traced step of the rung before
    cand_ns: int  # traced step of this rung
    waterfall: dict[str, Any]  # of the diff, LEVELS only
    calls: str  # edits with most time, in words


NAME, SCHEMA = "ladder.json", "tracelens.ladder/1"


class Rung(Struct, frozen=True):
    """One rung as it was run."""

    name: str
    folder: Path  # with the traces of its ranks
    adds: str = ""  # what it changed, "toggle=value ..."
    purpose: str = ""  # of the change
    timed_ms: tuple[float, ...] = ()  # slowest rank of each step timed without the profiler; may be empty
    peak_bytes: int = -1  # device memory of the worst rank, -1 if not measured


class LadderRun(Struct, frozen=True):
    """A ladder as it was run."""

    rungs: tuple[Rung, ...]  # from the baseline up, at least two
    tokens: int  # per step on all ranks
    preset: str = ""  # name of the model
    not_run: tuple[tuple[str, str], ...] = ()  # (name, reason) of rungs that were not run


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
    above = ladder_run.rungs[1:]
    changed = {
        "rung": list(range(1, len(ladder_run.rungs))),
        "name": [rung.name for rung in above],
        "adds": [rung.adds for rung in above],
        "delta_ns": [step.cand_ns - step.base_ns for step in steps],
        "purpose": [rung.purpose for rung in above],
        "by_category": [in_words(step.waterfall, "category") for step in steps],
        "by_cause": [in_words(step.waterfall, "cause") for step in steps],
        "calls": [step.calls for step in steps],
    }
    # All rungs together, by part of the step.
    keys = (waterfall.texts(column) for column in ("level", "name", "rung_name"))
    parts: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for level, name, rung_name, ns in zip(*keys, waterfall.array("delta_ns").tolist(), strict=True):
        parts.setdefault((level, name), []).append((ns, rung_name))
    total_ns = sum(ns for (level, _), changes in parts.items() if level == LEVELS[0] for ns, _ in changes)
    total = []
    for (level, name), changes in parts.items():
        top_ns, top_rung = max(changes, key=lambda change: abs(change[0]))
        delta_ns = sum(ns for ns, _ in changes)
        share = delta_ns / total_ns if total_ns else 0.0
        total.append((level, name, delta_ns, share, top_rung, top_ns))
    total.sort(key=lambda row: (LEVELS.index(row[0]), -abs(row[2])))
    result = Result(
        "ladder",
        "Ladder of optimizations",
        {
            "rungs": rungs,
            "changed": CHANGED.table(changed),
            "total": TOTAL.from_rows(total),
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
            "speedup": rungs.cells("speedup")[-1],
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
    # Median, and interquartile range / median; -1 without timed steps.
    typical = [(-1.0, -1.0)] * len(ladder_run.rungs)
    for row, rung in enumerate(ladder_run.rungs):
        if rung.timed_ms:
            low, middle, high = np.percentile(rung.timed_ms, (25, 50, 75)).tolist()
            typical[row] = middle, (high - low) / middle
    median, spread = np.array(typical).T
    rate = np.where(median > 0, ladder_run.tokens / np.maximum(median, 1e-9) * 1e3, -1.0)
    known = (rate > 0) & (rate[0] > 0)
    gain = np.where((rate[1:] > 0) & (rate[:-1] > 0), rate[1:] / rate[:-1] - 1, -1.0)
    # Whether the step times of two rungs differ by more than the step-to-step noise.
    noise = [""]
    for before, after in pairwise(np.array(rung.timed_ms) for rung in ladder_run.rungs):
        if min(len(before), len(after)) < 2:
            noise.append("unknown")
        else:
            interval = ratio(before, after, TAIL)
            noise.append("within" if interval.low <= 1 <= interval.high else "beyond")
    return RUNGS.table(
        {
            "rung": np.arange(len(rate)),
            "name": [rung.name for rung in ladder_run.rungs],
            "timed_ns": np.rint(np.where(median > 0, median * 1e6, -1)).astype(np.int64),
            "spread": spread,
            "tokens_per_s": np.rint(rate).astype(np.int64),
            "speedup": np.where(known, rate / rate[0], -1.0),
            "gain": np.concatenate(([0.0], gain)),
            "noise": noise,
            "peak_bytes": np.array([rung.peak_bytes for rung in ladder_run.rungs], dtype=np.int64),
            "traced_ns": np.array(traced, dtype=np.int64),
        }
    ), skips


def ablation_steps(
    ladder_run: LadderRun, runs: Iterable[Run]
) -> tuple[list[AblationStep], list[TraceMeta], list[Skip]]:
    """Each rung against the one before it, the metas of all traces, and skips; see `ladder`."""
    steps: list[AblationStep] = []
    metas: list[TraceMeta] = []
    skips: dict[str, Skip] = {}
    before: Run | None = None
    for number, (rung, recorded) in enumerate(zip(ladder_run.rungs, runs, strict=True)):
        metas += [trace.meta for trace in recorded.traces]
        run = recorded
        if before is not None:
            before, run = with_twin(before, run), with_twin(run, before)
            result = diff(before, run)
            skips |= {skip.subject: skip for skip in result.skips}
            table = result.data["waterfall"]
            level = np.array(table.texts("level"), dtype=str)
            rows = np.concatenate([np.flatnonzero(level == name) for name in LEVELS])
            waterfall = {
                "rung": np.full(len(rows), number),
                "rung_name": [rung.name] * len(rows),
                "level": level[rows].tolist(),
                "name": table.texts("name", rows),
                **{key: table.array(key)[rows] for key in ("base_ns", "cand_ns", "delta_ns")},
                "noise": table.texts("noise", rows),
            }
            # The edits with most time, summed over calls of equal names.
            edits = result.data["changes"]
            ns_by_edit: dict[tuple[str, str], int] = {}
            columns = (edits.texts(key) for key in ("kind", "base", "cand"))
            for kind, base_op, cand_op, ns in zip(*columns, edits.array("delta_ns").tolist(), strict=True):
                if kind not in _TIMES:
                    key = kind, " → ".join(filter(None, dict.fromkeys((base_op, cand_op))))
                    ns_by_edit[key] = ns_by_edit.get(key, 0) + ns
            most = sorted(ns_by_edit.items(), key=lambda item: -abs(item[1]))[:_EDITS]
            calls = "; ".join(f"{kind} {names} {_ms(ns)}" for (kind, names), ns in most if ns)
            steps.append(AblationStep(result.meta["base_ns"], result.meta["cand_ns"], waterfall, calls))
        before = run
    return steps, metas, list(skips.values())


def _ms(ns: int) -> str:
    return f"{ns / 1e6:+,.3f} ms".replace("-", "−")


def in_words(waterfall: dict[str, Any], level: str) -> str:
    """The parts of one of LEVELS that changed most, largest first; `waterfall` is of an AblationStep."""
    parts = [
        (name.strip("()"), int(ns), noise)
        for row_level, name, ns, noise in zip(
            waterfall["level"], waterfall["name"], waterfall["delta_ns"], waterfall["noise"], strict=True
        )
        if row_level == level
    ]
    parts.sort(key=lambda part: -abs(part[1]))
    least = max(abs(parts[0][1]) * NAMED_SHARE, 1) if parts else 0
    kept = [part for part in parts[:_SHOWN] if abs(part[1]) >= least]
    if kept and all(noise == "within" for *_, noise in kept):
        return f"{', '.join(f'{name} {_ms(ns)}' for name, ns, _ in kept)}; all within step-to-step noise"
    texts = [f"{name} {_ms(ns)}{' (noise)' if noise == 'within' else ''}" for name, ns, noise in kept]
    return ", ".join(texts) or "no difference"


def read(folder: Path) -> LadderRun:
    """The ladder in a folder.

    Raises:
        TracelensError: there is none, or its file is damaged, or it has no rung above the baseline.
    """
    path = folder / NAME
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TracelensError(
            f"{folder}: no {NAME}, no rungs; create them with: tracelens workload ladder {folder}"
        ) from None
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise TracelensError(f"{path}: is not JSON ({error}); run the ladder again") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        schema = document.get("schema") if isinstance(document, dict) else None
        raise TracelensError(f"{path}: its schema is {schema!r}, not {SCHEMA!r}; run the ladder again")
    try:
        rungs = tuple(
            Rung(
                str(rung["name"]),
                # A name, not a path: the traces lie beside the file.
                folder / Path(rung["folder"]).name,
                " ".join(rung["adds"]),
                str(rung["purpose"]),
                tuple(float(ms) for ms in rung["timed_ms"]),
                -1 if rung["peak_bytes"] is None else int(rung["peak_bytes"]),
            )
            for rung in document["rungs"]
        )
        not_run = tuple((str(rung["name"]), str(rung["reason"])) for rung in document["left"])
        ladder_run = LadderRun(rungs, int(document["tokens_a_step"]), str(document["preset"]), not_run)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TracelensError(f"{path}: is damaged ({error!r}); run the ladder again") from None
    if len(ladder_run.rungs) < 2:
        raise TracelensError(f"{path}: no rung above the baseline, nothing to compare; run it again")
    return ladder_run
