"""Sums of AMD's TraceLens reports on traces of MI300X and H100, reproduced event by event.

The reference adds float microseconds, so times may differ by its rounding for each GPU event summed
(`Reference.noise_ns`, 1 ns here) and by nothing else; counts, names and recorded kernel durations are exact.

A report with an is_recompute column is of a run with activation checkpointing, and its rows are split in
two: True is GPU work launched inside a Python frame `recompute_fn` of torch/utils/checkpoint.py, that is the
forward that the backward pass runs again; False is all other work. Each half of its timeline is computed as
if the other half did not exist, so only computation, communication and copies add up to the whole.
"""

import ast
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tests.conformance.corpus import Reference, part_metrics
from tests.conformance.naive import OpTime, ancestors, is_recompute_frame, op_times
from tracelens.trace import WORK_KINDS, Work, gpu_work

METRICS = {
    "total_time": "total",
    "busy_time": "busy",
    "idle_time": "idle",
    "computation_time": "computation",
    "total_comm_time": "comm",
    "total_memcpy_time": "memcpy",
    "exposed_comm_time": "exposed_comm",
    "exposed_memcpy_time": "exposed_memcpy",
}
"""Row of gpu_timeline.csv to metric of `timeline`."""

Floats = Mapping[Any, float]

DURATION = "Kernel duration (µs)"


def assert_close(found: Floats, expected: Floats, allowed: Floats) -> None:
    """Same keys, and each value within its allowance."""
    assert found.keys() == expected.keys()
    wrong = {
        key: f"{value} is not {expected[key]:.1f} +- {allowed[key]:.0f}"
        for key, value in found.items()
        if abs(value - expected[key]) > allowed[key]
    }
    assert not wrong


def recomputed(reference: Reference, work: Work) -> np.ndarray:
    """Mask of work launched inside a recomputed forward, by the frames on the trace's call stack."""
    trace = reference.trace
    names = trace.events["name"].cat
    frames = {code for code, name in enumerate(names.categories) if is_recompute_frame(name)}
    code, parent = names.codes.tolist(), trace.tables["events"].array("parent_id").tolist()
    return np.array(
        [
            call >= 0 and any(code[row] in frames for row in ancestors(parent, call))
            for call in work.launch.tolist()
        ]
    )


def test_timeline(reference: Reference) -> None:
    expected = reference.csv("gpu_timeline")
    if reference.splits_recompute:  # only these add up over the halves, which the next test looks at
        rows = expected[~expected["is_recompute"]].set_index("type")["time ms"]
        again = expected[expected["is_recompute"]].set_index("type")["time ms"]
        additive = ["computation_time", "total_comm_time", "total_memcpy_time"]
        times = rows[["total_time", *additive]].copy()
        times[additive] += again[additive]
    else:
        times = expected.set_index("type")["time ms"]
        assert set(times.index) == set(METRICS)
    work = gpu_work(reference.trace, "linked")
    found = reference.case.metrics(0, "linked")
    assert found["busy"] == found["computation"] + found["exposed_comm"] + found["exposed_memcpy"]
    allowed = reference.noise_ns * len(work.event)
    assert_close(
        {METRICS[name]: found[METRICS[name]] for name in times.index},
        {METRICS[name]: value * 1e6 for name, value in times.items()},
        dict.fromkeys(METRICS.values(), allowed),
    )


def test_timeline_of_recomputed_and_other_work(reference: Reference) -> None:
    expected = reference.csv("gpu_timeline")
    work = gpu_work(reference.trace, "linked")
    again = recomputed(reference, work)
    if not reference.splits_recompute:  # one part, so nothing may be recomputed
        expected["is_recompute"] = False
    assert set(again) == set(expected["is_recompute"])
    for flag, rows in expected.groupby("is_recompute"):
        part = work.take(again == flag)
        times = rows.set_index("type")["time ms"]
        assert_close(
            part_metrics(part, "computation", "memset"),
            {METRICS[name]: value * 1e6 for name, value in times.items()},
            dict.fromkeys(METRICS.values(), reference.noise_ns * len(part.event)),
        )


def naive_ops(reference: Reference) -> dict[tuple[str, bool], OpTime]:
    """Op times by name and recomputation of what the reference counts: linked and no communication."""
    work = gpu_work(reference.trace, "linked")
    comm = work.kind == WORK_KINDS.index("comm")
    return op_times(reference.trace, work.event[~comm].tolist())


def expected_ops(reference: Reference) -> pd.DataFrame:
    """ops_summary.csv by (name, is_recompute)."""
    table = reference.csv("ops_summary")
    if not reference.splits_recompute:
        table["is_recompute"] = False
    return table.set_index(["name", "is_recompute"])


def test_ops(reference: Reference) -> None:
    sums = ["Count", "total_direct_kernel_time_sum", "total_subtree_kernel_time_sum"]
    expected = expected_ops(reference)[sums].groupby("name").sum()
    found = reference.case.table("ops", scope="linked").set_index("name")
    found.index = found.index.astype(str)
    assert found["count"].to_dict() == expected["Count"].to_dict()
    events: dict[object, float] = {}
    for (name, _), times in naive_ops(reference).items():
        events[name] = events.get(name, 0.0) + times.events * reference.noise_ns
    for ours, theirs in (("dur_ns", sums[1]), ("subtree_dur_ns", sums[2])):
        assert_close(found[ours].to_dict(), (expected[theirs] * 1000).to_dict(), events)


