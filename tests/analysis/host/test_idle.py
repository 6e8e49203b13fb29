"""Why the GPU waits: one drawing a cause. A column is 100 us: five of them without a call are silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import aligned, draw, draw_run, events, read, records
from tracelens import analyze, load
from tracelens.analysis.host import blocking_calls, find_gaps, idle_pieces, known_pieces
from tracelens.table import Result
from tracelens.trace import make_run
from tracelens.trace.graphs import attributed

pytestmark = pytest.mark.usefixtures("each_core")

SAMPLES = Path(__file__).parents[3] / "sample_traces"
COLUMN = 100_000
LAUNCH = ("launch overhead", "cudaLaunchKernel")
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def idle(text: str, ns_per_char: int = COLUMN, **options: Any) -> Result:
    return analyze(make_run([draw(aligned(text), ns_per_char=ns_per_char)]), "idle", **options)


def gaps(text: str, **options: Any) -> list[tuple[int, int, str, str, str]]:
    """(start, length, cause, host, op) of the gaps in order of time; start since the first GPU work."""
    gap = records(idle(text, **options)["gaps"], "ts_ns", "dur_ns", "cause", "host", "op")
    return sorted((ts // COLUMN, dur // COLUMN, *rest) for ts, dur, *rest in gap)


def pieces(text: str, **options: Any) -> list[tuple[int, str, str]]:
    """(columns, cause, host) of the pieces of the gaps in order of time, equal neighbours as one."""
    rows = sorted(records(idle(text, **options)["pieces"], "local_ts_ns", "dur_ns", "cause", "host"))
    joined: list[tuple[int, str, str]] = []
    for _, ns, cause, host in rows:
        columns = ns // COLUMN
        if joined and joined[-1][1:] == (cause, host):
            columns += joined.pop()[0]
        joined.append((columns, cause, host))
    return joined


def test_a_gap_is_divided_by_time() -> None:
    # The gap is 5-20. The host waits until 6 and is in aten::stack until 9, silent until 17, launches at 18.
    assert pieces("""
                                     | 0    5    10   15   20
        launch cudaStreamSynchronize |   ----
        op aten::stack               |       ---
        op aten::add                 |                  --
        launch                       | a                 b
        s7 k                         |   aaa                bb
    """) == [
        (1, "blocking call", "cudaStreamSynchronize"),
        (3, "queue refill", "cudaStreamSynchronize"),
        (8, "silent host", ""),
        (2, "queue refill", "cudaStreamSynchronize"),
        (2, "dispatch", ""),
    ]


def test_a_gap_has_the_cause_of_most_of_its_time() -> None:
    # Two columns of 15 lie in the call that waits.
    text = """
        launch cudaStreamSynchronize |  ------
        op aten::add                 |                   --
        launch                       | a                  b
        s7 k                         |   aaa               bb
    """
    assert gaps(text) == [(3, 15, "silent host", "", "cudaStreamSynchronize -> aten::add")]
    assert idle(text)["gaps"]["fraction_of_gap"].tolist() == [pytest.approx(11 / 15)]


def test_a_host_between_ops_is_named_by_its_frame_or_by_what_is_around() -> None:
    text = """
        step 1            | ---------------------
        {frame}           |     --------
        op aten::stack    |   --
        op aten::add      |             --
        launch            | a             b
        s7 k              |   aa           bb
    """
    frame = "data.py(7): decode"
    assert gaps(text.format(frame=f"python {frame}"))[1][2:4] == ("Python code", frame)
    # Of annotations alone is not known what the thread does.
    around = "aten::stack -> aten::add"
    assert gaps(text.format(frame="scope epoch"))[1][2:] == ("silent host", "epoch", around)


@pytest.mark.parametrize(("columns", "cause"), [(4, "launch overhead"), (5, "silent host")])
def test_silence_is_long(columns: int, cause: str) -> None:
    assert pieces(f"""
        op aten::mm  | ---{" " * columns}--
        launch       | a  {" " * columns} b
        s7 k         |  a{" " * columns}    bb
    """)[1] == (columns, cause, "")


def test_a_thread_that_waits_for_another_one_is_not_silent() -> None:
    # From 3 to 9 the backward is in aten::mm on a thread of its own, which launches c afterwards.
    text = """
        op aten::mm tid=2  |    ------
        {other} tid=2      |                    c
        op aten::add       |          --
        launch             | a         b
        s7 k               |  aa        b        {c}
    """
    assert (6, "launch overhead", "aten::mm") in pieces(text.format(other="launch", c="    cc"))
    # A thread that launches nothing is not the program's way to the next launch.
    assert (6, "silent host", "") in pieces(text.format(other="python f", c=""))


def test_over_a_millisecond_in_ops() -> None:
    # The gap is 4-17: eleven columns of aten::sort, two of aten::add, one of the launch call.
    assert pieces("""
        op aten::sort | ---------------
        op aten::add  |                --
        launch        | a               b
        s7 k          |  aaa             bb
    """) == [(11, "CPU ops", "aten::sort"), (2, "CPU ops", "aten::add")]


def test_the_call_of_a_collective() -> None:
    text = """
        op c10d::barrier      | ---------------
        op record_param_comms |   ------------
        op aten::add          |                --
        launch                | a               b
        s7 k                  |  aaa             bb
    """
    assert pieces(text)[0] == (11, "collective call", "c10d::barrier")
    # The outermost op is named, and the innermost one beside it.
    assert records(idle(text)["hosts"], "host", "op", "dur_ns")[0] == (
        "c10d::barrier",
        "record_param_comms",
        10 * COLUMN,
    )


def test_data_loading_whatever_is_inside() -> None:
    assert pieces(f"""
        scope {LOADER} |    ------------
        op aten::stack |       -----
        op aten::add   |                --
        launch         | a               b
        s7 k           |  aaa             bb
    """)[0] == (11, "data loading", LOADER)


def test_a_child_that_overruns_its_parent_does_not_stretch_it() -> None:
    # The call ends 0.9 us after the op around it; what follows belongs to the frame, and not to the op.
    table = idle("""
        python f    | -------------------------------------------
        op aten::mm | ---------------
        launch      |     aaaaaaaaaaaa                        b
        s7 k        |      aaaaaaaaaa                           b
    """, ns_per_char=900)["gaps"]  # fmt: skip
    assert records(table, "host", "op") == [("f", "")]


def test_an_op_without_extent_does_not_own_what_follows() -> None:
    assert pieces("""
        python f    | -----------
        op aten::_  |    !
        launch      | a          b
        s7 k        |  aa         bb
    """)[0] == (8, "Python code", "f")


def test_a_call_that_blocks_before_the_gap_is_not_its_cause() -> None:
    assert pieces("""
        launch cudaDeviceSynchronize |  --
        op aten::add                 |      -----
        launch                       | a          b
        s7 k                         |   aa        bb
    """) == [
        (1, "launch overhead", ""),
        (5, "launch overhead", "aten::add"),
        (1, "launch overhead", ""),
        (1, *LAUNCH),
    ]


def test_a_call_of_a_thread_that_launches_nothing_is_not_the_cause() -> None:
    assert "blocking call" not in {cause for _, cause, _ in pieces("""
        launch cudaDeviceSynchronize tid=2 |   ------
        op aten::add                       |      -----
        launch                             | a          b
        s7 k                               |   aa        bb
    """)}  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [
        "hipDeviceSynchronize",
        "cudaMalloc",
        "hipFree",
        "hipMemcpyWithStream",
        "cuMemcpyDtoH_v2",
        "cuMemFree_v2",
    ],
)
def test_calls_that_block(call: str) -> None:
    assert pieces(f"""
        op aten::mm   |  ----
        launch {call} |    --
        op aten::add  |      --
        launch        | a      b
        s7 k          |  aaa    bb
    """)[0] == (1, "blocking call", call)


def test_waiting_for_a_gpu_that_has_nothing_to_do_is_unrecorded_work() -> None:
    # From 4 to 8 nothing recorded runs, and yet the call does not return.
    assert pieces("""
        op aten::mm                |  --------
        launch cudaStreamSynchronize |    -----
        op aten::add                 |         --
        launch                       | a         b
        s7 k                         |  aaa       bb
    """)[0] == (4, "unrecorded work", "cudaStreamSynchronize")


def test_launched_work_that_does_not_start_is_unrecorded_work() -> None:
    assert pieces("""
        launch | ab
        s7 k   |   aaaa  bb
    """) == [(2, "dispatch", "")]
    assert pieces("""
        launch | ab
        s7 k   |   aaaa   bb
    """) == [(3, "unrecorded work", "")]


@pytest.mark.parametrize(
    "call", ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaEventRecord", "cudaMallocAsync"]
)
def test_calls_that_do_not_block(call: str) -> None:
    assert pieces(f"""
        launch {call} |    -----
        op aten::add  |         --
        launch        | a         b
        s7 k          |  aaa       bb
    """)[0] == (4, "launch overhead", call)


def test_a_copy_whose_call_returns_after_it_is_done_was_waited_for() -> None:
    # A pageable copy: the asynchronous call is as good as blocking.
    assert pieces("""
        op aten::to            |  -----
        launch cudaMemcpyAsync |   aaaa
        op aten::add           |       ---
        launch                 |         b
        s7 copy                |    aa
        s7 k                   |          bb
    """)[0] == (1, "blocking call", "cudaMemcpyAsync")


def test_a_fill_whose_call_returns_late_was_not_waited_for() -> None:
    assert pieces("""
        op aten::zero_         |  -----
        launch cudaMemsetAsync |   aaaa
        op aten::add           |       ---
        launch                 |         b
        s7 fill                |    aa
        s7 k                   |          bb
    """)[0] == (1, "launch overhead", "cudaMemsetAsync")


def test_garbage_collection_has_its_own_time_only() -> None:
    assert pieces("""
        python Python GC |     --
        op aten::add     |       ---
        launch           | a       b
        s7 k             |  aaa     bb
    """) == [(2, "garbage collection", "Python GC"), (2, "launch overhead", "aten::add"), (1, *LAUNCH)]


@pytest.mark.parametrize(("step", "blocking"), [("-----------", 0), ("---------------", 1)])
def test_the_waiting_with_which_the_profiler_ends_is_its_own(step: str, blocking: int) -> None:
    # Behind the last step it is the profiler's, within a step the program's.
    trace = draw(
        aligned(f"""
        step 1                       | {step}
        op aten::add                 | --
        launch                       | a
        launch cudaDeviceSynchronize |            ---
        s7 k                         |   aaaaaaaaaaaa
    """)
    )
    assert blocking_calls(trace, trace.work).sum() == blocking


@pytest.mark.parametrize(
    ("ops", "cause"),
    [("---------", "profiler"), ("---  -----", "launch overhead"), ("          ", "profiler")],
)
def test_a_buffer_request_holds_up_who_gets_nothing_done(ops: str, cause: str) -> None:
    drawing = aligned(f"""
        op aten::mm | {ops}
        op aten::x  |           --
        launch      | a          b
        s7 k        |  a          bb
    """)
    request = {"ph": "X", "cat": "overhead", "name": "Activity Buffer Request", "pid": -1, "tid": 0}
    drawn = [*events(drawing, ns_per_char=COLUMN), request | {"ts": 300, "dur": 500}]
    rows = records(analyze(make_run([read(drawn)]), "idle")["causes"], "cause", "dur_ns")
    assert dict(rows).get(cause, 0) >= 5 * COLUMN


def overhead(name: str, ts: int, dur: int) -> dict[str, Any]:
    """An event of the driver's, as Kineto writes them: on no thread."""
    return {"ph": "X", "cat": "overhead", "name": name, "pid": -1, "tid": 0, "ts": ts, "dur": dur}


