"""The kinds of collectives: how a script calls each, and the expected result."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.analysis.comm import SEND_RECV


class CollectiveKind(NamedTuple):
    """How a script calls one kind of collective; `rank`, `send`, `out`, COUNT and RANKS are in scope.

    Attributes:
        call: source of the call.
        sent: source of the number of elements that a rank sends.
        received: of the number that it receives, "" where it receives in place.
        expected: source of what a rank receives.
        reduces: whether it sums, so that the result can be inexact.
        rooted: whether only the first rank receives.
        instead: what runs on gloo where gloo lacks the call, and the note that says so.
    """

    call: str
    sent: str
    received: str
    expected: str
    reduces: bool = False
    rooted: bool = False
    instead: tuple[str, str] = ("", "")


_GATHERED = "torch.cat([values(src, COUNT) for src in range(RANKS)])"
_SUM = "sum(values(src, COUNT) for src in range(RANKS))"
_MY_SUM = "sum(values(src, RANKS * COUNT)[rank * COUNT :][:COUNT] for src in range(RANKS))"
_SCATTER = "scatter(out, send)"
_MATRIX = (
    "sum(COUNT[rank])",
    "sum(row[rank] for row in COUNT)",
    "torch.cat([values(src, sum(row))[sum(row[:rank]) :][: row[rank]] for src, row in enumerate(COUNT)])",
)
COLLECTIVE_KINDS = {
    "all_reduce": CollectiveKind("dist.all_reduce(send)", "COUNT", "", _SUM, True),
    "all_gather": CollectiveKind("gather(out, send)", "COUNT", "RANKS * COUNT", _GATHERED),
    "all_gather of a list": CollectiveKind(
        "dist.all_gather(list(out.chunk(RANKS)), send)", "COUNT", "RANKS * COUNT", _GATHERED
    ),
    "reduce_scatter": CollectiveKind(_SCATTER, "RANKS * COUNT", "COUNT", _MY_SUM, True),
    "reduce_scatter of a list": CollectiveKind(
        "dist.reduce_scatter(out, list(send.chunk(RANKS)))",
        "RANKS * COUNT",
        "COUNT",
        _MY_SUM,
        reduces=True,
        instead=(_SCATTER, "gloo: one tensor, not a list of them"),
    ),
    "broadcast": CollectiveKind("dist.broadcast(send, 0)", "COUNT", "", "values(0, COUNT)"),
    "reduce": CollectiveKind("dist.reduce(send, 0)", "COUNT", "", _SUM, True, True),
    "gather": CollectiveKind(
        "dist.gather(send, None if rank else list(out.chunk(RANKS)), 0)",
        "COUNT",
        "0 if rank else RANKS * COUNT",
        f"{_GATHERED}[: len(out)]",
        rooted=True,
    ),
    "scatter": CollectiveKind(
        "dist.scatter(out, None if rank else list(send.chunk(RANKS)), 0)",
        "0 if rank else RANKS * COUNT",
        "COUNT",
        "values(0, RANKS * COUNT)[rank * COUNT :][:COUNT]",
    ),
    "all_to_all": CollectiveKind(
        "dist.all_to_all_single(out, send)",
        "RANKS * COUNT",
        "RANKS * COUNT",
        "torch.cat([values(src, RANKS * COUNT)[rank * COUNT :][:COUNT] for src in range(RANKS)])",
    ),
    "all_to_allv": CollectiveKind(
        "dist.all_to_all_single(out, send, [row[rank] for row in COUNT], COUNT[rank])", *_MATRIX
    ),
    SEND_RECV: CollectiveKind("exchange(rank, send, out)", *_MATRIX),
}
"""Of all_to_allv and send/recv COUNT is a matrix, else the elements of one rank's piece."""

_ALL_TO_ALL = ("all_to_all", "all_to_allv", "alltoall", "alltoallv", "alltoall_base", "all_to_all_single")
NAMES = {
    **dict.fromkeys(("allreduce", "all_reduce", "allreduce_coalesced"), "all_reduce"),
    **dict.fromkeys(
        ("_allgather_base", "all_gather_into_tensor", "allgather_into_tensor_coalesced",
         "all_gather_into_tensor_coalesced"), "all_gather",
    ),
    **dict.fromkeys(("allgather", "all_gather", "allgather_coalesced"), "all_gather of a list"),
    **dict.fromkeys(
        ("_reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
        "reduce_scatter",
    ),
    **dict.fromkeys(("reduce_scatter", "reduce_scatter_coalesced"), "reduce_scatter of a list"),
    **dict.fromkeys(("broadcast", "_broadcast_oop"), "broadcast"),
    **dict.fromkeys(("reduce", "_reduce_oop"), "reduce"),
    **dict.fromkeys(_ALL_TO_ALL, "all_to_all"),
    "gather": "gather", "scatter": "scatter", SEND_RECV: SEND_RECV,
}  # fmt: skip
"""Names that torch records to kinds."""
