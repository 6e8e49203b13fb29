"""Every rank by what it does, drawn by hand: one column is 10 us."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.drawings import Drawing, drawings
from tests.analysis.moe_traces import Model, recorded
from tests.analysis.schedules import stages
from tests.builders import aligned, draw, draw_run, records
from tracelens import analyze
from tracelens.analysis import ANALYZERS
from tracelens.analysis.step_timeline import COMMUNICATION
from tracelens.analysis.step_timeline.step_timeline import States, coarser, merged, user_frame, with_waiting
from tracelens.table import Result
from tracelens.trace import Run, make_run, select_step

COLUMN = 10_000
REDUCE = (
    "record_param_comms collective=allreduce group=0 description=DP ranks=[0,1] size=2 in=8 out=8 dtype=Float"
)

# Rank 1 is late: its host is silent before it launches what comes before the all-reduce.
EARLY = f"""
    step 1      | --------------
    op aten::mm | -
    op {REDUCE} |  -
    launch      | ab
    s7 gemm     |  aaa
    s9 nccl_All |    bbbbbbbbbbb
    s7 copy     |              ==
"""
LATE = f"""
    step 1      | --------------
    op aten::mm |        -
    op {REDUCE} |         -
    launch      |        ab
    s7 gemm     |         aa
    s9 nccl_All |           bbbb
    s7 fill     |             ====
"""


def both(**options: Any) -> Run:
    return draw_run(aligned(EARLY), aligned(LATE), ns_per_char=COLUMN, **options)


def timeline(run: Run, **options: Any) -> Result:
    return analyze(run, "step_timeline", **options)


def lane(result: Result, rank: int) -> list[tuple[float, float, str, str]]:
    """(start, length, state, detail) of a rank's states, in columns."""
    table = result["states"]
    rows = records(table[table["rank"] == rank], "ts_ns", "dur_ns", "state", "detail")
    return [(start / COLUMN, dur / COLUMN, state, detail) for start, dur, state, detail in rows]


def test_each_moment_has_one_state() -> None:
    """The GEMM hides the communication, the communication hides the copy, and what is left of it waits."""
    result = timeline(both())
    assert lane(result, 0) == [
        (0, 1, "idle", "launch overhead"),
        (1, 3, "gemm", "aten::mm"),
        (4, 6, "waiting", "for rank 1: late launch"),
        (10, 4, "communication", "allreduce DP"),
        (14, 1, "copy", "Memcpy HtoD (Pinned -> Device)"),
    ]
    assert lane(result, 1) == [
        (0, 8, "idle", "launch overhead"),
        (8, 2, "gemm", "aten::mm"),
        (10, 4, "communication", "allreduce DP"),
        (14, 2, "fill", "Memset (Device)"),
    ]
    assert records(result["shares"], "rank", "state", "dur_ns") == [
        (0, "idle", COLUMN),
        (0, "communication", 4 * COLUMN),
        (0, "waiting", 6 * COLUMN),
        (0, "gemm", 3 * COLUMN),
        (0, "copy", COLUMN),
        (1, "idle", 8 * COLUMN),
        (1, "communication", 4 * COLUMN),
        (1, "gemm", 2 * COLUMN),
        (1, "fill", 2 * COLUMN),
    ]
    assert not result.skips


def test_who_waits_inside_another_wait_waits_no_longer() -> None:
    """A send that waits while a receive does has no waiting of its own."""
    states = States(
        np.array([0, 9]), np.array([9, 12]), np.array([0, 1]), [(COMMUNICATION, "PP"), ("idle", "")]
    )
    rows = [
        {
            "rank": 0,
            "late_rank": 4,
            "cause": cause,
            "collective": "",
            "step": "",
            "local_ts_ns": start,
            "dur_ns": dur,
        }
        for start, dur, cause in ((1, 2, "unknown"), (4, 3, "late_launch"), (5, 0, "late_launch"))
    ]
    lost = ANALYZERS.get("stragglers").tables["lost"]
    waiting = with_waiting(states, lost.from_rows(rows))
    pieces = zip(waiting.start.tolist(), waiting.end.tolist(), waiting.code.tolist(), strict=True)
    assert [(start, end, *waiting.states[code]) for start, end, code in pieces] == [
        (0, 1, "communication", "PP"),
        (1, 3, "waiting", "for rank 4"),
        (3, 4, "communication", "PP"),
        (4, 7, "waiting", "for rank 4: late launch"),
        (7, 9, "communication", "PP"),
        (9, 12, "idle", ""),
    ]


