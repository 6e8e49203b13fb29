"""Collectives: what one rank must send or receive, by the sizes that the profiler records with them.

The call `collective::NAME` has two arguments, what goes into and what comes out of a rank (S_in and S_out
bytes), and the values [ranks n, bytes of S_in for other ranks, bytes of S_out from other ranks]; the last
two are "" where no split sizes were recorded. Link bytes are the larger of what one rank sends and receives
at least over full-duplex links, without reduction in the network:

- all-reduce: 2(n-1)/n S (a reduce-scatter and an all-gather; Patarasuk and Yuan, "Bandwidth optimal
  all-reduce algorithms for clusters of workstations"),
- all-gather: (n-1)/n S_out, reduce-scatter: (n-1)/n S_in,
- all-to-all: what the splits say; (n-1)/n S where they are unknown, which is taking them as even,
- broadcast, reduce, send, receive: S; gather, scatter: what the root receives or sends.

These are the factors of nccl-tests' bus bandwidth. Memory bytes are what goes in plus what comes out. The
additions of a reduction are not counted as FLOPs: the element type is not part of the call, and a link is
hundreds of times slower than they are.
"""

from __future__ import annotations

import re

from msgspec import Struct

from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size

_ALONE = "group of one rank: a copy within its memory"
_ROOT = "upper bound: bytes of the root, which the record does not name"
_EVEN = "split sizes not recorded: assumed even"

_LEAST = "number of ranks not recorded: the message once, exact for 2 ranks"
_RANKS = re.compile(r"[<,] ?(\d+)[,>]|Li(\d+)E")
_MOST_RANKS = 64
_NORM = 5
# Bits of an element on the way, by the level that QuickReduce is called with; 0 leaves them as they are.
_QUICK_BITS = {1: 8, 2: 6, 3: 4}


class FusedAllReduce(Struct, frozen=True):
    """An all-reduce with an RMS norm: argument indices of what is read and written, the message first."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: int


class Message(Struct, frozen=True):
    """What a library's op sends and receives."""

    collective: str  # as torch's profiler names it
    sent: int  # bytes that go into a rank and come out of it
    received: int  # bytes that go into a rank and come out of it
    dtype: str  # element type
    ranks: int  # of the group, 0 where neither shapes nor the kernel's name tell


class _MessageArguments(Struct, frozen=True):
    """A collective and the arguments that hold what a rank sends and what it receives."""

    collective: str
    sent: int
    received: int


_NORM_TO = {
    "aiter::fused_allreduce_rmsnorm": FusedAllReduce((1, 2, 5), (3, 4), _NORM),
    "aiter::fused_allreduce_rmsnorm_pad": FusedAllReduce((1, 2, 5), (3, 4), _NORM),
    "aiter::fused_allreduce_rmsnorm_quant": FusedAllReduce((1, 2, 6), (3, 4, 5), _NORM + 2),
    "aiter::fused_allreduce_rmsnorm_quant_per_group": FusedAllReduce((1, 2, 6), (3, 4, 5), _NORM + 2),
    "aiter::fused_allreduce_rmsnorm_mxfp4_quant": FusedAllReduce((1, 2, 6), (3, 4, 5), _NORM + 2),
}
_REDUCES = (
    "_C_custom_ar::all_reduce", "_C_custom_ar::all_reduce_reg", "aiter::all_reduce", "aiter::all_reduce_reg",
    "sgl_kernel::all_reduce_reg",
)  # fmt: skip
_QUICK = ("_C_custom_ar::qr_all_reduce", "aiter::qr_all_reduce", "sgl_kernel::qr_all_reduce")
_ARGUMENTS = {
    **dict.fromkeys((*_REDUCES, *_QUICK), _MessageArguments("allreduce", 1, 2)),
    **dict.fromkeys(_NORM_TO, _MessageArguments("allreduce", 1, 1)),
    "aiter::fused_allreduce_rmsnorm_": _MessageArguments("allreduce", 0, 0),
    "aiter::all_gather_reg": _MessageArguments("all_gather", 1, 2),
    "sglang::reg_all_gather_into_tensor": _MessageArguments("all_gather", 1, 0),
    "aiter::reduce_scatter": _MessageArguments("reduce_scatter", 1, 2),
}
MESSAGE_OPS = frozenset(_ARGUMENTS)
"""Ops that `message` knows."""


def _names(*names: str) -> tuple[str, ...]:
    """The calls' names of collectives."""
    return tuple(f"collective::{name}" for name in names)


@cost(*_names("allreduce", "allreduce_coalesced", "all_reduce", "allreduce_sparse"))
def all_reduce(call: OpCall) -> OpCost:
    """2(n-1)/n of the message."""
    (sent, received), ranks = _message_sizes(call), _group_size(call)
    return _message_cost(sent, received, _others(2 * max(sent, received), ranks), ranks)


