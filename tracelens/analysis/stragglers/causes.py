"""Why a rank was last at a collective: its work since the previous one, against the other ranks'.

`Comparison` gives the verdicts; `Delays` what each rank lost anew; `Workloads` more work, or the same work
more slowly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import SEND_RECV, AlignedRun, MatchedCollective, Participant
from tracelens.analysis.stragglers.segments import (
    BLOCKED,
    COLLECTIVE,
    COMM,
    GARBAGE,
    LATE,
    LOADING,
    LOADING_CODE,
    OTHER,
    PROFILER,
    PYTHON,
    SILENT,
    STALLED,
    TIMES,
    WORK,
    Carried,
    ComparedSpan,
    Key,
    Segments,
    Spans,
    carried,
    median_of_others,
    weighted_median,
    weighted_quantile,
)
from tracelens.analysis.stragglers.thresholds import (
    AT_ONCE,
    BESIDE,
    COMPARABLE,
    EQUAL_CALLS,
    EQUAL_QUANTILE,
    EQUAL_SLOWER,
    EXPLAINED,
    MORE_CALLS_RATIO,
    RECURS_QUANTILE,
    SAME_WORK,
    SLOWER_RATIO,
    SMALL_NS,
    UNQUEUED_NS,
    USUAL_WEIGHT,
)
from tracelens.arrays import Bool, Float, Int, median
from tracelens.table import codes, sums
from tracelens.trace import is_step
from tracelens.units import duration

CAUSES = (
    "token_load",
    "extra_work",
    "slow_kernels",
    "silent_host",
    "python_code",
    "data_loading",
    "kernel_loading",
    "blocking_call",
    "garbage_collection",
    "collective_call",
    "profiler",
    "stalled_host",
    "late_launch",
    "recording_began",
    "inherited",
    "unknown",
)
_BEFORE_RECORDING = -2  # where lateness comes from that was there when the recording began
IDLE = {
    SILENT: "silent_host",
    PYTHON: "python_code",
    LOADING: "data_loading",
    LOADING_CODE: "kernel_loading",
    BLOCKED: "blocking_call",
    GARBAGE: "garbage_collection",
    COLLECTIVE: "collective_call",
    PROFILER: "profiler",
    STALLED: "stalled_host",
    LATE: "late_launch",
}
HOLDING = {
    SILENT: "it was in no recorded call for",
    PYTHON: "it was in Python code for",
    LOADING: "it was loading data for",
    LOADING_CODE: "it was loading kernels for",
    BLOCKED: "it was blocked for",
    GARBAGE: "it collected garbage for",
    PROFILER: "the profiler held it up for",
    STALLED: "it stalled for",
}
"""What can hold a host up before its launches are late, in words."""
REASON = {
    "silent_host": "the host was in no recorded op, call or frame: {host}",
    "python_code": "the host was in Python code: {host}",
    "data_loading": "the host was loading data in {host}",
    "kernel_loading": "the host was loading kernels in {host}",
    "blocking_call": "the host was blocked in {host}",
    "garbage_collection": "of garbage collection: {host}",
    "collective_call": "the host was in {host}",
    "profiler": "the profiler held the host up: {host}",
    "stalled_host": "the host stalled inside {host}",
    "late_launch": "the host launched late, the longest time in {host}",
}
"""Why a host was late, with what it was in."""
HOLDS = tuple(HOLDING)
"""What a host can lose its lead with while its GPU is busy; its launches are late afterwards."""

_FIRST = re.compile(r"\[(\d+)")
_LEAST_CALLS = 1e-9  # no division by zero
_EXPERTS = re.compile(r"grouped_mm|grouped_gemm|moe|expert|permute", re.IGNORECASE)
_SHOWN = 80  # characters of an op or its arguments
_SHAPE = re.compile(r"\[([\d,]+)\]")
_SIZE = re.compile(r"(?<=[\[,])(\d*)(?=[\],])")


class StragglerVerdict(Struct, frozen=True):
    """Why the last rank of a collective was late."""

    rank: int  # who is to blame: the last rank, or one of the others that held it up before
    cause: str  # one of CAUSES
    evidence: str  # the figures that say so
    late_ns: int  # how late the last rank was
    # evidence of the verdict that a chain of inherited lateness goes back to, "" where this is it
    root: str = ""


class Comparison:
    """Compares the ranks of collectives; made once for a run.

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
            {rank: part.kernels.ready for rank, part in parts.items()},
            {rank: part.kernels.beside_end for rank, part in parts.items()},
        )
        self._collectives = collectives = aligned.collectives
        self._verdicts: dict[int, StragglerVerdict] = {}
        self._reach = {rank: np.maximum.accumulate(comm.end) for rank, comm in self._communication.items()}
        self.cut = 0  # late arrivals behind more than AT_ONCE communication kernels: not all were looked at
        self.recorder = DelayRecorder()  # of the delays at all collectives; full when the verdicts are made
        self._of_kernel: dict[tuple[int, int], int] = {}
        for index, collective in enumerate(collectives):
            for participant in collective.participants:
                self._of_kernel.setdefault((participant.rank, participant.record.kernel), index)

    def equal_calls(self, rank: int) -> EqualCalls:
        """How long a rank's GPU takes for what the others do as well."""
        return self._workloads.equal.get(rank, EqualCalls(0.0, 1.0))

    def verdicts(self) -> list[StragglerVerdict]:
        """Why the last rank of each collective was late."""
        # In order of arrival, so that what a collective inherits is known by then.
        order = sorted(range(len(self._collectives)), key=lambda index: self._collectives[index].last.start)
        for index in order:
            collective = self._collectives[index]
            spans = self._spans.of(index, collective)
            participants = collective.participants
            # Time of each member's span by TIMES, and its begin.
            times = np.array(
                [
                    [*(before[span.last] - before[span.first]).astype(float), span.begin]
                    for member in participants
                    for before, span in [(self._time_before[member.rank], spans[member.rank])]
                ]
            )
            before = None
            if not self._cpu_only:  # what a CPU computes beside communication slows that down
                before = carried(collective, self._spans.common(index, collective), *self._ready, self._shift)
            self._verdicts[index] = self._verdict(index, collective, spans, times, before)
            if collective.collective == SEND_RECV:
                continue  # a receive waits for its sender in every schedule of a pipeline
            # What each rank lost on its way to the collective.
            held = [self._held(participant, spans[participant.rank]) for participant in participants]
            start = np.array([participant.start for participant in participants])
            called = np.array([self._called(participant) for participant in participants])
            ns = delays_of(
                start,
                times[:, -1],
                times[:, :-1],
                None if any(values is None for values in held) else np.array(held, dtype=float),
                (called >= 0) & (start - called <= UNQUEUED_NS),
                before.more_ns if before else None,
            )
            # Late launches behind more blocking calls than the others have are what these calls cost.
            blocked = self._more_blocks(participants) > 0
            ns[blocked, BLOCKED] += ns[blocked, LATE]
            ns[blocked, LATE] = 0
            own = times[:, :-1].sum(axis=1) - times[:, COMM]
            ranks, steps = zip(*((member.rank, member.record.step) for member in participants), strict=True)
            self.recorder.add(ranks, steps, ns, float(median(own)))
        return [self._verdicts[index] for index in range(len(self._collectives))]

    def _verdict(
        self,
        index: int,
        collective: MatchedCollective,
        spans: Mapping[int, ComparedSpan],
        times_of_all: Float,
        before: Carried | None,
    ) -> StragglerVerdict:
        last, wait = collective.last, collective.wait_ns
        is_last = np.array([participant.rank == last.rank for participant in collective.participants])
        waiting = [participant for participant in collective.participants if participant.rank != last.rank]
        weight = np.array([wait[participant.rank] for participant in waiting], dtype=float)
        late = -weighted_median(
            np.array([[participant.start - last.start] for participant in waiting], dtype=float), weight
        )[0]
        if sum(wait.values()) < SMALL_NS:
            evidence = f"the others waited {duration(sum(wait.values()))} in total"
            return StragglerVerdict(last.rank, "unknown", evidence, round(late))
        if before and before.more_ns[before.last] < EXPLAINED * late <= before.before_ns:
            text = f"its computation was {duration(before.before_ns)} behind that of the others before"
            return self._from(index, *self._at(last.rank, before.kernel, text), round(late))
        # Where the host launched the communication late on a busy GPU: computation that goes on when the
        # communication begins is not what it waited for, and a kernel that begins as soon as it is launched
        # waited for nothing else either.
        called = [self._called(participant) for participant in (last, *waiting)]
        unqueued = min(called) >= 0 and last.start - called[0] <= UNQUEUED_NS
        if unqueued and self._parts[last.rank].kernels.beside[last.record.kernel]:
            since = (np.array(called[1:])[:, None] - called[0]).astype(float)
            behind = -weighted_median(since, weight)[0]
            if behind >= EXPLAINED * late:
                text = f"it was launched {duration(behind)} after the others', while its GPU was busy"
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
        # Sender and receiver may be in different parts of the program.
        is_pair = collective.collective == SEND_RECV
        if excess is not None and is_work and is_pair and excess.alike < SAME_WORK:
            text = f"{excess.text[cause]}; pipeline stages differ by design, which says nothing about load"
            return StragglerVerdict(last.rank, "unknown", text, round(late))
        if explained_ns.get(cause, 0.0) >= max(EXPLAINED * late, 1):
            if cause == "inherited":
                # A rank that was late for what it did itself is still late for that, and so is one of the
                # others that held the last rank up elsewhere.
                return self._from(index, *self._before(last, spans[last.rank], times, typical), round(late))
            if excess is not None and cause in excess.text:
                return StragglerVerdict(last.rank, cause, excess.text[cause], round(late))
            kind = next(kind for kind, name in IDLE.items() if name == cause)
            host = self._host(last.rank, spans[last.rank], kind)
            cpu_only = self._parts[last.rank].cpu_only
            idle = "no op ran for" if cpu_only else "GPU idle"
            versus = f"{idle} {duration(times[kind])} (others {duration(typical[kind])})"
            if cause != "late_launch":
                text = f"{versus} because {REASON[cause].format(host=host or 'a call')}"
                return StragglerVerdict(last.rank, cause, text, round(late))
            why = f" because {REASON[cause].format(host=host or 'a call')}"
            if cpu_only:
                why = f"{host and ', the longest time in '}{host}"
            return self._late_launch(f"{versus}{why}", late, collective, spans, weight)
        most = int(np.argmax(extra[:-1]))
        activity = {WORK: "computation", COMM: "other communication"}.get(most, "idle time")
        largest = "no activity took longer"
        if extra[most] > 0:
            largest = f"mostly {duration(extra[most])} more {activity}"
        text = f"{duration(late)} late, not explained by the trace: {largest} than the others"
        return StragglerVerdict(last.rank, "unknown", text, round(late))

    def _host(self, rank: int, span: ComparedSpan, kind: int) -> str:
        """What the host was in during the longest idle time of a kind."""
        part = self._parts[rank]
        if span.first == span.last:
            return ""
        piece = span.first + int(np.argmax(part.longest[span.first : span.last, kind]))
        code = int(part.host[piece, kind])
        return part.texts[code] if code >= 0 else ""

    def _from(self, index: int, text: str, before: int, late: int) -> StragglerVerdict:
        """The verdict for lateness that was there before, if it is known: whose and what it was then.

        Args:
            index: of the collective.
            text: evidence.
            before: the collective that the lateness comes from, -1 if unknown.
            late: ns.
        """
        collective = self._collectives[index]
        last = collective.last
        if before == _BEFORE_RECORDING:
            return StragglerVerdict(last.rank, "recording_began", text, late)
        # Clocks that are off can turn the order of two around.
        origin = self._verdicts.get(before)
        if (
            origin is None
            or origin.cause in ("inherited", "unknown")
            or origin.rank not in collective.wait_ns
        ):
            return StragglerVerdict(last.rank, "inherited", text, late)
        held = "" if origin.rank == last.rank else f"held rank {last.rank} up, which "
        # One link of a long chain says as much as all of them.
        root = origin.root or origin.evidence
        between = ", late from before: " if origin.root else ": "
        return StragglerVerdict(origin.rank, origin.cause, f"{held}{text}{between}{root}", late, root)

    def _before(self, last: Participant, span: ComparedSpan, times: Float, typical: Float) -> tuple[str, int]:
        """Evidence for lateness that a rank brought with it, and the collective it brought it from."""
        comm, shift = self._communication[last.rank], self._shift[last.rank]
        start = last.start - shift
        if (begun := times[-1] - typical[-1]) >= times[COMM] - typical[COMM]:
            kernels = self._spans.ends[last.rank].between(None, start)
            text = f"had left the communication before it {duration(begun)} later than the others"
            if not len(kernels):
                return f"its recording began {duration(begun)} later than the others'", _BEFORE_RECORDING
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

    def _late_launch(
        self,
        text: str,
        late: float,
        collective: MatchedCollective,
        spans: Mapping[int, ComparedSpan],
        weight: Float,
    ) -> StragglerVerdict:
        """The verdict for late launches: what held the host up may have come while its GPU was still busy.

        A host that has lost its lead launches each kernel late for a while. Ranks that wait for the last one
        block longer than it does where all of them synchronize.
        """
        last = collective.last
        waiting = [participant for participant in collective.participants if participant.rank != last.rank]
        held = [self._held(participant, spans[participant.rank]) for participant in (last, *waiting)]
        if all(times is not None for times in held):
            of_all = np.array(held, dtype=float)
            typical = weighted_median(of_all[1:], weight)
            extra = of_all[0] - typical
            kind = max(HOLDING, key=lambda kind: float(extra[kind]))
            # Sender and receiver block where their parts of the program do, which says nothing of either.
            between_stages = kind == BLOCKED and collective.collective == SEND_RECV
            if extra[kind] >= max(EXPLAINED * late, 1) and not between_stages:
                host = self._host(last.rank, spans[last.rank], kind)
                times = f"{duration(of_all[0][kind])} (others {duration(typical[kind])})"
                evidence = f"{text}; before, {HOLDING[kind]} {times}{host and ' in '}{host}"
                return StragglerVerdict(last.rank, IDLE[kind], evidence, round(late))
        if collective.collective != SEND_RECV and (more := self._more_blocks((last, *waiting))[0]) > 0:
            calls = self._blocks(last)
            times = "once" if calls == 1 else f"{calls} times"
            text += f"; before, it had waited for the GPU {times} in this step (others {calls - more:g})"
            return StragglerVerdict(last.rank, "blocking_call", text, round(late))
        return StragglerVerdict(last.rank, "late_launch", text, round(late))

    def _held(self, participant: Participant, span: ComparedSpan) -> Int | None:
        """What the host did from one launch to the other, ns by TIMES; None if unknown."""
        part, kernel = self._parts[participant.rank], participant.record.kernel
        if part.kernels.launch[kernel] < 0 or (span.before >= 0 and part.kernels.launch[span.before] < 0):
            return None
        before = part.kernels.held[span.before] if span.before >= 0 else 0
        held: Int = np.maximum(part.kernels.held[kernel] - before, 0)
        return held

    def _blocks(self, participant: Participant) -> int:
        return int(self._parts[participant.rank].kernels.blocks[participant.record.kernel])

    def _more_blocks(self, participants: Sequence[Participant]) -> Float:
        """How much oftener each rank's host waited for the GPU in this step than the others in the median.

        0 where it did less than twice as often: programs that wait in loops differ by a few.
        """
        blocks = np.array([[float(self._blocks(participant))] for participant in participants])
        more = blocks - median_of_others(blocks)
        result: Float = np.where((more >= blocks / 2) & (not self._cpu_only), more, 0.0)[:, 0]
        return result

    def _called(self, participant: Participant) -> int:
        launch = int(self._parts[participant.rank].kernels.launch[participant.record.kernel])
        return launch + self._shift[participant.rank] if launch >= 0 else -1


