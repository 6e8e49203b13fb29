"""Runs in graphs against the same calls that the host launches one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelens
from tests.builders import aligned, draw, records
from tracelens.compare.diff import diff
from tracelens.errors import ParseError, WrongOption
from tracelens.read import GraphSources, sources_of_sides
from tracelens.rendering.summary import result_summary
from tracelens.table import Result
from tracelens.trace import Run, Trace, is_unattributed, make_run
from tracelens.trace.graphs import attributed

EAGER = """
    step 1                                      | -----------------------------
    scope layer                                 |  ------------------------
    op aten::mm shapes=[[4,8],[8,2]]            |  ------
    launch                                      |   a  b
    op aten::relu shapes=[[4,2]]                |         ---
    launch                                      |          c
    op aten::copy_ shapes=[[4,2],[4,2]]         |                 -----
    launch cudaMemcpyAsync                      |                  d
    s7 gemm                                     |     aa
    s7 split                                    |       bb
    s7 relu                                     |             cc
    s7 copy                                     |                      dd
"""
"""Idle before relu (columns 9 to 13) and copy (15 to 22); the step ends with its mark."""

GRAPHED = """
    step 1                                      | ---------------------
    launch cudaGraphLaunch                      |  aa
    s7 gemm                                     |     aa
    s7 split                                    |       bb
    s7 relu                                     |         ccc
    s7 copy                                     |             dd
""".replace("bb", "aa").replace("ccc", "aaa").replace("dd", "aa")  # fmt: skip

CAPTURE = """
    scope capture                               | --------------------------
    launch hipStreamBeginCapture                |  b
    scope layer                                 |   ----------------------
    op aten::mm shapes=[[4,8],[8,2]]            |   ------
    launch cudaLaunchKernel                     |    c
    launch cudaLaunchKernel                     |      d
    op aten::relu shapes=[[4,2]]                |          ----
    launch cudaLaunchKernel                     |           e
    op aten::copy_ shapes=[[4,2],[4,2]]         |                ----
    launch cudaMemcpyAsync                      |                 f
    launch hipStreamEndCapture                  |                          g
