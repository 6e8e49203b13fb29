"""Scenarios against simulated runs in which they hold, and against hand-made sums."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.analysis import moe_traces
from tests.analysis.moe_traces import Model, Recorder, recorded
from tests.what_if.replays import assert_identity, interval, projected, run_of
from tracelens.errors import TracelensError, UnknownName
from tracelens.opportunities.experts import balanced
from tracelens.trace import Run
from tracelens.what_if import SCENARIOS, Edit, ScenarioContext, parse_request, whatif
from tracelens.what_if.graph import Node, build
from tracelens.what_if.replay import labels

CALL_NS = 1_000


def waiting(recorder: Recorder, *, blocks: bool) -> None:
    """Two calls: the first waits for the GPU, or would; the second one finds nothing to wait for."""
    for _ in range(2):
        recorder.number += 1
        with recorder.around("cuda_runtime", "cudaStreamSynchronize", correlation=recorder.number):
            recorder.host = max(recorder.host + CALL_NS, recorder.gpu if blocks else 0)
    recorder.waits.append(len(recorder.kernels))


def step_ns(run: Run) -> int:
    """The step as the simulation has it."""
    base: int = whatif(run, ["identity"]).meta["base_ns"]
    return base


def projected_ns(run: Run, scenario: str) -> int:
    """The projected step of a scenario."""
    return round(projected(run, scenario) * 1000)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("scenario", ["no_blocking", "sync_free", "no_blocking=aten::nonzero"])
def test_calls_that_do_not_wait(monkeypatch: pytest.MonkeyPatch, loop: bool, scenario: str) -> None:
    """A simulated host that does wait, and the same one that does not."""
    model = Model(loop=loop, kernel_ns=3_000)
    monkeypatch.setattr(Recorder, "wait", lambda self: waiting(self, blocks=True))
    blocking, _ = recorded(model)
    monkeypatch.setattr(Recorder, "wait", lambda self: waiting(self, blocks=False))
    free, _ = recorded(model)
    assert_identity(blocking)
    assert step_ns(free) < step_ns(blocking)
    assert projected_ns(blocking, scenario) == step_ns(free)


def test_calls_outside_of_moe_layers_still_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that also waits after each attention, as it does with sync-free MoE layers."""
    attention = Recorder.attention

    def attend(recorder: Recorder) -> None:
        attention(recorder)
        waiting(recorder, blocks=True)

    monkeypatch.setattr(Recorder, "attention", attend)
    monkeypatch.setattr(Recorder, "wait", lambda self: waiting(self, blocks=True))
    blocking, _ = recorded(Model(loop=False, kernel_ns=3_000))
    monkeypatch.setattr(Recorder, "wait", lambda self: waiting(self, blocks=False))
    free, _ = recorded(Model(loop=False, kernel_ns=3_000))
    assert step_ns(free) < step_ns(blocking)
    assert projected_ns(blocking, "sync_free") == step_ns(free)
    assert projected_ns(blocking, "no_blocking") < step_ns(free)


def test_work_that_takes_half_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated experts at one and at half a microsecond a row."""
    slow, _ = recorded(Model(loop=False))
    monkeypatch.setattr(moe_traces, "ROW_NS", 500)
    fast, _ = recorded(Model(loop=False))
    assert step_ns(fast) < step_ns(slow)
    assert projected_ns(slow, "scale:*GroupProblemShape*=0.5") == step_ns(fast)


def test_scenarios_that_hold_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "wait", lambda self: waiting(self, blocks=True))
    slow, _ = recorded(Model(loop=False))
    monkeypatch.setattr(moe_traces, "ROW_NS", 500)
    monkeypatch.setattr(Recorder, "wait", lambda self: waiting(self, blocks=False))
    fast, _ = recorded(Model(loop=False))
    both = "no_blocking+scale:*GroupProblemShape*=0.5"
    assert projected_ns(slow, both) == step_ns(fast)
    assert projected(slow, "scale:*GroupProblemShape*=0.5+no_blocking") == projected(slow, both)


def test_a_host_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """All launches at once: what is left is the stream's work, one after the other, behind one launch."""
    run, _ = recorded(Model(loop=False, sizes_to_host=False))
    (trace,) = run.traces
    assert projected_ns(run, "launch_free") == trace.work.dur.sum() + CALL_NS + 200  # around it