class Delays(NamedTuple):
    """Delays of all ranks, one row for each collective that a rank took part in."""

    ranks: Sequence[int]  # number of ranks
    steps: Sequence[str]  # number of steps
    rank: Int  # position of the rank
    step: Int  # position of the step
    position: Int  # of the collective among those of the rank and step
    ns: Float  # of the delay, by TIMES; OTHER has what nothing explains
    typical_ns: Float  # what the ranks took since their last collective, in the median

    def without_first(self) -> Delays:
        """All steps but the first."""
        kept = self.step > 0
        return self._replace(
            steps=self.steps[1:],
            rank=self.rank[kept],
            step=self.step[kept] - 1,
            position=self.position[kept],
            ns=self.ns[kept],
            typical_ns=self.typical_ns[kept],
        )

    def by_step(self, kind: int) -> Float:
        """Delays of one kind: ns by rank and step."""
        by_step: Float = self._by_place(kind).sum(axis=2)
        return by_step

    def whole_by_step(self, kind: int) -> Float:
        """The same with the very first delay as in the other steps: part of it may precede the recording."""
        ns = self._by_place(kind)
        if len(self.steps) > 1 and ns.shape[2]:
            ns[:, 0, 0] = ns[:, 1:, 0].mean(axis=1)
        by_step: Float = ns.sum(axis=2)
        return by_step

    def recurring(self, *kinds: int, anywhere: bool = False) -> Float:
        """What each rank loses at the same places of its steps, beyond the most of the others there, ns.

        Args:
            kinds: of delay, of TIMES; of several their sum.
            anywhere: whether a step is one place.
        """
        ns = self._by_place(*kinds)
        ranks, steps, positions = ns.shape
        if ranks < 2 or steps < 2 or not positions:
            return np.zeros(ranks)
        ns = ns.sum(axis=2, keepdims=True) if anywhere else ns
        least = ns.copy()
        if not anywhere or steps > 2:
            least[:, 0, 0] = np.inf  # part of it may precede the recording
        skipped = max(int(np.ceil(RECURS_QUANTILE * steps)) - 1, 0)
        least, most = np.sort(least, axis=1)[:, skipped], np.sort(ns, axis=1)[:, -1 - skipped]
        two_most = np.sort(most, axis=0)[-2:]
        of_others = np.where(most == two_most[1], two_most[0], two_most[1])
        result: Float = np.maximum(least - of_others, 0).sum(axis=1)
        return result

    def _by_place(self, *kinds: int) -> Float:
        """By rank, step and position among the collectives."""
        total = np.zeros((len(self.ranks), len(self.steps), int(self.position.max(initial=-1)) + 1))
        np.add.at(total, (self.rank, self.step, self.position), self.ns[:, kinds].sum(axis=1))
        return total

    def by_position(self, kind: int, ranks: Int) -> Float:
        """Delays of one kind over what is usual there: by rank, step and position among the collectives.

        A host that is slow by a tenth loses most where there is most to do, and so do the others at times.
        Relative to the time that all take there, and to what the other ranks lose there in the mean of all
        steps, it loses as much everywhere.
        """
        ns = self._by_place(kind)
        typical_ns = np.zeros(ns.shape)
        typical_ns[self.rank, self.step, self.position] = self.typical_ns
        mean_ns = ns.mean(axis=1, keepdims=True)
        others_ns = (mean_ns.sum(axis=0) - mean_ns) / max(len(self.ranks) - 1, 1)
        usual_ns = typical_ns + max(float(self.typical_ns.mean()), 1.0) + USUAL_WEIGHT * others_ns
        result: Float = (ns / usual_ns)[ranks]
        return result


