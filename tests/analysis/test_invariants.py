"""What holds for every trace: parts add up, and small models that look at every column agree."""

from __future__ import annotations

from collections import Counter

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.drawings import KINDS, Drawing, drawings
from tests.builders import draw, records
from tracelens import analyze
from tracelens.trace import Run, make_run

# At 300 ns a column gaps are short and children overrun within the tolerance; at 10 us nothing is small.
units = st.sampled_from([300, 10_000])


def run_of(drawing: Drawing, unit: int) -> Run:
    return make_run([draw(drawing.text, ns_per_char=unit)])


def metrics(run: Run) -> dict[str, int]:
    return dict(records(analyze(run, "timeline")["timeline"], "metric", "dur_ns"))


def running(drawing: Drawing, column: int) -> list[tuple[int, int, int]]:
    """(kind, start, row) of the work that runs in a column, the one that owns it first."""
    events_of = [
        (work.kind, work.start, row)
        for row, work in enumerate(drawing.work)
        if work.start <= column < work.start + work.length
    ]
    return sorted(events_of)


def columns_of_work(drawing: Drawing) -> range:
    first = min(work.start for work in drawing.work)
    return range(first, max(work.start + work.length for work in drawing.work))


@given(drawings, units)
def test_timeline_against_every_column(drawing: Drawing, unit: int) -> None:
    want: Counter[str] = Counter()
    for column in columns_of_work(drawing):
        kinds = {kind for kind, _, _ in running(drawing, column)}
        want["total"] += unit
        want["busy"] += unit * bool(kinds)
        names = ("computation", "comm", "memcpy", "memset")
        for kind in kinds:
            want[names[kind]] += unit
        if kinds and min(kinds) > 0:
            want[f"exposed_{names[min(kinds)]}"] += unit
    by_metric = metrics(run_of(drawing, unit))
    by_metric.pop("unlinked")
    idle = by_metric.pop("idle")
    assert +Counter(by_metric) == +want
    assert idle == want["total"] - want["busy"]
    assert by_metric["busy"] == by_metric["computation"] + sum(
        v for k, v in by_metric.items() if "exposed" in k
    )


def add_up(table: pd.DataFrame, column: str) -> None:
    """Each parent is the sum of its children; leaves and those whose children are all absent aside."""
    below: Counter[int] = Counter()
    for parent, value in records(table, "parent", column):
        below[parent] += value
    has_children = set(table["parent"])
    for node, value in records(table, "node", column):
        if node in has_children:
            assert value == below[node], (node, column)


@given(drawings, units)
def test_breakdown_adds_up(drawing: Drawing, unit: int) -> None:
    run = run_of(drawing, unit)
    table = analyze(run, "breakdown")["breakdown"]
    for column in ("exclusive_ns", "sum_ns", "count"):
        add_up(table, column)
    assert (table["exclusive_ns"] >= 0).all()
    assert (table["subtree_ns"] >= table["sum_ns"]).all()
    assert (table["parent"] < table["node"]).all()
    steps = table[table["level"] == "step"]
    assert steps["sum_ns"].sum() == sum(work.length for work in drawing.work) * unit
    assert steps["count"].sum() == len(drawing.work)
    idle = table[table["name"] == "idle"]["exclusive_ns"].sum()
    assert steps["exclusive_ns"].sum() - idle == metrics(run)["busy"]


@given(drawings, units)
def test_breakdown_gives_each_column_to_the_first_by_priority(drawing: Drawing, unit: int) -> None:
    want: Counter[str] = Counter()
    for column in columns_of_work(drawing):
        if owner := running(drawing, column)[:1]:
            work = drawing.work[owner[0][2]]
            want[KINDS[work.kind]] += unit
    table = analyze(run_of(drawing, unit), "breakdown")["breakdown"]
    kernels = table[table["level"] == "kernel"]
    names = {"Memcpy HtoD (Pinned -> Device)": "copy", "Memset (Device)": "fill"}
    totals: Counter[str] = Counter()
    for name, value in records(kernels, "name", "exclusive_ns"):
        totals[names.get(name, name)] += value
    assert +totals == want


