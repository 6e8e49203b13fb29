"""Time of GEMMs on CDNA GPUs, from macro tiles and compute units.

    gemm_ns(device("mi300x"), GemmSizes(m=8192, k=2880, n=5120), "bf16")     # 424,000 ns; measured: 382,000

A kernel cuts the output into macro tiles. A workgroup computes one: it walks along the inner size, loads a
strip of both operands and multiplies. With one workgroup on each compute unit, tiles are computed in waves:

    start + max(waves x tile, reads / HBM) + writes / HBM + (waves - 1) x change of tiles
    tile  = (depth + fill) x max(FLOPs / rate of a unit, bytes of the strips / load rate of a unit)

Few tiles with a long inner size are split along it; the parts are then added up. Of all tiles and splits the
fastest counts, as a tuned library chooses it. GEMMs of a group or batch share the waves.

The idea is that of analytic selection as in AMD's Origami; the numbers of an architecture are in the device
file, `[modeled]`, and come from recorded GEMMs (`Modeled`).
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np

from tracelens.devices.spec import Device
from tracelens.dtypes import BITS

EDGES = (16, 32, 64, 96, 128, 160, 192, 224, 256)
"""Edges of macro tiles: those in the names of hipBLASLt's kernels in the public traces of MI300X."""
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""Parts that the inner size is split into."""
DEPTH = 32
"""The inner size is padded to a multiple of this, the depth of two matrix instructions."""
CACHE_SHARE = 0.5
"""Of the last-level cache, what an operand can stay in while the other passes through."""
WORD_BYTES = 4
"""Rows that are no multiple of this long cannot be loaded and stored with wide instructions."""
SUM_BYTES = 4
"""Of an element of a part that is added up."""

_ROWS, _COLUMNS = (edge.ravel() for edge in np.meshgrid(np.array(EDGES, float), np.array(EDGES, float)))
_SPLIT = np.array(SPLITS, dtype=float)[:, None]


class GemmSizes(NamedTuple):
    """Sizes of a GEMM, or of each of a group's: (m, k) times (k, n)."""

    m: float
    k: float
    n: float
    matrices: int = 1
    width: int = 0  # elements of a row of the first operand in memory; 0: k

    @property
    def flops(self) -> float:
        return 2.0 * self.matrices * self.m * self.k * self.n


def gemm_ns(device: Device, gemm: GemmSizes, dtype: str) -> float | None:
    """Time of a GEMM; None where the device file has no `[modeled]`, or no matrix rate for the type."""
    model, peak = device.modeled, device.peak("matrix", dtype)
    if model is None or peak is None or not device.units:
        return None
    bits = BITS.get(dtype, 16)
    m, k, n = max(gemm.m, 1.0), max(gemm.k, 1.0), max(gemm.n, 1.0)
    ceiling = device.max_achievable(dtype) or peak
    unit_flops = min(peak * model.matrix_share, ceiling) / device.units
    hbm = device.hbm_bytes_per_s * model.hbm_share

    # One row for each split, one column for each tile.
    tiles = gemm.matrices * np.ceil(m / _ROWS) * np.ceil(n / _COLUMNS)
    waves = np.ceil(tiles * _SPLIT / device.units)
    depth = np.ceil(k / _SPLIT / DEPTH) * DEPTH + model.fill_depth
    multiply = 2 * _ROWS * _COLUMNS * depth / unit_flops
    load = (_ROWS + _COLUMNS) * depth * bits / 8 / model.load_bytes_per_s

    first, second = k * m * bits / 8, k * n * bits / 8
    if _is_narrow(gemm.width or gemm.k, bits):
        first *= model.narrow
    read = gemm.matrices * _read(device, first, second, ceil(m * n / (EDGES[-1] ** 2 * device.units)))
    # The parts of a result are as wide as BF16 at least.
    written_bits = max(bits, 16)
    written = gemm.matrices * m * n * written_bits / 8
    summed = 2 * SUM_BYTES * gemm.matrices * m * n * _SPLIT
    if _is_narrow(n, written_bits):
        written *= model.narrow

    times = np.maximum(waves * np.maximum(multiply, load), read / hbm) * 1e9
    times += model.start_ns + (waves - 1) * model.tile_ns + written / hbm * 1e9
    # Adding up waits for the parts, as another kernel would.
    times += np.where(_SPLIT > 1, model.start_ns + summed / hbm * 1e9, 0.0)
    return float(times.min())


def _read(device: Device, first: float, second: float, bands: int) -> float:
    """Bytes of two operands from HBM.

    The tiles of a wave walk along the inner size together: they are a band of the output, which reads its own
    strips of one operand once, and all of the other, which may still be in the cache from the band before.
    """
    kept = device.cache_bytes * CACHE_SHARE
    of_first, of_second = (bands if operand > kept else 1 for operand in (first, second))
    return min(first + second * of_second, first * of_first + second)


def _is_narrow(elements: float, bits: int) -> bool:
    return round(elements) * bits // 8 % WORD_BYTES != 0
