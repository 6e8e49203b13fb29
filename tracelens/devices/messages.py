"""How long messages among ranks of one node take on a device, as `tracelens calibrate` measured them.

Rates are bus bandwidths by the conventions of nccl-tests: algorithm bandwidth = bytes of the larger buffer /
time; bus bandwidth = that x 2 (n-1)/n of an all-reduce, (n-1)/n of an all-gather, reduce-scatter or
all-to-all among n ranks. Between devices of one switch it hardly depends on the number of ranks.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

from tracelens.devices.spec import Bandwidth, Measured, interpolate

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""What is measured among ranks."""


class MessageTime(NamedTuple):
    """Time of a message, and among how many ranks its bus bandwidth was measured."""

    seconds: float
    ranks: int


def message_seconds(
    measured: Measured, collective: str, size_bytes: float, ranks: int, skew: float = 1.0
) -> MessageTime | None:
    """Time of a message among `ranks` of one node; None where none of its kind was measured on one node.

    The bus bandwidth is that of the nearest number of ranks. An all-to-all of uneven parts takes as long as
    its busiest rank, which has `size_bytes`: `skew` times the mean.
    """
    curves: dict[int, dict[float, Bandwidth]] = {}
    for curve in measured.bandwidths:
        if curve.name == collective and 1 < curve.ranks == curve.ranks_per_node:
            curves.setdefault(curve.ranks, {})[curve.skew] = curve
    if not curves or size_bytes <= 0 or ranks < 2:
        return None
    nearest = min(curves, key=lambda count: (abs(log(count / ranks)), -count))
    by_skew = sorted(curves[nearest].items())
    rates = [interpolate(size_bytes, curve.size_bytes, curve.bytes_per_s) for _, curve in by_skew]
    rate = interpolate(max(skew, by_skew[0][0]), [known for known, _ in by_skew], rates)
    return MessageTime(size_bytes * bus_factor(collective, ranks) / rate, nearest)


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth / algorithm bandwidth, by the conventions of nccl-tests (doc/PERFORMANCE.md)."""
    if ranks < 2:
        return 1.0
    if collective.startswith(("allreduce", "all_reduce")):
        return 2 * (ranks - 1) / ranks
    one_to_one = (
        "broadcast", "reduce", "_reduce_oop", "send", "recv", "send_recv", "send/recv", "gather", "scatter"
    )  # fmt: skip
    return 1.0 if collective in one_to_one else (ranks - 1) / ranks
