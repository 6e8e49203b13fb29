"""The totals of the wide tables are those of the analyzers, to the nanosecond, byte and FLOP."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

import tracelens

AMOUNTS = ["flops", "read_bytes", "write_bytes", "link_bytes"]


def as_in_breakdown(run: tracelens.Run, step: str | None = None) -> None:
    """Exclusive time, plain sum and count by rank and category, for the run or for one step."""
    nodes = tracelens.analyze(run, "breakdown", step=step).tables.get("breakdown")
    kernels = run.kernels(step=step)
    if nodes is None:
        assert kernels.empty
        return
    expected = nodes[(nodes["level"] == "category") & (nodes["name"] != "idle")]
    unlinked = kernels["launch_ts_ns"].isna() & kernels["op_id"].isna()
    kernels["name"] = np.where(unlinked, "unlinked", kernels["category"].astype(str))
    kernels["count"] = 1
    found = kernels.rename(columns={"dur_ns": "sum_ns"})
    _same(found, expected, ["rank", "name"], ["exclusive_ns", "sum_ns", "count"])


def as_in_ops(run: tracelens.Run) -> None:
    """GPU time and calls by rank and op; what ops do is what their kernels do."""
    ops, kernels = run.ops(), run.kernels()
    expected = tracelens.analyze(run, "ops").tables.get("ops")
    if expected is None:
        assert ops.empty
        return
    ops["count"] = 1
    _same(ops, expected, ["rank", "name"], ["dur_ns", "count"])
    launched = kernels[kernels["op_id"].notna()]
    assert ops["kernels"].sum() == len(launched)
    assert ops[AMOUNTS].sum().tolist() == launched[AMOUNTS].sum().tolist()


def as_in_roofline(run: tracelens.Run) -> None:
    """FLOPs and bytes by element type; roofline time and mean bytes, which that table rounds."""
    kernels = run.kernels()
    table = tracelens.analyze(run, "roofline")["roofline"]
    for name in AMOUNTS:
        table[name] *= table["count"]
    counted = kernels[kernels["flops"].notna()]
    _same(counted, table, ["dtype"], AMOUNTS, most_off=int(table["count"].sum()))
    known = table[table["roofline_ns"] >= 0]
    assert abs(kernels["roofline_ns"].sum() - known["roofline_ns"].sum()) <= len(known)
    assert (kernels["uncounted"] != "").sum() == kernels["flops"].isna().sum()


def as_in_collectives(run: tracelens.Run) -> None:
    """Time, waiting and kernels of each rank; waiting and exposure by collective and group."""
    rows, result = run.collectives(), tracelens.analyze(run, "collectives")
    # A kernel of several sends and receives waits for the last of its partners.
    by_wait = rows.sort_values("wait_ns", na_position="first")
    kernels = by_wait.drop_duplicates(["rank", "kernel_id"], keep="last").fillna({"wait_ns": 0})
    kernels = kernels.rename(columns={"dur_ns": "kernel_ns"}).assign(kernels=1)
    expected = result["ranks"].replace({"wait_ns": {-1: 0}})
    _same(kernels, expected, ["rank"], ["kernel_ns", "wait_ns", "kernels"])
    matched = rows[rows["wait_ns"].notna()].drop(columns="exposed_ns")
    matched = matched.rename(columns={"exposed_comm_ns": "exposed_ns"})
    times = ["dur_ns", "wait_ns", "exposed_ns"]
    _same(matched, result["participants"], ["rank", "collective", "group", "step"], times)


def as_in_kernels(run: tracelens.Run) -> None:
    """Time and number of the kernels by rank and name."""
    kernels = run.kernels().rename(columns={"dur_ns": "sum_ns"}).assign(count=1)
    expected = tracelens.analyze(run, "kernels").tables.get("kernels")
    if expected is not None:
        works = {trace.meta.rank: trace.work for trace in run.traces}
        is_kernel = [
            kernels["kernel_id"].isin(work.event[work.is_kernel]) & (kernels["rank"] == rank)
            for rank, work in works.items()
        ]
        _same(kernels[np.any(is_kernel, axis=0)], expected, ["rank", "name"], ["sum_ns", "count"])


CONTRACTS = (as_in_breakdown, as_in_ops, as_in_roofline, as_in_collectives, as_in_kernels)


def _same(
    found: pd.DataFrame,
    expected: pd.DataFrame,
    keys: Sequence[str],
    values: Sequence[str],
    most_off: int = 0,
) -> None:
    """Both have the same groups, and the same sums in each, as far as `most_off` allows."""
    sums = []
    for frame in (found, expected):
        plain = frame.astype(dict.fromkeys(keys, "str"))
        sums.append(plain.groupby([*keys])[[*values]].sum().astype("int64").sort_index())
    pd.testing.assert_frame_equal(
        *sums, check_index_type=False, check_exact=not most_off, rtol=0, atol=most_off
    )
