"""Loops over experts: which work, calls and host reads each iteration repeats.

Experts computed one by one repeat a sequence of ops, one iteration per expert. What a single iteration over
all rows would need is decided by counting: ops of one name (and of one forward op) that occur among a pass's
experts at least once per iteration belong to the loop, and one in as many is kept.

- Work that moves or computes rows keeps its total time, less the fixed cost of the removed calls. The fixed
  cost is the intercept of a line through the times over the bytes; if all calls move the same number of
  bytes, it is the time above what memory bandwidth explains.
- Ops that take one of several forms by the number of rows, such as index_select with and without gather, are
  counted together if each form alone is too rare: by the outermost op around them.
- Host reads of sizes, and the ops around them, are removed altogether.
- Work of the size of all experts' weights that each iteration repeats is removed altogether as well: autograd
  assembles the gradients of views of one parameter this way, and a grouped GEMM writes them at once.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import EXPERTS, PERMUTATION, PHASES, LayerPass, Regions, blocking, regions
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.table import codes
from tracelens.trace import Trace, enclosing_op, rows_by_code
from tracelens.what_if.scenario import work_costs

_LOOP = 4
"""GEMMs of one weight size in one pass that make a loop over experts."""
_MOST = 0.75
"""Share of iterations that must have an op of the loop: experts without rows may be left out."""
_GEMMS = ("gemm", "grouped_gemm")
_NONE = np.empty(0, dtype=np.int64)


class Loop(NamedTuple):
    """One pass, forward or backward, through the experts of one layer; rows are those of the trace's work."""

    layer_pass: LayerPass
    phase: int  # code into PHASES
    gemms: Int  # expert GEMMs that stay
    removed: Int  # work that a single iteration does not need
    kept: Int  # other work of the loop that stays
    kept_ns: Float  # its durations with the rows of all iterations
    blocking_calls: Int  # event rows of the calls by which the host waits in the loop


def iterations(layer_pass: LayerPass) -> int:
    """Number of experts that a pass computes one by one, 0 if it does not."""
    if layer_pass.grouped or min((gemm.rows for gemm in layer_pass.gemms), default=-1) < 0:
        return 0
    sizes = Counter((gemm.depth, gemm.columns) for gemm in layer_pass.gemms)
    return min((count for count in sizes.values() if count >= _LOOP), default=0)


def loops(trace: Trace, bytes_per_s: float) -> list[Loop]:
    """The loops over experts of one rank; `bytes_per_s` is its memory bandwidth, 0 if unknown."""
    layers, work = trace.once(regions), trace.work
    counts = np.array([iterations(layer_pass) for layer_pass in layers.passes], dtype=np.int64)
    inside = np.flatnonzero((layers.layer_pass >= 0) & np.isin(layers.stage, (EXPERTS, PERMUTATION)))
    inside = inside[counts[layers.layer_pass[inside]] > 0]
    if not len(inside):
        return []
    launch_ns = lookup(trace.arrays.start, work.launch_call, work.start)
    inside = inside[np.argsort(launch_ns[inside], kind="stable")]
    group, (layer_pass, phase) = codes(layers.layer_pass[inside], layers.phase[inside])
    reader = _Reader(trace, layers, bytes_per_s)
    return [
        reader.loop(int(layer_pass[cell]), int(phase[cell]), inside[rows])
        for cell, rows in rows_by_code(group).items()
    ]


