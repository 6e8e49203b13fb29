"""Nodes of graphs: those of a capture or of an eager run as templates, and those that a replay ran.

Engines capture a graph for each of several batch sizes and pad a batch to the smallest that holds it. A
capture's label or the list of captures beside it says its size, the label of the step around a graph launch
what it holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.arrays import Bool, Int, lookup, ordered
from tracelens.table import nearest
from tracelens.trace.links import GRAPH_CALL, PASSED_THROUGH, forward_ops
from tracelens.trace.trace import Trace

KERNEL, COPY, FILL = range(3)
"""What a node is."""
_CAPTURE = re.compile(r"capture_(\d+)_(\w+)$")
_PADDED = re.compile(r"\bbs=\d+/(\d+)|\braw_bs=\d+ bs=(\d+)")
# Requests where each decodes a token, and tokens where some are in prefill.
_REQUESTS = (
    re.compile(r"\bexecute_(\d+)_context_"),
    re.compile(r"\bexecute_context_\d+\((\d+)\)_generation_\d+\((\d+)\)"),
    re.compile(r"^step\[(?:EXTEND|SPLIT_PREFILL|DLLM_EXTEND|MIXED|prefill|mixed) .*\btoks=(\d+)"),
    re.compile(r"^step\[(?!EXTEND|SPLIT_PREFILL|DLLM_EXTEND|MIXED|prefill|mixed)\w+ .*?\bbs=(\d+)"),
    re.compile(r"^(?!step\[)(?:\w+ )?\w*decode\w*\W.*?\bbs=(\d+)"),
)

_KERNEL_CALL = re.compile(r"^(?:cuda|cu|hip)(?!Graph)\w*Launch\w*Kernel")
_COPY_CALL = re.compile(r"^(?:cuda|cu|hip)Memcpy")
_FILL_CALL = re.compile(r"^(?:cuda|cu|hip)Memset")
_BEGIN, _END = re.compile("StreamBeginCapture"), re.compile("StreamEndCapture")
# Small copies and fills are kernels of the runtime: on ROCm anywhere, on CUDA in graphs.
_COPY_KERNEL = re.compile(r"__amd_rocclr_copy|^memcpy\d+(?:_|$)")
_FILL_KERNEL = re.compile(r"__amd_rocclr_fill|^memset\d+(?:_|$)")

Content = tuple[str, tuple[str, ...]]
"""Name and arguments of an op."""


class Nodes(NamedTuple):
    """Nodes in order."""

    kind: Int  # KERNEL, COPY or FILL
    name: list[str]  # of the kernel without decoration, "" where not recorded
    blocks: Int  # thread blocks, -1 where not recorded
    # of a template, the name of the op around the launch call, "" where there is none or not known
    op: list[str]

    def __len__(self) -> int:
        return len(self.kind)

    def take(self, first: int, last: int) -> Nodes:
        """The nodes [first, last)."""
        part = slice(first, last)
        return Nodes(self.kind[part], self.name[part], self.blocks[part], self.op[part])


class Size(NamedTuple):
    """A size that graphs were captured for; `mode` is the engine's, FULL or PIECEWISE, "" if unknown."""

    batch: int
    mode: str = ""


UNKNOWN = Size(-1)


class Template(Struct, frozen=True):
    """Launch calls in the order of the program: of one captured graph, or of what ran without one."""

    trace: Trace  # which recorded them
    source: str  # "capture" or "twin", see tables.EVENT_SOURCES
    call: Int  # event row in `trace` of each launch call
    op: Int  # event row of the op around each, -1 for none
    nodes: Nodes  # what they launch
    first: int = -1  # event row of the call that began the capture, -1 where there is none
    size: Size = UNKNOWN  # batch size that it was captured for, as far as its label says it

    def window(self, first: int, last: int) -> Template:
        """The calls [first, last)."""
        part = slice(first, last)
        nodes = self.nodes.take(first, last)
        return replace(self, call=self.call[part], op=self.op[part], nodes=nodes)


class Batch(NamedTuple):
    """What a step runs: requests or tokens, and whether that is after padding; -1 where no label says it."""

    size: int
    is_padded: bool = False

    def padded(self, captured: Size, sizes: Iterable[Size]) -> int:
        """The size of the graph that runs it, -1 if unknown or none is large enough.

        Args:
            captured: a graph like it, for its mode.
            sizes: all that were captured.
        """
        if self.size < 0 or self.is_padded:
            return self.size
        large = {size.batch for size in sizes if size.mode == captured.mode and size.batch >= self.size}
        return min(large, default=-1)

    def fits(self, captured: Size, sizes: Iterable[Size]) -> bool | None:
        """Whether a captured graph is of the size that runs it; None where that is unknown."""
        if self.size < 0 or captured.batch < 0:
            return None
        return self.padded(captured, sizes) == captured.batch


