"""What one rank did between its communication kernels: the part that travels to where ranks are compared.

`Spans` tells which stretch of it is compared before a collective, `carried` what lateness communication
beside computation carries along: where gradients are reduced beside the backward pass, ranks that wait in one
all-reduce compute on, and are ready for the next ones before it is over. The late rank is last at each of
them for as long as it takes to compute what the others have done in the meantime. That is no delay of its
own: in its computation it is as far behind as before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import SEND_RECV, AlignedRun, MatchedCollective, Participant
from tracelens.analysis.common import op_arguments
from tracelens.analysis.host import (
    CAUSES,
    CODE,
    GAP_NS,
    find_gaps,
    host_names,
    host_pieces,
    known_pieces,
    reads,
    threads,
    waiting_calls,
)
from tracelens.analysis.stragglers.thresholds import (
    ACROSS_NS,
    BEFORE,
    COMPUTED_ON,
    LOOK_BACK,
    LOOP_READS,
    RESTART_NS,
)
from tracelens.arrays import Bool, Float, Int, lookup, median, numbered, ordered, ranges, unique
from tracelens.table import codes, nearest, sums
from tracelens.trace import (
    WORK_KINDS,
    Scope,
    Trace,
    Work,
    gpu_work,
    rows_by_code,
    shares,
    steps_of,
    union,
)

TIMES = (
    "work",
    "comm",
    "late",
    "blocked",
    "garbage",
    "silent",
    "loading",
    "collective",
    "python",
    "kernels",
    "profiler",
    "stalled",
    "other",
)
"""What the time of a piece is: GPU work that is no communication; communication beside which there is none;
idle while the host was on its way to the next launch, in a blocking call, collecting garbage, silent, loading
data, in the call of a collective, in Python frames, loading kernels, held up by the profiler, stalled inside
an op; or idle for anything else."""
(
    WORK,
    COMM,
    LATE,
    BLOCKED,
    GARBAGE,
    SILENT,
    LOADING,
    COLLECTIVE,
    PYTHON,
    LOADING_CODE,
    PROFILER,
    STALLED,
    OTHER,
) = range(len(TIMES))
_KIND = {
    "launch overhead": LATE,
    "queue refill": LATE,
    "CPU ops": LATE,
    "blocking call": BLOCKED,
    "garbage collection": GARBAGE,
    "silent host": SILENT,
    "stalled host": STALLED,
    "data loading": LOADING,
    "collective call": COLLECTIVE,
    "Python code": PYTHON,
    "kernel loading": LOADING_CODE,
    "profiler": PROFILER,
}
_KIND_OF_CAUSE = np.array([_KIND.get(name, OTHER) for name in CAUSES])


class Key(NamedTuple):
    """Work that is the same on every rank: an op with its arguments, or where these are missing a kernel."""

    op: str  # name, "" where there is none
    arguments: str  # shapes and types as text, "" where none were recorded
    kernel: str  # name of the kernel and number of its blocks, "" where the arguments say it all


class WorkTable(Struct, frozen=True):
    """Calls and time of each key in each piece, and of each key in the whole recording."""

    piece: Int  # of each row, ascending
    key: Int  # of the same, code into `keys`
    calls: Float  # calls of that key in that piece; one that crosses a border counts for its share
    ns: Int  # of the same, time that is nobody else's
    keys: list[Key]  # all of them
    key_calls: Int  # calls of each key in the whole recording
    key_ns: Int  # their time, whatever ran beside them
    stream: Int  # of each key, the one with most of its time; -1 for none


class CommunicationKernels(Struct, frozen=True):
    """What is known of each communication kernel besides its times."""

    launch: Int  # start of its launch call, -1 if not in the trace
    beside: Bool  # whether other work was running when it began
    held: Int  # ns by TIMES of the launching host from the first edge to that launch, whatever the GPU did
    ready: Int  # when it was launched and the computation before it had ended, -1 if unknown
    beside_end: Bool  # whether other work was running when it ended
    blocks: Int  # calls in which the host waited for the GPU between the begin of the step and that launch


class HostOps(Struct, frozen=True):
    """How long a rank's host takes for the ops that call no other op and wait for nothing, by name."""

    names: list[str]
    calls: Int
    median_ns: Float


