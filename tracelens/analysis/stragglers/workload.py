"""More work, or the same work more slowly: the computation of one rank against that of others."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.stragglers.segments import Key, Segments
from tracelens.arrays import Float, Int
from tracelens.table import codes, sums

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
        place: dict[Key, int] = {}
        self._code = {
            rank: np.array([place.setdefault(key, len(place)) for key in part.keys], dtype=np.int64)
            for rank, part in parts.items()
        }
        self._keys = list(place)
        self._usual, self._slowness = self._compare_all()

    def excess(self, ranges: Sequence[tuple[int, int, int]], more: float) -> Excess:
        """What the first of several ranks computed more than the others.

        Args:
            ranges: (rank, first piece, last piece), the one in question first.
            more: ns that it computed longer than they, to be divided among the reasons.
        """
        mine, *theirs = (self._table(rank, first, last) for rank, first, last in ranges)
        whole = self._usual[ranges[0][0]]
        usual = self._means(mine.key, theirs)
        # What they did not run at these shapes now, they may have run at another time.
        usual = np.where(usual > 0, usual, whole.ns[np.searchsorted(whole.key, mine.key)])
        known = usual > 0
        mean = mine.ns / np.maximum(mine.calls, _LEAST)
        slower = np.where(known, (mean - usual) * mine.calls, 0.0)
        # What the others did not run at these shapes: as much slower as this GPU is at what they did.
        factor = self._slowness[ranges[0][0]]
        rest = 1 - 1 / factor if factor >= _SLOWER else 0.0
        slow = float(slower.sum() + mine.ns[~known].sum() * rest)
        # Where one makes up for the other, the larger one did all that was left.
        slow = min(max(slow, 0.0), more)
        said = f"{duration(more)} more computation than the median of the others"
        total = float(mine.ns.sum()) - more
        nearest = min(theirs, key=lambda table: abs(float(table.ns.sum()) - total))
        load_text = self._load_text(mine, nearest)
        slow_text = self._slow_text(mine, mean, usual, slower, factor)
        alike = self._alike(mine, nearest)
        return Excess(more - slow, slow, f"{said}: {load_text}", f"{said}: {slow_text}", alike)

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
            at = np.minimum(np.searchsorted(key, table.key), len(key) - 1)
            same = key[at] == table.key
            values[row, at[same]] = (table.ns / np.maximum(table.calls, _LEAST))[same]
        values.sort(axis=0)
        count = np.isfinite(values).sum(axis=0)
        columns = np.flatnonzero(count)
        count = count[columns]
        result = np.zeros(len(key))
        result[columns] = (values[(count - 1) // 2, columns] + values[count // 2, columns]) / 2
        return result

    def _compare_all(self) -> tuple[dict[int, _Usual], dict[int, float]]:
        """In the whole recording: what others take for the work of each rank, and how much longer it does."""
        whole = {rank: self._table(rank, 0, len(part.time)) for rank, part in self._parts.items()}
        found, slowness = {}, {}
        told = np.array([bool(key.arguments) for key in self._keys], dtype=bool)
        for (rank, mine), usual in zip(whole.items(), _without_own(list(whole.values())), strict=True):
            found[rank] = _Usual(mine.key, usual)
            # The same arguments are the same work; the same name and grid need not be, since persistent
            # kernels have one grid for all sizes.
            known = (usual > 0) & told[mine.key]
            expected = float((usual * mine.calls)[known].sum())
            slowness[rank] = float(mine.ns[known].sum()) / expected if expected > 0 else 1.0
        return found, slowness

    def _load_text(self, mine: _Table, theirs: _Table) -> str:
        """The op with the most additional time, and in what its calls differ."""
        own, other = self._by_op(mine), self._by_op(theirs)
        if not own:
            return "of kernels that are not told apart"
        op = max(own, key=lambda name: own[name] - other.get(name, 0))
        took = f"{op} ({duration(own[op])} against {duration(other.get(op, 0))})"
        if op not in other:
            return f"{took}, which they do not run here"
        (rows, calls, largest), (rows2, calls2, largest2) = (
            self._sizes(table, op) for table in (mine, theirs)
        )
        if min(rows, rows2) > 0 and rows != rows2:
            return f"{rows:,} rows against {rows2:,} in {took}"
        if calls != calls2:
            return f"{took}, {_calls(calls)} against {calls2:,}"
        return f"{took}, {largest} against {largest2}" if largest != largest2 else took

    def _alike(self, mine: _Table, theirs: _Table) -> float:
        own, other = self._by_op(mine), self._by_op(theirs)
        same = sum(ns for op, ns in own.items() if other.get(op, 0) >= _COMPARABLE * ns)
        return same / max(sum(own.values()), 1)

    def _by_op(self, table: _Table) -> dict[str, int]:
        found: dict[str, int] = {}
        for key, ns in zip(table.key.tolist(), table.ns.tolist(), strict=True):
            name = self._name(key)
            found[name] = found.get(name, 0) + ns
        return found

    def _sizes(self, table: _Table, op: str) -> tuple[int, int, str]:
        """Rows that go into an op (of the first tensor), its calls, and the arguments with most time."""
        places = [place for place, key in enumerate(table.key.tolist()) if self._name(key) == op]
        keys = [self._keys[table.key[place]] for place in places]
        calls = table.calls[places]
        rows = [_rows(key.arguments) for key in keys]
        largest = keys[int(np.argmax(table.ns[places]))]
        total = round(sum(one * number for one, number in zip(rows, calls.tolist(), strict=True)))
        return total, round(float(calls.sum())), _short(largest.arguments or largest.kernel)

    def _name(self, key: int) -> str:
        found = self._keys[key]
        return found.op or _short(found.kernel.partition(" x ")[0])

    def _slow_text(self, mine: _Table, mean: Float, usual: Float, slower: Float, factor: float) -> str:
        """The calls that took most time beyond the others' equal calls."""
        device = "processor" if any(part.on_host for part in self._parts.values()) else "GPU"
        whole = f"its {device} takes {factor:.2f} times as long for equal work in the whole recording"
        if not len(slower) or slower.max() <= 0:
            return whole
        place = int(np.argmax(slower))
        key = self._keys[mine.key[place]]
        text = (
            f"{self._name(int(mine.key[place]))} {_short(key.arguments)}".rstrip()
            + f" {duration(mean[place])} a call against {duration(usual[place])}"
            + f" ({_calls(mine.calls[place])})"
        )
        if not key.arguments and not key.kernel.endswith("blocks"):
            text += ", its arguments not recorded: it may have been larger"
        return f"{text}; {whole}" if factor >= _SLOWER else text


