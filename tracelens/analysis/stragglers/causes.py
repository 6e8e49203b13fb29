"""Why a rank was last at a collective: its work since the previous one, against the other ranks'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV, AlignedRun, MatchedCollective, Participant
from tracelens.analysis.stragglers.segments import BLOCKED, COMM, GARBAGE, LATE, WORK, Segments
from tracelens.analysis.stragglers.spans import Span, Spans
from tracelens.analysis.stragglers.workload import Excess, Workloads
from tracelens.arrays import Float
from tracelens.units import duration

CAUSES = (
    "token_load",
    "slow_kernels",
    "late_launch",
    "blocking_call",
    "garbage_collection",
    "inherited",
    "unknown",
)

SMALL_NS = 2_000
"""Waiting of all others together that needs no cause."""

EXPLAINED = 0.3
"""A cause accounts for at least this share of the lateness."""

AT_ONCE = 4096
"""Of so many communication kernels that a rank began last, the one it spent most time in is sought."""

# A kernel that starts within this of its launch call did not stand in a queue: the host decided when.
_UNQUEUED_NS = 30_000
# Sender and receiver with less work in common than this were in different parts of the program.
_SAME_WORK = 0.5
_IDLE = {LATE: "late_launch", BLOCKED: "blocking_call", GARBAGE: "garbage_collection"}


class Verdict(NamedTuple):
    """Why the last rank of a collective was late.

    Attributes:
        rank: who is to blame: the last rank, or one of the others that held it up before.
        cause: one of CAUSES.
        evidence: the figures that say so.
        late_ns: how late the last rank was.
        root: evidence of the verdict that a chain of inherited lateness goes back to, "" where this is it.
    """

    rank: int
    cause: str
    evidence: str
    late_ns: int
    root: str = ""


class Comparison:
    """Compares the ranks of collectives; made once for a run.

    Attributes:
        cut: late arrivals behind more than AT_ONCE communication kernels, not all of which were looked at.

    Args:
        parts: by rank.
        aligned: the run.
    """

    def __init__(self, parts: Mapping[int, Segments], aligned: AlignedRun) -> None:
        self._parts, self._shift = parts, aligned.shift
        self._communication = {rank.rank: rank for rank in aligned.ranks}
        self._workloads = Workloads(parts)
        self._spans = Spans(parts, aligned)
        self._collectives = collectives = aligned.collectives
        self._verdicts: dict[int, Verdict] = {}
        self._reach = {rank: np.maximum.accumulate(comm.end) for rank, comm in self._communication.items()}
        self.cut = 0
        self._of_kernel: dict[tuple[int, int], int] = {}
        for index, collective in enumerate(collectives):
            for participant in collective.participants:
                self._of_kernel.setdefault((participant.rank, participant.record.kernel), index)

    def verdicts(self) -> list[Verdict]:
        """Why the last rank of each collective was late."""
        # In order of arrival, so that what a collective inherits is known by then.
        order = sorted(range(len(self._collectives)), key=lambda index: self._collectives[index].last.start)
        for index in order:
            self._verdicts[index] = self._verdict(index, self._collectives[index])
        return [self._verdicts[index] for index in range(len(self._collectives))]

    def _verdict(self, index: int, collective: MatchedCollective) -> Verdict:
        last, wait = collective.last, collective.wait_ns
        waiting = [participant for participant in collective.participants if participant.rank != last.rank]
        weight = np.array([wait[participant.rank] for participant in waiting], dtype=float)
        late = -_typical(
            np.array([[participant.start - last.start] for participant in waiting], dtype=float), weight
        )[0]
        if sum(wait.values()) < SMALL_NS:
            evidence = f"the others waited {duration(sum(wait.values()))} in total"
            return Verdict(last.rank, "unknown", evidence, round(late))
        spans = self._spans.of(index, collective)
        if text := self._launched_late(late, last, waiting, weight):
            return self._late_launch(text, late, collective, spans, weight)
        times = self._numbers(last, spans)
        times_of_others = np.array([self._numbers(participant, spans) for participant in waiting])
        typical = _typical(times_of_others, weight)
        extra = times - typical
        explained_ns = {_IDLE[kind]: float(extra[kind]) for kind in _IDLE}
        # What a rank lost before, it can have caught up since.
        explained_ns["inherited"] = min(extra[COMM] + extra[-1], late)
        excess = None
        if extra[WORK] >= EXPLAINED * late:
            ranges = [(participant.rank, *spans[participant.rank][:2]) for participant in (last, *waiting)]
            excess = self._workloads.excess(ranges, float(extra[WORK]))
            explained_ns |= {"token_load": excess.load, "slow_kernels": excess.slow}
        cause = max(CAUSES[:-1], key=lambda name: explained_ns.get(name, 0.0))
        if excess is not None and cause == "token_load" and _other_stage(collective, excess):
            text = f"{excess.load_text}; a pipeline stage does work of its own, which tells nothing of load"
            return Verdict(last.rank, "unknown", text, round(late))
        if explained_ns.get(cause, 0.0) >= max(EXPLAINED * late, 1):
            if cause == "inherited":
                return self._inherited(index, spans[last.rank], times, typical, round(late))
            text = self._evidence(cause, last, spans, times, typical, excess)
            if cause == "late_launch":
                return self._late_launch(text, late, collective, spans, weight)
            return Verdict(last.rank, cause, text, round(late))
        return Verdict(last.rank, "unknown", _unexplained(late, extra), round(late))

    def _numbers(self, participant: Participant, spans: Mapping[int, Span]) -> Float:
        """Time of a member's span by TIMES, and its begin."""
        span = spans[participant.rank]
        times = self._parts[participant.rank].time[span.first : span.last].sum(axis=0)
        return np.append(times.astype(float), span.begin)

    def _evidence(
        self,
        cause: str,
        last: Participant,
        spans: Mapping[int, Span],
        times: Float,
        typical: Float,
        excess: Excess | None,
    ) -> str:
        if excess is not None and cause in ("token_load", "slow_kernels"):
            return excess.load_text if cause == "token_load" else excess.slow_text
        kind = next(kind for kind, name in _IDLE.items() if name == cause)
        versus = f"{duration(times[kind])} (others {duration(typical[kind])})"
        host = self._host(last.rank, spans[last.rank], kind)
        if self._parts[last.rank].cpu_only:
            return f"no op ran for {versus}{host and ', the longest time in '}{host}"
        if cause == "blocking_call":
            return f"GPU idle {versus} because the host was blocked in {host or 'a call'}"
        if cause == "garbage_collection":
            return f"GPU idle {versus} because of garbage collection: {host}"
        return f"GPU idle {versus} because the host launched late{host and ', the longest time in '}{host}"

    def _host(self, rank: int, span: Span, kind: int) -> str:
        """What the host was in during the longest idle time of a kind."""
        part = self._parts[rank]
        if span.first == span.last:
            return ""
        piece = span.first + int(np.argmax(part.longest[span.first : span.last, kind]))
        code = int(part.host[piece, kind])
        return part.texts[code] if code >= 0 else ""

    def _inherited(self, index: int, span: Span, times: Float, typical: Float, late: int) -> Verdict:
        """The verdict for lateness that was there before: whose and what it was then, if that is known.

        A rank that was late for what it did itself is still late for that, and so is one of the others that
        held the last rank up elsewhere.
        """
        collective = self._collectives[index]
        last = collective.last
        text, before = self._before(last, span, times, typical)
        # Clocks that are off can turn the order of two around.
        origin = self._verdicts.get(before)
        if (
            origin is None
            or origin.cause in ("inherited", "unknown")
            or origin.rank not in collective.wait_ns
        ):
            return Verdict(last.rank, "inherited", text, late)
        held = "" if origin.rank == last.rank else f"held rank {last.rank} up, which "
        # One link of a long chain says as much as all of them.
        root = origin.root or origin.evidence
        between = ", late from before: " if origin.root else ": "
        return Verdict(origin.rank, origin.cause, f"{held}{text}{between}{root}", late, root)

    def _before(self, last: Participant, span: Span, times: Float, typical: Float) -> tuple[str, int]:
        """Evidence for lateness that a rank brought with it, and the collective it brought it from."""
        comm, shift = self._communication[last.rank], self._shift[last.rank]
        start = last.start - shift
        if (begun := times[-1] - typical[-1]) >= times[COMM] - typical[COMM]:
            kernels = self._spans.ends[last.rank].between(None, start)
            text = f"had left the communication before {duration(begun)} later than the others"
            if not len(kernels):
                return f"its recording began {duration(begun)} later than the others'", -1
            kernel = int(kernels[-1])
        else:
            text = f"spent {duration(times[COMM])} in other communication (others {duration(typical[COMM])})"
            begin = span.begin + start
            high = int(np.searchsorted(comm.start, start))
            low = max(high - AT_ONCE, 0)
            self.cut += bool(low and self._reach[last.rank][low - 1] > begin)
            kernels = np.arange(low, high)
            kernels = kernels[comm.end[kernels] > begin]
            inside = np.minimum(comm.end[kernels], start) - np.maximum(comm.start[kernels], begin)
            kernel = int(kernels[np.argmax(inside)])
        index = self._of_kernel.get((last.rank, kernel), -1)
        if index < 0:
            return text, -1
        collective = self._collectives[index]
        evidence = f"{text}: {collective.collective} {collective.order} of group {collective.group}"
        latest = collective.last.rank
        return (f"{evidence}, where rank {latest} was last" if latest != last.rank else evidence), index

    def _launched_late(
        self, late: float, last: Participant, waiting: Sequence[Participant], weight: Float
    ) -> str:
        """Evidence where the host launched the communication late on a busy GPU; "" where it did not.

        Computation that goes on when the communication begins is not what it waited for; and a kernel that
        begins as soon as it is launched waited for nothing else either.
        """
        called = [self._called(participant) for participant in (last, *waiting)]
        if min(called) < 0 or last.start - called[0] > _UNQUEUED_NS:
            return ""
        if not self._parts[last.rank].beside[last.record.kernel]:
            return ""
        behind = -_typical((np.array(called[1:])[:, None] - called[0]).astype(float), weight)[0]
        if behind < EXPLAINED * late:
            return ""
        return f"it was launched {duration(behind)} after the others', while its GPU was busy"

    def _late_launch(
        self,
        text: str,
        late: float,
        collective: MatchedCollective,
        spans: Mapping[int, Span],
        weight: Float,
    ) -> Verdict:
        """The verdict for late launches, which a blocking call may have caused.

        Once it has waited for the GPU, the host has no more launches ahead, so that each one is late for a
        while. Ranks that wait for the last one block longer than it does where all of them synchronise.
        """
        last = collective.last
        waiting = [participant for participant in collective.participants if participant.rank != last.rank]
        times = [self._blocked(participant, spans[participant.rank]) for participant in (last, *waiting)]
        # Sender and receiver block where their parts of the program do, which says nothing of either.
        if min(times) < 0 or collective.collective == SEND_RECV:
            return Verdict(last.rank, "late_launch", text, round(late))
        typical = _typical(np.array(times[1:], dtype=float)[:, None], weight)[0]
        if times[0] - typical < EXPLAINED * late:
            return Verdict(last.rank, "late_launch", text, round(late))
        host = self._host(last.rank, spans[last.rank], BLOCKED)
        evidence = f"{text}; before, it was blocked for {duration(times[0])} (others {duration(typical)})"
        return Verdict(last.rank, "blocking_call", f"{evidence}{host and ' in '}{host}", round(late))

    def _blocked(self, participant: Participant, span: Span) -> int:
        """How long the host sat in blocking calls from one launch to the other, -1 if unknown."""
        part, kernel = self._parts[participant.rank], participant.record.kernel
        if part.launch[kernel] < 0 or (span.before >= 0 and part.launch[span.before] < 0):
            return -1
        before = int(part.blocked[span.before]) if span.before >= 0 else 0
        return max(int(part.blocked[kernel]) - before, 0)

    def _called(self, participant: Participant) -> int:
        launch = int(self._parts[participant.rank].launch[participant.record.kernel])
        return launch + self._shift[participant.rank] if launch >= 0 else -1


