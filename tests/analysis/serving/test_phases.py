"""Runs narrowed to one phase of serving: by hand, and against the raw events of recorded serving runs."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tests.analysis.serving.test_serving import DECODE, PREFILL, rank
from tests.builders import aligned, draw, draw_run, read, records
from tests.reference.raw import text_of
from tracelens.analysis.comm import align_run
from tracelens.analysis.serving import rank_steps, select_phase
from tracelens.errors import TracelensError
from tracelens.trace import Run, Stretch, Trace, excerpt, make_run
from tracelens.trace.trace import references

SAMPLES = Path(__file__).parents[3] / "sample_traces" / "serving"
LABEL = ("prefill[", "decode[", "eager_decode[")


def kernels(trace: Trace) -> list[tuple[str, int, int]]:
    """(name, begin, duration) of the GPU work in order of time, us from the window's begin."""
    assert trace.window is not None
    work = trace.work
    begin, dur = (work.start - trace.window.start) // 1000, work.dur // 1000
    return [
        (work.names[name], at, ns)
        for name, at, ns in zip(work.name.tolist(), begin.tolist(), dur.tolist(), strict=True)
    ]


def test_the_steps_of_a_phase_follow_each_other() -> None:
    """What runs between the marks, as sampling, belongs to no phase; the host's time before a step does."""
    run = draw_run(
        aligned(f"""
            scope {PREFILL} | ---
            scope {DECODE}  |             ----            -----
            launch          | a        s   b               c
            op aten::mm     | -            -               -
            s7 gemm         |   aaaa        bb              c
            s7 sample       |           ss
        """)
    )
    decode = select_phase(run, "decode").traces[0]
    # The first decode begins on the host at 13, as `sample` ends, the second at 29; they end at 17 and 32.
    assert kernels(decode) == [("gemm", 2, 2), ("gemm", 6, 1)]
    assert decode.window is not None
    assert (decode.window.label, decode.window.end - decode.window.start) == ("decode", 4_000 + 3_000)
    prefill = select_phase(run, "prefill").traces[0]
    assert kernels(prefill) == [("gemm", 0, 4)]


def test_a_host_that_runs_ahead() -> None:
    """Kernels start at 20, launched before 10: the excerpt keeps steps and kernels together."""
    steps = ((PREFILL, 10), (DECODE, 4), (PREFILL, 6), (DECODE, 3), (DECODE, 2))
    run = draw_run(rank(*steps))
    decode = select_phase(run, "decode").traces[0]
    assert kernels(decode) == [("gemm", 0, 4), ("gemm", 4, 3), ("gemm", 7, 2)]
    assert [step.dur_ns for step in rank_steps(decode).steps] == [4_000, 3_000, 2_000]
    times = decode.arrays
    marks = times.where("annotation")
    assert (times.end[marks][:-1] <= times.start[marks][1:]).all()


def test_ranks_are_cut_at_the_same_times() -> None:
    """Rank 1 decodes in 3 us where rank 0 takes 4: both begin together again."""
    first = rank((PREFILL, 10), (DECODE, 4), (PREFILL, 6), (DECODE, 4))
    second = rank((DECODE, 10), (DECODE, 3), (PREFILL, 7), (DECODE, 2))
    run = draw_run(first, second)
    decode = select_phase(run, "decode")
    assert [kernels(trace) for trace in decode.traces] == [
        [("gemm", 0, 4), ("gemm", 4, 4)],
        [("gemm", 0, 3), ("gemm", 4, 2)],
    ]
    assert len({trace.window[1:3] for trace in decode.traces if trace.window}) == 1
    assert [len(trace.work.event) for trace in select_phase(run, "mixed").traces] == [1, 1]
    assert [len(trace.work.event) for trace in select_phase(run, "prefill").traces] == [1, 1]