"""


def run(*traces: Trace) -> Run:
    return make_run(list(traces))


def level(result: Result, name: str) -> dict[str, tuple[int, int]]:
    table = result["waterfall"]
    return {row[0]: row[1:] for row in records(table[table["level"] == name], "name", "base_ns", "cand_ns")}


def graphed(text: str = GRAPHED) -> Trace:
    return attributed(draw(text), [draw(CAPTURE)])


def test_launches_that_the_host_no_longer_makes() -> None:
    result = diff(run(draw(EAGER)), run(graphed()))
    # The eager step begins at column 1: 4 idle columns before gemm, 4 before relu, 7 before copy.
    assert level(result, "graph") == {
        "in graphs on one side: idle": (15_000, 5_000),
        "in graphs on one side: same kernels": (8_000, 9_000),
        "outside graphs: idle": (6_000, 7_000),
    }
    assert level(result, "cause")["same kernels"] == (8_000, 9_000)
    assert result.meta["aligned_fraction"] == 1
    assert records(result["graphs"], "side", "launches", "graph_launches", "in_graphs", "op_source") == [
        ("base", 4, 0, 0, ""), ("cand", 1, 1, 4, "capture"),
    ]  # fmt: skip
    assert records(result["changes"], "kind", "base", "cand", "delta_ns") == [
        ("slower", "aten::relu", "aten::relu", 1_000)
    ]


def test_the_other_direction_is_the_same_with_the_sides_exchanged() -> None:
    there = diff(run(draw(EAGER)), run(graphed()))
    back = diff(run(graphed()), run(draw(EAGER)))
    for name in ("cause", "graph", "op", "shape", "kernel"):
        assert level(back, name) == {row: pair[::-1] for row, pair in level(there, name).items()}
    assert back.meta["aligned_fraction"] == 1


def test_each_level_adds_up() -> None:
    result = diff(run(draw(EAGER)), run(graphed()))
    for _, rows in result["waterfall"].groupby("level", observed=True):
        assert (rows["base_ns"].sum(), rows["cand_ns"].sum()) == (
            result.meta["base_ns"], result.meta["cand_ns"]
        )  # fmt: skip


def test_a_kernel_that_changed_in_the_graph() -> None:
    result = diff(run(draw(EAGER)), run(graphed(GRAPHED.replace("s7 relu", "s7 fast"))))
    states = level(result, "graph")
    assert states["in graphs on one side: other kernels"] == (2_000, 3_000)
    assert states["in graphs on one side: same kernels"] == (6_000, 6_000)
    assert records(result["substitutions"], "op", "base_kernel", "cand_kernel") == [
        ("aten::relu", "relu", "fast")
    ]


def test_wrappers_and_threads_of_the_eager_run_do_not_matter() -> None:
    """The autograd engine runs a thread and wrappers of its own, where a graph is launched as a whole."""
    engine = aligned(
        """
        step 1                                               | -----------------------------
        op aten::mm shapes=[[4,8],[8,2]]                     |  ------
        launch                                               |   a  b
        op autograd::engine::evaluate_function: Relu tid=9    |        -----
        op aten::relu shapes=[[4,2]] tid=9                    |         ---
        launch tid=9                                          |          c
        op aten::view tid=9                                |             --
        op aten::copy_ shapes=[[4,2],[4,2]]                  |                 -----
        launch cudaMemcpyAsync                               |                  d
        s7 gemm                                              |     aa
        s7 split                                             |       bb
        s7 relu                                              |             cc
        s7 copy                                              |                      dd
        """
    )
    result = diff(run(draw(engine)), run(graphed()))
    assert level(result, "graph")["in graphs on one side: same kernels"] == (8_000, 9_000)
    assert set(result["changes"]["kind"].astype(str)) == {"slower"}  # no edits without GPU work


def test_work_of_a_graph_that_nothing_tells_of() -> None:
    result = diff(run(draw(EAGER)), run(draw(GRAPHED)))
    states = level(result, "graph")
    assert states["in graphs, no counterpart: without an op"] == (0, 9_000)
    assert states["outside graphs: calls on one side only"] == (8_000, 0)
    (skip,) = (skip for skip in result.skips if skip.subject == "cand: ops in graphs")
    assert "--captures" in skip.reason


def test_shapes_that_are_not_known_are_not_other_shapes() -> None:
    """A capture of another batch size gives ops, and no shapes."""
    eager = draw(aligned(EAGER.replace("s7 gemm", "s7 gemm grid=[4,1,1]")))
    smaller = attributed(draw(aligned(GRAPHED.replace("s7 gemm", "s7 gemm grid=[2,1,1]"))), [], [eager])
    assert set(smaller.ops["shapes"].astype(str)) == {""}
    result = diff(run(eager), run(smaller))
    assert level(result, "cause")["same kernels"] == (8_000, 9_000)


def test_recordings_that_repeat_their_work_unequally_often() -> None:
    def repeated(text: str, times: int) -> str:
        lines = aligned(text).splitlines()[1:]  # without the step
        rows = [line.partition("|") for line in lines]
        return "\n".join(
            f"{label}| " + " " * (40 * number) + bars for number in range(times) for label, _, bars in rows
        )

    result = diff(run(draw(repeated(EAGER, 2))), run(graphed(repeated(GRAPHED, 3))))
    assert result.meta["repetitions"] == (2, 3)
    assert level(result, "cause")["same kernels"] == (16_000, 18_000)
    assert level(result, "cause")["calls on one side only"] == (0, 9_000)
    summary = result_summary(result)
    assert summary is not None
    assert "per repetition" in summary.verdict
    assert "a step" not in summary.verdict


def test_the_other_side_is_the_twin_of_a_graph_without_captures() -> None:
    eager, graph = run(draw(EAGER)), run(draw(GRAPHED))
    for sides, source in (((eager, graph), ["", "twin"]), ((graph, eager), ["twin", ""])):
        result = tracelens.diff(*sides)["diff"]
        assert result["graphs"]["op_source"].tolist() == source
        assert "in graphs on one side: same kernels" in level(result, "graph")


def test_captures_are_believed_before_the_other_side() -> None:
    result = tracelens.diff(run(draw(EAGER)), run(graphed()))["diff"]
    assert result["graphs"]["op_source"].tolist() == ["", "capture"]


def test_no_graph_no_table() -> None:
    result = diff(run(draw(EAGER)), run(draw(EAGER)))
    assert "graphs" not in result.data
    assert not level(result, "graph")


def test_sources_of_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("twin.json", "a", "b", "c"):
        Path(name).touch()
    assert sources_of_sides((), "twin.json") == (GraphSources("", "twin.json"), GraphSources("", "twin.json"))
    assert sources_of_sides(["a", "b"], ()) == (GraphSources("a"), GraphSources("b"))
    with pytest.raises(WrongOption, match="3 paths"):
        sources_of_sides(["a", "b", "c"], ())
    with pytest.raises(ParseError, match="d: no such file or folder"):
        sources_of_sides(["a", "d"], ())


def test_what_is_unattributed() -> None:
    assert is_unattributed(draw(GRAPHED))
    assert not is_unattributed(graphed())
    assert not is_unattributed(draw(EAGER))
