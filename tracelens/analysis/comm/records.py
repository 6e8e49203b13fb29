"""What one rank knows of its communication: the part that travels to where ranks are compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.common import integers
from tracelens.arrays import Int, lookup
from tracelens.costs import MESSAGE_OPS, OpCall, message
from tracelens.trace import (
    WORK_KINDS,
    Scope,
    Trace,
    Union,
    Work,
    argument_dtypes,
    argument_lists,
    argument_texts,
    difference,
    gpu_work,
    launched_in,
    steps_of,
)

POINT_TO_POINT = ("send", "recv")
# Records of the host's doing, which no rank's kernel stands for.
_NO_KERNEL = ("wait", "coalesced")


class Record(NamedTuple):
    """One recorded collective, or one send or receive, of a kernel.

    Attributes:
        kernel: place among the rank's communication kernels.
        step: in which the kernel was launched, by the rank's own marks.
        collective: name.
        group: name of the process group.
        description: what the program calls the group.
        group_ranks: of the process group, empty where the trace cut the list off.
        size: of the group.
        dtype: element type.
        sent: bytes of the message that goes in.
        received: bytes of the message that comes out.
        sent_to: bytes for each member, empty where they are not recorded.
        received_from: bytes from each member.
        peer: the other rank of a send or receive, -1 where it is not recorded.
    """

    kernel: int
    step: str
    collective: str
    group: str
    description: str
    group_ranks: tuple[int, ...]
    size: int
    dtype: str
    sent: int
    received: int
    sent_to: tuple[int, ...]
    received_from: tuple[int, ...]
    peer: int = -1

    @property
    def bytes(self) -> int:
        """Size of the message as nccl-tests count it: the larger of what goes in and what comes out."""
        return max(self.sent, self.received)


class RankCommunication(NamedTuple):
    """The communication of one rank.

    Attributes:
        rank: of the trace.
        host: name of its host, "" where the trace does not say.
        epoch_ns: base of its clock, 0 where not known.
        start: of each communication kernel, ns, ascending.
        end: of the same.
        records: in the order in which the program asked for them.
        alone: when there was communication and no computation.
        kernels: name of each communication kernel.
    """

    rank: int
    host: str
    epoch_ns: int
    start: Int
    end: Int
    records: list[Record]
    alone: Union
    kernels: list[str]

    @property
    def exposed_ns(self) -> int:
        """Time with communication and no computation."""
        return self.alone.total


def rank_communication(trace: Trace, *, scope: Scope = "all") -> RankCommunication:
    """The communication of one rank.

    Args:
        trace: of the rank.
        scope: which GPU work counts, see trace.Scope.
    """
    work = gpu_work(trace, scope)
    kernels = work.take(work.kind == WORK_KINDS.index("comm"))
    kernel_of = trace.arrays.places(kernels.event)
    alone = difference(work.union("comm"), work.union("computation"))
    meta = trace.meta
    names = [work.names[code] for code in kernels.name.tolist()]
    step = _steps(trace, kernels.event)
    records = _records(trace, kernel_of, step)
    records += _of_libraries(trace, kernels, step, {record.kernel for record in records})
    return RankCommunication(
        meta.rank, meta.host, meta.epoch_ns, kernels.start, kernels.end, records, alone, names
    )


def _steps(trace: Trace, kernels: Int) -> list[str]:
    """The step of each of these event rows."""
    steps = steps_of(trace)
    return [steps.labels[window] for window in launched_in(trace, steps, kernels).tolist()]


def _records(trace: Trace, kernel_of: Int, step: list[str]) -> list[Record]:
    table = trace.tables["collectives"]
    kernel = table.array("kernel_id")
    rows = np.flatnonzero(lookup(kernel_of, kernel, -1) >= 0)
    names = ("collective", "group", "group_description", "group_ranks", "dtype", "in_split", "out_split")
    texts = {name: table.texts(name, rows) for name in names}
    # Many records share one list of ranks, which may be long.
    ranks = {text: tuple(integers(text)) for text in set(texts["group_ranks"])}
    counts = ("group_size", "in_bytes", "out_bytes", "peer")
    numbers = {name: table.array(name)[rows].tolist() for name in counts}
    records = []
    for number, index in enumerate(kernel_of[kernel[rows]].tolist()):
        collective = texts["collective"][number]
        if collective in _NO_KERNEL:
            continue
        sent, received = numbers["in_bytes"][number], numbers["out_bytes"][number]
        records.append(
            Record(
                index,
                step[index],
                collective,
                texts["group"][number],
                texts["group_description"][number],
                ranks[texts["group_ranks"][number]],
                numbers["group_size"][number],
                texts["dtype"][number],
                sent,
                received,
                _shares(texts["in_split"][number], sent),
                _shares(texts["out_split"][number], received),
                numbers["peer"][number],
            )
        )
    return records


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
                index, step[index], known.collective, library, "", members, world, known.dtype, known.sent,
                known.received, (), (),
            )
        )  # fmt: skip
    return records


def _shares(split: str, size: int) -> tuple[int, ...]:
    """Bytes of each part of a message, from its split sizes in rows; empty where they are not recorded."""
    parts = integers(split)
    rows = sum(parts)
    if rows <= 0 or min(parts) < 0 or size < 0 or size % rows:
        return ()
    return tuple(part * (size // rows) for part in parts)