def test_ranks_by_different_clocks_are_cut_at_the_same_times() -> None:
    """Rank 1's clock is 5 ms ahead; its all-reduces end when those of rank 0 end."""
    record = "op record_param_comms collective=allreduce group=0 ranks=[0,1] size=2 in=8 out=8 dtype=Half"
    drawing = aligned(f"""
        {record}                   | -    -    -
        scope {DECODE}             | -         -
        scope {PREFILL}            |      -
        launch                     | a    b    c
        s7 ncclDevKernel_AllReduce |       aaaaabbbbccc
    """)
    traces = [draw(drawing, rank=0), draw(drawing, rank=1, start_ns=5_000_000)]
    decode = select_phase(make_run(traces), "decode")
    assert [kernels(trace) for trace in decode.traces] == [
        [("ncclDevKernel_AllReduce", 0, 5), ("ncclDevKernel_AllReduce", 5, 3)]
    ] * 2
    aligned_run = align_run(decode)
    assert aligned_run.shift == {0: 0, 1: -5_000_000}
    assert [collective.latency_ns for collective in aligned_run.collectives] == [5_000, 3_000]
    assert all(ns == 0 for collective in aligned_run.collectives for ns in collective.wait_ns.values())


def test_a_run_without_a_gpu() -> None:
    """Ops are the work, and a phase has those in its marks: 2 and 1 us in two steps of 3 us."""
    run = draw_run(
        aligned(f"""
            scope {PREFILL} | ----
            scope {DECODE}  |      ---      ---
            op aten::mm     | ---- --       -
        """)
    )
    (decode,) = select_phase(run, "decode").traces
    assert decode.meta.cpu_only
    assert kernels(decode) == [("aten::mm", 0, 2), ("aten::mm", 3, 1)]
    assert decode.window is not None
    assert decode.window.end - decode.window.start == 6_000


def test_marks_of_the_gpu_alone() -> None:
    """Recorded without the CPU: what begins within a mark on the GPU is in its step, and cut at its end."""
    mark = {"cat": "gpu_user_annotation", "ph": "X", "pid": 0, "tid": 7}
    kernel = {
        "cat": "kernel",
        "ph": "X",
        "pid": 0,
        "tid": 7,
        "name": "gemm",
        "args": {"device": 0, "stream": 7},
    }
    found = [
        {**mark, "name": DECODE, "ts": 0, "dur": 4},
        {**mark, "name": PREFILL, "ts": 4, "dur": 10},
        {**mark, "name": DECODE, "ts": 20, "dur": 5},
        *({**kernel, "ts": ts, "dur": dur} for ts, dur in ((1, 2), (4, 9), (21, 3), (26, 1))),
    ]
    (decode,) = select_phase(make_run([read(found)]), "decode").traces
    assert kernels(decode) == [("gemm", 1, 2), ("gemm", 5, 3)]


def test_analyzers_see_only_the_phase() -> None:
    run = draw_run(rank((PREFILL, 10), (DECODE, 4), (PREFILL, 6), (DECODE, 3)))
    result = tracelens.analyze(run, "timeline", step="decode")
    total = records(result["timeline"], "metric", "dur_ns")[0]
    assert total == ("total", 7_000)
    serving = tracelens.analyze(run, "serving", step="decode")
    assert records(serving["ranks"], "kind", "count", "dur_ns", "requests") == [("decode", 2, 7_000, 32)]


def test_what_is_not_there_is_an_error() -> None:
    run = draw_run(rank((PREFILL, 10), (DECODE, 4)))
    with pytest.raises(TracelensError, match=r"no step 'mixed' \(has: 1 prefill, 1 decode\)"):
        select_phase(run, "mixed")
    bare = draw_run("launch  |a\ns7 gemm | aa")
    with pytest.raises(TracelensError, match="no step label of"):
        select_phase(bare, "decode")
    # One rank of two without labels: which steps are one is not known.
    with pytest.raises(TracelensError, match="no step label of"):
        select_phase(draw_run(rank((DECODE, 4)), "launch  |a\ns7 gemm | aa"), "decode")


def test_several_files_and_runs_in_memory_agree() -> None:
    folder = SAMPLES / "delayer_on"
    report = tracelens.report_files(folder, names=["timeline", "kernels", "serving"], step="decode")
    run = tracelens.load(folder)
    for result in report.results:
        expected = tracelens.analyze(run, result.analyzer, step="decode")
        for name in result.data:
            assert result[name].equals(expected[name]), name


