"""`Trace`: what one rank recorded, as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from tracelens.arrays import Bool, Int
from tracelens.table import Table
from tracelens.trace.pace import PacePart

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.trace.activities import Work

T = TypeVar("T")


@dataclass(frozen=True)
class TraceMeta:
    """Where a trace comes from and what became of its events.

    Attributes:
        path: as the user named it.
        format: name of the parser.
        rank: -1 where neither the trace nor its name says.
        world_size: -1 where the trace does not say.
        host: name of the machine, "" where the trace does not say, as with older torch.
        devices: GPU names by device index.
        epoch_ns: base of the trace's clock, 0 where timestamps are absolute or the base is not given.
        read: events found in the file.
        kept: of these, used (rows of `events`, flows, metadata, and the second halves of begin/end pairs).
        dropped: reason to number of events; read = kept + all of these.
        first_drop: reason to byte offset of the first event dropped for it, where known.
        repaired: what was mended in events that were kept, to how many.
        problems: what else was wrong with the file, for people.
        losses: what the profiler itself says that it lost.
        cpu_only: nothing in the trace is a GPU's, so that its work is the host's, see trace/cpu_only.py.
        threads: (pid, tid) to the name the profiler gave it.
        pace: steps that this rank timed without the profiler, where it was recorded by `tracelens.record`.
        software: program or library to its version, as far as the file names them; "" where it gives none.
        program: its config and mesh, as tracelens's recorder wrote them.
    """

    path: str
    format: str
    rank: int = -1
    world_size: int = -1
    host: str = ""
    devices: Mapping[int, str] = field(default_factory=dict)
    epoch_ns: int = 0
    read: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    first_drop: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    cpu_only: bool = False
    threads: Mapping[tuple[int, int], str] = field(default_factory=dict)
    pace: tuple[PacePart, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    program: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        dropped = sum(self.dropped.values())
        lost = f", {dropped:,} dropped" if dropped else ""
        rank = f"rank {self.rank}" if self.rank >= 0 else "no rank"
        return f"TraceMeta({rank} of {self.path!r}, {self.format}: {self.read:,} events read{lost})"


class TraceWindow(NamedTuple):
    """A named piece of time, ns: [start, end) on the GPU, and when the host launched its work."""

    label: str
    start: int
    end: int
    host_start: int
    host_end: int


class Events(NamedTuple):
    """The events table as plain arrays, for analyzers: codes into `kinds` and `names`, times in ns.

    `copied` are the events under graph launches that the host did not run then: they were copied from where
    the graph was captured, and what looks at the host's time leaves them out.
    """

    kind: Int
    name: Int
    start: Int
    end: Int
    pid: Int
    tid: Int
    device: Int
    stream: Int
    parent: Int
    depth: Int
    linked: Bool
    copied: Bool
    kinds: list[str]
    names: list[str]

    def places(self, rows: Int) -> Int:
        """Of each event, its position in `rows`, -1 if it is not among these event rows."""
        position = np.full(len(self.start), -1, dtype=np.int64)
        position[rows] = np.arange(len(rows))
        return position

    def named(self, test: Callable[[str], object]) -> Bool:
        """Mask of the events whose name passes a test."""
        return np.array([bool(test(name)) for name in self.names], dtype=bool)[self.name]

    def where(self, *kinds: str) -> Bool:
        """Mask of the events of these kinds."""
        kind_codes = [code for code, kind in enumerate(self.kinds) if kind in kinds]
        return np.isin(self.kind, kind_codes)


@dataclass(frozen=True)
class Trace:
    """One rank's trace: tables with the schemas of trace/tables.py; event i is row i of `events`.

    `tables` holds the columns; `events`, `ops`, `collectives` and `links` are the same as DataFrames.
    `window`, if set, narrows what analyzers see as GPU work to one step, see steps.select_step. `source`, if
    set, is the trace of which this one is an excerpt, see excerpt.excerpt.
    """

    meta: TraceMeta
    tables: Mapping[str, Table]
    window: TraceWindow | None = None
    source: Trace | None = None

    def __repr__(self) -> str:
        step = f", only {self.window.label}" if self.window is not None else ""
        rank = f"rank {self.meta.rank}" if self.meta.rank >= 0 else "no rank"
        events = len(self.tables["events"])
        return f"Trace({rank} of {self.meta.path!r}, {self.meta.format}: {events:,} events{step})"

    @property
    def events(self) -> pd.DataFrame:
        """Everything that happened, see EVENTS."""
        return self.tables["events"].frame

    @property
    def ops(self) -> pd.DataFrame:
        """Arguments of the framework ops, see OPS."""
        return self.tables["ops"].frame

    @property
    def collectives(self) -> pd.DataFrame:
        """Recorded collectives, see COLLECTIVES."""
        return self.tables["collectives"].frame

    @property
    def links(self) -> pd.DataFrame:
        """From GPU work to what caused it, see LINKS."""
        return self.tables["links"].frame

    @property
    def whole(self) -> Trace:
        """All that was recorded, of a trace that is narrowed to a part of it."""
        if self.source is not None:
            return self.source.whole
        return self if self.window is None else replace(self, window=None)

    @cached_property
    def arrays(self) -> Events:
        """The events as numpy arrays."""
        table = self.tables["events"]
        kind, name, start = table.columns["kind"], table.columns["name"], table.array("ts_ns")
        return Events(
            kind=kind.codes,
            name=name.codes,
            start=start,
            end=start + table.array("dur_ns"),
            pid=table.array("pid"),
            tid=table.array("tid"),
            device=table.array("device"),
            stream=table.array("stream"),
            parent=table.array("parent_id"),
            depth=table.array("depth"),
            linked=table.array("linked"),
            copied=~table.coded("source").equals("trace"),
            kinds=list(kind.values),
            names=list(name.values),
        )

    @cached_property
    def work(self) -> Work:
        """All GPU work, classified and linked; see `activities.gpu_work`."""
        from tracelens.trace.activities import build

        return build(self)

    @cached_property
    def _made(self) -> dict[Callable[[Trace], Any], Any]:
        return {}

    def once(self, make: Callable[[Trace], T]) -> T:
        """What `make` makes of this trace; kept, so that several analyzers can ask for it."""
        if make not in self._made:
            self._made[make] = make(self)
        made: T = self._made[make]
        return made
