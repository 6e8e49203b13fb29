"""A training step in one graph, attributed by the eager rung below it, counts what that rung counts."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tracelens import Run, analyze, load

LADDER = Path(__file__).parents[2] / "sample_traces" / "ladder" / "ep4"
RANKS = range(4)


@cache
def eager() -> Run:
    return load(LADDER / "07_manual_gc")


@cache
def graph(twin: bool) -> Run:
    return load(LADDER / "08_graph", twin=LADDER / "07_manual_gc" if twin else "")


def test_flops_are_those_of_the_eager_step() -> None:
    flops = [
        analyze(run, "roofline")["utilisation"].groupby("rank")["flops"].agg(["min", "max"])
        for run in (eager(), graph(twin=True))
    ]
    assert (flops[0] == flops[1]).all(axis=None)
    assert (flops[1]["min"] > 7.8e12).all()


def test_figures_of_the_documentation() -> None:
    shares = [round(analyze(graph(twin), "roofline").meta["coverage"], 3) for twin in (False, True)]
    assert shares == [0.391, 0.971]
    page = (LADDER.parents[2] / "docs" / "how-to" / "serving.md").read_text()
    assert all(f"{share:.1%}" in page for share in shares)


@pytest.mark.parametrize("rank", RANKS)
def test_no_call_is_attributed_that_the_eager_step_does_not_make(rank: int) -> None:
    """GPU work by op and shapes: at most as much as in an eager step, and nearly all of it."""
    counts = []
    for run, source in ((eager(), "trace"), (graph(twin=True), "twin")):
        table = run.kernels()
        table = table[(table["rank"] == rank) & (table["op_source"] == source)]
        table = table[table["step"] == "ProfilerStep#24"]
        counts.append(Counter(zip(table["op"].astype(str), table["shapes"].astype(str), strict=True)))
    before, after = counts
    assert not after - before
    assert after.total() >= 0.95 * before.total()


@pytest.mark.parametrize("stage", ["experts", "router"])
def test_stages_take_as_long_as_in_the_eager_step(stage: str) -> None:
    """Those without communication, whose kernels are the same."""
    ns = []
    for run in (eager(), graph(twin=True)):
        table = analyze(run, "moe")["stages"]
        ns.append(table[table["stage"] == stage].groupby("rank")["forward_ns"].sum())
    assert (ns[0] - ns[1]).abs().max() < 0.05 * ns[0].min()
