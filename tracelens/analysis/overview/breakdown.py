"""The step's wall time, taken apart: by step, category, op, argument shape and kernel; by op; by kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import call_time, no_gpu_work
from tracelens.arrays import Int, lookup, numbered, ordered, unique
from tracelens.table import (
    RANK,
    Coded,
    Column,
    Leaves,
    Level,
    Result,
    Schema,
    Skip,
    codes,
    depth_first,
    levels,
    outermost,
    result,
    stats,
    subtree_sums,
    sums,
)
from tracelens.trace import WORK_KINDS, Run, Scope, Steps, Trace, Work, describe, gpu_work, shares, steps_of

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
        Column("parent", "int64", doc="node one level up, missing at the top", absent=-1),
        Column("level", "str", doc="one of " + ", ".join(LEVELS)),
        Column("name", "category", doc="of the step, category, op, shape or kernel"),
        Column("forward_op", "category", doc="for backward work: the forward op whose gradient it computes"),
        Column("exclusive_ns", "int64", "ns", "wall time of this row alone; children add up to it"),
        Column("fraction_of_step", "float64", "fraction", "exclusive time / wall time of the step"),
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

OPS = Schema(
    "Ops by name",
    (
        RANK,
        Column("name", "category", doc="op"),
        Column("category", "category", doc="kernel class with most of its time"),
        Column("count", "int64", "count", "calls that launched GPU work themselves"),
        Column("dur_ns", "int64", "ns", "GPU time of work launched by the op itself; union per call"),
        Column("subtree_dur_ns", "int64", "ns", "including called ops"),
        Column("mean_ns", "float64", "ns", "of dur_ns per call", intensive=True),
        Column("median_ns", "float64", "ns", "of dur_ns per call", intensive=True),
        Column("min_ns", "int64", "ns", "of dur_ns per call", intensive=True),
        Column("max_ns", "int64", "ns", "of dur_ns per call", intensive=True),
        Column("fraction_of_gpu_time", "float64", "fraction", "share of the summed duration of all GPU work"),
    ),
    doc="GPU work belongs to the innermost op around its launch call.",
    key=("name",),
    leading="dur_ns",
    descending=True,
)

KERNELS = Schema(
    "Kernels by name",
    (
        RANK,
        Column("name", "category", doc="kernel"),
        Column("category", "category", doc="kernel class"),
        Column("count", "int64", "count", "calls"),
        Column("sum_ns", "int64", "ns", "sum of durations; kernels on several streams may overlap"),
        Column("mean_ns", "float64", "ns", "mean duration", intensive=True),
        Column("median_ns", "float64", "ns", "median duration", intensive=True),
        Column("min_ns", "int64", "ns", "shortest call", intensive=True),
        Column("max_ns", "int64", "ns", "longest call", intensive=True),
        Column("fraction_of_kernel_time", "float64", "fraction", "share of the summed time of all kernels"),
    ),
    leading="sum_ns",
    descending=True,
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
        parts.append(_nodes(trace, work))
    return result({"breakdown": BREAKDOWN.concat(parts)}, skips, scope=scope)


def _nodes(trace: Trace, work: Work) -> dict[str, Any]:
    """The rows of one rank."""
    steps = steps_of(trace)
    tree, labels, (piece, op_group) = _tree(trace, work, steps)
    subtree = _subtree_ns(trace, work, piece, op_group, len(tree[2].key))
    # Nodes of all levels and an idle row a step.
    length = np.diff(steps.edges)
    idle = length - tree[0].columns["exclusive_ns"]
    nodes = [len(level.key) for level in tree]
    offset = np.cumsum([0, *nodes[:-1]])
    columns = {
        name: np.concatenate([level.columns[name] for level in tree] + [np.zeros_like(idle)])
        for name in tree[0].columns
    }
    # A step's row is its wall time; what its kernels do not fill is idle.
    columns["exclusive_ns"] = np.concatenate([length, columns["exclusive_ns"][nodes[0] : -len(idle)], idle])
    columns["subtree_ns"] = columns["sum_ns"].copy()
    columns["subtree_ns"][offset[2] : offset[3]] = subtree
    above = [
        np.where(level.parent >= 0, level.parent + offset[depth - 1], -1) for depth, level in enumerate(tree)
    ]
    parent = np.concatenate([*above, np.arange(len(idle))])
    first_label = np.cumsum([0, *(len(texts) for texts in labels)])
    label_of = np.concatenate(
        [level.key + start for level, start in zip(tree, first_label, strict=False)]
        + [np.full(len(idle), first_label[-1])]
    )
    depths = np.repeat([*range(len(LEVELS)), 1], [*nodes, len(idle)])
    root = np.arange(len(parent))
    for _ in LEVELS:
        root = np.where(parent[root] >= 0, parent[root], root)
    # Depth first: steps in order of time, everything below in order of weight.
    order = depth_first(parent, np.where(parent < 0, -root, columns["exclusive_ns"]))
    node = np.empty(len(order), dtype=np.int64)
    node[order] = np.arange(len(order))
    every_label = [text for level_labels in labels for text in level_labels] + [(IDLE, "")]
    return {
        "rank": np.full(len(order), trace.meta.rank),
        "node": np.arange(len(order)),
        "parent": lookup(node, parent[order], -1),
        "level": Coded(depths[order], LEVELS),
        "name": Coded.used(label_of[order], [name for name, _ in every_label]),
        "forward_op": Coded.used(label_of[order], [forward for _, forward in every_label]),
        "fraction_of_step": columns["exclusive_ns"][order] / np.maximum(length[root[order]], 1),
        **{name: values[order] for name, values in columns.items()},
    }


def _tree(trace: Trace, work: Work, steps: Steps) -> tuple[list[Level], list[list[Label]], tuple[Int, Int]]:
    """The levels, the labels of their keys, and what work starts in a step, each with its op group."""
    row, window, exclusive = shares(work.start, work.end, work.kind.astype(np.int64), steps.edges)
    starts_here = np.searchsorted(steps.edges, work.start[row], side="right") - 1 == window
    # Work without extent at the very end lies behind the last edge; it counts in the last window.
    starts_here |= (work.start[row] >= steps.edges[-1]) & (window == len(steps.labels) - 1)
    # Keys of category, op, shape and kernel of each piece of work, and their (name, forward op) labels.
    events = trace.arrays
    category = np.where(work.unlinked, len(work.categories), work.category)
    no_name = len(events.names)
    op_name = lookup(events.name, work.op, no_name)
    forward = lookup(events.name, work.forward, no_name)
    first_names, second_names = [*events.names, NO_OP], [*events.names, ""]
    distinct, code = numbered(op_name.astype(np.int64) * len(second_names) + forward)
    pairs = [divmod(int(value), len(second_names)) for value in distinct]
    op_labels = [(first_names[first], second_names[second]) for first, second in pairs]
    shape, shape_labels = shape_texts(trace, work)
    labels = [
        [(label, "") for label in steps.labels],
        [(name, "") for name in [*work.categories, UNLINKED]],
        op_labels,
        [(text, "") for text in shape_labels],
        [(name, "") for name in work.names],
    ]
    path = [category.astype(np.int64), code, shape, work.name.astype(np.int64)]
    leaves = Leaves([window, *(key[row] for key in path)], exclusive, work.dur[row], starts_here)
    # The levels with a row for each step: one without GPU work is idle, but a step.
    count = len(steps.labels)
    top, below, *rest = levels(leaves)
    of_step = {name: np.zeros(count, dtype=values.dtype) for name, values in top.columns.items()}
    for name, values in top.columns.items():
        of_step[name][top.key] = values
    every_step = Level(np.arange(count), np.full(count, -1), top.key[top.group], of_step)
    tree = [every_step, below._replace(parent=top.key[below.parent]), *rest]
    return tree, labels, (row[starts_here], tree[2].group[starts_here])


def _subtree_ns(trace: Trace, work: Work, piece: Int, group: Int, groups: int) -> Int:
    """Of each group of pieces, the durations of the calls of its op with everything they call."""
    events, call, count = trace.arrays, work.op[piece], len(trace.arrays.start)
    # Work without an op has no calls below it: its subtree is itself.
    subtree = sums(group[call < 0], work.dur[piece[call < 0]], groups)
    owner, call = np.divmod(unique(group[call >= 0] * count + call[call >= 0]), count)
    # A recursive op's inner calls are part of the outer one's subtree.
    outer = outermost(events.parent, events.depth, call, owner)
    has_op = work.op >= 0
    total = subtree_sums(events.parent, events.depth, sums(work.op[has_op], work.dur[has_op], count))
    return subtree + sums(owner[outer], total[call[outer]], groups)


def shape_texts(trace: Trace, work: Work) -> tuple[Int, list[str]]:
    """Code and text of the launching op's argument shapes; of those of another batch size begins with `~`."""
    return trace.once(_shape_texts) if work is trace.work else _shape_texts(trace, work)


