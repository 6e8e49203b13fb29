"""What tracelens counts in recorded steps against the closed forms that the run wrote beside the traces."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import tracelens
from tracelens.planner.config import Config
from tracelens.planner.expected import flops
from tracelens.trace import Run

# tracelens' names of all-to-all collectives, which are NCCL's.
_ALL_TO_ALL = ("all_to_all", "all_to_allv")


def closed_forms(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Of each recorded step of a rank, as the run wrote them down."""
    told = json.loads((folder / "run.json").read_text())["facts"]["expected"]
    return [one for one in told if one["rank"] == rank]


def compare_flops(folder: Path, config: Config, device: str) -> None:
    """Assert that each scope of each rank has the FLOPs of its closed form, backward among them too."""
    run = _by_shapes(tracelens.load(folder))
    assert len(run.traces) == config.layout.ranks
    for trace in run.traces:
        rank = trace.meta.rank
        found = _counted(run, rank)
        expected = _expected(closed_forms(folder, rank), config, rank, device)
        assert {scope: found[scope] for scope in expected} == expected, f"rank {rank}"
        parts = {name.removesuffix(".B").removesuffix(".moe") for name, count in found.items() if count[0]}
        layers = {f"L{layer}" for layer in range(config.model.layers)}
        unknown = {name for name in parts if name.startswith("L")} - {*expected, *layers}
        assert not unknown, f"rank {rank}"


def _by_shapes(run: Run) -> Run:
    """The run without what was noted of buffers in another step than those whose closed forms are known."""
    return Run(tuple(replace(trace, meta=replace(trace.meta, group_rows={})) for trace in run.traces))


def _counted(run: Run, rank: int) -> dict[str, tuple[int, int]]:
    """Scope to FLOPs of matrix products and attention in all steps, and in their backward."""
    table = tracelens.analyze(run, "scopes")["scopes"]
    found: dict[str, tuple[int, int]] = {}
    for row in table[table["rank"] == rank].itertuples():
        before = found.get(row.name, (0, 0))
        found[row.name] = before[0] + row.matrix_flops, before[1] + row.backward_matrix_flops
    return found


def _expected(
    steps: list[dict[str, Any]], config: Config, rank: int, device: str
) -> dict[str, tuple[int, int]]:
    """As `_counted`, of the closed forms."""
    found: dict[str, tuple[int, int]] = {}
    for step in steps:
        scopes = step["flops"]
        if config.toggles.sync_free == 3:  # shapes show the whole buffers
            work = flops(config, rank, attention=step["attention"], buffers=True)
            scopes = {scope: one._asdict() for scope, one in work.items()}
        for scope, one in scopes.items():
            again = one["recomputed"]
            if (
                device == "cpu" and again
            ):  # the op at which recomputation is broken off looks as if it had run
                again = one["forward"]
            before = found.get(scope, (0, 0))
            found[scope] = before[0] + one["forward"] + one["backward"] + again, before[1] + one["backward"]
    return found


def compare_bytes(folder: Path, config: Config) -> None:
    """Assert that each all-to-all of each rank sends and receives the bytes of its closed form."""
    total = 0
    for trace in tracelens.load(folder).traces:
        found = Counter(
            (int(row.in_bytes), int(row.out_bytes))
            for row in trace.tables["collectives"].frame.itertuples()
            if str(row.collective) in _ALL_TO_ALL
        )
        expected: Counter[tuple[int, int]] = Counter()
        for step in closed_forms(folder, trace.meta.rank):
            for one in step["messages"]:
                if one["collective"] == "all_to_all":
                    expected[one["sent"], one["received"]] += one["times"]
        assert found == expected, f"rank {trace.meta.rank}"
        total += sum(found.values())
    assert (total > 0) == (config.layout.experts_over > 1)
