"""What is typical of several ranks."""

from __future__ import annotations

import numpy as np

from tracelens.arrays import Float


def weighted_median(values: Float, weight: Float) -> Float:
    """Median of each column, each row counting by its weight; by 1 where nothing has any."""
    weight = weight if weight.sum() > 0 else np.ones(len(weight))
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    reached = np.cumsum(weight[order], axis=0)
    half = reached[-1] / 2
    columns = np.arange(values.shape[1])
    low, high = np.argmax(reached >= half, axis=0), np.argmax(reached > half, axis=0)
    result: Float = (ordered[low, columns] + ordered[high, columns]) / 2
    return result


def median_of_others(values: Float) -> Float:
    """For each row, the median of the other rows, column by column; of at least two rows."""
    order = np.argsort(values, axis=0, kind="stable")
    position = np.argsort(order, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    # The row itself is passed over.
    lower, upper = (np.take_along_axis(ordered, rank + (rank >= position), axis=0) for rank in (low, high))
    result: Float = (lower + upper) / 2
    return result
