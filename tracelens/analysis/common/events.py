"""Recompute: forward work that runs again in the backward pass (activation checkpointing)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup, unique
from tracelens.table import Coded, codes, nearest, sums
from tracelens.trace import Trace, Work, describe, exclusive

NODE = "autograd::engine::evaluate_function: "
"""Name of the event around each node of the backward pass, less the node's name."""
REENTERING = "CheckpointFunctionBackward"
"""Name of the node of a checkpoint that runs a backward pass of its own (use_reentrant=True)."""
_FRAME = "recompute_fn"
_OP = "aten::"
_MOST = 0.5
"""Nodes of the backward pass, as a share, with numbered ops: beyond it the pass is differentiated itself."""


def recomputed(trace: Trace) -> Bool:
    """Events in which the forward pass runs again, by name or by autograd's own numbers; with `trace.once`.

    Ops get a sequence number where autograd records them for a later backward pass. The backward pass itself
    does not record, so numbered ops inside of its nodes are a forward pass, and so is what the same node runs
    between them: communication, and what needs no gradient. Where most nodes have such ops, it is
    differentiated in turn (create_graph=True), and nothing is recomputed.
    """
    events, ops = trace.arrays, trace.tables["ops"]
    node = events.named(lambda name: name.startswith(NODE))
    # Checkpointing's own frame or node; the nearest of these and of an autograd node says which it is.
    mark = events.named(lambda name: name == REENTERING or name.endswith(_FRAME))
    is_recompute = mark
    if mark.any():
        is_recompute = lookup(mark, nearest(events.parent, events.depth, mark | node), False)
    if node.any():
        # Autograd functions have numbers wherever they are called, so only ops of the framework's own count.
        plain = events.named(lambda name: name.startswith(_OP))
        row = ops.array("event_id")
        numbered = row[(ops.array("sequence") >= 0) & (ops.array("forward_thread") <= 0) & plain[row]]
        of_node = nearest(events.parent, events.depth, node)
        numbered = numbered[of_node[numbered] >= 0]
        if len(numbered) and len(unique(of_node[numbered])) <= _MOST * node.sum():
            begins, ends = np.full(len(node), np.iinfo(np.int64).max), np.zeros(len(node), dtype=np.int64)
            np.minimum.at(begins, of_node[numbered], events.start[numbered])
            np.maximum.at(ends, of_node[numbered], events.end[numbered])
            between = (events.start >= begins[of_node]) & (events.end <= ends[of_node])
            is_recompute = is_recompute | (between & (of_node >= 0))
    return is_recompute


class OpArguments(NamedTuple):
    """Distinct arguments of ops, by number; a code of -1 where they are not recorded."""

    shapes: Coded
    dtypes: Coded

    def texts(self, numbers: Int | slice = slice(None)) -> list[str]:
        """Shapes and types as text, "" where they are not recorded or hold no tensor."""
        return [
            describe(self.shapes.values[shape], self.dtypes.values[dtype]) if shape >= 0 else ""
            for shape, dtype in zip(
                self.shapes.codes[numbers].tolist(), self.dtypes.codes[numbers].tolist(), strict=True
            )
        ]


def op_arguments(trace: Trace, op: Int) -> tuple[Int, OpArguments]:
    """Shapes and types of the arguments of ops: number of each, and what the numbers stand for.

    Args:
        trace: of the rank.
        op: event rows, -1 for none.
    """
    ops = trace.tables["ops"]
    row = lookup(trace.arrays.places(ops.array("event_id")), op, -1)
    shapes, dtypes = ops.columns["shapes"], ops.columns["dtypes"]
    recorded = (np.append(column.codes, -1)[row].astype(np.int64) for column in (shapes, dtypes))
    number, (shape, dtype) = codes(*recorded)
    return number, OpArguments(Coded(shape, shapes.values), Coded(dtype, dtypes.values))


def call_time(work: Work, call: Int) -> tuple[Int, Int]:
    """GPU time of each call: the union of its work.

    Args:
        work: GPU work.
        call: which call each piece of it belongs to, any number.

    Returns:
        (call, ns), one entry a call, in order of the number.
    """
    group, (calls,) = codes(call)
    # Within one call the one that started first owns the time, so the shares add up to the union.
    exclusive_ns = work.end - exclusive(work.start, work.end, group)
    return calls, sums(group, exclusive_ns, len(calls))