@pytest.mark.parametrize(
    ("usual", "loading"),
    [
        (1, 11),  # the op takes 12 columns where it takes one elsewhere: all but the launch
        (8, 1),  # not longer than twice as usual: what the driver recorded
    ],
)
def test_an_op_in_which_kernels_are_loaded(usual: int, loading: int) -> None:
    drawing = aligned(f"""
        op aten::mm | {"-" * usual:9}------------
        launch      | a                   b
        s7 k        | {" " * usual}a                   bb
    """)
    drawn = [*events(drawing, ns_per_char=COLUMN), overhead("Lazy Function Loading", 1900, 100)]
    rows = records(analyze(make_run([read(drawn)]), "idle")["causes"], "cause", "dur_ns")
    assert dict(rows).get("kernel loading", 0) == loading * COLUMN


@pytest.mark.parametrize(
    "name",
    ["python triton/compiler/compiler.py(226): compile", "launch cuModuleLoadData", "launch hipModuleLoad"],
)
def test_compilers_and_calls_that_load_code(name: str) -> None:
    assert pieces(f"""
        {name}      |   ------
        op aten::add |         --
        launch       | a         b
        s7 k         |  aa        bb
    """)[0][:2] == (5, "kernel loading")


def test_a_full_queue_is_a_wait_after_which_nothing_is_refilled() -> None:
    drawing = aligned("""
        op aten::mm | -------------
        launch      | a          b
        s7 k        |  a           bb
    """)
    drawn = [*events(drawing, ns_per_char=COLUMN), overhead("Command Buffer Full", 300, 500)]
    rows = records(analyze(make_run([read(drawn)]), "idle")["causes"], "cause", "dur_ns")
    assert dict(rows)["blocking call"] == 5 * COLUMN
    assert "queue refill" not in dict(rows)


