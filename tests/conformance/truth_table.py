"""Projections of recorded runs against the runs with the change: the pairs, and what the engine projects."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import tracelens
from tests.conformance.corpus import folder
from tracelens.errors import TracelensError
from tracelens.what_if import Projector, ScenarioContext, parse_request
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
    """A projection against the measurement, ms."""

    pair: Pair
    base: float
    projected: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        return self.projected / self.measured - 1

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
    roots = {"samples": SAMPLES, "before": HERE / "before", "corpus": folder()}
    path = roots.get(root)
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
        return Row(pair, pair.unprofiled_ms[0], projected, low, high, pair.unprofiled_ms[1])
    projector = _projector(path, pair.unprofiled_ms[0] if pair.unprofiled_ms else None)
    try:
        projection = projector.project(parse_request(pair.scenario))
    except TracelensError:
        return None
    measured = pair.unprofiled_ms[1] if pair.unprofiled_ms else _recorded_ms(pair.after)
    low, high = (ns / 1e6 for ns in projection.rerun_ns)
    return Row(pair, projector.base_ns / 1e6, projection.step_ns / 1e6, low, high, measured)


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
        "| pair | scenario | before | projected | interval | measured | error | inside | written before |\n"
    )
    head += "|---|---|---:|---:|---|---:|---:|---|---:|"
    parts = []
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
        f"{'yes' if row.inside else '**no**'} | {written} |"
    )
