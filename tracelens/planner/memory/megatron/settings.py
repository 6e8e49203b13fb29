"""What of Megatron-core's options changes its memory, from toggles and assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.errors import TracelensError
from tracelens.planner.config import STATIC, Config
from tracelens.planner.memory.assumptions import Assumptions


@dataclass(frozen=True)
class Settings:
    """Options of Megatron-core 0.16; each is named with its flag.

    Attributes:
        engine: Transformer Engine's layers (--transformer-impl transformer_engine): fused SwiGLU, one kernel
            for rotary positions, attention without copies; else Megatron-core's local ones.
        accumulate: weight gradients accumulate in the GEMM (--gradient-accumulation-fusion), so that they
            are never a tensor of their own.
        grouped: --moe-grouped-gemm.
        deepep: --moe-token-dispatcher-type flex --moe-enable-deepep.
        permute: --moe-permute-fusion.
        router: --moe-router-fusion.
        loss: --cross-entropy-loss-fusion --cross-entropy-fusion-impl te.
        shared_overlap: --moe-shared-expert-overlap.
        recompute: --recompute-modules of --recompute-granularity selective; "" for none.
    """

    engine: bool = True
    accumulate: bool = True
    grouped: bool = False
    deepep: bool = False
    permute: bool = False
    router: bool = False
    loss: bool = False
    shared_overlap: bool = False
    recompute: str = ""


def check(config: Config) -> None:
    """Raises TracelensError for toggles that Megatron-core does not have, or has in another way."""
    toggles = config.toggles
    absent = {
        f"dispatch={toggles.dispatch}": toggles.dispatch in ("allgather", "dedup"),
        "experts=multistream": toggles.experts == "multistream",
        "sync_free=3": toggles.sync_free == STATIC,
        f"fp8={toggles.fp8}": toggles.fp8 != "off",
    }
    if missing := [name for name, is_set in absent.items() if is_set]:
        raise TracelensError(
            f"framework=megatron does not support {missing[0]}: leave it out, or use framework=workload"
        )


def settings_of(config: Config, assumptions: Assumptions, recompute: str = "") -> Settings:
    """The options that a configuration and its assumptions stand for."""
    toggles, engine = config.toggles, assumptions.layers == "transformer-engine"
    return Settings(
        engine,
        engine and assumptions.gradient_accumulation == "fused",
        toggles.experts == "grouped",
        toggles.dispatch == "deepep",
        toggles.permute == "fused" or toggles.sync_free > 0,
        toggles.router == "fused" or toggles.sync_free > 0,
        toggles.loss == "fused",
        toggles.overlap_shared,
        recompute,
    )
