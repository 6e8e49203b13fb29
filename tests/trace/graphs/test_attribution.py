"""Which capture a replay is of, and what is copied from it."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.builders import aligned, draw, kernel_names, records
from tracelens.trace import Trace, gpu_work
from tracelens.trace.graphs import attributed, captures, replays

CAPTURE = """
    scope capture_4_FULL                        | --------------------------
    launch hipStreamBeginCapture                |  b
    python nn.Module: Mlp_0                     |   ----------------------
    op aten::mm shapes=[[4,8],[8,2]]            |   ------
    launch hipLaunchKernel kernel=gemm          |    c
    launch hipLaunchKernel kernel=split.kd      |      d
    op aten::relu shapes=[[4,2]]                |          ----
    launch hipLaunchKernel kernel=relu          |           e
    op aten::copy_ shapes=[[4,2],[4,2]]         |                ----
    launch hipMemcpyAsync                       |                 f
    launch hipStreamEndCapture                  |                          g
"""

REPLAY = """
    scope decode bs=4                           | --------------------------
    launch hipGraphLaunch                       |  aaaaaaa
    s7 gemm                                     |    aaa
    s7 split                                    |        aa
    s7 relu                                     |            aa
    s7 copy                                     |                 aaa
"""


def ops(trace: Trace) -> list[str]:
    return kernel_names(trace, "op_id")


def shapes(trace: Trace) -> list[str]:
    """Shapes of the op of each piece of GPU work."""
    texts = dict(records(trace.ops, "event_id", "shapes"))
    return [str(texts.get(row, "")).replace(" ", "") for row in trace.tables["links"].array("op_id").tolist()]


def chain(trace: Trace, row: int) -> list[str]:
    """Names of an event and all around it, innermost first."""
    names, parents = (
        trace.events["name"].astype(str).tolist(),
        trace.tables["events"].array("parent_id").tolist(),
    )
    around = []
    while row >= 0:
        around.append(names[row])
        row = parents[row]
    return around


def test_a_replay_gets_the_ops_of_its_capture() -> None:
    trace = attributed(draw(REPLAY), [draw(CAPTURE)])
    assert ops(trace) == ["aten::mm", "aten::mm", "aten::relu", "aten::copy_"]
    assert shapes(trace) == ["[[4,8],[8,2]]", "[[4,8],[8,2]]", "[[4,2]]", "[[4,2],[4,2]]"]


def test_the_launch_stays_the_graph_launch_and_the_capture_stands_under_it() -> None:
    trace = attributed(draw(REPLAY), [draw(CAPTURE)])
    assert set(kernel_names(trace, "launch_id")) == {"hipGraphLaunch"}
    work = gpu_work(trace)
    assert chain(trace, int(work.host_call[0])) == [
        "hipLaunchKernel", "aten::mm", "nn.Module: Mlp_0", "hipGraphLaunch", "decode bs=4"
    ]  # fmt: skip
    assert (work.op == trace.tables["links"].array("op_id")).all()


def test_grids_that_only_the_capture_records() -> None:
    """ROCm records the grid of a captured call, and not that of the kernel that is replayed."""
    gridded = aligned(CAPTURE.replace("kernel=gemm", "kernel=gemm grid=[32,4,1]"))
    work = gpu_work(attributed(draw(REPLAY), [draw(gridded)]))
    assert work.blocks.tolist() == [128, -1, -1, -1]


def test_copies_are_told_from_what_ran() -> None:
    recorded = draw(REPLAY)
    trace = attributed(recorded, [draw(CAPTURE)])
    events = trace.arrays
    assert events.copied.sum() == len(trace.events) - len(recorded.events)
    assert not events.copied[: len(recorded.events)].any()
    assert set(trace.events["source"].astype(str)) == {"trace", "capture"}
    assert not (events.where("launch") & events.copied).any()


def test_copies_take_no_time_of_the_host_and_keep_their_order() -> None:
    trace = attributed(draw(REPLAY), [draw(CAPTURE)])
    events = trace.arrays
    copied = np.flatnonzero(events.copied)
    (call,) = (replay.call for replay in replays(trace))
    assert (events.start[copied] >= events.start[call]).all()
    assert (events.end[copied] <= events.start[call] + len(copied)).all()
    inside = copied[events.copied[events.parent[copied]]]
    assert (events.start[inside] > events.start[events.parent[inside]]).all()
    assert (events.end[inside] <= events.end[events.parent[inside]]).all()


def test_capture_and_replay_in_one_trace() -> None:
    lines = [*CAPTURE.strip("\n").splitlines(), *REPLAY.strip("\n").splitlines()]
    shifted = [
        line.replace("| ", "| " + " " * 30, 1) if number >= CAPTURE.strip("\n").count("\n") + 1 else line
        for number, line in enumerate(lines)
    ]
    trace = attributed(draw("\n".join(shifted)))
    assert ops(trace) == ["aten::mm", "aten::mm", "aten::relu", "aten::copy_"]


def test_what_ran_during_a_capture_is_no_part_of_it() -> None:
    (graph,) = captures(
        draw(CAPTURE + "    launch hipLaunchKernel kernel=side          |               h\n"
             "    s9 side                                     |                hh\n")
    )  # fmt: skip
    assert graph.nodes.name == ["gemm", "split", "relu", ""]


def test_calls_without_names() -> None:
    """CUDA's captures: order and kinds say which is which; a replay of more nodes is left alone."""
    unnamed = CAPTURE.replace("kernel=gemm", "").replace("kernel=split.kd", "").replace("kernel=relu", "")
    trace = attributed(draw(REPLAY), [draw(aligned(unnamed))])
    assert ops(trace) == ["aten::mm", "aten::mm", "aten::relu", "aten::copy_"]
    longer = REPLAY + "    s7 extra                                    |                      aa\n"
    assert ops(attributed(draw(longer), [draw(aligned(unnamed))])) == [""] * 5


