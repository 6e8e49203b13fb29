"""The steps of all serving ranks side by side: which of them are one step of the whole deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from tracelens.analysis.comm import base_ns, clocks, match
from tracelens.analysis.serving.steps import RankSteps, Step


class RankStep(NamedTuple):
    """One rank's share of a common step; the step's times are by the clock of the first rank."""

    rank: int
    step: Step


class GlobalStep(NamedTuple):
    """What several ranks ran at the same time, in order of rank."""

    members: tuple[RankStep, ...]

    @property
    def start(self) -> int:
        return min(member.step.start for member in self.members)

    @property
    def dur_ns(self) -> int:
        return max(member.step.dur_ns for member in self.members)

    @property
    def kinds(self) -> str:
        """How many ranks ran what: "1 prefill, 7 decode"."""
        names = Counter(_name(member.step) for member in self.members)
        ordered = sorted(names.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{count} {name}" for name, count in ordered)

    @property
    def phases(self) -> set[str]:
        """The kinds of step of the ranks that have requests."""
        return {member.step.label.kind for member in self.members if not member.step.label.dummy}

    @property
    def mismatch(self) -> bool:
        """Whether ranks with requests are in different phases."""
        return len(self.phases) > 1

    @property
    def idle(self) -> int:
        return sum(member.step.label.dummy for member in self.members)

    @property
    def tokens(self) -> int:
        """Tokens of all requests, -1 where a rank does not tell its own."""
        some = [member.step.label.tokens for member in self.members if not member.step.label.dummy]
        return -1 if min(some, default=-1) < 0 else sum(some)

    @property
    def tokens_max(self) -> int:
        """Tokens of the rank with most of them, to which the others are padded; -1 as for `tokens`."""
        return max(member.step.label.tokens for member in self.members) if self.tokens >= 0 else -1

    @property
    def slots(self) -> int:
        """Tokens that the ranks run together, padding included; -1 as for `tokens`."""
        return self.tokens_max * len(self.members) if self.tokens >= 0 else -1


def _name(step: Step) -> str:
    label = step.label
    return f"dummy {label.kind}" if label.dummy and label.kind != "idle" else label.kind


def by_one_clock(ranks: Sequence[RankSteps]) -> list[RankSteps]:
    """The same by the clock of the first rank, as far as collectives tell it."""
    known = [one.comms for one in ranks if one.comms is not None]
    if not known:
        return [*ranks]
    offset = {one.rank: one.offset_ns for one in clocks(known, match(known).instances)}
    shift = {one.rank: base_ns(one, known[0]) - offset[one.rank] for one in known}
    return [one._replace(steps=_shifted(one.steps, shift.get(one.rank, 0))) for one in ranks]


def _shifted(steps: Sequence[Step], shift: int) -> list[Step]:
    return [step._replace(start=step.start + shift, end=step.end + shift) for step in steps]


def lockstep(ranks: Sequence[RankSteps]) -> list[GlobalStep]:
    """The steps that several ranks, all by one clock, ran together, in order of time.

    Ranks that share their expert layers meet in every layer, so the steps that are one lie over each other
    in time. The step that starts first is joined by the next step of each other rank which overlaps it by
    at least half of the shorter of both, and no less than it overlaps the step after.
    """
    queues = {one.rank: one.steps for one in ranks}
    at = dict.fromkeys(queues, 0)
    found: list[GlobalStep] = []
    while open_ranks := [rank for rank in queues if at[rank] < len(queues[rank])]:
        first = min(open_ranks, key=lambda rank: (queues[rank][at[rank]].start, rank))
        seed, *after = queues[first][at[first] : at[first] + 2]
        joined = [
            RankStep(rank, queues[rank][at[rank]])
            for rank in open_ranks
            if rank == first or _together(queues[rank][at[rank]], seed, after)
        ]
        for member in joined:
            at[member.rank] += 1
        if len(joined) > 1:
            found.append(GlobalStep(tuple(joined)))
    return found


def _together(step: Step, seed: Step, after: Sequence[Step]) -> bool:
    shared = _shared(step, seed)
    enough = 2 * shared >= max(min(step.dur_ns, seed.dur_ns), 1)
    return enough and all(shared >= _shared(step, other) for other in after)


def _shared(one: Step, other: Step) -> int:
    """For how long two steps run together; what has no extent counts as 1 ns."""
    ends = (max(step.end, step.start + 1) for step in (one, other))
    return max(min(ends) - max(one.start, other.start), 0)


class Delay(NamedTuple):
    """What decoding ranks lost to those in another phase, and how much of it agreement would save, ns."""

    total: int
    alignable: int


def delay(found: Sequence[GlobalStep]) -> Delay:
    """The delay of decoding ranks by ranks in another phase; -1 where no step is pure decoding.

    Each mismatched step in which a rank decodes is late by what it took longer than a step in which all
    decode. Had all ranks prefilled in the same steps, only the delays of the rank that prefilled longest
    were left.
    """
    usual = [one.dur_ns for one in found if one.phases == {"decode"}]
    if not usual:
        nothing = -1 if any(one.mismatch for one in found) else 0
        return Delay(nothing, nothing)
    usually, total = round(median(usual)), 0
    caused: Counter[int] = Counter()
    for one in found:
        if one.mismatch and "decode" in one.phases:
            late = max(one.dur_ns - usually, 0)
            total += late
            for rank, step in one.members:
                if step.label.kind != "decode" and not step.label.dummy:
                    caused[rank] += late
    return Delay(total, total - max(caused.values(), default=0))
