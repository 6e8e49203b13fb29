"""Typed decoding of JSON arrays of events, the usual way."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from tracelens.read.json.event import Event, ExactEvent
from tracelens.read.json.times import exact_ns, nanoseconds

EXACT = msgspec.json.Decoder(list[ExactEvent])
BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is not JSON."""

_EVENTS = msgspec.json.Decoder(list[Event])


class Timed(NamedTuple):
    """Events and their times, int64 nanoseconds."""

    events: list[Event]
    ts_ns: np.ndarray
    dur_ns: np.ndarray


def decode_typed(text: bytes) -> Timed:
    """Decode an array of events; raises one of BAD_JSON where it is not valid or does not fit the types."""
    events = _EVENTS.decode(text)
    ts_ns, dur_ns = nanoseconds([event.ts for event in events]), nanoseconds([event.dur for event in events])
    if ts_ns is None or dur_ns is None:  # floats would lose nanoseconds
        return timed(EXACT.decode(text))
    return Timed(events, ts_ns, dur_ns)


def timed(events: list[ExactEvent]) -> Timed:
    """Events with their times read from text."""
    ts = np.array([exact_ns(event.ts) for event in events], dtype=np.int64)
    dur = np.array([exact_ns(event.dur) for event in events], dtype=np.int64)
    return Timed(list(events), ts, dur)
