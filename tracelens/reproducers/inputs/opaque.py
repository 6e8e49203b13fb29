"""GPU work that no script of an op can stand for: why, and how to record it so that one can.

GPU work belongs to the innermost op around its launch. Where that is no registered op - an autograd Function,
a compiled region -, a registered op around it stands for it, if nothing else in there can be called itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.roofline import OpCalls, with_surroundings
from tracelens.arrays import Bool, Int
from tracelens.reproducers.inputs.arguments import LONG_LIST, NO_SHAPES, OP, RECORDED, Unreplayable, read
from tracelens.reproducers.inputs.indices import complete, grids
from tracelens.reproducers.inputs.makers import fill
from tracelens.table import Skip, codes, nearest, sums
from tracelens.trace import WORK_KINDS, Trace, Work, exclusive, matching

OP_SCRIPT, COLLECTIVE = "scripts of ops", "scripts of collectives"
"""What stands for GPU work that is not opaque."""

_COMM = re.compile(r"c10d::|record_param_comms")
_GRAPH = re.compile("GraphLaunch")
_REGISTERED = re.compile(rf"\A{OP.pattern}\Z", OP.flags)
# Kinds of generated kernels: pointwise, reductions, scans, sorts, templates, and several in one.
_INDUCTOR = re.compile(r"triton_(?:poi|red|per|spl|tem|for|helper|unk|mm|bmm|convolution|flex|mix)\w*")

BEFORE = "launched before the recording began"
BY_GRAPH = "launched by a graph"
NO_SIZES = "communication without a record of its sizes"
NO_OP = "launched outside of any recorded op"
INDUCTOR = "Triton kernels that torch.compile wrote"
NO_ARGUMENTS = "ops without recorded arguments"
UNREGISTERED = "launched by what is no registered op"

_HOW = {
    BEFORE: "the call behind it is not in the trace; torch.profiler.schedule with a warmup step, or "
    "torch.cuda.synchronize() before the recording begins, leaves nothing of it",
    BY_GRAPH: "a CUDA or HIP graph runs all its kernels with one call and no ops; record the same step "
    "without graphs (no mode='reduce-overhead', enforce_eager or the like)",
    NO_SIZES: "neither an op script nor a collective one can be made; recent torch with NCCL or RCCL records "
    "sizes with record_shapes=True",
    NO_OP: "a kernel that Python or C++ launches itself has no recorded arguments; record "
    "ProfilerActivity.CPU, and make it an op: torch.library.triton_op for Triton, else "
    "torch.library.custom_op",
    INDUCTOR: "the trace names the generated file but not what is in it; record the step with "
    "TORCH_COMPILE_DISABLE=1 to replay its ops, or compile with TORCHINDUCTOR_BENCHMARK_KERNEL=1, which "
    "makes each generated file run by itself",
    NO_ARGUMENTS: NO_SHAPES,
    UNREGISTERED: "an autograd Function or compiled region cannot be called by name; make what launches "
    "the kernels an op with torch.library.custom_op (torch.library.triton_op for Triton)",
    LONG_LIST: "no setting of the profiler changes that; call it with fewer tensors at a time: an optimizer "
    "with smaller parameter groups, or with foreach=False and fused=False",
}


class Account(NamedTuple):
    """What stands for each piece of GPU work.

    Attributes:
        ns: time of each piece; of pieces of one call that overlap, each nanosecond is one's.
        kind: code into `kinds`, aligned with the work.
        kinds: OP_SCRIPT, COLLECTIVE, and why there is no script.
        name: what launched each piece: code into `names`, -1 for nothing that has a name.
        names: of ops.
    """

    ns: Int
    kind: Int
    kinds: list[str]
    name: Int
    names: list[str]

    def total(self, kind: str) -> int:
        """Time of one kind, ns; 0 where there is none."""
        if kind not in self.kinds:
            return 0
        return int(self.ns[self.kind == self.kinds.index(kind)].sum())


def callable_op(trace: Trace, work: Work) -> Int:
    """The op to call again for each piece of GPU work: the innermost one, else a registered one around it.

    Args:
        trace: of the rank.
        work: its GPU work, or a part of it.

    Returns:
        event row of an op with a registered-looking name (namespace::name) and recorded arguments, -1 for
        none; communication and what a graph launches have none.
    """
    events, ops = trace.arrays, trace.once(OpCalls)
    usable = trace.once(_usable)
    own = np.where((work.op >= 0) & usable[work.op], work.op, -1)
    launched = trace.tables["links"].array("op_id")
    launched = launched[launched >= 0]
    # Around an op that is called itself no other is called for what it has beside that one.
    taken = with_surroundings(events, events.parent[launched[usable[launched]]])
    around = nearest(events.parent, events.depth, usable)
    outer = np.where(work.op >= 0, around[work.op], -1)
    outer = np.where((outer >= 0) & ~taken[outer], outer, -1)
    found = np.where(own >= 0, own, outer)
    hidden = (work.kind == WORK_KINDS.index("comm")) | _by_graph(trace, work)
    return np.where(hidden | (ops.row[found] < 0), -1, found)


def account(trace: Trace, work: Work) -> Account:
    """What stands for each piece of this GPU work; all times add up to the time of the work's calls."""
    events = trace.arrays
    call = callable_op(trace, work)
    unique = np.where(call >= 0, call, len(events.start) + np.arange(len(call)))
    group, _ = codes(unique)
    ns = work.end - exclusive(work.start, work.end, group)
    refused, reasons = _refused(trace, work, call)
    recorded = np.isin(work.event, trace.tables["collectives"].array("kernel_id"))
    kinds = [OP_SCRIPT, COLLECTIVE, *_HOW, *(reason for reason in reasons if reason not in _HOW)]
    place = {kind: at for at, kind in enumerate(kinds)}
    kind = np.array([place[reason] for reason in [OP_SCRIPT, *reasons]], dtype=np.int64)[refused + 1]
    left = call < 0
    for mask, reason in ((recorded, COLLECTIVE), *_opaque(trace, work)):
        kind[left & mask] = place[reason]
        left &= ~mask
    op = np.where(call >= 0, call, work.op)
    name = np.where(op >= 0, events.name[op], -1)
    return Account(ns, kind, kinds, name, events.names)


