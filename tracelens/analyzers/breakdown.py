"""The step's wall time, taken apart: step, category, op, argument shape, kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.analyzers import analyzer, result, stack
from tracelens.analyzers._group import sums
from tracelens.analyzers._tree import Leaves, Level, depth_first, levels
from tracelens.analyzers.timeline import no_gpu_work
from tracelens.schema import Column, Result, Schema, Skip
from tracelens.trace.arguments import describe
from tracelens.trace.callstack import subtree_sums
from tracelens.trace.intervals import shares
from tracelens.trace.run import Run
from tracelens.trace.steps import Steps, find_steps
from tracelens.trace.trace import Trace
from tracelens.trace.work import Scope, Work, gpu_work

Int = NDArray[np.int64]

LEVELS = ("step", "category", "op", "shape", "kernel")
UNLINKED, IDLE, NO_OP, NO_SHAPE = "unlinked", "idle", "(no op)", "(shapes not recorded)"

RULE = (
    "Where GPU work runs at the same time, each nanosecond is given to one piece of it: computation before "
    "communication before copies before fills, then the one that started first. So exclusive times of the "
    "children add up to their parent, and the steps to the wall time. Work launched before the recording "
    "began is 'unlinked'; time without GPU work is 'idle'."
)

BREAKDOWN = Schema(
    "Step time by category, op, shape and kernel",
    (
        Column("rank", "int64"),
        Column("node", "int64"),
        Column("parent", "int64", doc="node of the level above, -1 at the top"),
        Column("level", "str", doc="one of " + ", ".join(LEVELS)),
        Column("name", "category"),
        Column("forward_op", "category", doc="of backward work: the forward op whose gradient it computes"),
        Column("exclusive_ns", "int64", "ns", "wall time given to this row alone; children add up to it"),
        Column("fraction", "float64", "fraction", "exclusive time of the step's wall time"),
        Column("sum_ns", "int64", "ns", "plain sum of durations, overlap counted twice"),
        Column("subtree_ns", "int64", "ns", "of an op: sum of durations including ops that it calls"),
        Column("count", "int64", "count", "kernels, copies and fills that start here"),
        Column("mean_ns", "float64", "ns"),
        Column("median_ns", "float64", "ns"),
        Column("min_ns", "int64", "ns"),
        Column("max_ns", "int64", "ns"),
    ),
    doc=RULE,
)


@analyzer("breakdown", title="Breakdown of the step", order=20)
def breakdown(run: Run, *, scope: Scope = "all") -> Result:
    """What is the step's wall time made of, from the category down to the kernel?

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
        if not any(trace.ops["shapes"].cat.categories):
            skips.append(Skip(f"rank {trace.meta.rank}: shapes", "not recorded; use profile(record_shapes=True)"))
        parts.append(_breakdown(trace, work, find_steps(trace, work)))
    return result({"breakdown": stack(BREAKDOWN, parts)}, {"breakdown": BREAKDOWN}, skips, scope=scope)


def _breakdown(trace: Trace, work: Work, steps: Steps) -> dict[str, Any]:
    row, window, exclusive = shares(work.start, work.end, work.kind.astype(np.int64), steps.edges)
    starts_here = np.searchsorted(steps.edges, work.start[row], side="right") - 1 == window
    # Work without extent at the very end lies behind the last edge; it counts in the last window.
    starts_here |= (work.start[row] >= steps.edges[-1]) & (window == len(steps.labels) - 1)
    path, labels = _paths(trace, work, steps)
    leaves = Leaves([window, *(key[row] for key in path)], exclusive, work.dur[row], starts_here)
    found = levels(leaves)
    subtree = _subtree(trace, work, found[2], row)
    return _rows(trace.meta.rank, found, labels, steps, subtree)


def _paths(trace: Trace, work: Work, steps: Steps) -> tuple[list[Int], list[list[tuple[str, str]]]]:
    """Keys of category, op, shape and kernel of each piece of work, and their (name, forward op) labels."""
    events = trace.arrays
    unlinked = (work.launch < 0) & (work.op < 0)
    category = np.where(unlinked, len(work.categories), work.category)
    no_name = len(events.names)
    op_name = np.where(work.op >= 0, events.name[np.maximum(work.op, 0)], no_name)
    forward = np.where(work.forward >= 0, events.name[np.maximum(work.forward, 0)], no_name)
    op, op_labels = _pairs(op_name, forward, [*events.names, NO_OP], [*events.names, ""])
    shape, shape_labels = _shapes(trace, work)
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
) -> tuple[Int, list[tuple[str, str]]]:
    distinct, code = np.unique(first.astype(np.int64) * len(second_names) + second, return_inverse=True)
    pairs = [divmod(int(value), len(second_names)) for value in distinct]
    return code, [(first_names[a], second_names[b]) for a, b in pairs]