@given(drawings, units)
def test_steps_take_the_whole_apart(drawing: Drawing, unit: int) -> None:
    run = run_of(drawing, unit)
    result = analyze(run, "timeline")
    if not drawing.steps:
        assert "steps" not in result.tables
        return
    steps, whole = result["steps"], metrics(run)
    for metric in ("busy", "computation", "comm", "memcpy", "exposed_comm", "exposed_memcpy", "unlinked"):
        assert steps[f"{metric}_ns"].sum() == whole[metric]
    windows = analyze(run, "breakdown")["breakdown"]
    windows = windows[windows["level"] == "step"]
    assert records(windows, "name", "exclusive_ns") == records(steps, "step", "total_ns")


@given(drawings, units)
def test_idle_causes_add_up_to_the_idle_time(drawing: Drawing, unit: int) -> None:
    run = run_of(drawing, unit)
    result = analyze(run, "idle")
    table = analyze(run, "breakdown")["breakdown"]
    idle = int(table[table["name"] == "idle"]["exclusive_ns"].sum())
    if not metrics(run)["total"]:
        return  # the breakdown's window is at least 1 ns long, and idle
    causes, hosts, gaps = result["causes"], result["hosts"], result["gaps"]
    assert causes["dur_ns"].sum() == idle
    assert causes["fraction_of_idle"].sum() == pytest.approx(1 if idle else 0)
    long = causes["dur_ns"].sum() - gaps["dur_ns"].sum()
    assert gaps["dur_ns"].sum() == hosts["dur_ns"].sum()
    assert 0 <= long <= 1000 * causes["count"].sum()
    assert (gaps["dur_ns"] > 1000).all()
    for cause, count, dur in records(causes, "cause", "count", "dur_ns"):
        of_cause = hosts[hosts["cause"] == cause]
        if cause != "short gaps":
            assert of_cause["dur_ns"].sum() == dur
            assert of_cause["count"].max() <= count <= of_cause["count"].sum()


@given(drawings, units)
def test_scopes_add_up(drawing: Drawing, unit: int) -> None:
    run = run_of(drawing, unit)
    for name, table in analyze(run, "scopes").tables.items():
        top = table[table["parent"].isna()]
        assert top["exclusive_ns"].sum() == metrics(run)["busy"], name
        assert top["count"].sum() == len(drawing.work)
        assert table["direct_ns"].sum() == metrics(run)["busy"]
        assert (table["forward_ns"] + table["backward_ns"] == table["exclusive_ns"]).all()
        below: Counter[int] = Counter()
        for parent, value in records(table, "parent", "exclusive_ns"):
            below[parent] += value
        for node, direct, value in records(table, "node", "direct_ns", "exclusive_ns"):
            assert value == direct + below[node]


@given(drawings, units)
def test_ops_and_kernels_miss_nothing(drawing: Drawing, unit: int) -> None:
    run = run_of(drawing, unit)
    ops, kernels = analyze(run, "ops")["ops"], analyze(run, "kernels")["kernels"]
    work = [work for work in drawing.work if work.kind < 2]
    assert kernels["count"].sum() == len(work)
    assert kernels["sum_ns"].sum() == sum(item.length for item in work) * unit
    assert (kernels["min_ns"] <= kernels["median_ns"]).all()
    assert (kernels["median_ns"] <= kernels["max_ns"]).all()
    assert (ops["subtree_dur_ns"] >= ops["dur_ns"]).all()
    if len(ops):
        # A subtree is at most everything once: recursion must not count twice.
        everything = sum(item.length for item in drawing.work) * unit
        assert ops["subtree_dur_ns"].max() <= everything
        assert ops["dur_ns"].sum() <= everything


@given(drawings, units)
def test_launches_against_every_column(drawing: Drawing, unit: int) -> None:
    launched = [(drawing.calls[work.call][0], work) for work in drawing.work if work.call in drawing.calls]
    result = analyze(run_of(drawing, unit), "launches")
    if not launched:
        assert len(result["launches"]) == 0
        return
    bound = 0
    for column in columns_of_work(drawing):
        waiting = sum(called <= column < work.start + work.length for called, work in launched)
        bound += unit * (not running(drawing, column) and waiting <= 1)
    by_name = {
        metric: (count, dur)
        for metric, count, dur in records(result["launches"], "metric", "count", "dur_ns")
    }
    assert by_name["launched"][0] == len(launched)
    assert by_name["launch bound"][1] == bound
    assert result["latency_histogram"]["count"].sum() == len(launched)
    queue = result["queue"]
    deepest = max(
        sum(called <= column < work.start + work.length for called, work in launched)
        for column in range(2 * 50)
    )
    assert queue["depth_max"].max() == deepest
    assert (queue["depth_mean"] <= queue["depth_max"] + 1e-9).all()
