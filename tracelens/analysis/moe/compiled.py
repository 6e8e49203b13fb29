"""Backward work of compiled regions: its stage by the sizes of its tensors, its layer by repetition.

One autograd node runs the backward graph of a whole compiled region, often of several layers, so no piece of
work has a forward op of its own. The compiler orders the graph as it likes: it may fill the buffers of all
layers first and leave weight gradients for the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe.kernel_lexer import BORDER, GEMM, GROUPED, Tokens, kinds, kinds_lookup
from tracelens.analysis.moe.stages import COMBINE, DISPATCH
from tracelens.analysis.moe.tensor_sizes import (
    OUTSIDE,
    UNATTRIBUTED,
    Owner,
    Routed,
    TensorSizes,
    tensor_shapes,
)
from tracelens.analysis.moe.windows import Sizes
from tracelens.analysis.pipeline import gradient_sync
from tracelens.analysis.roofline import OpCalls
from tracelens.arrays import Int, lookup
from tracelens.table import nearest
from tracelens.trace import WORK_KINDS, Trace, rows_by_code

_NODE = "CompiledFunctionBackward"
_GEMMS = kinds_lookup(GEMM, GROUPED)


class _Region(NamedTuple):
    """One pass through a compiled region and back.

    Attributes:
        rows: positions of its backward work in order of launch.
        tokens: of its forward work, none where that is not known.
        around: event rows of the ops around all of both, whose arguments are of no single piece.
    """

    rows: Int
    tokens: range
    around: tuple[int, int]


def compiled_backward(
    trace: Trace, backward: Int, lexed: Tokens, of_token: Int, routed: Sequence[Routed], gemm_size: Sizes
) -> tuple[Int, Int]:
    """Backward work of compiled regions with MoE layers, and its pass (-1: not known) and stage.

    A region whose forward work is of one stage only is left to its forward op.

    Args:
        trace: of the rank.
        backward: positions of the backward work.
        lexed: forward work of the rank.
        of_token: pass and stage of each token.
        routed: tokens of each pass.
        gemm_size: sizes of the GEMM at a token.

    Returns:
        positions of the work; pass and stage of each, one row each.
    """
    rows, owners = [np.empty(0, dtype=np.int64)], [np.empty((2, 0), dtype=np.int64)]
    for region in _regions(trace, backward, lexed) if routed else ():
        forward = of_token[:, region.tokens]
        if region.around[1] >= 0 and ((forward[0] < 0).all() or (forward == forward[:, :1]).all()):
            continue
        passes = [number for number in np.unique(forward[0]).tolist() if number >= 0]
        sizes = _forward_sizes(trace.once(OpCalls), region, lexed, of_token, gemm_size)
        for number in passes:
            sizes.add_routed(number, routed[number])
        owner = _owners(trace, region, passes, sizes)
        comm = trace.work.kind[region.rows] == WORK_KINDS.index("comm")
        owner[:, comm] = _mirrored(trace, region.rows[comm], lexed.row[region.tokens], forward)
        rows.append(region.rows)
        owners.append(owner)
    return np.concatenate(rows), np.concatenate(owners, axis=1)


def _regions(trace: Trace, backward: Int, lexed: Tokens) -> Iterator[_Region]:
    """The compiled regions with backward work."""
    events, caller = trace.arrays, trace.work.host_call
    is_node = events.named(_NODE.__eq__)
    if not is_node.any():
        return
    node = lookup(nearest(events.parent, events.depth, is_node), caller[backward], -1)
    for event, members in rows_by_code(node).items():
        if event >= 0:
            rows = backward[members]
            rows = rows[np.argsort(events.start[caller[rows]], kind="stable")]
            forward = int(trace.work.forward[rows].max())
            extent = np.searchsorted(lexed.called, (events.start[forward], events.end[forward])).tolist()
            yield _Region(rows, range(*extent) if forward >= 0 else range(0), (event, forward))


def _forward_sizes(
    calls: OpCalls, region: _Region, lexed: Tokens, of_token: Int, gemm_size: Sizes
) -> TensorSizes:
    """Sizes of the tensors of a region's forward ops."""
    result = TensorSizes()
    _, first = np.unique(lexed.op[region.tokens], return_index=True)
    for token in (first + region.tokens.start).tolist():
        op = int(lexed.op[token])
        if op >= 0 and calls.row[op] >= 0 and op not in region.around:
            gemm = gemm_size(token) if _GEMMS[lexed.kind[token]] else None
            owner = Owner(*of_token[:, token].tolist())
            result.add(owner, tensor_shapes(calls.call(op).shapes), gemm)
    return result


