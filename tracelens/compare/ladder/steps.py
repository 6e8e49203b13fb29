"""Each rung of a ladder against the one before it, from the traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tracelens.compare.diff import diff
from tracelens.compare.ladder.rungs import LadderRun
from tracelens.table import Column, Schema, Skip, Table
from tracelens.trace import Run, TraceMeta
from tracelens.trace.graphs import with_twin

LEVELS = ("category", "cause", "stage")
"""Levels of the diff's waterfall that a ladder reports."""

RUNG = Column("rung", "int64", "count", "0 for the baseline")

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

_SHOWN, _EDITS = 5, 3
_LEAST = 0.02
"""Parts below this share of a rung's largest change are not named."""
_TIMES = ("slower", "faster", "other shapes", "other kernels")
"""Kinds of changes that keep the calls."""


class AblationStep(NamedTuple):
    """From one rung to the next."""

    base_ns: int  # traced step of the rung before
    cand_ns: int  # traced step of this rung
    waterfall: dict[str, Any]  # of the diff, LEVELS only
    calls: str  # edits with most time, in words


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
            waterfall = _waterfall(number, rung.name, result.data["waterfall"])
            edits = _edits(result.data["changes"])
            steps.append(AblationStep(result.meta["base_ns"], result.meta["cand_ns"], waterfall, edits))
        before = run
    return steps, metas, list(skips.values())


def _waterfall(number: int, name: str, waterfall: Table) -> dict[str, Any]:
    """Rows of WATERFALL of one rung."""
    level = np.array(waterfall.texts("level"), dtype=str)
    rows = np.concatenate([np.flatnonzero(level == name) for name in LEVELS])
    return {
        "rung": np.full(len(rows), number),
        "rung_name": [name] * len(rows),
        "level": level[rows].tolist(),
        "name": waterfall.texts("name", rows),
        **{key: waterfall.array(key)[rows] for key in ("base_ns", "cand_ns", "delta_ns")},
        "noise": waterfall.texts("noise", rows),
    }


def _edits(changes: Table) -> str:
    """The edits with most time, summed over calls of equal names."""
    ns_by_edit: dict[tuple[str, str], int] = {}
    kinds, base, cand = (changes.texts(key) for key in ("kind", "base", "cand"))
    for kind, base_op, cand_op, ns in zip(kinds, base, cand, changes.array("delta_ns").tolist(), strict=True):
        if kind not in _TIMES:
            key = kind, " → ".join(filter(None, dict.fromkeys((base_op, cand_op))))
            ns_by_edit[key] = ns_by_edit.get(key, 0) + ns
    most = sorted(ns_by_edit.items(), key=lambda item: -abs(item[1]))[:_EDITS]
    return "; ".join(f"{kind} {names} {_ms(ns)}" for (kind, names), ns in most if ns)


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
    least = max(abs(parts[0][1]) * _LEAST, 1) if parts else 0
    kept = [part for part in parts[:_SHOWN] if abs(part[1]) >= least]
    if kept and all(noise == "within" for *_, noise in kept):
        return f"{', '.join(f'{name} {_ms(ns)}' for name, ns, _ in kept)}; all within step-to-step noise"
    texts = [f"{name} {_ms(ns)}{' (noise)' if noise == 'within' else ''}" for name, ns, noise in kept]
    return ", ".join(texts) or "no difference"
