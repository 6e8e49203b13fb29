"""Which collective each piece of communication is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.trace import WORK_KINDS, Trace, collective_of, collectives


def collective_kinds(trace: Trace) -> Int:
    """Code into `collectives()` of each piece of GPU work; ask with `trace.once(collective_kinds)`.

    By the profiler's record of the message, else by the kernel's name, else by the op that launched it. -1
    for other work, and where none of them tells: NCCL's kernel that sends and receives may be a part of any.
    """
    work, events, table = trace.work, trace.arrays, trace.tables["collectives"]
    is_comm = work.kind == WORK_KINDS.index("comm")
    record = np.full(len(events.start) + 1, -1, dtype=np.int64)
    record[table.array("kernel_id")] = _codes(table.texts("collective"))
    by_op = _used(events.names, np.unique(lookup(events.name, work.op[is_comm], -1)))
    by_kernel = _used(work.names, np.unique(work.name[is_comm]))
    by_kernel[by_kernel == collectives().index("send_recv")] = -1
    kind = np.full(len(work.event), -1, dtype=np.int64)
    for operation in (
        record[work.event],
        lookup(by_kernel, work.name, -1),
        lookup(by_op, lookup(events.name, work.op, -1), -1),
    ):
        kind = np.where(is_comm & (kind < 0), operation, kind)
    return kind


def _used(names: Sequence[str], codes: Int) -> Int:
    """Kind of each of these names, -1 of all others."""
    kinds = np.full(len(names), -1, dtype=np.int64)
    codes = codes[codes >= 0]
    kinds[codes] = _codes([names[code] for code in codes.tolist()])
    return kinds


def _codes(names: Sequence[str]) -> Int:
    known = (*collectives(), "")
    code = {name: known.index(collective_of(name)) for name in set(names)}
    kinds = np.array([code[name] for name in names], dtype=np.int64)
    return np.where(kinds == len(known) - 1, -1, kinds)
