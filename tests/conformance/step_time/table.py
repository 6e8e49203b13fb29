"""Projected step times against measured ones: new runs, earlier pairs, ladders, and Megatron-core."""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.step_time.layouts import layouts
from tests.conformance.truth_table import pairs
from tests.workload import record_pairs
from tracelens.devices import device
from tracelens.planner.config import Config, override, preset
from tracelens.planner.step_time import Machine, estimate

HERE = Path(__file__).parent
SAMPLES = Path(__file__).parents[3] / "sample_traces"
LADDERS = ("ladder", "ladder_large")
RECORDED = tomllib.loads((HERE / "recorded.toml").read_text())
PROJECTED: dict[str, dict[str, float]] = tomllib.loads((HERE / "projected.toml").read_text())["runs"]
MEASURED: dict[str, dict[str, Any]] = {}
if (HERE / "measured.toml").exists():
    MEASURED = tomllib.loads((HERE / "measured.toml").read_text())["runs"]


class Run(NamedTuple):
    """A measured step.

    Attributes:
        name: of the run.
        config: its settings.
        measured_ms: its median step.
        device: that it ran on.
        host: of recorded.toml; empty for the launch cost of the device file.
        is_profiled: whether the step was only timed with the profiler.
        written_ms: projected before the measurement; None if not.
    """

    name: str
    config: Config
    measured_ms: float
    device: str = "h200"
    host: str = ""
    is_profiled: bool = False
    written_ms: float | None = None

    @property
    def projected_ms(self) -> float:
        return self.at_launch_cost(launch_ns(self.host) if self.host else 0.0)

    @property
    def fixes_host(self) -> bool:
        """Whether the launch cost of its host is from this run, which then does not count."""
        return bool(self.host) and RECORDED["host"][self.host] == self.name

    def at_launch_cost(self, nanoseconds: float) -> float:
        """Projected step with this cost of a launch, ms."""
        machine = Machine(launch_ns=nanoseconds)
        return estimate(self.config, device(self.device), machine).step_ns / 1e6

    @property
    def error(self) -> float:
        return self.projected_ms / self.measured_ms - 1

    @property
    def written_error(self) -> float | None:
        return None if self.written_ms is None else self.written_ms / self.measured_ms - 1


def new_runs() -> Iterator[Run]:
    """Runs of layouts.toml, projected before they were measured."""
    for name, config in layouts().items():
        if name in MEASURED:
            measured_ms = statistics.median(MEASURED[name]["step_ms"])
            yield Run(name, config, measured_ms, written_ms=PROJECTED[name]["step_ms"])


def earlier_runs() -> Iterator[Run]:
    """Both sides of the pairs of the reference workload, the ladders, and the runs of recorded.toml."""
    yield from _pairs()
    for name in LADDERS:
        yield from _ladder(name)
    for item in RECORDED["run"]:
        family = RECORDED["family"][item["family"]]
        config = override(preset(family["preset"]), f"{family['fields']} {item['fields']}".split())
        device_name, is_profiled = item.get("device", "h200"), item.get("profiled", False)
        yield Run(item["name"], config, item["step_ms"], device_name, item.get("host", ""), is_profiled)


def _pairs() -> Iterator[Run]:
    measured: dict[str, float] = {}
    for pair in pairs():
        recording, _, change = pair.name.partition(".")
        if f"{recording}.before" in record_pairs.WORKLOAD:
            before, after = pair.unprofiled_ms
            measured |= {f"{recording}.before": before, f"{recording}.after.{change}": after}
    for name, measured_ms in measured.items():
        config = override(preset("small"), record_pairs.WORKLOAD[name].split())
        yield Run(name, config, measured_ms, host="pairs")


def _ladder(group: str) -> Iterator[Run]:
    content = json.loads((SAMPLES / group / "ep4" / "ladder.json").read_text())
    fields = [
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for part in content["config"].values()
        for name, value in part.items()
    ]
    base = override(preset("small"), fields)
    for rung in content["rungs"]:
        toggles = replace(base.toggles, **rung["toggles"])
        config = replace(base, toggles=toggles)
        yield Run(f"{group} ep4, {rung['name']}", config, rung["typical_ms"], host="ladder")


@lru_cache
def launch_ns(host: str) -> float:
    """Cost of a launch with which the projection of the host's run is its measured step."""
    (run,) = (run for run in earlier_runs() if run.name == RECORDED["host"][host])
    low, high = 1e3, 1e6
    while high - low > 10:
        middle = (low + high) / 2
        low, high = (middle, high) if run.at_launch_cost(middle) < run.measured_ms else (low, middle)
    return high


def document(runs: list[Run]) -> str:
    """The tables of docs/step-time-truth.md."""
    parts = {"Projected first": _table(runs, new=True), "Recorded earlier": _table(runs, new=False)}
    return "\n".join(f"## {title}\n\n{table}\n" for title, table in parts.items())


def _table(runs: list[Run], new: bool) -> str:
    head = ["run", "projected", "measured", "error", *(["written before", "its error"] if new else ["host"])]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for run in runs:
        if (run.written_ms is not None) is new:
            name = f"{run.name} (profiled)" if run.is_profiled else run.name
            cells = [name, f"{run.projected_ms:.1f}", f"{run.measured_ms:.1f}", f"{run.error:+.1%}"]
            if run.written_ms is not None:
                cells += [f"{run.written_ms:.1f}", f"{run.written_error:+.1%}"]
            else:
                host = f"{launch_ns(run.host) / 1e3:.0f} us" if run.host else "device file"
                cells.append(f"{host}, from this run" if run.fixes_host else host)
            lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
