"""The step's wall time, taken apart: step, category, op, argument shape, kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import no_gpu_work
from tracelens.arrays import Int, lookup
from tracelens.table import (
    RANK,
    Coded,
    Column,
    Leaves,
    Level,
    Result,
    Schema,
    Skip,
    depth_first,
    levels,
    outermost,
    result,
    subtree_sums,
    sums,
)
from tracelens.trace import Run, Scope, Steps, Trace, Work, describe, gpu_work, shares, steps_of

Label = tuple[str, str]
"""Name and forward op of a row."""

LEVELS = ("step", "category", "op", "shape", "kernel")
UNLINKED, IDLE, NO_OP, NO_SHAPE = "unlinked", "idle", "(no op)", "(shapes not recorded)"

RULE = (
    "Overlapping GPU work: each nanosecond goes to one kernel, copy or memset, in the order computation, "
    "communication, copy, memset, then earliest start. Exclusive times of children therefore add up to "
    "their parent, and steps to the wall time. Work launched before the recording began is 'unlinked'; "
    "time without GPU work is 'idle'."
)

BREAKDOWN = Schema(
    "Step time by category, op, shape and kernel",
    (
        RANK,
        Column("node", "int64", doc="number of the row on its rank"),
        Column("parent", "int64", doc="node one level up, -1 at the top"),
        Column("level", "str", doc="one of " + ", ".join(LEVELS)),
        Column("name", "category", doc="of the step, category, op, shape or kernel"),
        Column("forward_op", "category", doc="for backward work: the forward op whose gradient it computes"),
        Column("exclusive_ns", "int64", "ns", "wall time of this row alone; children add up to it"),
        Column("fraction", "float64", "fraction", "exclusive time / wall time of the step"),
        Column("sum_ns", "int64", "ns", "sum of durations, overlap counted twice"),
        Column("subtree_ns", "int64", "ns", "for ops: sum of durations including called ops"),
        Column("count", "int64", "count", "kernels, copies and memsets that start here"),
        Column("mean_ns", "float64", "ns", "duration of a kernel, copy or memset", intensive=True),
        Column("median_ns", "float64", "ns", "the same, median", intensive=True),
        Column("min_ns", "int64", "ns", "the same, shortest", intensive=True),
        Column("max_ns", "int64", "ns", "the same, longest", intensive=True),
    ),
    kind="tree",
    doc=RULE,
)


@analyzer("breakdown", title="Breakdown of the step", order=20, tables={"breakdown": BREAKDOWN})
def breakdown(run: Run, *, scope: Scope = "all") -> Result:
    """Where does the step's wall time go, from category down to kernel?

    Reading:
        Follow the largest `exclusive_ns` from the step down to the kernel. Where `sum_ns` is larger, the rest
        overlapped other work.

    Limits:
        Work that something else hides has little exclusive time, whatever it costs that work; see
        `overlap`.

    Args:
        run: the ranks.
        scope: "all", or "linked" to leave out work whose launch call is not in the trace.

    Returns:
        table `breakdown`: one row a node of the hierarchy, parents before their children, heaviest first.
    """
    parts, skips = [], []
    for trace in run.traces:
        work = gpu_work(trace, scope)
        if not len(work.event):
            skips.append(Skip(f"rank {trace.meta.rank}", no_gpu_work(trace, scope)))
            continue
        if not any(trace.tables["ops"].columns["shapes"].values):
            skips.append(
                Skip(f"rank {trace.meta.rank}: shapes", "not recorded; use profile(record_shapes=True)")
            )
        parts.append(_breakdown(trace, work, steps_of(trace)))
    return result({"breakdown": BREAKDOWN.concat(parts)}, skips, scope=scope)


def _breakdown(trace: Trace, work: Work, steps: Steps) -> dict[str, Any]:
    row, window, exclusive = shares(work.start, work.end, work.kind.astype(np.int64), steps.edges)
    starts_here = np.searchsorted(steps.edges, work.start[row], side="right") - 1 == window
    # Work without extent at the very end lies behind the last edge; it counts in the last window.
    starts_here |= (work.start[row] >= steps.edges[-1]) & (window == len(steps.labels) - 1)
    path, labels = _paths(trace, work, steps)
    leaves = Leaves([window, *(key[row] for key in path)], exclusive, work.dur[row], starts_here)
    tree = _every_step(levels(leaves), len(steps.labels))
    subtree = _subtree(trace, work, tree[2].group[starts_here], row[starts_here], len(tree[2].key))
    return _rows(trace.meta.rank, tree, labels, steps, subtree)


def _paths(trace: Trace, work: Work, steps: Steps) -> tuple[list[Int], list[list[Label]]]:
    """Keys of category, op, shape and kernel of each piece of work, and their (name, forward op) labels."""
    events = trace.arrays
    category = np.where(work.unlinked, len(work.categories), work.category)
    no_name = len(events.names)
    op_name = lookup(events.name, work.op, no_name)
    forward = lookup(events.name, work.forward, no_name)
    op, op_labels = _pairs(op_name, forward, [*events.names, NO_OP], [*events.names, ""])
    shape, shape_labels = shape_texts(trace, work)
    labels = [
        [(label, "") for label in steps.labels],
        [(name, "") for name in [*work.categories, UNLINKED]],
        op_labels,
        [(text, "") for text in shape_labels],
        [(name, "") for name in work.names],
    ]
    return [category.astype(np.int64), op, shape, work.name.astype(np.int64)], labels


def _pairs(
    first: Int, second: Int, first_names: Sequence[str], second_names: Sequence[str]
) -> tuple[Int, list[Label]]:
    distinct, code = np.unique(first.astype(np.int64) * len(second_names) + second, return_inverse=True)
    pairs = [divmod(int(value), len(second_names)) for value in distinct]
    return code, [(first_names[a], second_names[b]) for a, b in pairs]


def shape_texts(trace: Trace, work: Work) -> tuple[Int, list[str]]:
    """Code and text of the launching op's argument shapes; of those of another batch size begins with `~`."""
    ops = trace.tables["ops"]
    op_row = trace.arrays.places(ops.array("event_id"))
    row = lookup(op_row, work.op, -1)
    shapes, dtypes = ops.columns["shapes"], ops.columns["dtypes"]
    width = len(dtypes.values)
    joint = np.full(len(row), -1, dtype=np.int64)
    known = row >= 0
    joint[known] = shapes.codes[row[known]].astype(np.int64) * width + dtypes.codes[row[known]]
    distinct, code = np.unique(joint, return_inverse=True)
    texts: dict[str, int] = {}
    merged = [texts.setdefault(_shape(shapes, dtypes, value), len(texts)) for value in distinct.tolist()]
    codes = np.array(merged, dtype=np.int64)[code]
    inferred = ops.columns["inferred"]
    other_size = [f"~{text}" if text else "" for text in inferred.values]
    for value in np.unique(inferred.codes[row[known]]).tolist():
        if other_size[value]:
            is_other = known & (lookup(inferred.codes, row, -1) == value)
            codes[is_other] = texts.setdefault(other_size[value], len(texts))
    return codes, list(texts)


