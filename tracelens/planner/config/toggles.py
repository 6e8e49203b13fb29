"""The optimisations of the workload as switches: what each may be, and which fit together. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from tracelens.errors import TracelensError
from tracelens.planner.config.checks import one_of

ExpertsName = Literal["loop", "multistream", "grouped"]
DispatchName = Literal["alltoall", "allgather", "dedup", "deepep"]
FusionName = Literal["plain", "fused"]
OverlapName = Literal["off", "1f1b"]
CollectionName = Literal["auto", "manual"]
BindingName = Literal["off", "bind"]
ReductionName = Literal["reduce_scatter", "all_reduce", "hierarchical"]
TensorOverlapName = Literal["off", "chunked", "symmetric"]
GraphName = Literal["off", "step"]

OPTIMISED: dict[str, str] = {"experts": "grouped", "permute": "fused", "router": "fused", "loss": "fused"}
"""The toggles that make memory and kernels of a layer fewer and cost nothing, for runs of any layout."""

HOST_SIZES, DEVICE_PERMUTE, DEVICE_COUNTS, STATIC = range(4)
"""Values of `sync_free`; see HELP.

How often the host reads the device in the forward of an MoE layer whose rank has e experts, with the baseline
experts=loop up to 1 and experts=grouped from 2 on (grouped at 0: 1 for e); in the backward never, but once
more where the layer is recomputed:

    sync_free    0      1   2   3
    alltoall     4 + e  2   1   0
    allgather    2 + e  2   1   0
    dedup        3 + e  2   1   0

With deepep the library waits for the sizes of messages, on a counter and by no call, except with 3.
"""

HELP = {
    "experts": "routed experts: one after the other (loop), the same on four streams (multistream), or one "
    "grouped GEMM (grouped)",
    "dispatch": "tokens to experts: a copy for each expert (alltoall), all tokens to all ranks (allgather), "
    "a copy for each rank (dedup), or the library of that name (deepep)",
    "sync_free": "what the host still waits for in an MoE layer: 0 every size, 1 sizes of messages and of "
    "experts, 2 sizes of messages, 3 nothing (buffers hold the worst case)",
    "permute": "tokens sorted by expert: by torch's ops (plain), or by one kernel each way (fused)",
    "router": "choice of experts: by torch's ops (plain), or by one kernel (fused)",
    "loss": "cross-entropy: in float32 by torch's ops (plain), or by one kernel on the logits (fused)",
    "overlap_exchange": "1f1b: exchanges of one micro-batch's forward under the backward of the one before, "
    "and the reverse",
    "overlap_shared": "shared expert computed while tokens travel to the routed ones",
    "recompute_layer_ids": "layers whose forward is computed again in the backward, as in 0,1,2",
    "gc": "Python's garbage collection: whenever it likes (auto), or between steps only (manual)",
    "numa": "bind: each rank on the cores that are near its GPU",
    "kernarg_pool": "HSA_KERNARG_POOL_SIZE=12582912, for cheaper launches on AMD GPUs",
    "grad_reduce": "gradients of replicas: summed where they are used (reduce_scatter), everywhere "
    "(all_reduce), or inside each node, across nodes, and inside again (hierarchical)",
    "tp_overlap": "all-gather + GEMM and GEMM + reduce-scatter of tensor parallelism: in turn (off), in "
    "chunks (chunked), or by torch's symmetric memory (symmetric)",
    "graph": "step: forward and backward of a step captured once in a CUDA or HIP graph and replayed by one "
    "launch; needs a GPU and sync_free=3",
}


@dataclass(frozen=True)
class Toggles:
    """One field an optimisation, told in HELP; the defaults are the baseline."""

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

    def __post_init__(self) -> None:
        """Raise TracelensError for an unknown value, or where two do not fit together."""
        one_of(self, CHOICES)
        if self.sync_free >= DEVICE_COUNTS and self.experts != "grouped":
            raise TracelensError(
                f"sync_free={self.sync_free} leaves the sizes of experts on the device, which needs "
                f"experts=grouped, not {self.experts}"
            )
        if self.graph != "off":
            self._require_capturable()

    def _require_capturable(self) -> None:
        """Raise TracelensError for what cannot stand in a graph."""
        if self.sync_free < STATIC:
            raise TracelensError(
                f"graph=step needs sync_free={STATIC}, not {self.sync_free}: in a graph the host cannot read "
                "the device"
            )
        if self.overlap_exchange != "off":
            raise TracelensError(
                f"graph=step needs overlap_exchange=off, not {self.overlap_exchange}: a graph is captured "
                "from one thread, and forward and backward would be on two"
            )
        if self.dispatch == "deepep":
            raise TracelensError(
                "graph=step needs dispatch=alltoall, allgather or dedup, not deepep: it is not made to "
                "capture the library"
            )
        if self.tp_overlap == "symmetric":
            raise TracelensError(
                "graph=step needs tp_overlap=off or chunked, not symmetric: torch does not promise that its "
                "symmetric memory stays where it is, as a graph needs"
            )

    @property
    def unoptimised(self) -> dict[str, str]:
        """The toggles of OPTIMISED that are at their baseline, with their values."""
        return {name: getattr(self, name) for name in OPTIMISED if name not in self.changed()}

    def optimised(self) -> Toggles:
        """With those of OPTIMISED that are at their baseline changed, and all others as they are."""
        values: dict[str, Any] = {name: OPTIMISED[name] for name in self.unoptimised}
        return replace(self, **values)

    def changed(self) -> dict[str, object]:
        """The toggles that differ from the baseline."""
        base = Toggles()
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(base, name)}


CHOICES: dict[str, tuple[object, ...]] = {
    "sync_free": tuple(range(4)),
    **{
        name: get_args(hint)
        for name, hint in get_type_hints(Toggles).items()
        if str in map(type, get_args(hint))
    },
}
"""Toggle to its values; switches and lists of layers are not in it."""
