"""`run.kernels()`, `run.ops()` and `run.collectives()` on drawn traces: one column is a microsecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tracelens
from tests.analysis.moe_traces import Model, recorded
from tests.builders import aligned, draw, events, write
from tracelens.analysis import wide
from tracelens.errors import TracelensError, WrongOption
from tracelens.table import Schema
from tracelens.trace import Run as Traces
from tracelens.trace.graphs import attributed

MM = 'op aten::mm shapes=[[64,32],[32,16]] types=["float","float"]'
FLOPS, READ, WRITTEN = 2 * 64 * 32 * 16, 4 * (64 * 32 + 32 * 16), 4 * 64 * 16
REDUCE = (
    "record_param_comms collective=allreduce group=0 description=DP ranks=[0,1] size=2 in=8 out=8 dtype=Float"
)

TRAINING = f"""
    step 1                                 | ------------------
    step 2                                 |                   ------------------
    {MM} seq=1                             |  ---
    op AddmmBackward0 seq=1 fwd=1 tid=2    |         ---
    {MM}                                   |                    -----
    op optimizer                           |                            ---
    launch                                 |  a                 b c      d
    launch tid=2                           |         e
    s7 gemm_a                              |   aaaa
    s7 gemm_b                              |                     bbbbbb
    s9 reduce                              |                       cccccc
    s7 adam                                |                             ddd
    s7 gemm_grad                           |          eeeeeeee
    s7 fill                                | ==
