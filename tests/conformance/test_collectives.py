"""The collectives table against other tools' tables: what was communicated, when, and with whom."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.conformance.corpus import Case, Reference, collective_params
from tracelens.trace import Trace

MIB = 1 << 20


def launched(trace: Trace) -> pd.DataFrame:
    """Collectives whose kernel is in the trace, with its start and duration."""
    table = trace.collectives
    table = table[table["kernel_id"] >= 0].copy()
    for name in ("group", "collective", "dtype", "in_split", "out_split"):
        table[name] = table[name].astype(str)
    for name in ("ts_ns", "dur_ns"):
        table[name] = trace.events[name].to_numpy()[table["kernel_id"].astype("int64")]
    return table


def test_collectives_of_one_rank(reference: Reference) -> None:
    expected = reference.csv("coll_analysis")
    keys = ["group", "collective", "dtype", "group_size", "in_bytes", "out_bytes"]
    groups = launched(reference.trace).groupby(keys)["dur_ns"]
    found = groups.agg(["count", "sum", "min", "max"])
    rows = {
        (
            str(row["Process Group Name"]),
            row["Collective name"],
            row["dtype"],
            int(row["Group size"]),
            round(row["In msg size (MB)_first"] * MIB),
            round(row["Out msg size (MB)_first"] * MIB),
        ): {
            "count": row["operation_count"],
            **{name: round(row[f"dur_{name}"] * 1000) for name in ("sum", "min", "max")},
        }
        for row in expected.to_dict("records")
    }
    assert found.T.to_dict() == rows


@pytest.fixture(scope="module")
def by_start(case: Case) -> dict[tuple[int, int], dict[str, Any]]:
    """Every collective of the run by (rank, start of its kernel)."""
    return {
        (trace.meta.rank, row["ts_ns"]): row
        for trace in case.run.traces
        for row in launched(trace).to_dict("records")
    }


def instances(case: Case, table: str) -> list[dict[str, Any]]:
    """Rows of a table of the run's report, one a collective with the columns of all ranks."""
    return pd.read_csv(case.path.with_name(case.path.name + "_collectives") / f"{table}.csv").to_dict(
        "records"
    )


def members(row: dict[str, Any], case: Case, by_start: dict[tuple[int, int], Any]) -> list[dict[str, Any]]:
    """Our record of each rank's part in a collective; KeyError where a rank has none that starts then."""
    return [by_start[rank, round(row[f"rank_{rank}_ts"] * 1000)] for rank in case.run.ranks]


multi_rank = pytest.mark.parametrize("case", collective_params(), indirect=True)


@multi_rank
@pytest.mark.parametrize("table", ["nccl_implicit_sync", "nccl_all2allv"])
def test_every_rank_has_its_part_under_the_same_number(
    case: Case, table: str, by_start: dict[tuple[int, int], Any]
) -> None:
    for row in instances(case, table):
        parts = members(row, case, by_start)
        same = {(part["group"], part["collective"], part["dtype"], part["group_size"]) for part in parts}
        assert same == {
            (str(row["Process Group Name"]), row["Collective name"], row["dtype"], int(row["Group size"]))
        }
        assert len({part["order"] for part in parts}) == 1, row["collective_id"]
        durations = [round(row[f"rank_{rank}_dur"] * 1000) for rank in case.run.ranks]
        assert [part["dur_ns"] for part in parts] == durations


@multi_rank
def test_latency_and_skew(case: Case, by_start: dict[tuple[int, int], Any]) -> None:
    """Objective columns: the shortest part, and the spread of starts and ends in float microseconds."""
    for row in instances(case, "nccl_implicit_sync"):
        parts = members(row, case, by_start)
        start = np.array([part["ts_ns"] for part in parts])
        end = start + np.array([part["dur_ns"] for part in parts])
        noise = 2 * float(np.spacing(end.max() / 1000)) * 1000
        assert min(part["dur_ns"] for part in parts) == round(row["comm_latency"] * 1000)
        assert abs(np.ptp(start) - row["skew in start time"] * 1000) <= noise
        assert abs(np.ptp(end) - row["skew in end time"] * 1000) <= noise
        assert {(part["in_bytes"], part["out_bytes"]) for part in parts} == {
            (round(row["In msg size (MB)"] * MIB), round(row["Out msg size (MB)"] * MIB))
        }


@multi_rank
def test_uneven_all_to_all(case: Case, by_start: dict[tuple[int, int], Any]) -> None:
    for row in instances(case, "nccl_all2allv"):
        for rank, part in zip(case.run.ranks, members(row, case, by_start), strict=True):
            sizes = [round(row[f"rank_{rank}_{way} msg size (MB)"] * MIB) for way in ("In", "Out")]
            assert [part["in_bytes"], part["out_bytes"]] == sizes
            splits = [row[f"rank_{rank}_{way} split size"] for way in ("In", "Out")]
            assert [part["in_split"], part["out_split"]] == splits
