"""The optimizations of the workload as toggles: their values, and which of them combine. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tracelens.errors import TracelensError
from tracelens.planner.config.checks import literals, one_of

ExpertsName = Literal["loop", "multistream", "grouped"]
DispatchName = Literal["alltoall", "allgather", "dedup", "deepep"]
FusionName = Literal["plain", "fused"]
OverlapName = Literal["off", "1f1b"]
CollectionName = Literal["auto", "manual"]
BindingName = Literal["off", "bind"]
ReductionName = Literal["reduce_scatter", "all_reduce", "hierarchical"]
TensorOverlapName = Literal["off", "chunked", "symmetric"]
GraphName = Literal["off", "step"]
Fp8Name = Literal["off", "experts"]

OPTIMISED: dict[str, str] = {"experts": "grouped", "permute": "fused", "router": "fused", "loss": "fused"}
"""Toggles that save memory and kernels in every layout."""

HOST_SIZES, DEVICE_PERMUTE, DEVICE_COUNTS, STATIC = range(4)
"""Values of `sync_free`; see HELP.

Host syncs in the forward of an MoE layer with e experts per rank, for experts=loop up to 1 and
experts=grouped from 2 on (grouped at 0: 1 instead of e). The backward has none, unless it recomputes the
layer:

    sync_free    0      1   2   3
    alltoall     4 + e  2   1   0
    allgather    2 + e  2   1   0
    dedup        3 + e  2   1   0

With deepep the library polls a counter for the sizes of messages, except at 3.
"""

HELP = {
    "experts": "routed experts: one by one (loop), on four streams (multistream), or as one grouped GEMM "
    "(grouped)",
    "dispatch": "tokens to experts: a copy per expert (alltoall), all tokens to all ranks (allgather), a "
    "copy per rank (dedup), or the DeepEP library (deepep)",
    "sync_free": "host syncs in an MoE layer: 0 every size, 1 sizes of messages and of experts, 2 sizes of "
    "messages, 3 none (worst-case buffers)",
    "permute": "sort tokens by expert: torch ops (plain), or one kernel each way (fused)",
    "router": "select experts: torch ops (plain), or one kernel (fused)",
    "loss": "cross-entropy: torch ops in float32 (plain), or one kernel on the logits (fused)",
    "overlap_exchange": "1f1b: overlap the all-to-alls of one micro-batch's forward with the backward of the "
    "previous micro-batch, and vice versa",
    "overlap_shared": "compute the shared expert during the dispatch",
    "recompute_layer_ids": "layers to recompute in the backward, as in 0,1,2",
    "gc": "Python garbage collection: automatic (auto), or only between steps (manual)",
    "numa": "bind: pin each rank to the cores of its GPU's NUMA node",
    "kernarg_pool": "HSA_KERNARG_POOL_SIZE=12582912, for cheaper launches on AMD GPUs",
    "grad_reduce": "gradient reduction: reduce-scatter (reduce_scatter), all-reduce (all_reduce), or "
    "reduce-scatter in the node, all-reduce across nodes, all-gather in the node (hierarchical)",
    "tp_overlap": "all-gather + GEMM and GEMM + reduce-scatter of tensor parallelism: sequential (off), in "
    "chunks (chunked), or over torch symmetric memory (symmetric)",
    "graph": "step: capture forward and backward of a step in a CUDA or HIP graph and replay it with one "
    "launch; needs a GPU and sync_free=3, and --profile-start 4 or later to record its ops",
    "fp8": "experts: routed experts in FP8 with a scale per row, forward and input gradients; weight "
    "gradients stay in bfloat16",
}


@dataclass(frozen=True)
class Toggles:
    """One field per optimization, described in HELP; the defaults are the baseline.

    Raises TracelensError for an unknown value, or toggles that do not combine.
    """

    experts: ExpertsName = "loop"
    dispatch: DispatchName = "alltoall"
    sync_free: int = HOST_SIZES
    permute: FusionName = "plain"
    router: FusionName = "plain"
    loss: FusionName = "plain"
    overlap_exchange: OverlapName = "off"
    overlap_shared: bool = False
    recompute_layer_ids: tuple[int, ...] = ()
    gc: CollectionName = "auto"
    numa: BindingName = "off"
    kernarg_pool: bool = False
    grad_reduce: ReductionName = "reduce_scatter"
    tp_overlap: TensorOverlapName = "off"
    graph: GraphName = "off"
    fp8: Fp8Name = "off"

    def __post_init__(self) -> None:
        one_of(self, CHOICES)
        if self.sync_free >= DEVICE_COUNTS and self.experts != "grouped":
            raise TracelensError(
                f"sync_free={self.sync_free} keeps tokens per expert on the device, which needs "
                f"experts=grouped, not {self.experts}"
            )
        if self.fp8 != "off" and self.experts != "grouped":
            raise TracelensError(
                f"fp8=experts needs experts=grouped, not {self.experts}: only the grouped GEMM has scales"
            )
        if self.graph != "off":
            self._require_capturable()

    def _require_capturable(self) -> None:
        if self.sync_free < STATIC:
            raise TracelensError(
                f"graph=step needs sync_free={STATIC}, not {self.sync_free}: a graph has no host syncs"
            )
        if self.overlap_exchange != "off":
            raise TracelensError(
                f"graph=step needs overlap_exchange=off, not {self.overlap_exchange}: it runs forward and "
                "backward on two threads, and a graph is captured from one"
            )
        if self.dispatch == "deepep":
            raise TracelensError(
                "graph=step needs dispatch=alltoall, allgather or dedup, not deepep: the library cannot "
                "be captured"
            )
        if self.tp_overlap == "symmetric":
            raise TracelensError(
                "graph=step needs tp_overlap=off or chunked, not symmetric: torch does not guarantee that "
                "symmetric memory keeps its address, as a graph needs"
            )

    @property
    def unoptimised(self) -> dict[str, str]:
        """The toggles of OPTIMISED that are at their baseline, with that value."""
        return {name: getattr(self, name) for name in OPTIMISED if name not in self.changed()}

    def optimised(self) -> Toggles:
        """The same with the `unoptimised` toggles changed to OPTIMISED."""
        values: dict[str, Any] = {name: OPTIMISED[name] for name in self.unoptimised}
        return replace(self, **values)

    def changed(self) -> dict[str, object]:
        """The toggles that differ from the baseline."""
        base = Toggles()
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(base, name)}


CHOICES: dict[str, tuple[object, ...]] = {
    "sync_free": tuple(range(4)),
    **literals(Toggles),
}
"""Toggle to its values; without booleans and lists of layers."""
