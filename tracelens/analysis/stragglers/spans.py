"""Which stretch of each rank's time is compared before a collective."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import AlignedRun, MatchedCollective, Participant
from tracelens.analysis.stragglers.segments import Segments
from tracelens.arrays import Int

# How many shared collectives before this one are searched for the last that was over.
_LOOK_BACK = 64


class Span(NamedTuple):
    """A rank's time before a collective.

    Attributes:
        first: piece that it begins with.
        last: piece that it ends before.
        begin: ns by the common clock, since the collective's last arrival (a double cannot count from 1970).
        before: communication kernel after which it begins, -1 for the recording's begin.
        kernels: communication kernels since the last collective that all participants shared.
    """

    first: int
    last: int
    begin: int
    before: int
    kernels: int


class Ends:
    """Communication kernels of a rank in order of their ends; of those that end together the later first.

    Args:
        end: of each kernel, ns.
    """

    def __init__(self, end: Int) -> None:
        self._order = np.lexsort((-np.arange(len(end)), end))
        self._end = end[self._order]

    def between(self, after: int | None, until: int) -> Int:
        """Kernels that end at one of these times or in between, in order."""
        low = 0 if after is None else int(np.searchsorted(self._end, after, side="left"))
        return self._order[low : int(np.searchsorted(self._end, until, side="right"))]


class Spans:
    """Finds them; made once for a run.

    Args:
        parts: by rank.
        aligned: the run.
    """

    def __init__(self, parts: Mapping[int, Segments], aligned: AlignedRun) -> None:
        self._parts, self._shift = parts, aligned.shift
        self._communication = {rank.rank: rank for rank in aligned.ranks}
        self._shared = _Shared(aligned.collectives)
        self.ends = {rank: Ends(comm.end) for rank, comm in self._communication.items()}

    def of(self, index: int, collective: MatchedCollective) -> dict[int, Span]:
        """What is compared, by rank: since the last communication kernel, where all had equally many.

        Where one rank took part in communication that others did not, "since the last one" would be another
        stretch of the program on each of them. They are then compared since the last one that they shared.

        Args:
            index: of the collective in the list that this was made of.
            collective: the collective itself.
        """
        common = self.common(index, collective)
        since_last, since_common = {}, {}
        arrival = collective.last.start
        for participant in collective.participants:
            part, shift = self._parts[participant.rank], self._shift[participant.rank]
            start = participant.start - shift
            begin = common[participant.rank].end - shift if common else int(part.edges[0])
            before = common[participant.rank].record.kernel if common else -1
            comm, ends = self._communication[participant.rank], self.ends[participant.rank]
            between = ends.between(begin if common else None, start)
            between = between[comm.start[between] >= begin]
            between = between[(between != participant.record.kernel) & (between != before)]
            latest = int(between[-1]) if len(between) else before
            end = int(comm.end[latest]) if len(between) else begin
            last = int(np.searchsorted(part.edges, start))
            first, nearer = np.searchsorted(part.edges, (begin, end)).tolist()
            count = len(between)
            since_common[participant.rank] = Span(first, last, begin + shift - arrival, before, count)
            since_last[participant.rank] = Span(nearer, last, end + shift - arrival, latest, count)
        alike = len({span.kernels for span in since_common.values()}) == 1
        return since_last if alike else since_common

    def common(self, index: int, collective: MatchedCollective) -> dict[int, Participant]:
        """The last collective that all participants of this one had been in and left; {} if there is none."""
        ranks = {participant.rank: participant for participant in collective.participants}
        for before in reversed(self._shared.before(index, collective)):
            shared = {
                participant.rank: participant
                for participant in before.participants
                if participant.rank in ranks
            }
            if all(participant.end <= ranks[rank].start for rank, participant in shared.items()):
                return shared
        return {}


class _Shared:
    """Which collectives all ranks of each collective took part in."""

    def __init__(self, collectives: Sequence[MatchedCollective]) -> None:
        self._collectives = collectives
        sets = [
            frozenset(participant.rank for participant in collective.participants)
            for collective in collectives
        ]
        distinct = set(sets)
        by_lowest: dict[int, list[frozenset[int]]] = {}
        for ranks in distinct:
            by_lowest.setdefault(min(ranks), []).append(ranks)
        inside = {
            larger: [ranks for rank in larger for ranks in by_lowest.get(rank, ()) if ranks <= larger]
            for larger in distinct
        }
        self._shared_by: dict[frozenset[int], list[int]] = {ranks: [] for ranks in distinct}
        for index, ranks in enumerate(sets):
            for subset in inside[ranks]:
                self._shared_by[subset].append(index)

    def before(self, index: int, collective: MatchedCollective) -> list[MatchedCollective]:
        """Those before this one, in order."""
        earlier = self._shared_by[frozenset(participant.rank for participant in collective.participants)]
        end = bisect_left(earlier, index)
        return [self._collectives[position] for position in earlier[max(end - _LOOK_BACK, 0) : end]]