def _unexplained(late: float, extra: Float) -> str:
    """Evidence where nothing explains the lateness."""
    most = int(np.argmax(extra[:-1]))
    activity = {WORK: "computation", COMM: "other communication"}.get(most, "idle time")
    largest = (
        f"most of it {duration(extra[most])} more {activity}" if extra[most] > 0 else "nothing was longer"
    )
    return f"{duration(late)} late, not explained by the trace: {largest} than the others"


def _other_stage(collective: MatchedCollective, excess: Excess) -> bool:
    """Whether sender and receiver were in different parts of the program."""
    return collective.collective == SEND_RECV and excess.alike < _SAME_WORK


def _typical(values: Float, weight: Float) -> Float:
    """Median of each column, each row counting by its weight; by 1 where nothing has any."""
    weight = weight if weight.sum() > 0 else np.ones(len(weight))
    order = np.argsort(values, axis=0, kind="stable")
    ordered = np.take_along_axis(values, order, axis=0)
    reached = np.cumsum(weight[order], axis=0)
    half = reached[-1] / 2
    columns = np.arange(values.shape[1])
    low, high = np.argmax(reached >= half, axis=0), np.argmax(reached > half, axis=0)
    result: Float = (ordered[low, columns] + ordered[high, columns]) / 2
    return result
