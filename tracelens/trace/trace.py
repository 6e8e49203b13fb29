"""`Trace`: what one rank recorded, as tables of declared schemas, and excerpts of it.

Also what reads single columns of them: names that fit a pattern, and recorded op arguments as short text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cached_property, lru_cache
from itertools import compress
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from tracelens.arrays import Bool, Int, lookup, marked, ordered
from tracelens.dtypes import short_dtype
from tracelens.errors import Damage
from tracelens.limits import MOST_DIMENSIONS, MOST_ELEMENTS
from tracelens.table import Column, Schema, Table
from tracelens.trace.intervals import interval_of

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.trace.activities import Work

T = TypeVar("T")


_SETTLED = 5
"""Steps with which a part is long enough to stand for the run; the first ones of a loop are rarely alike."""

STEP_MARK = re.compile(r"^ProfilerStep#\d+$")

_NO_TENSOR = frozenset({"", "None", "Scalar", "ScalarList", "TensorList", "GenericList"})
_SHOWN = 8

EVENT_KINDS = (
    "op",
    "launch",
    "kernel",
    "memcpy",
    "memset",
    "annotation",
    "gpu_annotation",
    "python",
    "sync",
    "overhead",
    "instant",
    "slice",
    "node",
)
"""What an event is, whatever its profiler calls it.

