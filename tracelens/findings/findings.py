"""What to fix first: what the detectors measured, ranked by the time that fixing it would save."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis import analyzer
from tracelens.analysis.common import choose_device, own_device
from tracelens.findings.detectors import DETECTORS, JOB, Detection, Detector, Found
from tracelens.findings.rank_context import RankContext
from tracelens.guard import Failure
from tracelens.table import Column, Result, Schema, Skip, Table, result, stack
from tracelens.trace import Trace, Union, both

NEEDS = ("collectives", "moe", "pipeline", "serving", "stragglers")
"""Analyzers whose results detectors read."""

SHOWN = 0.005
"""A saving below this share of a step is no finding."""

FINDINGS = Schema(
    "What to fix first",
    (
        Column("place", "int64", "count"),
        Column("finding", "str"),
        Column("saving_ns", "int64", "ns", "of a step, if only this were fixed; mean of the ranks"),
        Column("fraction", "float64", "fraction", "of the step"),
        Column("additional_ns", "int64", "ns", "of it, what those above would not save already"),
        Column("confidence", "category", doc="high: the time is seen to be lost; medium: what is left is "
               "estimated; low: an upper bound"),
        Column("evidence", "str", doc="on the rank that loses most", prose=True),
        Column("remedy", "str", prose=True),
        Column("worst_rank", "int64", doc="that loses most, -1 for the job as a whole"),
        Column("at_ns", "int64", "ns", "where it loses most, since its trace's first event; -1 if unknown"),
        Column("detector", "category"),
    ),
    doc=f"By step time that can be won back. Savings are of one step and below {SHOWN:.1%} of it not shown. "
    "Where several findings are about the same time, it is counted for the first of them.",
)  # fmt: skip

SIGNALS = Schema(
    "What the detectors measured",
    (
        Column("rank", "int64", doc="-1 for the job as a whole"),
        Column("detector", "category", doc="'' for the step that all figures are of"),
        Column("measure", "category", doc="what was measured; saving: of a step"),
        Column("value", "float64"),
        Column("unit", "category"),
    ),
    detail=True,
)

CHECKED = Schema(
    "What was looked for",
    (
        Column("detector", "category"),
        Column("signature", "str", prose=True),
        Column("ranks", "int64", "count", "with the signature"),
        Column("saving_ns", "int64", "ns", "of a step, mean of the ranks"),
        Column("verdict", "str", doc="finding, or why there is none", prose=True),
    ),
    detail=True,
)


class RankSignals(NamedTuple):
    """What the detectors found on one rank.

    Attributes:
        rank: of the trace.
        origin: time of its first event, ns.
        step_ns: mean duration of a step.
        found: by detector.
        on_host: whether the work is the host's.
    """

    rank: int
    origin: int
    step_ns: float
    found: dict[str, Found]
    on_host: bool = False


class _Candidate(NamedTuple):
    """What a detector found on all ranks."""

    detector: Detector
    signals: Mapping[int, Detection]
    saving_ns: float

    @property
    def worst(self) -> int:
        return max(self.signals, key=lambda rank: self.signals[rank].saving_ns)


def signals(trace: Trace, *, device: str | None = None, device_file: str | None = None) -> RankSignals:
    """What the detectors that look at single ranks find on this one; options as for `findings`."""
    scene = RankContext(trace, choose_device(device, device_file) or own_device(trace))
    found = {name: item.of_rank(scene) for name, item in DETECTORS.items() if not item.needs}
    origin = int(trace.arrays.start.min())
    return RankSignals(trace.meta.rank, origin, scene.step_ns, found, scene.work.on_host)


@analyzer("findings", title="What to fix first", order=0, part=signals, needs=NEEDS)
def findings(ranks: Sequence[RankSignals], results: Mapping[str, Result]) -> Result:
    """What should be fixed first, what would it save, and how?

    Args:
        ranks: from `signals`, whose options are `device` and `device_file`, as for `roofline`.
        results: of the analyzers that detectors read.

    Returns:
        tables `findings`, `signals` and `checked`.

    Raises:
        TracelensError: no such device, or the file is no device file.
    """
    by_rank = {one.rank: one for one in ranks}
    step_ns = sum(one.step_ns for one in ranks) / len(ranks)
    found: dict[str, Mapping[int, Detection] | str] = {
        name: item.of_run(results) if item.needs else _together(name, ranks)
        for name, item in DETECTORS.items()
    }
    candidates = [
        _Candidate(item, some, _mean(some, {rank: one.saving_ns for rank, one in some.items()}, len(ranks)))
        for name, item in DETECTORS.items()
        if not isinstance(some := found[name], str)
    ]
    worth = [one for one in candidates if one.saving_ns > max(SHOWN * step_ns, 0)]
    rows = [
        _row(place, one, more, step_ns, by_rank)
        for place, (one, more) in enumerate(_ranked(worth, len(ranks)), start=1)
    ]
    verdicts = {
        one.detector.name: "finding" if one in worth else f"below {SHOWN:.1%} of a step" for one in candidates
    }
    tables = {
        "findings": _table(FINDINGS, rows),
        "signals": _table(SIGNALS, [*_steps(ranks), *_measured(candidates)]),
        "checked": _table(CHECKED, _checked(found, candidates, verdicts)),
    }
    skips = (
        [] if rows else [Skip("findings", f"nothing costs more than {SHOWN:.1%} of a step, see `checked`")]
    )
    reasons = [*found.values(), *(reason for one in ranks for reason in one.found.values())]
    failures = {reason.part: reason for reason in reasons if isinstance(reason, Failure)}
    skips += [Skip(part, failure) for part, failure in failures.items()]
    return result(tables, skips)


def _together(name: str, ranks: Sequence[RankSignals]) -> Mapping[int, Detection] | str:
    """The signals of all ranks, or why no rank has one."""
    found = {one.rank: one.found[name] for one in ranks}
    some = {rank: signal for rank, signal in found.items() if isinstance(signal, Detection)}
    return some or "; ".join(dict.fromkeys(str(reason) for reason in found.values()))


def _mean(some: Mapping[int, Detection], values: Mapping[int, float], ranks: int) -> float:
    """Mean over the ranks, those without a signal as 0; what is of the job as a whole counts as it is."""
    return sum(values.values()) / (1 if JOB in some else ranks)


def _ranked(candidates: Sequence[_Candidate], ranks: int) -> Iterable[tuple[_Candidate, float]]:
    """The candidates, each time the one that adds most to those before, and what it adds."""
    left = list(candidates)
    claimed: dict[int, Union] = {}
    while left:
        added = [_additional(one, claimed, ranks) for one in left]
        best = max(range(len(left)), key=lambda at: (added[at], left[at].saving_ns))
        chosen = left.pop(best)
        yield chosen, added[best]
        for rank, signal in chosen.signals.items():
            claimed[rank] = both(claimed.get(rank, signal.where), signal.where)


def _additional(one: _Candidate, claimed: Mapping[int, Union], ranks: int) -> float:
    """What a candidate saves of the time that no other has claimed."""
    free = {}
    for rank, signal in one.signals.items():
        total, taken = signal.where.total, 0
        if total and rank in claimed:
            taken = int(claimed[rank].covered(signal.where.start, signal.where.end).sum())
        free[rank] = signal.saving_ns * (1 - taken / max(total, 1))
    return _mean(one.signals, free, ranks)


def _row(
    place: int, one: _Candidate, more: float, step_ns: float, ranks: Mapping[int, RankSignals]
) -> dict[str, Any]:
    worst = one.worst
    signal = one.signals[worst]
    on_host = any(other.on_host for other in ranks.values())
    said = f"rank {worst}: " if len(ranks) > 1 and worst != JOB else ""
    at = -1
    if worst in ranks and signal.where.total:
        longest = int(np.argmax(signal.where.end - signal.where.start))
        at = int(signal.where.start[longest]) - ranks[worst].origin
    return {
        "place": place,
        "finding": one.detector.title,
        "saving_ns": round(one.saving_ns),
        "fraction": min(one.saving_ns / max(step_ns, 1), 1.0),
        "additional_ns": round(more),
        "confidence": signal.confidence,
        "evidence": f"{said}{signal.evidence}",
        "remedy": (on_host and one.detector.host_remedy) or one.detector.remedy,
        "worst_rank": worst,
        "at_ns": at,
        "detector": one.detector.name,
    }


def _steps(ranks: Sequence[RankSignals]) -> list[dict[str, Any]]:
    """What all figures are of: a mean step of each rank."""
    return [
        {"rank": one.rank, "detector": "", "measure": "step", "value": one.step_ns, "unit": "ns"}
        for one in ranks
    ]


def _measured(candidates: Sequence[_Candidate]) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "detector": one.detector.name, "measure": measure, "value": value, "unit": unit}
        for one in candidates
        for rank, signal in sorted(one.signals.items())
        for measure, value, unit in (*signal.quantities, ("saving", float(signal.saving_ns), "ns"))
    ]


def _checked(
    found: Mapping[str, Mapping[int, Detection] | str],
    candidates: Sequence[_Candidate],
    verdicts: Mapping[str, str],
) -> list[dict[str, Any]]:
    saving = {one.detector.name: one.saving_ns for one in candidates}
    return [
        {
            "detector": name,
            "signature": item.doc,
            "ranks": 0 if isinstance(some := found[name], str) else len(some),
            "saving_ns": round(saving.get(name, 0)),
            "verdict": some if isinstance(some, str) else verdicts[name],
        }
        for name, item in DETECTORS.items()
    ]


def _table(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> Table:
    return stack(schema, [{name: [row[name]] for name in schema.names} for row in rows])
