"""Chunks of JSON text to `Event` objects, in three tiers.

1. Typed decoding of the whole chunk; only the fields that are used become Python objects.
2. The same with times kept as text, where floats would lose nanoseconds.
3. `salvage`: event by event, mending or dropping the broken ones, where the chunk is not valid JSON or
   does not fit the types.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from tracelens.parsers.repair import repair_text
from tracelens.parsers.scan import BLANK, ends_events, inside_list, is_event, skip, value_end

Number = int | float | str | None
"""Numbers drift to strings and null in the wild; columns.py turns them back."""

NO_TEXT = Raw(b"")
MISSING = np.iinfo(np.int64).min
"""A time that the event does not have."""

# Below this many microseconds a double holds every nanosecond: its spacing there is under 1 ns.
EXACT_BELOW_US = float(1 << 43)

# Whole numbers that JSON text gives exactly; a float may have been rounded to a whole number.
_EXACT_TYPES = {int, type(None)}
_MOST_DIGITS = 18

_MAX_TRIES = 24
# Where a broken event may end: an object begins, after another one (group 1) or not; a list ends.
_EDGE = re.compile(r"(?:(\})[\s,]*)?\{|(\})\s*\]|\]")


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


class Drop(NamedTuple):
    """An event that could not be used: where it starts in the input, and why."""

    offset: int
    reason: str


class Decoded(NamedTuple):
    """The events of one chunk.

    Attributes:
        events: in order of the file.
        ts_ns, dur_ns: their times, int64 nanoseconds, MISSING where absent.
        drops: broken events that were left out.
        mended: number of events whose text had to be mended first.
        end: offset in the chunk's text behind the array's closing bracket if it was met, else -1.
    """

    events: list[Event]
    ts_ns: np.ndarray
    dur_ns: np.ndarray
    drops: list[Drop]
    mended: int = 0
    end: int = -1


_EVENTS = msgspec.json.Decoder(list[Event])
_EXACT = msgspec.json.Decoder(list[ExactEvent])
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode(text: bytes, offset: int = 0, last: bool = False) -> Decoded:
    """Decode a chunk: a JSON array of events whose first event stands at byte `offset` of the input.

    `last`: it is known to be the last chunk of the trace.
    """
    try:
        events = _EVENTS.decode(text)
    except _BAD_JSON:
        return salvage(text, offset, last)
    ts, dur = [event.ts for event in events], [event.dur for event in events]
    ts_ns, dur_ns = _nanoseconds(ts), _nanoseconds(dur)
    if ts_ns is None or dur_ns is None:
        try:
            return _with_exact_times(_EXACT.decode(text), [])
        except _BAD_JSON:
            return salvage(text, offset, last)
    return Decoded(events, ts_ns, dur_ns, [])


def salvage(text: bytes, offset: int = 0, last: bool = False) -> Decoded:
    """Decode a chunk event by event; what cannot be mended is dropped with its byte offset.

    Args:
        text: the chunk.
        offset: byte of the input where its first event starts.
        last: whether it is the last one of the trace.
    """
    source = text.decode("latin-1")
    stop = len(text) - text.endswith(b"]")
    events: list[ExactEvent] = []
    drops: list[Drop] = []
    mended = 0
    pos = skip(source, 1, BLANK + ",")
    while pos < stop:
        if source[pos] == "]" and ends_events(source, pos, stop, last):
            return _with_exact_times(events, drops, mended, pos + 1)
        end = value_end(source, pos)
        if pos < end <= stop:
            found = _decode_one(text[pos:end])
            if not found:
                found = _decode_one(repair_text(text[pos:end]))
                mended += len(found)
        else:
            end, found = _mend(text, source, pos, stop, last)
            mended += len(found)
        if not found:
            drops.append(Drop(offset + pos - 1, "not valid JSON"))
        events += found
        pos = skip(source, end, BLANK + ",")
    return _with_exact_times(events, drops, mended)


def _mend(text: bytes, source: str, pos: int, stop: int, last: bool) -> tuple[int, list[ExactEvent]]:
    """Find the end of the broken element at `pos`, and the event in it if it can be mended.

    It ends where the next intact event begins or where the list ends, at the latest; before that, wherever
    an object follows upon an object (either may lie in a list inside the element) it is tried.
    """
    tries = 0
    for found in _EDGE.finditer(source, pos + 1, stop):
        at = found.end()
        is_list_end = source[at - 1] == "]"
        if is_list_end:
            # One that is broken behind its last brace can be told only where all of the text is there.
            is_end = (last or found.lastindex == 2) and ends_events(source, at - 1, stop, last)
            is_end = is_end and not inside_list(source, pos, at - 1)
        else:
            is_end = is_event(source, at - 1)
        if not is_end and (is_list_end or found.group(1) is None):
            continue
        end = found.end(found.lastindex) if found.lastindex else at - 1
        if events := _decode_one(repair_text(text[pos:end].rstrip(b" \t\r\n,"))):
            return end, events
        tries += 1
        if is_end or tries == _MAX_TRIES:
            return end, []
    return stop, _decode_one(repair_text(text[pos:stop]))


def exact_ns(text: str | bytes) -> int:
    """Microseconds as decimal text to whole nanoseconds, without floating point; MISSING if no number.

    >>> exact_ns("1712195495519689.047")
    1712195495519689047
    """
    digits = text if isinstance(text, str) else bytes(text).decode("ascii", "replace")
    digits = digits.strip().strip('"').strip()
    whole, _, fraction = digits.partition(".")
    if len(fraction) <= 3 and len(whole) < 19 and digits.isascii() and (whole + fraction).isdigit() and whole:
        value = int(whole) * 1000 + int(fraction.ljust(3, "0"))
    else:
        try:
            number = Decimal(digits)
            if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
                return int(MISSING)
            value = int((number * 1000).to_integral_value())
        except InvalidOperation:
            return int(MISSING)
    return value if abs(value) < 1 << 62 else int(MISSING)


def _nanoseconds(values: list[Number]) -> np.ndarray | None:
    """Times in microseconds to int64 nanoseconds, or None where that needs the exact text."""
    try:
        us = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    size = np.abs(us)
    if (size >= EXACT_BELOW_US).any() and not set(map(type, values)) <= _EXACT_TYPES:
        return None
    whole = np.floor(us)
    fraction = us - whole
    with np.errstate(invalid="ignore"):
        if (size >= 2.0**53).any():
            return None
        ns = whole.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64)
    return np.where(np.isfinite(us), ns, MISSING)


def _with_exact_times(events: list[ExactEvent], drops: list[Drop], mended: int = 0, end: int = -1) -> Decoded:
    ts = np.array([exact_ns(event.ts) for event in events], dtype=np.int64)
    dur = np.array([exact_ns(event.dur) for event in events], dtype=np.int64)
    return Decoded(list(events), ts, dur, drops, mended, end)


def _decode_one(text: bytes) -> list[ExactEvent]:
    try:
        return _EXACT.decode(b"[" + text + b"]")
    except msgspec.ValidationError:
        return _loose(text)
    except _BAD_JSON:
        return []


def _loose(text: bytes) -> list[ExactEvent]:
    """Valid JSON whose fields have unexpected types: keep the fields that fit."""
    try:
        value = json.loads(text, parse_float=_Literal, parse_int=_integer)
    except (ValueError, RecursionError):
        return []
    if not isinstance(value, dict):
        return [ExactEvent()]
    texts: dict[str, Any] = {
        key: _plain(value[key]) for key in ("ph", "cat", "name") if isinstance(value.get(key), str | int)
    }
    numbers = {key: value[key] for key in ("pid", "tid", "id") if isinstance(value.get(key), int | str)}
    times: dict[str, Any] = {
        key: Raw(str(value[key]).encode("ascii", "replace")) for key in ("ts", "dur") if key in value
    }
    return [ExactEvent(**texts, **numbers, **times, args=_loose_args(value.get("args")))]


class _Literal(float):
    """A float that remembers how it was written."""

    def __new__(cls, text: str) -> _Literal:
        self = super().__new__(cls, text)
        self.text = text
        return self

    text: str

    def __str__(self) -> str:
        return self.text


def _integer(digits: str) -> int | _Literal:
    """An integer; as a float where it is so long that `int` refuses it."""
    return int(digits) if len(digits) < 100 else _Literal(digits)


def _plain(value: object) -> str:
    """Text without halves of surrogate pairs, which could not be written anywhere."""
    return str(value).encode("utf-8", "replace").decode()


def _loose_args(args: Any) -> Args | None:
    if not isinstance(args, dict):
        return None
    fitting: dict[str, Any] = {}
    for info in msgspec.structs.fields(Args):
        value = args.get(info.encode_name)
        if info.type is Raw and value is not None:
            fitting[info.name] = Raw(json.dumps(value).encode())
        elif info.name == "collective" and isinstance(value, str):
            fitting[info.name] = _plain(value)
        elif info.type is not Raw and isinstance(value, int | str) and info.name != "collective":
            fitting[info.name] = value
    return Args(**fitting)