`slice` is anything not known better; `node` the launch call behind a node of a replayed graph, copied from
where the graph was captured (see trace/graphs).
"""
EVENT_SOURCES = ("trace", "capture", "twin")
"""Where an event comes from: recorded in the trace, or copied under a graph launch, see trace/graphs."""
GPU_KINDS = ("kernel", "memcpy", "memset")
"""Kinds that are GPU work; annotations and syncs drawn on GPU rows are not."""
GPU_SIGNS = (*GPU_KINDS, "gpu_annotation")
"""Kinds of which one is enough to say that a GPU did the work; a call that launches some says so as well."""
STACK_KINDS = ("python", "annotation", "slice", "op", "launch")
"""Kinds that nest on CPU threads, outermost first where two have the same extent."""
EVENTS = Schema(
    "events",
    (
        Column("event_id", "int64", doc="row number: event i is row i"),
        Column("kind", "category", doc="one of: " + ", ".join(EVENT_KINDS)),
        Column("category", "category", doc="the profiler's own category"),
        Column("name", "category", doc="as the profiler recorded it"),
        Column("ts_ns", "int64", "ns", "start, on the trace's own clock"),
        Column("dur_ns", "int64", "ns", "0 for an instant"),
        Column(
            "pid",
            "int64",
            doc="process, missing if not recorded; names are numbered from -2 downwards",
            absent=-1,
        ),
        Column("tid", "int64", doc="thread, or stream of a GPU row"),
        Column("device", "int64", doc="GPU index of GPU work, else missing", absent=-1),
        Column("stream", "int64", doc="stream of GPU work, else missing", absent=-1),
        Column(
            "bytes",
            "int64",
            "bytes",
            "bytes of a copy or memset; for a memory event, bytes then allocated on its GPU; else missing",
            absent=-1,
        ),
        Column(
            "blocks",
            "int64",
            "count",
            "thread blocks of a kernel or its launch call; missing: not recorded",
            absent=-1,
        ),
        Column("parent_id", "int64", doc="enclosing event on the same thread, missing at the top", absent=-1),
        Column("depth", "int64", "count", "number of enclosing events"),
        Column(
            "correlation_id", "int64", doc="joins a launch call and its GPU work, missing if none", absent=-1
        ),
        Column(
            "linked", "bool", doc="GPU work with a flow arrow from a launch call in the trace: scope linked"
        ),
        Column(
            "source",
            "category",
            doc="trace; or capture, twin: copied under a graph launch from the capture of the graph or from "
            "an eager run, without duration",
        ),
    ),
)
OPS = Schema(
    "ops",
    (
        Column("event_id", "int64", doc="row of the op in `events`"),
        Column("shapes", "category", doc="JSON text of the argument dimensions, '' where not recorded"),
        Column("dtypes", "category", doc="JSON text of the argument types"),
        Column("strides", "category", doc="JSON text of the argument strides"),
        Column("values", "category", doc="JSON text of the scalar arguments"),
        Column(
            "inferred",
            "category",
            doc="types and sizes of the tensor arguments where a graph was captured for another batch size, "
            "else ''; then the columns above are empty",
        ),
        Column("sequence", "int64", doc="autograd sequence number, missing if none", absent=-1),
        Column(
            "forward_thread",
            "int64",
            doc="profiler's number of the forward thread; >0 on backward ops; missing: not recorded",
            absent=-1,
        ),
    ),
)
LAUNCHES = Schema(
    "launches",
    (
        Column("event_id", "int64", doc="row of the launch call in `events`"),
        Column("kernel", "category", doc="the kernel that it launches, where the call names it (ROCm)"),
    ),
)
COLLECTIVES = Schema(
    "collectives",
    (
        Column("event_id", "int64", doc="the CPU record, or the kernel if only that carries the metadata"),
        Column(
            "kernel_id",
            "int64",
            doc="its GPU kernel (for gloo the annotation), missing if not in the trace",
            absent=-1,
        ),
        Column("collective", "category", doc="allreduce, all_to_allv, ..."),
        Column("group", "category", doc="process group name"),
        Column(
            "group_description", "category", doc="what the program calls the group, '' where not recorded"
        ),
        Column("group_ranks", "category", doc="JSON text; may be cut by the profiler"),
        Column("group_size", "int64", "count", "ranks in the group, missing if not recorded", absent=-1),
        Column("dtype", "category", doc="element type, as the profiler writes it"),
        Column("in_bytes", "int64", "bytes", "input of this rank, missing if not recorded", absent=-1),
        Column("out_bytes", "int64", "bytes", "output of this rank, missing if not recorded", absent=-1),
        Column("in_split", "category", doc="JSON text of the split sizes sent, elements"),
        Column("out_split", "category", doc="JSON text of the split sizes received, elements"),
        Column("order", "int64", "count", "position among the collectives of its group, by start"),
        Column(
            "peer", "int64", doc="the other rank of a send or receive, missing if not recorded", absent=-1
        ),
    ),
)
LINKS = Schema(
    "links",
    (
        Column(
            "kernel_id",
            "int64",
            doc="GPU work: kernels, copies and memsets; in a CPU-only trace ops and gloo's communication",
        ),
        Column(
            "launch_id", "int64", doc="the runtime or driver call, missing if not in the trace", absent=-1
        ),
        Column(
            "call_id",
            "int64",
            doc="copied launch call of a node that a graph replays, missing if none",
            absent=-1,
        ),
        Column("op_id", "int64", doc="innermost op around the launch call, missing if none", absent=-1),
        Column(
            "forward_op_id",
            "int64",
            doc="forward op whose gradient this computes, missing if none",
            absent=-1,
        ),
    ),
)


class PacePart(Struct, frozen=True):
    """Successive steps that one rank timed without the profiler."""

    name: str  # "before" the recorded steps, or "after" them
    first: int  # number of its first step, from 0
    steps: int  # how many there are
    dur_ns: int  # of all of them together; of single steps nothing is known
    tokens: int = -1  # of all of them, on all ranks; -1 where the program did not tell
    samples: int = -1  # likewise

    @property
    def step_ns(self) -> float:
        """Mean duration of a step."""
        return self.dur_ns / self.steps

    def per_s(self, count: int) -> float:
        """Tokens or samples of the part per second, -1 where they are not told."""
        return count / self.dur_ns * 1e9 if count >= 0 else -1.0


class TraceMeta(Struct, frozen=True):
    """Where a trace comes from and what became of its events."""

    path: str  # as the user named it
    format: str  # name of the parser
    rank: int = -1  # -1 where neither the trace nor its name says
    world_size: int = -1  # -1 where the trace does not say
    host: str = ""  # name of the machine, "" where the trace does not say, as with older torch
    devices: Mapping[int, str] = field(default_factory=dict)  # GPU names by device index
    epoch_ns: int = 0  # base of the trace's clock, 0 where timestamps are absolute or the base is not given
    read: int = 0  # events found in the file
    # of these, used (rows of `events`, flows, metadata, and the second halves of begin/end pairs)
    kept: int = 0
    # reason to number of events; read = kept + all of these
    dropped: Mapping[str, int] = field(default_factory=dict)
    # reason to byte offset of the first event dropped for it, where known
    first_drop: Mapping[str, int] = field(default_factory=dict)
    # what was mended in events that were kept, to how many
    repaired: Mapping[str, int] = field(default_factory=dict)
    damage: Damage | None = None  # where it ends though it should not
    problems: tuple[str, ...] = ()  # what else was wrong with the file, for people
    losses: tuple[str, ...] = ()  # what the profiler itself says that it lost
    # nothing in the trace is a GPU's, so that its work is the host's, see links.host_work
    cpu_only: bool = False
    # what it is and what to do, where it has neither GPU work nor ops that stand for it, see `cpu_only`
    no_work: str = ""
    # (pid, tid) to the name the profiler gave it
    threads: Mapping[tuple[int, int], str] = field(default_factory=dict)
    # steps that this rank timed without the profiler, where it was recorded by `tracelens.record`
    pace: tuple[PacePart, ...] = ()
    # program or library to its version, as far as the file names them; "" where it gives none
    software: Mapping[str, str] = field(default_factory=dict)
    # its config and mesh, as tracelens's recorder wrote them
    program: Mapping[str, Any] = field(default_factory=dict)
    # rows of a buffer of grouped GEMMs to how many lie in a group, in the step whose values were recorded
    group_rows: Mapping[int, int] = field(default_factory=dict)

    def without_work(self, lacks: str) -> str:
        """What a command lacks in this trace, with what the trace is where it has no work at all."""
        return ": ".join(filter(None, (self.path, lacks, self.no_work)))

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


class Events(Struct, frozen=True):
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
    has_name: Bool  # by kind and name, whether there is such an event

    def places(self, rows: Int) -> Int:
        """Of each event, its position in `rows`, -1 if it is not among these event rows."""
        position = np.full(len(self.start), -1, dtype=np.int64)
        position[rows] = np.arange(len(rows))
        return position

    def named(self, test: Callable[[str], object]) -> Bool:
        """Mask of the events whose name passes a test."""
        return marked(self.name, np.array([bool(test(name)) for name in self.names], dtype=bool))

    def where(self, *kinds: str) -> Bool:
        """Mask of the events of these kinds."""
        return marked(self.kind, np.array([kind in kinds for kind in self.kinds], dtype=bool))

    def fitting(self, pattern: re.Pattern[str], *kinds: str) -> Bool:
        """Mask of the events of these kinds in whose name a pattern is found.

        Most names are those of Python frames, so the names of other kinds alone are looked at.
        """
        fits = self._is_named(kinds)
        fits[fits] = matching(self.names_of(*kinds), pattern)
        return marked(self.name, fits) & self.where(*kinds)

    def names_of(self, *kinds: str) -> list[str]:
        """The distinct names of the events of these kinds."""
        return list(compress(self.names, self._is_named(kinds)))

    def _is_named(self, kinds: Sequence[str]) -> Bool:
        """Mask of the names of the events of these kinds."""
        is_used: Bool = np.any(self.has_name[[kind in kinds for kind in self.kinds]], axis=0)
        return is_used


class Trace(Struct, frozen=True, dict=True):
    """One rank's trace: tables of the schemas above; event i is row i of `events`.

    `tables` holds the columns; `events`, `ops`, `collectives` and `links` are the same as DataFrames
    with NA for what is unknown, which the columns have as -1.
    `window`, if set, narrows what analyzers see as GPU work to one step, see run.select_step. `source`, if
    set, is the trace of which this one is an excerpt, see `excerpt`.
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
        has_name = np.zeros((len(kind.values), len(name.values)), dtype=bool)
        has_name[kind.codes, name.codes] = True
        return Events(
            kind=kind.codes.astype(np.int8, copy=False),  # compared with many times, a few bytes at once
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
            has_name=has_name,
        )

    @cached_property
    def work(self) -> Work:
        """All GPU work, classified and linked; see `activities.gpu_work`."""
        from tracelens.trace.activities import build

        return build(self)

    @cached_property
    def _made(self) -> dict[Callable[[Trace], Any], Any]:
        return {}

    def forget(self, make: Callable[[Trace], object] | None = None) -> None:
        """Let go of what was made of it, or of what `make` made."""
        if make:
            self._made.pop(make, None)
            return
        for name in ("arrays", "work", "_made"):
            vars(self).pop(name, None)

    def once(self, make: Callable[[Trace], T]) -> T:
        """What `make` makes of this trace; kept, so that several analyzers can ask for it."""
        if make not in self._made:
            self._made[make] = make(self)
        made: T = self._made[make]
        return made


