"""Idle GPU time from the JSON: every ns of every gap by what the host did, swept over event boundaries.

A gap ends when the GPU begins its next work, so it is explained by the call that launched this work. Until
that call returned, the launching thread counts; where it did nothing, the other threads that launch work.
After it, work was queued and did not start. Behind all work, the thread that launched last counts.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple

from tests.reference.host import GpuWork, HostEvent, Lane, Recorded, Thread
from tests.reference.raw import STEP, union

SHORT, BORDER, NO_LAUNCH, UNRECORDED = "short gaps", "window", "no launch", "unrecorded work"
DISPATCH, OTHER_STREAM = "dispatch", "other stream"
PROFILER, COLLECTION, BLOCKING = "profiler", "garbage collection", "blocking call"
LOADING, COLLECTIVE, OPS, OVERHEAD, REFILL, SILENT = (
    "data loading", "collective call", "CPU ops", "launch overhead", "queue refill", "silent host",
)  # fmt: skip
KERNELS, PYTHON, STALLED = "kernel loading", "Python code", "stalled host"
# What a thread may be busy with before it is known for how long.
BUSY, NOTHING = "busy", "nothing"

SHORT_NS = 1_000
UNRECORDED_NS = 200_000
BUSY_NS = 1_000_000
SILENT_NS = 500_000
ALL_SILENT_NS = 1_000_000
OVERRUN_NS = 1_000
LOADING_RATIO = 2
STALLED_NS = 500_000
STALLED_RATIO = 10
STALLED_QUANTILE = 0.4
STALLED_CALLS = 3

_SYNCHRONIZE = re.compile(r"^(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize(_pt[sd][sz]|_spt)?$")
_DEVICE_SYNCHRONIZE = re.compile(r"^(cuda|hip)DeviceSynchronize$")
_BLOCKING = re.compile(
    r"^(cuda|hip)(Memcpy(2D|3D)?|Malloc|Free|HostAlloc|MallocHost|FreeHost|HostMalloc|HostFree)$"
    r"|^hipMemcpyWithStream$|^(cuda|hip)Memcpy(To|From)Symbol$"
    r"|^cuMem(cpy(DtoH|HtoD)|Alloc|Free|AllocHost|FreeHost|HostAlloc)(_v2)?$"
)
_ON_DEVICE = re.compile(r"DtoD|PtoP|Device -> Device|DeviceToDevice", re.IGNORECASE)
_PROFILER_FRAME = re.compile(r"(^|/)torch/(profiler/|autograd/profiler)")
_COLLECTION = re.compile(r"^Python GC|^gc\.collect|<built-in function collect>")
_LOADING = re.compile(r"DataLoader.*__next__|enumerate\(DataLoader\)|dataloader\.py\(\d*\): __next__")
_DRIVER = {
    "Lazy Function Loading": KERNELS, "Runtime Triggered Module Loading": KERNELS, "Driver Compiler": KERNELS,
    "Command Buffer Full": BLOCKING,
}  # fmt: skip
_CODE_CALL = re.compile(
    r"^(cu(Module|Library)(Load|Unload)|cuLink|cudaLibraryLoad|hipModule(Load|Unload)|hipLink|nvrtc|hiprtc)"
)
_COMPILER = re.compile(r"torch/_dynamo/convert_frame\.py|triton/compiler/|\(dynamo_timed\)")
_NODE = "autograd::engine::evaluate_function: "
_COLLECTIVE = re.compile(r"^(c10d::|nccl:|gloo:|record_param_comms|ncclComm|symm_mem::)")


class Piece(NamedTuple):
    """Part of a gap with one cause; `host` is the event that is blamed, if it is a blocking call."""

    start: int
    end: int
    cause: str
    host: str = ""


class Gap(NamedTuple):
    """A stretch without GPU work, and its pieces: adjoining, in order, together the whole of it."""

    start: int
    end: int
    pieces: tuple[Piece, ...]


class State(NamedTuple):
    """What a thread does at a time: `blocked_in` is the innermost blocking call."""

    activity: str
    blocked_in: HostEvent | None
    in_collective: bool
    in_frame: bool = False
    innermost: HostEvent | None = None


IDLE = State(NOTHING, None, False)


class Timeline:
    """The state of one thread, from each of `times` to the next."""

    def __init__(self, times: list[int], states: list[State]) -> None:
        self.times, self.states = times, states

    def at(self, time: int) -> State:
        row = bisect_right(self.times, time) - 1
        return self.states[row] if row >= 0 else IDLE

    def within(self, low: int, high: int) -> list[int]:
        return self.times[bisect_right(self.times, low) : bisect_right(self.times, high - 1)]


def gaps_of(rank: Recorded) -> list[Gap]:
    """Every gap in the window from the first work or step mark to the last."""
    if not rank.work:
        return []
    marks = [event for event in rank.events() if event.kind == "annotation" and STEP.fullmatch(event.name)]
    last_mark = max(marks, key=lambda mark: mark.start).end if marks else 0
    busy = union([(work.start, work.end) for work in rank.work])
    low, high = rank.work[0].start, max(work.end for work in rank.work)
    if marks:
        first_mark = min(mark.start for mark in marks)
        low = low if _has_backlog(rank, first_mark) else min(low, first_mark)
        high = max(high, last_mark)
    edges = [low, *(time for interval in busy for time in interval), high]
    blame = Blame(rank)
    return [
        Gap(start, end, tuple(blame.pieces(start, end)))
        for start, end in zip(edges[::2], edges[1::2], strict=True)
        if end > start
    ]


def _has_backlog(rank: Recorded, first_mark: int) -> bool:
    """Whether work was launched before the first step: then the window begins with this work.

    Work without launch, on a stream that has work with one, was launched before the next piece there.
    """
    begun: set[Lane] = set()
    linked = {work.lane for work in rank.work if work.call is not None}
    for work in rank.work:
        if work.call is not None:
            begun.add(work.lane)
        called = work.call.start if work.call is not None else work.start
        if called < first_mark or (work.lane in linked and work.lane not in begun):
            return True
    return False


class Blame:
    """Splits gaps of one rank by what the host did."""

    def __init__(self, rank: Recorded) -> None:
        self.next_work: dict[int, GpuWork] = {}
        for work in rank.work:
            self.next_work.setdefault(work.start, work)
        # Of those that end together, the one that began last.
        self.by_end = sorted(rank.work, key=lambda work: (work.end, work.start, work.order))
        self.ends = [work.end for work in self.by_end]
        called = [work.call for work in rank.work if work.call is not None]
        launches = Counter(call.thread for call in called)
        self.launching = sorted(launches, key=lambda thread: (-launches[thread], _numeric(thread)))
        self.last_thread = max(called, key=lambda call: call.start).thread if called else None
        copying = _waiting_copies(rank)
        own = _profiler_synchronize(rank)
        self.timelines = {thread: timeline(rank.host[thread], copying, own) for thread in self.launching}
        for line in self.timelines.values():
            _load_kernels(line, rank)
            _stall(line, rank)
        self.held_up = {thread: _held_up(line, rank.overhead) for thread, line in self.timelines.items()}

    def pieces(self, start: int, end: int) -> list[Piece]:
        if end - start <= SHORT_NS:
            return [Piece(start, end, SHORT)]
        work = self.next_work.get(end)
        if work is None:
            # The last step goes on: its thread is the one that launched last.
            return (
                self._host_part(start, end, self.last_thread)
                if self.last_thread
                else [Piece(start, end, BORDER)]
            )
        if work.call is None:
            return [Piece(start, end, NO_LAUNCH)]
        returned = min(max(work.call.end, start), end)
        pieces = self._host_part(start, returned, work.call.thread)
        if returned < end:
            pieces.append(Piece(returned, end, self._queued(start, end - returned, work)))
        return pieces

    def _queued(self, start: int, queued_ns: int, work: GpuWork) -> str:
        if queued_ns > UNRECORDED_NS:
            return UNRECORDED
        before = bisect_right(self.ends, start)
        return DISPATCH if not before or self.by_end[before - 1].lane == work.lane else OTHER_STREAM

    def _host_part(self, low: int, high: int, thread: Thread) -> list[Piece]:
        others = [other for other in self.launching if other != thread and other[0] == thread[0]]
        timelines = [self.timelines[other] for other in (thread, *others)]
        held_up = self.held_up[thread]
        inner = {time for line in (*held_up, *timelines) for time in line.within(low, high)}
        cuts = [low, *sorted(inner), high]
        spans = [(*span, _state(span[0], timelines, held_up)) for span in pairwise(cuts) if span[0] < span[1]]
        busy_ns = sum(end - start for start, end, state in spans if state.activity == BUSY)
        blocked_ns: dict[HostEvent, int] = defaultdict(int)
        for start, end, state in spans:
            if state.activity == BLOCKING and state.blocked_in and _SYNCHRONIZE.match(state.blocked_in.name):
                blocked_ns[state.blocked_in] += end - start
        silent = union([(start, end) for start, end, state in spans if state.activity == NOTHING])
        silent_ns = sum(end - start for start, end in silent)
        is_long = Timeline(
            [start for start, _ in silent],
            [
                IDLE._replace(
                    activity=SILENT if end - start >= SILENT_NS or silent_ns > ALL_SILENT_NS else OVERHEAD
                )
                for start, end in silent
            ],
        )
        pieces: list[Piece] = []
        waited = ""
        for start, end, state in spans:
            cause, host = state.activity, ""
            if state.activity == BLOCKING and state.blocked_in:
                host = state.blocked_in.name
                waited = waited if host == "Command Buffer Full" else host
                cause = UNRECORDED if blocked_ns.get(state.blocked_in, 0) > UNRECORDED_NS else BLOCKING
            elif state.activity == BUSY:
                cause = (COLLECTIVE if state.in_collective else OPS) if busy_ns > BUSY_NS else OVERHEAD
            elif state.activity == NOTHING:
                cause = is_long.at(start).activity
                if cause == SILENT and state.in_frame:
                    cause = PYTHON
            if cause == OVERHEAD and waited:
                cause, host = REFILL, waited
            pieces.append(Piece(start, end, cause, host))
        return pieces


def _state(time: int, timelines: list[Timeline], held_up: list[Timeline]) -> State:
    """What the first thread does, else the first of the others that does anything."""
    state = timelines[0].at(time)
    # From a full queue over the profiler to kernels: what says more about a thread that gets nothing done.
    over = {BLOCKING: (COLLECTION, BLOCKING), PROFILER: (COLLECTION, BLOCKING, PROFILER)}
    for line in held_up:
        held = line.at(time)
        if held.activity != NOTHING and state.activity not in over.get(
            held.activity, (COLLECTION, BLOCKING, PROFILER, KERNELS)
        ):
            return held
    return next(
        (other for line in timelines if (other := line.at(time)).activity != NOTHING), timelines[0].at(time)
    )


def _unmoved(line: Timeline, event: HostEvent) -> bool:
    """Whether a busy thread got nothing done while this lasted, or a silent one was so for hardly longer."""
    activity = line.at(event.start).activity
    if activity not in (BUSY, NOTHING) or line.within(event.start, event.end):
        return False
    before, after = bisect_right(line.times, event.start) - 1, bisect_right(line.times, event.start)
    if activity == BUSY or before < 0 or after == len(line.times):
        return activity == BUSY
    return 2 * (event.end - event.start) > line.times[after] - line.times[before]


def _held_up(line: Timeline, overhead: list[HostEvent]) -> list[Timeline]:
    """When a full queue, the profiler and the loading of kernels kept a thread from its work."""
    result = []
    for kind in (BLOCKING, PROFILER, KERNELS):
        held = [event for event in overhead if _DRIVER.get(event.name, PROFILER) == kind]
        intervals = union([(event.start, event.end) for event in held if _unmoved(line, event)])
        result.append(
            Timeline(
                [time for interval in intervals for time in interval],
                [
                    IDLE._replace(activity=activity, blocked_in=held[0] if activity == BLOCKING else None)
                    for _ in intervals
                    for activity in (kind, NOTHING)
                ],
            )
        )
    return result


def _load_kernels(line: Timeline, rank: Recorded) -> None:
    """Ops in whose own time kernels were loaded, and which took far longer than others of their name."""
    loads = [event for event in rank.overhead if _DRIVER.get(event.name) == KERNELS]
    states = [line.at(event.start) for event in loads if not line.within(event.start, event.end)]
    around = {state.innermost for state in states if state.innermost is not None}
    slow = set()
    for op in {state.innermost for state in states if state.activity == BUSY and state.innermost is not None}:
        others = sorted(
            event.end - event.start
            for event in rank.events()
            if event.name == op.name and event.kind in ("op", "launch") and event not in around
        )
        usual = (others[len(others) // 2] + others[(len(others) - 1) // 2]) / 2 if others else 0
        if op.end - op.start > LOADING_RATIO * usual:
            slow.add(op)
    line.states = [
        state._replace(activity=KERNELS) if state.innermost in slow else state for state in line.states
    ]


def _stall(line: Timeline, rank: Recorded) -> None:
    """Ops of which the own time is far longer than others of their name and arguments last, unexplained."""
    own_ns: Counter[HostEvent] = Counter()
    for (start, end), state in zip(pairwise(line.times), line.states[:-1], strict=True):
        if state.innermost is not None and state.activity == BUSY and not state.in_collective:
            own_ns[state.innermost] += end - start
    stalled = {op for op, ns in own_ns.items() if op.kind == "op" and _is_stalled(op, ns, rank)}
    line.states = [
        state._replace(activity=STALLED) if state.activity == BUSY and state.innermost in stalled else state
        for state in line.states
    ]


def _is_stalled(op: HostEvent, own_ns: int, rank: Recorded) -> bool:
    if own_ns < STALLED_NS or any(held.start < op.end and op.start < held.end for held in rank.overhead):
        return False
    calls = [
        event
        for event in rank.events()
        if (event.kind, event.name, event.arguments) == ("op", op.name, op.arguments)
    ]
    inside = [
        event
        for event in rank.host[op.thread]
        if event is not op and op.start <= event.start and event.end <= op.end
    ]
    launches = any(
        event.kind == "launch"
        and not any(
            other is not event and other.start <= event.start and event.end <= other.end for other in inside
        )
        for event in inside
    )
    if launches and op.start == min(call.start for call in calls):
        return False
    if op.name in ("PythonSubclass", "PythonDispatchMode"):
        return False
    if not launches and (op.name == "aten::copy_" or not (op.is_sized or op.name.startswith(_NODE))):
        return False
    lengths = sorted(call.end - call.start for call in calls)
    usual = lengths[int(STALLED_QUANTILE * (len(lengths) - 1))]
    return len(calls) >= STALLED_CALLS and own_ns >= STALLED_RATIO * usual


def _numeric(thread: Thread) -> tuple[int, str]:
    return int(thread[1]) if thread[1].lstrip("-").isdigit() else 0, thread[1]


def _waiting_copies(rank: Recorded) -> set[int]:
    """Calls of copies to or from the host that return when the copy is done."""
    return {
        work.call.order
        for work in rank.work
        if work.call is not None
        and work.is_copy
        and not _ON_DEVICE.search(work.name)
        and work.call.end >= work.end
    }


def _profiler_synchronize(rank: Recorded) -> set[int]:
    """Device synchronize calls of the profiler: in nobody's op or frame, before or after all that is."""
    own = [
        event
        for event in rank.events()
        if event.kind == "op" or (event.kind == "annotation" and STEP.fullmatch(event.name))
    ]
    first = min((event.start for event in own), default=0)
    last = max((event.end for event in own), default=0)
    return {
        call.order
        for events in rank.host.values()
        for call in events
        if call.kind == "launch"
        and _DEVICE_SYNCHRONIZE.match(call.name)
        and (call.start >= last or call.end <= first)
        and not any(
            event.kind != "launch"
            and not _PROFILER_FRAME.search(event.name)
            and event.start <= call.start
            and call.end <= event.end
            for event in events
        )
    }


