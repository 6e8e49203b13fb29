"""GPU work of one rank as aligned arrays: what most analyzers start from.

In a CPU-only trace it is the work of the host (see links.host_work), in the same form: each piece is an op,
or gloo's communication, and there is no launch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup, taken, unique
from tracelens.trace.classify import OPAQUE, WORK_KINDS, classes, classify_kernels, classify_op, kind_of
from tracelens.trace.intervals import Union, clip, union

if TYPE_CHECKING:
    from tracelens.trace.trace import Trace

Scope = Literal["all", "linked"]
"""`all`: every GPU event; `linked`: only those with an arrow from a launch call (links.is_linked)."""

SCOPES: tuple[Scope, ...] = ("all", "linked")


class Work(NamedTuple):
    """GPU events of one rank in order of start; one element an event."""

    event: Int  # row in the trace's events table
    start: Int  # ns
    end: Int  # ns
    kind: Int  # code into classify.KINDS (computation, comm, memcpy, memset)
    category: Int  # code into `categories` (the kernel classes of kernels.toml)
    name: Int  # code into `names`
    device: Int  # of a GPU; -1 and the thread in a CPU-only trace
    stream: Int  # of a GPU; -1 and the thread in a CPU-only trace
    launch: Int  # event rows of the launch call, the op and its forward op, -1 if none
    op: Int  # event rows of the launch call, the op and its forward op, -1 if none
    forward: Int  # event rows of the launch call, the op and its forward op, -1 if none
    node: Int  # event row of the copied launch call of a node that a graph replays, -1 if none
    # thread blocks of a kernel, of a graph's node those of its captured launch; -1 if not recorded
    blocks: Int
    linked: Bool
    is_kernel: Bool  # neither copy nor memset by the runtime; all work of a CPU-only trace
    categories: list[str]
    names: list[str]
    cpu_only: bool = False  # whether the trace is CPU-only

    def take(self, rows: Int | Bool) -> Work:
        """The work at these positions or under this mask."""
        return Work._make((*taken(self[:-3], rows), *self[-3:]))

    def between(self, first_ns: int, last_ns: int) -> tuple[Int, Work]:
        """The work that started in between, both times included: its positions, and a view of it."""
        low = int(np.searchsorted(self.start, first_ns))
        high = int(np.searchsorted(self.start, last_ns, side="right"))
        return np.arange(low, high), Work._make((*(column[low:high] for column in self[:-3]), *self[-3:]))

    @property
    def unlinked(self) -> Bool:
        """Work that nothing in the trace launched: it was launched before the recording began."""
        return (self.launch < 0) & (self.op < 0)

    @property
    def host_call(self) -> Int:
        """Event row of the call that each piece is of in the program; -1 if there is none.

        The launch call, else the op; of a graph's node the call that was captured, where that is known.
        """
        launch = np.where(self.node >= 0, self.node, self.launch)
        return np.where(launch >= 0, launch, self.op)

    @property
    def launch_call(self) -> Int:
        """Event row of the call that launched each piece, -1 if there is none.

        In a CPU-only trace that is its op, which mostly is the work itself.
        """
        return self.op if self.cpu_only else self.launch

    @property
    def lane(self) -> Int:
        """One number for each stream of each device."""
        if len(self.device) and (
            np.abs(self.device).max() >= 1 << 20 or np.abs(self.stream).max() >= 1 << 52
        ):
            device = np.unique(self.device, return_inverse=True)[1]
            streams, stream = np.unique(self.stream, return_inverse=True)
            return device * len(streams) + stream
        return self.device * (1 << 32) + self.stream

    @property
    def dur(self) -> Int:
        return self.end - self.start

    def union(self, *kinds: str) -> Union:
        """When work of these kinds ran; of any kind without arguments."""
        mask = np.array([kind in (kinds or WORK_KINDS) for kind in WORK_KINDS])[self.kind]
        return union(self.start[mask], self.end[mask])


def gpu_work(trace: Trace, scope: Scope = "all") -> Work:
    """The GPU work of a trace, in order of start."""
    work = trace.work
    return work if scope == "all" else work.take(work.linked)


def build(trace: Trace) -> Work:
    """Assemble it; use `gpu_work`, which keeps the result."""
    events, links = trace.arrays, trace.tables["links"]
    gpu = links.array("kernel_id")
    order = np.argsort(events.start[gpu], kind="stable")
    gpu = gpu[order]

    def link(name: str) -> Int:
        return links.array(name)[order]

    start, end = events.start[gpu], events.end[gpu]
    if trace.window is not None:
        inside = ((end > trace.window.start) | (start >= trace.window.start)) & (start < trace.window.end)
        gpu, order = gpu[inside], order[inside]
        start, end = clip(start[inside], end[inside], trace.window.start, trace.window.end)
    cpu_only = trace.meta.cpu_only
    is_kernel = events.where("kernel")[gpu] | cpu_only
    op, node = link("op_id"), link("call_id")
    blocks = trace.tables["events"].array("blocks")
    # The class of each: copies and memsets by kind, kernels by name, opaque ones by their op.
    used = unique(events.name[gpu[is_kernel]])
    names = [events.names[code] for code in used]
    class_names = [classify_op(name) or "other" for name in names] if cpu_only else classify_kernels(names)
    by_name = dict(zip(used.tolist(), class_names, strict=True))
    categories = sorted({"copy", "fill", *by_name.values(), *(entry.name for entry in classes())})
    code_of = {name: index for index, name in enumerate(categories)}
    class_of_name = np.full(len(events.names), code_of["copy"], dtype=np.int64)
    for name_code, class_name in by_name.items():
        class_of_name[name_code] = code_of[class_name]
    category = class_of_name[events.name[gpu]]
    category[~is_kernel] = np.where(events.where("memset")[gpu[~is_kernel]], code_of["fill"], code_of["copy"])
    opaque = np.flatnonzero(is_kernel & (op >= 0) & np.isin(category, [code_of[name] for name in OPAQUE]))
    op_names = events.name[op[opaque]]
    for op_name in unique(op_names):
        if known := classify_op(events.names[op_name]):
            category[opaque[op_names == op_name]] = code_of[known]
    kinds = np.array([WORK_KINDS.index(kind_of(name)) for name in categories], dtype=np.int64)
    return Work(
        event=gpu,
        start=start,
        end=end,
        kind=kinds[category],
        category=category,
        name=events.name[gpu],
        device=events.device[gpu],
        stream=events.tid[gpu] if cpu_only else events.stream[gpu],
        launch=link("launch_id"),
        op=op,
        forward=link("forward_op_id"),
        node=node,
        blocks=np.where((blocks[gpu] < 0) & (node >= 0), lookup(blocks, node, -1), blocks[gpu]),
        linked=events.linked[gpu] | cpu_only,
        is_kernel=is_kernel,
        categories=categories,
        names=events.names,
        cpu_only=cpu_only,
    )
