"""FLOPs on matrix units, by piece of GPU work: GEMMs, attention, convolutions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.roofline.costing import matrix_costing
from tracelens.arrays import Bool, Int
from tracelens.trace import Trace, Work

_ON_MATRIX_UNITS = ("gemm", "grouped_gemm", "attention", "convolution")


def on_matrix_units(work: Work) -> Bool:
    """Which work multiplies matrices, by its class alone."""
    codes = [code for code, name in enumerate(work.categories) if name in _ON_MATRIX_UNITS]
    return np.isin(work.category, codes)


class MatrixFlops(NamedTuple):
    """One element a piece of work.

    Attributes:
        flops: of the call that the piece belongs to, at one of its pieces; 0 elsewhere.
        lacking: whether it is a GEMM by its class, and its call is not counted.
    """

    flops: Int
    lacking: Bool


def matrix_flops(trace: Trace, work: Work) -> MatrixFlops:
    """What the cost models count (see costing.py) on matrix units."""
    costs = matrix_costing(trace, work)
    each = np.array([item.cost.flops if item.cost.engine == "matrix" else 0 for item in costs.items] + [0])
    flops = np.zeros(len(work.event), dtype=np.int64)
    counted = np.flatnonzero(costs.item >= 0)
    _, first = np.unique(costs.call[counted], return_index=True)
    flops[counted[first]] = each[costs.item[counted[first]]]
    return MatrixFlops(flops, on_matrix_units(work) & (costs.item < 0))