def _owners(trace: Trace, region: _Region, passes: Sequence[int], sizes: TensorSizes) -> Int:
    """Pass and stage of a region's backward work by its tensors.

    Args:
        trace: of the rank.
        region: its work.
        passes: through MoE layers that its forward work holds.
        sizes: of the tensors of its forward work.
    """
    calls, op = trace.once(OpCalls), trace.work.op[region.rows]
    key = np.stack([*calls.keys(op)[:2], trace.once(kinds)[region.rows]])
    signatures, signature = np.unique(key, axis=1, return_inverse=True)
    result = np.full((2, len(op)), -1, dtype=np.int64)
    for number, same in rows_by_code(signature.ravel()).items():
        first, kind = int(op[same[0]]), int(signatures[-1, number])
        has_arguments = first >= 0 and calls.row[first] >= 0 and first not in region.around
        shapes = list(tensor_shapes(calls.call(first).shapes)) if has_arguments else []
        stage, owners = sizes.stage(shapes, bool(_GEMMS[kind]))
        if kind == BORDER and shapes:  # attention and the like, in no MoE layer
            stage = OUTSIDE
        result[1, same] = stage
        if stage not in (OUTSIDE, UNATTRIBUTED):
            result[0, same] = _repeated(op[same], passes, owners)
    return result


def _repeated(op: Int, passes: Sequence[int], owners: set[int]) -> Int:
    """Pass of the work of equal backward ops in order of launch, -1 where that is not known.

    Ops that every layer has equally often come in the order of the layers, from the last to the first.
    """
    if len(owners & set(passes)) == 1:
        return np.full(len(op), next(iter(owners)))
    calls, first, call = np.unique(op, return_index=True, return_inverse=True)
    if not passes or len(calls) % len(passes):
        return np.full(len(op), -1)
    position = np.argsort(np.argsort(first))[call]
    return np.array(passes)[::-1][position * len(passes) // len(calls)]


def _mirrored(trace: Trace, comm: Int, forward: Int, of_token: Int) -> Int:
    """Pass and stage of backward communication: the messages of forward, from the last to the first.

    What was sent then is received now. Collectives of other kinds than those of dispatch and combine are
    of parameters.

    Args:
        trace: of the rank.
        comm: positions of the backward communication in order of launch.
        forward: positions of the region's forward work in order of launch.
        of_token: pass and stage of each of these.
    """
    table = trace.tables["collectives"]
    names, sent, received = table.texts("collective"), table.array("in_bytes"), table.array("out_bytes")
    row_of = {event: row for row, event in enumerate(table.array("kernel_id").tolist()) if event >= 0}
    messages = []
    for column in np.flatnonzero(np.isin(of_token[1], (DISPATCH, COMBINE))).tolist():
        row = row_of.get(int(trace.work.event[forward[column]]), -1)
        if row >= 0:
            messages.append((names[row], int(sent[row]), int(received[row]), of_token[:, column]))
    kinds_sent = {name for name, *_ in messages}
    of_gradients = gradient_sync(trace, trace.work)[comm]
    result = np.full((2, len(comm)), -1, dtype=np.int64)
    for index in range(len(comm)):
        row = row_of.get(int(trace.work.event[comm[index]]), -1)
        if of_gradients[index] or (row >= 0 and names[row] not in kinds_sent):
            continue
        result[1, index] = UNATTRIBUTED
        key = (names[row], int(received[row]), int(sent[row])) if row >= 0 else None
        match = next((i for i in range(len(messages) - 1, -1, -1) if messages[i][:3] == key), -1)
        if match >= 0:
            result[:, index] = messages[match][3]
            del messages[match:]
    return result