def test_a_faster_host() -> None:
    """Calls at 4 and 12 come at 2 and 6; two columns later their kernels start."""
    run = run_of("""
        step 0   | --------------
        launch   |     a       b
        s7 one   |       aa
        s7 two   |               bbbb
    """)
    assert projected(run, "identity") == 18
    assert projected(run, "host=0.5") == 12
    assert projected(run, "host=1.5") == 24


def test_a_host_that_collects_no_garbage() -> None:
    """Of the 8 columns between both calls 5 go; on the other thread nothing waits for them."""
    run = run_of("""
        step 0                 | --------------
        python Python GC       |       -----
        python Python GC tid=2 | ---
        launch                 |     a       b
        s7 one                 |       aa
        s7 two                 |               bbbb
    """)
    assert_identity(run)
    assert projected(run, "no_garbage_collection") == 13
    # Of a host twice as fast: calls at 2 and 3.5, and the second kernel waits for the first until 6.
    assert projected(run, "no_garbage_collection+host=0.5") == 10
    assert projected(run, "host=0.5+no_garbage_collection") == 10


def test_garbage_is_collected_on_each_rank_for_itself() -> None:
    """Only the second rank, which has more events than the first one, collects any: 5 columns of its 14."""
    run = run_of(
        "step 0 | ----\nlaunch | a\ns7 one |  a",
        """
        step 0           | --------------
        python Python GC |       -----
        launch           |     a       b
        op aten::mm      |     -       -
        s7 one           |       aa
        s7 two           |               bbbb
        """,
    )
    result = whatif(run, ["no_garbage_collection"])
    assert result["ranks"]["projected_ns"].tolist() == [4_000, 13_000]


def test_balanced_experts_have_the_same_work_on_all_ranks() -> None:
    def rows(rank: int, micro_batch: int, layer: int) -> list[int]:
        return [6, 10] if rank else [2, 2]

    run, _ = recorded(Model(loop=True, ranks=2, experts=4, exchange="all_to_all", rows=rows))
    context = ScenarioContext(build(run), run.traces)
    graph = context.graph
    edit = Edit.of(graph)
    assert re.search(r"1\.\d\dx the mean", balanced(context, edit, ""))
    changed = np.flatnonzero((edit.dur != graph.dur) & (graph.kind == Node.WORK))
    before, after = (
        np.bincount(graph.rank[changed], weights=durations[changed]) for durations in (graph.dur, edit.dur)
    )
    assert before[0] < before[1]
    assert after.tolist() == pytest.approx([before.sum() / 2] * 2, abs=len(changed))
    names = labels(context.recorded).name
    routed = {names.values[code] for code in names.codes[changed].tolist()}
    assert routed.isdisjoint({"ncclDevKernel_SendRecv(ncclDevComm*)", "softmax_warp_forward"})
    # Each rank sent 16 of 20 rows to one of the two, and sends 10 now.
    meetings, _ = context.meetings()
    exchanged = meetings[edit.dur[meetings] != graph.dur[meetings]]
    assert len(exchanged)
    assert edit.dur[exchanged] / graph.dur[exchanged] == pytest.approx(10 / 16, abs=0.01)


RECORD = "op record_param_comms collective=all_to_all group=0 ranks=[0,1] size=2 in=4000 out=4000 dtype=Half"
ALL_TO_ALL = f"""
    step 0 | --------
    {RECORD} | {{record}}
    launch | {{launch}}
    s9 ncclDevKernel | {{kernel}}
    s9 after         | {{after}}
"""


def all_to_all() -> Run:
    """Both ranks are there at 6 and have their 8,000 bytes at 14; rank 0 waits from 2 on."""
    return run_of(
        ALL_TO_ALL.format(record="-", launch="ab", kernel="  aaaaaaaaaaaa", after="              bb"),
        ALL_TO_ALL.format(record="-----", launch="    ab", kernel="      aaaaaaaa", after="              bb"),
    )


def test_an_all_to_all_at_another_bandwidth() -> None:
    """Half of 8,000 bytes cross the links: 1 GB/s would take 4 us, and 0.25 GB/s 16."""
    run = all_to_all()
    result = whatif(run, [f"all_to_all_bandwidth={rate}" for rate in ("1", "0.25", "2x")])
    # Low: with half the host time rank 1 launches 2 us earlier.
    assert interval(result, "all_to_all_bandwidth=1") == (10, 12, 12)
    assert interval(result, "all_to_all_bandwidth=0.25") == (22, 24, 24)
    assert interval(result, "all_to_all_bandwidth=2x") == (10, 12, 12)