def _shape(shapes: Coded, dtypes: Coded, joint: int) -> str:
    shape, dtype = divmod(joint, len(dtypes.values))
    if joint < 0 or not shapes.values[shape]:
        return NO_SHAPE
    return describe(shapes.values[shape], dtypes.values[dtype]) or "()"


def _every_step(tree: list[Level], count: int) -> list[Level]:
    """The levels with a row for each step: one without GPU work is idle, but a step."""
    top, below, *rest = tree
    columns = {name: np.zeros(count, dtype=values.dtype) for name, values in top.columns.items()}
    for name, values in top.columns.items():
        columns[name][top.key] = values
    every_step = Level(np.arange(count), np.full(count, -1), top.key[top.group], columns)
    return [every_step, below._replace(parent=top.key[below.parent]), *rest]


def _subtree(trace: Trace, work: Work, group: Int, row: Int, groups: int) -> Int:
    """Of each op group: summed durations of its calls with everything they call.

    `group` and `row` are the op group and the position in Work of each piece of work, once each.
    """
    events, count = trace.arrays, len(trace.arrays.start)
    has_op = work.op >= 0
    direct = sums(work.op[has_op], work.dur[has_op], count)
    total = subtree_sums(events.parent, events.depth, direct)
    call = work.op[row]
    # Work without an op has no calls below it: its subtree is itself.
    value = sums(group[call < 0], work.dur[row[call < 0]], groups)
    pair = np.unique(group[call >= 0] * count + call[call >= 0])
    owner, call = np.divmod(pair, count)
    # A recursive op's inner calls are part of the outer one's subtree.
    outer = outermost(events.parent, call, owner)
    return value + sums(owner[outer], total[call[outer]], groups)


def _rows(
    rank: int, tree: list[Level], labels: list[list[Label]], steps: Steps, subtree: Int
) -> dict[str, Any]:
    """Nodes of all levels and an idle row a step, in depth-first order."""
    length = np.diff(steps.edges)[tree[0].key]
    idle = length - tree[0].columns["exclusive_ns"]
    count = [len(level.key) for level in tree]
    offset = np.cumsum([0, *count[:-1]])
    columns = {
        name: np.concatenate([level.columns[name] for level in tree] + [np.zeros_like(idle)])
        for name in tree[0].columns
    }
    # A step's row is its wall time; what its kernels do not fill is idle.
    columns["exclusive_ns"] = np.concatenate([length, columns["exclusive_ns"][count[0] : -len(idle)], idle])
    columns["subtree_ns"] = columns["sum_ns"].copy()
    columns["subtree_ns"][offset[2] : offset[3]] = subtree
    above = [
        np.where(level.parent >= 0, level.parent + offset[depth - 1], -1) for depth, level in enumerate(tree)
    ]
    parent = np.concatenate([*above, np.arange(len(idle))])
    first = np.cumsum([0, *(len(texts) for texts in labels)])
    label = np.concatenate(
        [level.key + start for level, start in zip(tree, first, strict=False)]
        + [np.full(len(idle), first[-1])]
    )
    depth = np.repeat([*range(len(LEVELS)), 1], [*count, len(idle)])
    root = np.arange(len(parent))
    for _ in LEVELS:
        root = np.where(parent[root] >= 0, parent[root], root)
    # Steps stay in order of time, everything below in order of weight.
    order = depth_first(parent, np.where(parent < 0, -tree[0].key[root], columns["exclusive_ns"]))
    node = np.empty(len(order), dtype=np.int64)
    node[order] = np.arange(len(order))
    texts = [text for level in labels for text in level] + [(IDLE, "")]
    return {
        "rank": np.full(len(order), rank),
        "node": np.arange(len(order)),
        "parent": lookup(node, parent[order], -1),
        "level": Coded(depth[order], LEVELS),
        "name": Coded.used(label[order], [name for name, _ in texts]),
        "forward_op": Coded.used(label[order], [forward for _, forward in texts]),
        "fraction": columns["exclusive_ns"][order] / np.maximum(length[root[order]], 1),
    } | {name: values[order] for name, values in columns.items()}
