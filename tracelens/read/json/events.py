"""What one trace event decodes to: the fields that are used, exact times, and numbers that may be added.

Arrays of events are decoded typed; an event whose fields have types that no profiler documents keeps what
fits. Times, decimal microseconds as profilers write them, become whole nanoseconds without rounding. All that
a trace calls a count, a size or an id lies within LARGEST_COUNT afterwards, times within FIRST_NS and
LAST_NS, so that neither sums nor differences overflow anywhere behind.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from tracelens.arrays import Bool, Int
from tracelens.limits import LARGEST_COUNT
from tracelens.read.json.split import Drop

Number = int | float | str | None
"""Numbers drift to strings and null in the wild; columns.py turns them back."""
NO_TEXT = Raw(b"")
MISSING = np.iinfo(np.int64).min
"""A time that the event does not have."""

FIRST_NS, LAST_NS = -(1 << 56), 1 << 62
"""Starts lie between: some years before the clock's zero to the year 2116."""
LARGEST_SUM = 1 << 56
"""Durations of one trace add up to less (ns, two years), and so do message and copy sizes (bytes)."""
_MOST_GRID_BYTES = 200
# Below this many microseconds a double holds every nanosecond: its spacing there is under 1 ns.
EXACT_BELOW_US = float(1 << 43)
# Whole numbers that JSON text gives exactly; a float may have been rounded to a whole number.
_EXACT_TYPES = {int, type(None)}
_MOST_DIGITS = 18

BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for text that is not JSON."""
_ERROR_BYTE = re.compile(r"\(byte (\d+)\)\Z")
_ERROR_ELEMENT = re.compile(r"at `\$\[(\d+)\]")
_BETWEEN = re.compile(rb"[\s,]*+")


class Args(Struct, gc=False):
    """The arguments that become columns; everything else is skipped without being decoded."""

    correlation: Number = -1
    external_id: Number = field(default=-1, name="External id")
    stream: Number = -1
    device: Number = -1
    bytes: Number = -1
    allocated: Number = field(default=-1, name="Total Allocated")
    device_type: Number = field(default=-1, name="Device Type")
    grid: Raw = NO_TEXT
    kernel: Raw = NO_TEXT
    sequence: Number = field(default=-1, name="Sequence number")
    forward_thread: Number = field(default=-1, name="Fwd thread id")
    dims: Raw = field(default=NO_TEXT, name="Input Dims")
    types: Raw = field(default=NO_TEXT, name="Input type")
    strides: Raw = field(default=NO_TEXT, name="Input Strides")
    values: Raw = field(default=NO_TEXT, name="Concrete Inputs")
    collective: str | None = field(default=None, name="Collective name")
    in_elements: Number = field(default=-1, name="In msg nelems")
    out_elements: Number = field(default=-1, name="Out msg nelems")
    in_split: Raw = field(default=NO_TEXT, name="In split size")
    out_split: Raw = field(default=NO_TEXT, name="Out split size")
    dtype: Raw = field(default=NO_TEXT, name="dtype")
    group: Raw = field(default=NO_TEXT, name="Process Group Name")
    group_description: Raw = field(default=NO_TEXT, name="Process Group Description")
    group_ranks: Raw = field(default=NO_TEXT, name="Process Group Ranks")
    group_size: Number = field(default=-1, name="Group size")
    source_rank: Number = field(default=-1, name="Src Rank")
    destination_rank: Number = field(default=-1, name="Dst Rank")
    rank_in_group: Number = field(default=-1, name="Rank")
    name: Raw = NO_TEXT
    labels: Raw = NO_TEXT


class Event(Struct, gc=False):
    """One trace event; times in microseconds as written (`ts` and `dur` are None where absent)."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    ts: Number = None
    dur: Number = None
    pid: Number = -1
    tid: Number = -1
    id: Number = -1
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """The same with times as JSON text."""

    ts: Raw = NO_TEXT  # type: ignore[assignment]
    dur: Raw = NO_TEXT  # type: ignore[assignment]


class Decoded(NamedTuple):
    """The events of one chunk."""

    events: list[Event]  # in order of the file
    ts_ns: np.ndarray  # int64, MISSING where absent
    dur_ns: np.ndarray
    drops: list[Drop]  # broken events that were left out
    mended: int = 0  # number of events whose text had to be mended first
    end: int = -1  # offset in the chunk's text behind the array's closing bracket if it was met, else -1
    # the chunk may be cut inside an event, and so have lost it, or hold the end of the list
    uncertain: bool = False


