"""How far two tensors are apart, and the configurations that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from tracelens.planner.config import Config, override, preset

FLOAT32 = 1e-5
"""Relative errors up to which results in float32 agree: sums are taken in another order."""

BFLOAT16 = 3e-2
"""The same in bfloat16, which rounds by up to 4e-3: several times between a parameter and its gradient."""

MOE = [
    "layers=1", "dense_layers=0", "hidden=16", "heads=2", "kv_lora=8", "expert_ffn=8", "shared_ffn=8",
    "seq=8", "micro_batch=1", "micro_batches=1", "aux_loss=0.01",
]  # fmt: skip
"""One small layer of 8 experts, 2 a token."""


def relative_error(a: Tensor, b: Tensor) -> float:
    """||a - b|| / ||b||, or ||a|| where b is zero."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / (b.norm() or 1))


def moe_config(*assignments: str, fields: Iterable[str] = ()) -> Config:
    """The small layer with fields replaced."""
    return override(preset("tiny"), [*MOE, *assignments, *fields])
