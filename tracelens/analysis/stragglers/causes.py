"""Why a rank was last at a collective: its work since the previous one, against the other ranks'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from tracelens.analysis.comm import SEND_RECV, AlignedRun, MatchedCollective, Participant
from tracelens.analysis.stragglers.delays import DelayRecorder, delays_of
from tracelens.analysis.stragglers.medians import weighted_median
from tracelens.analysis.stragglers.readiness import Carried, carried
from tracelens.analysis.stragglers.segments import (
    BLOCKED,
    COMM,
    TIMES,
    WORK,
    Segments,
)
from tracelens.analysis.stragglers.spans import Span, Spans
from tracelens.analysis.stragglers.verdict import CAUSES, HOLDING, IDLE, REASON, Verdict
from tracelens.analysis.stragglers.workload import Excess, Workloads
from tracelens.arrays import Float, Int
from tracelens.units import duration

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


class Comparison:
    """Compares the ranks of collectives; made once for a run.

    Attributes:
        cut: late arrivals behind more than AT_ONCE communication kernels, not all of which were looked at.
        recorder: of the delays at all collectives; full when the verdicts are made.

    Args:
        parts: by rank.
        aligned: the run.
    """

    def __init__(self, parts: Mapping[int, Segments], aligned: AlignedRun) -> None:
        self._parts, self._shift = parts, aligned.shift
        self._communication = {rank.rank: rank for rank in aligned.ranks}
        self._workloads = Workloads(parts, _routed(aligned.collectives), _sole(aligned.collectives))
        self._time_before = {
            rank: np.concatenate((np.zeros((1, len(TIMES)), np.int64), part.time.cumsum(axis=0)))
            for rank, part in parts.items()
        }
        self._spans = Spans(parts, aligned)
        self._cpu_only = any(part.cpu_only for part in parts.values())
        self._ready = (
            {rank: part.ready for rank, part in parts.items()},
            {rank: part.beside_end for rank, part in parts.items()},
        )
        self._collectives = collectives = aligned.collectives
        self._verdicts: dict[int, Verdict] = {}
        self._reach = {rank: np.maximum.accumulate(comm.end) for rank, comm in self._communication.items()}
        self.cut = 0
        self.recorder = DelayRecorder()
        self._of_kernel: dict[tuple[int, int], int] = {}
        for index, collective in enumerate(collectives):
            for participant in collective.participants:
                self._of_kernel.setdefault((participant.rank, participant.record.kernel), index)

    def verdicts(self) -> list[Verdict]:
        """Why the last rank of each collective was late."""
        # In order of arrival, so that what a collective inherits is known by then.
        order = sorted(range(len(self._collectives)), key=lambda index: self._collectives[index].last.start)
        for index in order:
            collective = self._collectives[index]
            spans = self._spans.of(index, collective)
            times = np.array([self._numbers(participant, spans) for participant in collective.participants])
            before = None
            if not self._cpu_only:  # what a CPU computes beside communication slows that down
                before = carried(collective, self._spans.common(index, collective), *self._ready, self._shift)
            self._verdicts[index] = self._verdict(index, collective, spans, times, before)
            # A receive waits for its sender in every schedule of a pipeline.
            if collective.collective != SEND_RECV:
                self._record(collective, spans, times, before)
        return [self._verdicts[index] for index in range(len(self._collectives))]

    def _record(
        self,
        collective: MatchedCollective,
        spans: Mapping[int, Span],
        times: Float,
        before: Carried | None,
    ) -> None:
        """What each rank lost on its way to a collective."""
        participants = collective.participants
        held = [self._held(participant, spans[participant.rank]) for participant in participants]
        start = np.array([participant.start for participant in participants])
        called = np.array([self._called(participant) for participant in participants])
        ns = delays_of(
            start,
            times[:, -1],
            times[:, :-1],
            None if any(values is None for values in held) else np.array(held, dtype=float),
            (called >= 0) & (start - called <= _UNQUEUED_NS),
            before.more_ns if before else None,
        )
        own = times[:, :-1].sum(axis=1) - times[:, COMM]
        ranks, steps = zip(*((member.rank, member.record.step) for member in participants), strict=True)
        self.recorder.add(ranks, steps, ns, float(np.median(own)))

    def _verdict(
        self,
        index: int,
        collective: MatchedCollective,
        spans: Mapping[int, Span],
        times_of_all: Float,
        before: Carried | None,
    ) -> Verdict:
        last, wait = collective.last, collective.wait_ns
        is_last = np.array([participant.rank == last.rank for participant in collective.participants])
        waiting = [participant for participant in collective.participants if participant.rank != last.rank]
        weight = np.array([wait[participant.rank] for participant in waiting], dtype=float)
        late = -weighted_median(
            np.array([[participant.start - last.start] for participant in waiting], dtype=float), weight
        )[0]
        if sum(wait.values()) < SMALL_NS:
            evidence = f"the others waited {duration(sum(wait.values()))} in total"
            return Verdict(last.rank, "unknown", evidence, round(late))
        if before and before.more_ns[before.last] < EXPLAINED * late <= before.before_ns:
            text = f"its computation was {duration(before.before_ns)} behind that of the others before"
            return self._from(index, *self._at(last.rank, before.kernel, text), round(late))
        if text := self._launched_late(late, last, waiting, weight):
            return self._late_launch(text, late, collective, spans, weight)
        times, times_of_others = times_of_all[is_last][0], times_of_all[~is_last]
        typical = weighted_median(times_of_others, weight)
        extra = times - typical
        explained_ns = {IDLE[kind]: float(extra[kind]) for kind in IDLE}
        # What a rank lost before, it can have caught up since.
        explained_ns["inherited"] = min(extra[COMM] + extra[-1], late)
        excess = None
        if extra[WORK] >= EXPLAINED * late:
            ranges = [(participant.rank, *spans[participant.rank][:2]) for participant in (last, *waiting)]
            excess = self._workloads.excess(ranges, float(extra[WORK]), weight)
            explained_ns |= excess.ns
        cause = max(CAUSES[:-1], key=lambda name: explained_ns.get(name, 0.0))
        is_work = excess is not None and cause in ("token_load", "extra_work")
        if excess is not None and is_work and _other_stage(collective, excess):
            text = f"{excess.text[cause]}; pipeline stages differ by design, which says nothing about load"
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
        before = self._time_before[participant.rank]
        return np.append((before[span.last] - before[span.first]).astype(float), span.begin)

    def _evidence(
        self,
        cause: str,
        last: Participant,
        spans: Mapping[int, Span],
        times: Float,
        typical: Float,
        excess: Excess | None,
    ) -> str:
        if excess is not None and cause in excess.text:
            return excess.text[cause]
        kind = next(kind for kind, name in IDLE.items() if name == cause)
        versus = f"{duration(times[kind])} (others {duration(typical[kind])})"
        host = self._host(last.rank, spans[last.rank], kind)
        if self._parts[last.rank].cpu_only and cause == "late_launch":
            return f"no op ran for {versus}{host and ', the longest time in '}{host}"
        idle = "no op ran for" if self._parts[last.rank].cpu_only else "GPU idle"
        return f"{idle} {versus} because {REASON[cause].format(host=host or 'a call')}"

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
        return self._from(index, *self._before(self._collectives[index].last, span, times, typical), late)

    def _from(self, index: int, text: str, before: int, late: int) -> Verdict:
        """The same, with the evidence and the collective that the lateness comes from (-1 if unknown)."""
        collective = self._collectives[index]
        last = collective.last
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
            text = f"had left the communication before it {duration(begun)} later than the others"
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
        return self._at(last.rank, kernel, text)

    def _at(self, rank: int, kernel: int, text: str) -> tuple[str, int]:
        """Evidence with the collective of a rank's communication kernel, and that, -1 if it is none."""
        index = self._of_kernel.get((rank, kernel), -1)
        if index < 0:
            return text, -1
        collective = self._collectives[index]
        evidence = f"{text}: {collective.collective} {collective.order} of {collective.group}"
        latest = collective.last.rank
        return (f"{evidence}, where rank {latest} was last" if latest != rank else evidence), index

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
        behind = -weighted_median((np.array(called[1:])[:, None] - called[0]).astype(float), weight)[0]
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
        """The verdict for late launches: what held the host up may have come while its GPU was still busy.

        A host that has lost its lead launches each kernel late for a while. Ranks that wait for the last one
        block longer than it does where all of them synchronize.
        """
        last = collective.last
        waiting = [participant for participant in collective.participants if participant.rank != last.rank]
        held = [self._held(participant, spans[participant.rank]) for participant in (last, *waiting)]
        if any(times is None for times in held):
            return Verdict(last.rank, "late_launch", text, round(late))
        of_all = np.array(held, dtype=float)
        typical = weighted_median(of_all[1:], weight)
        extra = of_all[0] - typical
        kind = max(HOLDING, key=lambda kind: float(extra[kind]))
        # Sender and receiver block where their parts of the program do, which says nothing of either.
        between_stages = kind == BLOCKED and collective.collective == SEND_RECV
        if extra[kind] < max(EXPLAINED * late, 1) or between_stages:
            return Verdict(last.rank, "late_launch", text, round(late))
        host = self._host(last.rank, spans[last.rank], kind)
        times = f"{duration(of_all[0][kind])} (others {duration(typical[kind])})"
        evidence = f"{text}; before, {HOLDING[kind]} {times}{host and ' in '}{host}"
        return Verdict(last.rank, IDLE[kind], evidence, round(late))

    def _held(self, participant: Participant, span: Span) -> Int | None:
        """What the host did from one launch to the other, ns by TIMES; None if unknown."""
        part, kernel = self._parts[participant.rank], participant.record.kernel
        if part.launch[kernel] < 0 or (span.before >= 0 and part.launch[span.before] < 0):
            return None
        before = part.held[span.before] if span.before >= 0 else 0
        held: Int = np.maximum(part.held[kernel] - before, 0)
        return held

    def _called(self, participant: Participant) -> int:
        launch = int(self._parts[participant.rank].launch[participant.record.kernel])
        return launch + self._shift[participant.rank] if launch >= 0 else -1


