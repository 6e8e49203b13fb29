"""FLOPs of GEMMs and attention in one step of one rank, by scope.

Norms, rotary positions, softmax and other elementwise ops do not count. GEMMs that tensor parallelism does
not shard (the down-projections of "mla", the router, the head) count on each rank.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracelens.planner.block import (
    AttentionKernel,
    Op,
    RoutedCounts,
    head_section,
    layer_ops,
    recomputed,
)
from tracelens.planner.config import Config
from tracelens.planner.expected.routed import Routing, known
from tracelens.planner.expected.share import Share


class Work(NamedTuple):
    """FLOPs of a scope in one step.

    Attributes:
        forward: of all micro-batches.
        backward: without recompute.
        recomputed: forward that runs again in the backward.
    """

    forward: int = 0
    backward: int = 0
    recomputed: int = 0

    @property
    def total(self) -> int:
        return sum(self)

    @classmethod
    def summed(cls, parts: Iterable[Work]) -> Work:
        return cls(*map(sum, zip(*parts, strict=True)))


def flops(
    config: Config,
    rank: int,
    routing: Routing | None = None,
    attention: AttentionKernel = "flash",
    buffers: bool = False,
    broken_off: bool = False,
    dtype: str | None = None,
) -> dict[str, Work]:
    """FLOPs of one step on one rank.

    Args:
        config: of the run.
        rank: of the run.
        routing: of the step, as reported by the run; not needed with routing=balanced or `buffers`.
        attention: how attention is computed; see `attention_kernel` for what torch selects.
        buffers: count all rows of the expert buffers, as the shapes in a trace do with sync_free=3, not only
            those that hold a token.
        broken_off: also count the last GEMM of a recomputed layer, before which recompute stops early. A
            trace shows its op without a kernel; on a CPU it looks as if it had run.
        dtype: only those of this type, as "fp8"; "" for that of the activations.

    Returns:
        scope (`L{i}.attention`, `L{i}.mlp`, `L{i}.router`, `L{i}.experts`, `L{i}.shared`, `head`) to FLOPs.

    Raises:
        TracelensError: no such rank, or the routing is needed but unknown.
    """
    share, batches = Share(config, rank), range(config.training.micro_batches)
    routing = None if buffers or not any(map(share.is_moe, share.layers)) else known(config, rank, routing)
    buffer_rows = RoutedCounts(share.sizes.buffer_rows, 0, 0)
    parts: dict[str, list[Work]] = defaultdict(list)
    for layer in share.layers:
        is_moe = share.is_moe(layer)
        counts: Counter[RoutedCounts | None] = Counter({buffer_rows if is_moe else None: len(batches)})
        if is_moe and routing is not None:
            counts = Counter(routing.at(layer, batch).counts for batch in batches)
        for routed, times in counts.items():
            ops = layer_ops(share.routed(routed), is_moe, attention)
            runs_again = 0
            if share.is_recomputed(layer):
                runs_again = len(ops) if broken_off else recomputed(ops)
            for scope, work in _work(ops, runs_again, times, dtype):
                parts[f"L{layer}.{scope}"].append(work)
    if share.is_last:
        for scope, work in _work(head_section(share.sizes).ops, 0, len(batches), dtype):
            parts[scope].append(work)
    return {scope: Work.summed(works) for scope, works in parts.items()}


def _work(ops: Sequence[Op], runs_again: int, times: int, dtype: str | None) -> Iterable[tuple[str, Work]]:
    """Scope and FLOPs of each op, in a type if any; the first `runs_again` ops are recomputed."""
    for number, op in enumerate(ops):
        for kernel in op.kernels:
            loads = kernel.forward, kernel.backward
            if kernel.kind in ("gemm", "attention") and (
                dtype is None or dtype in (load.dtype for load in loads)
            ):
                forward, backward = (
                    load.flops * times if dtype in (None, load.dtype) else 0 for load in loads
                )
                yield op.scope, Work(forward, backward, forward if number < runs_again else 0)


def attention_kernel(config: Config, rank: int, device: str) -> AttentionKernel:
    """The kernel that torch's scaled_dot_product_attention selects.

    Args:
        config: of the run.
        rank: ranks of context parallelism differ.
        device: "cpu" or "cuda" (NVIDIA and AMD alike).
    """
    share, model = Share(config, rank), config.model
    if device == "cpu":
        if model.query_dim != model.value_dim:
            return "math"
        # The first rank of context parallelism has as many keys as queries.
        return "masked" if share.coordinates["cp"] else "flash"
    grouped = model.attention == "gqa" and model.heads != model.kv_groups
    # Flash attention has no float32 kernel, and the memory-efficient one no grouped heads.
    return "math" if grouped and config.training.dtype == "float32" else "flash"