@cost(
    *_names(
        "_allgather_base", "all_gather", "allgather", "all_gather_into_tensor", "allgather_coalesced",
        "all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced",
    ),
)  # fmt: skip
def all_gather(call: OpCall) -> OpCost:
    """(n-1)/n of what is gathered."""
    (sent, received), ranks = _message_sizes(call), _group_size(call)
    return _message_cost(sent, received, _others(received, ranks), ranks)


@cost(
    *_names(
        "_reduce_scatter_base", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
        "reduce_scatter_coalesced",
    ),
)  # fmt: skip
def reduce_scatter(call: OpCall) -> OpCost:
    """(n-1)/n of what goes in."""
    (sent, received), ranks = _message_sizes(call), _group_size(call)
    return _message_cost(sent, received, _others(sent, ranks), ranks)


@cost(
    *_names("all_to_all", "all_to_allv", "alltoall", "alltoallv", "alltoall_base", "all_to_all_single"),
)
def all_to_all(call: OpCall) -> OpCost:
    """What the split sizes send to, or receive from, other ranks; even splits where they are unknown."""
    (sent, received), ranks = _message_sizes(call), _group_size(call)
    if call.text(1) or call.text(2):
        link = max(call.integer(1, 0), call.integer(2, 0))
        return _message_cost(sent, received, max(link, 0), ranks)
    return _message_cost(sent, received, _others(max(sent, received), ranks), ranks, _EVEN)


@cost(*_names("broadcast", "_broadcast_oop", "reduce", "_reduce_oop"))
def one_to_all(call: OpCall) -> OpCost:
    """The message once."""
    sent, received = _message_sizes(call)
    return _message_cost(sent, received, max(sent, received), _group_size(call))


@cost(*_names("gather", "scatter"))
def gather(call: OpCall) -> OpCost:
    """What the root receives from, or sends to, other ranks."""
    (sent, received), ranks = _message_sizes(call), _group_size(call)
    part, all_parts = (sent, received) if call.name.endswith("gather") else (received, sent)
    return _message_cost(
        sent, received, max(part, _others(all_parts, ranks)), ranks, _ROOT if all_parts else ""
    )


@cost(*_names("send", "recv", "isend", "irecv", "recv_any_source"))
def point_to_point(call: OpCall) -> OpCost:
    """The message once: read by its sender, written by its receiver."""
    message = max(_message_sizes(call))
    if "send" in call.name:
        return OpCost(0, message, 0, "u8", link="gpu", link_bytes=message)
    return OpCost(0, 0, message, "u8", link="gpu", link_bytes=message)


@cost(*_names("barrier", "wait", "coalesced", "startCoalesced", "endCoalesced"))
def synchronisation(call: OpCall) -> OpCost:
    """No data of its own: barriers, waits, and the brackets around coalesced collectives."""
    raise Uncounted(f"{call.name.rpartition(':')[2]} moves no data of its own")


def _message_cost(sent: int, received: int, link: int, ranks: int, note: str = "") -> OpCost:
    dims = (("ranks", ranks),)
    if ranks == 1:
        return OpCost(0, sent, received, "u8", dims=dims, note=_ALONE)
    return OpCost(0, sent, received, "u8", link="gpu", link_bytes=link, dims=dims, note=note)


def _message_sizes(call: OpCall) -> tuple[int, int]:
    """Bytes that go in and come out."""
    return call.tensor(0).bytes, call.tensor(1).bytes


def _group_size(call: OpCall) -> int:
    ranks = call.integer(0, 0)
    if ranks < 1:
        raise Uncounted("size of the group not recorded")
    return ranks


def _others(message: int, ranks: int) -> int:
    """The part of an evenly split message that is another rank's, rounded down."""
    return message * (ranks - 1) // ranks


# ====================
# Collectives that serving libraries bring themselves, over memory that all GPUs of a node map.
#
# Torch's profiler has no record of their groups, only the op with its tensors. What one rank must send or
# receive is as for other collectives: of an all-reduce 2(n-1)/n of the message, of an all-gather what comes
# out less what goes in, of a reduce-scatter the reverse. The number of ranks n is a template argument of
# their kernels; where its name is not known, the message once is counted, which is right for two ranks and a
# lower bound for more. An RMS norm behind an all-reduce is 5 FLOPs an element, as in norm.py; the additions
# of the reduction are not counted.
#
# Sources: vllm-project/vllm, csrc/torch_bindings.cpp and csrc/quickreduce/quick_reduce.h; ROCm/aiter,
# aiter/ops/custom_all_reduce.py, aiter/dist/parallel_state.py and csrc/include/custom_all_reduce.cuh;
# sgl-project/sglang, sgl-kernel/csrc/common_extension_rocm.cc and python/sglang/srt/distributed.


