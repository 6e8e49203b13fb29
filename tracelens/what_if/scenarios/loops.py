"""Loops over experts: which work, calls and reads of the host each of their turns repeats.

Experts computed one by one repeat a sequence of ops, one turn an expert. What of it one turn over all rows
would need is found by counting: of the ops of one name (and one op of the forward pass behind them) among a
pass's experts, as many as there are turns or more are the loop's, and one in as many stays.

- Work that moves or computes the rows takes what it took together, less the fixed cost of the calls that go.
  That cost is where a line through the times over the bytes begins; where all move the same it is what is
  above the bandwidth of the memory.
- Reads of sizes by the host, and the ops around them, go altogether.
- Work of the size of all experts' weights that each turn repeats goes altogether as well: that is how
  autograd puts together the gradients of views of one parameter, which a grouped product writes at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.analysis.moe import EXPERTS, PERMUTATION, PHASES, LayerPass, Regions, blocking, regions
from tracelens.analysis.roofline import Costing
from tracelens.arrays import Bool, Float, Int, lookup
from tracelens.trace import Trace, enclosing_op, rows_by_code
from tracelens.what_if.scenarios.devices import counted

_LOOP = 4
"""So many products with weights of one size in one pass are a loop over experts."""
_MOST = 0.75
"""An op that so many of the turns have is part of the loop: experts without rows may be left out."""
_PRODUCTS = ("gemm", "grouped_gemm")


class Loop(NamedTuple):
    """One pass, forward or backward, through the experts of one layer.

    Attributes:
        layer_pass: what was computed.
        phase: code into PHASES.
        products: positions in the trace's work of the experts' products that stay.
        gone: positions of what is not there any more.
        stays: positions of other work of the loop that stays, with `ns`.
        ns: duration of each of those with the rows of all turns, ns.
        calls: event rows of the calls by which the host waits in the loop.
    """

    layer_pass: LayerPass
    phase: int
    products: Int
    gone: Int
    stays: Int
    ns: Float
    calls: Int


def turns(layer_pass: LayerPass) -> int:
    """Number of experts that a pass computes one by one, 0 where it does not."""
    if layer_pass.grouped or not layer_pass.gemms or min(one.rows for one in layer_pass.gemms) < 0:
        return 0
    sizes: dict[tuple[int, int], int] = {}
    for one in layer_pass.gemms:
        sizes[one.depth, one.columns] = sizes.get((one.depth, one.columns), 0) + 1
    many = [count for count in sizes.values() if count >= _LOOP]
    return min(many, default=0)


def loops(trace: Trace, bytes_per_s: float) -> list[Loop]:
    """The loops over experts of one rank.

    Args:
        trace: of the rank.
        bytes_per_s: bandwidth of its memory, 0 where it is not known.
    """
    found = trace.once(regions)
    counts = np.array([turns(layer_pass) for layer_pass in found.passes], dtype=np.int64)
    inside = np.flatnonzero((found.layer_pass >= 0) & np.isin(found.stage, (EXPERTS, PERMUTATION)))
    inside = inside[counts[found.layer_pass[inside]] > 0]
    if not len(inside):
        return []
    cell = found.layer_pass[inside] * len(PHASES) + found.phase[inside]
    order = np.lexsort((_asked(trace)[inside], cell))
    inside, cell = inside[order], cell[order]
    reader = _Reader(trace, found, bytes_per_s)
    return [
        reader.loop(int(cell[rows[0]]) // len(PHASES), int(cell[rows[0]]) % len(PHASES), inside[rows])
        for rows in np.split(np.arange(len(cell)), np.flatnonzero(np.diff(cell)) + 1)
    ]


def _asked(trace: Trace) -> Int:
    """When the host asked for each piece of work, ns."""
    work = trace.work
    return lookup(trace.arrays.start, work.launch_call, work.start)


class _Reader:
    """Reads the loops of one rank."""

    def __init__(self, trace: Trace, found: Regions, bytes_per_s: float) -> None:
        self.trace, self.found, self.bytes_per_s = trace, found, bytes_per_s
        self.work = trace.work
        self.dur = trace.work.dur
        self.reads = trace.once(blocking)
        cell = np.where(
            self.reads.layer_pass >= 0, self.reads.layer_pass * len(PHASES) + self.reads.phase, -1
        )
        self.reads_of = rows_by_code(cell)
        self.read_op = trace.once(enclosing_op)[self.reads.event]
        self.moved, self.written = _bytes(trace.once(counted))
        kinds = [place for place, name in enumerate(self.work.categories) if name in _PRODUCTS]
        self.multiplies = np.isin(self.work.category, kinds)

    def loop(self, layer_pass: int, phase: int, rows: Int) -> Loop:
        """The loop of one pass and phase, from its work among the experts in order of launch."""
        one, work = self.found.passes[layer_pass], self.work
        count = turns(one)
        reads = self.reads_of.get(layer_pass * len(PHASES) + phase, np.empty(0, dtype=np.int64))
        asked_for = self._of_loop(self.reads.event[reads], self.read_op[reads], count)
        whole = self._whole(rows, one)
        products, gone, stays, ns = [], [rows[whole]], [], []
        rows = rows[~whole]
        name = self.trace.arrays.name
        keys = np.stack([_named(name, work.op[rows]), _named(name, work.forward[rows])], axis=1)
        _, group = np.unique(keys, axis=0, return_inverse=True)
        group = group.ravel()
        for number in range(int(group.max(initial=-1)) + 1):
            mine = rows[group == number]
            calls = len(np.unique(work.op[mine])) if (work.op[mine] >= 0).all() else len(mine)
            if calls < _MOST * count:
                continue
            keep = self._last(mine, max(round(calls / count), 1))
            if np.isin(work.op[mine], asked_for.op).any():
                gone.append(mine)
            elif self.multiplies[mine].any():
                products.append(mine[keep])
                gone.append(mine[~keep])
            else:
                gone.append(mine[~keep])
                stays.append(mine[keep])
                ns.append(self._together(mine, keep))
        took = np.concatenate(ns) if ns else np.empty(0)
        return Loop(one, phase, _join(products), _join(gone), _join(stays), took, asked_for.calls)

    def _of_loop(self, calls: Int, op: Int, count: int) -> _Reads:
        """Of the blocking calls of a pass those that each turn repeats, by the name of the op around."""
        named = _named(self.trace.arrays.name, op)
        chosen = np.zeros(len(calls), dtype=bool)
        for code in np.unique(named[named >= 0]).tolist():
            mine = named == code
            if mine.sum() >= _MOST * count:
                chosen |= mine
        return _Reads(calls[chosen], np.unique(op[chosen]))

    def _whole(self, rows: Int, one: LayerPass) -> Bool:
        """Which work writes as much as all experts' weights have, and what goes with it by its forward op.

        Work on rows may be as large, but not of one size in all turns that is a multiple of a weight's.
        """
        work, count = self.work, turns(one)
        size, place, times = np.unique(self.written[rows], return_inverse=True, return_counts=True)
        whole = np.zeros(len(size), dtype=bool)
        for weight in {part.depth * part.columns * one.itemsize for part in one.gemms}:
            whole |= (size % weight == 0) & (size >= count * weight)
        large = (whole & (times >= _MOST * count))[place.ravel()] & ~self.multiplies[rows]
        forward = work.forward[rows]
        found: Bool = large | ((forward >= 0) & np.isin(forward, forward[large]))
        return found

    def _last(self, mine: Int, calls: int) -> Bool:
        """The work of the last so many calls."""
        op = self.work.op[mine]
        if (op < 0).any():
            return np.arange(len(mine)) >= len(mine) - calls
        _, first = np.unique(op[::-1], return_index=True)
        return np.isin(op, op[::-1][np.sort(first)[:calls]])

    def _together(self, mine: Int, keep: Bool) -> Float:
        """Durations of what is kept if it does all that was done, in the proportion of what it took."""
        total = 0.0
        names = self.work.name[mine]
        for name in np.unique(names).tolist():
            one = names == name
            dur = self.dur[mine[one]].astype(float)
            left = (keep & one).sum() or min(keep.sum(), one.sum()) / max(len(np.unique(names)), 1)
            total += dur.sum() - max(one.sum() - left, 0) * self._fixed(self.moved[mine[one]], dur)
        own = self.dur[mine[keep]].astype(float)
        shares: Float = total * own / max(own.sum(), 1)
        return shares

    def _fixed(self, moved: Int, dur: Float) -> float:
        """Ns that a call takes however little it moves."""
        least = float(dur.min())
        if (moved < 0).any():
            return least
        per_byte = 1e9 / self.bytes_per_s if self.bytes_per_s else 0.0
        spread = moved - moved.mean()
        if (spread != 0).any():
            per_byte = max(per_byte, float((spread * dur).sum() / (spread * spread).sum()))
        return float(np.clip(dur.mean() - per_byte * moved.mean(), 0.0, least))


class _Reads(NamedTuple):
    """Blocking calls of a loop: their event rows, and those of the ops around them."""

    calls: Int
    op: Int


def _bytes(found: Costing) -> tuple[Int, Int]:
    """Bytes that the call of each piece of work moves, and those that it writes; -1 where not counted."""
    moved = np.array([one.cost.read_bytes + one.cost.write_bytes for one in found.items] + [-1])
    written = np.array([one.cost.write_bytes for one in found.items] + [-1])
    return moved[found.item], written[found.item]


def _named(name: Int, rows: Int) -> Int:
    """Code of the name of each event, -1 for none."""
    return lookup(name, rows, -1)


def _join(parts: list[Int]) -> Int:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
