"""Summaries of what compares runs: the diff of two, and a ladder of optimizations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens.summary.wording import percent, plural, three_digits
from tracelens.table import Result, Summary, Table, Tile
from tracelens.units import duration

SAME = 0.005
"""Relative difference of two step times below which they are the same."""

EXPLAINS = 0.5
"""Share of a difference from which changes beyond the noise explain it."""

NAMED = 3
"""Changes that a verdict names; the smallest has this share of the difference."""
LEAST = 0.05

LEVELS = ("cause", "stage", "category")
"""Levels of the waterfall, as a verdict looks for changes beyond the noise."""


def diff_summary(result: Result) -> Summary | None:
    """What became of the step, and the changes beyond the noise between steps."""
    base_ns, cand_ns = float(result.meta["base_ns"]), float(result.meta["cand_ns"])
    waterfall = result.data["waterfall"]
    shown = _changes(waterfall, cand_ns - base_ns)
    verdict = f"{_faster(base_ns, cand_ns)} a step"
    if times := result.meta.get("repetitions"):
        each = _faster(base_ns / times[0], cand_ns / times[1])
        verdict = (
            f"{each} per repetition ({times[0]} in the base, {times[1]} in the candidate, no steps marked)"
        )
    if paces := _paces(result):
        verdict += f"; without the profiler {_faster(*paces).lower()}"
    verdict += _graphed(waterfall)
    if shown:
        verdict += f"; {_in_words(waterfall, shown)}"
    elif len(waterfall) and abs(cand_ns - base_ns) > SAME * base_ns:
        unknown = waterfall.coded("noise").equals("unknown").all()
        verdict += (
            "; with single steps the noise is unknown" if unknown else "; no part of it exceeds the noise"
        )
    return Summary(f"{verdict}.", (*_times(base_ns, cand_ns, paces), *_tiles(waterfall, shown)))


def _graphed(waterfall: Table) -> str:
    """Idle and busy time of the work that only one run launches as graphs, "" for none."""
    rows = np.flatnonzero(waterfall.coded("level").equals("graph"))
    idle, busy = np.zeros(2), np.zeros(2)
    for row, name in zip(rows.tolist(), waterfall.texts("name", rows), strict=True):
        state, _, cause = name.partition(": ")
        if state == "in graphs on one side":
            sums = idle if cause == "idle" else busy
            sums += [waterfall.array(column)[row] for column in ("base_ns", "cand_ns")]
    if not busy.any():
        return ""
    idle_text, busy_text = (" to ".join(duration(ns) for ns in times.tolist()) for times in (idle, busy))
    return f"; work that only one side runs in graphs: idle before it {idle_text}, busy {busy_text}"


def _faster(base_ns: float, cand_ns: float) -> str:
    """A change of a time: '45% faster: 71.1 ms to 39.4 ms'."""
    change = cand_ns / base_ns - 1 if base_ns else 0.0
    times = f"{duration(base_ns)} to {duration(cand_ns)}"
    if abs(change) < SAME:
        return f"No change: {times}"
    return f"{percent(abs(change))} {'slower' if change > 0 else 'faster'}: {times}"


def _changes(waterfall: Table, delta_ns: float) -> list[int]:
    """The largest changes beyond the noise, of the first level on which they explain the difference."""
    delta, beyond = waterfall.array("delta_ns"), waterfall.coded("noise").equals("beyond")
    first: list[int] = []
    for level in LEVELS:
        large = np.abs(delta) > LEAST * abs(delta_ns)
        rows = np.flatnonzero(waterfall.coded("level").equals(level) & beyond & large)
        rows = rows[np.argsort(-np.abs(delta[rows]), kind="stable")]
        if delta_ns and delta[rows].sum() / delta_ns > EXPLAINS:
            return [*rows[:NAMED].tolist()]
        first = first or rows[:NAMED].tolist()
    return first


def _in_words(waterfall: Table, rows: Sequence[int]) -> str:
    deltas = waterfall.array("delta_ns")[rows].tolist()
    names = [name.strip("()") for name in waterfall.texts("name", rows)]
    return ", ".join(f"{name} {_signed(ns)}" for name, ns in zip(names, deltas, strict=True))


def _signed(ns: float) -> str:
    return f"{'+' if ns > 0 else '-'}{duration(abs(ns))}"


def _paces(result: Result) -> tuple[float, float] | None:
    """The steps without the profiler, where both sides have one."""
    pace = result.data.get("pace")
    if pace is None or len(pace) < 2:
        return None
    base_ns, cand_ns = pace.array("step_ns").tolist()
    return base_ns, cand_ns


def _times(base_ns: float, cand_ns: float, paces: tuple[float, float] | None) -> list[Tile]:
    notes = [f"without the profiler {duration(ns)}" for ns in paces] if paces else ["", ""]
    change = f"{cand_ns / base_ns - 1:+.1%}" if base_ns else ""
    return [
        Tile("base_step_time", "Base", base_ns, "ns", note=notes[0] or "mean step", section="diff"),
        Tile("cand_step_time", "Candidate", cand_ns, "ns", note=notes[1] or "mean step", section="diff"),
        Tile("change", "Change", cand_ns - base_ns, "ns", note=change, section="diff"),
    ]


def _tiles(waterfall: Table, rows: Sequence[int]) -> list[Tile]:
    """A tile of each change."""
    names = waterfall.texts("name", rows)
    deltas = waterfall.array("delta_ns")[rows].tolist()
    before, after = (waterfall.array(f"{side}_ns")[rows].tolist() for side in ("base", "cand"))
    return [
        Tile(
            f"change_{number}",
            _label(name),
            delta_ns,
            "ns",
            note=f"{duration(base_ns)} to {duration(cand_ns)}",
            section="diff",
        )
        for number, (name, delta_ns, base_ns, cand_ns) in enumerate(
            zip(names, deltas, before, after, strict=True), start=1
        )
    ]


def _label(name: str) -> str:
    name = name.strip("()")
    return f"{name[:1].upper()}{name[1:]}"


def ladder_summary(result: Result) -> Summary | None:
    """From the baseline to the last rung, and the rungs that gain and lose most."""
    rungs = result.data["rungs"]
    names, gains = rungs.texts("name"), rungs.array("gain").tolist()
    timed, rate = rungs.array("timed_ns").tolist(), rungs.array("tokens_per_s").tolist()
    speedup, known = float(result.meta["speedup"]), rungs.coded("noise").equals("beyond").tolist()
    traced = [float(result.meta["base_ns"]), float(result.meta["last_ns"])]
    is_timed = speedup > 0
    base_ns, last_ns = (float(timed[0]), float(timed[-1])) if is_timed else traced
    what = "without the profiler" if is_timed else "as recorded"
    verdict = (
        f"{duration(base_ns)} to {duration(last_ns)} a step {what} over {plural(len(names) - 1, 'rung')}"
    )
    verdict = f"{speedup:.2f} x the throughput: {verdict}" if is_timed else verdict
    changes = [row for row in range(1, len(names)) if known[row]]
    best, worst = (pick(changes, key=gains.__getitem__, default=0) for pick in (max, min))
    if best and gains[best] > 0:
        verdict += f"; {names[best]} gains most ({gains[best]:+.0%})"
    if worst and gains[worst] < 0:
        verdict += f", {names[worst]} loses most ({gains[worst]:+.0%})"
    tiles = [
        Tile("base_step_time", f"Step of {names[0]}", base_ns, "ns", note=what, section="ladder"),
        Tile("last_step_time", f"Step of {names[-1]}", last_ns, "ns", note=what, section="ladder"),
    ]
    if is_timed:
        tokens = f"{three_digits(rate[0])} to {three_digits(rate[-1])} tokens/s"
        tiles.append(
            Tile("speedup", "Throughput", speedup, "", note=tokens, section="ladder", text=f"{speedup:.2f} x")
        )
    return Summary(f"{verdict}.", tuple(tiles))