def test_a_hidden_all_to_all_still_needs_its_ranks() -> None:
    run = all_to_all()
    # Rank 1 comes at 6. Rank 0 goes on until 8; the next work of rank 1 was launched at 5, and ends at 9.
    assert projected(run, "all_to_all_hidden") == 8.5
    assert projected(run, "identity") == 16


def test_a_hidden_all_to_all_ends_on_all_ranks_at_once() -> None:
    """As above, but rank 1 has its data four columns after rank 0."""
    run = run_of(
        ALL_TO_ALL.format(record="-", launch="a", kernel="  aaaaaaaaaaaa", after=""),
        ALL_TO_ALL.format(record="-----", launch="    a", kernel="      aaaaaaaaaaaa", after=""),
    )
    assert projected(run, "identity") == 16
    assert projected(run, "all_to_all_bandwidth=2x") == 12  # 6 + 4, and 4 more on rank 1
    assert projected(run, "all_to_all_hidden") == 8  # as long as the mark


def test_what_does_not_apply_is_said() -> None:
    run = run_of("step 0 | ----\nlaunch | a\ns7 gemm |  aa")
    result = whatif(run)
    assert sorted(result["whatif"]["scenario"]) == ["identity", "launch_free"]
    reasons = {skip.subject: skip.reason for skip in result.skips}
    assert reasons["scenario no_blocking"] == "no call waits for the GPU"
    assert "scenario balanced" in reasons
    assert "no all-to-all" in reasons["scenario all_to_all_hidden"]
    assert "scenario scale" not in reasons  # it needs a value of the user's, so it was not tried
    named = whatif(run, ["scale:nothing=2", "no_blocking=aten::item"])
    assert not len(named["whatif"])
    assert [skip.subject for skip in named.skips] == [
        "scenario scale:nothing=2",
        "scenario no_blocking=aten::item",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scale", "scale needs an argument: scale:PATTERN=FACTOR"),
        ("identity=3", "identity takes no argument"),
        ("scale:*gemm*=-1", "'-1' is not a positive number"),
        ("scale:*gemm*=inf", "'inf' is not a positive number"),
        ("scale:*gemm*=fast", "'fast' is not a positive number"),
        ("scale:gemm", "write scale:PATTERN=FACTOR"),
        ("all_to_all_bandwidth=x", "'' is not a positive number"),
        ("all_to_all_bandwidth=1e-320", "'1e-320' is not a positive number (1e-09 to 1e+09)"),
        (
            "all_to_all_bandwidth=1e-9x",
            "all_to_all_bandwidth=1e-9x: a duration would exceed 1,000 s",
        ),
        ("scale:*gemm*=1e9+scale:*gemm*=1e9", "a duration would exceed 1,000 s"),
        ("grouped_gemm=1.5", "an efficiency is at most 1"),
        ("two_batch_overlap=1.5", "an efficiency is at most 1"),
        ("identity+balnced", "unknown scenario 'balnced'; did you mean 'balanced'?"),
        ("identity+", "unknown scenario ''"),
    ],
)
def test_wrong_arguments(text: str, said: str) -> None:
    blocking = """
        step 0                       | ------
        launch                       |  a
        launch cudaStreamSynchronize |   --
        s7 gemm                      |   aa
    """
    run = all_to_all() if text.startswith("all_to_all") else run_of(blocking)
    with pytest.raises(TracelensError, match=re.escape(said)):
        whatif(run, [text])


def test_names_are_known_and_parts_are_told_apart() -> None:
    with pytest.raises(UnknownName, match="did you mean 'balanced'"):
        parse_request("balance")
    parts = parse_request("scale:a+b=2+no_blocking + all_to_all_bandwidth=300").parts
    assert [(item.name, argument) for item, argument in parts] == [
        ("scale", "a+b=2"),
        ("no_blocking", ""),
        ("all_to_all_bandwidth", "300"),
    ]


def test_every_scenario_says_what_it_is() -> None:
    for name, item in SCENARIOS.items():
        assert item.doc[-1] == ".", name
        assert item.doc[0].isupper(), name