MM = 'aten::mm shapes=[[8,8],[8,8]] types=["float","float"]'


def stalled(text: str, *more: dict[str, Any]) -> int:
    """Columns of a stalled host."""
    drawn = [*events(aligned(text), ns_per_char=COLUMN), *more]
    rows = records(analyze(make_run([read(drawn)]), "idle")["causes"], "cause", "dur_ns")
    return dict(rows).get("stalled host", 0) // COLUMN


def test_an_op_that_stalls() -> None:
    # In the gap 6-18 the op stands still from 6 to 17 and launches c then; its like take a column.
    text = f"""
        op {MM} | -  -  ------------
        launch  | a  b             c
        s7 k    |  a  bb            cc
    """
    assert pieces(text)[-2:] == [(11, "stalled host", "aten::mm"), (1, *LAUNCH)]
    assert gaps(text)[-1] == (5, 12, "stalled host", "aten::mm", "aten::mm")
    # Of a GPU that has work until 13, what is left.
    assert stalled(text.replace("a  bb      ", "a  bbbbbbbb")) == 5


@pytest.mark.parametrize(
    "text",
    [
        # Its like take two columns: 11 are not ten times as long.
        f"""
        op {MM} | -- -- ------------
        launch  | a  b             c
        s7 k    |  a  bb            cc
        """,
        # One call more tells nothing of what is usual.
        f"""
        op {MM} |    -  ------------
        launch  | a  b             c
        s7 k    |  a  bb            cc
        """,
        # Kernels may be loaded in a first call that launches.
        f"""
        op {MM} |       ------------   -  -
        launch  | a  b             c   d  e
        s7 k    |  a  bb            cc  d  e
        """,
        # What is recorded inside says what the host does: seven columns are left.
        f"""
        op {MM}   | -  -  ------------
        python f  |        ----
        launch    | a  b             c
        s7 k      |  a  bb            cc
        """,
        # The same of what begins inside.
        f"""
        op {MM}   | -  -  ------------
        scope f   |        -------------
        launch    | a  b             c
        s7 k      |  a  bb            cc
        """,
        # A collective's call waits for other ranks.
        f"""
        op c10d::allreduce_ |       ------------
        op {MM}             | -  -  ------------
        launch              | a  b             c
        s7 k                |  a  bb            cc
        """,
        # A host that copies waits for pages and worker threads.
        f"""
        op {MM.replace("mm", "copy_")} |   -  - -----------
        launch                         |  a  b             c
        s7 k                           |   a  bb            cc
        """,
        # Without arguments, what launches nothing may have had more to do.
        """
        op aten::stack |   -  - -----------
        launch         |  a  b             c
        s7 k           |   a  bb            cc
        """,
    ],
)
def test_what_explains_a_long_op(text: str) -> None:
    assert stalled(text) == 0


