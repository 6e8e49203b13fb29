"""The shapes of the AMD Developer Challenge 2025 (distributed inference kernels), and published times.

Eight MI300X of one node; each problem was ranked by the geometric mean over its shapes. The organizers' task
files are not reproduced here; the shapes are as recorded by participants:

- all-to-all: gau-nernst, AMD all2all worklog (table of the five benchmark shapes, times of its versions),
  https://github.com/gau-nernst/gpu-mode-kernels/blob/main/amd-distributed/all2all/README.md, 2025;
- GEMM + reduce-scatter: the last six shapes of amd-distributed/gemm-reduce-scatter/run.py in the same
  repository; Yotta Labs, paper.md (from 64x7168x18432 to 8192x8192x29568),
  https://github.com/yottalabsai/yotta_amd_kernel, 2025-10;
- all-gather + GEMM: keys (m, n/8, k) of online_config in prob3_ag__cccf7a.py of Yotta Labs' repository.

A problem draws 1 to max_num_tokens tokens on each GPU; the bounds are for max_num_tokens. Elements are
float16 in the all-to-all and bfloat16 in GEMMs (reference implementations of the challenge,
https://github.com/gpu-mode/reference-kernels, problems/amd_distributed).
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.planner.bounds.operations import (
    Operation,
    all_gather_gemm,
    gemm_reduce_scatter,
    moe_all_to_all,
)

RANKS = 8
DEVICE = "mi300x"

ALL_TO_ALL = (
    (8, 2, 6144, 16),
    (64, 6, 2048, 32),
    (128, 4, 2880, 128),
    (128, 8, 4096, 256),
    (256, 8, 7168, 256),
)
"""(experts, experts per token, hidden size, tokens of each GPU)."""

GEMM_REDUCE_SCATTER = (
    (64, 7168, 18432),
    (512, 4096, 12288),
    (2048, 2880, 2880),
    (4096, 4096, 4096),
    (8192, 4096, 14336),
    (8192, 8192, 29568),
)
"""(m, n, k); k is divided over the GPUs."""

ALL_GATHER_GEMM = (
    (64, 18432, 7168),
    (512, 12288, 4096),
    (2048, 2880, 2880),
    (4096, 4096, 4096),
    (8192, 14336, 4096),
    (8192, 29568, 8192),
)
"""(m, n, k); n is divided over the GPUs."""


class Published(NamedTuple):
    """A published time of a problem, taken for the geometric mean over its shapes."""

    operation: str
    implementation: str
    dur_ns: float
    source: str


_WORKLOG = "gau-nernst, AMD all2all worklog, github.com/gau-nernst/gpu-mode-kernels, 2025"
PUBLISHED = (
    Published("all-to-all per expert", "reference: PyTorch, loops over tokens", 93_540e3, _WORKLOG),
    Published("all-to-all per expert", "PyTorch, sorted, RCCL all-to-all", 1_311e3, _WORKLOG),
    Published("all-to-all per expert", "fused HIP kernels on symmetric memory", 303e3, _WORKLOG),
)
"""Only all-to-all times have a citable source; the leaderboard itself is not archived."""


def operations() -> list[Operation]:
    """All operations of the challenge."""
    return [
        *(moe_all_to_all(*shape, RANKS, copies="expert") for shape in ALL_TO_ALL),
        *(moe_all_to_all(*shape, RANKS, copies="GPU") for shape in ALL_TO_ALL),
        *(gemm_reduce_scatter(*shape, RANKS) for shape in GEMM_REDUCE_SCATTER),
        *(all_gather_gemm(*shape, RANKS) for shape in ALL_GATHER_GEMM),
    ]
