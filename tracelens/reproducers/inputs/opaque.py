"""GPU work that no script of an op can stand for: why, and how to record it so that one can.

GPU work belongs to the innermost op around its launch. Where that is no registered op - an autograd Function,
a compiled region -, a registered op around it stands for it, if nothing else in there can be called itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.analysis.roofline import OpCalls, with_surroundings
from tracelens.arrays import Bool, Int, lookup
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

BEFORE = "launched before the recording"
BY_GRAPH = "launched by a graph"
NO_SIZES = "communication without recorded sizes"
NO_OP = "launched outside any recorded op"
INDUCTOR = "torch.compile Triton kernels"
NO_ARGUMENTS = "ops without recorded arguments"
UNREGISTERED = "launched by an unregistered op"

_HOW = {
    BEFORE: "its launch call is not in the trace; use torch.profiler.schedule with a warmup step, or call "
    "torch.cuda.synchronize() before recording",
    BY_GRAPH: "a CUDA or HIP graph launches all its kernels in one call without ops; record the step "
    "without graphs (no mode='reduce-overhead', enforce_eager or the like)",
    NO_SIZES: "recent torch with NCCL or RCCL records sizes with record_shapes=True",
    NO_OP: "kernels launched directly from Python or C++ have no recorded arguments; record "
    "ProfilerActivity.CPU and wrap them in an op: torch.library.triton_op for Triton, else "
    "torch.library.custom_op",
    INDUCTOR: "the trace has no source of the generated file; record the step with "
    "TORCH_COMPILE_DISABLE=1 to replay its ops, or compile with TORCHINDUCTOR_BENCHMARK_KERNEL=1 to make "
    "each generated file runnable",
    NO_ARGUMENTS: NO_SHAPES,
    UNREGISTERED: "autograd Functions and compiled regions have no callable name; wrap the launching "
    "code in torch.library.custom_op (torch.library.triton_op for Triton)",
    LONG_LIST: "a profiler limit; pass fewer tensors per call: an optimizer with smaller parameter groups or "
    "foreach=False and fused=False",
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
        if kind not in self.kinds:
            return 0
        return int(self.ns[self.kind == self.kinds.index(kind)].sum())


def callable_op(trace: Trace, work: Work) -> Int:
    """The op to call again for each piece of GPU work: the innermost one, else a registered one around it.

    Returns:
        event row of an op with a registered-looking name (namespace::name) and recorded arguments, -1 for
        none; communication and what a graph launches have none.
    """
    events, ops = trace.arrays, trace.once(OpCalls)
    usable = trace.once(_usable)
    innermost = np.where(lookup(usable, work.op, False), work.op, -1)
    launched = trace.tables["links"].array("op_id")
    launched = launched[launched >= 0]
    # Around an op that is called itself no other is called for what it has beside that one.
    taken = with_surroundings(events, events.parent[launched[usable[launched]]])
    around = nearest(events.parent, events.depth, usable)
    outer = lookup(around, work.op, -1)
    outer = np.where((outer >= 0) & ~taken[outer], outer, -1)
    op = np.where(innermost >= 0, innermost, outer)
    hidden = (work.kind == WORK_KINDS.index("comm")) | _by_graph(trace, work)
    return np.where(hidden | (ops.row[op] < 0), -1, op)


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
    code_of = {kind: code for code, kind in enumerate(kinds)}
    kind = np.array([code_of[reason] for reason in [OP_SCRIPT, *reasons]], dtype=np.int64)[refused + 1]
    unaccounted = call < 0
    for mask, reason in ((recorded, COLLECTIVE), *_opaque(trace, work)):
        kind[unaccounted & mask] = code_of[reason]
        unaccounted &= ~mask
    op = np.where(call >= 0, call, work.op)
    name = lookup(events.name, op, -1)
    return Account(ns, kind, kinds, name, events.names)


def unreplayed(trace: Trace, work: Work) -> list[Skip]:
    """GPU work that neither scripts of ops nor of collectives stand for, one Skip a reason, largest first."""
    accounted = account(trace, work)
    total_ns = max(int(accounted.ns.sum()), 1)
    times = sums(accounted.kind, accounted.ns, len(accounted.kinds))
    skips = []
    for kind in np.argsort(-times, kind="stable").tolist():
        reason = accounted.kinds[kind]
        if reason in (OP_SCRIPT, COLLECTIVE) or not times[kind]:
            continue
        share = f"{times[kind] / total_ns:.1%}" if times[kind] >= total_ns / 1000 else "under 0.1%"
        subject = f"{share} of GPU time ({times[kind] / 1e3:,.1f} us)"
        explained = reason in _HOW
        subject += f": {reason}" if explained else ": incomplete arguments"
        how = _HOW[reason] if explained else reason
        skips.append(Skip(subject, f"{how}{_examples(accounted, kind)}"))
    return skips


def _usable(trace: Trace) -> Bool:
    """Mask of event rows that are ops with a registered-looking name and recorded arguments."""
    ops, events = trace.once(OpCalls), trace.arrays
    named = matching(events.names, _REGISTERED) & ~matching(events.names, _COMM)
    rows = np.flatnonzero(np.isin(events.name, np.flatnonzero(named)) & (ops.row >= 0))
    usable = np.zeros(len(events.start), dtype=bool)
    usable[rows] = [ops.recorded(row) for row in rows.tolist()]
    return usable


def _by_graph(trace: Trace, work: Work) -> Bool:
    """Mask of what graphs launched and no capture explains."""
    graph = matching(trace.arrays.names, _GRAPH)
    mask: Bool = (work.node < 0) & (work.launch >= 0) & graph[trace.arrays.name[work.launch]]
    return mask


def _refused(trace: Trace, work: Work, call: Int) -> tuple[Int, list[str]]:
    """Why calls are nothing that can be called again: code of each piece's reason, -1 for none."""
    ops, table, events = trace.once(OpCalls), trace.tables["ops"], trace.arrays
    reason_of = np.full(len(call), -1, dtype=np.int64)
    callable_rows = np.flatnonzero(call >= 0)
    row = ops.row[call[callable_rows]]
    texts = [table.columns[name] for name in RECORDED]
    grid = [values[callable_rows] for values in grids(trace, work, call)]
    group, keys = codes(
        events.name[call[callable_rows]], *grid, *(text.codes[row].astype(np.int64) for text in texts)
    )
    reasons: dict[str, int] = {}
    of_group = np.full(len(keys[0]), -1, dtype=np.int64)
    for group_index, (name, kernel, blocks, *recorded) in enumerate(
        zip(*(key.tolist() for key in keys), strict=True)
    ):
        shapes, dtypes, strides, values = (
            text.values[code] for text, code in zip(texts, recorded, strict=True)
        )
        try:
            arguments = read(shapes, dtypes, strides, values, of_lists="float32")
            op = events.names[name]
            fill(op, complete(op, arguments, events.names[kernel], blocks))
        except Unreplayable as error:
            of_group[group_index] = reasons.setdefault(str(error), len(reasons))
    reason_of[callable_rows] = of_group[group]
    return reason_of, list(reasons)


