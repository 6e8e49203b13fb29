"""The graph of drawn runs: which edges there are, and what the replay makes of them."""

from __future__ import annotations

import pytest

from tests.builders import MAIN_TID, aligned, draw_run
from tests.stress.inputs import call, host, loaded, step
from tests.what_if.replays import assert_identity, edges, interval, projected, run_of
from tracelens.errors import TracelensError
from tracelens.trace import Run
from tracelens.what_if import Edge, Node, whatif
from tracelens.what_if.graph import build

QUEUED = """
    step 0    | ---------
    launch    |  a b
    s7 first  |    aaaaaa
    s7 second |          bbbbbb
"""


def test_launches_and_the_order_of_a_stream() -> None:
    """Calls at 1 and 3, two columns from call to kernel; the second waits for the first until 9."""
    run = run_of(QUEUED)
    assert_identity(run)
    assert projected(run, "identity") == 15
    assert projected(run, "scale:*first*=0.5") == 12  # 3 + 3, then 6
    assert (
        projected(run, "scale:*first*=0.1") == 11
    )  # over at 3.6, but the launch of the second takes until 5
    assert projected(run, "scale:*second*=2") == 21
    assert projected(run, "launch_free") == 14  # both calls at 0: 2 + 6 + 6


def test_the_host_sets_the_pace_where_it_is_late() -> None:
    """The second call comes at 10, when the GPU has long been idle: the first kernel does not matter."""
    run = run_of("""
        step 0    | -----------
        launch    |  a        b
        s7 first  |    aaa
        s7 second |             bbbb
    """)
    assert_identity(run)
    assert projected(run, "scale:*first*=0.1") == projected(run, "identity") == 16
    assert projected(run, "scale:*first*=4") == 19  # 3 + 12 + 4


def test_a_call_that_waits() -> None:
    """It waits from 2 to 12 for the kernel that ends at 10, and the next launch follows at 14."""
    run = run_of("""
        step 0                       | --------------------
        launch                       |  a            b
        launch cudaStreamSynchronize |   ----------    --
        s7 first                     |    aaaaaaa
        s7 second                    |                 bbbbbb
    """)
    recorded = assert_identity(run)
    assert edges(recorded, "sync")[0] == ("0:work first", "0:waited cudaStreamSynchronize")
    assert projected(run, "identity") == 22
    assert projected(run, "scale:*first*=2") == 29
    assert projected(run, "scale:*second*=2") == 28
    # Without waiting such a call takes 2 (the other one): it returns at 4, the next launch is at 6, its
    # kernel is ready at 8 but the first one ends at 10.
    assert projected(run, "no_blocking") == 16


def test_a_copy_that_keeps_its_call() -> None:
    """The copy holds the call until 9; the host goes on at 10."""
    run = run_of("""
        step 0                 | ----------------
        launch cudaMemcpyAsync |  aaaaaaaa b
        s7 copy Memcpy DtoH (Device -> Pageable) |   aaaaaa
        launch                 |           c
        s7 gemm                |             cccc
    """)
    recorded = assert_identity(run)
    assert edges(recorded, "sync") == [
        ("0:work Memcpy DtoH (Device -> Pageable)", "0:waited cudaMemcpyAsync")
    ]


def test_a_stream_that_waits_for_another_one() -> None:
    """The kernel on stream 8 was launched at 3, but began when that on stream 7 was over."""
    run = run_of("""
        step 0                     | ------
        launch                     |  a b
        s7 first                   |    aaaaaaaa
        s8 second                  |             bbbb
    """)
    recorded = assert_identity(run)
    assert edges(recorded, "wait") == [("0:work first", "0:work second")]
    assert projected(run, "identity") == 16
    # It began a column after the other's end. That delay is the usual one of its kind, and stays.
    assert interval(whatif(run, ["scale:*first*=0.5"]), "scale:*first*=0.5") == (11, 12, 12)


def test_a_wait_that_did_not_hold_anything_up_is_kept() -> None:
    """A wait is called between both launches. The first kernel was over in time; at four times it is not."""
    text = """
        step 0                     | ------------
        launch                     |  a        b
        {wait}                     |       --
        s7 first                   |    aaaa
        s8 second                  |             bbbb
    """
    run = run_of(text.format(wait="launch cudaStreamWaitEvent"))
    assert edges(assert_identity(run), "wait") == [("0:work first", "0:work second")]
    assert projected(run, "identity") == 16
    assert projected(run, "scale:*first*=4") == 23  # 3 + 16 + 4
    bare = run_of(text.format(wait="launch cudaEventQuery"))
    assert edges(build(bare), "wait") == []
    assert projected(bare, "scale:*first*=4") == 19