def test_an_op_that_launches_or_wraps_a_node_has_no_more_to_do_at_any_size() -> None:
    assert stalled("""
        op aten::mm | -  -  ------------
        launch      | a  b             c
        s7 k        |  a  bb            cc
    """) == 11  # fmt: skip
    assert stalled("""
        op autograd::engine::evaluate_function: AddBackward0 |   -  - -----------
        launch                                               |  a  b             c
        s7 k                                                 |   a  bb            cc
    """) == 11  # fmt: skip


def test_of_three_calls_two_may_stall() -> None:
    assert stalled(f"""
        op {MM} | -  ------------  ------------
        launch  | a             b             c
        s7 k    |  a             b             cc
    """) == 22  # fmt: skip
    # What most of five take is usual.
    assert stalled(f"""
        op {MM} | -  ------------  ------------  ------------  ------------
        launch  | a             b             c             d             e
        s7 k    |  a             b             c             d             ee
    """) == 0  # fmt: skip


@pytest.mark.parametrize("name", ["PythonSubclass", "PythonDispatchMode"])
def test_an_op_that_python_takes_over_does_not_stall(name: str) -> None:
    """DTensor keeps how it shards an op by the op's arguments, and works it out where they are others."""
    text = f"""
        op {MM.replace("aten::mm", name)} | -  -  ------------
        launch                           | a  b             c
        s7 k                             |  a  bb            cc
    """
    assert stalled(text) == 0
    assert stalled(text.replace(name, "PythonMethod")) == 11


