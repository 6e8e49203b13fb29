"""What one rank knows of its communication: the part that travels to where ranks are compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.common import integers
from tracelens.arrays import Bool, Int, lookup, ordered, unique
from tracelens.costs import MESSAGE_OPS, OpCall, message
from tracelens.table import codes, nearest
from tracelens.trace import (
    WORK_KINDS,
    Scope,
    Trace,
    Union,
    Work,
    argument_dtypes,
    argument_lists,
    argument_texts,
    collective_of,
    collectives,
    difference,
    gpu_work,
    launched_in,
    steps_of,
)

POINT_TO_POINT = ("send", "recv")
NO_COMMUNICATION = "no communication kernel in the trace"
# Records of the host's doing, which no rank's kernel stands for.
_NO_KERNEL = ("wait", "coalesced")


class Record(NamedTuple):
    """One recorded collective, or one send or receive, of a kernel."""

    kernel: int  # place among the rank's communication kernels, -1 where its kernel is not recorded
    step: str  # in which the kernel was launched, by the rank's own marks
    collective: str  # name
    group: str  # name of the process group
    description: str  # what the program calls the group
    group_ranks: tuple[int, ...]  # of the process group, empty where the trace cut the list off
    size: int  # of the group
    dtype: str  # element type
    sent: int  # bytes of the message that goes in
    received: int  # bytes of the message that comes out
    sent_to: tuple[int, ...]  # bytes for each member, empty where they are not recorded
    received_from: tuple[int, ...]  # bytes from each member
    peer: int = -1  # the other rank of a send or receive, -1 where it is not recorded

    @property
    def bytes(self) -> int:
        """Size of the message as nccl-tests count it: the larger of what goes in and what comes out."""
        return max(self.sent, self.received)


class RankCommunication(Struct, frozen=True):
    """The communication of one rank."""

    rank: int  # of the trace
    host: str  # name of its host, "" where the trace does not say
    gpus: Sequence[int]  # numbers of its GPUs on their machine
    epoch_ns: int  # base of its clock, 0 where not known
    start: Int  # of each communication kernel, ns, ascending
    end: Int  # of the same
    records: list[Record]  # in the order in which the program asked for them
    alone: Union  # when there was communication and no computation
    kernels: list[str]  # name of each communication kernel
    # those without a kernel, and how many of `records` the program asked for before each
    without_kernel: list[tuple[int, Record]]

    @property
    def exposed_ns(self) -> int:
        """Time with communication and no computation."""
        return self.alone.total


def rank_communication(trace: Trace, *, scope: Scope = "all") -> RankCommunication:
    """The communication of one rank."""
    work = gpu_work(trace, scope)
    kernels = work.take(work.kind == WORK_KINDS.index("comm"))
    kernel_of = trace.arrays.places(kernels.event)
    alone = difference(work.union("comm"), work.union("computation"))
    meta = trace.meta
    names = [work.names[code] for code in kernels.name.tolist()]
    steps = steps_of(trace)
    step = [steps.labels[window] for window in launched_in(trace, steps, kernels.event).tolist()]
    table = trace.tables["collectives"]
    kernel = table.array("kernel_id")
    # A record without kernel keeps its place, so that later ones are matched with their like on other ranks.
    is_lost = (kernel < 0) & (table.array("group_size") != 1)
    if trace.window is not None:
        called = trace.arrays.start[table.array("event_id")]
        is_lost &= (called >= trace.window.host_start) & (called < trace.window.host_end)
    rows = np.flatnonzero((lookup(kernel_of, kernel, -1) >= 0) | is_lost)
    columns = ("collective", "group", "group_description", "group_ranks", "dtype", "in_split", "out_split")
    texts = {name: table.texts(name, rows) for name in columns}
    # Many records share one list of ranks, which may be long.
    ranks = {text: tuple(integers(text)) for text in set(texts["group_ranks"])}
    counts = ("group_size", "in_bytes", "out_bytes", "peer")
    numbers = {name: table.array(name)[rows].tolist() for name in counts}
    records: list[Record] = []
    without_kernel: list[tuple[int, Record]] = []
    for number, index in enumerate(lookup(kernel_of, kernel[rows], -1).tolist()):
        collective = texts["collective"][number]
        if collective in _NO_KERNEL:
            continue
        sent, received = numbers["in_bytes"][number], numbers["out_bytes"][number]
        record = Record(
            kernel=index,
            step=step[index] if index >= 0 else "",
            collective=collective,
            group=texts["group"][number],
            description=texts["group_description"][number],
            group_ranks=ranks[texts["group_ranks"][number]],
            size=numbers["group_size"][number],
            dtype=texts["dtype"][number],
            sent=sent,
            received=received,
            sent_to=_shares(texts["in_split"][number], sent),
            received_from=_shares(texts["out_split"][number], received),
            peer=numbers["peer"][number],
        )
        if index >= 0:
            records.append(record)
        else:
            without_kernel.append((len(records), record))
    records += _of_libraries(trace, kernels, step, {record.kernel for record in records})
    return RankCommunication(
        rank=meta.rank,
        host=meta.host,
        gpus=unique(work.device[work.device >= 0]).tolist(),
        epoch_ns=meta.epoch_ns,
        start=kernels.start,
        end=kernels.end,
        records=records,
        alone=alone,
        kernels=names,
        without_kernel=without_kernel,
    )


def _of_libraries(trace: Trace, kernels: Work, step: list[str], recorded: set[int]) -> list[Record]:
    """Collectives that libraries bring, of which the profiler has no record, by the arguments of their ops.

    Their groups are not recorded. One of as many ranks as the job has is a group of them all; others are left
    out, and so are those whose op was called in a graph that is replayed: its kernels have no op.
    """
    world, events, ops = trace.meta.world_size, trace.arrays, trace.tables["ops"]
    names = [code for code, name in enumerate(events.names) if name in MESSAGE_OPS]
    if world < 2 or not names:
        return []
    row = lookup(events.places(ops.array("event_id")), kernels.op, -1)
    calls = np.flatnonzero((row >= 0) & np.isin(lookup(events.name, kernels.op, -1), names))
    # What an op launches behind its first kernel is a further part of the same collective.
    _, first = np.unique(kernels.op[calls], return_index=True)
    calls = calls[np.sort(first)]
    texts = (ops.texts(column, row[calls]) for column in ("shapes", "dtypes", "values"))
    records = []
    for index, shapes, dtypes, values in zip(calls.tolist(), *texts, strict=True):
        if index in recorded:
            continue
        name, kernel = events.names[events.name[kernels.op[index]]], kernels.names[kernels.name[index]]
        arguments = argument_lists(shapes), argument_dtypes(dtypes), argument_texts(values)
        call = OpCall(name, *arguments, kernel=kernel)
        known = message(call)
        if known is None or known.ranks != world:
            continue
        library, members = name.partition("::")[0], tuple(range(world))
        records.append(
            Record(
                kernel=index,
                step=step[index],
                collective=known.collective,
                group=library,
                description="",
                group_ranks=members,
                size=world,
                dtype=known.dtype,
                sent=known.sent,
                received=known.received,
                sent_to=(),
                received_from=(),
            )
        )
    return records


def _shares(split: str, size: int) -> tuple[int, ...]:
    """Bytes of each part of a message, from its split sizes in rows; empty where they are not recorded."""
    parts = integers(split)
    rows = sum(parts)
    if rows <= 0 or min(parts) < 0 or size < 0 or size % rows:
        return ()
    return tuple(part * (size // rows) for part in parts)


def collective_kinds(trace: Trace) -> Int:
    """Code into `collectives()` of each piece of GPU work; ask with `trace.once(collective_kinds)`.

    By the profiler's record of the message, else by the kernel's name, else by the op that launched it. -1
    for other work, and where none of them tells: NCCL's kernel that sends and receives may be a part of any.
    """
    work, events, table = trace.work, trace.arrays, trace.tables["collectives"]
    is_comm = work.kind == WORK_KINDS.index("comm")
    record = np.full(len(events.start) + 1, -1, dtype=np.int64)
    record[table.array("kernel_id")] = _codes(table.texts("collective"))
    op_name = lookup(events.name, work.op, -1)
    by_op, by_kernel = (np.full(len(names), -1, dtype=np.int64) for names in (events.names, work.names))
    for kinds, names, name in ((by_op, events.names, op_name), (by_kernel, work.names, work.name)):
        used = unique(name[is_comm & (name >= 0)])
        kinds[used] = _codes([names[code] for code in used.tolist()])
    by_kernel[by_kernel == collectives().index("send_recv")] = -1
    kind = np.full(len(work.event), -1, dtype=np.int64)
    for known in (record[work.event], lookup(by_kernel, work.name, -1), lookup(by_op, op_name, -1)):
        kind = np.where(is_comm & (kind < 0), known, kind)
    return kind


def _codes(names: Sequence[str]) -> Int:
    """Code into `collectives()` of each name, -1 where it is none."""
    known = (*collectives(), "")
    code = {name: known.index(collective_of(name)) for name in set(names)}
    kinds = np.array([code[name] for name in names], dtype=np.int64)
    return np.where(kinds == len(known) - 1, -1, kinds)


GATHERS = re.compile(r"FSDP::all_gather(?:_copy_out)?(?: \(.+\))?$")
"""Marks of FSDP2 around the all-gather of a module's parameters, and around their way into the module."""