def unreplayed(trace: Trace, work: Work) -> list[Skip]:
    """GPU work that neither scripts of ops nor of collectives stand for, one Skip a reason, largest first.

    Args:
        trace: of the rank.
        work: its GPU work.
    """
    found = account(trace, work)
    whole = max(int(found.ns.sum()), 1)
    times = sums(found.kind, found.ns, len(found.kinds))
    skips = []
    for at in np.argsort(-times, kind="stable").tolist():
        reason = found.kinds[at]
        if reason in (OP_SCRIPT, COLLECTIVE) or not times[at]:
            continue
        share = f"{times[at] / whole:.1%}" if times[at] >= whole / 1000 else "under 0.1%"
        subject = f"{share} of GPU time ({times[at] / 1e3:,.1f} us)"
        known = reason in _HOW
        subject += f": {reason}" if known else ": arguments that do not say enough"
        how = _HOW[reason] if known else reason
        skips.append(Skip(subject, f"{how}{_examples(found, at)}"))
    return skips


def _usable(trace: Trace) -> Bool:
    """Mask of event rows that are ops with a registered-looking name and recorded arguments."""
    ops, events = trace.once(OpCalls), trace.arrays
    named = matching(events.names, _REGISTERED) & ~matching(events.names, _COMM)
    rows = np.flatnonzero(np.isin(events.name, np.flatnonzero(named)) & (ops.row >= 0))
    found = np.zeros(len(events.start), dtype=bool)
    found[rows] = [ops.recorded(row) for row in rows.tolist()]
    return found


def _by_graph(trace: Trace, work: Work) -> Bool:
    graph = matching(trace.arrays.names, _GRAPH)
    mask: Bool = (work.launch >= 0) & graph[trace.arrays.name[work.launch]]
    return mask


def _refused(trace: Trace, work: Work, call: Int) -> tuple[Int, list[str]]:
    """Why calls are nothing that can be called again: code of each piece's reason, -1 for none."""
    ops, table, events = trace.once(OpCalls), trace.tables["ops"], trace.arrays
    found = np.full(len(call), -1, dtype=np.int64)
    mine = np.flatnonzero(call >= 0)
    row = ops.row[call[mine]]
    texts = [table.columns[name] for name in RECORDED]
    grid = [values[mine] for values in grids(trace, work, call)]
    group, keys = codes(events.name[call[mine]], *grid, *(text.codes[row].astype(np.int64) for text in texts))
    reasons: dict[str, int] = {}
    of_group = np.full(len(keys[0]), -1, dtype=np.int64)
    for at, (name, kernel, blocks, *recorded) in enumerate(zip(*(key.tolist() for key in keys), strict=True)):
        shapes, dtypes, strides, values = (
            text.values[code] for text, code in zip(texts, recorded, strict=True)
        )
        try:
            given = read(shapes, dtypes, strides, values, of_lists="float32")
            op = events.names[name]
            fill(op, complete(op, given, events.names[kernel], blocks))
        except Unreplayable as why:
            of_group[at] = reasons.setdefault(str(why), len(reasons))
    found[mine] = of_group[group]
    return found, list(reasons)


def _opaque(trace: Trace, work: Work) -> list[tuple[Bool, str]]:
    """Reasons of work without an op to call; the first that is true of it is the one."""
    events = trace.arrays
    op_name = np.where(work.op >= 0, events.name[work.op], -1)
    registered, generated = matching(events.names, _REGISTERED), matching(events.names, _INDUCTOR)
    of_op = (op_name >= 0) & registered[op_name]
    return [
        (work.unlinked, BEFORE),
        (_by_graph(trace, work), BY_GRAPH),
        (work.kind == WORK_KINDS.index("comm"), NO_SIZES),
        ((op_name >= 0) & generated[op_name] | generated[work.name], INDUCTOR),
        (of_op, NO_ARGUMENTS),
        (op_name >= 0, UNREGISTERED),
        (np.ones(len(op_name), dtype=bool), NO_OP),
    ]


def _examples(found: Account, kind: int) -> str:
    """Names of the ops with most time of one kind, as the end of a sentence."""
    mine = (found.kind == kind) & (found.name >= 0)
    name, (of,) = codes(found.name[mine])
    order = np.argsort(-sums(name, found.ns[mine], len(of)), kind="stable")
    words = [found.names[of[at]] for at in order[:3].tolist()]
    more = f" and {len(of) - 3} more" if len(of) > 3 else ""
    return f" ({', '.join(words)}{more})" if words else ""
