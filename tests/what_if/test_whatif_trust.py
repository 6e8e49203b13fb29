"""How far predicted starts are from recorded ones, and what a graph that lacks edges says of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import tracelens
from tests.builders import records
from tests.what_if.replays import run_of
from tracelens.analysis.comm import SEND_RECV
from tracelens.arrays import Bool
from tracelens.what_if import Edge, Projector, ReplayedStep, ScenarioContext, whatif
from tracelens.what_if.graph import Recorded, build
from tracelens.what_if.graph.graph import ready_times

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"

LATE = """
    step 0                       | ----------------------------
    launch                       | a     b     c     d
    launch cudaStreamSynchronize |                    -----------
    s7 one                       |   aa
    s7 two                       |         bb
    s7 tri                       |               cc
    s7 four                      |                         dddd
"""


def test_starts_are_predicted_from_durations_alone() -> None:
    """The last kernel starts 6 columns behind its launch, all others 2.

    Of the host, three launches, the begin of the wait and the end of the step count.
    """
    trust = whatif(run_of(LATE), ["identity"])["trust"]
    assert records(trust, "rank", "kind", "count", "without_cause") == [
        (0, "kernel", 4, 0),
        (0, "host call", 5, 0),
    ]
    kernel, host = trust.itertuples()
    assert kernel.p50_ns == 0
    assert kernel.p99_ns == pytest.approx(4000 * 0.97)
    assert kernel.unexplained_ns == 4000
    assert host.unexplained_ns == 0
    assert kernel.unexplained_fraction == pytest.approx(4000 / 28_000)


def test_a_synchronisation_that_waits_for_nothing_recorded_is_not_explained() -> None:
    run = run_of("""
        step 0                       | -----------------------------
        launch cudaDeviceSynchronize | --------------------
        launch                       |                     a
        s7 gemm                      |                       aaa
    """)
    trust = whatif(run, ["identity"])["trust"].set_index("kind")
    assert trust["unexplained_ns"]["host call"] == 20_000 - 3_500


def test_communication_with_ranks_that_were_not_recorded_is_not_explained() -> None:
    """How long its kernel waited for them, nobody knows."""
    text = """
        step 0           | --
        op record_param_comms collective=allreduce group=0 ranks={ranks} size={size} in=5 out=5 dtype=Half | -
        launch           | a
        s9 ncclDevKernel |  aaaaaaaaa
    """
    for ranks, size, unexplained_ns in (("[0,1]", 2, 9000), ("[0]", 1, 0)):
        trust = whatif(run_of(text.format(ranks=ranks, size=size)), ["identity"])["trust"]
        assert trust.set_index("kind")["unexplained_ns"]["collective"] == unexplained_ns


def without(recorded: Recorded, missing: Bool) -> Recorded:
    """The run without these edges."""
    graph = recorded.graph
    src, dst, lag, edge = (column[~missing] for column in (graph.src, graph.dst, graph.lag, graph.edge))
    first = np.searchsorted(dst, np.arange(len(graph) + 1))
    delay = graph.start - ready_times(graph.start, first, graph.end[src] + lag)
    return replace(
        recorded, graph=replace(graph, src=src, dst=dst, lag=lag, edge=edge, first=first, delay=delay)
    )


def every_second(rows: Bool) -> Bool:
    mask = np.zeros(len(rows), dtype=bool)
    mask[np.flatnonzero(rows)[::2]] = True
    return mask


def unexplained(recorded: Recorded) -> float:
    table = ReplayedStep(Projector(recorded, ScenarioContext(recorded))).explained()
    return float(table.array("unexplained_fraction").max())


@pytest.mark.parametrize("kind", ["p2p", "launch", "stream", "sync"])
def test_missing_edges_show(kind: str) -> None:
    """A pipeline of two ranks: of the edges of a kind, all or every second one are missing."""
    recorded = build(tracelens.load(SAMPLES / "pipeline" / "plain"))
    graph = recorded.graph
    if kind == "p2p":
        matched = recorded.collectives.matched
        is_p2p = np.array([item.collective == SEND_RECV for item in matched])
        rows = (graph.edge == Edge.ARRIVAL) & is_p2p[graph.collective[graph.dst]]
    else:
        rows = graph.edge == Edge[kind.upper()]
    assert rows.sum() >= 2
    assert unexplained(recorded) < 0.01
    assert unexplained(without(recorded, rows)) > 0.3
    # Half of the launches are found by the order of their stream, half of the waits by what follows them.
    half = unexplained(without(recorded, every_second(rows)))
    assert half > {"p2p": 0.3, "stream": 0.3, "sync": 0.02, "launch": 0.005}[kind]
