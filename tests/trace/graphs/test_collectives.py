"""Collectives that graphs replay have the records of their capture, each replay its own kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.builders import aligned, draw, records
from tracelens import analyze, load
from tracelens.trace import Trace, make_run
from tracelens.trace.graphs import attributed
from tracelens.trace.graphs.splice import Replayed, collectives

SAMPLES = Path(__file__).parents[3] / "sample_traces" / "ladder" / "ep4"

RECORD = "collective=allreduce group=0 ranks=[0,1] size=2 in=8 out=8 dtype=Float"
CAPTURE = aligned(f"""
    launch hipStreamBeginCapture                     | b
    op aten::mm                                      |  ---
    launch hipLaunchKernel kernel=gemm               |   c
    op record_param_comms {RECORD}                   |     -----
    launch hipLaunchKernel kernel=prepare            |      d
    launch hipLaunchKernel kernel=nccl_AllReduce_sum |        e
    op record_param_comms {RECORD.replace("8", "6")} |          ---
    launch hipLaunchKernel kernel=nccl_AllReduce_sum |           f
    launch hipStreamEndCapture                       |              g
""")
REPLAYS = aligned(f"""
    op record_param_comms {RECORD.replace("8", "4")} | ---
    launch                                           |  x
    s9 nccl_AllReduce_sum                            |   x
    launch hipGraphLaunch                            |     a            h
    s7 gemm                                          |      a            h
    s7 prepare                                       |        a            h
    s7 nccl_AllReduce_sum                            |         aa a         hh h
""")


def test_each_replay_has_its_own_records() -> None:
    trace = attributed(draw(REPLAYS), [draw(CAPTURE)])
    rows = records(trace.tables["collectives"].frame, "group", "in_bytes", "order", "kernel_id", "event_id")
    assert [row[:3] for row in rows] == [("0", size * 4, n) for n, size in enumerate((4, 8, 6, 8, 6))]
    kernels = [row[3] for row in rows]
    events = trace.events
    assert set(events["name"].iloc[kernels]) == {"nccl_AllReduce_sum"}
    assert events["ts_ns"].iloc[kernels].is_monotonic_increasing
    assert len(set(kernels)) == 5
    assert set(events["name"].iloc[[row[4] for row in rows]]) == {"record_param_comms"}
    assert events["source"].astype(str).iloc[[row[4] for row in rows]].tolist() == ["trace"] + ["capture"] * 4


def test_sizes_of_another_batch_are_unknown() -> None:
    template, trace = draw(CAPTURE), draw(REPLAYS)
    record = template.tables["collectives"].array("event_id")[:1]
    replay = Replayed(template, record, 100, np.array([0]), np.array([3]), has_arguments=False)
    table = collectives(trace, np.arange(200), [replay])
    assert records(table.frame, "event_id", "in_bytes", "out_bytes") == [(0, 16, 16), (100, None, None)]
    assert table.texts("in_split")[1] == ""


def communication(trace: Trace) -> dict[tuple[str, str, int], float]:
    """Kernels of a step by collective, group and size."""
    table = trace.tables["collectives"].take(trace.tables["collectives"].array("kernel_id") >= 0)
    steps = len(analyze(make_run([trace], partial=True), "steps")["steps"])
    keys = zip(
        table.texts("collective"),
        table.texts("group_description"),
        table.array("in_bytes").tolist(),
        strict=True,
    )
    return {key: count / steps for key, count in Counter(keys).items()}


@pytest.mark.slow
def test_a_training_step_in_a_graph_communicates_as_its_eager_twin() -> None:
    eager = SAMPLES / "07_manual_gc"
    run, twin = load(SAMPLES / "08_graph", twin=eager), load(eager)
    for graph, other in zip(run.traces, twin.traces, strict=True):
        assert sum(communication(graph).values()) == 17
        assert communication(graph) == communication(other)
