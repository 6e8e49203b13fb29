"""Assumptions of a memory projection beyond the configuration of the run."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal

from tracelens.errors import TracelensError
from tracelens.planner.config import one_of

FrameworkName = Literal["megatron", "workload", "amd-guide"]
OptimizerName = Literal["adamw", "momentum", "sgd"]
GradientName = Literal["auto", "parameters", "float32"]
ShardingName = Literal["replicas", "none"]
RecomputeName = Literal["layers", "none", "attention", "full", "moe", "moe_act", "mla_up_proj"]
LayersName = Literal["transformer-engine", "local"]
AccumulationName = Literal["fused", "separate"]
StatesName = Literal["float32", "bfloat16"]
AttentionName = Literal["auto", "flash", "math"]
CombinedName = Literal["freed", "kept"]
StageBuffersName = Literal["all", "in_flight"]

STATES: dict[OptimizerName, int] = {"adamw": 2, "momentum": 1, "sgd": 0}
"""Optimizer states per parameter."""

# cuBLAS and cuBLASLt workspaces that torch allocates on a GPU of compute capability 9, one each for the
# threads of forward and backward (ATen/cuda/CUDABlas.cpp, CublasHandlePool.cpp).
CUBLAS_BYTES = 32 * 2**20
THREADS = 2


@dataclass(frozen=True)
class Assumptions:
    """The defaults describe the reference workload, except for `stage_buffers`.

    Raises:
        TracelensError: an unknown value, or a number out of range.
    """

    # "workload", every tensor of the reference workload; "megatron", those of Megatron-core; "amd-guide", as
    # in the two memory charts of AMD's MoE training guide
    framework: FrameworkName = "workload"
    optimizer: OptimizerName = "adamw"  # determines the states per parameter, see STATES
    # type in which gradients accumulate: that of the parameters, or float32; "auto" is float32 in Megatron-
    # core, else that of the parameters
    gradients: GradientName = "auto"
    # of main parameters and optimizer states over the ranks with the same parameters ("replicas"), or "none"
    sharding: ShardingName = "replicas"
    # in the backward: "layers" (those of `recompute_layer_ids`), "none", "attention" (of each layer, with its
    # norm) or "full" (each layer); in Megatron-core also the modules "moe", "moe_act" and "mla_up_proj" of
    # its selective recomputation
    recompute: RecomputeName = "layers"
    # "flash" saves no scores, "math" saves them, "auto" is torch's choice on a GPU
    attention: AttentionName = "auto"
    overlap: bool = False  # 1F1B with all-to-alls overlapped by computation: one more forward in flight
    imbalance: float = 1.0  # tokens of the experts of a rank / mean over ranks
    # "in_flight": activations from other stages are allocated and freed as needed; "all": buffers for all
    # micro-batches of a step, and outputs kept to their backward, as torch's schedules (and so the workload)
    # do
    stage_buffers: StageBuffersName = "in_flight"
    library_bytes: int = CUBLAS_BYTES * THREADS  # workspaces that libraries take from the allocator
    layers: LayersName = "transformer-engine"  # of Megatron-core: Transformer Engine's, or its own ("local")
    # of weight gradients in Megatron-core: by their GEMM ("fused"), or from a tensor of their own
    # ("separate"), as without --gradient-accumulation-fusion and in local layers
    gradient_accumulation: AccumulationName = "fused"
    # type of the optimizer states; "bfloat16" as with --use-precision-aware-optimizer
    states: StatesName = "float32"
    main: StatesName = "float32"  # type of the main parameters, likewise
    # rows that come back from the experts by an all-to-all without fused permutation: "freed", as the ops of
    # Megatron-core do, or "kept" to the backward, which fits the memory of Primus on MI355X
    combined: CombinedName = "freed"

    @property
    def wide_gradients(self) -> bool:
        """Whether gradients accumulate in float32."""
        return self.gradients == "float32" or (self.gradients == "auto" and self.framework == "megatron")

    def __post_init__(self) -> None:
        one_of(self)
        if not isfinite(self.imbalance) or self.imbalance < 1:
            raise TracelensError(f"imbalance must be at least 1 (balanced), not {self.imbalance}")
        if self.library_bytes < 0:
            raise TracelensError(f"library_bytes must be 0 or more, not {self.library_bytes}")