EXACT = msgspec.json.Decoder(list[ExactEvent])
_EVENTS = msgspec.json.Decoder(list[Event])
_VALUES = msgspec.json.Decoder(list[Number])
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])


class Timed(NamedTuple):
    """Events and their times, int64 nanoseconds."""

    events: list[Event]
    ts_ns: np.ndarray
    dur_ns: np.ndarray


class EventBatch:
    """Events of many texts, in order, whose times are read at once."""

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


_FIELDS = msgspec.structs.fields(Args)
_NO_EVENT = ExactEvent()
"""Stands for each element that is no object: there may be one every other byte."""


class _Literal(float):
    """A float that remembers how it was written."""

    def __new__(cls, text: str) -> _Literal:
        self = super().__new__(cls, text)
        self.text = text
        return self

    text: str

    def __str__(self) -> str:
        return self.text


def decode_typed(text: bytes) -> Timed:
    """Decode an array of events; raises one of BAD_JSON where it is not valid or does not fit the types."""
    events = _EVENTS.decode(text)
    ts_ns, dur_ns = nanoseconds([event.ts for event in events]), nanoseconds([event.dur for event in events])
    if ts_ns is None or dur_ns is None:  # floats would lose nanoseconds
        return timed(EXACT.decode(text))
    return Timed(events, ts_ns, dur_ns)


def decode_events(text: bytes) -> list[Event]:
    """Decode events with commas between them."""
    return _EVENTS.decode(b"[" + text + b"]")


def json_values(texts: list[bytes]) -> list[Number]:
    """Decode numbers, strings and nulls."""
    return _VALUES.decode(b"[" + b",".join(texts) + b"]")


def timed(events: list[ExactEvent]) -> Timed:
    """Events with their times read from text."""
    ts = np.fromiter((exact_ns(event.ts) for event in events), dtype=np.int64, count=len(events))
    dur = np.fromiter((exact_ns(event.dur) for event in events), dtype=np.int64, count=len(events))
    return Timed(list(events), ts, dur)


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
    if isinstance(error, msgspec.ValidationError):  # it names the element, not where that ends
        element = _ERROR_ELEMENT.search(str(error))
        try:
            texts = _ELEMENTS.decode(array) if element else []
        except BAD_JSON:  # behind that element
            return -1
        end = 1
        for text in texts[: int(element[1]) + 1 if element else 0]:
            between = _BETWEEN.match(array, end)
            end = (between.end() if between else end) + len(text)
        return end
    match = _ERROR_BYTE.search(str(error))
    return int(match[1]) if match else -1


def exact_ns(text: str | bytes) -> int:
    """Microseconds as decimal text to whole nanoseconds, without floating point; MISSING if no number.

    >>> exact_ns("1712195495519689.047")
    1712195495519689047
    """
    digits = text if isinstance(text, str) else bytes(text).decode("ascii", "replace")
    digits = digits.strip().strip('"').strip()
    units, _, fraction = digits.partition(".")
    if len(fraction) <= 3 and len(units) < 19 and digits.isascii() and (units + fraction).isdigit() and units:
        value = int(units) * 1000 + int(fraction.ljust(3, "0"))
    else:
        try:
            number = Decimal(digits)
            if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
                return int(MISSING)
            value = int((number * 1000).to_integral_value())
        except InvalidOperation:
            return int(MISSING)
    return value if abs(value) < 1 << 62 else int(MISSING)


def nanoseconds(values: list[Number]) -> np.ndarray | None:
    """Times in microseconds to int64 nanoseconds, or None where that needs the exact text."""
    try:
        us = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    size = np.abs(us)
    if (size >= EXACT_BELOW_US).any() and not set(map(type, values)) <= _EXACT_TYPES:
        return None
    whole_us = np.floor(us)
    fraction = us - whole_us
    with np.errstate(invalid="ignore"):
        if (size >= 2.0**53).any():
            return None
        ns = whole_us.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64)
    return np.where(np.isfinite(us), ns, MISSING)