TWIN = """
    step 1                                      | ---------------------
    scope layer                                 |  -------------------
    op aten::mm shapes=[[4,8],[8,2]]            |  ------
    launch                                      |   a  b
    op aten::relu shapes=[[4,2]]                |         ---
    launch                                      |          c
    op aten::copy_ shapes=[[4,2],[4,2]]         |               ----
    launch cudaMemcpyAsync                      |                d
    s7 gemm                                     |     aa
    s7 split                                    |       bb
    s7 relu                                     |           cc
    s7 copy                                     |                 dd
"""


def test_an_eager_twin() -> None:
    trace = attributed(draw(REPLAY), [], [draw(TWIN)])
    assert ops(trace) == ["aten::mm", "aten::mm", "aten::relu", "aten::copy_"]
    assert "twin" in set(trace.events["source"].astype(str))


def test_a_twin_of_a_replay_on_several_streams() -> None:
    """The program launches a branch (p, q) before the main line goes on (m, n); both run at once."""
    trace = attributed(draw(aligned(FORKED)), [], [draw(calls(captured=False))])
    assert set(trace.events["source"].astype(str)) == {"trace", "twin"}
    check_forked(trace)


def test_a_capture_without_names_takes_those_of_a_twin() -> None:
    forked, captured = draw(aligned(FORKED)), draw(calls(captured=True))
    assert set(ops(attributed(forked, [captured]))) == {""}
    trace = attributed(forked, [captured], [draw(calls(captured=False))])
    assert set(trace.events["source"].astype(str)) == {"trace", "capture"}
    check_forked(trace)


def check_forked(trace: Trace) -> None:
    work = gpu_work(trace)
    kernels = [work.names[code] for code in work.name.tolist()]
    assert [chain(trace, op)[0] for op in work.op.tolist()] == [f"aten::{name}" for name in kernels]