class Repetition(Struct, frozen=True):
    """What a rank communicates again in a step, with the work and the calls that belong to it."""

    rows: Int  # activities, positions in the trace's `work`
    event: Int  # calls, rows in the trace's events


def regathers(trace: Trace) -> Repetition:
    """What gathers parameters of modules that were gathered before in the same step."""
    events, work = trace.arrays, trace.work
    gather = np.flatnonzero(events.fitting(GATHERS, "annotation"))
    gather = gather[np.argsort(events.start[gather], kind="stable")]
    none = np.zeros(0, dtype=np.int64)
    if not len(gather):
        return Repetition(none, none)
    # Of a module, they are for a forward and a backward pass in turn, in each micro-batch of a step.
    step = np.searchsorted(steps_of(trace).marks, events.start[gather], side="right")
    in_order = ordered(step, events.name[gather], events.start[gather])
    group, _ = codes(step[in_order], events.name[gather][in_order])
    position = np.arange(len(gather)) - np.searchsorted(group, group)
    again = np.zeros(len(events.start), dtype=bool)
    again[gather[in_order[position % 2 == 1]]] = True
    inside: Bool = nearest(events.parent, events.depth, again) >= 0
    return Repetition(np.flatnonzero(lookup(inside, work.launch, False)), np.flatnonzero(inside))
