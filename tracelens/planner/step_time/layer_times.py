"""Times of a model's layers, which pipelines and step times are made of."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.arrays import Int


class LayerTimes(NamedTuple):
    """Times of a micro-batch, ns.

    Attributes:
        forward: of each layer.
        backward: of each layer.
        forward_exchange: of each layer's forward, what ranks exchange and nothing hides.
        backward_exchange: of its backward, likewise.
        embedding: forward and backward of what comes before the first layer.
        head: forward and backward of what comes behind the last one, loss included.
    """

    forward: Int
    backward: Int
    forward_exchange: Int
    backward_exchange: Int
    embedding: tuple[int, int] = (0, 0)
    head: tuple[int, int] = (0, 0)
