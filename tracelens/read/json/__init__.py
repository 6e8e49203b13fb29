"""Events of a JSON trace: cut into chunks, decoded into columns, repaired where they are broken."""

from tracelens.read.json.columns import OUT_OF_RANGE, CollectiveRow, Columns, Encoded, plain_text
from tracelens.read.json.events import FIRST_NS, LAST_NS, MISSING, integer, summable
from tracelens.read.json.pool import decode_all
from tracelens.read.json.split import Splitter

__all__ = [
    "FIRST_NS",
    "LAST_NS",
    "MISSING",
    "OUT_OF_RANGE",
    "CollectiveRow",
    "Columns",
    "Encoded",
    "Splitter",
    "decode_all",
    "integer",
    "plain_text",
    "summable",
]