def _shapes(trace: Trace, work: Work) -> tuple[Int, list[str]]:
    """Code and text of the launching op's argument shapes."""
    ops = trace.ops
    place = np.full(len(trace.events), -1, dtype=np.int64)
    place[ops["event_id"].to_numpy()] = np.arange(len(ops))
    at = np.where(work.op >= 0, place[np.maximum(work.op, 0)], -1)
    shapes, dtypes = ops["shapes"].cat, ops["dtypes"].cat
    width = len(dtypes.categories)
    joint = np.full(len(at), -1, dtype=np.int64)
    known = at >= 0
    joint[known] = shapes.codes.to_numpy()[at[known]].astype(np.int64) * width + dtypes.codes.to_numpy()[at[known]]
    distinct, code = np.unique(joint, return_inverse=True)
    texts = [
        describe(shapes.categories[value // width], dtypes.categories[value % width]) if value >= 0 else ""
        for value in distinct.tolist()
    ]
    recorded = [value >= 0 and bool(shapes.categories[value // width]) for value in distinct.tolist()]
    named = [text or ("()" if some else NO_SHAPE) for text, some in zip(texts, recorded, strict=True)]
    merged = {text: number for number, text in enumerate(dict.fromkeys(named))}
    return np.array([merged[text] for text in named], dtype=np.int64)[code], list(merged)


def _subtree(trace: Trace, work: Work, ops: Level, row: Int) -> Int:
    """Of each op group: summed durations of its calls with everything they call."""
    events = trace.arrays
    has_op = work.op >= 0
    direct = sums(work.op[has_op], work.dur[has_op], len(events.start))
    total = subtree_sums(events.parent, events.depth, direct)
    call = work.op[row]
    groups = len(ops.parent)
    pair = np.unique(np.stack((ops.group[call >= 0], call[call >= 0])), axis=1) if len(call) else np.empty((2, 0), int)
    value = sums(pair[0], total[pair[1]], groups)
    # Work without an op has no calls below it: its subtree is itself.
    alone = np.zeros(groups, dtype=np.int64)
    np.add.at(alone, ops.group[call < 0], work.dur[row][call < 0])
    return value + alone


def _rows(
    rank: int, found: list[Level], labels: list[list[tuple[str, str]]], steps: Steps, subtree: Int
) -> dict[str, Any]:
    """Nodes of all levels with idle rows added, in depth-first order."""
    length = np.diff(steps.edges)
    offset = np.cumsum([0, *(len(level.parent) for level in found)])
    columns: dict[str, list[Any]] = {name: [] for name in found[0].columns}
    parent, names, level_of, window, below = [], [], [], [], []
    for depth, level in enumerate(found):
        values = dict(level.columns)
        if depth == 0:  # A step's row is its wall time, idle included.
            values["exclusive_ns"] = length[level.keys[0]]
        for name, value in values.items():
            columns[name].append(value)
        parent.append(np.where(level.parent >= 0, level.parent + offset[depth - 1], -1))
        names += [labels[depth][key] for key in level.keys[-1].tolist()]
        level_of += [LEVELS[depth]] * len(level.parent)
        window.append(level.keys[0])
        below.append(subtree if depth == 2 else level.columns["sum_ns"])
    idle = length[found[0].keys[0]] - found[0].columns["exclusive_ns"]
    for name in columns:
        columns[name].append(idle if name == "exclusive_ns" else np.zeros_like(idle))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    joined["subtree_ns"] = np.concatenate([*below, np.zeros_like(idle)])
    parents = np.concatenate([*parent, np.arange(len(idle))])
    windows = np.concatenate([*window, found[0].keys[0]])
    names += [(IDLE, "")] * len(idle)
    level_of += ["category"] * len(idle)
    # Steps stay in order of time, everything below in order of weight.
    weight = np.where(parents < 0, -windows, joined["exclusive_ns"])
    order = depth_first(parents, weight)
    node = np.empty(len(order), dtype=np.int64)
    node[order] = np.arange(len(order))
    above = parents[order]
    return {
        "rank": np.full(len(order), rank),
        "node": np.arange(len(order)),
        "parent": np.where(above >= 0, node[np.maximum(above, 0)], -1),
        "level": [level_of[place] for place in order],
        "name": [names[place][0] for place in order],
        "forward_op": [names[place][1] for place in order],
        "fraction": joined["exclusive_ns"][order] / np.maximum(length[windows[order]], 1),
    } | {name: values[order] for name, values in joined.items()}
