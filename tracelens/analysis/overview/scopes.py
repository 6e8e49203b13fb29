"""GPU time by the program's own structure: nn.Module hierarchy and record_function scopes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import NODE, no_gpu_work, recomputed
from tracelens.analysis.roofline import MatrixFlops, matrix_flops
from tracelens.arrays import Bool, Int, lookup
from tracelens.table import (
    RANK,
    Column,
    Result,
    Schema,
    Skip,
    codes,
    depth_first,
    depths,
    nearest,
    result,
    subtree_sums,
    sums,
)
from tracelens.trace import STEP_MARK, Run, Scope, Trace, Work, gpu_work, shares, steps_of

MODULE_MARK = "nn.Module: "
_LIBRARY_SCOPE = re.compile(r"^(?:nccl:|gloo:|c10d::|mpi:|ucc:)")
OUTSIDE = "(outside)"


def _schema(title: str, doc: str) -> Schema:
    return Schema(
        title,
        (
            RANK,
            Column("node", "int64", doc="number of the row on its rank"),
            Column("parent", "int64", doc="enclosing node, missing at the top", absent=-1),
            Column("name", "category", doc="module or scope; (outside): in none of them"),
            Column("exclusive_ns", "int64", "ns", "wall time of its GPU work: direct_ns plus all children"),
            Column(
                "fraction_of_busy_time", "float64", "fraction", "exclusive time / GPU busy time of the rank"
            ),
            Column("direct_ns", "int64", "ns", "exclusive time outside any deeper module or scope"),
            Column("forward_ns", "int64", "ns", "exclusive time of work that no backward op launched"),
            Column("backward_ns", "int64", "ns", "exclusive time of gradients of its forward ops"),
            Column("sum_ns", "int64", "ns", "plain sum of durations"),
            Column("count", "int64", "count", "kernels, copies and memsets"),
            Column(
                "matrix_flops",
                "int64",
                "flops",
                "of GEMMs, attention and convolutions, forward and backward; 0 if there are none, missing if "
                "none could be counted",
                absent=-1,
            ),
            Column("backward_matrix_flops", "int64", "flops", "in gradients of its forward ops", absent=-1),
        ),
        kind="tree",
        doc=f"{doc} Backward work counts where its forward op ran; recompute counts in the scopes it "
        "opens itself. Overlap is resolved as in the breakdown. One row per call path, over all steps.",
    )


MODULES = _schema(
    "GPU time by nn.Module", "Modules as recorded by profile(with_stack=True, with_modules=True)."
)
SCOPES = _schema("GPU time by record_function scope", "Scopes that the program marked with record_function.")


TABLES = {"modules": MODULES, "scopes": SCOPES}


@analyzer("scopes", title="Modules and scopes", order=30, slow=True, tables=TABLES, sums_steps=True)
def scopes(run: Run, *, scope: Scope = "all") -> Result:
    """Which modules and annotated regions of the program take the GPU time?

    Reading:
        One row per call path. `exclusive_ns` includes the children of a row, `direct_ns` does not.

    Limits:
        FLOPs count only where the shapes of the ops are recorded.

    Args:
        run: the ranks.
        scope: "all", or "linked" to leave out work whose launch call is not in the trace.

    Returns:
        tables `modules` where the trace has Python frames of nn.Modules, `scopes` where it has
        record_function scopes besides the step marks and those of communication libraries.
    """
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    skips: list[Skip] = []
    for trace in run.traces:
        rank, work = trace.meta.rank, gpu_work(trace, scope)
        if not len(work.event):
            skips.append(Skip(f"rank {rank}", no_gpu_work(trace, scope)))
            continue
        tables = (
            ("modules", module_frames(trace), "no nn.Module frames; use profile(with_stack=True)"),
            ("scopes", program_scopes(trace), "no record_function scopes in the trace"),
        )
        skips += [Skip(f"rank {rank}: {name}", why) for name, marked, why in tables if not marked.any()]
        if not any(marked.any() for _, marked, _ in tables):
            continue
        flops = matrix_flops(trace, work)
        if lacking := int(flops.lacking.sum()):
            reason = "not counted in matrix_flops; see `roofline` for the reason"
            skips.append(Skip(f"rank {rank}: FLOPs of {lacking:,} GEMM kernel(s)", reason))
        for name, marked, _ in tables:
            if marked.any():
                parts[name].append(_tree(trace, work, marked, flops))
    return result(
        {name: TABLES[name].concat(rows) for name, rows in parts.items() if rows}, skips, scope=scope
    )


def module_frames(trace: Trace) -> Bool:
    """The events that are Python frames of nn.Modules."""
    events = trace.arrays
    return events.where("python") & events.named(lambda name: name.startswith(MODULE_MARK))


def program_scopes(trace: Trace) -> Bool:
    """The record_function scopes of the program, without step marks and those of libraries."""
    events = trace.arrays
    own = events.named(lambda name: not STEP_MARK.match(name) and not _LIBRARY_SCOPE.match(name))
    return events.where("annotation") & own


def _tree(trace: Trace, work: Work, marked: Bool, matrix: MatrixFlops) -> dict[str, Any]:
    """One row a distinct path of chosen ancestors."""
    events = trace.arrays
    # Number the distinct paths of names; nearest() of the parent is the chosen event around a chosen one.
    around = nearest(events.parent, events.depth, marked)
    rows = np.flatnonzero(marked)
    above = lookup(around, events.parent[rows], -1)
    path_of = np.full(len(events.parent), -1, dtype=np.int64)
    parents: list[int] = []
    names: list[int] = []
    number = np.full(len(events.parent), -1, dtype=np.int64)
    number[rows] = np.arange(len(rows))
    level = depths(lookup(number, above, -1))
    by_level = np.argsort(level, kind="stable")
    for now in np.split(by_level, np.cumsum(np.bincount(level))[:-1]):
        up = lookup(path_of, above[now], -1)
        group, (path_above, path_name) = codes(up, events.name[rows[now]].astype(np.int64))
        path_of[rows[now]] = group + len(parents)
        parents += path_above.tolist()
        names += path_name.tolist()
    parent_path = np.array(parents, dtype=np.int64)

    def path_around(event: Int) -> Int:
        frame = lookup(around, event, -1)
        return lookup(path_of, frame, -1)

    caller = work.host_call
    via_caller, via_forward = path_around(caller), path_around(work.forward)
    # Which work is recompute in a scope of its own: one inside the autograd node that runs it.
    within = nearest(events.parent, events.depth, events.named(lambda name: name.startswith(NODE)))
    call = np.maximum(caller, 0)
    inner = (
        (around[call] >= 0) & (within[call] >= 0) & (events.depth[around[call]] > events.depth[within[call]])
    )
    is_recompute: Bool = (caller >= 0) & trace.once(recomputed)[call] & inner
    path = np.where((via_forward >= 0) & ~is_recompute, via_forward, via_caller)
    edges = steps_of(trace).edges[[0, -1]]
    row, _, exclusive = shares(work.start, work.end, work.kind.astype(np.int64), edges)
    outside = len(names)  # one more path for work outside of all of them
    path = np.where(path >= 0, path, outside)[row]
    backward = ((work.forward >= 0) & ~is_recompute)[row]
    values = {
        "exclusive_ns": exclusive,
        "forward_ns": np.where(backward, 0, exclusive),
        "backward_ns": np.where(backward, exclusive, 0),
        "sum_ns": work.dur[row],
        "count": np.ones(len(row), dtype=np.int64),
    }
    flops = matrix.flops[row]
    values |= {
        "matrix_flops": flops,
        "backward_matrix_flops": np.where(backward, flops, 0),
        "lacking": matrix.lacking[row].astype(np.int64),
        "backward_lacking": (matrix.lacking[row] & backward).astype(np.int64),
    }
    parent_path = np.append(parent_path, -1)
    columns = {name: sums(path, value, outside + 1) for name, value in values.items()}
    columns["direct_ns"] = columns["exclusive_ns"].copy()
    depth = depths(parent_path)
    for name in values:
        columns[name] = subtree_sums(parent_path, depth, columns[name])
    for name, lacking in (("matrix_flops", "lacking"), ("backward_matrix_flops", "backward_lacking")):
        unknown = (columns.pop(lacking) > 0) & (columns[name] == 0)
        columns[name][unknown] = -1
    texts = [events.names[code].removeprefix(MODULE_MARK) for code in names] + [OUTSIDE]
    used = columns["count"] > 0
    order = depth_first(parent_path, columns["exclusive_ns"])
    order = order[used[order]]
    node = np.full(len(parent_path), -1, dtype=np.int64)
    node[order] = np.arange(len(order))
    above = parent_path[order]
    busy = int(columns["exclusive_ns"][parent_path < 0].sum())
    return {
        "rank": np.full(len(order), trace.meta.rank),
        "node": np.arange(len(order)),
        "parent": lookup(node, above, -1),
        "name": [texts[path] for path in order],
        "fraction_of_busy_time": columns["exclusive_ns"][order] / max(busy, 1),
    } | {name: values[order] for name, values in columns.items()}
