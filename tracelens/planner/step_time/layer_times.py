"""Times of a model's layers, which pipelines and step times are made of."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.arrays import Int


class LayerTimes(NamedTuple):
    """Times of a micro-batch, ns.

    Attributes:
        forward: of each layer.
        backward: of each layer.
        forward_comm: exposed communication of each layer's forward.
        backward_comm: of its backward, likewise.
        embedding: forward and backward of what comes before the first layer.
        head: forward and backward of what comes behind the last one, loss included.
    """

    forward: Int
    backward: Int
    forward_comm: Int
    backward_comm: Int
    embedding: tuple[int, int] = (0, 0)
    head: tuple[int, int] = (0, 0)