class Segments(Struct, frozen=True):
    """The time of one rank, cut at each start and end of its communication kernels.

    Piece i is [edges[i], edges[i + 1]); the first one begins with the recording.
    """

    rank: int  # of the trace
    edges: Int  # ns, ascending; empty where it does not communicate
    time: Int  # ns of each piece (rows) by TIMES (columns); a row adds up to the piece
    host: Int  # what the host was in, by piece and TIMES: code into `texts`, -1 if unknown
    longest: Int  # ns of the longest gap, whose host that is
    texts: list[str]  # of `host`
    work: WorkTable
    kernels: CommunicationKernels
    host_ops: HostOps
    step_ns: float  # mean length of its steps
    steps: int  # number of its steps
    cpu_only: bool = False  # whether the work is the host's


class _Gap(Struct, frozen=True):
    """Idle time: its piece, kind among TIMES, ns, and what the host was in (code into `texts`)."""

    piece: Int
    kind: Int
    ns: Int
    host: Int
    texts: list[str]


class ComparedSpan(NamedTuple):
    """A rank's time before a collective."""

    first: int  # piece that it begins with
    last: int  # piece that it ends before
    # ns by the common clock, since the collective's last arrival (a double cannot count from 1970)
    begin: int
    before: int  # communication kernel after which it begins, -1 for the recording's begin
    kernels: int  # communication kernels since the last collective that all participants shared


