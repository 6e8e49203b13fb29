"""Scenarios of launches and of what the host does meanwhile. A column is 1 us unless a test says more."""

from __future__ import annotations

import pytest

from tests.analysis.moe_traces import Model, recorded
from tests.builders import aligned, draw_run
from tests.what_if.replays import assert_identity, projected, run_of
from tracelens.errors import TracelensError
from tracelens.opportunities.launches import has_queued_work
from tracelens.trace import Run
from tracelens.what_if import whatif

# The calls a and b take 1 column and c takes 5; a kernel starts 1 column behind its call.
UNEVEN = """
    step 0   | ------------------------
    launch   |  a     b     ccccc  d
    s7 k     |   a     b     c      dddd
"""


def reason(run: Run, scenario: str) -> str:
    """Why a scenario is not applicable."""
    return next(
        skip.reason for skip in whatif(run, [scenario]).skips if skip.subject == f"scenario {scenario}"
    )


def test_launch_calls_at_half_their_cost() -> None:
    """Of 1 + 1 + 5 columns before d 3.5 are left; its kernel ends at 25, or at 21.5."""
    run = run_of(UNEVEN)
    assert_identity(run)
    assert projected(run, "identity") == 25
    assert projected(run, "launch_cost=0.5") == 25 - 3.5
    assert projected(run, "host=0.5+launch_cost=0.5") == projected(run, "launch_cost=0.5+host=0.5")


def test_launch_calls_that_stall_take_as_long_as_usual() -> None:
    """c loses the 4 columns by which it is longer than the median of all calls."""
    assert projected(run_of(UNEVEN), "launch_cost") == 25 - 4


def test_the_quickest_rank_says_what_is_usual() -> None:
    """On the first rank all calls take 3 columns, on the second one 1: two calls before c lose 2 each."""
    slow = """
        step 0   | -----------------
        launch   |  aaa   bbb   ccc
        s7 k     |   a     b     cccccc
    """
    quick = """
        step 0   | -----------------
        launch   |  a     b     c
        s7 k     |   a     b     cccccc
    """
    result = whatif(run_of(slow, quick), ["launch_cost"])
    assert result["ranks"]["base_ns"].tolist() == [20_000, 20_000]
    assert result["ranks"]["projected_ns"].tolist() == [16_000, 20_000]


def test_a_step_as_one_graph() -> None:
    """b and c are launched with a, at 1: kernels of 2, 2 and 8 columns run from 2, with two gaps of 0.3.

    No kernel was launched before the one ahead of it began, so the trace shows no such gap.
    """
    run = run_of("""
        step 0   | ----------------
        launch   |  a     b     c
        s7 k     |   aa    bb    cccccccc
    """)
    assert_identity(run)
    assert projected(run, "identity") == 22
    assert projected(run, "step_graph") == pytest.approx(14 + 2 * 0.3)
    text = whatif(run, ["step_graph"])["assumptions"]["assumption"][0]
    assert text.startswith("2 of 3 launches disappear")


def test_a_graph_as_single_launches() -> None:
    """From 1 on a launch each 5 us, 2 columns ahead of its kernel, and one more column of host time."""
    run = run_of("""
        step 0                 | ----
        launch cudaGraphLaunch |  aa
        s7 k                   |    aaaaaa
        s7 k                   |          aa
        s7 k                   |            aaaaa
    """)
    assert_identity(run)
    assert projected(run, "identity") == 16
    assert projected(run, "no_graphs=5") == 1 + 2 * 5 + 2 + 5  # the last kernel begins at 13
    assert projected(run, "no_graphs=9") == 1 + 3 * 9 + 1  # the host ends last
    assert projected(run, "no_graphs=2") == 16  # the host is ahead of the first kernel
    assert (
        "3 launches take the place of 1 graph launches"
        in (whatif(run, ["no_graphs=5"])["assumptions"]["assumption"][0])
    )


def test_without_a_graph_there_is_none_to_do_without() -> None:
    assert "no graph launch" in reason(run_of(UNEVEN), "no_graphs=5")


