"""More work, or the same work more slowly: the computation of one rank against that of others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.stragglers.segments import Key, Segments
from tracelens.arrays import Float, Int
from tracelens.table import codes, sums
from tracelens.units import duration

# A GPU that is slower than this at equal work over the whole recording is slow at unequal work as well.
_SLOWER = 1.05
_FIRST = re.compile(r"\[(\d+)")
_LEAST = 1e-9
_COMPARABLE = 0.1
_SHOWN = 80


class Excess(NamedTuple):
    """Why one rank computed longer than the others.

    Attributes:
        load: ns because there was more to compute.
        slow: ns because the same took longer.
        load_text: evidence for the one.
        slow_text: evidence for the other.
        alike: share of its time in ops in which the others spent a comparable time.
    """

    load: float
    slow: float
    load_text: str
    slow_text: str
    alike: float


class _Table(NamedTuple):
    """Work of one stretch by key: codes, ascending, with calls and ns of each."""

    key: Int
    calls: Float
    ns: Int


class _Usual(NamedTuple):
    """Time of a call by key, ascending: the median of the other ranks, 0 where none has it."""

    key: Int
    ns: Float


class Workloads:
    """The work of all ranks under common keys.

    Args:
        parts: by rank.
    """

    def __init__(self, parts: Mapping[int, Segments]) -> None:
        self._parts = parts
        code: dict[Key, int] = {}
        self._code = {
            rank: np.array([code.setdefault(key, len(code)) for key in part.keys], dtype=np.int64)
            for rank, part in parts.items()
        }
        self._keys = list(code)
        self._usual, self._slowness = self._compare_all()

    def excess(self, ranges: Sequence[tuple[int, int, int]], more: float) -> Excess:
        """What the first of several ranks computed more than the others.

        Args:
            ranges: (rank, first piece, last piece), the one in question first.
            more: ns that it computed longer than they, to be divided among the reasons.
        """
        late_rank, *other_ranks = (self._table(rank, first, last) for rank, first, last in ranges)
        overall = self._usual[ranges[0][0]]
        typical = self._means(late_rank.key, other_ranks)
        # What they did not run at these shapes now, they may have run at another time.
        typical = np.where(typical > 0, typical, overall.ns[np.searchsorted(overall.key, late_rank.key)])
        known = typical > 0
        mean = late_rank.ns / np.maximum(late_rank.calls, _LEAST)
        slower = np.where(known, (mean - typical) * late_rank.calls, 0.0)
        # What the others did not run at these shapes: as much slower as this GPU is at what they did.
        factor = self._slowness[ranges[0][0]]
        rest = 1 - 1 / factor if factor >= _SLOWER else 0.0
        slow = float(slower.sum() + late_rank.ns[~known].sum() * rest)
        # Where one makes up for the other, the larger one did all that was left.
        slow = min(max(slow, 0.0), more)
        measured = f"{duration(more)} more computation than the median of the others"
        total = float(late_rank.ns.sum()) - more
        nearest = min(other_ranks, key=lambda table: abs(float(table.ns.sum()) - total))
        load_text = self._load_text(late_rank, nearest)
        slow_text = self._slow_text(late_rank, mean, typical, slower, factor)
        alike = self._alike(late_rank, nearest)
        return Excess(more - slow, slow, f"{measured}: {load_text}", f"{measured}: {slow_text}", alike)

    def _table(self, rank: int, first: int, last: int) -> _Table:
        part = self._parts[rank]
        low, high = np.searchsorted(part.piece, (first, last))
        group, (key,) = codes(self._code[rank][part.key[low:high]])
        calls = np.zeros(len(key))
        np.add.at(calls, group, part.calls[low:high])
        return _Table(key, calls, sums(group, part.ns[low:high], len(key)))

    def _means(self, key: Int, tables: Sequence[_Table]) -> Float:
        """Time of a call of each key: the median of the ranks that have it, 0 where none has."""
        if not len(key):
            return np.empty(0)
        values = np.full((len(tables), len(key)), np.inf)
        for row, table in enumerate(tables):
            position = np.minimum(np.searchsorted(key, table.key), len(key) - 1)
            same = key[position] == table.key
            values[row, position[same]] = (table.ns / np.maximum(table.calls, _LEAST))[same]
        values.sort(axis=0)
        count = np.isfinite(values).sum(axis=0)
        columns = np.flatnonzero(count)
        count = count[columns]
        result = np.zeros(len(key))
        result[columns] = (values[(count - 1) // 2, columns] + values[count // 2, columns]) / 2
        return result

    def _compare_all(self) -> tuple[dict[int, _Usual], dict[int, float]]:
        """In the whole recording: what others take for the work of each rank, and how much longer it does."""
        tables = {rank: self._table(rank, 0, len(part.time)) for rank, part in self._parts.items()}
        usual_of, slowness = {}, {}
        has_arguments = np.array([bool(key.arguments) for key in self._keys], dtype=bool)
        for (rank, table), typical in zip(tables.items(), _without_own(list(tables.values())), strict=True):
            usual_of[rank] = _Usual(table.key, typical)
            # The same arguments are the same work; the same name and grid need not be, since persistent
            # kernels have one grid for all sizes.
            known = (typical > 0) & has_arguments[table.key]
            expected = float((typical * table.calls)[known].sum())
            slowness[rank] = float(table.ns[known].sum()) / expected if expected > 0 else 1.0
        return usual_of, slowness

    def _load_text(self, table: _Table, reference: _Table) -> str:
        """The op with the most additional time, and in what its calls differ."""
        ns_by_op, reference_by_op = self._by_op(table), self._by_op(reference)
        if not ns_by_op:
            return "in kernels without a name"
        op = max(ns_by_op, key=lambda name: ns_by_op[name] - reference_by_op.get(name, 0))
        compared = f"{op} ({duration(ns_by_op[op])} against {duration(reference_by_op.get(op, 0))})"
        if op not in reference_by_op:
            return f"{compared}, which the others do not run here"
        (rows, calls, largest), (reference_rows, reference_calls, reference_largest) = (
            self._sizes(table, op) for table in (table, reference)
        )
        if min(rows, reference_rows) > 0 and rows != reference_rows:
            return f"{rows:,} rows against {reference_rows:,} in {compared}"
        if calls != reference_calls:
            return f"{compared}, {_calls(calls)} against {reference_calls:,}"
        return (
            f"{compared}, {largest} against {reference_largest}" if largest != reference_largest else compared
        )

    def _alike(self, table: _Table, reference: _Table) -> float:
        ns_by_op, reference_by_op = self._by_op(table), self._by_op(reference)
        same = sum(ns for op, ns in ns_by_op.items() if reference_by_op.get(op, 0) >= _COMPARABLE * ns)
        return same / max(sum(ns_by_op.values()), 1)

    def _by_op(self, table: _Table) -> dict[str, int]:
        ns_by_op: dict[str, int] = {}
        for key, ns in zip(table.key.tolist(), table.ns.tolist(), strict=True):
            name = self._name(key)
            ns_by_op[name] = ns_by_op.get(name, 0) + ns
        return ns_by_op

    def _sizes(self, table: _Table, op: str) -> tuple[int, int, str]:
        """Rows that go into an op (of the first tensor), its calls, and the arguments with most time."""
        of_op = [row for row, key in enumerate(table.key.tolist()) if self._name(key) == op]
        keys = [self._keys[table.key[row]] for row in of_op]
        calls = table.calls[of_op]
        rows = [_rows(key.arguments) for key in keys]
        largest = keys[int(np.argmax(table.ns[of_op]))]
        total = round(
            sum(rows_per_call * number for rows_per_call, number in zip(rows, calls.tolist(), strict=True))
        )
        return total, round(float(calls.sum())), _short(largest.arguments or largest.kernel)

    def _name(self, key: int) -> str:
        work = self._keys[key]
        return work.op or _short(work.kernel.partition(" x ")[0])

    def _slow_text(self, table: _Table, mean: Float, typical: Float, slower: Float, factor: float) -> str:
        """The calls that took most time beyond the others' equal calls."""
        device = "CPU" if any(part.cpu_only for part in self._parts.values()) else "GPU"
        overall = f"over the whole recording its {device} takes {factor:.2f}x as long for equal work"
        if not len(slower) or slower.max() <= 0:
            return overall
        worst = int(np.argmax(slower))
        key = self._keys[table.key[worst]]
        text = (
            f"{self._name(int(table.key[worst]))} {_short(key.arguments)}".rstrip()
            + f" {duration(mean[worst])} a call against {duration(typical[worst])}"
            + f" ({_calls(table.calls[worst])})"
        )
        if not key.arguments and not key.kernel.endswith("blocks"):
            text += ", arguments not recorded: it may have been larger"
        return f"{text}; {overall}" if factor >= _SLOWER else text


def _rows(arguments: str) -> int:
    """First dimension of the first tensor, 0 where there is none."""
    dimension = _FIRST.search(arguments)
    return int(dimension[1]) if dimension else 0


def _calls(number: float) -> str:
    count = max(round(number), 1)
    return f"{count:,} calls" if count > 1 else "1 call"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _without_own(tables: Sequence[_Table]) -> list[Float]:
    """By table, time of a call of each of its keys: the median of the other tables that have it, else 0."""
    key = np.concatenate([table.key for table in tables])
    mean = np.concatenate([table.ns / np.maximum(table.calls, _LEAST) for table in tables])
    order = np.lexsort((mean, key))
    group = key[order]
    first, last = np.searchsorted(group, group), np.searchsorted(group, group, side="right")
    rank_among, others_count = np.arange(len(order)) - first, last - first - 1
    middle = [offset + (offset >= rank_among) for offset in ((others_count - 1) // 2, others_count // 2)]
    low, high = (mean[order][np.minimum(first + offset, len(order) - 1)] for offset in middle)
    typical = np.zeros(len(key))
    typical[order] = np.where(others_count > 0, (low + high) / 2, 0.0)
    return np.split(typical, np.cumsum([len(table.key) for table in tables])[:-1])