def _unexplained(late: float, extra: Float) -> str:
    """Evidence where nothing explains the lateness."""
    most = int(np.argmax(extra[:-1]))
    activity = {WORK: "computation", COMM: "other communication"}.get(most, "idle time")
    largest = (
        f"mostly {duration(extra[most])} more {activity}" if extra[most] > 0 else "no activity took longer"
    )
    return f"{duration(late)} late, not explained by the trace: {largest} than the others"


def _other_stage(collective: MatchedCollective, excess: Excess) -> bool:
    """Whether sender and receiver were in different parts of the program."""
    return collective.collective == SEND_RECV and excess.alike < _SAME_WORK


def _routed(collectives: Sequence[MatchedCollective]) -> set[int] | None:
    """Ranks whose all-to-alls carry more than the others' in the median; None without all-to-alls."""
    load: dict[int, int] = {}
    for collective in collectives:
        if collective.collective.startswith("all_to_all"):
            for participant in collective.participants:
                load[participant.rank] = load.get(participant.rank, 0) + max(participant.record.bytes, 0)
    if len(set(load.values())) <= 1:
        return set() if load else None
    return {
        rank
        for rank, carried_bytes in load.items()
        if carried_bytes > np.median([other for number, other in load.items() if number != rank])
    }


def _sole(collectives: Sequence[MatchedCollective]) -> set[int]:
    """Ranks to which all others send all they have, in most all-to-alls that are as uneven."""
    count: Counter[int] = Counter()
    for collective in collectives:
        got = [member.rank for member in collective.participants if member.record.received > 0]
        if collective.collective.startswith("all_to_all") and len(got) == 1:
            count[got[0]] += 1
    return {rank for rank, number in count.items() if 2 * number > count.total()}
