"""What one trace event decodes to: the fields that are used, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Raw, Struct, field

Number = int | float | str | None
"""Numbers drift to strings and null in the wild; columns.py turns them back."""

NO_TEXT = Raw(b"")
MISSING = np.iinfo(np.int64).min
"""A time that the event does not have."""


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
        uncertain: the chunk may be cut inside an event, and so have lost it, or hold the end of the list.
    """

    events: list[Event]
    ts_ns: np.ndarray
    dur_ns: np.ndarray
    drops: list[Drop]
    mended: int = 0
    end: int = -1
    uncertain: bool = False
