"""Why a rank was the last to arrive at a collective: its work since the one before, against the others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.comm import SEND_RECV, MatchedCollective, Participant
from tracelens.analysis.stragglers.segments import BLOCKED, COMM, GARBAGE, LATE, WORK, Segments
from tracelens.analysis.stragglers.spans import Span, Spans
from tracelens.analysis.stragglers.workload import Excess, Workloads, duration
from tracelens.arrays import Float

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
    """Why the last rank of an instance was late.

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
    """Compares the ranks of instances; made once for a run.

    Attributes:
        cut: late arrivals behind more than AT_ONCE communication kernels, not all of which were looked at.

    Args:
        parts: by rank.
        instances: all of the run by one clock, in order of time.
        offset: what the times of each rank's part are ahead of those of the instances.
    """

    def __init__(
        self, parts: Mapping[int, Segments], instances: Sequence[MatchedCollective], offset: Mapping[int, int]
    ) -> None:
        self._parts, self._offset = parts, offset
        self._workloads = Workloads(parts)
        self._spans = Spans(parts, instances, offset)
        self._instances = instances
        self._verdicts: dict[int, Verdict] = {}
        self._reach = {rank: np.maximum.accumulate(part.comms.end) for rank, part in parts.items()}
        self.cut = 0
        self._of_kernel: dict[tuple[int, int], int] = {}
        for place, instance in enumerate(instances):
            for member in instance.members:
                self._of_kernel.setdefault((member.rank, member.record.kernel), place)

    def verdicts(self) -> list[Verdict]:
        """Why the last rank of each instance was late."""
        # In order of arrival, so that what an instance inherits is known by then.
        order = sorted(range(len(self._instances)), key=lambda place: self._instances[place].last.start)
        for place in order:
            self._verdicts[place] = self._verdict(place, self._instances[place])
        return [self._verdicts[place] for place in range(len(self._instances))]

    def _verdict(self, place: int, instance: MatchedCollective) -> Verdict:
        last, wait = instance.last, instance.wait_ns
        others = [member for member in instance.members if member.rank != last.rank]
        weight = np.array([wait[member.rank] for member in others], dtype=float)
        late = -_typical(np.array([[member.start - last.start] for member in others], dtype=float), weight)[0]
        if sum(wait.values()) < SMALL_NS:
            said = f"the others waited {duration(sum(wait.values()))} in all"
            return Verdict(last.rank, "unknown", said, round(late))
        spans = self._spans.of(place, instance)
        if text := self._launched_late(late, last, others, weight):
            return self._late_launch(text, late, instance, spans, weight)
        mine = self._numbers(last, spans)
        theirs = np.array([self._numbers(member, spans) for member in others])
        usual = _typical(theirs, weight)
        more = mine - usual
        found = {_IDLE[kind]: float(more[kind]) for kind in _IDLE}
        # What a rank lost before, it can have caught up since.
        found["inherited"] = min(more[COMM] + more[-1], late)
        excess = None
        if more[WORK] >= EXPLAINED * late:
            ranges = [(member.rank, *spans[member.rank][:2]) for member in (last, *others)]
            excess = self._workloads.excess(ranges, float(more[WORK]))
            found |= {"token_load": excess.load, "slow_kernels": excess.slow}
        cause = max(CAUSES[:-1], key=lambda name: found.get(name, 0.0))
        if excess is not None and cause == "token_load" and _other_stage(instance, excess):
            text = f"{excess.load_text}; a pipeline stage does work of its own, which tells nothing of load"
            return Verdict(last.rank, "unknown", text, round(late))
        if found.get(cause, 0.0) >= max(EXPLAINED * late, 1):
            if cause == "inherited":
                return self._inherited(place, spans[last.rank], mine, usual, round(late))
            text = self._evidence(cause, last, spans, mine, usual, excess)
            if cause == "late_launch":
                return self._late_launch(text, late, instance, spans, weight)
            return Verdict(last.rank, cause, text, round(late))
        return Verdict(last.rank, "unknown", _unexplained(late, more), round(late))

    def _numbers(self, member: Participant, spans: Mapping[int, Span]) -> Float:
        """Time of a member's span by TIMES, and its begin."""
        span = spans[member.rank]
        time = self._parts[member.rank].time[span.first : span.last].sum(axis=0)
        return np.append(time.astype(float), span.begin)

    def _evidence(
        self,
        cause: str,
        last: Participant,
        spans: Mapping[int, Span],
        mine: Float,
        usual: Float,
        excess: Excess | None,
    ) -> str:
        if excess is not None and cause in ("token_load", "slow_kernels"):
            return excess.load_text if cause == "token_load" else excess.slow_text
        kind = next(kind for kind, name in _IDLE.items() if name == cause)
        against = f"{duration(mine[kind])} (others {duration(usual[kind])})"
        host = self._host(last.rank, spans[last.rank], kind)
        if self._parts[last.rank].on_host:
            return f"no op ran for {against}{host and ', the longest time in '}{host}"
        if cause == "blocking_call":
            return f"GPU idle {against} because the host was blocked in {host or 'a call'}"
        if cause == "garbage_collection":
            return f"GPU idle {against} because of garbage collection: {host}"
        return f"GPU idle {against} because the host launched late{host and ', the longest time in '}{host}"

    def _host(self, rank: int, span: Span, kind: int) -> str:
        """What the host was in during the longest idle time of a kind."""
        part = self._parts[rank]
        if span.first == span.last:
            return ""
        piece = span.first + int(np.argmax(part.longest[span.first : span.last, kind]))
        code = int(part.host[piece, kind])
        return part.texts[code] if code >= 0 else ""

    def _inherited(self, place: int, span: Span, mine: Float, usual: Float, late: int) -> Verdict:
        """The verdict for lateness that was there before: whose and what it was then, if that is known.

        A rank that was late for what it did itself is still late for that, and so is one of the others that
        held the last rank up elsewhere.
        """
        instance = self._instances[place]
        last = instance.last
        text, before = self._before(last, span, mine, usual)
        # Clocks that are off can turn the order of two around.
        origin = self._verdicts.get(before)
        if origin is None or origin.cause in ("inherited", "unknown") or origin.rank not in instance.wait_ns:
            return Verdict(last.rank, "inherited", text, late)
        held = "" if origin.rank == last.rank else f"held rank {last.rank} up, which "
        # One link of a long chain says as much as all of them.
        root = origin.root or origin.evidence
        between = ", late from before: " if origin.root else ": "
        return Verdict(origin.rank, origin.cause, f"{held}{text}{between}{root}", late, root)

    def _before(self, last: Participant, span: Span, mine: Float, usual: Float) -> tuple[str, int]:
        """Evidence for lateness that a rank brought with it, and the instance that it brought it from."""
        own, offset = self._parts[last.rank].comms, self._offset[last.rank]
        start = last.start + offset
        if (begun := mine[-1] - usual[-1]) >= mine[COMM] - usual[COMM]:
            kernels = self._spans.ends[last.rank].between(None, start)
            text = f"had left the communication before {duration(begun)} later than the others"
            if not len(kernels):
                return f"its recording began {duration(begun)} later than the others'", -1
            kernel = int(kernels[-1])
        else:
            text = f"spent {duration(mine[COMM])} in other communication (others {duration(usual[COMM])})"
            begin = span.begin + start
            high = int(np.searchsorted(own.start, start))
            low = max(high - AT_ONCE, 0)
            self.cut += bool(low and self._reach[last.rank][low - 1] > begin)
            kernels = np.arange(low, high)
            kernels = kernels[own.end[kernels] > begin]
            inside = np.minimum(own.end[kernels], start) - np.maximum(own.start[kernels], begin)
            kernel = int(kernels[np.argmax(inside)])
        place = self._of_kernel.get((last.rank, kernel), -1)
        if place < 0:
            return text, -1
        instance = self._instances[place]
        said = f"{text}: {instance.collective} {instance.order} of group {instance.group}"
        latest = instance.last.rank
        return (f"{said}, where rank {latest} was last" if latest != last.rank else said), place

    def _launched_late(
        self, late: float, last: Participant, others: Sequence[Participant], weight: Float
    ) -> str:
        """Evidence where the host asked for the communication late beside a busy GPU; "" where it did not.

        Computation that goes on when the communication begins is not what it waited for; and a kernel that
        begins as soon as it is launched waited for nothing else either.
        """
        called = [self._called(member) for member in (last, *others)]
        if min(called) < 0 or last.start - called[0] > _UNQUEUED_NS:
            return ""
        if not self._parts[last.rank].beside[last.record.kernel]:
            return ""
        behind = -_typical((np.array(called[1:])[:, None] - called[0]).astype(float), weight)[0]
        if behind < EXPLAINED * late:
            return ""
        return f"its launch was called {duration(behind)} after the others', while its GPU was busy"

    def _late_launch(
        self,
        text: str,
        late: float,
        instance: MatchedCollective,
        spans: Mapping[int, Span],
        weight: Float,
    ) -> Verdict:
        """The verdict for late launches: a call that blocked may be behind them.

        Once it has waited for the GPU, the host has no more launches ahead, so that each one is late for a
        while. Ranks that wait for the last one block longer than it does where all of them synchronise.
        """
        last = instance.last
        others = [member for member in instance.members if member.rank != last.rank]
        times = [self._blocked(member, spans[member.rank]) for member in (last, *others)]
        # Sender and receiver block where their parts of the program do, which says nothing of either.
        if min(times) < 0 or instance.collective == SEND_RECV:
            return Verdict(last.rank, "late_launch", text, round(late))
        usual = _typical(np.array(times[1:], dtype=float)[:, None], weight)[0]
        if times[0] - usual < EXPLAINED * late:
            return Verdict(last.rank, "late_launch", text, round(late))
        host = self._host(last.rank, spans[last.rank], BLOCKED)
        said = f"{text}; before, it was blocked for {duration(times[0])} (others {duration(usual)})"
        return Verdict(last.rank, "blocking_call", f"{said}{host and ' in '}{host}", round(late))

    def _blocked(self, member: Participant, span: Span) -> int:
        """How long the host sat in blocking calls from one launch to the other, -1 if unknown."""
        part, kernel = self._parts[member.rank], member.record.kernel
        if part.launch[kernel] < 0 or (span.before >= 0 and part.launch[span.before] < 0):
            return -1
        before = int(part.blocked[span.before]) if span.before >= 0 else 0
        return max(int(part.blocked[kernel]) - before, 0)

    def _called(self, member: Participant) -> int:
        launch = int(self._parts[member.rank].launch[member.record.kernel])
        return launch - self._offset[member.rank] if launch >= 0 else -1


def _unexplained(late: float, more: Float) -> str:
    """Evidence where nothing explains the lateness."""
    most = int(np.argmax(more[:-1]))
    what = {WORK: "computation", COMM: "other communication"}.get(most, "idle time")
    found = f"most of it {duration(more[most])} more {what}" if more[most] > 0 else "nothing was longer"
    return f"{duration(late)} late, unexplained by what was recorded: {found} than the others"


def _other_stage(instance: MatchedCollective, excess: Excess) -> bool:
    """Whether sender and receiver were in different parts of the program."""
    return instance.collective == SEND_RECV and excess.alike < _SAME_WORK


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
