"""Student's t distribution, as far as tests and intervals need it."""

from __future__ import annotations

from functools import lru_cache
from math import atan2, sqrt

import numpy as np

from tracelens.arrays import Float

_GRID = np.linspace(0, np.pi / 2, 1 << 14)


def t_quantile(tail: float, freedom: float) -> float:
    """The value that Student's t exceeds with this probability.

    Args:
        tail: probability, below 0.5.
        freedom: degrees of freedom, at least 1; to the hundredth.
    """
    freedom = round(freedom, 2)
    area = _area(freedom)
    return sqrt(freedom) / float(np.tan(np.interp(tail, area, _GRID)))


def t_tail(value: float, freedom: float) -> float:
    """The probability that Student's t exceeds this value.

    Args:
        value: at least 0.
        freedom: degrees of freedom, at least 1; to the hundredth.
    """
    freedom = round(freedom, 2)
    return float(np.interp(atan2(sqrt(freedom), value), _GRID, _area(freedom)))


@lru_cache(maxsize=4096)
def _area(freedom: float) -> Float:
    """The tail at each point of the grid.

    With t = sqrt(freedom) / tan(u) the density is sin(u) ** (freedom - 1), integrated over u from 0, the far
    end of the tail.
    """
    density = np.sin(_GRID) ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    result: Float = area / (2 * area[-1])
    return result
