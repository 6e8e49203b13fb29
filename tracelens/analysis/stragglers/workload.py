"""More work, or the same work more slowly: the computation of one rank against that of others."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.stragglers.families import families
from tracelens.analysis.stragglers.medians import weighted_median
from tracelens.analysis.stragglers.segments import Key, Segments
from tracelens.arrays import Bool, Float, Int
from tracelens.table import codes, sums
from tracelens.units import duration

# A GPU that is slower than this at equal work over the whole recording is slow at unequal work as well.
_SLOWER = 1.05
_FIRST = re.compile(r"\[(\d+)")
_LEAST = 1e-9
_COMPARABLE = 0.1
# Work of its own that takes this share of what its other kernels lose slows them down.
_BESIDE = 0.3
# By this much work at the borders of the recording may be cut off on one rank and not on another.
_MORE = 1.02
_EXPERTS = re.compile(r"grouped_mm|grouped_gemm|moe|expert|permute", re.IGNORECASE)
_SHOWN = 80


class Excess(NamedTuple):
    """Why one rank computed longer than the others.

    Attributes:
        ns: because of more rows in the same ops (token_load), more or other work (extra_work), or the same
            work being slower (slow_kernels).
        text: evidence for each.
        alike: share of its time in ops in which the others spent a comparable time.
    """

    ns: Mapping[str, float]
    text: Mapping[str, str]
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
        routed: ranks that were sent more tokens than the others; None where no exchange of tokens shows it.
        sole: ranks that were sent all tokens.
    """

    def __init__(
        self, parts: Mapping[int, Segments], routed: Collection[int] | None, sole: Collection[int]
    ) -> None:
        self._parts, self._routed, self._sole = parts, routed, sole
        code: dict[Key, int] = {}
        self._code = {
            rank: np.array([code.setdefault(key, len(code)) for key in part.keys], dtype=np.int64)
            for rank, part in parts.items()
        }
        self._keys = list(code)
        self._family = families(self._keys)
        self._tables = {rank: self._table(rank, 0, len(part.time)) for rank, part in parts.items()}
        self._varies = np.bincount(self._family, minlength=len(self._keys)) > 1
        self._extra_calls = self._compare_calls()
        self._usual, self._slowness = self._compare_all()
        self._beside = {rank: self._largest_beside(rank) for rank in parts}

    def excess(self, ranges: Sequence[tuple[int, int, int]], more: float, weight: Float) -> Excess:
        """What the first of several ranks computed more than the others.

        Args:
            ranges: (rank, first piece, last piece), the one in question first.
            more: ns that it computed longer than they, to be divided among the reasons.
            weight: of each of the others.
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
        usual_ns = np.where(
            known, np.minimum(typical * late_rank.calls, late_rank.ns), late_rank.ns * (1 - rest)
        )
        at_usual_speed = late_rank._replace(ns=np.round(usual_ns).astype(np.int64))
        other, rows = self._other_work(ranges[0][0], at_usual_speed, other_ranks, weight)
        extra = float(other.ns.sum())
        # Of more time than there is to explain, each explains its share.
        share = min((more - slow) / max(extra + rows, 1.0), 1.0)
        ns = {"token_load": rows * share, "extra_work": extra * share}
        text = {"token_load": self._load_text(late_rank, nearest)}
        text["extra_work"] = self._other_text(ranges[0][0], other) or text["token_load"]
        text["slow_kernels"] = self._slow_text(late_rank, mean, typical, slower, factor)
        # Kernels are slower beside work that no other rank has.
        if slow > extra and (key := self._beside.get(ranges[0][0], -1)) >= 0:
            ns["extra_work"] += slow
            slow = 0.0
            text["extra_work"] = f"{text['slow_kernels']}; in addition {self._extra(ranges[0][0], key)}"
        ns["slow_kernels"] = slow
        alike = self._alike(late_rank, nearest)
        return Excess(ns, {cause: f"{measured}: {words}" for cause, words in text.items()}, alike)

    def _other_work(
        self, rank: int, table: _Table, others: Sequence[_Table], weight: Float
    ) -> tuple[_Table, float]:
        """The work that a rank has beyond the others: what is more or other, and ns of more rows in the same.

        Args:
            rank: of the table.
            table: of the stretch in question, with what its calls take on the other ranks.
            others: of the other ranks.
            weight: of each of them.
        """
        family, (codes_of_family,) = codes(self._family[table.key])
        calls, ns = np.zeros((2, len(codes_of_family)))
        np.add.at(calls, family, table.calls)
        np.add.at(ns, family, table.ns)
        usual = np.zeros((len(others), 2, len(codes_of_family)))
        for row, other in enumerate(others):
            position = np.minimum(
                np.searchsorted(codes_of_family, self._family[other.key]), len(codes_of_family) - 1
            )
            same = codes_of_family[position] == self._family[other.key]
            np.add.at(usual[row, 0], position[same], other.calls[same])
            np.add.at(usual[row, 1], position[same], other.ns[same])
        usual_calls, usual_ns = (weighted_median(usual[:, part], weight) for part in (0, 1))
        more = np.maximum(ns - usual_ns, 0)
        more_calls = np.maximum(calls - usual_calls, 0) * ns / np.maximum(calls, _LEAST)
        varies = self._varies[codes_of_family]
        # How often experts are called depends on the tokens, too.
        by_tokens = varies & (usual_calls > 0) & self._is_routed(rank, codes_of_family)
        # Where the others' experts get no tokens at all, they do not run.
        by_tokens |= (usual_calls == 0) & (rank in self._sole)
        # What all ranks call as often, they may call elsewhere.
        is_extra = self._extra_calls[rank][codes_of_family] & ~by_tokens
        extra = np.where(is_extra, np.minimum(np.where(usual_calls > 0, more_calls, ns), more), 0)
        extra = np.where(varies & (usual_calls > 0) & ~by_tokens, more, extra)
        in_family = extra[family] * table.ns / np.maximum(ns[family], 1)
        other = _Table(table.key, table.calls, np.round(in_family).astype(np.int64))
        return other, float(np.where(usual_calls > 0, more, ns)[by_tokens].sum())

    def _is_routed(self, rank: int, family: Int) -> Bool:
        """Whether more rows in these families are more tokens of the rank's experts."""
        if self._routed is not None:
            return np.full(len(family), rank in self._routed)
        experts = {
            int(code)
            for code, key in zip(self._family, self._keys, strict=True)
            if _EXPERTS.search(f"{key.op} {key.kernel}")
        }
        return np.isin(family, list(experts))

    def _other_text(self, rank: int, other: _Table) -> str:
        """The work with most of the time that the other ranks do not have, "" where there is none."""
        if not len(other.key) or other.ns.max() <= 0:
            return ""
        row = int(np.argmax(other.ns))
        return f"{self._extra(rank, int(other.key[row]))} ({duration(float(other.ns[row]))} here)"

    def _extra(self, rank: int, key: int) -> str:
        """How many more calls of a key a rank has, and where."""
        counts = sorted(self._calls(number, key) for number in self._parts if number != rank)
        more = self._calls(rank, key) - counts[len(counts) // 2]
        extra = round(more / max(self._parts[rank].steps, 1))
        name = f"{self._name(key)} {_short(self._keys[key].arguments)}".rstrip()
        only = np.array([key])
        alone = f" on stream {self._stream(rank, only)[0]}, which no other rank uses"
        where = alone if self._on_own_stream(rank, only)[0] else ""
        return f"{extra:,} extra {name} per step{where}" if extra > 0 else f"{name}{where}"

    def _stream(self, rank: int, key: Int) -> Int:
        """The stream of most calls of each key on a rank, -1 for none."""
        stream = np.full(len(self._keys), -1, dtype=np.int64)
        stream[self._code[rank]] = self._parts[rank].stream
        return stream[key]

    def _on_own_stream(self, rank: int, key: Int) -> Bool:
        """Whether these keys run on a stream that no other rank computes on."""
        # Of a host that works itself they are threads.
        if self._parts[rank].cpu_only:
            return np.zeros(len(key), dtype=bool)
        streams = [part.stream for number, part in self._parts.items() if number != rank]
        stream = self._stream(rank, key)
        return (stream >= 0) & ~np.isin(stream, np.concatenate([*streams, np.empty(0, dtype=np.int64)]))

    def _calls(self, rank: int, key: int) -> int:
        """Calls of a key in the whole recording."""
        return int(self._parts[rank].key_calls[self._code[rank] == key].sum())

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

    def _largest_beside(self, rank: int) -> int:
        """The key with most of the work that a rank has on a stream of its own, -1 where it slows nothing.

        It slows the other kernels down where it takes a good part of what these lose.
        """
        part, table = self._parts[rank], self._tables[rank]
        keys = self._code[rank]
        own = self._on_own_stream(rank, keys) & self._extra_calls[rank][self._family[keys]]
        usual = self._usual[rank].ns
        lost = float(np.where(usual > 0, table.ns - usual * table.calls, 0).sum())
        if not own.any() or float(part.key_ns[own].sum()) < _BESIDE * lost:
            return -1
        return int(keys[own][np.argmax(part.key_ns[own])])

    def _compare_calls(self) -> dict[int, Bool]:
        """In the whole recording: which families each rank calls more often than the others in the median."""
        ranks = list(self._parts)
        calls = np.zeros((len(ranks), len(self._keys)))
        for row, rank in enumerate(ranks):
            np.add.at(calls[row], self._family[self._code[rank]], self._parts[rank].key_calls)
        result = {}
        for row, rank in enumerate(ranks):
            others = np.delete(calls, row, axis=0)
            usual = np.median(others, axis=0) if len(others) else calls[row]
            result[rank] = calls[row] > usual * _MORE + 0.5
        return result

    def _compare_all(self) -> tuple[dict[int, _Usual], dict[int, float]]:
        """In the whole recording: what others take for the work of each rank, and how much longer it does."""
        tables = self._tables
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
            return f"{compared}, which the others do not run at this point"
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
            + f" {duration(mean[worst])} per call against {duration(typical[worst])}"
            + f" ({_calls(table.calls[worst])})"
        )
        if not key.arguments and not key.kernel.endswith("blocks"):
            text += ", arguments not recorded: the call may have been larger"
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