class DelayRecorder:
    """Collects delays, collective by collective."""

    def __init__(self) -> None:
        self._rows: list[tuple[Sequence[int], Sequence[str], Float, Float]] = []

    def add(self, ranks: Sequence[int], steps: Sequence[str], ns: Float, typical_ns: float) -> None:
        """One collective: its ranks, the step of each, their delays by `delays_of`, the typical time."""
        self._rows.append((ranks, steps, ns, np.full(len(ranks), typical_ns)))

    def delays(self) -> Delays:
        """All of them, of the steps alone."""
        ranks = sorted({rank for of_ranks, *_ in self._rows for rank in of_ranks})
        steps = list(
            dict.fromkeys(step for _, of_ranks, *_ in self._rows for step in of_ranks if is_step(step))
        )
        rank_code, step_code = (
            {value: code for code, value in enumerate(values)} for values in (ranks, steps)
        )
        count: Counter[tuple[int, int]] = Counter()
        rank, step, position, kept = [], [], [], []
        for of_ranks, of_steps, *_ in self._rows:
            for number, label in zip(of_ranks, of_steps, strict=True):
                kept.append(label in step_code)
                if kept[-1]:
                    cell = rank_code[number], step_code[label]
                    rank.append(cell[0])
                    step.append(cell[1])
                    position.append(count[cell])
                    count[cell] += 1
        ns = np.concatenate([row[2] for row in self._rows] or [np.empty((0, len(TIMES)))])
        typical_ns = np.concatenate([row[3] for row in self._rows] or [np.empty(0)])
        is_kept = np.array(kept, dtype=bool)
        return Delays(
            ranks=ranks,
            steps=steps,
            rank=np.array(rank, dtype=np.int64),
            step=np.array(step, dtype=np.int64),
            position=np.array(position, dtype=np.int64),
            ns=ns[is_kept],
            typical_ns=typical_ns[is_kept],
        )


