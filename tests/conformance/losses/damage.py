"""What a damage does to a rank's file, and the bytes that are left."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from tests.conformance.losses.recordings import Bool, Float, Int, RankRecording

_WINDOW_MARKS = ("Iteration Start: PyTorch Profiler", "Record Window End")


class Undetectable(Exception):
    """Nothing in what is left differs from an intact recording; the text says why."""


@dataclass
class RankDamage:
    """Edits of one rank.

    Attributes:
        drop: mask of events that are gone.
        unlinked: mask of GPU work that lost its correlation id.
        ts, dur: new times in µs, where they differ.
        head: keys beside traceEvents that are added.
        head_last: whether these keys stand behind the events.
        kept_bytes: share of the file that is left.
        zipped: whether the file is a (cut) .gz.
        order: of the events in the file, as their rows.
    """

    rank: RankRecording
    drop: Bool = field(init=False)
    unlinked: Bool = field(init=False)
    ts: Float = field(init=False)
    dur: Float = field(init=False)
    head: Mapping[str, Any] = field(default_factory=dict)
    head_last: bool = False
    kept_bytes: float = 1.0
    zipped: bool = False
    order: Int | None = None

    def __post_init__(self) -> None:
        self.drop = np.zeros(len(self.rank.events), dtype=bool)
        self.unlinked = np.zeros_like(self.drop)
        self.ts, self.dur = self.rank.ts.copy(), self.rank.dur.copy()

    def drop_work(self, work: Bool) -> None:
        """Drop GPU work with the heads of the arrows to it."""
        rank, keys = self.rank, set()
        for row in np.flatnonzero(work & rank.gpu):
            keys.add((rank.lane[row], rank.ts[row]))
        arrows = [row for row in np.flatnonzero(rank.on_gpu_lane) if (rank.lane[row], rank.ts[row]) in keys]
        heads = np.zeros_like(self.drop)
        heads[arrows] = True
        self.drop |= (work & rank.gpu) | (heads & _phase(rank, "f"))

    def unlink(self, work: Bool) -> None:
        """Take the correlation id and the arrow from GPU work."""
        gone = self.drop.copy()
        self.drop_work(work)
        self.drop &= ~self.rank.gpu
        self.drop |= gone
        self.unlinked |= work & self.rank.gpu

    def drop_launches(self, calls: Bool, *, arrows: bool) -> None:
        """Drop calls, and the tails of their arrows if told to."""
        self.drop |= calls & self.rank.call
        if arrows:
            keys = {
                (self.rank.lane[row], self.rank.ts[row]) for row in np.flatnonzero(calls & self.rank.call)
            }
            for row in np.flatnonzero(_phase(self.rank, "s")):
                self.drop[row] |= (self.rank.lane[row], self.rank.ts[row]) in keys

    def end_at(self, cut: float) -> None:
        """Stop recording: GPU work that has not ended and what begins later is gone, other events are cut."""
        rank = self.rank
        marks = self._window_marks()
        self.drop |= ~marks & ((rank.ts >= cut) | (rank.gpu & (rank.end > cut)))
        self.dur = np.where(self.dur > cut - rank.ts, np.clip(cut - rank.ts, 0, None), self.dur)
        self.ts[marks] = np.minimum(self.ts[marks], cut)

    def begin_at(self, cut: float) -> None:
        """Begin recording: what began before is gone."""
        rank = self.rank
        marks = self._window_marks()
        self.drop |= ~marks & (rank.ts < cut)
        early = marks & (rank.ts < cut)
        self.dur[early] = np.clip(rank.end[early] - cut, 0, None)
        self.ts[early] = cut

    def _window_marks(self) -> Bool:
        """The profiler's marks of its own window, which every recording has."""
        rank = self.rank
        return np.array(
            [event.get("cat") == "Trace" or event.get("name") in _WINDOW_MARKS for event in rank.events]
        )

    def bare_launches(self) -> int:
        """Launch calls left of which all work is gone."""
        rank = self.rank
        left = np.unique(rank.correlation[rank.launched & ~self.drop])
        return int((rank.launch & ~self.drop & ~np.isin(rank.correlation, left)).sum())

    def orphans(self) -> int:
        """Pieces of GPU work left whose recorded launch is gone."""
        rank = self.rank
        calls = np.unique(rank.correlation[rank.launch & ~self.drop])
        return int((rank.launched & ~self.drop & ~np.isin(rank.correlation, calls)).sum())

    def uneven_replays(self) -> bool:
        """Whether a replay is left with less work than a sibling."""
        sizes = [{int((~self.drop[replay.rows]).sum()) for replay in group} for group in self.rank.siblings]
        return any(len(size) > 1 for size in sizes)

    def lost_fraction(self) -> float:
        """Share of GPU time that is gone."""
        gpu = self.rank.gpu
        return float(self.rank.dur[gpu & self.drop].sum() / self.rank.dur[gpu].sum())

    def text(self) -> bytes:
        rank = self.rank
        changed = ~(np.isclose(self.ts, rank.ts, rtol=0, atol=0, equal_nan=True) & (self.dur == rank.dur))
        texts = list(rank.texts)
        for row in np.flatnonzero(changed & ~self.drop):
            event = {**rank.events[row], "ts": float(self.ts[row])}
            texts[row] = orjson.dumps(event | ({"dur": float(self.dur[row])} if "dur" in event else {}))
        for row in np.flatnonzero(self.unlinked & ~self.drop):
            args = {key: value for key, value in rank.events[row]["args"].items() if key != "correlation"}
            texts[row] = orjson.dumps({**rank.events[row], "args": args})
        order = np.arange(len(texts)) if self.order is None else self.order
        events = b",\n".join(texts[row] for row in order[~self.drop[order]].tolist())
        before, after = ({}, self.head) if self.head_last else (self.head, {})
        first, last = _members({**rank.head, **before}, b"%s, "), _members(after, b", %s")
        data = b'{%s"traceEvents": [\n%s\n]%s}' % (first, events, last)
        if self.zipped:
            data = gzip.compress(data, 1)
        return data[: int(len(data) * self.kept_bytes)]


def _members(keys: Mapping[str, Any], form: bytes) -> bytes:
    """The keys of a JSON object, in a form with the comma beside them; nothing for no keys."""
    return form % orjson.dumps(keys)[1:-1] if keys else b""


def _phase(rank: RankRecording, phase: str) -> Bool:
    return np.array([event.get("ph") == phase for event in rank.events])


@dataclass(frozen=True)
class Damage:
    """Damages of some ranks, by index, and the doubts of which one has to be raised.

    Attributes:
        ranks: index of a rank to its edits.
        reasons: doubts that say what happened, one of them is enough; none where nothing is wrong.
        says: what happened, for people.
        alone: whether the run has these ranks only.
        also: doubts that may be raised where nothing is wrong.
    """

    ranks: Mapping[int, RankDamage]
    reasons: frozenset[str]
    says: str = ""
    alone: bool = False
    also: frozenset[str] = frozenset()
