"""Projections of recorded runs against the runs with the change: the pairs, and what the engine projects."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tracelens
from tests.conformance.corpus import folder
from tracelens.arrays import lookup
from tracelens.errors import TracelensError
from tracelens.what_if import Edge, Edit, Projector, ScenarioContext, parse_request
from tracelens.what_if.graph import build

HERE = Path(__file__).parent / "truth"
SAMPLES = Path(__file__).parents[2] / "sample_traces"
WRITTEN = tomllib.loads((HERE / "projected.toml").read_text())
SINGLE = ("toggle_", "stages")
"""Pairs of which each side is one recorded step of one process, without unprofiled steps: not counted."""


class Pair(NamedTuple):
    """A run before a change, and what was measured after it.

    Attributes:
        name: of the pair.
        change: what is different after it.
        scenario: that expresses the change.
        before, after: traces, "root:path"; after is "" where it is not kept.
        unprofiled_ms: the step without the profiler before and after; empty if unknown.
    """

    name: str
    change: str
    scenario: str
    before: str
    after: str = ""
    unprofiled_ms: tuple[float, ...] = ()

    @property
    def counts(self) -> bool:
        return not self.name.startswith(SINGLE)

    @property
    def written(self) -> dict[str, Any]:
        """The projection that was written down before the measurement; empty if it was not."""
        recording, _, change = self.name.partition(".")
        result: dict[str, Any] = WRITTEN.get(recording, {}).get(change, {}) if change else {}
        return result


class Row(NamedTuple):
    """A projection against the measurement, ms.

    Attributes:
        amdahl: the step if it shrinks as the sum of the host's or the GPU's time does, whichever changes.
        subtracted: the step less all time that the scenario takes away, as if nothing hid any of it. Both
            are no less than the GPU work that is left.
    """

    pair: Pair
    base: float
    projected: float
    low: float
    high: float
    measured: float
    amdahl: float | None = None
    subtracted: float | None = None

    @property
    def error(self) -> float:
        return self.projected / self.measured - 1

    @property
    def changed(self) -> bool:
        """Whether the step changed by more than 10%: only these test whether a projection has skill."""
        return abs(self.measured / self.base - 1) > 0.1

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high


def pairs() -> list[Pair]:
    """All of them."""
    items = tomllib.loads((HERE / "pairs.toml").read_text())["pair"]
    return [Pair(**item) for item in items]


def located(text: str) -> Path | None:
    """Where a trace is; None where it is not here."""
    root, _, name = text.partition(":")
    sets = {path.parent.name: path.parent for path in HERE.glob("*/MANIFEST.toml")}
    path = {"samples": SAMPLES, "corpus": folder(), **sets}.get(root)
    return path / name if path and (path / name).exists() else None


def rows() -> Iterator[Row]:
    """A row of each pair with a trace or a written projection; none where the scenario does not apply."""
    for pair in pairs():
        if (row := project(pair)) is not None:
            yield row


def project(pair: Pair) -> Row | None:
    """What the engine projects; what was written down where the trace is not here."""
    path = located(pair.before)
    if path is None:
        if not pair.written:
            return None
        low, projected, high = pair.written["unprofiled_ms"]
        rules = pair.written.get("rules_ms", (None, None))
        return Row(pair, pair.unprofiled_ms[0], projected, low, high, pair.unprofiled_ms[1], *rules)
    projector = _projector(path, pair.unprofiled_ms[0] if pair.unprofiled_ms else None)
    try:
        projection = projector.project(parse_request(pair.scenario))
    except TracelensError:
        return None
    measured = pair.unprofiled_ms[1] if pair.unprofiled_ms else _recorded_ms(pair.after)
    low, high = (ns / 1e6 for ns in projection.rerun_ns)
    base = pair.unprofiled_ms[0] if pair.unprofiled_ms else projector.base_ns / 1e6
    rules = simple_rules(projector, projection.edit)
    return Row(pair, base, projection.step_ns / 1e6, low, high, measured, *rules)


def simple_rules(projector: Projector, edit: Edit) -> tuple[float, float]:
    """What needs no replay: Amdahl's law, and the step less the time taken away, ms; see Row."""
    graph, window = projector.graph, projector.window
    base = projector.share.base(graph)
    inside = window.step_of == window.number
    host = graph.is_edge(Edge.HOST, Edge.HANDOVER) & inside[graph.dst]
    # A call that no longer waits takes no more than its own time.
    free = np.unique(graph.dst[~edit.kept & graph.is_edge(Edge.SYNC, Edge.QUEUE)])
    waited = graph.start[free] - lookup(graph.end, lookup(graph.src, graph.first[free], -1), 0)
    waiting = float(waited[inside[free]].sum())
    gpu_before, gpu_after = (float(changed.dur[inside].sum()) for changed in (base, edit))
    host_before, host_after = (float(changed.lag[host].sum()) for changed in (base, edit))
    removed = gpu_before - gpu_after + host_before - host_after + waiting
    shares = [gpu_after / max(gpu_before, 1), (host_after - waiting) / max(host_before, 1)]
    amdahl = projector.base_ns * (min(shares) if min(shares) < 1 else max(shares))
    least = gpu_after / len(graph.ranks)
    return max(amdahl, least) / 1e6, max(projector.base_ns - removed / len(graph.ranks), least) / 1e6