def test_a_host_that_computes_itself_does_not_stall() -> None:
    assert stalled(f"""
        op {MM.replace("mm", "linear")} | - - ------------
        op aten::mm                     | - -            -
    """) == 0  # fmt: skip


def test_what_held_an_op_up_is_no_stall() -> None:
    text = f"""
        op {MM} | -  -  ------------
        launch  | a  b             c
        s7 k    |  a  bb            cc
    """
    assert stalled(text, overhead("Activity Buffer Request", 800, 300)) == 0
    assert stalled(text, overhead("Lazy Function Loading", 1600, 50)) == 0
    assert stalled(text, overhead("Lazy Function Loading", 500, 50)) == 11


def test_frames_of_the_profiler() -> None:
    assert pieces("""
        python torch/profiler/profiler.py(1): step |   ------
        op aten::add                               |         --
        launch                                     | a         b
        s7 k                                       |  aa        bb
    """)[0] == (5, "profiler", "torch/profiler/profiler.py(1): step")


def test_queued_in_time_behind_another_stream() -> None:
    # b was launched at 1, long before the gap 6-7: it waited for something on the other stream.
    assert gaps("""
        launch | ab
        s7 k   |   aaaa
        s8 k   |        b
    """) == [(4, 1, "other stream", "", "")]


def test_the_last_work_to_end_counts_and_not_the_last_to_start() -> None:
    # Before the gap 8-10 the kernel on stream 8 started last, but that on stream 7 ended last.
    assert gaps("""
        launch | abc
        s7 k   |   aaaaaa  cc
        s8 k   |     bb
    """) == [(6, 2, "dispatch", "", "")]


def test_equal_stream_numbers_of_two_gpus_are_two_streams() -> None:
    assert gaps("""
        launch        | ab
        s7 k          |   aaaa
        s7 k device=1 |         bb
    """)[0][2] == "other stream"  # fmt: skip


def test_work_without_a_launch_call() -> None:
    assert gaps("""
        launch | a
        s7 k   |   aa   ==
    """) == [(2, 3, "no launch", "", "")]


def test_the_begin_and_the_end_of_the_steps_have_causes_as_well() -> None:
    assert pieces(f"""
        step 1         | --------------------
        scope {LOADER} |  ------
        launch         |        a
        python log     |           --------
        s7 k           |         aa
    """) == [
        (1, "launch overhead", ""),
        (6, "data loading", LOADER),
        (1, *LAUNCH),
        (8, "Python code", "log"),
        (2, "silent host", ""),
    ]


def test_without_any_launch_the_end_of_the_steps_is_the_window() -> None:
    assert idle("""
        step 1 | ----------
        s7 k   |   ==
    """)["causes"]["cause"].tolist() == ["window", "no launch"]


def test_short_gaps_are_summed_and_not_explained() -> None:
    result = idle(
        """
        launch |    abcd
        s7 k   | ==   aa bb ccc  dd
    """,
        ns_per_char=1000,
    )
    # columns of 1 us: gaps of 3, 1, 1 and 2 us
    causes = {
        cause: (count, dur) for cause, count, dur in records(result["causes"], "cause", "count", "dur_ns")
    }
    assert causes["short gaps"] == (2, 2000)
    assert result["causes"]["dur_ns"].sum() == 7000
    assert result["hosts"]["dur_ns"].sum() == 5000


def test_causes_add_up_to_the_idle_time_of_the_timeline() -> None:
    text = """
        step 1                       | --------------------------------
        launch cudaStreamSynchronize |     ---
        op f                         |                ---
        launch                       | ab      c         d
        s7 k                         |   aa  b   ccc      d   ==
        s8 k                         |                            ==
    """
    run = make_run([draw(aligned(text), ns_per_char=COLUMN)])
    result = analyze(run, "idle")
    (step,) = records(analyze(run, "timeline")["steps"], "idle_ns")
    assert result["causes"]["dur_ns"].sum() == result["pieces"]["dur_ns"].sum() == step[0]
    assert result["causes"]["fraction_of_idle"].sum() == pytest.approx(1)
    assert result["causes"]["dur_ns"].is_monotonic_decreasing
    start, dur = (result["pieces"][name].to_numpy() for name in ("local_ts_ns", "dur_ns"))
    assert np.all(start[1:] >= start[:-1] + dur[:-1])