def timeline(events: list[HostEvent], copying: set[int], own: set[int]) -> Timeline:
    """What one thread does, from boundary to boundary of its events.

    That is what the event is that began last, and those around it: the last that was open then and lasts
    until its end. An annotation that begins in a frame and outlives it is not in that frame.

    Args:
        events: all of the thread.
        copying: calls of copies that wait for the copy, by `order`.
        own: synchronize calls of the profiler, by `order`.
    """
    boundaries = sorted(
        (time, step, event.start, -event.end, event.order, event)
        for event in events
        if event.end > event.start
        for time, step in ((event.end, 0), (event.start, 1))
    )
    open_events: list[HostEvent] = []
    state_in: dict[HostEvent | None, tuple[State, frozenset[str]]] = {None: (IDLE, frozenset())}
    times: list[int] = []
    states: list[State] = []
    for time, begins, *_, event in boundaries:
        if begins:
            around = (outer for outer in reversed(open_events) if outer.end + OVERRUN_NS >= event.end)
            state_in[event] = _state_in(event, *state_in[next(around, None)], copying, own)
            open_events.append(event)
        else:
            open_events.remove(event)
        if not times or times[-1] != time:
            times.append(time)
            states.append(IDLE)
        states[-1] = state_in[open_events[-1] if open_events else None][0]
    return Timeline(times, states)


