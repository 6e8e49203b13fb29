"""Which stretch of each rank's time is compared before a collective."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import MatchedCollective, Participant
from tracelens.analysis.stragglers.segments import Segments
from tracelens.arrays import Int

# Among how many shared instances before this one the last that was over is sought.
_LOOK_BACK = 64


class Span(NamedTuple):
    """A member's time before an instance.

    Attributes:
        first: piece that it begins with.
        last: piece that it ends before.
        begin: ns by the common clock, since the instance's last arrival (a double cannot count from 1970).
        before: communication kernel after which it begins, -1 for the recording's begin.
        kernels: communication kernels since the last instance that all members shared.
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
        instances: all of the run by one clock, in order of time.
        offset: what the times of each rank's part are ahead of those of the instances.
    """

    def __init__(
        self, parts: Mapping[int, Segments], instances: Sequence[MatchedCollective], offset: Mapping[int, int]
    ) -> None:
        self._parts, self._offset = parts, offset
        self._shared = _Shared(instances)
        self.ends = {rank: Ends(part.comms.end) for rank, part in parts.items()}

    def of(self, place: int, instance: MatchedCollective) -> dict[int, Span]:
        """What is compared, by rank: since the last communication kernel, where all had equally many.

        Where one rank took part in communication that others did not, "since the last one" would be another
        stretch of the program on each of them. They are then compared since the last one that they shared.

        Args:
            place: of the instance in the list that this was made of.
            instance: that instance.
        """
        common = self._common(place, instance)
        since_last, since_common = {}, {}
        arrival = instance.last.start
        for member in instance.members:
            part, offset = self._parts[member.rank], self._offset[member.rank]
            start = member.start + offset
            begin = common[member.rank].end + offset if common else int(part.edges[0])
            before = common[member.rank].record.kernel if common else -1
            own, ends = part.comms, self.ends[member.rank]
            between = ends.between(begin if common else None, start)
            between = between[own.start[between] >= begin]
            between = between[(between != member.record.kernel) & (between != before)]
            latest = int(between[-1]) if len(between) else before
            end = int(own.end[latest]) if len(between) else begin
            last = int(np.searchsorted(part.edges, start))
            first, nearer = np.searchsorted(part.edges, (begin, end)).tolist()
            count = len(between)
            since_common[member.rank] = Span(first, last, begin - offset - arrival, before, count)
            since_last[member.rank] = Span(nearer, last, end - offset - arrival, latest, count)
        alike = len({span.kernels for span in since_common.values()}) == 1
        return since_last if alike else since_common

    def _common(self, place: int, instance: MatchedCollective) -> dict[int, Participant]:
        """The last instance that all members of this one had been in and left; {} if there is none."""
        ranks = {member.rank: member for member in instance.members}
        for before in reversed(self._shared.before(place, instance)):
            left = {member.rank: member for member in before.members if member.rank in ranks}
            if all(member.end <= ranks[rank].start for rank, member in left.items()):
                return left
        return {}


class _Shared:
    """Which instances the ranks of each instance have all been in."""

    def __init__(self, instances: Sequence[MatchedCollective]) -> None:
        self._instances = instances
        sets = [frozenset(member.rank for member in instance.members) for instance in instances]
        distinct = set(sets)
        by_lowest: dict[int, list[frozenset[int]]] = {}
        for one in distinct:
            by_lowest.setdefault(min(one), []).append(one)
        inside = {
            larger: [one for rank in larger for one in by_lowest.get(rank, ()) if one <= larger]
            for larger in distinct
        }
        self._places: dict[frozenset[int], list[int]] = {one: [] for one in distinct}
        for place, ranks in enumerate(sets):
            for one in inside[ranks]:
                self._places[one].append(place)

    def before(self, place: int, instance: MatchedCollective) -> list[MatchedCollective]:
        """Those before this one, in order."""
        places = self._places[frozenset(member.rank for member in instance.members)]
        end = bisect_left(places, place)
        return [self._instances[one] for one in places[max(end - _LOOK_BACK, 0) : end]]
