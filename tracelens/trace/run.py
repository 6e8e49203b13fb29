"""`Run`: the ranks of one job, and which rank each trace is."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from tracelens.errors import ParseError
from tracelens.table import shortened
from tracelens.trace.names import STEP_MARK
from tracelens.trace.trace import Trace, TraceMeta

_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d{1,9})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(\d+)")
_RANK_BEFORE = re.compile(r"rank[-_. ]?$", re.IGNORECASE)
# Files that differ in such a number are several recordings, not several ranks.
_NO_RANK_BEFORE = re.compile(
    r"(?:steps?|iter|iteration|epoch|cycle|batch|run|take|try|attempt|version|v)[-_. #]?$", re.IGNORECASE
)
# Clocks of hosts may be wrong by a time zone or two.
_TOGETHER_NS = 6 * 3600 * 10**9
_YEAR_2001_NS = 10**18
"""Timestamps beyond count from 1970; a clock that counts from the start of the machine never gets there."""


@dataclass(frozen=True)
class Run:
    """Traces of one job, one a rank, in order of rank."""

    traces: tuple[Trace, ...]

    @property
    def ranks(self) -> list[int]:
        return [trace.meta.rank for trace in self.traces]

    def __repr__(self) -> str:
        ranks = f"{len(self.traces)} {'rank' if len(self.traces) == 1 else 'ranks'}: {_ranges(self.ranks)}"
        steps = sorted({step for trace in self.traces for step in _steps(trace)}, key=_natural)
        step_text = shortened([step.rpartition("#")[2] for step in steps])
        events = sum(len(trace.tables["events"]) for trace in self.traces)
        return f"Run({ranks}; {f'steps {step_text}' if steps else 'no step marks'}; {events:,} events)"


def _steps(trace: Trace) -> list[str]:
    """The steps of which it has a mark, or the one that it is narrowed to."""
    if trace.window is not None:
        return [trace.window.label]
    names = trace.tables["events"].columns["name"].values
    return [name for name in names if STEP_MARK.search(name)]


def _natural(label: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBER.split(label)]


def _ranges(ranks: Sequence[int]) -> str:
    """Ranks in order, as in 0-3, 7."""
    cuts = [index for index, rank in enumerate(ranks) if not index or rank != ranks[index - 1] + 1]
    pieces = [ranks[low:high] for low, high in pairwise([*cuts, len(ranks)])]
    return shortened([f"{piece[0]}-{piece[-1]}" if len(piece) > 1 else str(piece[0]) for piece in pieces])


def make_run(traces: Iterable[Trace], *, partial: bool = False) -> Run:
    """Order traces by rank.

    Args:
        traces: of one job.
        partial: as for `check_ranks`.

    Raises:
        ParseError: as `check_ranks`.
    """
    unranked = list(traces)
    ranks = check_ranks(
        [trace.meta for trace in unranked], [_span(trace) for trace in unranked], partial=partial
    )
    ranked = [
        replace(trace, meta=replace(trace.meta, rank=rank))
        for trace, rank in zip(unranked, ranks, strict=True)
    ]
    return Run(tuple(sorted(ranked, key=lambda trace: trace.meta.rank)))


def check_ranks(
    metas: Sequence[TraceMeta], spans: Sequence[tuple[int, int]], *, partial: bool = False
) -> list[int]:
    """The rank of each trace: what it says, else what its name says, else 0 for a single one.

    Args:
        metas: of the traces of one job.
        spans: first and last time in each, in ns of its clock; last < first where it has no time.
        partial: whether ranks may be missing between the lowest and the highest one.

    Returns:
        the ranks, in the order of `metas`.

    Raises:
        ParseError: the rank of a trace is unknown, two claim one, one between others is missing, or they are
            not of one job; the message names the files.
    """
    if len(metas) > 1:
        _check_same_job(metas)
        _check_same_time(metas, spans)
    ranks = _ranks(metas)
    if len(metas) > 1:
        _check_duplicates(metas, ranks)
        if not partial:
            _check_gaps(metas, ranks)
    return ranks


def named_ranks(paths: Sequence[str]) -> list[int]:
    """The ranks that the names of all files of a job give, -1 for a file whose name gives none."""
    ranks = [_named(path) for path in paths]
    if len(paths) > 1 and set(ranks) == {-1}:
        return _by_difference(paths) or ranks
    return ranks


def _ranks(metas: Sequence[TraceMeta]) -> list[int]:
    ranks = [meta.rank if meta.rank >= 0 else _named(meta.path) for meta in metas]
    if ranks == [-1]:
        return [0]
    if -1 in ranks:
        numbers = _by_difference([meta.path for meta in metas])
        if numbers and all(rank in (-1, number) for rank, number in zip(ranks, numbers, strict=True)):
            return numbers
        raise ParseError(
            metas[ranks.index(-1)].path,
            "neither the trace nor its name says which rank it is; name it rank<N>.json",
        )
    return ranks


def _named(path: str) -> int:
    """The rank in a file name, that of a member before that of its archive; -1 for none."""
    name = Path(path).name
    match = _RANK_IN_NAME.search(name.rpartition("!")[2]) or _RANK_IN_NAME.search(name)
    return int(match[1]) if match else -1


def _by_difference(paths: Sequence[str]) -> list[int] | None:
    """Ranks by the one number in which otherwise equal paths differ (trace_0.json, trace_1.json).

    It must be called rank, or run from 0 up: what begins elsewhere or has holes may be a process id.
    """
    pieces = [_NUMBER.split(path) for path in paths]
    texts = pieces[0][::2]
    if any(piece[::2] != texts for piece in pieces):
        return None
    columns = zip(*(piece[1::2] for piece in pieces), strict=True)
    named = zip(texts, columns, strict=False)  # there is one text more
    differing = [(before, column) for before, column in named if len({*column}) > 1]
    if len(differing) != 1:
        return None
    before, column = differing[0]
    numbers = [int(text) for text in column]
    if _RANK_BEFORE.search(before):
        return numbers
    is_rank = sorted(numbers) == list(range(len(numbers))) and not _NO_RANK_BEFORE.search(before)
    return numbers if is_rank else None


def _span(trace: Trace) -> tuple[int, int]:
    """First and last time; (0, -1) where nothing has one."""
    start = trace.tables["events"].array("ts_ns")
    if not len(start):
        return 0, -1
    return int(start.min()), int((start + trace.tables["events"].array("dur_ns")).max())


def _check_same_job(metas: Sequence[TraceMeta]) -> None:
    sized = [meta for meta in metas if meta.world_size > 0]
    for meta in sized:
        if meta.world_size != sized[0].world_size:
            text = f"has world size {meta.world_size}, but {sized[0].path} has {sized[0].world_size}"
            raise ParseError(meta.path, f"{text}; pass the traces of one job")


def _check_same_time(metas: Sequence[TraceMeta], spans: Sequence[tuple[int, int]]) -> None:
    """Refuse traces recorded far apart, where their clocks can be compared."""
    times = []
    for meta, (first, last) in zip(metas, spans, strict=True):
        base = 0 if first >= _YEAR_2001_NS else meta.epoch_ns
        if first <= last and first + base >= _YEAR_2001_NS:
            times.append((first + base, last + base, meta.path))
    if not times:
        return
    _, end, early = min(times, key=lambda time: time[1])
    start, _, late = max(times, key=lambda time: time[0])
    if start - end > _TOGETHER_NS:
        text = f"begins {_duration(start - end)} after {early} ends"
        compare = f"or compare two: tracelens diff {early} {late}"
        raise ParseError(late, f"{text}; pass the traces of one recording, {compare}")


def _check_duplicates(metas: Sequence[TraceMeta], ranks: Sequence[int]) -> None:
    claims: dict[int, list[TraceMeta]] = {}
    for rank, meta in zip(ranks, metas, strict=True):
        claims.setdefault(rank, []).append(meta)
    for rank, (first, *duplicates) in sorted(claims.items(), key=lambda claim: claim[0]):
        if duplicates:
            _check_folder(rank, [meta.path for meta in (first, *duplicates)])
            *between, last = duplicates
            same = [first.path, *(meta.path for meta in between)]
            text = f"so is {same[0]}" if len(same) == 1 else f"so are {_few(same)}"
            source = "" if last.rank >= 0 else " by its name"
            compare = f"or compare two: tracelens diff {first.path} {duplicates[0].path}"
            raise ParseError(last.path, f"is rank {rank}{source}, and {text}; pass one of them, {compare}")


def _check_folder(rank: int, paths: Sequence[str]) -> None:
    """Offer the recordings of a folder by their names."""
    folders = {os.path.dirname(path) for path in paths}
    if len(paths) > 2 and len(folders) == 1:
        names = _few([os.path.basename(path) for path in paths])
        compare = f"pass one of them, or compare two: tracelens diff {paths[0]} {paths[1]}"
        text = f"holds {len(paths)} recordings of rank {rank}: {names}; {compare}"
        raise ParseError(folders.pop() or os.curdir, text)


def _check_gaps(metas: Sequence[TraceMeta], ranks: Sequence[int]) -> None:
    order = sorted(zip(ranks, (meta.path for meta in metas), strict=True))
    gaps = [(below, above) for below, above in pairwise(order) if above[0] - below[0] > 1]
    if not gaps:
        return
    (low, low_path), (high, high_path) = gaps[0]
    first = _numbers(low + 1, high - 1)
    more = _few([_numbers(below + 1, above - 1) for (below, _), (above, _) in gaps[1:]])
    missing = sum(above - below - 1 for (below, _), (above, _) in gaps)
    text = f"is rank {high} and {low_path} is rank {low}, but {first} between them"
    text += f" {'are' if high - low > 2 else 'is'} missing"
    text += f", and further up {more}" if more else ""
    advice = f"pass {'them' if missing > 1 else 'it'} too, or --partial (partial=True) to go without"
    raise ParseError(high_path, f"{text}; {advice}")


def _numbers(low: int, high: int) -> str:
    if low == high:
        return f"rank {low}"
    return f"ranks {low} {'and' if high == low + 1 else 'to'} {high}"


def _few(items: Sequence[str]) -> str:
    """Items for a sentence, at most three of them by name."""
    shown = [*items] if len(items) <= 3 else [*items[:2], f"{len(items) - 2} more"]
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def _duration(ns: int) -> str:
    hours = ns // (3600 * 10**9)
    return f"{hours} hours" if hours < 48 else f"{hours // 24} days"