class Replay(NamedTuple):
    """What one graph launch ran."""

    call: int  # event row of the graph launch
    work: Int  # event rows of its GPU work, in order of start
    stream: Int
    start: Int
    end: Int
    nodes: Nodes
    batch: Batch = Batch(-1)  # of the serving step around the launch


def plain_name(name: str) -> str:
    """A kernel's name without what profilers add to it."""
    return name.removesuffix(".kd").removesuffix(" [clone .kd]").strip()


def batches(trace: Trace) -> set[Batch]:
    """What the labels of the steps say that launch graphs."""
    events = trace.arrays
    calls = np.flatnonzero(events.where("launch") & events.named(GRAPH_CALL.match))
    return {batch_around(trace, call) for call in calls.tolist()}


def replays(trace: Trace) -> list[Replay]:
    """The graph launches of a trace that ran anything, in order of their calls."""
    events, links = trace.arrays, trace.tables["links"]
    graph = events.named(GRAPH_CALL.match)
    gpu, launch = links.array("kernel_id"), links.array("launch_id")
    rows = np.flatnonzero(lookup(graph, launch, False))
    rows = rows[ordered(launch[rows], events.start[gpu[rows]])]
    calls, first = np.unique(launch[rows], return_index=True)
    order = np.argsort(events.start[calls], kind="stable")
    pieces = np.split(gpu[rows], first[1:])
    return [
        Replay(
            call=call,
            work=work,
            stream=events.stream[work],
            start=events.start[work],
            end=events.end[work],
            nodes=ran(trace, work),
            batch=batch_around(trace, call),
        )
        for call, work in ((int(calls[number]), pieces[number]) for number in order.tolist())
    ]


def ran(trace: Trace, work: Int) -> Nodes:
    """Nodes of GPU work."""
    kinds, names = trace.once(_kinds_and_names)
    kind, codes = kinds[work], trace.arrays.name[work].tolist()
    texts = [names[code] if of == KERNEL else "" for code, of in zip(codes, kind.tolist(), strict=True)]
    blocks = np.where(kind == KERNEL, trace.tables["events"].array("blocks")[work], -1)
    return Nodes(kind, texts, blocks, [""] * len(work))


def _kinds_and_names(trace: Trace) -> tuple[Int, list[str]]:
    """What each event is, if it is GPU work; and all names without decoration."""
    events = trace.arrays
    kind = np.where(events.where("memcpy"), COPY, np.where(events.where("memset"), FILL, KERNEL))
    kind[events.named(_COPY_KERNEL.search)] = COPY
    kind[events.named(_FILL_KERNEL.search)] = FILL
    return kind, [plain_name(name) for name in events.names]


def captures(trace: Trace) -> list[Template]:
    """The graphs that a trace shows being captured, in order of time.

    A capture lasts from the call that begins to the call that ends it. What was launched meanwhile and ran at
    once, on another stream, is no part of it.
    """
    events = trace.arrays
    begins = np.flatnonzero(events.where("launch") & events.named(_BEGIN.search))
    ends = np.flatnonzero(events.where("launch") & events.named(_END.search))
    if not len(begins) or not len(ends):
        return []
    # Calls that put a node into a graph, in order of time, and what each puts there.
    kind_of_name = np.full(len(events.names), -1, dtype=np.int64)
    for code, name in enumerate(events.names):
        for node_kind, pattern in ((KERNEL, _KERNEL_CALL), (COPY, _COPY_CALL), (FILL, _FILL_CALL)):
            if pattern.match(name):
                kind_of_name[code] = node_kind
    is_launch = events.where("launch")
    outer = is_launch & ~lookup(is_launch, events.parent, False)  # a runtime call holds a driver call
    calls = np.flatnonzero(outer & (kind_of_name[events.name] >= 0))
    calls = calls[np.argsort(events.start[calls], kind="stable")]
    kind = kind_of_name[events.name[calls]]
    recorded = ~np.isin(calls, trace.tables["links"].array("launch_id"))
    calls, kind = calls[recorded], kind[recorded]
    start = events.start[calls]
    launches = trace.tables["launches"]
    launches_row = events.places(launches.array("event_id"))
    kernels = launches.coded("kernel")
    graphs = []
    for begin in begins[np.argsort(events.start[begins], kind="stable")].tolist():
        after = ends[(events.start[ends] > events.start[begin]) & (events.tid[ends] == events.tid[begin])]
        if len(after):
            inside = (start > events.start[begin]) & (start < events.start[after].min())
            rows = launches_row[calls[inside]].tolist()
            names = ["" if row < 0 else plain_name(kernels.texts([row])[0]) for row in rows]
            nodes = (kind[inside], names, np.full(len(rows), -1))
            graphs.append(_assembled(trace, "capture", calls[inside], nodes, int(begin)))
    return [graph for graph in graphs if len(graph.call)]


