"""Sources of chunk times: given, from layers, or from the chunks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.planner.config import Layout
from tracelens.planner.pipeline.times import ChunkTimes
from tracelens.planner.step_time import LayerTimes

_MOST_LAYERS = 10_000


class Source(Protocol):
    """Times of the chunks of a model, however it is cut.

    Attributes:
        layers: of the model, 0 where it is not known.
    """

    @property
    def layers(self) -> int:
        """Layers of the model, 0 where it is not known."""

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        """Times of `count` chunks on `stages` stages; `shares` are their layers, empty where not known."""


@dataclass(frozen=True)
class Uniform:
    """The same time for equal shares of the model.

    Attributes:
        forward: ns of a micro-batch on one stage, through all of its chunks.
        backward: likewise.
        comm_share: exposed communication, share of both.
        layers: of the model, 0 where it does not matter.
    """

    forward: int
    backward: int
    comm_share: float = 0.0
    layers: int = 0

    def __post_init__(self) -> None:
        """Raise TracelensError for times that cannot be."""
        if min(self.forward, self.backward) < 0 or self.forward + self.backward == 0:
            raise TracelensError(
                "forward and backward must not both be 0 or negative; give both in milliseconds"
            )
        if not 0 <= self.comm_share <= 1:
            raise TracelensError(f"the share of exposed communication must be 0 to 1, not {self.comm_share}")

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        """Of the whole model's time to each chunk its share."""
        sizes = np.array(shares or [1] * count, dtype=np.int64)

        def cut(ns: float) -> Int:
            cuts: Int = np.rint(ns * stages * (sizes / sizes.sum())).astype(np.int64)
            return cuts

        stage_ns = self.forward, self.backward
        return ChunkTimes(*map(cut, stage_ns), *(cut(ns * self.comm_share) for ns in stage_ns))


@dataclass(frozen=True)
class Layers:
    """Each chunk as long as its layers; the first one with the embedding, the last one with the head.

    Attributes:
        times: of the layers.
    """

    times: LayerTimes

    @property
    def layers(self) -> int:
        return len(self.times.forward)

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        """Sums over the layers of each chunk."""
        times = self.times
        return ChunkTimes(
            sums(times.forward, shares, times.embedding[0], times.head[0]),
            sums(times.backward, shares, times.embedding[1], times.head[1]),
            sums(times.forward_comm, shares, 0, 0),
            sums(times.backward_comm, shares, 0, 0),
        )


@dataclass(frozen=True)
class Fixed:
    """Times of chunks that cannot be cut in another way.

    Attributes:
        times: of the chunks.
        shares: layers of each, empty where not known.
        layers: 0: they cannot be cut.
    """

    times: ChunkTimes
    shares: tuple[int, ...] = ()
    layers: int = 0

    def chunks(self, stages: int, count: int, shares: Sequence[int]) -> ChunkTimes:
        """Those, if it is their number.

        Raises:
            TracelensError: it is not.
        """
        if count != len(self.times.forward):
            raise TracelensError(
                f"the times are of {len(self.times.forward)} chunks, not {count}, and the trace has no "
                "scopes of "
                "layers (L0, L1, ...) to split them by; give the number of layers (--layers) to split them "
                "evenly"
            )
        return self.times


def sums(layers: Int, shares: Sequence[int], first: int, last: int) -> Int:
    """Of each chunk the sum over its layers, the first and the last one with what they have besides.

    Args:
        layers: one element a layer.
        shares: layers of each chunk, in the order of the model.
        first: of what comes before the first layer.
        last: of what comes behind the last one.
    """
    edges = np.concatenate(([0], np.cumsum(np.array(shares, dtype=np.int64))))
    chunk_sums: Int = np.diff(np.concatenate(([0], np.cumsum(layers)))[edges])
    chunk_sums[0] += first
    chunk_sums[-1] += last
    return chunk_sums


def even_shares(layers: int, stages: int, chunks: int, layout_text: str = "") -> tuple[int, ...]:
    """Layers of each chunk, in the order of the model.

    Args:
        layers: of the model.
        stages: PP.
        chunks: VPP.
        layout_text: the layers as text, as in 3,4,4,3; "" for even shares.

    Raises:
        TracelensError: another number of chunks or layers.
    """
    if layers > _MOST_LAYERS or (layout_text and not layout_text.strip("0, ")):
        raise TracelensError(f"a model has 1 to {_MOST_LAYERS:,} layers, not {layers:,}")
    # One stage may have several chunks, too, which a layout of ranks would not do.
    pp, vpp = (stages, chunks) if stages > 1 else (chunks, 1)
    layout = Layout(ranks=pp, pp=pp, vpp=vpp, pp_layout=layout_text)
    return tuple(len(chunk_layers) for chunk_layers in layout.chunks(layers))
