"""How hard the tests try: as every change needs it, or all they can (TRACELENS_TESTS=thorough)."""

import os
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

THOROUGH = os.environ.get("TRACELENS_TESTS") == "thorough"

LARGE = (
    "misc/hta_test.json.gz",
    "nvidia-h100-hf/dsv2_eager.json.gz",
    "nvidia-h200-megatron/pp2ep4",
    "nvidia-h200-megatron/pp2vpp2ep4",
)
"""Recordings that another one stands for: hta_control, dsv2_grouped, and ep8 for the runs of eight ranks.

Sweeps over all recordings read them when thorough. What only a pipeline, or a loop over experts, shows is
tested on them always, by name.
"""

ALIKE = (
    "nvidia-h200-megatron/faults/control",
    "nvidia-h200-megatron/faults/gc",
    "nvidia-h200-megatron/faults/slow_kernels",
    "sample_traces/faults/control",
    "sample_traces/faults/host_delay",
    "sample_traces/faults/slow_kernels",
    "sample_traces/ladder/ep4/01_grouped_gemm",
    "sample_traces/ladder/ep4/02_fusion",
    "sample_traces/ladder/ep4/03_dedup",
    "sample_traces/ladder/ep4/04_sync_free_2",
    "sample_traces/ladder/ep4/06_overlap_shared",
    "sample_traces/ladder/ep4/07_manual_gc",
    "sample_traces/ladder_large",
    "sample_traces/pipeline/plain",
    "sample_traces/serving/delayer_off",
    "sample_traces/serving/tbo_request",
    "sample_traces/toggles/exchange",
    "sample_traces/toggles/exchange_shared",
    "sample_traces/toggles/loss_fused",
    "sample_traces/toggles/permute_fused",
    "sample_traces/toggles/router_fused",
    "sample_traces/toggles/sync_free_0",
    "sample_traces/toggles/sync_free_1",
    "sample_traces/toggles/sync_free_3",
    "sample_traces/toggles/tensor",
)
"""Runs that differ in one setting from another one of the same program, which stands for their kind.

Sweeps for what holds in any trace read them when thorough. Of each program, and of each way to run it
(graphs, two threads, streams side by side, pipelines, serving, recomputation, blocking calls), one is left.
"""


def effort(usual: T, thorough: T) -> T:
    """One of two settings, by how hard the tests try."""
    return thorough if THOROUGH else usual


def swept(path: Path | str) -> bool:
    """Whether a sweep over all recordings reads this one."""
    return THOROUGH or not _below(path, LARGE)


def of_its_kind(path: Path | str) -> bool:
    """Whether a sweep for what holds in any trace reads this one."""
    return THOROUGH or not _below(path, LARGE + ALIKE)


def _below(path: Path | str, names: tuple[str, ...]) -> bool:
    return any(f"{name}/" in f"{path}/" for name in names)