def test_one_rank_alone_does_not_know_its_waiting() -> None:
    result = timeline(make_run([draw(aligned(EARLY), ns_per_char=COLUMN)]))
    assert [state for _, _, state, _ in lane(result, 0)] == ["idle", "gemm", "communication", "copy"]
    assert [skip.subject for skip in result.skips] == ["waiting within communication"]


def test_hosts_with_other_clocks_share_one() -> None:
    """The all-reduces end together; a clock that is 3 s ahead changes nothing."""
    run = make_run(
        draw(aligned(text), ns_per_char=COLUMN, start_ns=start_ns, rank=rank)
        for rank, (text, start_ns) in enumerate(((EARLY, 0), (LATE, 3_000_000_000)))
    )
    assert records(timeline(run)["states"]) == records(timeline(both())["states"])
    assert records(timeline(run)["kernels"]) == records(timeline(both())["kernels"])


STEPS = """
    python train.py(7): loop                                 | --------------------------
    step 1                                                   | ----------
    step 2                                                   |           ------
    step 3                                                   |                 ----------
    python nn.Module: Router_0                               |   ---
    op aten::mm shapes=[[4,8],[8,2]] types=["float","float"] |   ---
    python torch/nn/functional.py(9): softmax                |      --
    op aten::softmax                                         |       -
    launch                                                   |    ab c     d      e f
    s7 gemm                                                  |     a
    s7 softmax                                               |      bbcc    d      e fff
"""


def test_kernels_say_where_they_come_from() -> None:
    run = make_run([draw(aligned(STEPS), ns_per_char=COLUMN)])
    table = timeline(run)["kernels"]
    assert records(table, "category", "op", "shapes", "module", "source")[:3] == [
        ("gemm", "aten::mm", "fp32[4,8] fp32[8,2]", "Router_0", "train.py:7 loop"),
        ("softmax", "aten::mm", "fp32[4,8] fp32[8,2]", "Router_0", "train.py:7 loop"),
        ("softmax", "aten::softmax", "", "", "train.py:7 loop"),
    ]
    assert table["ts_ns"].is_monotonic_increasing


