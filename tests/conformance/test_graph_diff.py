"""Graphed runs against their eager twins, recorded on an H200, and sums from the raw JSON.

The recordings are those of test_graph_truth.py.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

import tracelens
from tests.builders import records
from tests.conformance.test_graph_truth import FOLDER
from tracelens.table import Result

pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="no recordings of graphs: set TRACELENS_GRAPHS")

GPU = ("kernel", "gpu_memcpy", "gpu_memset")


class Recording(NamedTuple):
    """What the raw JSON says of one stream of GPU work.

    Attributes:
        span_ns: from the first activity to the end of the last.
        busy_ns: of it, time in which some activity runs.
        passes: the activities of each pass, a list of (name, ns).
    """

    span_ns: int
    busy_ns: int
    passes: list[list[tuple[str, int]]]

    def work_ns(self, passes: Sequence[int]) -> int:
        """Sum of the activities of some passes."""
        return sum(ns for number in passes for _, ns in self.passes[number])

    def kernels(self, number: int) -> list[str]:
        return [name for name, _ in self.passes[number]]


def raw(name: str, size: Sequence[int] = ()) -> Recording:
    """A recording; passes are those of `size` activities each, else of one graph launch each."""
    with gzip.open(FOLDER / f"{name}.json.gz", "rt", encoding="utf-8") as stream:
        events: list[dict[str, Any]] = json.load(stream)["traceEvents"]
    work = sorted((event for event in events if event.get("cat") in GPU), key=lambda event: event["ts"])
    graphs = {
        event["args"]["correlation"] for event in events if str(event.get("name")).endswith("GraphLaunch")
    }
    busy = reached = 0
    passes: dict[int, list[tuple[str, int]]] = {}
    borders = [sum(size[: number + 1]) for number in range(len(size))]
    for number, event in enumerate(work):
        start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
        busy += max(end - max(start, reached), 0)
        reached = max(reached, end)
        key = event["args"]["correlation"] if not size else sum(border <= number for border in borders)
        if size or key in graphs:
            passes.setdefault(key, []).append((event["name"], round(event["dur"] * 1000)))
    begin = round(work[0]["ts"] * 1000)
    return Recording(reached - begin, busy, list(passes.values()))


def level(result: Result, name: str) -> dict[str, tuple[int, int]]:
    table = result["waterfall"]
    return {row[0]: row[1:] for row in records(table[table["level"] == name], "name", "base_ns", "cand_ns")}


def compared(base: str, cand: str, **sources: str) -> Result:
    paths = {name: str(FOLDER / f"{source}.json.gz") for name, source in sources.items()}
    return tracelens.diff(FOLDER / f"{base}.json.gz", FOLDER / f"{cand}.json.gz", **paths)["diff"]


NEAR_NS = 20_000
"""Kernels of a graph overlap a little; how much of it is whose, sums of durations do not say."""


@pytest.mark.parametrize(
    ("kind", "sizes", "pairs", "alone", "sources"),
    [
        # Eager: two passes of each of three batch sizes; replayed: three rounds of all, two of them paired.
        ("one", (186,) * 6, range(6), (6, 7, 8), {"captures": "one_capture"}),
        ("one", (186,) * 6, range(6), (6, 7, 8), {}),
        ("hf", (411,) * 2, (0, 1), (2, 3), {"captures": "hf_capture"}),
    ],
    ids=["captures", "the other side", "hf"],
)
def test_the_ledger_is_what_the_raw_events_say(
    kind: str, sizes: tuple[int, ...], pairs: Sequence[int], alone: Sequence[int], sources: dict[str, str]
) -> None:
    """Idle time, time of the same kernels, and of passes without a counterpart."""
    eager, graphed = raw(f"{kind}_eager", sizes), raw(f"{kind}_replay")
    result = compared(f"{kind}_eager", f"{kind}_replay", **sources)
    assert result.meta["base_ns"] == pytest.approx(eager.span_ns, abs=10)
    assert result.meta["cand_ns"] == pytest.approx(graphed.span_ns, abs=10)
    states = level(result, "graph")
    idle = [sum(pair[side] for name, pair in states.items() if name.endswith(": idle")) for side in (0, 1)]
    assert idle[0] == pytest.approx(eager.span_ns - eager.busy_ns, abs=500)
    assert idle[1] == pytest.approx(graphed.span_ns - graphed.busy_ns, abs=500)
    assert states["in graphs on one side: idle"][0] == idle[0]  # all eager work has a counterpart in a graph
    same = states["in graphs on one side: same kernels"]
    assert same[0] == pytest.approx(eager.work_ns(range(len(sizes))), abs=NEAR_NS)
    assert same[1] == pytest.approx(graphed.work_ns(pairs), abs=NEAR_NS)
    (name,) = (name for name in states if name.startswith("in graphs, no counterpart: calls"))
    assert states[name] == (0, pytest.approx(graphed.work_ns(alone), abs=NEAR_NS))
    assert result.meta["repetitions"] == (
        len(sizes) // (len(sizes) // 2),
        len(graphed.passes) // (len(sizes) // 2),
    )
    # And that these are the same kernels, in the same order, says the raw trace, too.
    order = [0, 2, 4] if kind == "one" else [0]
    assert [eager.kernels(number) for number in order] == [graphed.kernels(n) for n in range(len(order))]


def test_both_directions() -> None:
    there = compared("one_eager", "one_replay", captures="one_capture")
    back = compared("one_replay", "one_eager", captures="one_capture")
    for name in ("cause", "graph", "op", "kernel"):
        assert level(back, name) == {row: pair[::-1] for row, pair in level(there, name).items()}


def test_a_step_of_which_only_a_part_is_graphed() -> None:
    """Forward and backward of make_graphed_callables; the optimizer stays with the host."""
    result = compared("train_eager", "train_replay", captures="train_capture")
    states = level(result, "graph")
    before, after = states["in graphs on one side: idle"]
    assert before - after > 0.9 * -result.meta["delta_ns"]
    assert result.meta["aligned_fraction"] > 0.99
    assert "repetitions" not in result.meta
    launches = result["graphs"]
    assert launches["graph_launches"].tolist() == [0, 2]
    assert launches["launches"].tolist() == [143, 50]


def test_without_a_source_nothing_is_paired() -> None:
    base = tracelens.load(FOLDER / "one_eager.json.gz")
    cand = tracelens.load(FOLDER / "one_replay.json.gz")
    from tracelens.compare.diff import diff

    result = diff(base, cand)
    states = level(result, "graph")
    assert states["in graphs, no counterpart: without an op"][1] == pytest.approx(
        raw("one_replay").busy_ns, abs=500
    )
    assert any(skip.subject == "cand: ops in graphs" for skip in result.skips)


def projected_ns(name: str, scenario: str, **sources: str) -> int:
    from tracelens.what_if import whatif

    run = tracelens.load(FOLDER / f"{name}.json.gz", **sources)
    return int(whatif(run, [scenario])["whatif"]["projected_ns"][0])


@pytest.mark.parametrize(
    ("kind", "share", "off"),
    [("one", 6 / 9, 0.10), ("two", 6 / 9, 0.04), ("hf", 2 / 4, 0.04), ("compile", 6 / 9, 0.04)],
)
def test_an_eager_run_as_a_graph(kind: str, share: float, off: float) -> None:
    """The projection against the replays; `share` of their passes are as many as the eager run has."""
    measured = raw(f"{kind}_replay").span_ns * share
    assert projected_ns(f"{kind}_eager", "step_graph") == pytest.approx(measured, rel=off)


def test_a_graph_as_single_launches() -> None:
    """With the time per launch of the eager run, the replays take as long as it does."""
    eager, graphed = raw("one_eager", (186,) * 6), raw("one_replay")
    per_launch_us = eager.span_ns / sum(map(len, eager.passes)) / 1000
    projected = projected_ns("one_replay", f"no_graphs={per_launch_us:.2f}")
    measured = eager.span_ns * len(graphed.passes) / len(eager.passes)
    assert projected == pytest.approx(measured, rel=0.02)