BACKWARD = """
    step 0              | ----------------------------
    op forward          |  ---
    launch              |  a
    op backward tid=2   |       --------------
    launch tid=2        |        b          c
    op optimizer        |                        ---
    launch              |                        d
    s7 one              |    aa
    s7 two              |          bb
    s7 three            |                     cc
    s7 four             |                          dddd
"""


def test_a_thread_that_waits_for_another_one() -> None:
    """The main thread is in no op from 5 to 23, and the backward thread works there, alone."""
    run = run_of(BACKWARD)
    recorded = assert_identity(run)
    assert edges(recorded, "handover") == [
        ("0:point cudaLaunchKernel", "0:point cudaLaunchKernel"),
        ("0:point cudaLaunchKernel", "0:point cudaLaunchKernel"),
    ]
    graph = recorded.graph
    handover = graph.edge == Edge.HANDOVER
    # From the launch at 1 to that at 7, and from that at 18 to that at 23.
    assert graph.lag[handover].tolist() == [6000, 5000]
    assert (graph.first[1:] == graph.first[:-1]).sum() == 1


def test_threads_at_work_side_by_side_do_not_wait_for_each_other() -> None:
    """The other thread's op lasts all the time, also before and behind the pause of the first one."""
    run = run_of("""
        step 0              | ----------------------------
        op forward          |  ---
        launch              |  a
        op loader tid=2     |   -----------------------
        launch tid=2        |        b          c
        op optimizer        |                        ---
        launch              |                        d
        s7 one              |    aa
        s8 two              |          bb
        s8 three            |                     cc
        s7 four             |                          dddd
    """)
    recorded = assert_identity(run)
    assert edges(recorded, "handover") == []
    assert edges(recorded, "order") == [("0:point cudaLaunchKernel", "0:point cudaLaunchKernel")]
    # All launches at once, also those of the thread that opened late: two kernels behind each other.
    assert projected(run, "launch_free") == 8


BUSY = """
    step 0            | ----------------------------
    {main}
    launch            |  a                     d
    op other tid=2    |       {other}
    launch tid=2      |        b {more}
    s7 one            |    aa
    s8 two            |          bb
    s7 four           |                          dddd
"""


@pytest.mark.parametrize(
    ("main", "other", "number"),
    [
        ("op forward        |  --                  ---", "--------------", 2),
        ("op forward        |  ----------------------", "--------------", 0),  # at work itself
        ("op forward        |  --                  ---", "--", 0),  # the other one hardly worked
    ],
)
def test_a_pause_is_no_waiting_unless_another_thread_fills_it(main: str, other: str, number: int) -> None:
    recorded = assert_identity(run_of(BUSY.format(main=main, other=other, more="")))
    assert len(edges(recorded, "handover")) == number
    assert len(edges(recorded, "order")) == (number == 0)


@pytest.mark.parametrize(("behind", "number"), [(5400, 2), (0, 0)])
def test_the_thread_that_is_waited_for_may_pause(behind: int, number: int) -> None:
    """The main thread is silent from 2 to 5,950 us. The other one works for 980 us, and pauses in between.

    Where it ends before the pause, the main thread may as well pause itself.
    """
    events = [step(0, 0, 6000), *call(1, 2), *call(2, 5950)]
    events += [host("cpu_op", "aten::before", 20, 480, 99), *call(3, 100, tid=99)]
    if behind:
        events += [host("cpu_op", "aten::behind", behind, 500, 99), *call(4, behind + 100, tid=99)]
    assert len(edges(assert_identity(loaded([events])), "handover")) == number


@pytest.mark.parametrize(
    ("busy", "own", "waits"),
    [
        (2700, 0, True),
        (900, 0, False),  # the main thread hardly works: the other one may pause itself
        (2700, 1500, False),  # at work itself
    ],
)
def test_silence_beside_others_at_work_is_no_host_time(busy: int, own: int, waits: bool) -> None:
    """A thread that launches one kernel a step, every 3,000 us, while the main thread works for `busy` us."""
    events = []
    for number in range(2):
        begin = 3000 * number
        events += [step(number, begin, 3000), *call(3 * number + 1, begin + 10)]
        events += [host("cpu_op", "aten::main", begin + 20, busy)]
        events += [*call(3 * number + 2, begin + 500, tid=99), *call(3 * number + 3, begin + 2900)]
        events += [host("cpu_op", "aten::own", begin + 600, own, 99)] if own else []
    recorded = assert_identity(loaded([events]))
    graph = recorded.graph
    own_time = graph.lag[graph.edge == Edge.HOST]
    assert (3_000_000 in own_time.tolist()) is not waits
    assert len(edges(recorded, "order")) == 1 + waits