def test_steps_end_states_and_the_median_one_stands_for_the_run() -> None:
    run = make_run([draw(aligned(STEPS), ns_per_char=COLUMN)])
    result = timeline(run)
    assert records(result["steps"]) == [
        ("ProfilerStep#1", 0, 10 * COLUMN, 3, True),
        ("ProfilerStep#2", 10 * COLUMN, 6 * COLUMN, 1, True),
        ("ProfilerStep#3", 16 * COLUMN, 10 * COLUMN, 2, True),
    ]
    assert result.meta["typical_step"] == "ProfilerStep#2"
    assert {10, 16} <= {start for start, *_ in lane(result, 0)}
    assert records(result["marks"], "kind", "name", "depth") == [
        ("step", f"ProfilerStep#{number}", 0) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("budget", "steps", "columns", "cut"),
    [
        (6, [1, 2, 3], [4, 5, 7, 13, 20, 22], []),
        (5, [1, 2], [4, 5, 7, 13], ["kernels of 1 step(s): ProfilerStep#3"]),
        (2, [2], [13], ["kernels of 2 step(s): ProfilerStep#1, ProfilerStep#3"]),
    ],
)
def test_what_is_too_much_is_cut(
    budget: int, steps: list[int], columns: list[int], cut: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The typical step goes first, then the others in order."""
    monkeypatch.setattr("tracelens.analysis.step_timeline.step_timeline.KERNELS_SHOWN", budget)
    result = timeline(make_run([draw(aligned(STEPS), ns_per_char=COLUMN)]))
    table = result["steps"]
    assert table[table["shown"]]["step"].tolist() == [f"ProfilerStep#{number}" for number in steps]
    assert (result["kernels"]["ts_ns"] // COLUMN).tolist() == columns
    assert [skip.subject for skip in result.skips] == cut


def test_of_a_step_that_is_too_long_the_longest_kernels_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.analysis.step_timeline.step_timeline.KERNELS_SHOWN", 2)
    result = timeline(select_step(make_run([draw(aligned(STEPS), ns_per_char=COLUMN)]), "1"))
    assert (result["kernels"]["ts_ns"] // COLUMN).tolist() == [5, 7]
    assert [skip.subject for skip in result.skips] == ["all but the longest of 3 kernels of ProfilerStep#1"]


def test_a_recording_without_steps_is_one() -> None:
    text = "\n".join(line for line in STEPS.splitlines() if " step " not in line)
    result = timeline(make_run([draw(aligned(text), ns_per_char=COLUMN)]))
    assert records(result["steps"], "step", "ts_ns", "kernels", "shown") == [("", 0, 6, True)]
    assert not len(result["marks"])
    assert [skip.subject for skip in result.skips] == ["steps, passes and layers"]


def test_one_step_alone() -> None:
    run = select_step(make_run([draw(aligned(STEPS), ns_per_char=COLUMN)]), "2")
    result = timeline(run)
    assert records(result["steps"]) == [("ProfilerStep#2", 0, 6 * COLUMN, 1, True)]
    assert result["states"]["dur_ns"].sum() == 6 * COLUMN


PAIR = "group=3 description=PP ranks=[0,1] size=2 in=1048576 out=1048576 dtype=Float"
SENDER = f"""
    op record_param_comms collective=send {PAIR} |  -
    launch                                       | ab
    s7 gemm                                      |  aaa
    s9 nccl_Send                                 |     bbb
"""
RECEIVER = f"""
    op record_param_comms collective=recv {PAIR} | -
    launch                                       | a      b
    s9 nccl_Recv                                 |   aaaaa
    s7 gemm                                      |        bbb
"""


def test_messages_go_from_the_begin_of_the_send_to_the_end_of_the_receive() -> None:
    """The picture begins with the first GPU work, that of the sender."""
    result = timeline(draw_run(aligned(SENDER), aligned(RECEIVER), ns_per_char=COLUMN))
    assert records(result["messages"]) == [(0, 3 * COLUMN, 1, 6 * COLUMN, "PP 0-1: 4 MiB")]


def test_pipelines_are_marked() -> None:
    result = timeline(stages("0011..aa..bb", "..00aa11bb.."))
    marks = result["marks"]
    names = [name for _, name in records(marks[marks["kind"] == "pipeline"], "rank", "name")]
    assert Counter(names) == Counter(
        {f"{phase} micro-batch {number}": 2 for phase in "FB" for number in (0, 1)}
    )
    assert set(marks["depth"]) == {0}  # no steps are marked around them


def test_layers_are_marked_and_their_stages_named() -> None:
    run, truth = recorded(Model(layers=2, ranks=2, exchange="all_to_all"))
    result = timeline(run)
    marks = result["marks"]
    layers = marks[marks["kind"] == "moe_layer"]
    assert {"layer 0 forward", "layer 1 forward", "layer 0 backward"} <= set(layers["name"])
    kernels = result["kernels"]
    spent: Counter[tuple[int, str]] = Counter()
    for (rank, _, _, _, stage), ns in truth.items():
        spent[rank, stage] += ns
    for (rank, stage), ns in spent.items():
        own = kernels[(kernels["rank"] == rank) & (kernels["stage"] == stage)]
        assert own["dur_ns"].sum() == ns, (rank, stage)


@pytest.mark.parametrize(
    ("frame", "source"),
    [
        ("train.py(12): step", "train.py:12 step"),
        ("/home/me/run/model.py(3): MoE.forward", "/home/me/run/model.py:3 MoE.forward"),
        ("/venv/lib/python3.12/site-packages/megatron/core/moe.py(9): f", "megatron/core/moe.py:9 f"),
        ("torch/nn/modules/module.py(1775): _call_impl", ""),
        ("/venv/lib/python3.12/site-packages/torch/autograd/graph.py(1): backward", ""),
        ("/usr/lib/python3.11/contextlib.py(81): inner", ""),
        ("<built-in method mm of type object at 0x7f>", ""),
        ("nn.Module: Linear_3", ""),
        ("aten::mm", ""),
    ],
)
def test_whose_code_a_frame_is(frame: str, source: str) -> None:
    assert user_frame(frame) == source


units = st.sampled_from([300, 10_000])


@given(drawings, units)
def test_the_states_are_the_time_of_the_other_analyzers(drawing: Drawing, unit: int) -> None:
    run = make_run([draw(drawing.text, ns_per_char=unit)])
    states = timeline(run)["states"]
    ends = (states["ts_ns"] + states["dur_ns"]).tolist()
    assert states["ts_ns"].tolist() == [0, *ends][: len(ends)]  # none where work takes no time
    assert (states["dur_ns"] > 0).all()
    spent: Counter[str] = Counter()
    for state, dur in records(states, "state", "dur_ns"):
        spent[state] += dur
    table = analyze(run, "breakdown")["breakdown"]
    of_kernels: Counter[str] = Counter()
    own_names = {"gemm": "gemm", "ncclAllReduce": "communication"}
    for level, name, exclusive in records(table, "level", "name", "exclusive_ns"):
        if name == "idle":
            of_kernels["idle"] += exclusive
        elif level == "kernel":
            of_kernels[own_names.get(name, "copy" if "Memcpy" in name else "fill")] += exclusive
    assert +spent == +of_kernels
    idle = states[states["state"] == "idle"].groupby("detail", observed=True)["dur_ns"].sum().to_dict()
    assert idle == dict(records(analyze(run, "idle")["causes"], "cause", "dur_ns"))


PIECES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=40)


@given(PIECES, st.integers(1, 60), st.integers(-20, 20), st.integers(-1, 1))
def test_coarser_states_keep_the_time_in_each_bin(
    pieces: list[tuple[int, int]], bin_ns: int, begin: int, kept: int
) -> None:
    """In every step and bin each state has the time that it had; what is longer than a bin stays."""
    names = [(state, "") for state in "wxyz"]
    length, code = np.array(pieces, dtype=np.int64).T
    end = begin + np.cumsum(length)
    edges = np.array([begin, end[len(end) // 2], end[-1]])
    fine = merged(States(end - length, end, code, names), edges)
    coarse = coarser(fine, edges, bin_ns, kept)
    assert (coarse.start[1:] == coarse.end[:-1]).all()
    assert in_bins(coarse, edges, bin_ns) == in_bins(fine, edges, bin_ns)
    untouched = {key: ns for key, ns in in_bins(fine, edges, 1).items() if key[0] == kept}
    assert untouched.items() <= in_bins(coarse, edges, 1).items()
    assert len(coarse.start) <= len(fine.start)


def in_bins(states: States, edges: np.ndarray, bin_ns: int) -> Counter[Any]:
    """Nanoseconds of each state in each bin of each step."""
    spent: Counter[Any] = Counter()
    for start, end, code in zip(states.start, states.end, states.code, strict=True):
        for time in range(start, end):
            step = int(np.searchsorted(edges, time, side="right")) - 1
            spent[step, (time - edges[step]) // bin_ns, states.states[code]] += 1
    return spent


def test_many_states_are_drawn_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run([draw("s7 gemm | " + "= " * 40 + "=", ns_per_char=100)])
    fine = timeline(run)
    monkeypatch.setattr("tracelens.analysis.step_timeline.step_timeline.STATES_SHOWN", 20)
    coarse = timeline(run)
    assert len(fine["states"]) == 81
    assert len(coarse["states"]) <= 20
    assert coarse["states"]["dur_ns"].sum() == fine["states"]["dur_ns"].sum() == 8100
    assert records(coarse["shares"]) == records(fine["shares"])
    assert any(skip.subject.startswith("order of states within") for skip in coarse.skips)


def test_the_typical_step_becomes_coarse_last(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (
        "step 1  | " + "-" * 40,
        "step 2  | " + " " * 40 + "-" * 41,
        "s7 gemm | " + "= " * 40 + "=",
    )
    run = make_run([draw("\n".join(lines), ns_per_char=100)])
    fine = timeline(run)
    typical = fine["states"]["ts_ns"] < 4000
    monkeypatch.setattr("tracelens.analysis.step_timeline.step_timeline.STATES_SHOWN", 50)
    coarse = timeline(run)
    assert coarse.meta["typical_step"] == "ProfilerStep#1"
    assert records(coarse["states"][:40]) == records(fine["states"][typical])
    assert len(coarse["states"]) <= 50
    monkeypatch.setattr("tracelens.analysis.step_timeline.step_timeline.STATES_SHOWN", 6)
    assert len(timeline(run)["states"]) <= 6


def test_a_piece_lies_at_its_time_since_the_first_event_of_its_trace() -> None:
    """That is how Perfetto shows it; clocks are 3 s apart, and hosts begin at different times."""
    late = LATE.replace("step 1      | --------------", "step 1      |     ----------")
    run = make_run(
        draw(aligned(text), ns_per_char=COLUMN, start_ns=start_ns, rank=rank)
        for rank, (text, start_ns) in enumerate(((EARLY, 0), (late, 3_000_000_000)))
    )
    result = timeline(run)
    table = result["kernels"]
    first_of = dict(records(result["traces"], "rank", "first_event_offset_ns"))
    since = {
        rank: [(ts_ns - first_of[rank]) / COLUMN for ts_ns in table["ts_ns"][table["rank"] == rank]]
        for rank in (0, 1)
    }
    assert since == {0: [1, 3, 13], 1: [4, 6, 8]}
