"""Each rung of a ladder against the one before it, from the traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tracelens.compare.diff import diff
from tracelens.compare.ladder.rungs import LadderRun
from tracelens.table import Column, Schema, Skip, Table
from tracelens.trace import Run, TraceMeta

LEVELS = ("category", "cause", "stage")
"""Those of the diff's waterfall in which a ladder is told."""

WATERFALL = Schema(
    "Waterfall, rung by rung",
    (
        Column("rung", "int64", "count"),
        Column("rung_name", "category"),
        Column("level", "category", doc=", ".join(LEVELS)),
        Column("name", "category", doc="of the part"),
        Column("base_ns", "int64", "ns", "of a step of the rung before"),
        Column("cand_ns", "int64", "ns", "of a step of this rung"),
        Column("delta_ns", "int64", "ns"),
        Column("noise", "category", doc="whether the difference is beyond the noise between steps"),
    ),
    doc="Of each rung, the rows of each level add up to its traced step and that of the rung before.",
    detail=True,
)

_SHOWN, _EDITS = 5, 3
_LEAST = 0.02
"""Share of the largest change of a rung below which a part is not worth a word."""
_TIMES = ("slower", "faster", "other shapes", "other kernels")
"""Kinds of changes that are about the same calls."""


class AblationStep(NamedTuple):
    """From one rung to the next.

    Attributes:
        base_ns: traced step of the rung before.
        cand_ns: of this one.
        waterfall: of the diff, LEVELS only.
        calls: edits with most time, in words.
    """

    base_ns: int
    cand_ns: int
    waterfall: dict[str, Any]
    calls: str


def strides(climb: LadderRun, runs: Iterable[Run]) -> tuple[list[AblationStep], list[TraceMeta], list[Skip]]:
    """Each rung against the one before it.

    Args:
        climb: the rungs.
        runs: the traces of each, in order; two at a time are held.

    Returns:
        one stride less than there are rungs; the metas of all traces; what could not be told.

    Raises:
        TracelensError: a rank has no GPU work.
    """
    made: list[AblationStep] = []
    metas: list[TraceMeta] = []
    skips: dict[str, Skip] = {}
    before: Run | None = None
    for number, (rung, run) in enumerate(zip(climb.rungs, runs, strict=True)):
        metas += [trace.meta for trace in run.traces]
        if before is not None:
            found = diff(before, run)
            skips |= {skip.subject: skip for skip in found.skips}
            made.append(
                AblationStep(
                    found.meta["base_ns"],
                    found.meta["cand_ns"],
                    _cut(number, rung.name, found.data["waterfall"]),
                    _edits(found.data["changes"]),
                )
            )
        before = run
    return made, metas, list(skips.values())


def _cut(number: int, name: str, whole: Table) -> dict[str, Any]:
    """Rows of WATERFALL of one rung."""
    level = whole.texts("level")
    rows = np.array(
        [at for wanted in LEVELS for at, one in enumerate(level) if one == wanted], dtype=np.int64
    )
    return {
        "rung": np.full(len(rows), number),
        "rung_name": [name] * len(rows),
        "level": [level[at] for at in rows.tolist()],
        "name": whole.texts("name", rows),
        **{key: whole.array(key)[rows] for key in ("base_ns", "cand_ns", "delta_ns")},
        "noise": whole.texts("noise", rows),
    }


def _edits(changes: Table) -> str:
    """The edits with most time; where calls go by the same names at several places, all of them together."""
    found: dict[tuple[str, str], int] = {}
    kinds, base, cand = (changes.texts(key) for key in ("kind", "base", "cand"))
    for kind, one, other, ns in zip(kinds, base, cand, changes.array("delta_ns").tolist(), strict=True):
        if kind not in _TIMES:
            key = kind, " → ".join(filter(None, dict.fromkeys((one, other))))
            found[key] = found.get(key, 0) + ns
    most = sorted(found.items(), key=lambda item: -abs(item[1]))[:_EDITS]
    return "; ".join(f"{kind} {names} {_ms(ns)}" for (kind, names), ns in most if ns)


def _ms(ns: int) -> str:
    return f"{ns / 1e6:+,.3f} ms".replace("-", "−")


def in_words(waterfall: dict[str, Any], level: str) -> str:
    """The parts of a level that changed most, largest first.

    Args:
        waterfall: of a AblationStep.
        level: one of LEVELS.
    """
    parts = [
        (name.strip("()"), int(ns), noise)
        for one, name, ns, noise in zip(
            waterfall["level"], waterfall["name"], waterfall["delta_ns"], waterfall["noise"], strict=True
        )
        if one == level
    ]
    parts.sort(key=lambda part: -abs(part[1]))
    least = max(abs(parts[0][1]) * _LEAST, 1) if parts else 0
    kept = [part for part in parts[:_SHOWN] if abs(part[1]) >= least]
    if kept and all(noise == "within" for *_, noise in kept):
        return f"{', '.join(f'{name} {_ms(ns)}' for name, ns, _ in kept)}; all within the noise of the steps"
    told = [f"{name} {_ms(ns)}{' (noise)' if noise == 'within' else ''}" for name, ns, noise in kept]
    return ", ".join(told) or "no difference"