def eager(trace: Trace) -> Template:
    """All that a trace launched without a graph, in the order of its launch calls."""
    events, links = trace.arrays, trace.tables["links"]
    gpu, launch = links.array("kernel_id"), links.array("launch_id")
    rows = np.flatnonzero((launch >= 0) & ~lookup(events.named(GRAPH_CALL.match), launch, False))
    rows = rows[ordered(events.start[launch[rows]], events.start[gpu[rows]])]
    nodes = ran(trace, gpu[rows])
    return _assembled(trace, "twin", launch[rows], (nodes.kind, nodes.name, nodes.blocks), -1)


def _assembled(
    trace: Trace, source: str, calls: Int, nodes: tuple[Int, list[str], Int], begin: int
) -> Template:
    events = trace.arrays
    op = trace.once(innermost_op)[calls]
    op_names = ["" if code < 0 else events.names[code] for code in lookup(events.name, op, -1).tolist()]
    # The size is in the innermost label of a capture around the call that began it.
    sizes = [size for size in map(captured_size, _annotations(trace, begin)) if size != UNKNOWN]
    return Template(
        trace=trace,
        source=source,
        call=calls,
        op=op,
        nodes=Nodes(*nodes, op_names),
        first=begin,
        size=sizes[0] if sizes else UNKNOWN,
    )


def op_texts(trace: Trace, ops: Int) -> list[Content]:
    """Name and arguments of ops, ("", ()) for -1."""
    names, table = trace.arrays, trace.tables["ops"]
    row = lookup(trace.once(_ops_row), ops, -1)
    texts = [table.coded(name) for name in ("shapes", "dtypes", "values")]
    return [
        ("", ())
        if number < 0
        else (names.names[names.name[op]], tuple(text.values[text.codes[number]] for text in texts))
        for op, number in zip(ops.tolist(), row.tolist(), strict=True)
    ]


def _ops_row(trace: Trace) -> Int:
    """For each event its row in the ops table, -1 for none."""
    return trace.arrays.places(trace.tables["ops"].array("event_id"))


def named(template: Template, stretches: Sequence[Template]) -> Template | None:
    """A capture with the kernel names of an eager run of the same ops and arguments, if there is one."""
    code: dict[Content, int] = {}

    def codes(calls: Template) -> Int:
        texts = op_texts(calls.trace, calls.op)
        return np.array([code.setdefault(text, len(code)) for text in texts], dtype=np.int64)

    own, count = codes(template), len(template.call)
    for stretch in stretches:
        other = codes(stretch)
        starts = np.arange(max(len(other) - count + 1, 0))
        for position, number in enumerate(own.tolist()):
            starts = starts[other[starts + position] == number]
            if not len(starts):
                break
        if len(starts):
            nodes = stretch.nodes.take(int(starts[0]), int(starts[0]) + count)
            if np.array_equal(nodes.kind, template.nodes.kind):
                return replace(template, nodes=Nodes(nodes.kind, nodes.name, nodes.blocks, template.nodes.op))
    return None


def forward_op(trace: Trace) -> Int:
    """For each event the forward op whose gradient it computes, -1 for none; with `trace.once`."""
    events, ops = trace.arrays, trace.tables["ops"]
    rows = ops.array("event_id")
    sequence, forward_thread = ops.array("sequence"), ops.array("forward_thread")
    forward = np.full(len(events.start), -1, dtype=np.int64)
    forward[rows] = forward_ops(rows, sequence, forward_thread, events.tid[rows], events.start[rows])
    return lookup(forward, nearest(events.parent, events.depth, forward >= 0), -1)


def innermost_op(trace: Trace) -> Int:
    """For each event the op that its launches belong to, as in links.find_ops; with `trace.once`."""
    events = trace.arrays
    is_op: Bool = events.where("op") & ~events.named(PASSED_THROUGH.__contains__)
    return nearest(events.parent, events.depth, is_op)


def captured_size(label: str) -> Size:
    """The size in a label such as capture_32_FULL."""
    match = _CAPTURE.match(label)
    return Size(int(match[1]), match[2]) if match else UNKNOWN


def step_batch(label: str) -> Batch:
    """The batch in a serving engine's label of a step."""
    if match := _PADDED.search(label):
        return Batch(int(match[1] or match[2]), is_padded=True)
    for pattern in _REQUESTS:
        if match := pattern.search(label):
            return Batch(sum(int(count) for count in match.groups()))
    return Batch(-1)


def batch_around(trace: Trace, row: int) -> Batch:
    """The batch of the innermost labelled step around an event."""
    for label in _annotations(trace, row):
        if (batch := step_batch(label)).size >= 0:
            return batch
    return Batch(-1)


def _annotations(trace: Trace, row: int) -> Iterable[str]:
    """Names of the annotations around an event, innermost first."""
    events = trace.arrays
    label_kinds = [code for code, kind in enumerate(events.kinds) if kind in ("annotation", "slice")]
    while row >= 0:
        if events.kind[row] in label_kinds:
            yield events.names[events.name[row]]
        row = int(events.parent[row])