class Ends:
    """Communication kernels of a rank in order of their ends; of those that end together the later first.

    Args:
        end: of each kernel, ns.
    """

    def __init__(self, end: Int) -> None:
        self._order = ordered(end, -np.arange(len(end)))
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
        # Collectives in which all ranks of a set took part, by the sets that occur.
        self._collectives = aligned.collectives
        sets = [
            frozenset(participant.rank for participant in collective.participants)
            for collective in aligned.collectives
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
        self.ends = {rank: Ends(comm.end) for rank, comm in self._communication.items()}

    def of(self, index: int, collective: MatchedCollective) -> dict[int, ComparedSpan]:
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
            since_common[participant.rank] = ComparedSpan(first, last, begin + shift - arrival, before, count)
            since_last[participant.rank] = ComparedSpan(nearer, last, end + shift - arrival, latest, count)
        alike = len({span.kernels for span in since_common.values()}) == 1
        return since_last if alike else since_common

    def common(self, index: int, collective: MatchedCollective) -> dict[int, Participant]:
        """The last collective that all participants of this one had been in and left; {} if there is none."""
        ranks = {participant.rank: participant for participant in collective.participants}
        earlier = self._shared_by[frozenset(ranks)]
        end = bisect_left(earlier, index)
        for place in reversed(earlier[max(end - LOOK_BACK, 0) : end]):
            shared = {
                participant.rank: participant
                for participant in self._collectives[place].participants
                if participant.rank in ranks
            }
            if all(participant.end <= ranks[rank].start for rank, participant in shared.items()):
                return shared
        return {}


class Carried(Struct, frozen=True):
    """How far the ranks of a collective are behind in their computation, where the others computed ahead."""

    kernel: int  # communication kernel of the last rank's previous collective
    before_ns: float  # how late the last rank was ready for that, against the median of the others
    more_ns: Float  # what each rank took longer from there to here than the median of the others
    last: int  # position of the last rank


def segments(trace: Trace, *, scope: Scope = "all") -> Segments:
    """What a rank did between its communication kernels."""
    work = gpu_work(trace, scope)
    is_comm = work.kind == WORK_KINDS.index("comm")
    comm = work.take(is_comm)
    if not len(comm.start):
        none, no = np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
        by_kind = np.empty((0, len(TIMES)), dtype=np.int64)
        return Segments(
            rank=trace.meta.rank,
            edges=none,
            time=by_kind,
            host=by_kind,
            longest=by_kind,
            texts=[],
            work=WorkTable(
                piece=none,
                key=none,
                calls=np.empty(0),
                ns=none,
                keys=[],
                key_calls=none,
                key_ns=none,
                stream=none,
            ),
            kernels=CommunicationKernels(
                launch=none, beside=no, held=by_kind, ready=none, beside_end=no, blocks=none
            ),
            host_ops=HostOps([], none, np.empty(0)),
            step_ns=0.0,
            steps=0,
        )
    begin = trace.window.start if trace.window else int(trace.arrays.start.min())
    edges = unique(np.concatenate(([begin], comm.start, comm.end)))
    edges = edges if len(edges) > 1 else np.append(edges, edges[-1] + 1)
    blocking = waiting_calls(trace, work)
    waited = ~work.is_kernel & (work.launch >= 0) & blocking[work.launch]
    kind = np.where(is_comm, COMM, np.where(waited, BLOCKED, WORK))
    order = np.where(is_comm, 2, (work.kind != WORK_KINDS.index("computation")).astype(np.int64))
    row, piece, ns = shares(work.start, work.end, order, edges)
    nonempty = ns > 0
    row, piece, ns = row[nonempty], piece[nonempty], ns[nonempty]
    gap = _gaps(trace, work, edges)
    time = _by_kind(piece, kind[row], ns, len(edges) - 1)
    time += _by_kind(gap.piece, gap.kind, gap.ns, len(edges) - 1)
    # Of each piece and kind, the longest gap and what the host was in during it: the last write stays.
    host, longest = np.full(time.shape, -1, dtype=np.int64), np.zeros(time.shape, dtype=np.int64)
    by_length = ordered(gap.ns)
    host[gap.piece[by_length], gap.kind[by_length]] = gap.host[by_length]
    longest[gap.piece[by_length], gap.kind[by_length]] = gap.ns[by_length]
    is_work = kind[row] == WORK
    beside, beside_end = (work_beside(work, is_comm, time_ns) for time_ns in (comm.start, comm.end))
    # What the host did before it launched each communication kernel. One that runs ahead may sleep or block
    # while its GPU is busy; what it lacks then makes it late where the queue runs empty.
    comm_rows = np.flatnonzero(is_comm)
    called = lookup(trace.arrays.start, work.launch_call[comm_rows], -1)
    by_call = np.argsort(called, kind="stable")
    by_call = by_call[called[by_call] > edges[0]]
    held = np.zeros((len(comm_rows), len(TIMES)), dtype=np.int64)
    if len(by_call):
        end = called[by_call]
        start = np.append(edges[0], end[:-1])
        between = np.flatnonzero(end - start > GAP_NS)
        calls = work.launch_call[comm_rows[by_call[between]]]
        held_between = np.zeros((len(by_call), len(TIMES)), dtype=np.int64)
        held_between[:, OTHER] = np.where(end - start > GAP_NS, 0, end - start)
        for pieces in host_pieces(trace, calls, start[between], end[between]):
            # A GPU that is busy is what the host waits for: nothing is missing from the trace.
            unrecorded = pieces.cause == CODE["unrecorded work"]
            held_by = np.where(unrecorded, BLOCKED, _KIND_OF_CAUSE[pieces.cause])
            held_between += _by_kind(between[pieces.gap], held_by, pieces.dur, len(by_call))
        held[by_call] = held_between.cumsum(axis=0)
    # A slow host is in the call of a copy for longer than that takes on an idle GPU, but waits for nothing.
    waits, copied = blocking.copy(), work.take(~work.is_kernel & (work.launch >= 0))
    called_ns = np.minimum(trace.arrays.start[copied.launch], copied.start)
    at_once = union(work.start, work.end).covered(called_ns, copied.start) == 0
    waits[copied.launch[at_once]] = False
    blocked_end = np.sort(trace.arrays.end[waits])
    marks = steps_of(trace)
    begins = np.concatenate(([edges[0]], marks.edges))
    begun = begins[np.maximum(np.searchsorted(begins, called, side="right") - 1, 0)]
    blocks = np.searchsorted(blocked_end, called) - np.searchsorted(blocked_end, begun)
    step_edges = marks.only_whole().edges
    steps = max(len(step_edges) - 1, 1)
    return Segments(
        rank=trace.meta.rank,
        edges=edges,
        time=time,
        host=host,
        longest=longest,
        texts=gap.texts,
        work=_work_table(trace, work, row[is_work], piece[is_work], ns[is_work]),
        kernels=CommunicationKernels(
            launch=called,
            beside=beside,
            held=held,
            ready=ready_times(trace, work, is_comm),
            beside_end=beside_end,
            blocks=np.maximum(blocks, 0),
        ),
        host_ops=host_ops(trace, blocking),
        step_ns=float(step_edges[-1] - step_edges[0]) / steps,
        steps=steps,
        cpu_only=work.cpu_only,
    )


def _by_kind(row: Int, kind: Int, ns: Int, rows: int) -> Int:
    """Time of each of so many rows by TIMES."""
    return sums(row * len(TIMES) + kind, ns, rows * len(TIMES)).reshape(rows, len(TIMES))


def host_ops(trace: Trace, blocking: Bool) -> HostOps:
    """The ops of a rank's host; `blocking` are its calls that wait for a GPU."""
    events = trace.arrays
    is_op = events.where("op") & ~events.copied
    around = nearest(events.parent, events.depth, is_op)
    holds = np.zeros(len(is_op), dtype=bool)
    for inner in (lookup(around, events.parent[is_op], -1), around[blocking]):
        holds[inner[inner >= 0]] = True
    rows = np.flatnonzero(is_op & ~holds)
    order = rows[ordered(events.name[rows], events.end[rows] - events.start[rows])]
    dur, name = events.end[order] - events.start[order], events.name[order]
    first = np.flatnonzero(np.diff(name, prepend=-1))
    count = np.diff(np.append(first, len(name)))
    median_ns = (dur[first + (count - 1) // 2] + dur[first + count // 2]) / 2
    return HostOps([events.names[code] for code in name[first].tolist()], count, median_ns)


def work_beside(work: Work, is_comm: Bool, time_ns: Int) -> Bool:
    """Whether other work runs on, on another stream, at a time of each communication kernel.

    What follows the kernel on its own stream, or begins when it ends, does not, whatever clocks say of a
    microsecond. A host that works itself asks for nothing ahead of its other work.
    """
    beside = np.zeros(len(time_ns), dtype=bool)
    if work.cpu_only:
        return beside
    for lane, rows in rows_by_code(work.lane[is_comm]).items():
        other = ~is_comm & (work.lane != lane)
        times, at_ns = union(work.start[other], work.end[other]), time_ns[rows]
        before, after = times.covered(at_ns - ACROSS_NS, at_ns), times.covered(at_ns, at_ns + ACROSS_NS)
        beside[rows] = np.minimum(before, after) > ACROSS_NS // 2
    return beside


def _gaps(trace: Trace, work: Work, edges: Int) -> _Gap:
    """Idle time, each gap split into what was waited for."""
    gaps = find_gaps(work, np.array([edges[0], edges[0]]))
    gaps = gaps.take(gaps.end <= edges[-1])
    pieces = known_pieces(trace, work, gaps)
    piece = np.searchsorted(edges, gaps.start, side="right") - 1
    kind = _KIND_OF_CAUSE[pieces.cause]
    ns = _by_kind(pieces.gap, kind, pieces.dur, len(gaps.start))
    name, op, names = host_names(trace, pieces._replace(host=pieces.inner))
    texts: dict[str, int] = {}
    pair, (name, op) = codes(name, op)
    named = [
        (names[of_host], names[of_op]) for of_host, of_op in zip(name.tolist(), op.tolist(), strict=True)
    ]
    described = [
        f"{at} in {within}" if at and within and at != within else at or within for at, within in named
    ]
    code = np.array([texts.setdefault(text, len(texts)) for text in described], dtype=np.int64)
    host = np.full(ns.shape, -1, dtype=np.int64)
    order = ordered(pieces.dur)
    host[pieces.gap[order], kind[order]] = code[pair[order]] if len(order) else -1
    if work.cpu_only:
        # Where a host that works itself reads values, on threads that launch work: by what, for how long.
        events, thread = trace.arrays, threads(trace)
        rows = np.flatnonzero(reads(trace))
        rows = rows[np.isin(thread[rows], unique(thread[work.launch_call[work.launch_call >= 0]]))]
        rows = rows[np.argsort(events.start[rows], kind="stable")]
        read_ns = np.zeros(len(gaps.start), dtype=np.int64)
        host[:, BLOCKED] = -1
        if len(rows):
            reading = union(events.start[rows], events.end[rows])
            called = lookup(events.start, lookup(work.launch_call, gaps.after, -1), gaps.end)
            end = np.clip(called, gaps.start, gaps.end)
            begins = np.searchsorted(reading.start, gaps.start)
            ends = np.searchsorted(reading.end, end, side="right")
            most = len(reading.start) - 1
            looped = reading.end[np.clip(ends - 1, 0, most)] - reading.start[np.clip(begins, 0, most)]
            read_ns = np.where(ends - begins >= LOOP_READS, looped, reading.covered(gaps.start, end))
            first = rows[np.minimum(np.searchsorted(events.start[rows], gaps.start), len(rows) - 1)]
            read = [texts.setdefault(events.names[name], len(texts)) for name in events.name[first].tolist()]
            host[:, BLOCKED] = np.where(read_ns > 0, np.array(read, dtype=np.int64), -1)
        for idle in (LATE, SILENT, PYTHON):
            moved = np.minimum(read_ns - ns[:, BLOCKED], ns[:, idle])
            ns[:, BLOCKED] += moved
            ns[:, idle] -= moved
    else:
        # A host that waited for the GPU has no more launches ahead: the call makes its next one late.
        restart = np.where(ns[:, BLOCKED] > 0, np.minimum(ns[:, LATE], RESTART_NS), 0)
        ns[:, BLOCKED] += restart
        ns[:, LATE] -= restart
    gap, kinds = np.nonzero(ns)
    return _Gap(piece[gap], kinds, ns[gap, kinds], host[gap, kinds], list(texts))


def _work_table(trace: Trace, work: Work, row: Int, piece: Int, ns: Int) -> WorkTable:
    """The work table of the shares of kernels: row of the work, piece, and ns of each."""
    # The key of each piece of GPU work, and whether the op's arguments are recorded.
    events = trace.arrays
    argument, arguments = op_arguments(trace, work.op)
    texts = arguments.texts()
    has_arguments = np.array([bool(text) for text in texts], dtype=bool)[argument]
    op = lookup(events.name, work.op, -1)
    key, (op, argument, kernel, blocks) = codes(
        op,
        np.where(has_arguments, argument, -1),
        np.where(has_arguments, -1, work.name),
        np.where(has_arguments, -1, work.blocks),
    )
    keys = []
    for columns in zip(op.tolist(), argument.tolist(), kernel.tolist(), blocks.tolist(), strict=True):
        op_code, argument_code, kernel_code, block_count = columns
        kernel_name = events.names[kernel_code] if kernel_code >= 0 else ""
        keys.append(
            Key(
                op=events.names[op_code] if op_code >= 0 else "",
                arguments=texts[argument_code] if argument_code >= 0 else "",
                kernel=f"{kernel_name} x {block_count:,} blocks"
                if kernel_name and block_count >= 0
                else kernel_name,
            )
        )

    # A call may have several kernels; together they are one.
    of_call = np.zeros(len(trace.arrays.start), dtype=np.int64)
    counted = np.flatnonzero(has_arguments & (work.kind != WORK_KINDS.index("comm")))
    np.add.at(of_call, work.op[counted], work.dur[counted])
    call_ns = np.where(has_arguments, of_call[np.maximum(work.op, 0)], work.dur)
    # In the whole recording, also what never ran without other work beside it.
    all_rows = np.flatnonzero(work.kind != WORK_KINDS.index("comm"))
    used, code_of_row = numbered(key[all_rows])
    call = np.where(has_arguments, work.op, -1 - np.arange(len(key)))[all_rows]
    _, (key_of_call, _) = codes(code_of_row.astype(np.int64), call)
    of_stream, (keys_of_stream, stream) = codes(code_of_row.astype(np.int64), work.stream[all_rows])
    order = np.argsort(sums(of_stream, work.dur[all_rows], len(stream)), kind="stable")
    most = np.full(len(used), -1, dtype=np.int64)
    most[keys_of_stream[order]] = stream[order]  # the last write stays: the longest
    group, (pieces, key) = codes(piece, key[row])
    calls = np.zeros(len(pieces))
    np.add.at(calls, group, ns / np.maximum(call_ns[row], 1))
    return WorkTable(
        piece=pieces,
        key=np.searchsorted(used, key),
        calls=calls,
        ns=sums(group, ns, len(pieces)),
        keys=[keys[number] for number in used],
        key_calls=np.bincount(key_of_call, minlength=len(used)),
        key_ns=sums(code_of_row.astype(np.int64), work.dur[all_rows], len(used)),
        stream=most,
    )


def ready_times(trace: Trace, work: Work, is_comm: Bool) -> Int:
    """When each communication kernel was launched and the computation before it had ended; -1 if unknown.

    What had not ended when the kernel began, it did not wait for.
    """
    called = lookup(trace.arrays.start, work.launch_call, -1)
    launched = np.flatnonzero(~is_comm & (called >= 0))
    launched = launched[np.argsort(called[launched], kind="stable")]
    comm = np.flatnonzero(is_comm)
    ready = np.full(len(comm), -1, dtype=np.int64)
    last = np.searchsorted(called[launched], called[comm])
    last[called[comm] < 0] = 0
    first = np.maximum(last - BEFORE, 0)
    kernel, row = ranges(first, last - first)
    end = work.end[launched[row]]
    in_time = end <= work.start[comm[kernel]]
    np.maximum.at(ready, kernel[in_time], end[in_time])
    return np.where(ready >= 0, np.maximum(ready, called[comm]), -1)


def carried(
    collective: MatchedCollective,
    previous: Mapping[int, Participant],
    ready: Mapping[int, Int],
    beside_end: Mapping[int, Bool],
    shift: Mapping[int, int],
) -> Carried | None:
    """Lateness of the last rank from before, None where the others did not compute on meanwhile.

    Args:
        collective: with all its participants.
        previous: participants of the last collective that all of them were in, by rank.
        ready: by `ready_times`, by rank.
        beside_end: whether other work was running when each communication kernel ended, by rank.
        shift: from a rank's own clock to the common one, ns.
    """
    if not previous or collective.collective == SEND_RECV:
        return None
    members = collective.participants
    kernels = [(member.rank, member.record.kernel) for member in members]
    kernels_before = [(member.rank, previous[member.rank].record.kernel) for member in members]
    now, before = (
        np.array(
            [
                ready[rank][kernel] + shift[rank] if ready[rank][kernel] >= 0 else -1
                for rank, kernel in of_ranks
            ]
        )
        for of_ranks in (kernels, kernels_before)
    )
    if min(now.min(), before.min()) < 0:
        return None
    last_rank = collective.last.rank
    is_last = np.array([member.rank == last_rank for member in members])
    # Work that waited for the previous collective begins when that has ended.
    end = np.array([previous[member.rank].end for member in members])
    computed_on = np.array([beside_end[rank][kernel] for rank, kernel in kernels_before]) | (now <= end)
    if computed_on[~is_last].mean() < COMPUTED_ON:
        return None
    more = now - before
    more_ns = more - median_of_others(more[:, None].astype(float))[:, 0]
    before_ns = float(median((before[is_last] - before)[~is_last]))
    last = int(np.flatnonzero(is_last)[0])
    return Carried(previous[last_rank].record.kernel, before_ns, more_ns, last)


def weighted_median(values: Float, weight: Float) -> Float:
    """Median of each column, each row counting by its weight; by 1 where nothing has any."""
    weight = weight if weight.sum() > 0 else np.ones(len(weight))
    order, columns = np.argsort(values, axis=0, kind="stable"), np.arange(values.shape[1])
    ordered, reached = values[order, columns], np.cumsum(weight[order], axis=0)
    half = reached[-1] / 2
    low, high = np.argmax(reached >= half, axis=0), np.argmax(reached > half, axis=0)
    result: Float = (ordered[low, columns] + ordered[high, columns]) / 2
    return result


def weighted_quantile(values: Float, weight: Float, fraction: float) -> float:
    """The least value up to which there is this fraction of the weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(reached, fraction * reached[-1])])


def median_of_others(values: Float) -> Float:
    """For each row, the median of the other rows, column by column; of at least two rows."""
    ordered = np.sort(values, axis=0)
    middle = (len(values) - 2) // 2, (len(values) - 1) // 2
    # Without a value that is not above one of the middle, the next one takes its place.
    lower, upper = (np.where(values <= ordered[row], ordered[row + 1], ordered[row]) for row in middle)
    result: Float = (lower + upper) / 2
    return result
