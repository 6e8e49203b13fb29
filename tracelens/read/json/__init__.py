"""Events of a JSON trace: cut into chunks, decoded into columns, repaired where they are broken."""

from tracelens.read.json.columns import OUT_OF_RANGE, SEPARATOR, CollectiveRow, Columns, Encoded, plain_text
from tracelens.read.json.event import MISSING
from tracelens.read.json.group_ranks import group_of, listed_ranks, ranks_of_header, valid_ranks
from tracelens.read.json.numbers import FIRST_NS, LAST_NS, integer, summable
from tracelens.read.json.pool import decode_all
from tracelens.read.json.split import Splitter

__all__ = [
    "FIRST_NS",
    "LAST_NS",
    "MISSING",
    "OUT_OF_RANGE",
    "SEPARATOR",
    "CollectiveRow",
    "Columns",
    "Encoded",
    "Splitter",
    "decode_all",
    "group_of",
    "integer",
    "listed_ranks",
    "plain_text",
    "ranks_of_header",
    "summable",
    "valid_ranks",
]
