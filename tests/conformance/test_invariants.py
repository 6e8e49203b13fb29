"""What must hold in every trace, whatever is in it: sums that are one thing and so equal to the ns."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from tests.conformance import naive
from tests.conformance.corpus import Case
from tests.effort import THOROUGH
from tracelens.analysis import in_order
from tracelens.table import Schema
from tracelens.trace import COLLECTIVES, EVENTS, LINKS, OPS, Scope, gpu_work, steps_of
from tracelens.trace.activities import SCOPES

LEVELS = ("step", "category", "op", "shape", "kernel")

scopes = pytest.mark.parametrize("scope", SCOPES)


def of_rank(table: pd.DataFrame, rank: int) -> pd.DataFrame:
    return table[table["rank"] == rank]


def total(table: pd.DataFrame, column: str = "dur_ns") -> int:
    return int(table[column].sum())


def child_sums(table: pd.DataFrame, column: str) -> pd.Series:
    """By node of a hierarchy of one rank: the sum over its children."""
    return table.dropna(subset="parent").astype({"parent": int}).groupby("parent")[column].sum()


def assert_fits(table: pd.DataFrame, schema: Schema) -> None:
    """Declared columns in order, with their dtypes, unknown only where declared, fractions from 0 to 1."""
    assert list(table.columns) == schema.names
    for column in schema.columns:
        values, where = table[column.name], f"{schema.title}: {column.name}"
        dtype = column.dtype if column.absent is None else column.dtype.capitalize()
        assert str(values.dtype) == dtype, where
        known = values.dropna()
        assert len(known) == len(values) or column.absent is not None, where
        if column.dtype == "float64":
            assert np.isfinite(known).all(), where
        if column.unit == "fraction":
            assert known.between(0, 1 + 1e-9).all(), where


@scopes
def test_tables_fit_their_schemas(case: Case, scope: Scope) -> None:
    if scope != "all" and not case.is_small and not THOROUGH:
        pytest.skip("large: with TRACELENS_TESTS=thorough")
    ranks = set(case.run.ranks)
    for analyzer in in_order():
        if scope != "all" and "scope" not in analyzer.options:
            continue
        result = case.result(analyzer.name, scope)
        for name, table in result.tables.items():
            assert_fits(table, result.schemas[name])
            assert set(table.get("rank", ())) <= ranks, name


def test_traces_fit_their_schemas(case: Case) -> None:
    for trace in case.run.traces:
        for schema in (EVENTS, OPS, COLLECTIVES, LINKS):
            assert_fits(getattr(trace, schema.title), schema)


@scopes
def test_every_rank_is_analysed_or_skipped(case: Case, scope: Scope) -> None:
    result = case.result("timeline", scope)
    silent = set(case.run.ranks) - set(result["timeline"]["rank"])
    assert silent == {trace.meta.rank for trace in case.run.traces if not len(gpu_work(trace, scope).event)}
    for rank in silent:
        assert any(skip.subject == f"rank {rank}" and skip.reason for skip in result.skips)


def test_input_is_kept_or_dropped(case: Case) -> None:
    table = case.table("input")
    assert (table["events_read"] == table["events_kept"] + table["events_dropped"]).all()
    for trace in case.run.traces:
        (row,) = of_rank(table, trace.meta.rank).to_dict("records")
        gpu = trace.events[trace.events["kind"].isin(["kernel", "memcpy", "memset"])]
        assert row["gpu_events"] == len(gpu)
        assert row["linked_fraction"] == (gpu["linked"].mean() if len(gpu) else 0)
        assert len(trace.events) <= row["events_kept"]


def assert_adds_up(metrics: dict[str, int]) -> None:
    exposed = [value for name, value in metrics.items() if name.startswith("exposed_")]
    assert metrics["busy"] == metrics["computation"] + sum(exposed)
    assert metrics["total"] == metrics["busy"] + metrics["idle"]
    for kind in ("comm", "memcpy", "memset"):
        assert metrics.get(f"exposed_{kind}", 0) <= metrics.get(kind, 0) <= metrics["busy"]


@scopes
def test_timeline_adds_up(case: Case, scope: Scope) -> None:
    for rank, _, work in case.each(scope):
        metrics = case.metrics(rank, scope)
        assert ("exposed_memset" in metrics) == (scope == "all")
        assert_adds_up(metrics)
        assert metrics["total"] == work.end.max() - work.start.min()


@scopes
def test_steps_add_up_to_the_timeline(case: Case, scope: Scope) -> None:
    result = case.result("timeline", scope)
    for rank, trace, _ in case.each(scope):
        found = steps_of(trace)
        if not found.marked:
            continue
        steps = of_rank(result["steps"], rank)
        assert steps["step"].tolist() == found.labels
        assert steps["total_ns"].tolist() == np.diff(found.edges).tolist()
        assert (steps["total_ns"] == steps["busy_ns"] + steps["idle_ns"]).all()
        # Windows cover all work, so whatever is a union over time is the sum of its parts in the windows.
        whole = case.metrics(rank, scope)
        sums = {name: total(steps, f"{name}_ns") for name in whole if f"{name}_ns" in steps}
        if scope == "linked":
            sums.pop("unlinked")  # the windows need not cover work that this scope leaves out
        sums["total"] -= int(found.edges[-1] - found.edges[0]) - whole["total"]
        sums["idle"] -= int(found.edges[-1] - found.edges[0]) - whole["total"]
        assert sums == {name: whole[name] for name in sums}


@scopes
def test_unlinked_work_is_told_in_either_scope(case: Case, scope: Scope) -> None:
    for rank, trace, _ in case.each(scope):
        work = gpu_work(trace)
        unlinked = work.take(work.unlinked)
        expected = naive.covered(zip(unlinked.start.tolist(), unlinked.end.tolist(), strict=True))
        assert case.metrics(rank, scope)["unlinked"] == expected


@scopes
def test_breakdown_children_add_up_to_their_parent(case: Case, scope: Scope) -> None:
    for rank, _, work in case.each(scope):
        nodes = of_rank(case.table("breakdown", scope=scope), rank).set_index("node")
        has_children = nodes.index.isin(nodes["parent"])
        assert set(nodes.loc[~has_children, "level"]) <= {"kernel", "category"}  # idle is a category
        assert (nodes.loc[~has_children & (nodes["level"] == "category"), "name"].astype(str) == "idle").all()
        for column in ("exclusive_ns", "sum_ns", "count"):
            sums = child_sums(nodes, column)
            assert (nodes.loc[sums.index, column] == sums).all(), column
        for level, below in pairwise(LEVELS):
            parents = nodes.loc[nodes.loc[nodes["level"] == below, "parent"], "level"]
            assert (parents == level).all()
        leaves = nodes[nodes["level"] == "kernel"]
        assert (total(leaves, "count"), total(leaves, "sum_ns")) == (len(work.event), int(work.dur.sum()))


@scopes
def test_breakdown_steps_are_the_wall_time(case: Case, scope: Scope) -> None:
    for rank, trace, _ in case.each(scope):
        nodes = of_rank(case.table("breakdown", scope=scope), rank)
        steps = nodes[nodes["level"] == "step"]
        found = steps_of(trace)
        windows = dict(zip(found.labels, np.diff(found.edges).tolist(), strict=True))
        assert dict(zip(steps["name"].astype(str), steps["exclusive_ns"].tolist(), strict=True)) == windows
        idle = nodes[(nodes["level"] == "category") & (nodes["name"] == "idle")]
        assert (idle["exclusive_ns"] >= 0).all()
        busy = total(steps, "exclusive_ns") - total(idle, "exclusive_ns")
        assert busy == case.metrics(rank, scope)["busy"]


@scopes
def test_idle_causes_are_the_idle_time(case: Case, scope: Scope) -> None:
    result = case.result("idle", scope)
    for rank, trace, _ in case.each(scope):
        edges = steps_of(trace).edges
        idle = int(edges[-1] - edges[0]) - case.metrics(rank, scope)["busy"]
        causes, hosts = of_rank(result["causes"], rank), of_rank(result["hosts"], rank)
        assert total(causes) == idle
        explained = causes[causes["cause"] != "short gaps"].set_index("cause")
        by_cause = hosts.groupby("cause")
        assert by_cause["dur_ns"].sum().to_dict() == explained["dur_ns"].to_dict()
        # A gap may have several causes, and several hosts of one cause.
        counts = explained["count"].sort_index()
        assert (by_cause["count"].max() <= counts).all()
        assert (by_cause["count"].sum() >= counts).all()
        longest = of_rank(result["gaps"], rank)["dur_ns"]
        assert longest.is_monotonic_decreasing
        assert longest.max() >= hosts["max_ns"].max() or hosts.empty


@scopes
def test_kernels_are_a_plain_group_by(case: Case, scope: Scope) -> None:
    table = case.table("kernels", scope=scope)
    for trace in case.run.traces:
        events = trace.events
        chosen = events[(events["kind"] == "kernel") & (events["linked"] | (scope == "all"))]
        expected = chosen.groupby(chosen["name"].astype(str))["dur_ns"].agg(["sum", "count", "min", "max"])
        mine = of_rank(table, trace.meta.rank)
        rows = mine.groupby(mine["name"].astype(str))
        found = pd.DataFrame(
            {
                "sum": rows["sum_ns"].sum(),
                "count": rows["count"].sum(),
                "min": rows["min_ns"].min(),
                "max": rows["max_ns"].max(),
            }
        )
        assert found.to_dict() == expected.to_dict()


@scopes
def test_ops_take_no_more_than_their_gpu_work(case: Case, scope: Scope) -> None:
    table = case.table("ops", scope=scope)
    for rank, _, work in case.each(scope):
        mine = of_rank(table, rank)
        assert mine["name"].is_unique
        assert total(mine) <= int(work.dur.sum())
        assert (mine["subtree_dur_ns"] >= mine["dur_ns"]).all()
        assert (mine[["min_ns", "median_ns", "max_ns"]].diff(axis=1).iloc[:, 1:] >= 0).all(axis=None)
        if scope == "all":  # the linked ops leave communication out
            assert total(mine, "count") == len(np.unique(work.op[work.op >= 0]))


@scopes
@pytest.mark.parametrize("name", ["modules", "scopes"])
def test_scopes_add_up_to_busy(case: Case, name: str, scope: Scope) -> None:
    result = case.result("scopes", scope)
    for rank, _, work in case.each(scope):
        nodes = of_rank(result[name], rank) if name in result.tables else pd.DataFrame()
        if nodes.empty:
            assert any(skip.subject == f"rank {rank}: {name}" for skip in result.skips)
            continue
        nodes = nodes.set_index("node")
        top = nodes[nodes["parent"].isna()]
        assert total(top, "exclusive_ns") == case.metrics(rank, scope)["busy"]
        assert (total(top, "count"), total(top, "sum_ns")) == (len(work.event), int(work.dur.sum()))
        assert (nodes["exclusive_ns"] == nodes["forward_ns"] + nodes["backward_ns"]).all()
        below = child_sums(nodes, "exclusive_ns").reindex(nodes.index, fill_value=0)
        assert (nodes["exclusive_ns"] == nodes["direct_ns"] + below).all()


@scopes
def test_launches_count_the_same_work(case: Case, scope: Scope) -> None:
    result = case.result("launches", scope)
    for rank, _, work in case.each(scope):
        launched = int((work.launch >= 0).sum())
        assert total(of_rank(result["latency_histogram"], rank), "count") == launched
        calls = of_rank(result["calls"], rank)
        assert total(calls, "count") == len(np.unique(work.launch[work.launch >= 0]))
        queue = of_rank(result["queue"], rank)
        assert (queue["depth_mean"] <= queue["depth_max"] + 1e-9).all()


@scopes
def test_strip_lies_within_the_timeline(case: Case, scope: Scope) -> None:
    result = case.result("timeline", scope)
    for rank, _, work in case.each(scope):
        strip = of_rank(result["strip"], rank)
        span = int(work.end.max() - work.start.min())
        assert strip["ts_ns"].min() >= 0
        assert (strip["ts_ns"] + strip["dur_ns"]).max() <= span
