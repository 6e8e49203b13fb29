"""The architecture of the reference model. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracelens.errors import TracelensError
from tracelens.planner.config.checks import at_least_one, one_of

AttentionName = Literal["mla", "gqa"]
ScoreName = Literal["softmax", "sigmoid"]

# Grouped GEMM kernels need rows aligned to 16 bytes: 8 elements of bfloat16.
GEMM_ALIGNMENT = 8
MOST_LAYERS = 10_000
MOST_EXPERTS = 100_000
"""Far more than any model has: some results are computed for each layer or expert."""
SIZES = ("layers", "hidden", "heads", "experts_count", "top_k", "expert_ffn", "vocab")


@dataclass(frozen=True)
class Model:
    """A DeepSeek-style Mixture-of-Experts transformer.

    Attributes:
        layers: transformer layers, dense ones included.
        dense_layers: leading layers with a plain MLP instead of experts.
        hidden: model width D.
        dense_ffn: inner width of a dense layer's MLP.
        heads: attention heads H.
        attention: "mla" (multi-head latent attention) or "gqa" (grouped queries).
        kv_groups: key and value heads ("gqa").
        head_dim: head width ("gqa").
        q_lora: width of the query latent, 0 for none ("mla").
        kv_lora: width of the latent of keys and values ("mla").
        qk_dim: width of a query and key head without rotary position ("mla").
        rope_dim: width of its rotary part ("mla").
        v_dim: width of a value head ("mla").
        experts_count: routed experts E.
        top_k: routed experts K per token.
        expert_ffn: inner width F of one expert.
        shared_ffn: inner width of the shared expert, 0 for none.
        vocab: vocabulary V.
        score: of the router, "softmax" over all experts or "sigmoid" of each.
        expert_groups: groups of experts, of which the router first selects `top_groups`; 1 for none.
        top_groups: groups selected per token.
        aux_loss: coefficient of the sequence-wise balance loss, 0 for none.

    Raises:
        TracelensError: sizes that do not fit together.
    """

    layers: int
    hidden: int
    heads: int
    experts_count: int
    top_k: int
    expert_ffn: int
    vocab: int
    dense_layers: int = 1
    dense_ffn: int = 0
    shared_ffn: int = 0
    attention: AttentionName = "mla"
    kv_groups: int = 0
    head_dim: int = 128
    q_lora: int = 0
    kv_lora: int = 512
    qk_dim: int = 128
    rope_dim: int = 64
    v_dim: int = 128
    score: ScoreName = "softmax"
    expert_groups: int = 1
    top_groups: int = 1
    aux_loss: float = 0.001

    def __post_init__(self) -> None:
        one_of(self)
        at_least_one(self, SIZES)
        for name, most in (("layers", MOST_LAYERS), ("experts_count", MOST_EXPERTS)):
            if getattr(self, name) > most:
                raise TracelensError(f"{name} must be at most {most:,}, not {getattr(self, name):,}")
        for name in ("dense_ffn", "shared_ffn", "q_lora", "aux_loss"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise TracelensError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if not 0 <= self.dense_layers <= self.layers:
            raise TracelensError(f"dense_layers must be 0 to {self.layers} (layers), not {self.dense_layers}")
        if self.dense_layers and self.dense_ffn < 1:
            raise TracelensError("dense_layers needs dense_ffn, the inner width of the dense MLP")
        if self.top_k > self.experts_count:
            raise TracelensError(f"top_k ({self.top_k}) exceeds experts_count ({self.experts_count})")
        for name in ("hidden", "expert_ffn"):
            if getattr(self, name) % GEMM_ALIGNMENT:
                raise TracelensError(f"{name} ({getattr(self, name)}) must be a multiple of {GEMM_ALIGNMENT}")
        self._check_attention()
        self._check_groups()

    def _check_attention(self) -> None:
        at_least_one(self, ("kv_lora", "qk_dim", "v_dim") if self.attention == "mla" else ("head_dim",))
        if self.attention == "gqa" and (self.kv_groups < 1 or self.heads % self.kv_groups):
            raise TracelensError(
                f"heads ({self.heads}) must be a multiple of kv_groups ({self.kv_groups}), which must be at "
                "least 1"
            )
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise TracelensError(f"the rotary width of a head must be even, not {self.rotary_dim}")

    def _check_groups(self) -> None:
        if self.expert_groups < 1 or self.experts_count % self.expert_groups:
            raise TracelensError(
                f"experts_count ({self.experts_count}) must be a multiple of expert_groups "
                f"({self.expert_groups})"
            )
        if not 1 <= self.top_groups <= self.expert_groups:
            raise TracelensError(f"top_groups must be 1 to {self.expert_groups}, not {self.top_groups}")
        reachable = self.experts_count // self.expert_groups * self.top_groups
        if self.top_k > reachable:
            raise TracelensError(
                f"top_k ({self.top_k}) exceeds the {reachable} experts in {self.top_groups} groups"
            )

    @property
    def rotary_dim(self) -> int:
        """Width of the rotary part of a head."""
        return self.rope_dim if self.attention == "mla" else self.head_dim

    @property
    def query_dim(self) -> int:
        """Width of a query and key head."""
        return self.qk_dim + self.rope_dim if self.attention == "mla" else self.head_dim

    @property
    def value_dim(self) -> int:
        return self.v_dim if self.attention == "mla" else self.head_dim

    @property
    def moe_layers(self) -> int:
        return self.layers - self.dense_layers