class _Reader:
    """Reads the loops of one rank."""

    def __init__(self, trace: Trace, layers: Regions, bytes_per_s: float) -> None:
        self.work, self.name = trace.work, trace.arrays.name
        self.layers, self.bytes_per_s = layers, bytes_per_s
        self.reads = trace.once(blocking)
        in_layer = self.reads.layer_pass >= 0
        self.reads_of = rows_by_code(
            np.where(in_layer, self.reads.layer_pass * len(PHASES) + self.reads.phase, -1)
        )
        self.read_op = trace.once(enclosing_op)[self.reads.event]
        costing = trace.once(work_costs)
        moved = np.array(
            [item.cost.read_bytes + item.cost.write_bytes for item in costing.items], dtype=np.int64
        )
        written = np.array([item.cost.write_bytes for item in costing.items], dtype=np.int64)
        self.moved, self.written = lookup(moved, costing.item, -1), lookup(written, costing.item, -1)
        gemms = [code for code, name in enumerate(self.work.categories) if name in _GEMMS]
        self.is_gemm = np.isin(self.work.category, gemms)
        self.outermost = _outermost(trace, self.work.op)

    def loop(self, pass_number: int, phase: int, rows: Int) -> Loop:
        """The loop of one pass and phase, from its work among the experts in order of launch."""
        layer_pass, work = self.layers.passes[pass_number], self.work
        count = iterations(layer_pass)
        reads = self._repeated_reads(self.reads_of.get(pass_number * len(PHASES) + phase, _NONE), count)
        all_weights = self._all_weights(rows, layer_pass)
        gemms, removed, kept, kept_ns = [_NONE], [rows[all_weights]], [_NONE], [np.empty(0)]
        rows = rows[~all_weights]
        for same in self._repeated(rows, count):
            calls = self._calls(same)
            if np.isin(work.op[same], self.read_op[reads]).any():
                removed.append(same)
                continue
            keep = self._last_calls(same, max(round(calls / count), 1))
            removed.append(same[~keep])
            if self.is_gemm[same].any():
                gemms.append(same[keep])
            else:
                kept.append(same[keep])
                kept_ns.append(self._in_one_iteration(same, keep))
        return Loop(
            layer_pass,
            phase,
            np.concatenate(gemms),
            np.concatenate(removed),
            np.concatenate(kept),
            np.concatenate(kept_ns),
            self.reads.event[reads],
        )

    def _repeated(self, rows: Int, count: int) -> list[Int]:
        """The work of each op that every iteration repeats."""
        result: list[Int] = []
        rare = [_NONE]
        for op in (self.work.op, self.outermost):
            group, _ = codes(lookup(self.name, op[rows], -1), lookup(self.name, self.work.forward[rows], -1))
            for members in rows_by_code(group).values():
                same = rows[members]
                (result if self._calls(same) >= _MOST * count else rare).append(same)
            rows, rare = np.sort(np.concatenate(rare)), [_NONE]
        return result

    def _calls(self, rows: Int) -> int:
        """Number of ops that launched this work; of the work itself where they are not recorded."""
        op = self.work.op[rows]
        return len(np.unique(op)) if (op >= 0).all() else len(rows)

    def _repeated_reads(self, reads: Int, count: int) -> Int:
        """Of the blocking calls of a pass those that each iteration repeats, by the name of the op around."""
        op_name = lookup(self.name, self.read_op[reads], -1)
        names, calls = np.unique(op_name, return_counts=True)
        return reads[np.isin(op_name, names[(names >= 0) & (calls >= _MOST * count)])]

    def _all_weights(self, rows: Int, layer_pass: LayerPass) -> Bool:
        """Which work writes as much as all experts' weights, and what has the same forward op.

        Work on rows may be as large, but not of one size in all iterations that is a multiple of a weight's.
        """
        work, count = self.work, iterations(layer_pass)
        size, index, times = np.unique(self.written[rows], return_inverse=True, return_counts=True)
        is_multiple = np.zeros(len(size), dtype=bool)
        for weight in {gemm.depth * gemm.columns * layer_pass.itemsize for gemm in layer_pass.gemms}:
            is_multiple |= (size % weight == 0) & (size >= count * weight)
        large = (is_multiple & (times >= _MOST * count))[index.ravel()] & ~self.is_gemm[rows]
        forward = work.forward[rows]
        result: Bool = large | ((forward >= 0) & np.isin(forward, forward[large]))
        return result

    def _last_calls(self, rows: Int, calls: int) -> Bool:
        """Which work belongs to the last `calls` calls."""
        op = self.work.op[rows]
        if (op < 0).any():
            return np.arange(len(rows)) >= len(rows) - calls
        _, first = np.unique(op[::-1], return_index=True)
        return np.isin(op, op[::-1][np.sort(first)[:calls]])

    def _in_one_iteration(self, rows: Int, keep: Bool) -> Float:
        """Durations of the kept work if it does all the work, in proportion to its measured ones."""
        total = 0.0
        kernels = rows_by_code(self.work.name[rows])
        for same in kernels.values():
            dur = self.work.dur[rows[same]].astype(float)
            calls_left = keep[same].sum() or min(keep.sum(), len(same)) / max(len(kernels), 1)
            total += dur.sum() - max(len(same) - calls_left, 0) * self._fixed_ns(self.moved[rows[same]], dur)
        own = self.work.dur[rows[keep]].astype(float)
        kept_ns: Float = total * own / max(own.sum(), 1)
        return kept_ns

    def _fixed_ns(self, moved: Int, dur: Float) -> float:
        """Ns that a call takes however little it moves."""
        least = float(dur.min())
        if (moved < 0).any():
            return least
        per_byte = 1e9 / self.bytes_per_s if self.bytes_per_s else 0.0
        spread = moved - moved.mean()
        if (spread != 0).any():
            per_byte = max(per_byte, float((spread * dur).sum() / (spread * spread).sum()))
        return float(np.clip(dur.mean() - per_byte * moved.mean(), 0.0, least))


def _outermost(trace: Trace, op: Int) -> Int:
    """The outermost op around each of these, -1 for none."""
    around, parent = trace.once(enclosing_op), trace.arrays.parent
    while ((outer := lookup(around, lookup(parent, op, -1), -1)) >= 0).any():
        op = np.where(outer >= 0, outer, op)
    return op