def _shape_texts(trace: Trace, work: Work | None = None) -> tuple[Int, list[str]]:
    work = trace.work if work is None else work
    ops = trace.tables["ops"]
    op_row = trace.arrays.places(ops.array("event_id"))
    row = lookup(op_row, work.op, -1)
    shapes, dtypes = ops.columns["shapes"], ops.columns["dtypes"]
    width = len(dtypes.values)
    joint = np.full(len(row), -1, dtype=np.int64)
    known = row >= 0
    joint[known] = shapes.codes[row[known]].astype(np.int64) * width + dtypes.codes[row[known]]
    distinct, code = numbered(joint)
    texts: dict[str, int] = {}
    merged = []
    for value in distinct.tolist():
        shape, dtype = divmod(value, width)
        text = NO_SHAPE
        if value >= 0 and shapes.values[shape]:
            text = describe(shapes.values[shape], dtypes.values[dtype]) or "()"
        merged.append(texts.setdefault(text, len(texts)))
    codes = np.array(merged, dtype=np.int64)[code]
    inferred = ops.columns["inferred"]
    other_size = [f"~{text}" if text else "" for text in inferred.values]
    for value in unique(inferred.codes[row[known]]).tolist():
        if other_size[value]:
            is_other = known & (lookup(inferred.codes, row, -1) == value)
            codes[is_other] = texts.setdefault(other_size[value], len(texts))
    return codes, list(texts)


