"""The picture of the step on real traces: its states are the time that other analyzers count, to the ns."""

import numpy as np
import pandas as pd
import pytest

import tracelens
from tests.conformance.corpus import Case
from tests.reference.traces import FOLDERS
from tracelens.trace import gpu_work, steps_of
from tracelens.trace.classify import kind_of


def by(table: pd.DataFrame, *columns: str) -> dict[object, int]:
    sums: dict[object, int] = table.groupby(list(columns), observed=True)["dur_ns"].sum().to_dict()
    return sums


@pytest.fixture
def states(case: Case) -> pd.DataFrame:
    """The states with the kind of work that each is."""
    table = case.result("step_timeline")["states"] if len(case.result("step_timeline")["shares"]) else None
    if table is None:
        pytest.skip("no GPU work")
    kinds = {
        state: "comm" if state == "waiting" else "idle" if state == "idle" else kind_of(state)
        for state in table["state"].cat.categories
    }
    return table.assign(kind=table["state"].map(kinds))


def test_states_divide_the_time_of_every_step(case: Case, states: pd.DataFrame) -> None:
    for trace in case.run.traces:
        own = states[states["rank"] == trace.meta.rank]
        start, dur = own["ts_ns"].to_numpy(), own["dur_ns"].to_numpy()
        assert (dur > 0).all()
        assert (start[1:] == start[:-1] + dur[:-1]).all()
        edges = steps_of(trace).edges
        assert dur.sum() == edges[-1] - edges[0]
        assert set(edges[:-1] - edges[0] + start[0]) <= set(start)


PIPELINE = FOLDERS["foreign"] / "nvidia-h200-megatron" / "pp2vpp2ep4"


def test_receives_that_wait_while_sends_do() -> None:
    """A pipeline whose messages wait for each other; there is none of its kind in the corpus."""
    if not PIPELINE.is_dir():
        pytest.skip(f"no {PIPELINE}: set TRACELENS_FOREIGN")
    case = Case(PIPELINE.name, PIPELINE, tracelens.load(PIPELINE))
    table = case.result("step_timeline")["states"]
    test_states_divide_the_time_of_every_step(case, table)
    test_waiting_is_what_stragglers_blame(case, table)


def test_states_are_what_the_timeline_counts(case: Case, states: pd.DataFrame) -> None:
    metrics = {"computation": "computation", "exposed_comm": "comm", "exposed_memcpy": "memcpy"}
    metrics |= {"exposed_memset": "memset"}
    timeline = by(case.result("timeline")["timeline"], "rank", "metric")
    spent = by(states, "rank", "kind")
    for rank in case.run.ranks:
        for metric, kind in metrics.items():
            assert spent.get((rank, kind), 0) == timeline.get((rank, metric), 0), metric


def test_states_are_the_categories_of_the_breakdown(case: Case, states: pd.DataFrame) -> None:
    breakdown = case.result("breakdown")["breakdown"]
    category = breakdown[breakdown["level"] == "category"].rename(columns={"exclusive_ns": "dur_ns"})
    counted = by(category, "rank", "name")
    of_class = states["state"].astype(str).replace("waiting", "communication")
    spent = by(states.assign(state=of_class), "rank", "state")
    for trace in case.run.traces:
        work, rank = gpu_work(trace), trace.meta.rank
        # Work that nothing in the trace launched is a category of its own there.
        unlinked = {work.categories[code] for code in np.unique(work.category[work.unlinked]).tolist()}
        for name in {name for of_rank, name in spent if of_rank == rank} - unlinked:
            assert spent[rank, name] == counted[rank, name], name


def test_idle_time_has_the_causes_of_the_analyzer(case: Case, states: pd.DataFrame) -> None:
    idle = states[states["state"] == "idle"]
    assert by(idle, "rank", "detail") == by(case.result("idle")["causes"], "rank", "cause")


def test_waiting_is_what_stragglers_blame(case: Case, states: pd.DataFrame) -> None:
    waiting = states[states["state"] == "waiting"]
    assert by(waiting, "rank") == by(case.result("stragglers")["lost"], "rank")


def test_kernels_are_all_there(case: Case, states: pd.DataFrame) -> None:
    result = case.result("step_timeline")
    kernels, steps = result["kernels"], result["steps"]
    assert steps["shown"].all()
    assert len(kernels) == steps["kernels"].sum()
    for trace in case.run.traces:
        own = kernels[kernels["rank"] == trace.meta.rank]
        work = gpu_work(trace)
        assert len(own) == len(work.event)
        assert own["dur_ns"].sum() == work.dur.sum()
        assert set(np.diff(own["ts_ns"] - work.start)) <= {0}


def test_nothing_is_before_the_begin_of_the_picture(case: Case, states: pd.DataFrame) -> None:
    result = case.result("step_timeline")
    assert states["ts_ns"].min() == 0
    end = (states["ts_ns"] + states["dur_ns"]).max()
    for name, columns in (
        ("steps", ["ts_ns"]),
        ("kernels", ["ts_ns"]),
        ("marks", ["ts_ns"]),
        ("messages", ["from_ts_ns", "to_ts_ns"]),
    ):
        for column in columns:
            times = result.tables[name][column] if name in result.tables else pd.Series(dtype="int64")
            assert times.between(0, end).all(), name


def test_the_typical_step_is_the_one_that_is_replayed(case: Case) -> None:
    replayed = case.result("findings").meta.get("step")
    result = case.result("step_timeline")
    if "steps" in result.data and replayed in set(result["steps"]["step"]):  # not "all steps" of an engine
        assert result.meta["typical_step"] == replayed
