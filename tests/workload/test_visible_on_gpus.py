"""What only a GPU shows of toggles: streams, fused kernels, waiting for copies, launches, what is laid over
communication. No torch needed.

The runs are in sample_traces/toggles, recorded on one or two GPUs by record_samples.py.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tests.workload.samples import FOLDER, check_files, manifest, needs
from tests.workload.toggle_variants import EXPERTS, LARGEST_BYTES, VARIANTS, fields
from tracelens import analyze, load
from tracelens.analysis.moe import EXPERTS as EXPERTS_STAGE
from tracelens.analysis.moe import FORWARD, STAGES
from tracelens.analysis.moe.regions import regions
from tracelens.devices import device as bundled
from tracelens.planner.config import override, preset
from tracelens.planner.expected import flops
from tracelens.table import Result
from tracelens.trace import Run

there = needs("toggles")


@cache
def run(variant: str) -> Run:
    return load(FOLDER / "toggles" / variant)


@cache
def found(variant: str, analyzer: str) -> Result:
    return analyze(run(variant), analyzer)


def measured(variant: str, detector: str) -> dict[str, float]:
    """What a detector measured; nothing where it found no signature."""
    table = found(variant, "findings")["measurements"]
    table = table[table["detector"].eq(detector)]
    return dict(zip(table["measure"].astype(str), table["value"], strict=True))


def verdict(variant: str, detector: str) -> str:
    table = found(variant, "findings")["checks"]
    (text,) = table[table["detector"].eq(detector)]["verdict"]
    return str(text)


def blocking(variant: str) -> dict[str, float]:
    """Blocking calls of a pass through a layer, by stage."""
    table = found(variant, "moe")["stages"]
    table = table[table["blocking_count"].gt(0)]
    return dict(zip(table["stage"].astype(str), table["blocking_count"], strict=True))


@there
def test_the_files_are_those_of_the_manifest() -> None:
    check_files("toggles", VARIANTS, LARGEST_BYTES)
    assert manifest("toggles")["runs"] == VARIANTS


def streams(variant: str) -> int:
    """Streams on which the experts' products run, forward."""
    (trace,) = run(variant).traces
    parts, work = trace.once(regions), trace.work
    product = work.category == work.categories.index("gemm")
    mine = product & (parts.stage == EXPERTS_STAGE) & (parts.phase == FORWARD)
    return len(np.unique(work.stream[mine]))


@there
def test_experts_on_several_streams() -> None:
    assert streams("baseline") == 1
    assert streams("multistream") == 4
    for variant in ("baseline", "multistream"):
        assert measured(variant, "expert_loop")["GEMMs per layer, forward"] == 2 * EXPERTS
    assert verdict("sync_free_0", "expert_loop") == "the expert GEMMs are grouped"


@there
@pytest.mark.parametrize(
    ("variant", "detector", "said"),
    [
        ("permute_fused", "permute_unfused", "the permutation is fused"),
        ("router_fused", "router_unfused", "the router is fused"),
        ("loss_fused", "loss_unfused", "the loss is already fused (_cross_entropy_kernel)"),
    ],
)
def test_fused_kernels_take_the_place_of_chains(variant: str, detector: str, said: str) -> None:
    assert measured("baseline", detector)["estimate"] > 0
    assert measured(variant, detector) == {}
    assert verdict(variant, detector) == said
    stage = {"permute_unfused": "permute", "router_unfused": "router"}.get(detector)
    if stage is not None:
        before, after = (kernels(name, stage) for name in ("baseline", variant))
        assert after < before


def kernels(variant: str, stage: str) -> int:
    """Kernels of a stage of the MoE layer in a step."""
    (trace,) = run(variant).traces
    return int((trace.work.is_kernel & (trace.once(regions).stage == STAGES.index(stage))).sum())


@there
def test_sync_free_falls_step_by_step_to_nothing() -> None:
    """Where the table in toggles.py says, less the reads that an exchange needs; one may be several calls."""
    reads = [blocking(f"sync_free_{stage}") for stage in (0, 1, 3)]
    assert [set(stages) for stages in reads] == [{"permute", "experts"}, {"experts"}, set()]
    assert sum(reads[0].values()) > sum(reads[1].values())
    assert [found(f"sync_free_{stage}", "moe").meta["sync_free_stage"] for stage in (0, 1, 3)] == [0, 1, 3]
    assert blocking("baseline")["experts"] >= EXPERTS
    assert verdict("sync_free_3", "moe_blocking_calls") == "no blocking call in MoE layers"


@there
def test_a_graph_is_launched_at_once() -> None:
    (plain,), (graph,) = (
        found(name, "steps")["steps"].itertuples() for name in ("sync_free_3", "graph_step")
    )
    assert graph.kernels > plain.kernels / 2
    assert graph.launches < plain.launches / 4


@there
def test_a_recomputed_forward_is_found() -> None:
    assert verdict("sync_free_3", "recompute") == "the backward pass recomputes nothing"
    assert measured("recompute", "recompute")["estimate"] > 0


@there
def test_experts_in_fp8_run_at_its_rate() -> None:
    """The FLOPs of the closed form, which the roofline holds against the FP8 peak."""
    table = found("fp8", "roofline")["roofline"]
    in_fp8 = table[table["dtype"].eq("fp8e4m3")]
    expected = flops(override(preset("small"), [*fields("fp8"), "routing=balanced"]), 0, dtype="fp8")
    assert (in_fp8["flops"] * in_fp8["count"]).sum() == sum(work.total for work in expected.values())
    assert set(in_fp8["name"]) == {"aten::_scaled_grouped_mm"}
    device = bundled("h200")
    compute_ns = in_fp8["flops"] / device.peak("matrix", "fp8") * 1e9
    memory_ns = (in_fp8["read_bytes"] + in_fp8["write_bytes"]) / device.hbm_bytes_per_s * 1e9
    least_ns = compute_ns.clip(lower=memory_ns) * in_fp8["count"]
    assert in_fp8["roofline_ns"].tolist() == pytest.approx(least_ns.tolist(), abs=2)
    # The weight gradients are not quantized.
    grouped = table[table["name"].eq("aten::_grouped_mm")]
    assert set(grouped["dtype"]) == {"bf16"}
    assert not found("sync_free_3", "roofline")["roofline"]["dtype"].eq("fp8e4m3").any()


def hidden(variant: str, group: str) -> list[float]:
    """Of each rank, the share of a group's communication beside which something is computed."""
    table = found(variant, "overlap")["overlap"]
    table = table[table["group"].eq(group)]
    ranks = table.groupby("rank")
    return list(ranks["hidden_ns"].sum() / ranks["comm_ns"].sum())


@there
@pytest.mark.parametrize(
    ("off", "on", "group"),
    [
        ("exchange", "exchange_1f1b", "EP"),
        ("exchange", "exchange_shared", "EP"),
        ("tensor", "tensor_chunked", "TP"),
    ],
)
def test_communication_is_hidden_under_what_is_laid_over_it(off: str, on: str, group: str) -> None:
    """Of three micro-batches the first forward and the last backward have no other beside them."""
    assert hidden(off, group) == [0, 0]
    assert all(0.25 < share < 0.75 for share in hidden(on, group)), hidden(on, group)