class Stretch(NamedTuple):
    """A part of a trace, ns by its own clock."""

    start: int  # on the GPU
    end: int
    # when the host launched its work; the same as start and end where the host is not recorded
    host_start: int
    host_end: int
    earlier_ns: int  # by how much it begins earlier in the excerpt, on the GPU
    host_earlier_ns: int  # the same on the host; less where stretches would overlap there otherwise


def settled(parts: Iterable[PacePart]) -> tuple[PacePart, ...]:
    """The parts that stand for a run: those of several steps, or the longest where all are short."""
    parts = tuple(parts)
    least = min(_SETTLED, max((part.steps for part in parts), default=0))
    return tuple(part for part in parts if part.steps >= least)


def mean_step_ns(parts: Iterable[PacePart]) -> float:
    """Mean duration of the steps of the settled ones of several parts, at least one."""
    parts = settled(parts)
    return sum(part.dur_ns for part in parts) / sum(part.steps for part in parts)


def wildcards(text: str) -> re.Pattern[str]:
    """A pattern for whole names: * stands for anything, ? for one letter, [ab] for one of these."""
    return re.compile(r"\A" + translate(text))


_answers: dict[re.Pattern[str], dict[str, bool]] = {}
"""What has been asked of a pattern: the ranks of a job have the same names."""