def calls(*, captured: bool) -> str:
    """The program that FORKED replays, captured or run."""
    rows = []
    for number, name in enumerate(("norm", "qkv", "attn", "p", "q", "m", "n", "add", "out", "head")):
        pad, mark = " " * 4 * number, chr(97 + number)
        rows += [f"op aten::{name} | {pad} ---", f"launch | {pad}  {mark}"]
        if not captured:
            rows.append(f"s7 {name} grid=[{number + 2},1,1] | {pad}   {mark * 2}")
    if captured:
        rows = ["launch cudaStreamBeginCapture | x", *rows, f"launch cudaStreamEndCapture | {' ' * 44}y"]
    return aligned("\n".join(rows))


FORKED = """
    launch cudaGraphLaunch | z
    s7 norm grid=[2,1,1]   |  z
    s7 qkv grid=[3,1,1]    |    z
    s7 attn grid=[4,1,1]   |      z
    s7 m grid=[7,1,1]      |        zzz
    s8 p grid=[5,1,1]      |         zzz
    s7 n grid=[8,1,1]      |            zz
    s8 q grid=[6,1,1]      |             zz
    s7 add grid=[9,1,1]    |                zz
    s7 out grid=[10,1,1]   |                   z
    s7 head grid=[11,1,1]  |                     z
    """


def test_captures_of_several_sizes_are_told_apart_by_the_grid() -> None:
    """Without names three sizes look alike; the rows of norm kernels are their grid."""

    def capture(batch: int, when: int) -> str:
        pad = " " * when
        calls = "".join(
            f"""
    op aten::norm shapes=[[{batch},8],[8]]      | {pad} {" " * 3 * number}---
    launch cudaLaunchKernel                     | {pad} {" " * 3 * number} {"pqrs"[number]}"""
            for number in range(4)
        )
        return f"""
    launch cudaStreamBeginCapture               | {pad}x{calls}
    launch cudaStreamEndCapture                 | {pad}{" " * 15}y"""

    def replay(batch: int) -> str:
        return "\n    launch cudaGraphLaunch | a" + "".join(
            f"\n    s7 norm grid=[{batch},1,1] | {' ' * 2 * number}  a" for number in range(4)
        )

    captured = draw(aligned("".join(capture(batch, 20 * k) for k, batch in enumerate((32, 16, 64)))))
    for batch in (16, 32, 64):
        trace = attributed(draw(aligned(replay(batch))), [captured])
        assert shapes(trace) == [f"[[{batch},8],[8]]"] * 4
    trace = attributed(draw(aligned(replay(7))), [captured])
    assert ops(trace) == ["aten::norm"] * 4
    assert shapes(trace) == [""] * 4


def test_a_capture_of_another_size_gives_ops_and_no_shapes() -> None:
    captured = draw(
        aligned("""
    launch cudaStreamBeginCapture               | x
    op aten::norm shapes=[[32,8],[8]]           |  --- --- --- ---
    launch cudaLaunchKernel                     |   p   q   r   s
    launch cudaStreamEndCapture                 |                  y
    """)
    )
    for batch, known in ((32, "[[32,8],[8]]"), (16, "")):
        replayed = draw(
            aligned(f"""
    launch cudaGraphLaunch                      | a
    s7 norm grid=[{batch},1,1]                  |   a a a a
    """)
        )
        trace = attributed(replayed, [captured])
        assert ops(trace) == ["aten::norm"] * 4
        assert shapes(trace) == [known] * 4


def test_a_twin_of_another_size_gives_ops_and_no_shapes() -> None:
    twin = draw(TWIN.replace("s7 gemm                     ", "s7 gemm grid=[4,1,1]        "))
    replay = REPLAY.replace("s7 gemm                    ", "s7 gemm grid=[{},1,1]      ")
    for blocks, known in ((4, "[[4,8],[8,2]]"), (2, "")):
        trace = attributed(draw(aligned(replay.format(blocks))), [], [twin])
        assert ops(trace)[0] == "aten::mm"
        assert shapes(trace)[0] == known