def message(call: OpCall) -> Message | None:
    """The message of a library's collective; None for other ops, and where its tensors are not recorded."""
    arguments = _ARGUMENTS.get(call.name)
    if arguments is None:
        return None
    try:
        before, after = call.tensor(arguments.sent), call.tensor(arguments.received)
        sent, received = before.dense_bytes, after.dense_bytes
    except Uncounted:
        return None
    small, large = sorted((sent, received))
    by_size = large // small if small and not large % small else 0
    ranks = _kernel_ranks(call.kernel) if arguments.collective == "allreduce" else by_size
    return Message(arguments.collective, sent, received, before.dtype, ranks)


@cost(*_REDUCES)
def library_all_reduce(call: OpCall) -> OpCost:
    """A handle, the message, the result."""
    message = call.tensor(1)
    return _reduced(call, message, message.bytes, call.tensor(2).bytes)


@cost(*_QUICK)
def quick_all_reduce(call: OpCall) -> OpCost:
    """QuickReduce: a handle, the message, the result, and to how many bits elements are cut on the way."""
    message = call.tensor(1)
    bits = _QUICK_BITS.get(call.integer(3))
    # The scales of the groups that are cut go along; how large a group is differs between versions.
    sent = -(-message.numel * bits // 8) if bits else message.dense_bytes
    return _reduced(call, message, message.bytes, call.tensor(2).bytes, min(sent, message.dense_bytes))


@cost(*_NORM_TO)
def all_reduce_norm(call: OpCall) -> OpCost:
    """A handle, the message, the residual, their sum, its RMS norm, perhaps its scales, the weight."""
    arguments = _NORM_TO[call.name]
    read = sum(call.tensor(index).bytes for index in arguments.reads)
    written = sum(call.tensor(index).bytes for index in arguments.writes)
    message = call.tensor(1)
    return _reduced(call, message, read, written)._replace(flops=arguments.flops * message.numel)


@cost("aiter::fused_allreduce_rmsnorm_")
def all_reduce_norm_new(call: OpCall) -> OpCost:
    """The message, the residual, the weight; the sum and its norm are new, rows padded to a multiple."""
    message, residual = call.tensor(0), call.tensor(1)
    if not message.shape:
        raise Uncounted("an operand without dimensions")
    width, multiple = message.shape[-1], call.integer(6, 0)
    padded = -(-width // multiple) * multiple if multiple > 0 else width
    rows = message.numel // (width or 1)
    written = size(rows * padded, message.dtype) + residual.dense_bytes
    read = message.bytes + residual.bytes + call.tensor(2).bytes
    return _reduced(call, message, read, written)._replace(flops=_NORM * message.numel)


@cost("aiter::all_gather_reg")
def library_all_gather(call: OpCall) -> OpCost:
    """A handle, a rank's part, all parts."""
    return _parts(call.tensor(1), call.tensor(2))


@cost("sglang::reg_all_gather_into_tensor")
def library_all_gather_into(call: OpCall) -> OpCost:
    """All parts, a rank's part."""
    return _parts(call.tensor(1), call.tensor(0))


@cost("aiter::reduce_scatter")
def library_reduce_scatter(call: OpCall) -> OpCost:
    """A handle, all parts, a rank's part of their sum."""
    return _parts(call.tensor(1), call.tensor(2))


def _reduced(call: OpCall, message: Tensor, read: int, written: int, sent: int = -1) -> OpCost:
    """An all-reduce of a message, of which `sent` bytes stand for all elements on the way."""
    sent = message.dense_bytes if sent < 0 else sent
    ranks = _kernel_ranks(call.kernel)
    link = 2 * sent * (ranks - 1) // ranks if ranks else sent
    dims = (("ranks", ranks),) if ranks else ()
    return OpCost(0, read, written, message.dtype, link="gpu", link_bytes=link, dims=dims,
                  note="" if ranks else _LEAST)  # fmt: skip


def _parts(before: Tensor, after: Tensor) -> OpCost:
    """All-gather or reduce-scatter: the larger tensor has a part for each rank."""
    small, large = sorted((before.dense_bytes, after.dense_bytes))
    if not small or large % small:
        raise Uncounted("recorded shapes disagree on the number of ranks")
    dims = (("ranks", large // small),)
    return OpCost(0, before.bytes, after.dense_bytes, before.dtype, link="gpu", link_bytes=large - small,
                  dims=dims)  # fmt: skip


def _kernel_ranks(kernel: str) -> int:
    """How many ranks a kernel is made for: the first number among its template arguments; 0 if not known."""
    numbers = _RANKS.search(kernel)
    ranks = int(numbers[1] or numbers[2]) if numbers and len(numbers[0]) < 8 else 0
    return ranks if 2 <= ranks <= _MOST_RANKS else 0
