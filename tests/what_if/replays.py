"""What the tests of the what-if share: the projected step of a drawn run, in columns of the drawing."""

from __future__ import annotations

import pytest

import tracelens
from tests.builders import aligned, draw_run
from tracelens.table import Result
from tracelens.trace import Run
from tracelens.what_if import Edge, Edit, Node, whatif
from tracelens.what_if.graph import Recorded, build
from tracelens.what_if.replay.schedule import NodeTimes, schedule

Interval = tuple[float, float, float]


def run_of(*texts: str) -> Run:
    """A run of one drawing a rank."""
    return draw_run(*map(aligned, texts))


def interval(result: Result, scenario: str) -> Interval:
    """Low, projected and high step of a scenario, microseconds."""
    (row,) = result["whatif"][result["whatif"]["scenario"] == scenario].itertuples()
    return row.low_ns / 1e3, row.projected_ns / 1e3, row.high_ns / 1e3


def projected(run: Run, scenario: str, step: str | None = None) -> float:
    """The projected step of a scenario, microseconds."""
    return interval(whatif(run, [scenario], step=step), scenario)[1]


def edges(recorded: Recorded, kind: str) -> list[tuple[str, str]]:
    """(what, what waits for it) of all edges of a kind: "rank:kind of node name"."""
    graph = recorded.graph

    def said(node: int) -> str:
        names, slot = graph.ranks[int(graph.rank[node])].name, int(graph.slot[node])
        name = names.values[names.codes[slot]] if slot >= 0 else ""
        return f"{graph.rank[node]}:{Node(graph.kind[node]).name.lower()} {name}".strip()

    rows = (graph.edge == Edge[kind.upper()]).nonzero()[0].tolist()
    return [(said(int(graph.src[edge])), said(int(graph.dst[edge]))) for edge in rows]


def assert_identity(run: Run) -> Recorded:
    """With nothing changed every node is when it was, whatever becomes of delays."""
    recorded = build(run)
    graph = recorded.graph
    for delays in ("low", "typical", "high"):
        times = schedule(graph, Edit.of(graph), delays)
        assert (times.start == graph.start).all()
        assert (times.end == graph.end).all()
    assert (graph.delay >= 0).all()
    assert (graph.dur >= 0).all()
    assert (graph.src < graph.dst).all()
    return recorded


def check_identity(run: Run) -> None:
    """Each step of each rank is what the analyzer `steps` measures, and with nothing changed stays so."""
    recorded = assert_identity(run)
    steps = tracelens.analyze(run, "steps")["steps"]
    measured = steps.pivot(index="step", columns="rank", values="dur_ns")
    graph = recorded.graph
    times = NodeTimes(graph.start, graph.end, graph.start, graph.first[:-1])
    assert recorded.windows
    for window in recorded.windows:
        assert window.spans(times.start, times.end).tolist() == measured.loc[window.label].tolist()


def check_explained(run: Run, unexplained: float) -> None:
    """The step is projected exactly; from durations alone it is off by less than this share."""
    result = whatif(run, ["identity"])
    explained, path = result["explained"], result["critical_path"]
    (row,) = result["whatif"].itertuples()
    assert row.low_ns <= row.projected_ns == row.base_ns <= row.high_ns
    assert result["ranks"]["projected_ns"].tolist() == result["ranks"]["base_ns"].tolist()
    assert explained["replay"].tolist() == ["as measured", "durations only"]
    assert explained["error"][0] == 0
    assert explained["error"].abs().max() < unexplained
    assert explained["unexplained_fraction"].max() < unexplained
    whole = path[path["scenario"] == "identity"]["dur_ns"].sum()
    assert whole in result["ranks"]["base_ns"].tolist()
    assert path[path["scenario"] == "(measured)"]["fraction_of_step"].sum() == pytest.approx(1)
