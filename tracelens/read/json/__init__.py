"""Events of a JSON trace: cut into chunks, decoded into columns, repaired where they are broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.read.json.columns import (
        OUT_OF_RANGE,
        CollectiveRow,
        Columns,
        Encoded,
        Part,
        ScannedPart,
        merge,
        plain_text,
    )
    from tracelens.read.json.events import FIRST_NS, LAST_NS, MISSING, integer, summable
    from tracelens.read.json.pool import Child, decode_all, encode
    from tracelens.read.json.scan import Scan
    from tracelens.read.json.split import Chunk, Splitter

__all__ = [
    "FIRST_NS",
    "LAST_NS",
    "MISSING",
    "OUT_OF_RANGE",
    "Child",
    "Chunk",
    "CollectiveRow",
    "Columns",
    "Encoded",
    "Part",
    "Scan",
    "ScannedPart",
    "Splitter",
    "decode_all",
    "encode",
    "integer",
    "merge",
    "plain_text",
    "summable",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "read.json.columns": "OUT_OF_RANGE CollectiveRow Columns Encoded Part ScannedPart merge plain_text",
        "read.json.events": "FIRST_NS LAST_NS MISSING integer summable",
        "read.json.pool": "Child decode_all encode",
        "read.json.scan": "Scan",
        "read.json.split": "Chunk Splitter",
    },
)
