"""From GPU work to its launch call, its op, and the forward op behind it."""

from __future__ import annotations

from tests.builders import draw, events, kernel_names, read
from tracelens.trace import Trace


def linked(trace: Trace) -> list[bool]:
    """Whether each piece of GPU work is linked, in order of the links table."""
    return trace.events["linked"].to_numpy()[trace.links["kernel_id"].to_numpy()].tolist()


def forward_of(trace: Trace) -> dict[str, list[int]]:
    """Kernel name to the start, in columns, of the forward op of each of its launches (-1: none)."""
    table, links = trace.events, trace.tables["links"]
    found: dict[str, list[int]] = {}
    for kernel, forward in zip(links.array("kernel_id"), links.array("forward_op_id"), strict=True):
        start = int(table["ts_ns"][forward]) // 1000 if forward >= 0 else -1
        found.setdefault(str(table["name"][kernel]), []).append(start)
    return found


def test_by_correlation() -> None:
    trace = draw("""
        op aten::add | -----
        op aten::mul |      -----
        launch one   |   a
        launch two   |       b
        s7 add       |     aa
        s7 mul       |         bb
        s7 stray     |            ==
    """)
    assert kernel_names(trace) == ["add", "mul", "stray"]
    assert kernel_names(trace, "launch_id") == ["one", "two", ""]
    assert kernel_names(trace, "op_id") == ["aten::add", "aten::mul", ""]
    assert linked(trace) == [True, True, False]


def test_the_innermost_op_and_not_execute() -> None:
    trace = draw("""
        op aten::linear | ---------
        op aten::addmm  |  -------
        op execute      |   -----
        launch          |     a
        s7 gemm         |           aa
    """)
    assert kernel_names(trace, "op_id") == ["aten::addmm"]


def test_a_launch_outside_of_any_op() -> None:
    trace = draw("""
        op aten::mm | ---
        python f    | -------
        launch      |     a
        s7 triton   |           aa
    """)
    assert kernel_names(trace, "op_id") == [""]
    assert linked(trace) == [True]


def test_the_runtime_call_around_a_driver_call_of_the_same_id() -> None:
    trace = draw("""
        launch runtime | aaaaa
        driver driver  |   a
        s7 k           |        aa
    """)
    assert kernel_names(trace, "launch_id") == ["runtime"]


def test_an_id_used_again_means_the_last_call_before_the_work() -> None:
    trace = draw("""
        launch first  | a
        launch second |      a
        launch third  |           a
        s7 k          |   aa
        s7 k          |        aa
        s7 k          |             aa
    """)
    assert kernel_names(trace, "launch_id") == ["first", "second", "third"]


def test_work_that_seems_to_start_before_its_launch() -> None:
    # GPU and CPU clocks differ by a little on some machines.
    trace = draw("""
        launch call |    a
        s7 k        | aa
    """)
    assert kernel_names(trace, "launch_id") == ["call"]


def test_one_graph_launch_starts_many_kernels() -> None:
    trace = draw(
        """
        launch cudaGraphLaunch  | a
        launch cudaLaunchKernel |  b
        s7 k                    |     aa aa aa
        s8 k                    |      a
        s7 late                 |              bb
    """,
    )
    assert kernel_names(trace, "launch_id") == ["cudaGraphLaunch"] * 4 + ["cudaLaunchKernel"]


def test_only_a_graph_launch_counts_as_linked_without_its_own_arrow() -> None:
    drawn = events("""
        launch cudaGraphLaunch  | a
        launch cudaLaunchKernel |   b c
        s7 k                    |     aa
        s7 k                    |       bb
        s7 k                    |         cc
    """)
    only_c = [event for event in drawn if event["cat"] != "ac2g" or event["id"] == ord("c")]
    assert linked(read(only_c)) == [True, False, True]


def test_without_any_arrow_the_correlation_decides() -> None:
    trace = draw(
        """
        launch | a
        s7 k   |   aa
        s7 k   |      bb
    """,
        flows=False,
    )
    assert linked(trace) == [True, False]


def test_arrows_stand_in_for_missing_correlation_ids() -> None:
    trace = draw(
        """
        op aten::a | ---
        op aten::b |     ---
        launch one |  a
        launch two |      b
        s7 kb      |               bb
        s7 ka      |         aa
        s8 stray   |         ==
    """,
        correlations=False,
    )
    assert trace.tables["events"].array("correlation_id").tolist()[-3:] == [-1, -1, -1]
    assert dict(zip(kernel_names(trace), kernel_names(trace, "launch_id"), strict=True)) == {
        "ka": "one",
        "kb": "two",
        "stray": "",
    }
    assert kernel_names(trace, "op_id") == ["aten::b", "aten::a", ""]
    assert linked(trace) == [True, True, False]


def test_correlation_zero_joins_nothing() -> None:
    # ROCm writes 0 on all RCCL kernels; they do not belong to whatever call has 0 as well.
    drawn = events("""
        launch | a
        s7 k   |   aa
    """, flows=False)  # fmt: skip
    for event in drawn:
        event["args"]["correlation"] = 0
    assert linked(read(drawn)) == [False]


