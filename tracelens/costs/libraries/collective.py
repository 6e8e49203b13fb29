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

from tracelens.costs.call import OpCall, Uncounted
from tracelens.costs.model import OpCost, cost

_ALONE = "group of one rank: a copy within its memory"
_ROOT = "upper bound: bytes of the root, which the record does not name"
_EVEN = "split sizes not recorded: assumed even"


def _names(*names: str) -> tuple[str, ...]:
    """The calls' names of collectives."""
    return tuple(f"collective::{name}" for name in names)


@cost(*_names("allreduce", "allreduce_coalesced", "all_reduce", "allreduce_sparse"), engine="vector")
def all_reduce(call: OpCall) -> OpCost:
    """2(n-1)/n of the message."""
    (sent, received), ranks = _sizes(call), _ranks(call)
    return _cost(sent, received, _others(2 * max(sent, received), ranks), ranks)


@cost(
    *_names(
        "_allgather_base", "all_gather", "allgather", "all_gather_into_tensor", "allgather_coalesced",
        "all_gather_into_tensor_coalesced", "allgather_into_tensor_coalesced",
    ),
    engine="vector",
)  # fmt: skip
def all_gather(call: OpCall) -> OpCost:
    """(n-1)/n of what is gathered."""
    (sent, received), ranks = _sizes(call), _ranks(call)
    return _cost(sent, received, _others(received, ranks), ranks)


@cost(
    *_names(
        "_reduce_scatter_base", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
        "reduce_scatter_coalesced",
    ),
    engine="vector",
)  # fmt: skip
def reduce_scatter(call: OpCall) -> OpCost:
    """(n-1)/n of what goes in."""
    (sent, received), ranks = _sizes(call), _ranks(call)
    return _cost(sent, received, _others(sent, ranks), ranks)


@cost(
    *_names("all_to_all", "all_to_allv", "alltoall", "alltoallv", "alltoall_base", "all_to_all_single"),
    engine="vector",
)
def all_to_all(call: OpCall) -> OpCost:
    """What the split sizes send to, or receive from, other ranks; even splits where they are unknown."""
    (sent, received), ranks = _sizes(call), _ranks(call)
    if call.text(1) or call.text(2):
        link = max(call.integer(1, 0), call.integer(2, 0))
        return _cost(sent, received, max(link, 0), ranks)
    return _cost(sent, received, _others(max(sent, received), ranks), ranks, _EVEN)


@cost(*_names("broadcast", "_broadcast_oop", "reduce", "_reduce_oop"), engine="vector")
def one_to_all(call: OpCall) -> OpCost:
    """The message once."""
    sent, received = _sizes(call)
    return _cost(sent, received, max(sent, received), _ranks(call))


@cost(*_names("gather", "scatter"), engine="vector")
def gather(call: OpCall) -> OpCost:
    """What the root receives from, or sends to, other ranks."""
    (sent, received), ranks = _sizes(call), _ranks(call)
    part, all_parts = (sent, received) if call.name.endswith("gather") else (received, sent)
    return _cost(sent, received, max(part, _others(all_parts, ranks)), ranks, _ROOT if all_parts else "")


@cost(*_names("send", "recv", "isend", "irecv", "recv_any_source"), engine="vector")
def point_to_point(call: OpCall) -> OpCost:
    """The message once: read by its sender, written by its receiver."""
    message = max(_sizes(call))
    if "send" in call.name:
        return OpCost(0, message, 0, "u8", link="gpu", link_bytes=message)
    return OpCost(0, 0, message, "u8", link="gpu", link_bytes=message)


@cost(*_names("barrier", "wait", "coalesced", "startCoalesced", "endCoalesced"), engine="vector")
def synchronisation(call: OpCall) -> OpCost:
    """No data of its own: barriers, waits, and the brackets around coalesced collectives."""
    raise Uncounted(f"{call.name.rpartition(':')[2]} moves no data of its own")


def _cost(sent: int, received: int, link: int, ranks: int, note: str = "") -> OpCost:
    dims = (("ranks", ranks),)
    if ranks == 1:
        return OpCost(0, sent, received, "u8", dims=dims, note=_ALONE)
    return OpCost(0, sent, received, "u8", link="gpu", link_bytes=link, dims=dims, note=note)


def _sizes(call: OpCall) -> tuple[int, int]:
    """Bytes that go in and come out."""
    return call.tensor(0).bytes, call.tensor(1).bytes


def _ranks(call: OpCall) -> int:
    ranks = call.integer(0, 0)
    if ranks < 1:
        raise Uncounted("size of the group not recorded")
    return ranks


def _others(message: int, ranks: int) -> int:
    """The part of an evenly split message that is another rank's, rounded down."""
    return message * (ranks - 1) // ranks