class Excess(Struct, frozen=True):
    """Why one rank computed longer than the others."""

    # because of more rows in the same ops (token_load), more or other work (extra_work), or the same work
    # being slower (slow_kernels)
    ns: Mapping[str, float]
    text: Mapping[str, str]  # evidence for each
    alike: float  # share of its time in ops in which the others spent a comparable time


class _Table(NamedTuple):
    """Work of one stretch by key: codes, ascending, with calls and ns of each."""

    key: Int
    calls: Float
    ns: Int


class EqualCalls(Struct, frozen=True):
    """Calls of one rank that others make with the same arguments."""

    calls: float  # in the whole recording
    slower: float  # as long as on the others, the median of these, in three quarters of their time at least

    @property
    def is_slow(self) -> bool:
        """Whether that cannot be chance."""
        return self.calls >= EQUAL_CALLS and self.slower >= EQUAL_SLOWER


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
            rank: np.array([code.setdefault(key, len(code)) for key in part.work.keys], dtype=np.int64)
            for rank, part in parts.items()
        }
        self._keys = list(code)
        self._tables = {rank: self._table(rank, 0, len(part.time)) for rank, part in parts.items()}

        # Time of a call of each key of a rank: the median of the other ranks that have it, 0 where none has.
        tables = list(self._tables.values())
        key = np.concatenate([table.key for table in tables])
        mean = np.concatenate([table.ns / np.maximum(table.calls, _LEAST_CALLS) for table in tables])
        order = np.lexsort((mean, key))
        group = key[order]
        first, last = np.searchsorted(group, group), np.searchsorted(group, group, side="right")
        position, count = np.arange(len(order)) - first, last - first - 1
        middle = [offset + (offset >= position) for offset in ((count - 1) // 2, count // 2)]
        low, high = (mean[order][np.minimum(first + offset, len(order) - 1)] for offset in middle)
        typical = np.zeros(len(key))
        typical[order] = np.where(count > 0, (low + high) / 2, 0.0)
        split = np.split(typical, np.cumsum([len(table.key) for table in tables])[:-1])
        self._usual_ns: dict[int, Float] = dict(zip(self._tables, split, strict=True))

        # How much longer each rank takes for the same arguments. The same name and grid need not be the same
        # work, since persistent kernels have one grid for all sizes.
        has_arguments = np.array([bool(key.arguments) for key in self._keys], dtype=bool)
        self._slowness: dict[int, float] = {}
        self.equal: dict[int, EqualCalls] = {}
        # The key with most of the work that a rank has on a stream of its own, where that takes a good part
        # of what its other kernels lose, and so slows them down.
        self._beside: dict[int, int] = {}
        for rank, table in self._tables.items():
            usual, work = self._usual_ns[rank], parts[rank].work
            known = (usual > 0) & has_arguments[table.key]
            expected = float((usual * table.calls)[known].sum())
            self._slowness[rank] = float(table.ns[known].sum()) / expected if expected > 0 else 1.0
            if expected > 0 and not parts[rank].cpu_only:
                ratio = table.ns[known] / (usual * table.calls)[known]
                lower = weighted_quantile(ratio, table.ns[known].astype(float), EQUAL_QUANTILE)
                self.equal[rank] = EqualCalls(float(table.calls[known].sum()), lower)
            keys = self._code[rank]
            own = self._on_own_stream(rank, keys)
            if own.any():
                own &= self._extra_calls[rank][self._family[keys]]
            lost = float(np.where(usual > 0, table.ns - usual * table.calls, 0).sum())
            if own.any() and float(work.key_ns[own].sum()) >= BESIDE * lost:
                self._beside[rank] = int(keys[own][np.argmax(work.key_ns[own])])

    def excess(self, ranges: Sequence[tuple[int, int, int]], more: float, weight: Float) -> Excess:
        """What the first of several ranks computed more than the others.

        Args:
            ranges: (rank, first piece, last piece), the one in question first.
            more: ns that it computed longer than they, to be divided among the reasons.
            weight: of each of the others.
        """
        rank = ranges[0][0]
        late_rank, *other_ranks = (self._table(number, first, last) for number, first, last in ranges)
        key = late_rank.key
        # Time of a call of each key: the median of the others that have it.
        typical = np.zeros(len(key))
        if len(key):
            values = np.full((len(other_ranks), len(key)), np.inf)
            for row, table in enumerate(other_ranks):
                position = np.minimum(np.searchsorted(key, table.key), len(key) - 1)
                same = key[position] == table.key
                values[row, position[same]] = (table.ns / np.maximum(table.calls, _LEAST_CALLS))[same]
            values.sort(axis=0)
            count = np.isfinite(values).sum(axis=0)
            columns = np.flatnonzero(count)
            count = count[columns]
            typical[columns] = (values[(count - 1) // 2, columns] + values[count // 2, columns]) / 2
        # What they did not run at these shapes now, they may have run at another time.
        at_other_times = self._usual_ns[rank][np.searchsorted(self._tables[rank].key, key)]
        typical = np.where(typical > 0, typical, at_other_times)
        known = typical > 0
        mean = late_rank.ns / np.maximum(late_rank.calls, _LEAST_CALLS)
        slower = np.where(known, (mean - typical) * late_rank.calls, 0.0)
        # What the others did not run at these shapes: as much slower as this GPU is at what they did.
        factor = self._slowness[rank]
        rest = 1 - 1 / factor if factor >= SLOWER_RATIO else 0.0
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
        other, rows = self._other_work(rank, at_usual_speed, other_ranks, weight)
        extra = float(other.ns.sum())
        # Of more time than there is to explain, each explains its share.
        share = min((more - slow) / max(extra + rows, 1.0), 1.0)
        ns = {"token_load": rows * share, "extra_work": extra * share}
        text = {"token_load": self._load_text(late_rank, nearest)}
        # The work with most of the time that the other ranks do not have.
        text["extra_work"] = text["token_load"]
        if len(key) and other.ns.max() > 0:
            row = int(np.argmax(other.ns))
            text["extra_work"] = f"{self._extra(rank, int(key[row]))} ({duration(float(other.ns[row]))} here)"
        # The calls that took most time beyond the others' equal calls.
        device = "CPU" if any(part.cpu_only for part in self._parts.values()) else "GPU"
        text["slow_kernels"] = (
            f"over the whole recording its {device} takes {factor:.2f}x as long for equal work"
        )
        if len(slower) and slower.max() > 0:
            worst = int(np.argmax(slower))
            slowest = self._keys[key[worst]]
            words = (
                f"{self._name(int(key[worst]))} {_short(slowest.arguments)}".rstrip()
                + f" {duration(mean[worst])} per call against {duration(typical[worst])}"
                + f" ({_calls(late_rank.calls[worst])})"
            )
            if not slowest.arguments and not slowest.kernel.endswith("blocks"):
                words += ", arguments not recorded: the call may have been larger"
            overall = f"; {text['slow_kernels']}" if factor >= SLOWER_RATIO else ""
            text["slow_kernels"] = words + overall
        # Kernels are slower beside work that no other rank has.
        if slow > extra and rank in self._beside:
            ns["extra_work"] += slow
            slow = 0.0
            text["extra_work"] = (
                f"{text['slow_kernels']}; in addition {self._extra(rank, self._beside[rank])}"
            )
        ns["slow_kernels"] = slow
        ns_by_op, usual_by_op = self._by_op(late_rank), self._by_op(nearest)
        same_ns = sum(ns for op, ns in ns_by_op.items() if usual_by_op.get(op, 0) >= COMPARABLE * ns)
        alike = same_ns / max(sum(ns_by_op.values()), 1)
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
        more_calls = np.maximum(calls - usual_calls, 0) * ns / np.maximum(calls, _LEAST_CALLS)
        varies = self._varies[codes_of_family]
        # How often experts are called depends on the tokens, too.
        by_tokens = varies & (usual_calls > 0)
        if self._routed is not None:
            by_tokens &= rank in self._routed
        else:
            experts = {
                int(code)
                for code, key in zip(self._family, self._keys, strict=True)
                if _EXPERTS.search(f"{key.op} {key.kernel}")
            }
            by_tokens &= np.isin(codes_of_family, list(experts))
        # Where the others' experts get no tokens at all, they do not run.
        by_tokens |= (usual_calls == 0) & (rank in self._sole)
        # What all ranks call as often, they may call elsewhere.
        is_extra = self._extra_calls[rank][codes_of_family] & ~by_tokens
        extra = np.where(is_extra, np.minimum(np.where(usual_calls > 0, more_calls, ns), more), 0)
        extra = np.where(varies & (usual_calls > 0) & ~by_tokens, more, extra)
        in_family = extra[family] * table.ns / np.maximum(ns[family], 1)
        other = _Table(table.key, table.calls, np.round(in_family).astype(np.int64))
        return other, float(np.where(usual_calls > 0, more, ns)[by_tokens].sum())

    @cached_property
    def _family(self) -> Int:
        """Of each key; made where a rank computed longer than the others, or on a stream of its own."""
        return families(self._keys)

    @cached_property
    def _varies(self) -> Bool:
        """Whether each family has several keys."""
        several: Bool = np.bincount(self._family, minlength=len(self._keys)) > 1
        return several

    @cached_property
    def _extra_calls(self) -> dict[int, Bool]:
        """Families that each rank calls more often than the others in the median, in the whole recording."""
        calls = np.zeros((len(self._parts), len(self._keys)))
        for row, (rank, part) in enumerate(self._parts.items()):
            np.add.at(calls[row], self._family[self._code[rank]], part.work.key_calls)
        extra = {}
        for row, rank in enumerate(self._parts):
            others = np.delete(calls, row, axis=0)
            usual_calls = median(others) if len(others) else calls[row]
            extra[rank] = calls[row] > usual_calls * MORE_CALLS_RATIO + 0.5
        return extra

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
        stream[self._code[rank]] = self._parts[rank].work.stream
        return stream[key]

    def _on_own_stream(self, rank: int, key: Int) -> Bool:
        """Whether these keys run on a stream that no other rank computes on."""
        # Of a host that works itself they are threads.
        if self._parts[rank].cpu_only:
            return np.zeros(len(key), dtype=bool)
        streams = [part.work.stream for number, part in self._parts.items() if number != rank]
        stream = self._stream(rank, key)
        return (stream >= 0) & ~np.isin(stream, np.concatenate([*streams, np.empty(0, dtype=np.int64)]))

    def _calls(self, rank: int, key: int) -> int:
        """Calls of a key in the whole recording."""
        return int(self._parts[rank].work.key_calls[self._code[rank] == key].sum())

    def _table(self, rank: int, first: int, last: int) -> _Table:
        part = self._parts[rank]
        low, high = np.searchsorted(part.work.piece, (first, last))
        group, (key,) = codes(self._code[rank][part.work.key[low:high]])
        calls = np.zeros(len(key))
        np.add.at(calls, group, part.work.calls[low:high])
        return _Table(key, calls, sums(group, part.work.ns[low:high], len(key)))

    def _load_text(self, table: _Table, reference: _Table) -> str:
        """The op with the most additional time, and in what its calls differ."""
        ns_by_op, reference_by_op = self._by_op(table), self._by_op(reference)
        if not ns_by_op:
            return "in kernels without a name"
        op = max(ns_by_op, key=lambda name: ns_by_op[name] - reference_by_op.get(name, 0))
        compared = f"{op} ({duration(ns_by_op[op])} against {duration(reference_by_op.get(op, 0))})"
        if op not in reference_by_op:
            return f"{compared}, which the others do not run at this point"
        # Rows that go into the op (of the first tensor), its calls, and the arguments with most time.
        sizes = []
        for of_rank in (table, reference):
            in_op = [row for row, key in enumerate(of_rank.key.tolist()) if self._name(key) == op]
            keys = [self._keys[of_rank.key[row]] for row in in_op]
            counts = of_rank.calls[in_op]
            dimensions = (_FIRST.search(key.arguments) for key in keys)
            each = [int(dimension[1]) if dimension else 0 for dimension in dimensions]
            total = sum(number * count for number, count in zip(each, counts.tolist(), strict=True))
            top = keys[int(np.argmax(of_rank.ns[in_op]))]
            sizes.append((round(total), round(float(counts.sum())), _short(top.arguments or top.kernel)))
        (rows, calls, largest), (reference_rows, reference_calls, reference_largest) = sizes
        if min(rows, reference_rows) > 0 and rows != reference_rows:
            return f"{rows:,} rows against {reference_rows:,} in {compared}"
        if calls != reference_calls:
            return f"{compared}, {_calls(calls)} against {reference_calls:,}"
        return (
            f"{compared}, {largest} against {reference_largest}" if largest != reference_largest else compared
        )

    def _by_op(self, table: _Table) -> dict[str, int]:
        ns_by_op: dict[str, int] = {}
        for key, ns in zip(table.key.tolist(), table.ns.tolist(), strict=True):
            name = self._name(key)
            ns_by_op[name] = ns_by_op.get(name, 0) + ns
        return ns_by_op

    def _name(self, key: int) -> str:
        work = self._keys[key]
        return work.op or _short(work.kernel.partition(" x ")[0])


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
        if carried_bytes > median([other for number, other in load.items() if number != rank])
    }


def _sole(collectives: Sequence[MatchedCollective]) -> set[int]:
    """Ranks to which all others send all they have, in most all-to-alls that are as uneven."""
    count: Counter[int] = Counter()
    for collective in collectives:
        got = [member.rank for member in collective.participants if member.record.received > 0]
        if collective.collective.startswith("all_to_all") and len(got) == 1:
            count[got[0]] += 1
    return {rank for rank, number in count.items() if 2 * number > count.total()}


def delays_of(
    start: Int, begin: Float, times: Float, held: Float | None, unqueued: Bool, most: Float | None
) -> Float:
    """The delays of the ranks of one collective, ns by TIMES.

    Args:
        start: when each arrives.
        begin: when each left the collective before.
        times: what each did since then, by TIMES.
        held: what the host of each did from one launch to the other, by TIMES; None if unknown.
        unqueued: whether its kernel began as soon as it was launched.
        most: of the delay of each, None where that is not limited.
    """
    late = start - median_of_others(start[:, None].astype(float))[:, 0]
    extra = times - median_of_others(times)
    brought = np.maximum(begin - median_of_others(begin[:, None])[:, 0], 0) + np.maximum(extra[:, COMM], 0)
    own = np.maximum(late - brought, 0)
    if most is not None:
        own = np.clip(most, 0, own)
    ns = np.maximum(extra, 0)
    ns[:, COMM] = 0
    total = ns.sum(axis=1)
    ns *= np.minimum(own / np.maximum(total, 1), 1)[:, None]
    rest = own - ns.sum(axis=1)
    # A kernel that stood in no queue waited for its launch, although other work ran meanwhile.
    ns[:, LATE] += np.where(unqueued, rest, 0)
    ns[:, OTHER] += np.where(unqueued, 0, rest)
    if held is not None:
        more = np.maximum(held - median_of_others(held), 0)
        for kind in HOLDS:
            for unexplained in (LATE, OTHER):
                moved = np.minimum(np.maximum(more[:, kind] - ns[:, kind], 0), ns[:, unexplained])
                ns[:, kind] += moved
                ns[:, unexplained] -= moved
    return ns


def _calls(number: float) -> str:
    count = max(round(number), 1)
    return f"{count:,} calls" if count > 1 else "1 call"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _with_one_size_open(arguments: str) -> set[str]:
    """Arguments with one of their sizes left open, where one is left that tells one weight from another.

    >>> sorted(_with_one_size_open("bf16[96,64] bf16[64,96]"))
    ['bf16[*,64] bf16[64,*]', 'bf16[96,*] bf16[*,96]']
    """
    sizes = {size for shape in _SHAPE.findall(arguments) for size in shape.split(",")}
    words = _SIZE.split(arguments)
    telling = sizes - {"1"}
    return {
        "".join(["*" if word == size else word for word in words])
        for size in sizes
        if len(telling) > (size in telling)
    }


def families(keys: Sequence[Key]) -> Int:
    """The family of each key: keys of one op whose arguments are the same but for one size.

    `bf16[96,64] bf16[64,64]` and `bf16[32,64] bf16[64,64]` are of a family, and so are `bf16[64,96]
    bf16[96,64]` and `bf16[64,32] bf16[32,64]`: one size may be in several places. Kernels without arguments
    are told by their name, whatever the number of their blocks.
    """
    forms = []
    open_forms: dict[str, set[str]] = {}  # of arguments, which ranks have in common
    for key in keys:
        # What it may share with others of its family: its arguments with one of their sizes left open.
        if key.arguments not in open_forms:
            open_forms[key.arguments] = _with_one_size_open(key.arguments)
        plain = key.arguments or key.kernel.partition(" x ")[0]
        forms.append([(key.op, form) for form in sorted({plain, *open_forms[key.arguments]})])
    shared = Counter(chain.from_iterable(forms))
    code: dict[tuple[str, str], int] = {}
    return np.array(
        [code.setdefault(max(of_one, key=shared.__getitem__), len(code)) for of_one in forms], dtype=np.int64
    )