def crowd(threads: int) -> Run:
    """A thread pauses for 1,940 us; another one works for half of that, amid two calls each of many more."""
    events = [step(0, 0, 2000), *call(1, 2), *call(2, 1950)]
    events += [host("cpu_op", "aten::long", 500, 1000, 99), *call(3, 600, tid=99), *call(4, 1490, tid=99)]
    for number in range(threads):
        place, behind = number % (threads // 2), number // (threads // 2)
        for again in (0, 1):
            at = 20 + 1485 * behind + 10 * (2 * place + again)
            events += call(10 + 2 * number + again, at, tid=100 + number)
    return loaded([events])


def told(run: Run) -> list[str]:
    return [skip.subject for skip in whatif(run, ["identity"]).skips if "threads" in skip.subject]


def test_who_is_waited_for_among_many_threads() -> None:
    graph = assert_identity(run := crowd(40)).graph
    tid, handover = run.traces[0].arrays.tid, graph.edge == Edge.HANDOVER
    ends = [tid[graph.event[nodes[handover]]].tolist() for nodes in (graph.src, graph.dst)]
    assert sorted(zip(*ends, strict=True)) == [(MAIN_TID, 99), (99, MAIN_TID)]
    assert told(run) == []


def test_threads_that_were_not_looked_at_are_told() -> None:
    assert told(crowd(80)) == ["waits of host threads for each other on rank 0"]


def test_many_threads_that_were_all_looked_at_are_not_told() -> None:
    """100 threads, two calls each, one behind the other: none is at work in the pause of another one."""
    events = [event for number in range(200) for event in call(number + 1, 10 * number, tid=number // 2)]
    assert told(loaded([events])) == []


def test_a_graph_is_launched_once() -> None:
    """Both graphs start 3 columns after their calls; what else they launch waits for what comes before.

    So the latency of a graph's launch is 3, and not what lies between the call and the last of its kernels.
    """
    pause = " " * 30
    run = run_of(f"""
        step 0                 | {"-" * 80}
        launch cudaGraphLaunch |  a  {pause}      b
        s7 first               |     aaa{pause}      bbb
        s8 second              | {pause}   aa{pause}        bb
        s9 third               | {pause}     aa{pause}        bb
    """)
    recorded = assert_identity(run)
    graph = recorded.graph
    launches = graph.edge == Edge.LAUNCH
    assert graph.lag[launches].tolist() == [3000] * 6
    assert whatif(run, ["identity"])["explained"]["error"].tolist()[:2] == [0, 0]


def collective(kernel: str, *, more: str = "", name: str = "allreduce") -> str:
    """A rank with one collective, asked for at 0, and another kernel behind it on the same stream."""
    return f"""
        step 0 | --------
        op record_param_comms collective={name} group=0 ranks=[0,1] size=2 in=50 out=50 dtype=Half | -
        launch | a
        launch | {more and "  b"}
        s9 ncclDevKernel | {kernel}
        s9 after | {more}
    """


def test_a_collective_begins_when_its_last_rank_is_there() -> None:
    """Rank 1 arrives at 10; four columns later both have their data, and rank 0 goes on."""
    run = run_of(
        collective("  aaaaaaaaaaaa", more="              bb"),
        """
        step 0 | --------
        launch | b
        launch |  a
        op record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=50 out=50 dtype=Half |  -
        s9 slow          |   bbbbbbb
        s9 ncclDevKernel |           aaaa
        """,
    )
    recorded = assert_identity(run)
    assert len(edges(recorded, "arrival")) == 2
    assert len(edges(recorded, "transfer")) == 2
    result = whatif(run, ["identity", "scale:*slow*=0.5", "scale:*slow*=2", "scale:*allreduce*=0.25"])
    assert interval(result, "identity")[1] == 15  # 16 on rank 0, 14 on rank 1
    # The slow kernel ends at 9 and the collective starts a column later, the usual gap of that stream.
    # At half of its time it would end at 5.5, so all is 3.5 earlier; at twice 7 later.
    assert interval(result, "scale:*slow*=0.5")[1] == pytest.approx(15 - 3.5, abs=1)
    assert interval(result, "scale:*slow*=2")[1] == 22
    assert interval(result, "scale:*allreduce*=0.25")[1] == 12


def test_a_rank_that_leaves_before_the_last_one_comes_did_not_wait() -> None:
    """The root of a broadcast sends and goes on."""
    run = run_of(collective("  aaa", name="broadcast"), collective("       aaaa", name="broadcast"))
    recorded = assert_identity(run)
    assert [dst for _, dst in edges(recorded, "transfer")] == ["1:leave ncclDevKernel"]
    own = [dst for _, dst in edges(recorded, "own")]
    assert own == ["0:leave ncclDevKernel", "1:leave ncclDevKernel"]
    graph = recorded.graph
    assert graph.delay.sum() == 0
    assert graph.dur[graph.kind == Node.MEET].tolist() == [4000]
    assert projected(run, "scale:*broadcast*=2") == (8 + 15) / 2


def test_a_send_and_its_receive_meet() -> None:
    text = """
        step 0 | ------
        op record_param_comms collective={name} group=3 ranks=[0,1] size=2 in=50 out=50 dtype=Half | -
        launch | a
        s9 ncclDevKernel_SendRecv | {kernel}
    """
    run = run_of(text.format(name="send", kernel="  aaaaaaaa"), text.format(name="recv", kernel="      aaaa"))
    recorded = assert_identity(run)
    assert len(edges(recorded, "arrival")) == 2
    assert projected(run, "scale:*send*=0.5") == 8  # both there at 6, then 2 instead of 4


def test_threads_of_a_communication_library_make_nobody_wait() -> None:
    """A watchdog asks for events all the time and launches nothing."""
    run = run_of("""
        step 0                              | --------
        launch                              |  a
        launch cudaEventQuery tid=9         | - - - - - - -
        launch cudaEventSynchronize tid=9   |  - - -
        s7 gemm                             |    aaaaaaaa
    """)
    recorded = assert_identity(run)
    assert (recorded.graph.kind == Node.WAITED).sum() == 0


def test_a_call_whose_kernel_began_before_it_is_no_cause() -> None:
    run = run_of("""
        step 0  | --------
        launch  |     a
        s7 gemm |  aaaaaaaa
    """)
    recorded = assert_identity(run)
    assert recorded.graph.dropped == {"launch": 1}


def test_the_step_that_is_looked_at() -> None:
    """Steps of 6, 14 and 10 columns: the median one is the third."""
    run = run_of("""
        step 1  | ------
        step 2  |       --------------
        step 3  |                     ----------
        launch  | a     b             c
        s7 gemm |   aaa   bbbbbbbb      cccccccc
    """)
    assert_identity(run)
    result = whatif(run, ["identity"])
    assert (result.meta["step"], result.meta["base_ns"]) == ("ProfilerStep#3", 10_000)
    assert result.meta["recorded_steps"] == 3
    assert projected(run, "identity", step="1") == 6
    assert projected(run, "identity", step="ProfilerStep#2") == 14
    with pytest.raises(TracelensError, match=r"no step '7' on all ranks \(has: ProfilerStep#1, "):
        whatif(run, ["identity"], step="7")


def test_without_marks_all_is_one_step() -> None:
    run = run_of("""
        launch  | a
        launch  |  b
        s7 gemm |   aaaa
        s7 next |        bbb
    """)
    assert_identity(run)
    assert projected(run, "identity") == 8
    assert projected(run, "scale:*gemm*=2") == 12


def test_ranks_with_different_steps_are_refused() -> None:
    drawing = "step {0} | ----\nlaunch | a\ns7 gemm |  aa"
    with pytest.raises(TracelensError, match="ranks recorded different steps"):
        build(run_of(drawing.format(1), drawing.format(2)))


def test_ranks_that_ran_their_steps_in_another_order_are_refused() -> None:
    """From the first to the last step of one rank, time would run backwards on the other."""
    drawing = "step {0} | ----\nstep {1} |     ----\nstep {2} |         ----\nlaunch | a  b\ns7 gemm |  aa bb"
    ahead = drawing.format(1, 2, 3)
    with pytest.raises(TracelensError, match="rank 1 ran its steps in a different order than rank 0"):
        build(run_of(ahead, drawing.format(3, 1, 2)))
    assert [window.label[-1] for window in build(run_of(ahead, drawing.format(0, 2, 3))).windows] == [
        "2",
        "3",
    ]


def test_a_run_without_work_is_refused() -> None:
    with pytest.raises(TracelensError, match="no GPU work"):
        build(run_of("step 0 | ----\nlaunch | a"))


def test_what_waits_for_another_stream_tells_no_latency_of_its_launch() -> None:
    """The collective starts 15 columns of 10 us after its launch, 4 after the end of what it waits for.

    What a launch takes is known of the other kernel alone, a column.
    """
    text = """
        step 0                     | --------------------
        launch                     | a
        launch cudaStreamWaitEvent |  -
        launch cuLaunchKernelEx    |   b
        s7 gemm                    |  aaaaaaaaaaaa
        s9 ncclDevKernel_AllReduce |                  bb
    """
    recorded = build(draw_run(aligned(text), ns_per_char=10_000))
    graph = recorded.graph
    assert graph.lag[graph.edge == Edge.LAUNCH].tolist() == [10_000, 10_000]