@pytest.mark.parametrize(
    "name",
    [
        "delayer_off",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("delayer_on", "tbo_request", "tbo_token")),
    ],
)
def test_phases_of_a_recorded_run_are_its_steps(name: str) -> None:
    """Each step of a phase keeps its duration and its kernels' time; every step is in one phase."""
    run = tracelens.load(SAMPLES / name)
    seen: list[Counter[int]] = [Counter() for _ in run.traces]
    for phase in ("prefill", "decode", "mixed"):
        try:
            narrowed = select_phase(run, phase)
        except TracelensError:
            continue
        for rank_number, (whole, part) in enumerate(zip(run.traces, narrowed.traces, strict=True)):
            all_ns = {step.label: step.dur_ns for step in rank_steps(whole).steps}
            steps = rank_steps(part).steps
            assert all(all_ns[step.label] == step.dur_ns for step in steps)
            assert sum(step.dur_ns for step in steps) <= part.window[2] - part.window[1]  # type: ignore[index]
            seen[rank_number].update(part.work.dur.tolist())
    for trace, durations in zip(run.traces, seen, strict=True):
        assert durations == raw_durations(Path(trace.meta.path))


def raw_durations(path: Path) -> Counter[int]:
    """Durations of all GPU work that was launched within a labeled step, from the plain JSON."""
    found = json.loads(text_of(path))["traceEvents"]
    marks = [
        (event["ts"], event["ts"] + event["dur"])
        for event in found
        if event.get("cat") == "user_annotation" and event["name"].startswith(LABEL)
    ]
    called: dict[Any, float] = {
        event["args"]["correlation"]: event["ts"]
        for event in found
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    durations: Counter[int] = Counter()
    for event in found:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            ts = called.get(event["args"]["correlation"], -1.0)
            if any(begin <= ts <= end for begin, end in marks):
                durations[round(event["dur"] * 1000)] += 1
    return durations


@given(
    st.lists(st.tuples(st.sampled_from([PREFILL, DECODE]), st.integers(1, 6)), min_size=1, max_size=9),
)
def test_nothing_is_lost_and_nothing_twice(steps: list[tuple[str, int]]) -> None:
    run = draw_run(rank(*steps))
    durations = []
    for phase, label in (("prefill", PREFILL), ("decode", DECODE)):
        if label not in dict(steps):
            continue
        (part,) = select_phase(run, phase).traces
        columns = [number for text, number in steps if text == label]
        assert [ns for _, _, ns in kernels(part)] == columns
        assert part.window is not None
        assert part.window.end - part.window.start == 1000 * sum(columns)
        durations += columns
    assert len(durations) == len(steps)


def test_columns_that_hold_rows_of_events() -> None:
    """Excerpts renumber these; the first of each table is the event that its rows describe."""
    tables = draw(rank((DECODE, 4))).tables
    found = {name: references(table.schema) for name, table in tables.items()}
    described = {"events": "event_id", "ops": "event_id", "collectives": "event_id", "links": "kernel_id"}
    assert described.items() <= {name: keys[0] for name, keys in found.items()}.items()
    assert {"parent_id", "launch_id", "op_id", "forward_op_id"} <= {*found["events"], *found["links"]}


def test_links_of_an_excerpt_point_at_its_own_events() -> None:
    trace = draw(
        aligned("""
            python model.py(1): forward | -----------------------
            op aten::mm                 |  ---      ---      ---
            launch                      |   a        b        c
            s7 gemm                     |    aa       bb       cc
        """)
    )
    part = excerpt(
        trace,
        "two",
        [Stretch(3000, 6000, 1000, 5000, 0, 0), Stretch(21_000, 23_000, 18_000, 22_000, 14_000, 13_000)],
    )
    events, links = part.arrays, part.tables["links"]
    names = [events.names[code] for code in events.name.tolist()]
    assert Counter(names) == {"gemm": 2, "cudaLaunchKernel": 2, "aten::mm": 2, "model.py(1): forward": 1}
    columns = [links.array(name).tolist() for name in ("kernel_id", "launch_id", "op_id")]
    for kernel, launch, op in zip(*columns, strict=True):
        assert (names[kernel], names[launch], names[op]) == ("gemm", "cudaLaunchKernel", "aten::mm")
        assert events.start[launch] <= events.start[kernel]
        assert events.parent[launch] == op
    assert part.tables["events"].array("event_id").tolist() == list(range(len(names)))
    assert part.whole is trace
    assert all(before <= after for before, after in pairwise(np.sort(part.work.start).tolist()))
    assert isinstance(Run((part,)), Run)