"""


@pytest.fixture
def run(tmp_path: Path) -> tracelens.Run:
    """One rank with two steps."""
    write(tmp_path / "rank0.json", events(aligned(TRAINING)))
    return tracelens.load(tmp_path)


def two_ranks(folder: Path) -> tracelens.Run:
    """An all-reduce at which rank 1 arrives 4 us late; rank 0 computes during the last 2 us of it."""
    drawings = [
        f"""
        step 1                     | --------------------
        op {REDUCE}                |  --
        launch                     |  a b
        s9 ncclDevKernel_AllReduce |   aaaaaaaaaa
        s7 gemm                    |           bbbb
        """,
        f"""
        step 1                     | --------------------
        op {REDUCE}                |      --
        launch                     |      a
        s9 ncclDevKernel_AllReduce |       aaaaaa
        """,
    ]
    for rank, drawing in enumerate(drawings):
        write(folder / f"rank{rank}.json", events(aligned(drawing)), rank=rank)
    return tracelens.load(folder)


def by_name(frame: pd.DataFrame) -> dict[str, Any]:
    return {row.name: row for row in frame.itertuples(index=False)}


def test_a_loaded_run_is_a_run(run: tracelens.Run) -> None:
    assert isinstance(run, Traces)
    assert repr(run).startswith("Run(1 rank: 0; steps 1, 2; ")
    assert tracelens.analyze(run, "kernels").analyzer == "kernels"


def test_kernels_by_step_phase_and_op(run: tracelens.Run) -> None:
    kernels = run.kernels(device="h100")
    assert kernels["ts_ns"].is_monotonic_increasing
    row = by_name(kernels)
    assert {name: (str(one.step).rpartition("#")[2], one.phase) for name, one in row.items()} == {
        "Memset (Device)": ("(before the first step)", ""),
        "gemm_a": ("1", "forward"),
        "gemm_grad": ("1", "backward"),
        "gemm_b": ("2", ""),
        "reduce": ("2", ""),
        "adam": ("2", ""),
    }
    assert (row["gemm_a"].op, row["gemm_a"].shapes) == ("aten::mm", "fp32[64,32] fp32[32,16]")
    assert (row["gemm_a"].stream, row["reduce"].stream) == (7, 9)
    assert (row["gemm_a"].dur_ns, row["gemm_a"].launch_ts_ns) == (4000, row["gemm_a"].ts_ns - 1000)
    assert row["gemm_grad"].forward_op == "aten::mm"
    assert (row["Memset (Device)"].kind, row["Memset (Device)"].category) == ("memset", "fill")


def test_unknown_numbers_are_missing(run: tracelens.Run) -> None:
    kernels = run.kernels(device="h100")
    row = by_name(kernels)
    assert row["adam"].flops is pd.NA
    assert row["adam"].efficiency is pd.NA
    assert row["adam"].uncounted != "" == row["gemm_a"].uncounted
    assert "adam" not in set(kernels[kernels["efficiency"] < 0.5]["name"])
    assert "gemm_a" in set(kernels.query("efficiency < 0.5")["name"])
    assert row["Memset (Device)"].launch_ts_ns is pd.NA
    assert kernels["layer"].isna().all()
    assert (kernels.select_dtypes("number").fillna(0) >= 0).all().all()


def test_what_a_call_does_is_divided_among_its_kernels(run: tracelens.Run) -> None:
    row = by_name(run.kernels(device="h100"))
    peak = 3.35e12
    assert row["gemm_a"].flops == FLOPS
    assert (row["gemm_a"].read_bytes, row["gemm_a"].write_bytes) == (READ, WRITTEN)
    assert row["gemm_a"].roofline_ns == pytest.approx((READ + WRITTEN) / peak * 1e9)
    assert row["gemm_a"].efficiency == pytest.approx(row["gemm_a"].roofline_ns / 4000)
    # gemm_b runs 6 us and reduce as long, of which 4 us together: the call takes 8 us.
    parts = [row["gemm_b"], row["reduce"]]
    assert sum(part.flops for part in parts) == FLOPS
    assert sum(part.read_bytes + part.write_bytes for part in parts) == READ + WRITTEN
    assert [part.flops for part in parts] == [FLOPS * 6 // 8, FLOPS * 2 // 8]
    for part in parts:
        assert part.flops_per_s == pytest.approx(FLOPS / 8e-6)
        assert part.efficiency == pytest.approx((READ + WRITTEN) / peak / 8e-6)


def test_exclusive_time_is_busy_time(run: tracelens.Run) -> None:
    kernels = run.kernels()
    row = by_name(kernels)
    assert (row["gemm_b"].exclusive_ns, row["reduce"].exclusive_ns) == (6000, 2000)
    assert kernels["exclusive_ns"].sum() == kernels["dur_ns"].sum() - 4000


def test_ops_count_nothing_twice(run: tracelens.Run) -> None:
    kernels, ops = run.kernels(device="h100"), run.ops(device="h100")
    assert ops["name"].tolist() == ["aten::mm", "AddmmBackward0", "aten::mm", "optimizer"]
    assert ops["kernels"].tolist() == [1, 1, 2, 1]
    assert ops["dur_ns"].tolist() == [4000, 8000, 8000, 3000]  # the union of a call's kernels
    assert ops["host_dur_ns"].tolist() == [3000, 3000, 5000, 3000]
    assert ops["kernels"].sum() == kernels["op_id"].notna().sum()
    assert ops["flops"].sum() == kernels["flops"].sum() == 2 * FLOPS
    assert ops["flops_per_s"].iloc[2] == pytest.approx(FLOPS / 8e-6)
    assert ops["efficiency"].iloc[2] == pytest.approx((READ + WRITTEN) / 3.35e12 / 8e-6)
    assert ops["flops"].isna().tolist() == [False, True, False, True]


def test_a_step_cuts_what_crosses_it(run: tracelens.Run) -> None:
    for step in (2, "2", "ProfilerStep#2"):
        kernels = run.kernels(step=step)
        assert sorted(kernels["name"]) == ["adam", "gemm_b", "reduce"]
        assert set(kernels["step"]) == {"ProfilerStep#2"}
    assert run.ops(step=2)["name"].tolist() == ["aten::mm", "optimizer"]
    with pytest.raises(TracelensError, match="no step '9'"):
        run.kernels(step=9)


def test_collectives_wait_for_the_last_rank(tmp_path: Path) -> None:
    run = two_ranks(tmp_path)
    rows = run.collectives()
    assert rows["rank"].tolist() == [0, 1]
    assert set(rows["collective"]) == {"allreduce"}
    assert set(rows["role"]) == {"DP"}
    assert set(rows["group"]) == {"DP 0-1"}
    assert rows["bytes"].tolist() == [32, 32]
    assert rows["dur_ns"].tolist() == [10_000, 6000]
    assert rows["wait_ns"].tolist() == [4000, 0]
    assert rows["comm_ns"].tolist() == [6000, 6000]
    assert rows["exposed_ns"].tolist() == [8000, 6000]
    assert rows["exposed_comm_ns"].tolist() == [4000, 6000]
    assert set(rows["last_rank"]) == {1}
    assert set(rows["latency_ns"]) == {6000}
    # Of two ranks each sends as much as it reduces: busbw is algbw.
    assert rows["algbw_bytes_per_s"].tolist() == pytest.approx([32 / 6e-6] * 2)
    assert rows["busbw_bytes_per_s"].tolist() == pytest.approx([32 / 6e-6] * 2)


def test_one_rank_of_a_group_knows_no_waiting(tmp_path: Path) -> None:
    alone = tracelens.load(str(tmp_path / "rank0.json")) if two_ranks(tmp_path) else None
    assert alone is not None
    rows = alone.collectives()
    assert rows["collective"].tolist() == ["allreduce"]
    assert rows["group"].tolist() == ["DP 0-1"]
    assert rows["bytes"].tolist() == [32]
    assert rows["exposed_ns"].tolist() == [8000]
    for name in (
        "wait_ns",
        "comm_ns",
        "exposed_comm_ns",
        "latency_ns",
        "last_rank",
        "order",
        "busbw_bytes_per_s",
    ):
        assert rows[name].isna().all(), name


def test_kernels_without_a_record_are_collectives_too(tmp_path: Path) -> None:
    drawing = """
        step 1                        | --------------
        launch                        |  a     b
        s9 ncclDevKernel_AllGather    |   aaa
        s9 ncclDevKernel_SendRecv     |         bb
    """
    write(tmp_path / "rank0.json", events(aligned(drawing)))
    rows = tracelens.load(tmp_path).collectives()
    assert rows["collective"].tolist() == ["all_gather", ""]  # SendRecv is part of many
    assert rows["dur_ns"].tolist() == [3000, 2000]
    assert rows["bytes"].isna().all()
    assert set(rows["group"]) == {""}


def test_ranks_are_selected_after_matching(tmp_path: Path) -> None:
    run = two_ranks(tmp_path)
    only = run.collectives(rank=0)
    assert only["wait_ns"].tolist() == [4000]
    assert run.collectives(rank=[0, 1]).equals(run.collectives())
    assert set(run.kernels(rank=1)["rank"]) == {1}
    assert run.ops(rank=range(2)).equals(run.ops())
    with pytest.raises(TracelensError, match=r"no rank 7 \(has: 0, 1\)"):
        run.kernels(rank=7)


def test_wrong_options_are_one_line(run: tracelens.Run) -> None:
    with pytest.raises(WrongOption, match="scope must be 'all' or 'linked', not 'lnked'"):
        run.kernels(scope="lnked")  # type: ignore[arg-type]
    with pytest.raises(TracelensError, match="unknown device 'h10'"):
        run.ops(device="h10")


def test_scope_linked(run: tracelens.Run) -> None:
    assert set(run.kernels()["name"]) - set(run.kernels(scope="linked")["name"]) == {"Memset (Device)"}


def test_moe_stages_and_layers_add_up_to_the_truth(tmp_path: Path) -> None:
    traces, truth = recorded(Model(layers=2, ranks=2, exchange="all_to_all"))
    kernels = tracelens.Run(traces.traces).kernels()
    moe = kernels[kernels["layer"].notna()]
    found = moe.groupby(["rank", "micro_batch", "layer", "phase", "stage"])["dur_ns"].sum()
    assert found[found > 0].to_dict() == {key: ns for key, ns in truth.items() if ns}


def test_a_run_without_gpu_work_has_empty_tables(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", events(aligned("step 1 | ----")))
    run = tracelens.load(tmp_path)
    for frame, schema in (
        (run.kernels(), wide.KERNELS),
        (run.ops(), wide.OPS),
        (run.collectives(), wide.COLLECTIVES),
    ):
        assert len(frame) == 0
        assert list(frame.columns) == schema.names


def test_changes_to_a_frame_stay_in_it(run: tracelens.Run) -> None:
    frame = run.kernels()
    frame["dur_ns"] = 0
    assert run.kernels()["dur_ns"].sum() > 0


@pytest.mark.parametrize(
    "schema", [wide.KERNELS, wide.OPS, wide.COLLECTIVES], ids=lambda schema: schema.title
)
def test_columns_are_documented(schema: Schema) -> None:
    assert schema.doc
    bare = [
        column.name for column in schema.columns if not column.doc and column.name not in ("rank", "dur_ns")
    ]
    assert bare == ["stream"] * ("stream" in bare)
    for column in schema.columns:
        unit = {"ns": "_ns", "bytes": "bytes", "flops": "flops", "flops/s": "_per_s", "bytes/s": "_per_s"}
        assert column.name.endswith(unit.get(column.unit, ""))


def test_repeated_texts_are_categoricals(run: tracelens.Run) -> None:
    frame = run.kernels()
    assert all(isinstance(frame[name].dtype, pd.CategoricalDtype) for name in ("name", "op", "stage", "step"))
    assert {str(frame[name].dtype) for name in ("layer", "flops", "read_bytes")} == {"Int64"}
    assert {str(frame[name].dtype) for name in ("rank", "ts_ns", "dur_ns", "stream")} == {"int64"}


def test_ops_in_graphs_have_no_time_on_the_host() -> None:
    eager = draw(
        aligned("""
        op aten::mm |  -----
        launch      |   a b
        s7 gemm     |     a
        s7 split    |      b
        op aten::add|        -----
        launch      |         c d
        s7 add      |           c
        s7 tail     |             d
    """)
    )
    graphed = draw(
        aligned("""
        launch cudaGraphLaunch | aaa
        s7 gemm                |    a
        s7 split               |     a
        s7 add                 |      a
        s7 tail                |       a
    """)
    )
    ops = tracelens.Run((attributed(graphed, [], [eager]),)).ops()
    assert ops["name"].tolist() == ["aten::mm", "aten::add"]
    assert ops["op_source"].tolist() == ["twin", "twin"]
    assert ops["host_dur_ns"].isna().all()
    assert ops["dur_ns"].tolist() == [2000, 2000]
    assert not tracelens.Run((eager,)).ops()["host_dur_ns"].isna().any()