def matching(names: Iterable[str], pattern: re.Pattern[str]) -> Bool:
    """Of each name, whether the pattern is found in it."""
    known, names, search = _answers.setdefault(pattern, {}), [*names], pattern.search
    known.update({name: search(name) is not None for name in names if name not in known})
    return np.fromiter(map(known.__getitem__, names), bool, len(names))


def fitting(names: Sequence[str], code: Int, pattern: re.Pattern[str]) -> Bool:
    """Of each row, whether the pattern is found in the name of its code; names of no row are not searched."""
    is_used, fits = (np.zeros(len(names), dtype=bool) for _ in range(2))
    is_used[code] = True
    fits[is_used] = matching(compress(names, is_used), pattern)
    return marked(code, fits)


@lru_cache(maxsize=1 << 14)
def describe(shapes: str, dtypes: str) -> str:
    """Tensor arguments of one call as text; scalars are left out, '' where nothing was recorded.

    >>> describe("[[2, 3], [], [[4], [4]]]", '["c10::BFloat16", "Scalar", "TensorList"]')
    'bf16[2,3] [4]x2'
    """
    words = []
    types = argument_dtypes(dtypes)
    for index, dim in enumerate(decoded(shapes)):
        dtype = types[index] if index < len(types) else ""
        if not isinstance(dim, list):
            continue
        if dim and isinstance(dim[0], list):  # a list of tensors: the first shape, and how many there are
            is_same = dim.count(dim[0]) == len(dim)
            words.append(f"{dim[0]}{'' if is_same else '..'}x{len(dim)}")
        elif dtype or dim:
            words.append(f"{dtype}{dim}")
    if len(words) > _SHOWN:
        words = [*words[:_SHOWN], f"+{len(words) - _SHOWN}"]
    # Lists as Python writes them without blanks, and without the quotes of sizes that are text.
    return " ".join(words).replace(", ", ",").replace("'", "")


@lru_cache(maxsize=4096)
def argument_dtypes(dtypes: str) -> tuple[str, ...]:
    """Short element types by argument, "" where the argument is no tensor (JSON text as in the ops table)."""
    return tuple("" if str(name) in _NO_TENSOR else short_dtype(str(name)) for name in decoded(dtypes))


def element_count(shape: Sequence[Any]) -> int:
    """Elements of a tensor of this shape; -1 for what is no shape, or larger than any tensor can be."""
    if len(shape) > MOST_DIMENSIONS or not all(type(size) is int and size >= 0 for size in shape):
        return -1
    count = prod(shape)
    return count if count <= MOST_ELEMENTS else -1


