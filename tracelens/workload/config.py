"""The size of the reference model, and named presets. No torch here: the command line lists these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from tracelens.errors import TracelensError, UnknownName

ExpertsName = Literal["loop", "grouped"]
DtypeName = Literal["bfloat16", "float32"]

# Grouped GEMM kernels load rows in 16-byte pieces: 8 elements of bfloat16.
GEMM_ALIGNMENT = 8
SIZES = ("layers", "hidden", "heads", "routed_experts", "top_k", "expert_ffn", "vocab", "seq", "micro_batch")


@dataclass(frozen=True)
class MoEConfig:
    """A DeepSeek-style MoE transformer and the batch it trains on.

    Attributes:
        layers: transformer layers, dense ones included.
        dense_layers: leading layers with a plain MLP instead of experts.
        hidden: model width D.
        heads: attention heads; divides `hidden`.
        routed_experts: experts E among which the router chooses.
        shared_experts: experts that see every token, computed as one MLP of their summed width; 0 for none.
        top_k: routed experts K per token.
        expert_ffn: inner width F of one expert.
        vocab: vocabulary V.
        seq: tokens S per sequence.
        micro_batch: sequences B per step; a step trains on T = B * S tokens.
        dtype: of parameters and activations.
        experts: the way the routed experts are computed, a key of `experts.EXPERTS`.
        seed: of weights and data.
    """

    layers: int
    hidden: int
    heads: int
    routed_experts: int
    shared_experts: int
    top_k: int
    expert_ffn: int
    vocab: int
    seq: int
    micro_batch: int
    dense_layers: int = 1
    dtype: DtypeName = "bfloat16"
    experts: ExpertsName = "loop"
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise TracelensError when the sizes do not fit together."""
        if self.experts not in get_args(ExpertsName):
            raise UnknownName("experts variant", self.experts, get_args(ExpertsName))
        if self.dtype not in get_args(DtypeName):
            raise UnknownName("dtype", self.dtype, get_args(DtypeName))
        for name in SIZES:
            if getattr(self, name) < 1:
                raise TracelensError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.shared_experts < 0:
            raise TracelensError(f"shared_experts must be at least 0, not {self.shared_experts}")
        if not 0 <= self.dense_layers <= self.layers:
            raise TracelensError(f"dense_layers must be 0 to {self.layers} (layers), not {self.dense_layers}")
        if self.hidden % self.heads:
            raise TracelensError(f"hidden ({self.hidden}) must be a multiple of heads ({self.heads})")
        if self.top_k > self.routed_experts:
            raise TracelensError(f"top_k ({self.top_k}) exceeds routed_experts ({self.routed_experts})")
        for name in ("hidden", "expert_ffn"):
            if getattr(self, name) % GEMM_ALIGNMENT:
                raise TracelensError(f"{name} ({getattr(self, name)}) must be a multiple of {GEMM_ALIGNMENT}")

    @property
    def tokens(self) -> int:
        """Tokens T of one step."""
        return self.micro_batch * self.seq

    @property
    def dense_ffn(self) -> int:
        """Inner width of a dense layer's MLP: what a token uses of an MoE layer, to cost alike."""
        return self.expert_ffn * (self.top_k + self.shared_experts)

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers


PRESETS: dict[str, MoEConfig] = {
    # Seconds on a CPU: for tests.
    "tiny": MoEConfig(
        layers=2,
        hidden=32,
        heads=2,
        routed_experts=4,
        shared_experts=1,
        top_k=2,
        expert_ffn=48,
        vocab=64,
        seq=16,
        micro_batch=2,
        dtype="float32",
    ),
    # What sample_traces/ was recorded with: GEMMs that matter to a GPU, few enough events for a small file.
    "sample": MoEConfig(
        layers=3,
        hidden=2048,
        heads=16,
        routed_experts=16,
        shared_experts=1,
        top_k=4,
        expert_ffn=1408,
        vocab=16384,
        seq=2048,
        micro_batch=4,
    ),
}


def preset(name: str) -> MoEConfig:
    """The named preset; raises UnknownName."""
    try:
        return PRESETS[name]
    except KeyError:
        raise UnknownName("preset", name, PRESETS) from None


def override(config: MoEConfig, assignments: Iterable[str]) -> MoEConfig:
    """Config with fields replaced.

    Args:
        config: where the other fields come from.
        assignments: texts `field=value`, the later of two for one field wins.

    Raises:
        TracelensError: not of that form, not a field, not a whole number where one is needed.
    """
    known = {item.name: getattr(config, item.name) for item in fields(config)}
    changes: dict[str, int | str] = {}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise TracelensError(f"{text!r} is not of the form field=value")
        if name not in known:
            raise UnknownName("config field", name, known)
        if isinstance(known[name], int):
            if not value.isdecimal():
                raise TracelensError(f"{name} must be a whole number, not {value!r}")
            changes[name] = int(value)
        else:
            changes[name] = value
    return replace(config, **changes)  # type: ignore[arg-type]  # __post_init__ checks what the texts hold
