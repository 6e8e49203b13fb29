"""Wide tables as DataFrames for people who filter and add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.table import Table

if TYPE_CHECKING:
    import pandas as pd

ALWAYS_KNOWN = frozenset(
    {"rank", "device", "stream", "thread", "ts_ns", "local_ts_ns", "host_ts_ns", "dur_ns"}
    | {"exclusive_ns", "exposed_ns", "kernels", "ranks", "kernel_id"}
)
"""Integer columns without missing values; they are int64 and may be negative."""


def wide_frame(table: Table) -> pd.DataFrame:
    """The table with missing values instead of -1.

    A comparison such as `efficiency < 0.5` must not select what is unknown, and a sum or mean must not count
    it. Integers keep their precision as pandas' Int64.
    """
    import pandas as pd

    frame = table.frame.copy(deep=False)
    for column in table.schema.columns:
        if column.name in ALWAYS_KNOWN or not column.is_number:
            continue
        values = table.array(column.name)
        absent = values < 0
        if column.dtype == "int64":
            frame[column.name] = pd.arrays.IntegerArray(np.where(absent, 1, values), absent)
        else:
            frame[column.name] = np.where(absent, np.nan, values)
    return frame