PIECES = ("first", "layer", "layer", "layer", "last")


def pieces(named: Sequence[str], *, captured: bool) -> str:
    rows = []
    for number, name in enumerate(named):
        pad = " " * 12 * number
        if captured:
            rows += [
                f"launch hipStreamBeginCapture | {pad}x",
                f"python nn.Module: Block_{number} | {pad} ---------",
                f"op aten::{name} | {pad}  --------",
                *(
                    f"launch hipLaunchKernel kernel={name}{k} | {pad}   {' ' * 2 * k}{'bcd'[k]}"
                    for k in range(3)
                ),
                f"launch hipStreamEndCapture | {pad}          z",
            ]
        else:
            mark = "klmno"[number]
            rows.append(f"launch hipGraphLaunch | {pad}{mark}")
            rows += [f"s7 {name}{k} | {pad}  {' ' * 2 * k}{mark}" for k in range(3)]
    return aligned("\n".join(rows))


def modules(trace: Trace) -> list[str]:
    work = gpu_work(trace)
    found = []
    for row in work.host_call.tolist():
        named = [name for name in chain(trace, row) if name.startswith("nn.Module")]
        found.append(named[0].rpartition(" ")[2] if named else "")
    return found


def test_pieces_that_look_alike_are_told_apart_by_their_order() -> None:
    trace = attributed(draw(pieces(PIECES, captured=False)), [draw(pieces(PIECES, captured=True))])
    assert modules(trace) == [f"Block_{number}" for number in range(5) for _ in range(3)]


def test_without_a_border_their_layer_is_not_known_but_the_op_is() -> None:
    replayed = draw(pieces(PIECES[1:4], captured=False))
    trace = attributed(replayed, [draw(pieces(PIECES[1:4], captured=True))])
    assert ops(trace) == ["aten::layer"] * 9
    assert modules(trace) == [""] * 9


def test_backward_replays_find_their_forward_ops() -> None:
    captured = draw("""
    launch cudaStreamBeginCapture             | x
    op aten::mm seq=3 shapes=[[2,2],[2,2]]    |  ----
    launch hipLaunchKernel kernel=mm          |   a
    op aten::sin seq=4                        |       ----
    launch hipLaunchKernel kernel=sin         |        b
    op aten::cos seq=5                        |            ----
    launch hipLaunchKernel kernel=cos         |             c
    launch cudaStreamEndCapture               |                 y
    launch cudaStreamBeginCapture             |                    x
    op CosBackward0 seq=5 fwd=1 tid=2         |                     ----
    launch hipLaunchKernel kernel=dcos tid=2  |                      e
    op SinBackward0 seq=4 fwd=1 tid=2         |                          ----
    launch hipLaunchKernel kernel=dsin tid=2  |                           f
    op MmBackward0 seq=3 fwd=1 tid=2          |                               ----
    launch hipLaunchKernel kernel=dmm tid=2   |                                g
    launch cudaStreamEndCapture               |                                    y
    """)
    trace = attributed(
        draw("""
    launch cudaGraphLaunch | a                b
    s7 mm                  |  a
    s7 sin                 |    a
    s7 cos                 |      a
    s7 dcos                |                   b
    s7 dsin                |                     b
    s7 dmm                 |                       b
    """),
        [captured],
    )
    assert kernel_names(trace, "forward_op_id") == ["", "", "", "aten::cos", "aten::sin", "aten::mm"]


def test_a_trace_without_graphs_is_left_alone() -> None:
    trace = draw(TWIN)
    assert attributed(trace, [draw(CAPTURE)]) is trace


@pytest.mark.parametrize("text", ["", "    launch hipStreamBeginCapture | x\n"])
def test_no_capture(text: str) -> None:
    other = [draw(text)] if text else []
    assert ops(attributed(draw(REPLAY), other)) == [""] * 4