def _opaque(trace: Trace, work: Work) -> list[tuple[Bool, str]]:
    """Reasons of work without an op to call; the first that is true of it is the one."""
    events = trace.arrays
    op_name = lookup(events.name, work.op, -1)
    registered, generated = matching(events.names, _REGISTERED), matching(events.names, _INDUCTOR)
    of_op = lookup(registered, op_name, False)
    return [
        (work.unlinked, BEFORE),
        (_by_graph(trace, work), BY_GRAPH),
        (work.kind == WORK_KINDS.index("comm"), NO_SIZES),
        (lookup(generated, op_name, False) | generated[work.name], INDUCTOR),
        (of_op, NO_ARGUMENTS),
        (op_name >= 0, UNREGISTERED),
        (np.ones(len(op_name), dtype=bool), NO_OP),
    ]


def _examples(accounted: Account, kind: int) -> str:
    """Names of the ops with most time of one kind, as the end of a sentence."""
    of_kind = (accounted.kind == kind) & (accounted.name >= 0)
    name, (op_names,) = codes(accounted.name[of_kind])
    order = np.argsort(-sums(name, accounted.ns[of_kind], len(op_names)), kind="stable")
    words = [accounted.names[op_names[index]] for index in order[:3].tolist()]
    rest_text = f" and {len(op_names) - 3} more" if len(op_names) > 3 else ""
    return f" ({', '.join(words)}{rest_text})" if words else ""