def _rows(arguments: str) -> int:
    """First dimension of the first tensor, 0 where there is none."""
    found = _FIRST.search(arguments)
    return int(found[1]) if found else 0


def _calls(number: float) -> str:
    count = max(round(number), 1)
    return f"{count:,} calls" if count > 1 else "1 call"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def duration(ns: float) -> str:
    """A duration for a sentence, three digits.

    >>> duration(1_840_000)
    '1.84 ms'
    """
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(ns) >= size:
            value = ns / size
            return f"{value:.{max(2 - len(str(int(abs(value)))) + 1, 0)}f} {unit}"
    return f"{ns:.0f} ns"


def _without_own(tables: Sequence[_Table]) -> list[Float]:
    """By table, time of a call of each of its keys: the median of the other tables that have it, else 0."""
    key = np.concatenate([table.key for table in tables])
    mean = np.concatenate([table.ns / np.maximum(table.calls, _LEAST) for table in tables])
    order = np.lexsort((mean, key))
    group = key[order]
    first, last = np.searchsorted(group, group), np.searchsorted(group, group, side="right")
    own, others = np.arange(len(order)) - first, last - first - 1
    middle = [at + (at >= own) for at in ((others - 1) // 2, others // 2)]
    low, high = (mean[order][np.minimum(first + at, len(order) - 1)] for at in middle)
    usual = np.zeros(len(key))
    usual[order] = np.where(others > 0, (low + high) / 2, 0.0)
    return np.split(usual, np.cumsum([len(table.key) for table in tables])[:-1])
