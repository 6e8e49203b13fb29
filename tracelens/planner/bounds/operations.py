"""What an operation computes and moves on each GPU, and how long every resource needs for it at least.

An operation runs on the GPUs of one node, with equal work on each. Latencies, launches and synchronization
are not part of a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tracelens.dtypes import element_bytes, short_dtype
from tracelens.errors import TracelensError
from tracelens.planner.bounds.platform import Platform
from tracelens.planner.collectives import Rates, all_to_all_seconds, ring_seconds
from tracelens.planner.distinct import Pool, distinct_blocks

Copies = Literal["expert", "GPU"]
"""An MoE dispatch sends a token once to each of its experts, or once to each GPU that has some of them."""


class Message(NamedTuple):
    """A collective of an operation.

    Attributes:
        collective: its kind.
        size: bytes of the full buffer of a rank, as in nccl-tests.
    """

    collective: Literal["all_to_all", "all_gather", "reduce_scatter"]
    size: float


@dataclass(frozen=True)
class Operation:
    """What each GPU does in an operation, at least.

    Attributes:
        name: in tables.
        sizes: of the whole operation, by name.
        dtype: element type, short.
        ranks: GPUs that take part.
        flops: of GEMMs.
        memory_bytes: read from and written to memory.
        messages: over links, one after the other.
    """

    name: str
    sizes: Mapping[str, int]
    dtype: str
    ranks: int
    flops: float
    memory_bytes: float
    messages: tuple[Message, ...]


class Bound(NamedTuple):
    """Seconds that each resource needs."""

    gemm: float
    memory: float
    links: float

    @property
    def overlapped(self) -> float:
        """Bound if communication and computation overlap perfectly: the busiest resource."""
        return max(self)

    @property
    def serial(self) -> float:
        """Bound if they do not overlap: the GEMM, as its roofline allows, and then the messages."""
        return max(self.gemm, self.memory) + self.links

    @property
    def limit(self) -> str:
        """The busiest resource."""
        return max(zip(self, ("GEMM", "memory", "links"), strict=True))[1]


def bound(operation: Operation, platform: Platform) -> Bound:
    """The bound of an operation on GPUs of one node."""
    return Bound(
        gemm_seconds(operation.flops, operation.dtype, platform),
        operation.memory_bytes / platform.device.hbm_bytes_per_s,
        sum(link_seconds(message, operation.ranks, platform.rates()) for message in operation.messages),
    )


def gemm_seconds(flops: float, dtype: str, platform: Platform) -> float:
    """FLOPs at the GEMM rate of the element type."""
    return flops / platform.matrix_rate(dtype) if flops else 0.0


def link_seconds(message: Message, ranks: int, rates: Rates) -> float:
    """Bytes over the links of one GPU, all ranks on one node."""
    seconds = all_to_all_seconds if message.collective == "all_to_all" else ring_seconds
    return seconds(message.size, ranks, ranks, rates)


def gemm_reduce_scatter(m: int, n: int, k: int, ranks: int, dtype: str = "bf16") -> Operation:
    """[m, k] x [k, n] with k divided over the ranks, its partial sums reduced and scattered by rows.

    A rank multiplies m x k/p by k/p x n. It reads both. Its memory takes in a partial result of m/p x n from
    each rank, itself included: m n elements. The reduce-scatter's full buffer is the partial result.
    """
    _divisible("k", k, ranks)
    _divisible("m", m, ranks)
    item, local_k = element_bytes(dtype), k // ranks
    moved = m * local_k + local_k * n + m * n
    message = Message("reduce_scatter", m * n * item)
    flops = 2 * m * n * local_k
    return Operation(
        "GEMM + reduce-scatter", {"m": m, "n": n, "k": k}, short_dtype(dtype), ranks, flops, moved * item,
        (message,),
    )  # fmt: skip


def all_gather_gemm(m: int, n: int, k: int, ranks: int, dtype: str = "bf16") -> Operation:
    """[m, k] x [k, n] with n divided over the ranks; the rows of [m, k] are gathered before.

    A rank multiplies m x k by k x n/p: it reads both, its own m/p rows from memory and the others as they
    arrive there, and writes m x n/p. The all-gather's full buffer is m x k.
    """
    _divisible("n", n, ranks)
    _divisible("m", m, ranks)
    item, local_n = element_bytes(dtype), n // ranks
    moved = m * k + k * local_n + m * local_n
    message = Message("all_gather", m * k * item)
    flops = 2 * m * local_n * k
    return Operation(
        "all-gather + GEMM", {"m": m, "n": n, "k": k}, short_dtype(dtype), ranks, flops, moved * item,
        (message,),
    )  # fmt: skip


def moe_all_to_all(
    experts: int,
    topk: int,
    hidden: int,
    tokens: int,
    ranks: int,
    dtype: str = "fp16",
    copies: Copies = "expert",
) -> Operation:
    """Dispatch of an MoE layer and combine, with balanced routing; the experts themselves are left out.

    A token has topk distinct experts, all sets equally likely. With a copy per expert, a rank sends
    tokens x topk rows, 1/p of them to itself. With a copy per GPU, a token goes once to each rank with one
    of its experts (see `planner.distinct`); the rank combines the rows of its experts before it sends them
    back. Memory holds the rows that arrive in dispatch, gives them back in combine, and has the tokens read
    and written once.
    """
    _divisible("experts", experts, ranks)
    if not 1 <= topk <= experts:
        raise TracelensError(f"topk must be 1 to the {experts} experts, not {topk}")
    item = element_bytes(dtype)
    rows = tokens * (topk if copies == "expert" else distinct_blocks(Pool(experts, topk, 1, 1), ranks))
    size = rows * hidden * item
    moved = 2 * (tokens * hidden * item + size)
    sizes = {"experts": experts, "topk": topk, "hidden": hidden, "tokens": tokens}
    messages = (Message("all_to_all", size),) * 2
    return Operation(f"all-to-all per {copies}", sizes, short_dtype(dtype), ranks, 0, moved, messages)


def _divisible(name: str, size: int, ranks: int) -> None:
    if size < 1 or size % ranks:
        raise TracelensError(f"{name}={size} is not a multiple of the {ranks} GPUs that share it")