def decode_one(text: bytes) -> list[ExactEvent]:
    """The event that a JSON text is, fields of unexpected types left out; [] where it is not valid JSON."""
    try:
        return EXACT.decode(b"[" + text + b"]")
    except msgspec.ValidationError:
        pass
    except BAD_JSON:
        return []

    def parse_int(digits: str) -> int | _Literal:
        """An integer; as a float where it is so long that `int` refuses it."""
        return int(digits) if len(digits) < 100 else _Literal(digits)

    try:
        value = json.loads(text, parse_float=_Literal, parse_int=parse_int)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, dict):
        return [_NO_EVENT]
    fields: dict[str, Any] = {
        key: _plain(value[key]) for key in ("ph", "cat", "name") if isinstance(value.get(key), str | int)
    }
    fields |= {key: value[key] for key in ("pid", "tid", "id") if isinstance(value.get(key), int | str)}
    fields |= {key: Raw(str(value[key]).encode("ascii", "replace")) for key in ("ts", "dur") if key in value}
    args = value.get("args")
    if not isinstance(args, dict):
        return [ExactEvent(**fields)]
    fitting: dict[str, Any] = {}
    for info in _FIELDS:
        arg = args.get(info.encode_name)
        if info.type is Raw and arg is not None:
            fitting[info.name] = Raw(json.dumps(arg).encode())
        elif info.name == "collective" and isinstance(arg, str):
            fitting[info.name] = _plain(arg)
        elif info.type is not Raw and isinstance(arg, int | str) and info.name != "collective":
            fitting[info.name] = arg
    return [ExactEvent(**fields, args=Args(**fitting))]


def _plain(value: object) -> str:
    """Text without halves of surrogate pairs, which could not be written anywhere."""
    return str(value).encode("utf-8", "replace").decode()


def integers(values: list[Any]) -> tuple[Int, int]:
    """A column of int64; text numbers are read, what is no number or out of range becomes -1.

    Returns:
        (the column, how many numbers were out of range).
    """
    try:
        column = np.fromiter(values, dtype=np.int64, count=len(values))
    except (TypeError, ValueError, OverflowError):
        beyond = sum(isinstance(value, int | float) and not _fits(value) for value in values)
        return np.array([integer(value) for value in values], dtype=np.int64), beyond
    outside = (column > LARGEST_COUNT) | (column < -LARGEST_COUNT)
    if not outside.any():
        return column, 0
    return np.where(outside, -1, column), int(outside.sum())


def integer(value: object, largest: int = LARGEST_COUNT) -> int:
    """An int from what a profiler may write for one: 7, 7.0, "7", "0x7"; -1 if it is none or out of range."""
    if isinstance(value, str):
        try:
            value = int(value.strip(), 0)
        except ValueError:
            return -1
    return int(value) if isinstance(value, int | float) and _fits(value, largest) else -1


def _fits(value: float, largest: int = LARGEST_COUNT) -> bool:
    return abs(value) <= largest  # not so a NaN


@lru_cache(maxsize=4096)
def blocks(grid: bytes) -> int:
    """Thread blocks of a launch grid as a profiler writes it, `[32, 4, 1]`; -1 where it is none."""
    if len(grid) > _MOST_GRID_BYTES:
        return -1
    try:
        sides = msgspec.json.decode(grid, type=list[int])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return -1
    count = prod(sides)
    return count if sides and min(sides) > 0 and count <= LARGEST_COUNT else -1


def identity(value: object) -> int | str:
    """A process or thread id as int where it is one ("7" and 7 are the same thread), else as text.

    Ids out of range stay distinct, as text.
    """
    if isinstance(value, str):
        number = int(value) if value.isascii() and value.isdigit() and len(value) < 19 else -1
        return number if 0 <= number <= LARGEST_COUNT else value
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:
        return str(value)
    return integer(value)


def summable(values: Int) -> Bool:
    """Which non-negative values can be kept so that all that are kept add up to less than LARGEST_SUM.

    All of them in any genuine trace; else those that do not exceed an equal share of it.
    """
    share = LARGEST_SUM // max(len(values), 1)
    if values.max(initial=0) <= share or float(np.maximum(values, 0).sum(dtype=np.float64)) < LARGEST_SUM:
        return np.ones(len(values), dtype=bool)
    keep: Bool = values <= share
    return keep
