"""Sources of chunk times: given, from layers (measured or by roofline), or from the chunks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.planner.config import Config, Layout
from tracelens.planner.memory import DEFAULT, Kept, Stages
from tracelens.planner.pipeline.times import ChunkTimes, Costs
from tracelens.planner.step_time import ROOFLINE, LayerTimes, Machine, Timer, layer_times

_MOST_LAYERS = 10_000


class Source(Protocol):
    """Times of the chunks of a model for any partition."""

    @property
    def layers(self) -> int:
        """Layers of the model, 0 if unknown."""

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        """Times of `count` chunks on `stages` stages; `shares` are their layers, empty if unknown."""


@dataclass(frozen=True)
class Uniform:
    """Equal times for equal shares of the model.

    Attributes:
        forward: ns of a micro-batch on one stage, through all of its chunks.
        backward: likewise.
        comm_share: exposed communication, as a share of both.
        layers: of the model, 0 if unknown.
    """

    forward: int
    backward: int
    comm_share: float = 0.0
    layers: int = 0

    def __post_init__(self) -> None:
        if min(self.forward, self.backward) < 0 or self.forward + self.backward == 0:
            raise TracelensError(
                "forward and backward must not be negative or both 0; give them in milliseconds"
            )
        if not 0 <= self.comm_share <= 1:
            raise TracelensError(f"the share of exposed communication must be 0 to 1, not {self.comm_share}")

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        sizes = np.array(shares or [1] * count, dtype=np.int64)

        def cut(ns: float) -> Int:
            cuts: Int = np.rint(ns * stages * (sizes / sizes.sum())).astype(np.int64)
            return cuts

        stage_ns = self.forward, self.backward
        return ChunkTimes(*map(cut, stage_ns), *(cut(ns * self.comm_share) for ns in stage_ns))


@dataclass(frozen=True)
class Layers:
    """Chunks take the sum of their layers, the first plus the embedding, the last plus the head."""

    times: LayerTimes

    @property
    def layers(self) -> int:
        return len(self.times.forward)

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        times = self.times
        return ChunkTimes(
            sums(times.forward, shares, times.embedding[0], times.head[0]),
            sums(times.backward, shares, times.embedding[1], times.head[1]),
            sums(times.forward_comm, shares, 0, 0),
            sums(times.backward_comm, shares, 0, 0),
        )


@dataclass(frozen=True)
class Fixed:
    """Times of the chunks of a partition that cannot change; `shares` are their layers, if known."""

    times: ChunkTimes
    shares: tuple[int, ...] = ()
    layers: int = 0

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        """The times, neighboring chunks as one where that fits; TracelensError for other numbers."""
        together, rest = divmod(len(self.times.forward), count)
        if together > 1 and not rest:
            return ChunkTimes(*(ns.reshape(count, together).sum(axis=1) for ns in self.times))
        if count != len(self.times.forward):
            raise TracelensError(
                f"the trace has times of {len(self.times.forward)} chunks, not {count}, and no annotations "
                "of layers (L0, L1, ...) to split them by; give their number (--layers) for an even split"
            )
        return self.times


def sums(layers: Int, shares: Sequence[int], first: int, last: int) -> Int:
    """Sum over the layers of each chunk, plus `first` in the first chunk and `last` in the last one."""
    edges = np.concatenate(([0], np.cumsum(np.array(shares, dtype=np.int64))))
    chunk_sums: Int = np.diff(np.concatenate(([0], np.cumsum(layers)))[edges])
    chunk_sums[0] += first
    chunk_sums[-1] += last
    return chunk_sums


def even_shares(layers: int, stages: int, chunks: int, layout_text: str = "") -> tuple[int, ...]:
    """Layers of each of the `stages` x `chunks` chunks in model order: an even split, or as in "3,4,4,3".

    Raises:
        TracelensError: `layout_text` has another number of chunks or layers.
    """
    if layers > _MOST_LAYERS or (layout_text and not layout_text.strip("0, ")):
        raise TracelensError(f"a model has 1 to {_MOST_LAYERS:,} layers, not {layers:,}")
    # A single stage may have several chunks, which a Layout does not allow.
    pp, vpp = (stages, chunks) if stages > 1 else (chunks, 1)
    layout = Layout(ranks=pp, pp=pp, vpp=vpp, pp_layout=layout_text)
    return tuple(len(chunk_layers) for chunk_layers in layout.chunks(layers))


def roofline(config: Config, device: Device, machine: Machine | None = None) -> tuple[Layers, Costs]:
    """Roofline times of each layer, and of a message between stages.

    Raises:
        TracelensError: the device has no rate for the activation type, or for its links.
    """
    machine = machine or ROOFLINE
    message = round(Timer(config, device, machine).stage_message())
    return Layers(layer_times(config, device, machine)), Costs(message, message)


def activations(config: Config) -> Kept:
    """Bytes that a micro-batch saves for its backward in each part of the model, for any partition."""
    return Stages(config, DEFAULT).kept()
