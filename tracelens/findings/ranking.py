"""The order of the findings: by the step time that each saves when those above it are fixed, most first.

A symptom (a GPU that waits for launches, many small kernels, an exposed all-to-all) and its cause (a loop
over experts, a host that blocks, a late rank) are often one stretch of time. What both save together is less
than the sum; the replay of both scenarios says how much. Causes count first, symptoms add to all of them.

Upper bounds, which no replay sizes, share what the replayed findings leave of the step, again causes first.
A replayed finding takes of the time that it is about as large a share as it adds to the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tracelens.findings.candidates import Candidate, explaining, mean_of_ranks, overlap_ns
from tracelens.findings.replays import Replays
from tracelens.trace import Union, both


class Ranked(NamedTuple):
    """A candidate in its position.

    Attributes:
        candidate: that is ranked.
        additional_ns: what it saves when those above it are fixed; at most its own saving.
        cause: above it, that overlaps most of a symptom's time; None where none does.
        explained: share of the symptom's time that is the cause's.
    """

    candidate: Candidate
    additional_ns: float
    cause: Candidate | None = None
    explained: float = 0.0


def ranked(candidates: Sequence[Candidate], replays: Replays, ranks: int) -> Iterator[Ranked]:
    """The candidates by what they add, most first."""
    replayed = _replayed([candidate for candidate in candidates if candidate.saving.scenario], replays)
    bounds = _bounds(
        [candidate for candidate in candidates if not candidate.saving.scenario],
        replayed,
        replays.base_ns,
        ranks,
    )
    above: list[Candidate] = []
    for candidate, additional_ns in sorted([*replayed, *bounds], key=_precedence):
        causes = explaining(candidate, above) if candidate.detector.symptom else []
        explained, cause = causes[0] if causes else (0.0, None)
        yield Ranked(candidate, additional_ns, cause, explained)
        if not candidate.detector.symptom:
            above.append(candidate)


Addition = tuple[Candidate, float]
"""A candidate, and what it saves when others are fixed, ns."""


def _precedence(addition: Addition) -> tuple[float, bool, bool, float]:
    candidate, additional_ns = addition
    saving = candidate.saving
    return -additional_ns, candidate.detector.symptom, not saving.scenario, -saving.ns


def _replayed(candidates: Sequence[Candidate], replays: Replays) -> list[Addition]:
    """Candidates with scenarios: each time the one that adds most to those before it, symptoms after causes.

    What a candidate adds is taken to shrink as others are fixed, so it is replayed again only when it would
    be next. Where two of them help each other, the second counts for no more than it saves by itself.
    """
    result: list[Addition] = []
    most_ns = {id(candidate): candidate.saving.ns for candidate in candidates}
    # The scenarios of those that add something, and how many they were when a candidate was last replayed.
    fixed: list[str] = []
    fixed_then = dict.fromkeys(most_ns, 0)
    for symptoms in (False, True):
        remaining = [candidate for candidate in candidates if candidate.detector.symptom == symptoms]
        while remaining:
            candidate = min(remaining, key=lambda item: _precedence((item, most_ns[id(item)])))
            if fixed_then[id(candidate)] == len(fixed):
                result.append((candidate, most_ns[id(candidate)]))
                remaining.remove(candidate)
                if most_ns[id(candidate)] > 0:
                    fixed.append(candidate.saving.scenario)
                continue
            gain_ns = replays.gain_ns(fixed, candidate.saving.scenario)
            most_ns[id(candidate)] = max(min(most_ns[id(candidate)], gain_ns), 0.0)
            fixed_then[id(candidate)] = len(fixed)
    return result


def _bounds(
    candidates: Sequence[Candidate], replayed: Sequence[Addition], base_ns: float, ranks: int
) -> list[Addition]:
    """What upper bounds add to all replayed findings; together no more than these leave of the step."""
    claimed: dict[int, Union] = {}
    left_ns = max(base_ns - sum(additional_ns for _, additional_ns in replayed), 0.0)
    result: list[Addition] = []
    for symptoms in (False, True):
        remaining = [candidate for candidate in candidates if candidate.detector.symptom == symptoms]
        while remaining:
            added = [(candidate, _unclaimed(candidate, claimed, replayed, ranks)) for candidate in remaining]
            candidate, additional_ns = min(added, key=_precedence)
            remaining.remove(candidate)
            result.append((candidate, min(additional_ns, left_ns)))
            left_ns -= result[-1][1]
            for rank, detection in candidate.detections.items():
                claimed[rank] = both(claimed.get(rank, detection.where), detection.where)
    return result


def _unclaimed(
    candidate: Candidate, claimed: Mapping[int, Union], replayed: Sequence[Addition], ranks: int
) -> float:
    """What a candidate's estimate has left of the time that others have not claimed."""
    free = {}
    for rank, detection in candidate.detections.items():
        total = max(detection.where.total, 1)
        of_bounds = overlap_ns(detection.where, claimed[rank]) if rank in claimed else 0
        of_replayed = sum(
            overlap_ns(detection.where, other.detections[rank].where)
            * min(additional_ns / max(mean_of_ranks(other.lost_ns, ranks), 1), 1.0)
            for other, additional_ns in replayed
            if rank in other.detections
        )
        free[rank] = (
            candidate.estimate_ns[rank] * (1 - of_bounds / total) * (1 - min(of_replayed / total, 1.0))
        )
    return min(mean_of_ranks(free, ranks), candidate.saving.ns)
