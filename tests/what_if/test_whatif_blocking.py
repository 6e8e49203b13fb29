"""Blocking calls in the graph: what each waits for, and what it costs where there is nothing to wait for."""

from __future__ import annotations

import pytest

from tests.builders import aligned
from tests.stress.inputs import gpu, host, loaded, step
from tests.what_if.replays import assert_identity, edges, projected, run_of
from tracelens.what_if import Edge, Node
from tracelens.what_if.graph import build

COST = 3.5  # us of a synchronization of which the run has no example without a wait

ONE_WAIT = """
    step 0                       | --------------------
    launch                       | a
    launch cudaStreamSynchronize |  ------------------
    s7 gemm                      |   aaaaaaaaaaaaaaaa
"""


@pytest.mark.parametrize("factor", [1, 0.9, 0.5, 0.25, 0])
def test_one_wait_a_step(factor: float) -> None:
    """The call waits for the kernel, which starts at 2, returns a column later, and the host takes one more.

    Its own cost is the default, as no call of the run tells. That bounds the step from below.
    """
    run = run_of(ONE_WAIT)
    assert_identity(run)
    expected = max(2 + 16 * factor + 1, 1 + COST) + 1
    assert projected(run, f"scale:*={factor:g}") == pytest.approx(expected)


def test_a_call_with_nothing_to_wait_for_tells_the_cost() -> None:
    """It takes 2 columns: so does the other one once its kernel takes no time."""
    run = run_of("""
        step 0                       | -----------------------
        launch                       | a
        launch cudaStreamSynchronize |  ------------------ --
        s7 gemm                      |   aaaaaaaaaaaaaaaa
    """)
    assert projected(run, "scale:*=0.5") == 15  # the wait is 8 shorter
    assert projected(run, "scale:*=0") == pytest.approx(1 + 2 + 1 + 2 + 1)


def test_the_cost_is_that_of_all_ranks() -> None:
    """Rank 1 has the call that did not wait."""
    run = run_of(
        ONE_WAIT,
        """
        step 0                       | --------------------
        launch                       | a
        launch cudaStreamSynchronize |             --
        s7 gemm                      |   aaaaaa
        """,
    )
    graph = build(run).graph
    own = (graph.edge == Edge.HOST) & (graph.kind[graph.dst] == Node.WAITED)
    assert graph.lag[own].tolist() == [2000, 2000]


TWO_STREAMS = """
    step 0         | ------------------------------
    launch         | a
    launch         |  b
    launch {call}  |   ---------------------
    s8 long        |   aaaaaaaaaaaaaaaaaaaa
    s7 short       |    bbbb
"""


@pytest.mark.parametrize(
    ("call", "awaited"),
    [
        ("cudaDeviceSynchronize", ["long", "short"]),
        ("hipDeviceSynchronize", ["long", "short"]),
        ("cudaFree", ["long", "short"]),
        ("cudaStreamSynchronize", ["long"]),
        ("cudaMalloc", []),
        ("hipHostMalloc", []),
    ],
)
def test_what_a_call_waits_for(call: str, awaited: list[str]) -> None:
    """The short kernel was done at 8, the call returned at 24: that is not what it waited for."""
    pairs = edges(assert_identity(run_of(TWO_STREAMS.format(call=call))), "sync")
    assert sorted(src.rpartition(" ")[2] for src, _ in pairs) == awaited


def test_a_stream_is_that_of_the_last_launch_of_the_thread() -> None:
    """Both kernels ended in the call, that of the other stream later."""
    text = """
        step 0                       | ------------
        launch                       | a
        launch                       |  b
        launch cudaStreamSynchronize |    -------
        s8 other                     |   aaaaaa
        s7 own                       |     bbb
    """
    assert edges(assert_identity(run_of(text)), "sync") == [("0:work own", "0:waited cudaStreamSynchronize")]


def test_an_event_is_recorded_behind_what_it_waits_for() -> None:
    """The second kernel, launched behind the record, is over long after the call."""
    run = run_of("""
        step 0                      | ----------------
        launch                      | a
        launch cudaEventRecord      |  -
        launch                      |   b
        launch cudaEventSynchronize |    -----
        s7 first                    |  aaaaaa
        s7 second                   |        bbbbbbbbb
    """)
    assert edges(assert_identity(run), "sync") == [("0:work first", "0:waited cudaEventSynchronize")]
    # At half of its time the first kernel ends as the call is made: that takes its cost instead of 5 columns.
    assert projected(run, "scale:*first*=0.5") == pytest.approx(16 - (5 - COST))


def test_an_allocation_takes_its_time() -> None:
    """Nothing that the GPU does makes it shorter, though a kernel ends right before it returns."""
    run = run_of("""
        step 0            | ----------------
        launch            | a
        launch cudaMalloc |  ----------
        launch            |            b
        s7 first          |  aaaaaaaaa
        s7 second         |             bbb
    """)
    assert edges(assert_identity(run), "sync") == []
    assert projected(run, "scale:*first*=0.1") == 16


def test_a_free_waits_and_then_frees() -> None:
    """It returns 4 columns after the kernel's end, and takes those in any case."""
    run = run_of("""
        step 0          | ----------------
        launch          | a
        launch cudaFree |  --------------
        s7 first        |  aaaaaaaaaa
    """)
    assert edges(assert_identity(run), "sync") == [("0:work first", "0:waited cudaFree")]
    assert projected(run, "scale:*first*=0.5") == 11
    assert projected(run, "scale:*first*=0") == 6


def queued(kernels: int, depth: int) -> list[dict[str, object]]:
    """Kernels of 100 us; launches take 2 us each, but wait while `depth` kernels are queued or running.

    They return 5 us after the kernel that made room.
    """
    events, now, done = [], 0.0, 10.0
    ends: list[float] = []
    for number in range(kernels):
        begun, over = now, now + 2
        if number >= depth:
            over = max(over, ends[number - depth] + 5)
        begin = max(begun + 6, done)
        done = begin + 100
        ends.append(done)
        events += [
            host("cuda_runtime", "cudaLaunchKernel", begun, over - begun, correlation=number + 1),
            gpu("gemm", begin, 100, number + 1),
        ]
        now = over + 1
    return [step(0, 0, now), *events]


def test_launches_wait_for_room_in_the_queue() -> None:
    """The host is never slower than the GPU: half the GPU work is half the step."""
    run = loaded([queued(900, 400)])
    recorded = assert_identity(run)
    # While the first 400 are launched, 12 kernels end.
    assert len(edges(recorded, "queue")) == 500 - 12
    base = projected(run, "identity")
    assert base == pytest.approx(900 * 100 + 10, abs=10)
    assert projected(run, "scale:*=0.5") == pytest.approx(900 * 50 + 10, abs=20)
    # What is left is the host: 3 us a kernel.
    assert projected(run, "scale:*=0") == pytest.approx(900 * 3, rel=0.01)


def test_long_launches_before_a_short_queue_are_the_host_s_own() -> None:
    run = run_of(
        aligned("""
        step 0  | ------------------------------
        launch  | aaaaaaaaaaaaaaaaaaaaaa
        launch  |                       b
        launch  |                        c
        s7 gemm |  aaaaaaaaaaaaaaaaaaaaaabbbb
        s7 last |                            cccc
    """)
    )
    assert edges(assert_identity(run), "queue") == []
