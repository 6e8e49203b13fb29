"""Messages among the ranks of `torchrun`: collectives and sends by size, all-to-alls also by skew.

Timed as in nccl-tests: a warm-up, then calls in a row without a barrier between them; the slowest rank
counts. On a GPU the calls are captured in one graph (nccl-tests -G), so that no host is in the figure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from tracelens.calibrate.timing import Call, FailedMeasurement, Stopwatch, first_line
from tracelens.devices import Bandwidth, bus_factor

_PATIENCE = timedelta(seconds=120)
"""A rank that waits longer than this in a collective fails: another one has left."""

# From torch 2.12 on the older names warn.
_all_gather_tensor = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_tensor = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class RankFailure(RuntimeError):
    """A rank cannot take part in a measurement."""


def ranks() -> tuple[int, int, int]:
    """Number of this rank, of all ranks, and of those on this node, as torchrun sets them."""
    variables = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_WORLD_SIZE", 1))
    rank, count, on_node = (int(os.environ.get(name, value)) for name, value in variables)
    return rank, count, on_node


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[None]:
    """The process group of all ranks."""
    on_gpu = device.type == "cuda"
    # Else buffers in graphs, unlike those of a program's calls, are registered with the links.
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()


def message_bandwidths(
    watch: Stopwatch, sizes: Sequence[int], uneven_sizes: Sequence[int], skews: Sequence[float]
) -> list[Bandwidth | FailedMeasurement]:
    """Bus bandwidths by size of a rank's larger buffer, in FP32; needs an initialized process group.

    Messages go to the rank half of the ranks away, so that on several nodes it is on another one. In uneven
    all-to-alls all ranks send as much, the first rank receives `skew` times the mean, at most all there is,
    and the others share the rest; sizes are of what the first rank receives.
    """
    _, count, on_node = ranks()
    curves = [(name, 1.0, tuple(sizes)) for name in _CALLS]
    curves += [("all_to_all", skew, tuple(uneven_sizes)) for skew in skews if 1 < skew <= count]
    results: list[Bandwidth | FailedMeasurement] = []
    for name, skew, of_curve in curves:
        label = name if skew == 1 else f"{name} of skew {skew:g}"
        rates = []
        try:
            for size in of_curve:
                seconds = _slowest(watch, partial(_CALLS[name], watch.device, size, skew), label)
                rates.append(size * bus_factor(name, count) / seconds)
        except RuntimeError as error:
            results.append(FailedMeasurement(label, first_line(error)))
            continue
        results.append(Bandwidth(name, of_curve, tuple(rates), count, min(count, on_node), skew=skew))
    return results


def _slowest(watch: Stopwatch, make: Callable[[], Call], label: str) -> float:
    """Seconds of a call on the slowest rank.

    Raises:
        RankFailure: on all ranks, where one of them has no memory for the buffers or cannot make the call.
    """
    problem, call, seconds = "", None, 0.0
    try:
        call = make()
    except RuntimeError as error:
        problem = first_line(error)
    _agree(problem)
    assert call is not None
    try:
        seconds = watch.in_a_row(call, label)
    except RuntimeError as error:
        problem = first_line(error)
    return max(_agree(problem, seconds))


def _agree(problem: str, seconds: float = 0.0) -> list[float]:
    """The seconds of all ranks; raises RankFailure on each of them where one has a problem."""
    outcomes: list[tuple[str, float]] = [("", 0.0)] * dist.get_world_size()
    dist.all_gather_object(outcomes, (problem, seconds))
    for rank, (reason, _) in enumerate(outcomes):
        if reason:
            raise RankFailure(f"rank {rank}: {reason}")
    return [each for _, each in outcomes]


def _buffers(device: torch.device, *elements: int) -> list[Tensor]:
    """Zeros, whose sums do not grow."""
    return [torch.zeros(count, device=device) for count in elements]


def _all_reduce(device: torch.device, size: int, skew: float) -> Call:
    (buffer,) = _buffers(device, size // 4)
    return partial(dist.all_reduce, buffer)


def _all_gather(device: torch.device, size: int, skew: float) -> Call:
    count = dist.get_world_size()
    sent, received = _buffers(device, size // 4 // count, size // 4 // count * count)
    return partial(_all_gather_tensor, received, sent)


def _reduce_scatter(device: torch.device, size: int, skew: float) -> Call:
    count = dist.get_world_size()
    sent, received = _buffers(device, size // 4 // count * count, size // 4 // count)
    return partial(_reduce_scatter_tensor, received, sent)


def _all_to_all(device: torch.device, size: int, skew: float) -> Call:
    rank, count = dist.get_rank(), dist.get_world_size()
    # Elements from each rank to the first, and to each other.
    first = size // 4 // count
    other = first if skew == 1 else round(first * (count / skew - 1) / (count - 1))
    splits = [first, *[other] * (count - 1)]
    own = splits[rank]
    sent, received = _buffers(device, sum(splits), own * count)
    return partial(dist.all_to_all_single, received, sent, [own] * count, splits)


def _send_recv(device: torch.device, size: int, skew: float) -> Call:
    rank, count = dist.get_rank(), dist.get_world_size()
    sent, received = _buffers(device, size // 4, size // 4)

    def call() -> None:
        messages = [
            dist.P2POp(dist.isend, sent, (rank + count // 2) % count),
            dist.P2POp(dist.irecv, received, (rank - count // 2) % count),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()

    return call


_CALLS: dict[str, Callable[[torch.device, int, float], Call]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "send_recv": _send_recv,
}