def test_ops_split_by_recomputation(reference: Reference) -> None:
    expected = expected_ops(reference)
    found = naive_ops(reference)
    assert {key: times.count for key, times in found.items()} == expected["Count"].to_dict()
    allowed = {key: times.events * reference.noise_ns for key, times in found.items()}
    for place, column in (
        ("direct", "total_direct_kernel_time_sum"),
        ("subtree", "total_subtree_kernel_time_sum"),
    ):
        ours = {key: getattr(times, place) for key, times in found.items()}
        assert_close(ours, (expected[column] * 1000).to_dict(), allowed)


def kernel_rows(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """kernel_summary.csv over some of its columns, in whole ns as the profiler records them."""
    grouped = table.groupby(by, dropna=False)
    return pd.DataFrame(
        {
            "count": grouped[f"{DURATION}_count"].sum(),
            "sum": (grouped[f"{DURATION}_sum"].sum() * 1000).round().astype("int64"),
            "min": (grouped[f"{DURATION}_min"].min() * 1000).round().astype("int64"),
            "max": (grouped[f"{DURATION}_max"].max() * 1000).round().astype("int64"),
        }
    )


def test_kernels(reference: Reference) -> None:
    expected = kernel_rows(reference.csv("kernel_summary"), ["Kernel name"])
    table = reference.case.table("kernels")
    grouped = table.groupby(table["name"].astype(str))  # a name whose op decides its class has several rows
    found = pd.DataFrame(
        {
            "count": grouped["count"].sum(),
            "sum": grouped["sum_ns"].sum(),
            "min": grouped["min_ns"].min(),
            "max": grouped["max_ns"].max(),
        }
    )
    assert found.T.to_dict() == expected.T.to_dict()


def test_kernels_by_launching_op_and_stream(reference: Reference) -> None:
    """Finer than any table of ours: what each op launched on each stream, unlinked work under no op."""
    table = reference.csv("kernel_summary").fillna({"Parent cpu_op": ""})
    expected = kernel_rows(table, ["Parent cpu_op", "Kernel name", "Kernel stream"])
    work = gpu_work(reference.trace)
    work = work.take(work.is_kernel)
    names = np.array([*work.names, ""], dtype=object)
    rows = pd.DataFrame(
        {
            "op": names[_op_names(reference, work)],
            "kernel": names[work.name],
            "stream": work.stream,
            "dur": work.dur,
        }
    )
    found = rows.groupby(["op", "kernel", "stream"])["dur"].agg(["count", "sum", "min", "max"])
    assert found.T.to_dict() == expected.T.to_dict()


def _op_names(reference: Reference, work: Work) -> np.ndarray:
    """Name code of the launching op of linked work, -1 for the rest."""
    codes = reference.trace.events["name"].cat.codes.to_numpy()
    return np.where(work.linked & (work.op >= 0), codes[np.maximum(work.op, 0)], -1)


def arguments(*texts: str, read: Callable[[str], Any]) -> tuple[Any, ...]:
    """Recorded arguments as nested tuples, whatever brackets a tool writes them with."""

    def fixed(value: Any) -> Any:
        return tuple(fixed(entry) for entry in value) if isinstance(value, list | tuple) else value

    return tuple(fixed(read(text)) if text else () for text in texts)


def test_ops_by_arguments(reference: Reference) -> None:
    """Calls of one op apart by shapes, types, strides and scalars, over recomputed calls and others."""
    columns = ["Input Dims", "Input type", "Input Strides", "Concrete Inputs"]
    expected: defaultdict[object, list[float]] = defaultdict(lambda: [0, 0])
    for row in reference.csv("ops_unique_args").fillna(dict.fromkeys(columns, "")).to_dict("records"):
        key = (row["name"], *arguments(*(row[column] for column in columns), read=ast.literal_eval))
        expected[key][0] += row["operation_count"]
        expected[key][1] += row["total_direct_kernel_time_sum"] * 1000
    ops = reference.trace.ops.set_index("event_id")
    texts = ops[["shapes", "dtypes", "strides", "values"]].astype(str)
    names = reference.trace.events["name"].astype(str).to_numpy()
    work = gpu_work(reference.trace, "linked")
    work = work.take((work.kind != WORK_KINDS.index("comm")) & (work.op >= 0))
    counts: Counter[object] = Counter()
    times: Counter[object] = Counter()
    allowed: Counter[object] = Counter()
    for op in np.unique(work.op).tolist():
        mine = work.take(work.op == op)
        key = (names[op], *arguments(*texts.loc[op], read=json.loads))
        counts[key] += 1
        times[key] += mine.union().total
        allowed[key] += len(mine.event) * reference.noise_ns
    assert counts == {key: count for key, (count, _) in expected.items()}
    assert_close(times, {key: time for key, (_, time) in expected.items()}, allowed)
