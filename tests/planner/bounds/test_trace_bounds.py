"""Collectives of drawn ranks against the links that they are said to have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from msgspec.structs import replace

import tracelens
from tests.builders import aligned, draw_run
from tracelens.devices import Bandwidth, Measured, device, device_toml
from tracelens.table import Result

SAMPLES = Path(__file__).parents[3] / "sample_traces"
RECORD = (
    "op record_param_comms collective={name} group=0 ranks={ranks} size={size} in={sent} out={out} dtype=Half"
)


def rank(
    kernels: str, name: str = "allreduce", size: int = 2, sent: int = 225_000, out: int = 225_000
) -> str:
    ranks = str(list(range(size))).replace(" ", "")
    record = RECORD.format(name=name, ranks=ranks, size=size, sent=sent, out=out)
    calls = "".join(f"{letter} " for letter in dict.fromkeys(kernels.replace(" ", "")))
    return aligned(f"""
        {record} | {"- " * (len(calls) // 2)}
        launch   | {calls}
        s9 ncclDevKernel_AllReduce | {kernels}
    """)


def compared(*ranks: str, **options: Any) -> Result:
    return tracelens.project_bounds(draw_run(*ranks), device="h100", **options)


def test_waiting_is_no_part_of_what_is_compared() -> None:
    """450 kB all-reduced by two H200: 1 us over NVLink. The last rank takes 4 us, the first one 9."""
    (row,) = compared(rank("  aaaaaaaaa"), rank("       aaaa"))["collectives"].to_dict("records")
    assert row["latency_ns"] == 4000
    assert row["bound_ns"] == pytest.approx(1000)
    assert row["achieved"] == pytest.approx(0.25)
    assert row["excess_ns"] == pytest.approx(3000)
    assert (row["ranks"], row["nodes"], row["count"], row["from_bytes"]) == (2, 1, 1, 1 << 18)
    # Two steps of 1.9 us take longer than the bytes.
    assert row["limited_by"] == "latency"


@pytest.mark.parametrize(
    ("name", "sent", "out", "bound_ns"),
    [
        ("allreduce", 900_000, 900_000, 4000),  # 2 x 1/2 of 1.8 MB
        ("_allgather_base", 450_000, 900_000, 2000),  # 1/2 of the gathered 1.8 MB
        ("_reduce_scatter_base", 900_000, 450_000, 2000),
        ("all_to_all", 900_000, 900_000, 2000),
        ("broadcast", 900_000, 900_000, 4000),
    ],
)
def test_each_collective_has_the_bytes_of_its_links(name: str, sent: int, out: int, bound_ns: float) -> None:
    kernels = "    aaaaaaaa"
    rows = compared(rank(kernels, name, 2, sent, out), rank(kernels, name, 2, sent, out))["collectives"]
    assert rows["bound_ns"].tolist() == pytest.approx([bound_ns])


def test_what_was_measured_on_the_device_stands_beside_the_bound(tmp_path: Path) -> None:
    """An all-reduce of 450 kB between two at 225 GB/s: 2 us, of which the links need one."""
    curve = Bandwidth("all_reduce", (1,), (225e9,), 2, 2)
    path = tmp_path / "node.toml"
    path.write_text(device_toml(replace(device("h100"), measured=Measured(bandwidths=(curve,)))))
    ranks = [rank("    aaaaaaaa")] * 2
    result = tracelens.project_bounds(draw_run(*ranks), device=str(path))
    (row,) = result["collectives"].to_dict("records")
    assert (row["bound_ns"], row["measured_ns"]) == (pytest.approx(1000), pytest.approx(2000))
    noted = result["assumptions"].set_index("name")
    assert noted.loc["measured_messages", "value"] == "2 ranks"
    (unknown,) = compared(*ranks)["collectives"].to_dict("records")
    assert pd.isna(unknown["measured_ns"])


def test_a_mesh_of_two_has_one_link() -> None:
    run = draw_run(rank("    aaaaaaaa"), rank("    aaaaaaaa"))
    (row,) = tracelens.project_bounds(run, device="mi300x")["collectives"].to_dict("records")
    assert row["bound_ns"] == pytest.approx(450_000 / 64)


def test_ranks_beyond_the_run_are_placed_by_the_gpus_per_node() -> None:
    """Four ranks on two nodes of two, 450 kB each: the network is the bottleneck."""
    ranks = [rank("    aaaaaaaa", size=4)] * 2
    run = draw_run(*ranks)
    (row,) = tracelens.project_bounds(run, device="h200", gpus_per_node=2)["collectives"].to_dict("records")
    assert (row["ranks"], row["nodes"], row["limited_by"]) == (4, 2, "latency")
    # Hierarchical in a pipeline: 2 x 1/2 of it inside, and 2 x 1/2 of its half between the nodes.
    assert row["bound_ns"] == pytest.approx(225_000 / 50)


def test_rates_can_be_changed() -> None:
    ranks = [rank("    aaaaaaaa")] * 2
    (row,) = compared(*ranks, assume=["link_bytes_per_s=900e9", "link_step_ns=100"])["collectives"].to_dict(
        "records"
    )
    assert row["bound_ns"] == pytest.approx(500)
    assert row["limited_by"] == "links"


def test_what_is_faster_than_the_links_says_why() -> None:
    ranks = [rank("    aaaa", sent=22_500_000, out=22_500_000)] * 2
    (row,) = compared(*ranks)["collectives"].to_dict("records")
    assert row["achieved"] == pytest.approx(25)
    assert "reduced in the network" in row["note"]


def test_one_rank_cannot_be_freed_of_its_waiting() -> None:
    result = compared(rank("    aaaaaaaa"), partial=True)
    assert "collectives" not in result.data
    assert any("pass the traces of all ranks" in skip.reason for skip in result.skips)
    assert any("waiting needs at least two" in skip.reason for skip in result.skips)


def test_collectives_without_sizes_have_no_bound() -> None:
    result = compared(*[rank("    aaaaaaaa", "barrier", 2, 0, 0)] * 2)
    assert "collectives" not in result.data
    assert any(skip.subject.startswith("bound of 1 barrier") for skip in result.skips)


def test_tensor_parallel_gemms_find_their_collectives() -> None:
    """Two layers' attention and MLP, forward and backward, on two H200 (see sample_traces/toggles)."""
    result = tracelens.project_bounds(str(SAMPLES / "toggles/tensor"))
    pairs = result["pairs"].set_index(["operation", "shape"])
    gathered: Any = pairs.loc[("all-gather + GEMM", "16384x1536x2048")]
    # 16384 x 2048 in bf16, half of it over NVLink; 16384 x 1536 x 2048 at 989.4 TFLOP/s.
    assert gathered["link_ns"] == pytest.approx(16384 * 2048 * 2 / 2 / 450)
    assert gathered["compute_ns"] == pytest.approx(2 * 16384 * 1536 * 2048 / 989.4e3)
    assert gathered["overlapped_ns"] == gathered["compute_ns"]
    assert gathered["achieved"] == pytest.approx(
        gathered["overlapped_ns"] / (gathered["gemm_dur_ns"] + gathered["latency_ns"])
    )
    # Per rank: two GEMMs before a reduce-scatter and two behind an all-gather, forward and backward each.
    counts = result["pairs"].groupby("operation", observed=True)["count"].sum()
    assert counts.to_dict() == {"GEMM + reduce-scatter": 8, "all-gather + GEMM": 8}


def test_uneven_all_to_alls_take_their_split_sizes() -> None:
    result = tracelens.project_bounds(str(SAMPLES / "ladder/ep4/00_baseline"))
    rows = result["collectives"]
    tokens = rows[(rows["collective"] == "all_to_allv") & (rows["from_bytes"] > 1 << 20)].iloc[0]
    assert 0.5 < tokens["achieved"] < 1
    assert tokens["limited_by"] == "links"
    (line,) = result["fit"].to_dict("records")
    assert line["alpha_ns"] == pytest.approx(5350, rel=0.01)
    assert result.skips[0].subject == "GEMMs next to collectives"