def argument_lists(text: str) -> list[list[Any]]:
    """Dimensions or strides by argument; [] for an argument whose entry is no list."""
    return [entry if isinstance(entry, list) else [] for entry in decoded(text)]


def argument_texts(text: str) -> list[str]:
    """Scalar arguments as recorded; "" for an argument whose entry is no text."""
    return [entry if isinstance(entry, str) else "" for entry in decoded(text)]


def decoded(text: str) -> list[Any]:
    """A list that the ops table holds as JSON text, [] for anything else."""
    try:
        value = msgspec.json.decode(text) if text else []
    except (msgspec.MsgspecError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def excerpt(trace: Trace, label: str, stretches: Sequence[Stretch]) -> Trace:
    """The trace of these stretches alone, a single window of this name.

    GPU work belongs to the stretch that launched it, and is cut at the stretch's borders on the GPU; without
    a recorded launch call, to the stretch in which it begins. Everything else belongs to the stretches whose
    host time it overlaps, and is cut there. Durations within a stretch stay as they are.

    Args:
        trace: of one rank.
        label: name of the window.
        stretches: at least one, in order of time, without overlap on the host.
    """
    start, end, host_start, host_end, earlier, host_earlier = np.array(stretches, dtype=np.int64).T
    tables, events = trace.tables, trace.arrays
    links = tables["links"]
    gpu = events.where(*GPU_SIGNS) | (events.where("sync") & (events.stream >= 0))
    stretch = np.full(len(events.start), -1, dtype=np.int64)
    stretch[gpu] = interval_of(start, end, events.start[gpu])
    launched = links.array("launch_id") >= 0
    work, calls = (links.array(name)[launched] for name in ("kernel_id", "launch_id"))
    stretch[work] = interval_of(host_start, np.maximum(host_end, host_start + 1), events.start[calls])
    first, last = stretch.copy(), stretch.copy()
    # What is not a GPU's lies in all stretches that it overlaps; in none where the last is before the first.
    host = ~gpu
    first[host] = np.searchsorted(host_end, events.start[host], side="left")
    last[host] = np.searchsorted(host_start, events.end[host], side="right") - 1
    behind_all = host & (first >= len(host_start))
    first[behind_all] = last[behind_all] = -1
    low = np.where(gpu, lookup(start, first, 0), lookup(host_start, first, 0))
    high = np.where(gpu, lookup(end, last, 0), lookup(host_end, last, 0))
    begin, finish = np.clip(events.start, low, high), np.clip(events.end, low, high)
    kept = (first >= 0) & (first <= last) & (~gpu | (finish > begin) | (events.end == events.start))
    begin -= np.where(gpu, lookup(earlier, first, 0), lookup(host_earlier, first, 0))
    finish -= np.where(gpu, lookup(earlier, last, 0), lookup(host_earlier, last, 0))
    window = TraceWindow(
        label,
        int((start - earlier).min()),
        int((end - earlier).max()),
        int((host_start - host_earlier).min()),
        int((host_end - host_earlier).max()),
    )
    new_row = np.where(kept, np.cumsum(kept) - 1, -1)  # references to events left out become -1
    excerpts = {}
    for name, table in tables.items():
        times = {"ts_ns": begin, "dur_ns": np.maximum(finish - begin, 0)} if name == "events" else {}
        keys = references(table.schema)
        rows = Table(table.schema, {**table.columns, **times}).take(kept[table.array(keys[0])])
        renumbered = {key: lookup(new_row, rows.array(key), -1) for key in keys}
        excerpts[name] = Table(table.schema, {**rows.columns, **renumbered})
    # Steps timed without the profiler are whole ones.
    return Trace(replace(trace.meta, pace=()), excerpts, window, trace)


def references(schema: Schema) -> list[str]:
    """Columns that hold rows of `events`; the first is the event that a row of the table describes."""
    return [name for name in schema.names if name.endswith("_id") and name != "correlation_id"]


def rows_by_code(codes: Int) -> dict[int, Int]:
    """Code to its rows, both ascending: one sort, where a mask for each code takes rows times codes."""
    order = ordered(codes)
    in_order = codes[order]
    first = np.flatnonzero(np.append(True, in_order[1:] != in_order[:-1])[: len(order)])
    return dict(zip(in_order[first].tolist(), np.split(order, first[1:]), strict=False))