@lru_cache(maxsize=1)
def _projector(path: Path, unprofiled_ms: float | None) -> Projector:
    run = tracelens.load(path)
    recorded = build(run)
    return Projector(recorded, ScenarioContext(recorded, run.traces), unprofiled_step_ms=unprofiled_ms)


def _recorded_ms(after: str) -> float:
    path = located(after)
    if path is None:
        raise FileNotFoundError(after)
    return _projector(path, None).recorded_ns / 1e6


def document(table: list[Row]) -> str:
    """docs/whatif-truth.md, but for its introduction and its misses."""
    head = (
        "| pair | scenario | before | projected | interval | measured | error | inside | written before "
        "| nothing changes | Amdahl | subtracted |\n"
    )
    head += "|---|---|---:|---:|---|---:|---:|---|---:|---:|---:|---:|"
    parts = [f"## Skill\n\n{skill([row for row in table if row.pair.counts])}"]
    for title, counted in (("Counted", True), ("Not counted: one recorded step each", False)):
        lines = [_line(row) for row in table if row.pair.counts is counted]
        parts.append(f"## {title}\n\n{head}\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _line(row: Row) -> str:
    rule = "" if row.pair.unprofiled_ms else " (profiled)"
    written = f"{row.pair.written['unprofiled_ms'][1]:.1f}" if row.pair.written else ""
    return (
        f"| {row.pair.change}{rule} | `{row.pair.scenario}` | {row.base:.1f} | {row.projected:.1f} | "
        f"{row.low:.1f} to {row.high:.1f} | {row.measured:.1f} | {row.error:+.1%} | "
        f"{'yes' if row.inside else '**no**'} | {written} | {row.base / row.measured - 1:+.1%} | "
        f"{_error(row.amdahl, row)} | {_error(row.subtracted, row)} |"
    )


def _error(projected: float | None, row: Row) -> str:
    return "" if projected is None else f"{projected / row.measured - 1:+.1%}"


def skill(table: list[Row]) -> str:
    """What the projections are worth, of the pairs that changed; and of all, how many lie inside."""
    changed = [row for row in table if row.changed]
    errors = [abs(row.error) for row in changed]
    ruled = [row for row in changed if row.amdahl is not None and row.subtracted is not None]

    def better(rule: str) -> str:
        won = sum(abs(row.error) <= abs(getattr(row, rule) / row.measured - 1) for row in ruled)
        return f"{won} of {len(ruled)}"

    inside = sum(row.inside for row in table)
    nothing = float(np.median([abs(row.base / row.measured - 1) for row in changed]))
    return (
        f"Of {len(table)} pairs {len(changed)} changed the step by more than 10%. Of these,\n"
        f"{sum(error <= 0.1 for error in errors)} projections are within 10% of the measurement; the median "
        f'error is {np.median(errors):.1%}, that of\n"nothing changes" {nothing:.0%}. The replay is at '
        f"least as close as Amdahl's law in {better('amdahl')} (where that is known),\nand as taking the "
        f"time away from the step in {better('subtracted')}. Of all pairs, {inside} measurements "
        f"({inside / len(table):.0%}) lie inside the interval."
    )
