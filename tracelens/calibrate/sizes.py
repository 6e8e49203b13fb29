"""Which sizes are measured: grids that MoE models of today lie in, in under three minutes on one GPU."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.devices import GemmKind

MIB = 1 << 20


class PlainSizes(NamedTuple):
    """Plain GEMMs of one dtype."""

    dtype: str
    k: tuple[int, ...]
    n: tuple[int, ...]
    rows: tuple[int, ...]
    kind: GemmKind = "output"


class GroupedSizes(NamedTuple):
    """Grouped GEMMs of one dtype; rows are of each matrix."""

    dtype: str
    k: tuple[int, ...]
    n: tuple[int, ...]
    matrices: tuple[int, ...]
    rows: tuple[int, ...]
    kind: GemmKind = "output"


class MeasuredAttention(NamedTuple):
    """Causal attention of one kind of head; batches have `tokens` in all."""

    query_dim: int
    value_dim: int
    heads: int
    tokens: int
    seq: tuple[int, ...]


class BenchmarkSizes(NamedTuple):
    """All that is measured."""

    plain: tuple[PlainSizes, ...]
    grouped: tuple[GroupedSizes, ...]
    attention: tuple[MeasuredAttention, ...]
    memory_bytes: tuple[int, ...]  # of each buffer in device memory
    transfer_bytes: tuple[int, ...]  # between host and device
    message_bytes: tuple[int, ...]  # a rank's larger buffer in collectives
    uneven_bytes: tuple[int, ...]  # the busiest rank's buffer in uneven all-to-alls
    skews: tuple[float, ...]  # of these: what that rank receives / the mean
    launches: int  # ops in a chain whose host time is measured


_ROWS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_ALL_K, _ALL_N = (512, 2048, 8192), (512, 2048, 8192, 32768)
_FEW = (2048, 8192)
_EXPERT_ROWS = (16, 64, 128, 256, 512, 1024, 2048, 4096)
_EXPERT_K, _EXPERT_N = (1024, 2048, 8192), (2048, 8192)

FULL = BenchmarkSizes(
    plain=(
        PlainSizes("bf16", _ALL_K, _ALL_N, _ROWS),
        PlainSizes("bf16", _ALL_K, _ALL_N[:3], _ROWS[4:], "weight"),
        PlainSizes("fp8", _ALL_K, _ALL_N, _ROWS),
        PlainSizes("fp16", _FEW, _FEW, _ROWS[::2]),
        PlainSizes("tf32", _FEW, _FEW, _ROWS[:-1:2]),
        PlainSizes("fp32", _FEW, _FEW, _ROWS[:-3:2]),
    ),
    grouped=(
        GroupedSizes("bf16", _EXPERT_K, _EXPERT_N, (8, 32), _EXPERT_ROWS),
        GroupedSizes("bf16", _EXPERT_K, _EXPERT_N, (8, 32), _EXPERT_ROWS[1::2], "weight"),
    ),
    attention=(
        MeasuredAttention(128, 128, 16, 16384, (512, 1024, 2048, 4096, 8192, 16384)),
        MeasuredAttention(192, 128, 16, 16384, (1024, 2048, 4096, 8192)),
    ),
    memory_bytes=tuple(MIB << power for power in range(11)),
    transfer_bytes=(MIB, 16 * MIB, 256 * MIB),
    message_bytes=tuple((4 << 10) << (2 * power) for power in range(10)),
    uneven_bytes=(MIB, 16 * MIB, 256 * MIB),
    skews=(1.5, 2, 4),
    launches=400,
)

TRIAL = BenchmarkSizes(
    plain=(
        PlainSizes("bf16", (32, 64), (32, 64), (16, 32)),
        PlainSizes("fp32", (32,), (64,), (16, 32), "weight"),
    ),
    grouped=(GroupedSizes("bf16", (32,), (32,), (2, 4), (16, 32)),),
    attention=(MeasuredAttention(16, 16, 2, 64, (32, 64)),),
    memory_bytes=(1 << 16, 1 << 18),
    transfer_bytes=(1 << 16,),
    message_bytes=(1 << 12, 1 << 14),
    uneven_bytes=(1 << 14,),
    skews=(1.5, 2, 4),
    launches=20,
)
"""Small enough for a CPU: says nothing about it, but runs the same code."""
