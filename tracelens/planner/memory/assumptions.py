"""Assumptions of a memory projection besides the run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Literal, get_args

from tracelens.errors import TracelensError
from tracelens.planner.config import one_of

ConventionName = Literal["exact", "brief"]
OptimizerName = Literal["adamw", "momentum", "sgd"]
GradientName = Literal["parameters", "float32"]
ShardingName = Literal["replicas", "none"]
RecomputeName = Literal["layers", "none", "attention", "full"]
AttentionName = Literal["auto", "flash", "math"]
StageBuffersName = Literal["all", "in_flight"]

STATES: dict[OptimizerName, int] = {"adamw": 2, "momentum": 1, "sgd": 0}
"""Numbers that an optimizer keeps for each parameter."""

# What torch takes for cuBLAS and cuBLASLt on a GPU of compute capability 9, from the memory that it gives out
# itself; one each for the threads of forward and backward (ATen/cuda/CUDABlas.cpp, CublasHandlePool.cpp).
CUBLAS_BYTES = 32 * 2**20
THREADS = 2


@dataclass(frozen=True)
class Assumptions:
    """The defaults are what the reference workload does, but for `stage_buffers`.

    Attributes:
        convention: "exact", every tensor that the reference workload holds; "brief", as in the two memory
            charts of AMD's MoE training guide.
        optimizer: numbers it keeps a parameter, see STATES.
        gradients: type in which they are summed up, that of the parameters or float32.
        sharding: of main parameters and optimizer, over the ranks that hold the same ("replicas") or not.
        recompute: what is computed again in the backward: "layers" (those of `recompute_layer_ids`), "none",
            "attention" (of each layer, with its norm) or "full" (each layer).
        attention: a kernel that saves no scores ("flash"), GEMMs that save them ("math"), or torch's choice
            on a GPU ("auto").
        overlap: 1F1B with all-to-alls overlapped with computation: one more forward in flight.
        imbalance: tokens of the experts of a rank / those of an average rank.
        stage_buffers: what comes from other pipeline stages lies in new tensors and is kept while it is
            needed ("in_flight"), or in buffers for all micro-batches of a step, and what goes out is kept to
            its backward, as by torch's schedules, which the workload uses ("all").
        library_bytes: workspaces that libraries get from the allocator.
    """

    convention: ConventionName = "exact"
    optimizer: OptimizerName = "adamw"
    gradients: GradientName = "parameters"
    sharding: ShardingName = "replicas"
    recompute: RecomputeName = "layers"
    attention: AttentionName = "auto"
    overlap: bool = False
    imbalance: float = 1.0
    stage_buffers: StageBuffersName = "in_flight"
    library_bytes: int = CUBLAS_BYTES * THREADS

    def __post_init__(self) -> None:
        """Raise TracelensError for what cannot be."""
        one_of(
            self,
            {
                "convention": get_args(ConventionName),
                "optimizer": get_args(OptimizerName),
                "gradients": get_args(GradientName),
                "sharding": get_args(ShardingName),
                "recompute": get_args(RecomputeName),
                "attention": get_args(AttentionName),
                "stage_buffers": get_args(StageBuffersName),
            },
        )
        if not isfinite(self.imbalance) or self.imbalance < 1:
            raise TracelensError(f"imbalance must be at least 1 (balanced), not {self.imbalance}")
        if self.library_bytes < 0:
            raise TracelensError(f"library_bytes must be 0 or more, not {self.library_bytes}")