@pytest.mark.parametrize(
    ("launches", "queued"),
    [
        ("a  b", False),  # called when the kernel ahead runs: its gap is the launch's
        ("a b ", False),
        ("ab  ", True),  # called before that: ready when it ends
    ],
)
def test_whether_the_gap_between_kernels_that_are_ready_is_recorded(launches: str, queued: bool) -> None:
    (trace,) = run_of(f"""
        step 0   | -----------
        launch   |  {launches}
        s7 k     |    aaa bb
    """).traces
    assert has_queued_work(trace, None) is queued


def test_a_call_that_waits_splits_the_graph() -> None:
    """Four launches, a wait behind the second: the first and third remain."""
    run = run_of("""
        step 0                       | -----------------------------
        launch                       |  a   b             c   d
        launch cudaDeviceSynchronize |        =====
        s7 k                         |   aa  bbbbb         cc  dd
    """)
    assert_identity(run)
    text = whatif(run, ["step_graph"])["assumptions"]["assumption"][0]
    assert text.startswith("2 of 4 launches disappear")
    # Without the wait nothing splits it.
    text = whatif(run, ["no_blocking+step_graph"])["assumptions"]["assumption"][0]
    assert "3 of 4 launches disappear" in text


def test_nothing_to_capture() -> None:
    run = run_of("""
        step 0                 | --------
        launch cudaGraphLaunch | a
        s7 k                   |  aaaaaa
    """)
    assert "no two consecutive launches" in reason(run, "step_graph")


# A column is 100 us here: the GPU is idle from 4 to 23, the host from the end of a, or of what it does.
PAUSE = """
    step 0 | -------------------------
    WHAT   |   -------------------
    launch |  a                    b
    s7 k   |   aa                   bb
"""
ADD = 'op aten::add_ shapes=[[8]] types=["float"]'
WHAT = {
    "silent_host": "",
    "stalled_host": f"{ADD} | !!\n{ADD}",  # two calls of no length say what is usual
    "cpu_ops": "op aten::unique_dim",
    "data_loading": "python torch/utils/data/dataloader.py(631): __next__",
}


def pause(cause: str) -> Run:
    """A pause for one cause."""
    rows = [row for row in PAUSE.splitlines() if WHAT[cause] or "WHAT" not in row]
    return draw_run(aligned("\n".join(rows).replace("WHAT", WHAT[cause])), ns_per_char=100_000)


@pytest.mark.parametrize(
    ("cause", "end"), [("silent_host", 7), ("stalled_host", 8), ("cpu_ops", 8), ("data_loading", 8)]
)
def test_idle_time_of_one_cause_goes(cause: str, end: int) -> None:
    """b is called at 22; from 4, when the GPU has nothing to do, until then the host does it or is silent.

    The op and the frame end at 21, one column before: that column stays.
    """
    run = pause(cause)
    assert_identity(run)
    assert projected(run, "identity") == 2_500
    assert projected(run, f"no_idle={cause}") == end * 100
    for other in WHAT.keys() - {cause}:
        assert "never idle" in reason(run, f"no_idle={other}")


def test_data_loading_has_a_name_of_its_own() -> None:
    run = pause("data_loading")
    assert projected(run, "data_loading_overlapped") == projected(run, "no_idle=data_loading")


def test_an_unknown_cause_is_an_error() -> None:
    with pytest.raises(TracelensError, match="no such cause"):
        whatif(pause("cpu_ops"), ["no_idle=weather"])


@pytest.mark.parametrize("text", ["sync_free=4", "sync_free=x"])
def test_stages_of_sync_free_layers_are_1_to_3(text: str) -> None:
    with pytest.raises(TracelensError, match="1, 2 and 3"):
        whatif(run_of(UNEVEN), [text])


def test_each_stage_of_sync_free_layers_frees_more_calls() -> None:
    """Sizes of messages are waited for in the dispatch: only stage 3 is free of that."""
    run, _ = recorded(Model(ranks=2, exchange="all_to_all"))
    freed = {}
    for stage in ("1", "2", "3"):
        assumed = whatif(run, [f"sync_free={stage}"])["assumptions"]["assumption"].tolist()
        freed[stage] = int(assumed[0].split()[0]) if assumed else 0
    assert 0 <= freed["1"] <= freed["2"] < freed["3"]
    assert projected(run, "sync_free") == projected(run, "sync_free=3") <= projected(run, "sync_free=2")