def test_external_id_where_the_launch_call_is_missing() -> None:
    trace = draw("""
        op aten::mm ext=5  | ---
        op aten::add ext=6 |     ---
        s7 add ext=6       |        ==
        s7 lost ext=9      |            ==
    """)
    assert kernel_names(trace, "op_id") == ["aten::add", ""]
    assert kernel_names(trace, "launch_id") == ["", ""]
    assert linked(trace) == [False, False]


def test_the_launch_call_counts_more_than_the_external_id() -> None:
    trace = draw("""
        op aten::mm ext=5  | ---
        op aten::add ext=6 |     ---
        launch             |  a
        s7 k ext=6         |        aa
    """)
    assert kernel_names(trace, "op_id") == ["aten::mm"]


def test_forward_op_of_a_backward_op() -> None:
    trace = draw("""
        op aten::mm seq=3                | ---
        launch                           |  a
        op MmBackward0 seq=3 fwd=1 tid=2 |      -----
        op aten::mm tid=2                |       ---
        launch tid=2                     |        b
        s7 forward                       |    aa
        s7 backward                      |           bb
    """)
    # The kernel's own op is the aten::mm inside of MmBackward0; the node around it knows the forward op.
    assert kernel_names(trace, "op_id") == ["aten::mm", "aten::mm"]
    assert forward_of(trace) == {"forward": [-1], "backward": [0]}


def test_of_nested_ops_that_share_a_number_the_last_to_start_made_the_node() -> None:
    trace = draw("""
        op aten::linear seq=3              | --------
        op aten::t seq=3                   |  --
        op aten::addmm seq=3               |     ---
        op AddmmBackward seq=3 fwd=1 tid=2 |           ----
        launch tid=2                       |            a
        s7 k                               |                aa
    """)
    assert forward_of(trace) == {"k": [4]}


def test_no_forward_op_that_starts_after_the_backward_op() -> None:
    trace = draw("""
        op NodeBackward seq=3 fwd=1 tid=2 | ----
        launch tid=2                      |  a
        op aten::mm seq=3                 |       ---
        s7 k                              |    aa
    """)
    assert forward_of(trace) == {"k": [-1]}


def test_two_forward_threads_count_on_their_own() -> None:
    # Thread 1 made the nodes 5, 6, 7 and thread 2 the nodes 6 and 9. The profiler calls them 4 and 8.
    trace = draw("""
        op aten::a tid=1 seq=5     | --
        op aten::b tid=1 seq=6     |   --
        op aten::c tid=1 seq=7     |     --
        op aten::d tid=2 seq=6     |   --
        op aten::e tid=2 seq=9     |      --
        op ABack tid=3 seq=5 fwd=4 |          --
        op BBack tid=3 seq=6 fwd=4 |            --
        op CBack tid=3 seq=7 fwd=4 |              --
        op DBack tid=3 seq=6 fwd=8 |                --
        op EBack tid=3 seq=9 fwd=8 |                  --
        launch tid=3               |          a b c d e
        s7 k                       |            a b c d e
    """)
    # Starts of a, b, c on thread 1, then of d, e on thread 2; b and d start together.
    assert forward_of(trace) == {"k": [0, 2, 4, 2, 5]}
    ops = trace.events["name"].astype(str).tolist()
    assert [ops[row] for row in trace.tables["links"].array("forward_op_id")] == [
        f"aten::{letter}" for letter in "abcde"
    ]


def test_forward_threads_with_the_same_numbers_are_told_apart() -> None:
    # Data-parallel threads run the same model: every sequence number is on both of them.
    trace = draw("""
        op aten::a tid=1 seq=1     | --
        op aten::b tid=2 seq=1     |  --
        op ABack tid=3 seq=1 fwd=4 |      --
        op BBack tid=4 seq=1 fwd=8 |      --
        launch tid=3               |      a
        launch tid=4               |      b
        s7 k                       |        a
        s8 k                       |        b
    """)
    ops = trace.events["name"].astype(str).tolist()
    assert sorted(ops[row] for row in trace.tables["links"].array("forward_op_id")) == ["aten::a", "aten::b"]


def test_frames_have_na_where_the_arrays_have_minus_one() -> None:
    trace = draw("""
        op aten::mm                | -----
        launch one                 |   a
        s7 mm                      |     aa
        s7 unlaunched              |        ==
        s9 ncclDevKernel_AllReduce | --
    """)
    for name in ("events", "ops", "links", "collectives"):
        table, frame = trace.tables[name], getattr(trace, name)
        for column in table.schema.columns:
            if column.absent is not None:
                assert frame[column.name].dtype == "Int64"
                assert frame[column.name].isna().tolist() == (table.array(column.name) == -1).tolist()
        numbers = frame.select_dtypes("number")
        assert not (numbers == -1).fillna(False).any(axis=None)
    assert trace.links["op_id"].isna().sum() == 2