def _state_in(
    event: HostEvent, outer: State, around: frozenset[str], copying: set[int], own: set[int]
) -> tuple[State, frozenset[str]]:
    """What a thread does in this event, and all that this and the events around it are."""
    activities = _activities(event, copying, own)
    all_of = around | set(activities)
    activity = next(
        (name for name in (PROFILER, COLLECTION, BLOCKING, KERNELS, LOADING, BUSY) if name in all_of), NOTHING
    )
    blocked_in = event if BLOCKING in activities else outer.blocked_in
    state = State(activity, blocked_in, COLLECTIVE in all_of, PYTHON in all_of, event)
    return state, frozenset(all_of)


def _activities(event: HostEvent, copying: set[int], own: set[int]) -> list[str]:
    """All that a thread does while this event is open."""
    activities = []
    if event.order in own or (event.kind == "python" and _PROFILER_FRAME.search(event.name)):
        activities.append(PROFILER)
    if _COLLECTION.search(event.name):
        activities.append(COLLECTION)
    if event.kind == "launch" and (
        event.order in copying or _SYNCHRONIZE.match(event.name) or _BLOCKING.match(event.name)
    ):
        activities.append(BLOCKING)
    if _LOADING.search(event.name):
        activities.append(LOADING)
    if event.kind == "python":
        activities.append(PYTHON)
    if event.kind in ("op", "launch"):
        activities.append(BUSY)
    pattern = {"launch": _CODE_CALL, "python": _COMPILER, "annotation": _COMPILER}.get(event.kind)
    if pattern is not None and pattern.search(event.name):
        activities.append(KERNELS)
    if event.kind in ("op", "annotation") and _COLLECTIVE.search(event.name):
        activities.append(COLLECTIVE)
    return activities