@analyzer("ops", title="Ops", order=40, tables={"ops": OPS}, sums_steps=True)
def ops(run: Run, *, scope: Scope = "all") -> Result:
    """Which framework ops take the GPU time?

    Reading:
        `dur_ns` is GPU time that the op launches itself, `subtree_dur_ns` includes the ops that it calls.

    Limits:
        GPU work whose launch call is not in the trace belongs to no op and is in no row.

    Args:
        run: the ranks.
        scope: "all", or "linked" for work whose launch call is in the trace, without communication
            (which is what AMD's TraceLens reports).

    Returns:
        table `ops`, one row a rank and op name that launches GPU work, largest dur_ns first.
    """
    parts, skips = [], []
    for trace in run.traces:
        work = gpu_work(trace, scope)
        if scope == "linked":
            work = work.take(work.kind != WORK_KINDS.index("comm"))
        with_op = work.take(work.op >= 0)
        if len(with_op.event):
            events = trace.arrays
            call, dur = call_time(with_op, with_op.op)
            direct = np.zeros(len(events.start), dtype=np.int64)
            direct[call] = dur
            subtree = subtree_sums(events.parent, events.depth, direct)
            names = events.name[call]
            group, (name,) = codes(names)
            by_name = stats(group, dur, len(name))
            # A call inside a call of the same op is part of that one's subtree.
            outer = outermost(events.parent, events.depth, call, group)
            # Category with most time in each group of calls.
            group_of_work = group[np.searchsorted(call, with_op.op)]
            pair, (owner, category_of_pair) = codes(group_of_work, with_op.category.astype(np.int64))
            time = sums(pair, with_op.dur, len(owner))
            category = np.zeros(len(name), dtype=np.int64)
            by_time = ordered(owner, time)
            category[owner[by_time]] = category_of_pair[by_time]
            order = np.argsort(-by_name.total, kind="stable")
            parts.append(
                {
                    "rank": np.full(len(order), trace.meta.rank),
                    "name": Coded.used(name[order], events.names),
                    "category": Coded.used(category[order], with_op.categories),
                    "count": by_name.number[order],
                    "dur_ns": by_name.total[order],
                    "subtree_dur_ns": sums(group[outer], subtree[call[outer]], len(name))[order],
                    "mean_ns": by_name.mean[order],
                    "median_ns": by_name.median[order],
                    "min_ns": by_name.min[order],
                    "max_ns": by_name.max[order],
                    "fraction_of_gpu_time": by_name.total[order] / max(int(work.dur.sum()), 1),
                }
            )
            without_op_ns = int(work.dur.sum() - with_op.dur.sum())
            if without_op_ns:
                skips.append(
                    Skip(
                        f"rank {trace.meta.rank}: {without_op_ns:,} ns of GPU work", "no op around its launch"
                    )
                )
        else:
            skips.append(
                Skip(f"rank {trace.meta.rank}", "no GPU work linked to an op; record ProfilerActivity.CPU")
            )
    return result({"ops": OPS.concat(parts)}, skips, scope=scope)


@analyzer("kernels", title="Kernels", order=50, tables={"kernels": KERNELS}, sums_steps=True)
def kernels(run: Run, *, scope: Scope = "all") -> Result:
    """Which kernels take the GPU time?

    Copies and memsets by the copy engines are not kernels and are left out (see timeline).

    Reading:
        Largest sum first. A `max_ns` far above `median_ns` is worth a look: other shapes, or a disturbance.

    Limits:
        `sum_ns` adds durations, so kernels that overlap count twice; see `breakdown` for wall time.

    Args:
        run: the ranks.
        scope: "all", or "linked" for kernels whose launch call is in the trace.

    Returns:
        table `kernels`, one row a rank and kernel name, largest sum first.
    """
    parts, skips = [], []
    for trace in run.traces:
        work = gpu_work(trace, scope)
        work = work.take(work.is_kernel)
        if not len(work.event):
            skips.append(Skip(f"rank {trace.meta.rank}", "no kernels in the trace"))
            continue
        # One name can have two classes where the launching op decided; each is a row.
        group, (name, category) = codes(work.name, work.category)
        by_name = stats(group, work.dur, len(name))
        order = np.argsort(-by_name.total, kind="stable")
        parts.append(
            {
                "rank": np.full(len(order), trace.meta.rank),
                "name": Coded.used(name[order], work.names),
                "category": Coded.used(category[order], work.categories),
                "count": by_name.number[order],
                "sum_ns": by_name.total[order],
                "mean_ns": by_name.mean[order],
                "median_ns": by_name.median[order],
                "min_ns": by_name.min[order],
                "max_ns": by_name.max[order],
                "fraction_of_kernel_time": by_name.total[order] / max(int(by_name.total.sum()), 1),
            }
        )
    return result({"kernels": KERNELS.concat(parts)}, skips, scope=scope)