def test_hosts_are_grouped() -> None:
    result = idle("""
        op f   |    ---     ---
        launch | a     b  c    d
        s7 k   |  aa    b cc    dd
    """)
    # gaps 3-7 and 11-15, while the host is in f from 3 and 11
    shown = ("cause", "host", "op", "count", "dur_ns", "mean_ns", "max_ns")
    assert records(result["hosts"], *shown)[0] == (
        "launch overhead",
        "f",
        "f",
        2,
        6 * COLUMN,
        3.0 * COLUMN,
        3 * COLUMN,
    )


def test_the_next_work_and_the_step_are_named() -> None:
    table = idle("""
        step 4    | ---------
        launch    | ab
        s7 first  |  a
        s9 second |       bb
    """)["gaps"]
    assert records(table, "next_work", "stream", "step")[0] == ("second", 9, "ProfilerStep#4")


def test_scope_linked_takes_unlinked_work_as_idle() -> None:
    text = """
        launch | ab
        s7 k   |   aa==b
    """
    assert gaps(text, scope="linked") == [(2, 2, "dispatch", "", "")]
    assert gaps(text) == []


@pytest.mark.parametrize(
    ("drawing", "reason"),
    [("s7 k | ====", "the GPU never waits"), ("s7 k | == ==", "no gap is longer than 1000 ns")],
)
def test_nothing_to_explain_is_said(drawing: str, reason: str) -> None:
    result = idle(drawing, ns_per_char=1000)
    assert len(result["hosts"]) == len(result["gaps"]) == 0
    assert [(skip.subject, skip.reason) for skip in result.skips] == [("rank 0: gaps", reason)]


def test_what_would_show_what_a_silent_host_did() -> None:
    text = """
        op aten::mm | ---          --
        launch      | a             b
        s7 k        |  a             bb
    """
    (skip,) = idle(text).skips
    assert "with_stack=True" in skip.reason
    assert not idle(f"{text}python f | -\n").skips


def test_no_gpu_work() -> None:
    assert [skip.subject for skip in idle("python f | ==").skips] == ["rank 0"]


def test_each_rank_has_its_rows() -> None:
    table = analyze(draw_run("s7 k | ==  ==", "s7 k | ==   ==", ns_per_char=COLUMN), "idle")["causes"]
    assert records(table, "rank", "cause", "dur_ns") == [
        (0, "no launch", 2 * COLUMN),
        (1, "no launch", 3 * COLUMN),
    ]


def test_a_call_that_begins_before_the_op_ahead_of_it_ends() -> None:
    """Clocks are read in turn, and old traces round to us: what overlaps is not always nested."""
    assert pieces("""
                                     | 0    5    10   15   20
        op aten::stack               |       ---
        launch hipMemcpyWithStream   |         -----------
        launch                       | a                   b
        s7 k                         |   aaa                 bb
    """)[1:] == [
        (2, "launch overhead", "aten::stack"),
        (11, "blocking call", "hipMemcpyWithStream"),
        (2, "queue refill", "hipMemcpyWithStream"),
        (1, "dispatch", ""),
    ]


def test_what_a_graph_replays_is_nothing_that_the_host_did() -> None:
    """The copies begin with the graph launch, a nanosecond apart; its time is the call's."""
    graphed = """
        launch cudaGraphLaunch |   aaaa
        s7 before              | a
        s7 k                   |          aaaa
    """
    eager = draw(aligned("op aten::mm | -----\nlaunch | ab\ns7 before |  a\ns7 k |   bb"))
    trace = attributed(draw(aligned(graphed), ns_per_char=COLUMN), [], [eager])
    assert trace.arrays.copied.any()
    result = analyze(make_run([trace]), "idle")
    for table in ("hosts", "gaps", "pieces"):
        for column in ("host", "op"):
            assert "aten::mm" not in set(result[table][column].astype(str)), table


def test_pieces_that_are_known_are_those_that_would_be_cut() -> None:
    """Of the gaps of the recording, and of others where the work of a part of it begins."""
    trace = load(SAMPLES / "one_gpu" / "loop").traces[0]
    everything = trace.work
    for first in (0, len(everything.start) // 2):
        work = everything.take(np.arange(first, len(everything.start)))
        gaps = find_gaps(work, np.array([work.start[0] - 5_000, work.end.max() + 5_000]))
        known, cut = known_pieces(trace, work, gaps), idle_pieces(trace, work, gaps)
        assert len(cut.gap)
        for name, values in zip(cut._fields, cut, strict=True):
            assert getattr(known, name).tolist() == values.tolist(), name
