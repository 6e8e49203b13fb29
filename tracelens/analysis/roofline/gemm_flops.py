"""FLOPs on matrix units, by piece of GPU work: products, attention, convolutions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.roofline.costing import matrix_costing
from tracelens.arrays import Bool, Int
from tracelens.trace import Trace, Work

_PRODUCTS = ("gemm", "grouped_gemm", "attention", "convolution")


class MatrixFlops(NamedTuple):
    """One element a piece of work.

    Attributes:
        flops: of the call that the piece belongs to, at one of its pieces; 0 elsewhere.
        lacking: whether it is a product by its class, and its call is not counted.
    """

    flops: Int
    lacking: Bool


def matrix_flops(trace: Trace, work: Work) -> MatrixFlops:
    """What the cost models count (see _costing) on matrix units."""
    found = matrix_costing(trace, work)
    each = np.array([one.cost.flops if one.cost.engine == "matrix" else 0 for one in found.items] + [0])
    flops = np.zeros(len(work.event), dtype=np.int64)
    counted = np.flatnonzero(found.item >= 0)
    _, first = np.unique(found.call[counted], return_index=True)
    flops[counted[first]] = each[found.item[counted[first]]]
    products = [place for place, name in enumerate(work.categories) if name in _PRODUCTS]
    return MatrixFlops(flops, np.isin(work.category, products) & (found.item < 0))
