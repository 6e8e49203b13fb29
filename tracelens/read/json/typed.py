"""Typed decoding of JSON arrays of events, the usual way."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
import numpy as np

from tracelens.read.json.event import Event, ExactEvent
from tracelens.read.json.times import exact_ns, nanoseconds

EXACT = msgspec.json.Decoder(list[ExactEvent])
BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is not JSON."""

_EVENTS = msgspec.json.Decoder(list[Event])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])
_ERROR_BYTE = re.compile(r"\(byte (\d+)\)\Z")
_ERROR_ELEMENT = re.compile(r"at `\$\[(\d+)\]")
_BETWEEN = re.compile(rb"[\s,]*+")


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
    ts = np.fromiter((exact_ns(event.ts) for event in events), dtype=np.int64, count=len(events))
    dur = np.fromiter((exact_ns(event.dur) for event in events), dtype=np.int64, count=len(events))
    return Timed(list(events), ts, dur)


class Batch:
    """Events of many texts, in order, whose times are read at once.

    Attributes:
        events: those that were added.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._texts: list[bytes] = []

    def add(self, text: bytes) -> int:
        """Decode events with commas between them; returns how many, or raises one of BAD_JSON."""
        if events := _EVENTS.decode(b"[" + text + b"]"):
            self.events += events
            self._texts.append(text)
        return len(events)

    def add_exact(self, events: list[ExactEvent]) -> int:
        """Add events that were decoded elsewhere; returns how many."""
        self.events += events
        return len(events)

    def timed(self) -> Timed:
        """All events and their times."""
        exact = [event for event in self.events if isinstance(event, ExactEvent)]
        typed = (
            [event for event in self.events if not isinstance(event, ExactEvent)] if exact else self.events
        )
        ts_ns = nanoseconds([event.ts for event in typed])
        dur_ns = nanoseconds([event.dur for event in typed])
        if ts_ns is None or dur_ns is None:  # floats would lose nanoseconds
            _, ts_ns, dur_ns = timed(EXACT.decode(b"[" + b",".join(self._texts) + b"]"))
        if exact:
            _, exact_ts_ns, exact_dur_ns = timed(exact)
            is_exact = np.fromiter((isinstance(event, ExactEvent) for event in self.events), dtype=bool)
            row = np.flatnonzero(is_exact) - np.arange(len(exact))
            ts_ns, dur_ns = np.insert(ts_ns, row, exact_ts_ns), np.insert(dur_ns, row, exact_dur_ns)
        return Timed(self.events, ts_ns, dur_ns)


def fits(text: bytes) -> bool:
    """Whether events with commas between them decode."""
    try:
        _EVENTS.decode(b"[" + text + b"]")
    except BAD_JSON:
        return False
    return True


def is_unfinished(event: bytes) -> bool:
    """Whether a text that does not decode would, for all that can be told, if it went on."""
    try:
        _EVENTS.decode(b"[" + event)
    except BAD_JSON as error:
        return error_offset(event, error) < 0
    return False


def error_offset(array: bytes, error: Exception) -> int:
    """How far an array of events was read when decoding raised `error`, -1 where that cannot be told.

    All events that end before are valid.
    """
    if isinstance(error, UnicodeDecodeError):  # in one of the strings, it does not say which
        try:
            array.decode()
        except UnicodeDecodeError as first:
            return first.start
    if isinstance(error, msgspec.ValidationError):
        return _end_of_element(array, str(error))
    match = _ERROR_BYTE.search(str(error))
    return int(match[1]) if match else -1


def _end_of_element(array: bytes, message: str) -> int:
    """Where the element ends that a message about types is about, -1 if JSON behind it is broken."""
    match = _ERROR_ELEMENT.search(message)
    try:
        elements = _ELEMENTS.decode(array) if match else []
    except BAD_JSON:
        return -1
    end = 1
    for element in elements[: int(match[1]) + 1 if match else 0]:
        between = _BETWEEN.match(array, end)
        end = (between.end() if between else end) + len(element)
    return end
