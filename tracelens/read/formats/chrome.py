"""Generic Chrome / Perfetto JSON: what is named as Kineto names it is understood, the rest is slices."""

from __future__ import annotations

from tracelens.read.build import build
from tracelens.read.formats.kineto import DIALECT
from tracelens.read.json import Encoded, Splitter
from tracelens.read.parser import parser
from tracelens.trace import Trace


@parser("chrome", sniff=lambda _: True)
def chrome(splitter: Splitter, table: Encoded) -> Trace:
    """Chrome / Perfetto trace JSON of any program; begin/end and async pairs become slices."""
    return build(splitter, table, DIALECT._replace(name="chrome"))
