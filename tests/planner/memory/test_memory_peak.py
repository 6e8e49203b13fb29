"""The peak of forward and backward against the workload's own tensors on a CPU, one by one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

from tests.planner.memory.kept import norms_on_cpu
from tests.planner.memory.meter import peak
from tracelens.planner.config import override, preset
from tracelens.planner.memory import Assumptions, worst

# Large enough that no scalar counts, and with a small vocabulary: else the peak were always in the loss.
SIZES = (
    "micro_batch=1 micro_batches=1 seq=512 hidden=256 dense_ffn=512 heads=4 qk_dim=32 rope_dim=32 v_dim=64 "
    "expert_ffn=256 shared_ffn=256 vocab=64 layers=4"
)
ALL = "recompute_layer_ids=0,1,2,3"
FUSED = "experts=grouped permute=fused router=fused sync_free=2"


@pytest.mark.parametrize(
    ("fields", "within"),
    [
        ("vocab=2048", 0.001), ("", 0.015), ("experts=grouped", 0.015), ("score=sigmoid", 0.015),
        ("dispatch=dedup", 0.015), ("overlap_shared=on", 0.015),
        ("attention=gqa kv_groups=4 head_dim=64", 0.015), ("dense_layers=4", 0.001),
        ("micro_batches=3", 0.015), (ALL, 0.01), ("recompute_layer_ids=2,3", 0.01),
        # Most of a layer's memory is the weights of experts.
        ("experts_count=32 hidden=512 seq=128", 0.01),
        # What stands for the fused kernels on a CPU needs more than they do.
        (FUSED, 0.03), (f"{FUSED} sync_free=3", 0.03), (f"{FUSED} {ALL}", 0.05),
    ],
)  # fmt: skip
def test_the_peak_of_a_step(fields: str, within: float) -> None:
    config = override(preset("tiny"), [*SIZES.split(), *fields.split()])
    moments = worst(config, Assumptions()).moments
    projected = max(moments["forward"], moments["backward"]) - moments["between"]
    assert projected + norms_on_cpu(config) == pytest.approx(peak(config), rel=within)
