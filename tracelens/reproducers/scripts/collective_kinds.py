"""The kinds of collectives: how a script calls each, and what it should give."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.analysis.comm import SEND_RECV


class CollectiveKind(NamedTuple):
    """How one kind of collective is called in a script; `rank`, `given`, `out`, COUNT and RANKS are known.

    Attributes:
        call: source of the call.
        sent: source of the number of elements that a rank gives.
        received: of the number that it gets, "" where it gets them in the place of what it gave.
        expected: source of what a rank gets.
        reduces: whether it adds up, so that the result can be inexact.
        rooted: whether only the first rank gets something.
        instead: what runs on gloo, which not always has the same, and how the script says so.
    """

    call: str
    sent: str
    received: str
    expected: str
    reduces: bool = False
    rooted: bool = False
    instead: tuple[str, str] = ("", "")


_GATHERED = "torch.cat([values(one, COUNT) for one in range(RANKS)])"
_SUM = "sum(values(one, COUNT) for one in range(RANKS))"
_MY_SUM = "sum(values(one, RANKS * COUNT)[rank * COUNT :][:COUNT] for one in range(RANKS))"
_SCATTER = "scatter(out, given)"
_MATRIX = (
    "sum(COUNT[rank])",
    "sum(row[rank] for row in COUNT)",
    "torch.cat([values(one, sum(row))[sum(row[:rank]) :][: row[rank]] for one, row in enumerate(COUNT)])",
)
COLLECTIVE_KINDS = {
    "all_reduce": CollectiveKind("dist.all_reduce(given)", "COUNT", "", _SUM, True),
    "all_gather": CollectiveKind("gather(out, given)", "COUNT", "RANKS * COUNT", _GATHERED),
    "all_gather of a list": CollectiveKind(
        "dist.all_gather(list(out.chunk(RANKS)), given)", "COUNT", "RANKS * COUNT", _GATHERED
    ),
    "reduce_scatter": CollectiveKind(_SCATTER, "RANKS * COUNT", "COUNT", _MY_SUM, True),
    "reduce_scatter of a list": CollectiveKind(
        "dist.reduce_scatter(out, list(given.chunk(RANKS)))",
        "RANKS * COUNT",
        "COUNT",
        _MY_SUM,
        reduces=True,
        instead=(_SCATTER, "gloo: one tensor, not a list of them"),
    ),
    "broadcast": CollectiveKind("dist.broadcast(given, 0)", "COUNT", "", "values(0, COUNT)"),
    "reduce": CollectiveKind("dist.reduce(given, 0)", "COUNT", "", _SUM, True, True),
    "gather": CollectiveKind(
        "dist.gather(given, None if rank else list(out.chunk(RANKS)), 0)",
        "COUNT",
        "0 if rank else RANKS * COUNT",
        f"{_GATHERED}[: len(out)]",
        rooted=True,
    ),
    "scatter": CollectiveKind(
        "dist.scatter(out, None if rank else list(given.chunk(RANKS)), 0)",
        "0 if rank else RANKS * COUNT",
        "COUNT",
        "values(0, RANKS * COUNT)[rank * COUNT :][:COUNT]",
    ),
    "all_to_all": CollectiveKind(
        "dist.all_to_all_single(out, given)",
        "RANKS * COUNT",
        "RANKS * COUNT",
        "torch.cat([values(one, RANKS * COUNT)[rank * COUNT :][:COUNT] for one in range(RANKS)])",
    ),
    "all_to_allv": CollectiveKind(
        "dist.all_to_all_single(out, given, [row[rank] for row in COUNT], COUNT[rank])", *_MATRIX
    ),
    SEND_RECV: CollectiveKind("exchange(rank, given, out)", *_MATRIX),
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
