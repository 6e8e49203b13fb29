"""The steps of all serving ranks side by side: which of them are one step of the whole deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import MatchedCollective
from tracelens.analysis.serving.steps import RankSteps, Step


class RankStep(NamedTuple):
    """One rank's share of a common step; the step's times are by the clock of the first rank."""

    rank: int
    step: Step


class GlobalStep(NamedTuple):
    """What several ranks ran at the same time, in order of rank."""

    rank_steps: tuple[RankStep, ...]

    @property
    def start(self) -> int:
        return min(on_rank.step.start for on_rank in self.rank_steps)

    @property
    def end(self) -> int:
        return max(on_rank.step.end for on_rank in self.rank_steps)

    @property
    def dur_ns(self) -> int:
        return max(on_rank.step.dur_ns for on_rank in self.rank_steps)

    @property
    def kinds(self) -> str:
        """How many ranks ran what: "1 prefill, 7 decode"."""
        names = Counter(_name(on_rank.step) for on_rank in self.rank_steps)
        ordered = sorted(names.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{count} {name}" for name, count in ordered)

    @property
    def phases(self) -> set[str]:
        """The kinds of step of the ranks that have requests."""
        return {on_rank.step.label.kind for on_rank in self.rank_steps if not on_rank.step.label.dummy}

    @property
    def mismatch(self) -> bool:
        """Whether ranks with requests are in different phases."""
        return len(self.phases) > 1

    @property
    def idle(self) -> int:
        return sum(on_rank.step.label.dummy for on_rank in self.rank_steps)

    @property
    def tokens(self) -> int:
        """Tokens of all requests, -1 where a rank does not tell its own."""
        counts = [on_rank.step.label.tokens for on_rank in self.rank_steps if not on_rank.step.label.dummy]
        return -1 if min(counts, default=-1) < 0 else sum(counts)

    @property
    def tokens_max(self) -> int:
        """Tokens of the rank with most of them, to which the others are padded; -1 as for `tokens`."""
        return max(on_rank.step.label.tokens for on_rank in self.rank_steps) if self.tokens >= 0 else -1

    @property
    def slots(self) -> int:
        """Tokens that the ranks run together, padding included; -1 as for `tokens`."""
        return self.tokens_max * len(self.rank_steps) if self.tokens >= 0 else -1


def _name(step: Step) -> str:
    label = step.label
    return f"dummy {label.kind}" if label.dummy and label.kind != "idle" else label.kind


def by_one_clock(ranks: Sequence[RankSteps], shift: Mapping[int, int]) -> list[RankSteps]:
    """The same by the common clock, see AlignedRun."""
    return [rank._replace(steps=_shifted(rank.steps, shift[rank.rank])) for rank in ranks]


def _shifted(steps: Sequence[Step], shift: int) -> list[Step]:
    return [step._replace(start=step.start + shift, end=step.end + shift) for step in steps]


def global_steps(ranks: Sequence[RankSteps]) -> list[GlobalStep]:
    """The steps that several ranks, all by one clock, ran together, in order of time.

    Ranks that share their expert layers meet in every layer, so the steps that are one lie over each other
    in time. The step that starts first is joined by the next step of each other rank which overlaps it by
    at least half of the shorter of both, and no less than it overlaps the step after.
    """
    queues = {rank.rank: rank.steps for rank in ranks}
    next_of = dict.fromkeys(queues, 0)
    steps: list[GlobalStep] = []
    while open_ranks := [rank for rank in queues if next_of[rank] < len(queues[rank])]:
        first = min(open_ranks, key=lambda rank: (queues[rank][next_of[rank]].start, rank))
        seed, *after = queues[first][next_of[first] : next_of[first] + 2]
        joined = [
            RankStep(rank, queues[rank][next_of[rank]])
            for rank in open_ranks
            if rank == first or _together(queues[rank][next_of[rank]], seed, after)
        ]
        for on_rank in joined:
            next_of[on_rank.rank] += 1
        if len(joined) > 1:
            steps.append(GlobalStep(tuple(joined)))
    return steps


def _together(step: Step, seed: Step, after: Sequence[Step]) -> bool:
    shared = _shared(step, seed)
    enough = 2 * shared >= max(min(step.dur_ns, seed.dur_ns), 1)
    return enough and all(shared >= _shared(step, following) for following in after)


def _shared(first: Step, second: Step) -> int:
    """For how long two steps run together; what has no extent counts as 1 ns."""
    ends = (max(step.end, step.start + 1) for step in (first, second))
    return max(min(ends) - max(first.start, second.start), 0)


class Reference(NamedTuple):
    """How long a step takes in which all ranks decode, ns.

    Attributes:
        dur_ns: -1 where nothing tells.
        source: one of REFERENCES.
    """

    dur_ns: int
    source: str


RECORDED, LEAST_WORK, UNKNOWN = REFERENCES = ("all-decode steps", "least GPU work", "")


def reference(steps: Sequence[GlobalStep], collectives: Sequence[MatchedCollective]) -> Reference:
    """The median step in which all ranks decode; without any, the least GPU work of a decoding rank.

    Beside a prefill a decoding rank waits for it in collectives, and mostly launches kernels one by one,
    because ranks replay graphs together. Its GPU work and transfers without that waiting are what a replayed
    decode needs at most: they still include the experts' share of the other ranks' prompts.

    Args:
        steps: by the common clock.
        collectives: of the same ranks, by the same clock: what is transfer, and what is waiting.
    """
    decode_ns = [step.dur_ns for step in steps if step.phases == {"decode"}]
    if decode_ns:
        return Reference(round(median(decode_ns)), RECORDED)
    decoding = [
        on_rank
        for global_step in steps
        if global_step.mismatch
        for on_rank in global_step.rank_steps
        if on_rank.step.label.kind == "decode" and not on_rank.step.label.dummy
    ]
    transfers: dict[int, list[tuple[int, int]]] = {rank: [] for rank, _ in decoding}
    for collective in collectives if decoding else ():
        wait_ns = collective.wait_ns
        for rank, _, start, end in collective.participants:
            if rank in transfers:
                transfers[rank].append((start, end - start - wait_ns[rank]))
    work_ns = []
    for rank, rank_transfers in transfers.items():
        starts, dur_ns = np.array(sorted(rank_transfers), dtype=np.int64).reshape(-1, 2).T
        before = np.concatenate(([0], np.cumsum(dur_ns)))
        for step in [step for of_rank, step in decoding if of_rank == rank and step.compute_ns >= 0]:
            first, stop = np.searchsorted(starts, (step.start, step.end))
            if stop > first:
                work_ns.append(step.compute_ns + int(before[stop] - before[first]))
    return Reference(min(work_ns), LEAST_WORK) if work_ns else Reference(-1, UNKNOWN)


class Delay(NamedTuple):
    """What decoding ranks lost to those in another phase, and how much of it agreement would save, ns."""

    total: int
    alignable: int


def delay(steps: Sequence[GlobalStep], decode_ns: int) -> Delay:
    """The delay of decoding ranks by ranks in another phase; -1 without a reference.

    Each mismatched step in which a rank decodes is late by what it took longer than a step in which all
    decode. Had all ranks prefilled in the same steps, only the delays of the rank that prefilled longest
    were left.

    Args:
        steps: of all ranks.
        decode_ns: duration of a step in which all ranks decode, -1 where not known.
    """
    if decode_ns < 0:
        nothing = -1 if any(step.mismatch for step in steps) else 0
        return Delay(nothing, nothing)
    total = 0
    caused: Counter[int] = Counter()
    for step in steps:
        if step.mismatch and "decode" in step.phases:
            late = max(step.dur_ns - decode_ns, 0)
            total += late
            for rank, own_step in step.rank_steps:
                if own_step.label.kind != "decode" and not own_step.label.dummy:
                    caused[rank] += late
    return Delay(total, total - max(caused.values(), default=0))
