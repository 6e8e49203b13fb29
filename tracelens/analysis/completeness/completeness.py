"""Can this recording be trusted? What contradicts itself, and what is missing.

Steps are compared only where the others agree with each other, and their kernels only where the host did the
same in them: the steps of a training run differ by less than 1% in both, while those of serving may differ as
they like.

Single records that lack their counterpart are told by `lost_records`; what ran across the edges of the window
is no loss.

In the undamaged traces all kernels begin at least 3.7 us after their launch call, each stream runs in the
order of its launch calls, kernels of a stream overlap by at most 13 us, and hosts that waited for the GPU go
on at most 8 us before its work ends.

A GPU starts queued work within microseconds: the longest such gap in the undamaged traces is 84 us, and 16 us
next to a graph's replay; hosts wait up to 42 us for an idle GPU. Where another process shares the GPU, its
time slices show as gaps of 1 to 2.5 ms, which are real. Work that the profiler did not record, such as nodes
of a graph, leaves holes of any length.

All replays of a graph run the same nodes. Which graph a call replays is not recorded, so two replays are of
one graph where one lacks kernels of the other in its middle. A graph that only begins later or ends earlier,
as the first and the last piece of a model do, lacks none there: it is damaged where it is the only one of its
kind and stands between the same replays as one of its siblings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from msgspec import Struct, field

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm import AlignedRun
from tracelens.analysis.common import NO_GPU
from tracelens.analysis.completeness.doubts import (
    DEVICE_SYNCS,
    DOUBT_TABLE,
    DOUBTS,
    STRETCHES,
    Doubt,
    Recording,
    milliseconds,
    nowhere,
    over,
)
from tracelens.analysis.completeness.lost_records import (
    FEW_RECORDS,
    ORPHAN_TIME_SHARE,
    in_flight,
    material,
    missing_collectives,
    missing_kernels,
    missing_launches,
    missing_links,
    missing_step_marks,
)
from tracelens.analysis.host import SYNCHRONIZE
from tracelens.arrays import Bool, Float, Int, lookup, median, unique
from tracelens.table import Result, Skip, codes, result, stats
from tracelens.trace import STEP_MARK, TO_HOST, Trace, both, fitting, matching, rows_by_code, union

TABLES = {"doubts": DOUBT_TABLE, "stretches": STRETCHES}
STRETCHES_SHOWN = 1000
"""Stretches of one doubt about a rank; the longest are kept."""
HOST_ENDS = "without a GPU, each rank's scheduler decides when its share of a collective ends"
BEGIN, END = "Iteration Start: ", "Record Window End"
"""What Kineto's marks of the recorded time are called."""
_CLIPPED = "GPU work overrunning the next on its stream"
_NEVER = np.iinfo(np.int64).max

# Records.
DROPPED_SHARE = 0.0005
"""Up to this share of the events may be dropped by reading without a doubt."""

# Steps.
SHORT_STEP_SHARE = 0.75
"""A step with fewer kernels than this share of its siblings' median is short."""
ALIKE_SHARE = 0.9
"""Counts within this ratio of each other are alike."""
STUB_STEP_SHARE = 0.1
"""A mark shorter than this share of its siblings' is only the beginning of a step."""
OUTSIDE_STEPS_SHARE = 0.01
"""More than this share of the launch calls outside of all steps are those of a step without its mark."""
QUEUED_BEFORE_SHARE = 0.05
"""Up to this share of GPU time, work that was queued before the recording began is ordinary."""
ENOUGH_CALLS = 20
"""Launch calls of a recording, or ops of a step, of which a part is told from the whole."""
LEAST_STREAM_WORK = 5
"""Pieces of work that a stream must have in each other step."""

# Clocks.
CLOCK_TOLERANCE_NS = 1_000
"""Resolution of old traces."""
AFTER_SYNC_NS = 100_000
"""Work that ends later than this after a call which waited for it is a doubt: a trade-off, see above for what
undamaged traces have."""
DISORDER_SHARE = 0.002
"""Up to this share of the launched work may begin before its launch call, or before an earlier launch."""
CROWDED_SHARE = 0.05
"""So many overlap only where the clock is wrong; corrupt durations are those of single kernels."""
OVERLAP_NS, OVERLAP_SHARE = 1_000_000, 0.01
"""One overlap as long, or overlaps of more than this share of busy time, are a doubt: a trade-off."""
LONG_RATIO, LEAST_NAMESAKES = 3, 5
"""Undamaged work that overlaps what follows in a graph takes up to 1.3 times the median of its name."""

# Idle time.
HOLE_AT_GRAPH_NS = 100_000
"""Next to a graph's replay, no queued work waits as long."""
HOLE_ELSEWHERE_NS = 5_000_000
"""Longer than the time slice of another process."""
WAIT_AT_END_NS = 1_000_000
"""In undamaged traces no host waits for as long once the last work has ended."""
HOLE_SHARE = 0.005
"""Holes of less than this share of the recorded time are no doubt."""

# Replays of graphs.
MOST_REPLAY_KINDS = 400
"""Different replays that are compared; so many differ only where nearly all are damaged or none is."""
LEAST_SIBLING_REPLAYS = 3
"""So many equal replays tell that one which begins later or ends earlier should be like them."""
SAME_GRAPH_SHARE = 0.25
"""A replay with less than this of another's kernels is of another graph."""

# Between ranks.
ENDS_APART_NS = 100_000
"""Ends of collectives on GPUs of one clock are at most 15 us apart, the median, in all undamaged runs.

On CPUs, the scheduler of a busy machine ends them milliseconds apart.
"""
ENDS_APART_SHARE = 0.05
"""Over a slow link the last part of a message reaches some ranks later: 1% of the latency was seen."""
LEAST_COLLECTIVES = 5
"""Collectives that tell whether a clock fits."""
LEAST_RANKS = 4
"""So many ranks that one of them can be the odd one."""
LEAST_STEP_KERNELS = 50
"""Steps of fewer kernels are not compared between ranks, where a few kernels are a large share."""
LATE_START_SHARE = 0.1
"""A rank that begins later than this share of the recorded time after another one lacks its beginning."""


class RankRecord(Struct, frozen=True):
    """What one rank says of its recording."""

    rank: int  # of the trace
    origin: int  # its first event, ns
    recorded_ns: int  # from its first to its last event
    last_ns: int  # end of its last GPU work
    cpu_only: bool  # no GPU did its work
    kernels: Mapping[str, int]  # step label to number of pieces of GPU work
    edges: Mapping[str, tuple[int, int]]  # step label to when it began and ended on the GPU
    doubts: Sequence[Doubt]  # about this rank alone
    unchecked: Mapping[str, str] = field(default_factory=dict)  # what could not be checked, and why
    in_flight: Mapping[str, str] = field(default_factory=dict)  # work across the edges of the window
    streams: Mapping[int, int] = field(default_factory=dict)  # stream to number of pieces of work
    threads: int = 0  # of the host, with a considerable number of ops
    launches: int = 0  # calls
    work: int = 0  # kernels, copies and memsets
    linked: bool = True  # whether some of them are linked to their call


def rank_record(trace: Trace) -> RankRecord:
    """What speaks against the recording of one rank, and what the comparison of ranks needs."""
    recording = Recording(trace)
    work, marked, events = recording.work, recording.steps, recording.events
    checks = (file_losses,) if trace.meta.cpu_only else CHECKS
    unchecked = {"GPU work": NO_GPU, "ends of collectives": HOST_ENDS} if trace.meta.cpu_only else {}
    ids = recording.correlation
    if (
        len(work.event)
        and not trace.meta.cpu_only
        and not (ids[work.event] > 0).any()
        and not (ids[recording.launch_calls] > 0).any()
    ):
        unchecked = {"launches and kernels": "neither carries a correlation id"}
    count = np.bincount(marked.of_work, minlength=len(marked.labels))
    whole = [*marked.whole] if marked.marked else []
    return RankRecord(
        rank=trace.meta.rank,
        origin=recording.origin,
        recorded_ns=recording.recorded_ns,
        last_ns=int(work.end.max(initial=recording.origin)),
        cpu_only=trace.meta.cpu_only,
        kernels={marked.labels[step]: int(count[step]) for step in whole},
        edges={marked.labels[step]: (int(marked.edges[step]), int(marked.edges[step + 1])) for step in whole},
        doubts=[*chain.from_iterable(check(recording) for check in checks)],
        unchecked=unchecked,
        in_flight={} if trace.meta.cpu_only else in_flight(recording),
        streams=Counter(work.stream.tolist()),
        threads=int((np.unique_counts(events.tid[events.where("op")]).counts >= ENOUGH_CALLS).sum()),
        launches=len(recording.launch_calls),
        work=len(work.event),
        linked=trace.meta.cpu_only or bool((work.launch >= 0).any()),
    )


def step_number(label: str) -> int:
    """N of ProfilerStep#N."""
    return int(label.rpartition("#")[2])


@analyzer(
    "completeness",
    title="Completeness of the recording",
    order=995,
    part=rank_record,
    shared=("aligned run",),
    tables=TABLES,
)
def completeness(records: Sequence[RankRecord], aligned: AlignedRun) -> Result:
    """Is anything missing from the recording or contradictory in it, and which figures does that affect?

    Everything is judged by the recording itself: launch calls by their kernels, steps, streams, graph replays
    and ranks by their siblings.

    Reading:
        No row means no sign of missing or contradictory data. `affects` names the figures that a doubt makes
        unreliable.

    Limits:
        What is missing in every step, stream and rank alike leaves no contradiction.

    Args:
        records: from `rank_record`.
        aligned: the run.

    Returns:
        tables `doubts`, most time first, and `stretches`, when they hold.
    """
    merged: dict[tuple[int, str], Doubt] = {}  # one doubt of each kind about each rank
    of_ranks = ((record.rank, doubt) for record in records for doubt in record.doubts)
    for rank, doubt in chain(of_ranks, between_ranks(records, aligned)):
        same = merged.get((rank, doubt.name))
        merged[rank, doubt.name] = (
            doubt
            if same is None
            else Doubt(
                doubt.name,
                same.count + doubt.count,
                "; ".join(dict.fromkeys((same.evidence, doubt.evidence))),
                both(same.where, doubt.where),
            )
        )
    by_rank = {record.rank: record for record in records}
    rows: list[dict[str, Any]] = []
    stretches: list[dict[str, Any]] = []
    for (rank, name), doubt in merged.items():
        record, where = by_rank[rank], doubt.where
        dur_ns = where.end - where.start
        rows.append(
            {
                "rank": rank,
                "doubt": name,
                "dur_ns": where.total,
                "fraction_of_recorded_time": min(where.total / record.recorded_ns, 1.0),
                "count": doubt.count,
                "ts_ns": max(int(where.start[np.argmax(dur_ns)]) - record.origin, 0) if len(dur_ns) else -1,
                "evidence": doubt.evidence,
                "affects": DOUBTS[name].affects,
            }
        )
        longest = np.sort(np.argsort(-dur_ns, kind="stable")[:STRETCHES_SHOWN])
        stretches += [
            {"rank": rank, "doubt": name, "local_ts_ns": start, "dur_ns": ns}
            for start, ns in zip(where.start[longest].tolist(), dur_ns[longest].tolist(), strict=True)
        ]
    weight = list(DOUBTS)
    rows.sort(key=lambda row: (-row["dur_ns"], weight.index(row["doubt"]), row["rank"]))
    skips = [
        Skip(f"rank {record.rank}: {what}", why)
        for record in records
        for what, why in {**record.unchecked, **record.in_flight}.items()
    ]
    doubted = {rank for rank, _ in merged}
    believed = [
        Skip(f"rank {record.rank}: doubts", "no sign of missing or contradictory data")
        for record in records
        if record.rank not in doubted and not record.unchecked
    ]
    tables = {"doubts": DOUBT_TABLE.from_rows(rows), "stretches": STRETCHES.from_rows(stretches)}
    return result(tables, [*believed, *skips])


def between_ranks(records: Sequence[RankRecord], aligned: AlignedRun) -> Iterator[tuple[int, Doubt]]:
    """(rank, doubt) of ranks that differ from the others."""
    if len(records) < 2:
        return

    # Ranks that begin long after another one has communicated, and took no part in that. A rank with all
    # steps of the others lacks nothing: a slow one comes late to its first step as well.
    ranks_with = Counter(label for record in records for label in record.kernels)
    begin = {record.rank: record.origin + aligned.shift.get(record.rank, 0) for record in records}
    typical_ns = float(median([record.recorded_ns for record in records]))
    number = {rank.rank: len(rank.start) for rank in aligned.ranks}
    late = set()
    for record in records:
        if ranks_with and ranks_with.keys() <= record.kernels.keys():
            continue
        before = max(
            int((rank.end + aligned.shift.get(rank.rank, 0) <= begin[record.rank]).sum())
            for rank in aligned.ranks
        )
        late_ns = begin[record.rank] - min(begin.values())
        if late_ns > LATE_START_SHARE * typical_ns and before and number[record.rank] < max(number.values()):
            late.add(record.rank)
            evidence = (
                f"it begins {milliseconds(late_ns)} after the first rank, which had communicated "
                f"{before:,} times by then"
            )
            yield record.rank, Doubt("cut", before, evidence, over([record.origin], [record.origin]))

    # Ranks without steps that most others have: all ranks of a job record the same steps. Their own doubts
    # name the marks that lack in between.
    common = [label for label, count in ranks_with.items() if 2 * count >= len(records)]
    for record in records:
        if common and not record.kernels and not record.cpu_only and record.launches >= ENOUGH_CALLS:
            evidence = f"it has none of the step marks of other ranks, such as {common[0]}"
            yield record.rank, Doubt("missing step marks", len(common), evidence, nowhere())
            continue
        first, last = (each(record.kernels, key=step_number, default="") for each in (min, max))
        missing = [
            label
            for label in common
            if label not in record.kernels
            and not (record.kernels and step_number(first) < step_number(label) < step_number(last))
        ]
        earlier = []  # what another rank has before the first step of this one
        for label in missing if record.kernels else ():
            first = next(iter(record.kernels))
            orders = (list(other.kernels) for other in records)
            order = next((labels for labels in orders if first in labels and label in labels), [])
            if order and order.index(label) < order.index(first):
                earlier.append(label)
        later = [label for label in missing if label not in earlier]
        if not record.kernels and (record.rank in late or len(records) == 2):
            # Nothing says on which side its steps lie, nor which of two ranks is the odd one.
            later = []
        end = record.origin + record.recorded_ns
        for name, labels, where, begins in (
            ("cut", earlier, over([record.origin], [record.origin]), "begins late: it "),
            ("ends early", later, over([min(record.last_ns, end)], [end]), ""),
        ):
            if labels:
                evidence = (
                    f"it {begins}lacks {', '.join(labels[:3])}, recorded on {ranks_with[labels[0]]} of "
                    f"{len(records)} ranks"
                )
                yield record.rank, Doubt(name, len(labels), evidence, where)

    # Streams and threads that all others have. Of two ranks, nothing tells which is the odd one.
    for record in records if len(records) > 2 else ():
        others = [other for other in records if other is not record]
        streams = {
            stream
            for stream in others[0].streams
            if stream not in record.streams
            and min(other.streams.get(stream, 0) for other in others) >= LEAST_STREAM_WORK
        }
        threads = min(other.threads for other in others) - record.threads
        lacking = [f"stream {', '.join(map(str, sorted(streams)))}"] if streams else []
        lacking += [f"{threads:,} thread{'s' * (threads > 1)} with ops"] if threads > 0 else []
        if lacking:
            evidence = f"it lacks {' and '.join(lacking)}, recorded on all {len(others)} other ranks"
            yield record.rank, Doubt("missing streams", len(streams) + max(threads, 0), evidence, nowhere())

    # Ranks whose work has no link to the calls, while that of others has.
    linked = [record.linked for record in records]
    for record in records if any(linked) else ():
        if not record.linked and record.work:
            evidence = f"none of its {record.work:,} kernels and copies has a link to its launch call"
            yield record.rank, Doubt("missing links", record.work, evidence, nowhere())

    # Collectives that other ranks of the group recorded in between.
    for rank, lost in aligned.lost.items():
        groups = ", ".join(f"{count:,} of {name}" for name, count in lost.items())
        evidence = f"other ranks recorded collectives that it lacks in between: {groups}"
        yield rank, Doubt("missing collectives", sum(lost.values()), evidence, nowhere())

    # Steps with fewer kernels than the rank's other steps and the other ranks lead to expect. Where a mark
    # lacks, the step before it has the kernels of two.
    marked = [
        record for record in records if all(doubt.name != "missing step marks" for doubt in record.doubts)
    ]
    shared = [
        label
        for label in (marked[0].kernels if len(marked) > 1 else ())
        if all(label in record.kernels for record in marked)
    ]
    if len(shared) > 1:
        counts = np.array([[record.kernels[label] for label in shared] for record in marked], dtype=float)
        typical = np.maximum(median(counts), 1)
        share = counts / typical
        expected = np.max(share, axis=1)
        for row, column in np.argwhere(share < SHORT_STEP_SHARE * expected[:, None]).tolist():
            expected_kernels = expected[row] * typical[column]
            if expected_kernels >= LEAST_STEP_KERNELS:
                record, label = marked[row], shared[column]
                low, high = record.edges[label]
                evidence = (
                    f"{label} has {counts[row, column]:,.0f} kernels; its other steps and the same step on "
                    f"other ranks suggest {expected_kernels:,.0f}"
                )
                yield record.rank, Doubt("short step", 1, evidence, over([low], [high]))

    # Ranks whose collectives do not end with those of the others, whatever the offset of their clock. Ranks
    # of one machine read one clock.
    offsets = Counter(clock.offset_ns for clock in aligned.clocks)
    one_machine = len(records) >= LEAST_RANKS and len({clock.host for clock in aligned.clocks}) == 1
    if one_machine and sorted(offsets.values())[:-1] == [1]:
        odd = next(clock for clock in aligned.clocks if offsets[clock.offset_ns] == 1)
        # Offsets count from the lowest rank, which may itself be the one that is off.
        apart = abs(odd.offset_ns or next(clock.offset_ns for clock in aligned.clocks if clock.offset_ns))
        evidence = (
            f"its clock is {milliseconds(apart)} off that of the other {len(records) - 1} ranks, which agree"
        )
        yield odd.rank, Doubt("clock", odd.collectives, evidence, nowhere())
    with_gpus = {record.rank for record in records if not record.cpu_only}
    for reading in aligned.clocks:
        enough = reading.rank in with_gpus and reading.collectives >= LEAST_COLLECTIVES
        if enough and reading.residual_ns > max(ENDS_APART_NS, ENDS_APART_SHARE * reading.latency_ns):
            evidence = (
                f"its collectives end {milliseconds(reading.residual_ns)} apart from those of the other "
                f"ranks, the median of {reading.collectives:,}"
            )
            yield reading.rank, Doubt("clock", reading.collectives, evidence, nowhere())


def file_losses(recording: Recording) -> Iterator[Doubt]:
    """Truncation of the file, events that could not be read, and losses that the profiler reports."""
    meta = recording.meta
    if meta.damage:
        yield Doubt("truncated", 1, str(meta.damage), nowhere())
    dropped = sum(meta.dropped.values())
    if dropped > DROPPED_SHARE * meta.read:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in meta.dropped.items())
        yield Doubt(
            "dropped events", dropped, f"{dropped:,} of {meta.read:,} events not read: {reasons}", nowhere()
        )
    if meta.losses:
        yield Doubt("dropped events", len(meta.losses), "; ".join(meta.losses), nowhere())


def missing_graph_kernels(recording: Recording) -> Iterator[Doubt]:
    """Graph launches whose replays lack kernels that sibling replays have."""
    # Replays are told apart by names and order of their kernels: a kind each.
    work = recording.work
    rows = np.flatnonzero(recording.under_graph)
    rows = rows[np.argsort(work.launch[rows], kind="stable")]
    calls, first, number = np.unique(work.launch[rows], return_index=True, return_counts=True)
    in_time = np.argsort(work.start[rows[first]], kind="stable")
    calls, first, number = calls[in_time], first[in_time], number[in_time]
    kinds: dict[bytes, int] = {}
    names: list[Int] = []  # name codes of each kind's kernels, in order of start
    kind_of = np.zeros(len(calls), dtype=np.int64)  # of each replay, in the order in which they ran
    for replay, (begin, length) in enumerate(zip(first.tolist(), number.tolist(), strict=True)):
        sequence = work.name[rows[begin : begin + length]]
        key = np.sort(sequence).tobytes()
        if key not in kinds:
            kinds[key] = len(kinds)
            names.append(sequence)
        kind_of[replay] = kinds[key]
    if not 2 <= len(names) <= MOST_REPLAY_KINDS:
        return

    lacking: dict[int, int] = {}  # kind of replay to the smallest other one that it lacks kernels of
    count = np.bincount(kind_of, minlength=len(names))
    around = kind_of[:-2] * len(names) + kind_of[2:]  # the kinds before and after each replay
    for kind, own in enumerate(names):
        larger = [
            other
            for other, sequence in enumerate(names)
            if len(own) < len(sequence) <= len(own) / SAME_GRAPH_SHARE and count[other] >= count[kind]
        ]
        for other in sorted(larger, key=lambda other: len(names[other])):
            sequence = names[other]
            size = int(max(own.max(), sequence.max())) + 1
            if (np.bincount(own, minlength=size) > np.bincount(sequence, minlength=size)).any():
                continue
            # A piece stands in the other without a break.
            begins = np.flatnonzero(sequence[: len(sequence) - len(own) + 1] == own[0]).tolist()
            is_piece = any(np.array_equal(sequence[begin : begin + len(own)], own) for begin in begins)
            is_amid_the_same = (
                count[kind] == 1
                and count[other] >= LEAST_SIBLING_REPLAYS
                and np.isin(around[kind_of[1:-1] == other], around[kind_of[1:-1] == kind]).any()
            )
            if is_amid_the_same or not is_piece:
                lacking[kind] = other
                break
    damaged = np.flatnonzero(np.isin(kind_of, list(lacking)))
    if not len(damaged):
        return
    damaged_calls = calls[damaged]
    rows = np.flatnonzero(np.isin(work.launch, damaged_calls))
    owner = np.searchsorted(np.sort(damaged_calls), work.launch[rows])
    start = np.full(len(damaged), _NEVER)
    end = np.zeros(len(damaged), dtype=np.int64)
    np.minimum.at(start, owner, work.start[rows])
    np.maximum.at(end, owner, work.end[rows])
    worst = min(lacking, key=lambda kind: len(names[kind]) / len(names[lacking[kind]]))
    lost = sum(int(count[kind]) * (len(names[other]) - len(names[kind])) for kind, other in lacking.items())
    yield Doubt(
        "missing graph kernels",
        len(damaged),
        f"{len(damaged):,} of {len(calls):,} graph replays lack {lost:,} kernels that others of "
        f"the same graph have; the worst has {len(names[worst]):,} of {len(names[lacking[worst]]):,}",
        over(start, end),
    )


def missing_work(recording: Recording) -> Iterator[Doubt]:
    """Gaps in the GPU's work during which work was queued, or the host waited for the GPU.

    Before the first recorded work, only waiting tells: that work may have been late for other reasons. At the
    start of the recording both are ordinary: work launched before is in flight.
    """
    work, events = recording.work, recording.events
    if len(work.event) < 2:
        return
    waits = recording.called(SYNCHRONIZE)
    reached = np.maximum.accumulate(work.end)[:-1]
    after = np.flatnonzero(work.start[1:] > reached) + 1
    first = int(work.start[0])
    start = np.append(reached[after - 1], min(first, int(events.start[waits].min(initial=first))))
    end = np.append(work.start[after], first)
    # Work is queued from the end of its launch call, or the start of a copy to the host: such calls wait
    # until the copy is done, while others may take long before they queue anything.
    to_host = fitting(work.names, work.name[after], TO_HOST)
    launch = work.launch[after]
    queued_at = np.where(to_host, lookup(events.start, launch, _NEVER), lookup(events.end, launch, _NEVER))
    since = np.append(np.minimum(queued_at, end[:-1]), first)
    waiting = union(events.start[waits], events.end[waits])
    waited = waiting.covered(start, end)
    begin = np.maximum(start, since)
    at_graph = np.append(recording.under_graph[after] | recording.under_graph[after - 1], False)
    least = np.where(at_graph, HOLE_AT_GRAPH_NS, HOLE_ELSEWHERE_NS)
    hole = (end - begin >= least) | (waited >= least)
    hole &= (start >= recording.in_flight.end) | (end <= recording.in_flight.start)
    begin = np.where(waited > end - begin, start, begin)
    total = int((end - begin)[hole].sum())
    if total < HOLE_SHARE * recording.recorded_ns:
        return
    longest = int(np.argmax(np.where(hole, end - begin, 0)))
    queued = int(end[longest] - max(since[longest], start[longest]))
    why = [f"work was queued for {milliseconds(queued)}"] if queued else []
    if waited[longest]:
        why.append(f"the host waited for the GPU for {milliseconds(int(waited[longest]))}")
    yield Doubt(
        "missing work",
        int(hole.sum()),
        f"the GPU seems idle for {milliseconds(total)} although it had work, at most "
        f"{milliseconds(int(end[longest] - begin[longest]))} at once, when {' and '.join(why)}",
        over(begin[hole], end[hole]),
    )


def waiting_at_the_end(recording: Recording) -> Iterator[Doubt]:
    """The host goes on waiting for the GPU long after the last recorded work.

    That work is missing, even where each launch call has its kernel: a lost buffer holds both. A GPU clock
    that is early by so much puts kernels before their launch calls. But a host without a core wakes up late:
    a step that has as many kernels as the others lacks none.
    """
    work, events, launched = recording.work, recording.events, recording.launched
    if not len(work.event):
        return
    last = int(work.end.max())
    rows = np.flatnonzero(recording.called(SYNCHRONIZE) & (events.end > last))
    start, end = np.maximum(events.start[rows], last), events.end[rows]
    long = end - start >= WAIT_AT_END_NS
    total = int((end - start)[long].sum())
    if total < HOLE_SHARE * recording.recorded_ns or _is_full(recording, events.start[rows[long]]):
        return
    early = bool(((launched >= 0) & (work.start < launched - CLOCK_TOLERANCE_NS)).sum() > FEW_RECORDS)
    yield Doubt(
        "clock" if early else "ends early",
        int(long.sum()),
        f"after the last recorded GPU work the host still waits {milliseconds(total)} for the GPU",
        over(start[long], end[long]),
    )


def _is_full(recording: Recording, time_ns: Int) -> bool:
    """Whether the steps of these times have at least as many kernels as any other."""
    marked = recording.steps
    if not marked.marked or not len(marked.whole):
        return False
    whole = np.array([*marked.whole])
    kernels = np.bincount(marked.of_work, minlength=len(marked.labels))
    steps = np.searchsorted(marked.marks, time_ns, side="right") - 1
    others = kernels[whole[~np.isin(whole, steps)]]
    return bool(np.isin(steps, whole).all() and len(others) and kernels[steps].min() >= others.max())


def profiler_edges(recording: Recording) -> Iterator[Doubt]:
    """A recording of which one end is missing, or which holds what was launched before it."""
    work, events = recording.work, recording.events
    if not len(work.event):
        return
    # Kineto marks begin and end of what it recorded and closes with a call that waits for the GPU. Without
    # any of these, somebody took the steps out of the trace, which leaves them whole.
    calls = recording.launch_calls
    if len(calls) >= ENOUGH_CALLS:
        begins, ends = (any(name.startswith(mark) for name in events.names) for mark in (BEGIN, END))
        waits = events.start[recording.called(DEVICE_SYNCS)]
        closed = bool((waits > int(events.start[calls[-1]])).any())
        if not closed if begins else ends:
            edges = recording.steps.edges
            low, high = (int(edges[-2]), int(edges[-1])) if begins else (int(edges[0]), int(edges[1]))
            missing = "the profiler's closing call" if begins else "the profiler's start mark"
            yield Doubt(
                "cut",
                1,
                f"the recording lacks {missing}: its {'last' if begins else 'first'} step may be incomplete, "
                "or steps are missing",
                over([low], [min(high, int(work.end.max()))]),
            )
    # Without step marks, work that was launched before the recording began counts as well.
    if recording.steps.marked:
        return
    linked = work.launch >= 0
    ids = recording.correlation[work.event]
    early = ~linked & (ids > 0) & (ids < recording.first_call_id)
    early[np.unique(work.lane, return_index=True)[1]] = False  # what was already running
    early_ns, total = int(work.dur[early].sum()), int(work.dur.sum())
    # Beyond ORPHAN_TIME_SHARE the check of launches says it, with step marks, too.
    considerable = QUEUED_BEFORE_SHARE * total < early_ns <= ORPHAN_TIME_SHARE * total
    if linked.any() and considerable and material(int(early.sum()), len(early)):
        yield Doubt(
            "cut",
            int(early.sum()),
            f"{int(early.sum()):,} kernels and copies, {early_ns / total:.0%} of the GPU time, were "
            "launched before the recording began, and no step mark separates them from the rest",
            over(work.start[early], work.end[early]),
        )


def steps(recording: Recording) -> Iterator[Doubt]:
    """Doubts about single steps, from the counts of each."""
    work, marked, events = recording.work, recording.steps, recording.events
    if not len(work.event) or not marked.marked:
        return
    whole = np.array(marked.whole)
    labels = [marked.labels[step] for step in whole]
    begin, end = marked.edges[whole], marked.edges[whole + 1]
    kernels = np.bincount(marked.of_work, minlength=len(marked.labels))[whole]
    op_start = events.start[events.where("op") & ~events.copied]
    window = np.searchsorted(marked.marks, op_start, side="right") - 1
    window = window[(window >= 0) & (window < len(marked.marks) - 1)]
    ops = np.bincount(window, minlength=len(marked.marks) - 1)[whole]
    kernel_median, kernel_alike = _siblings(kernels)
    op_median, op_alike = _siblings(ops)

    as_usual = op_alike & (ops >= ALIKE_SHARE * op_median) & (ops > 0)
    short = np.flatnonzero(kernel_alike & as_usual & (kernels < SHORT_STEP_SHARE * kernel_median))
    if len(short):
        first = short[0]
        yield Doubt(
            "short step",
            len(short),
            f"{labels[first]} has {kernels[first]:,} kernels, the other steps have "
            f"{kernel_median[first]:,.0f}, although the host ran as many ops",
            over(begin[short], end[short]),
        )

    is_mark = matching(events.names, STEP_MARK)[events.name]
    if len(whole) > 1:
        # Streams that have work in all steps but the last one, in which the host did the same.
        lane, (lanes,) = codes(work.lane)
        count = np.zeros((len(lanes), len(marked.labels)), dtype=np.int64)
        np.add.at(count, (lane, marked.of_work), 1)
        count = count[:, whole]
        ended = (count[:, -1] == 0) & (count[:, :-1].min(axis=1) >= LEAST_STREAM_WORK)
        if ended.any() and op_alike.all() and ops.min() >= ALIKE_SHARE * ops.max():
            rows = np.flatnonzero(np.isin(lane, np.flatnonzero(ended)))
            last = int(work.end[rows].max())
            streams = ", ".join(map(str, unique(work.stream[rows])))
            yield Doubt(
                "ends early",
                int(ended.sum()),
                f"stream {streams} has no work in {labels[-1]}, but at least "
                f"{int(count[ended, :-1].min()):,} kernels or copies in each earlier step, although the host "
                "ran as many ops",
                over([last], [max(int(work.end.max()), last)]),
            )

        # A first or last step of which only a part is recorded.
        length = np.diff(marked.marks)[whole]
        length_median, _ = _siblings(length)
        others = events.start[~is_mark]
        open_end = not (others >= int(marked.marks[whole[-1] + 1])).any()
        open_begin = not (others < int(marked.marks[whole[0]])).any()
        inner = float(median(ops[1:-1])) if len(ops) > 2 else 0.0
        for row, is_open in ((0, open_begin), (len(whole) - 1, open_end)):
            usual = max(inner, float(op_median[row]))
            is_part = (
                is_open
                and usual >= ENOUGH_CALLS
                and (
                    ops[row] < ALIKE_SHARE * inner
                    or (op_alike[row] and ops[row] < ALIKE_SHARE * op_median[row])
                )
            )
            is_stub = kernels[row] == 0 and length[row] < STUB_STEP_SHARE * length_median[row]
            if is_part or is_stub:
                share = f"it has {ops[row]:,} ops on the host, other steps have {usual:,.0f}"
                brief = f"takes {milliseconds(int(length[row]))} on the host and has no GPU work"
                yield Doubt(
                    "cut",
                    1,
                    f"{labels[row]} is incomplete: {brief if is_stub else share}",
                    over([int(begin[row])], [int(end[row])]),
                )

    # Launch calls before the first or after the last step: of steps whose marks are not recorded.
    marks = np.flatnonzero(is_mark & events.where("annotation"))
    start = events.start[recording.launch_calls]
    first_mark, last_mark = int(events.start[marks].min()), int(events.end[marks].max())
    outside = (start < first_mark) | (start > last_mark)
    count_outside = int(outside.sum())
    if material(count_outside, len(start)) and outside.mean() > OUTSIDE_STEPS_SHARE:
        low, high = int(start[outside].min()), int(start[outside].max())
        before = int((start < first_mark).sum())
        yield Doubt(
            "cut",
            count_outside,
            f"{before:,} of {len(start):,} launch calls come before the first step mark and "
            f"{count_outside - before:,} after the last: the marks of their steps are not recorded",
            over([low, max(last_mark, low)], [first_mark, max(high, last_mark)])
            if before
            else over([last_mark], [high]),
        )


def _siblings(counts: Int) -> tuple[Float, Bool]:
    """Of each step, the median of the others, and whether these agree with each other."""
    if len(counts) < 2:
        return counts.astype(float), np.zeros(len(counts), dtype=bool)
    order = np.argsort(counts, kind="stable")
    ordered = counts[order]
    position = np.empty(len(counts), dtype=np.int64)
    position[order] = np.arange(len(counts))

    def other(rank: int) -> Int:
        """The count of this rank among the others, by size."""
        count: Int = ordered[rank + (position <= rank)]
        return count

    last = len(counts) - 2
    alike: Bool = other(0) >= ALIKE_SHARE * other(last)
    return (other(last // 2) + other((last + 1) // 2)) / 2, alike


def clock(recording: Recording) -> Iterator[Doubt]:
    """Kernels before their launch calls, streams out of order, work that ends after a host waited for it."""
    work, launched, events = recording.work, recording.launched, recording.events
    linked = np.flatnonzero(launched >= 0)
    if not len(linked):
        return
    early = linked[work.start[linked] < launched[linked] - CLOCK_TOLERANCE_NS]
    # Work that runs before other work that was launched earlier on its stream.
    swapped = _behind(recording, linked, launched, launched)
    # Work that begins before other work on its stream has ended; branches of a graph may.
    crowded = _behind(recording, np.flatnonzero(~recording.under_graph), work.start, work.end)
    # Work that ends long after a call which waited for the whole device had returned.
    late = linked[:0]
    syncs = np.flatnonzero(recording.called(DEVICE_SYNCS))
    if len(syncs) and len(unique(work.device)) == 1:
        syncs = syncs[np.argsort(events.start[syncs], kind="stable")]
        following = np.searchsorted(events.start[syncs], launched[linked], side="right")
        back = events.end[syncs[np.minimum(following, len(syncs) - 1)]]
        late = linked[(following < len(syncs)) & (work.end[linked] > back + AFTER_SYNC_NS)]
    reasons = []
    if len(early) > max(FEW_RECORDS, DISORDER_SHARE * len(linked)):
        ahead = int((launched[early] - work.start[early]).max())
        reasons.append(
            f"{len(early):,} of {len(linked):,} kernels and copies begin before their launch call, by up "
            f"to {milliseconds(ahead)}"
        )
    if len(swapped) > max(FEW_RECORDS, DISORDER_SHARE * len(linked)):
        reasons.append(f"{len(swapped):,} run before earlier launches of the same stream")
    if len(crowded) > max(FEW_RECORDS, CROWDED_SHARE * len(work.event)):
        reasons.append(f"{len(crowded):,} begin before their predecessor on the stream has ended")
    else:
        crowded = crowded[:0]
    if len(late):
        reasons.append(f"{len(late):,} end after a call that waited for them had returned")
    if reasons:
        rows = unique(np.concatenate((early, swapped, late, crowded)))
        yield Doubt("clock", len(rows), "; ".join(reasons), over(work.start[rows], work.end[rows]))


def _behind(recording: Recording, rows: Int, value: Int, reached: Int) -> Int:
    """Work among these rows whose value lies before what earlier work of its stream has reached."""
    behind = [np.empty(0, np.int64)]
    for of_lane in rows_by_code(recording.work.lane[rows]).values():
        lane = rows[of_lane]
        latest = np.maximum.accumulate(reached[lane])[:-1]
        behind.append(lane[1:][value[lane[1:]] < latest - CLOCK_TOLERANCE_NS])
    return np.concatenate(behind)


def overlapping_kernels(recording: Recording) -> Iterator[Doubt]:
    """Work of one stream that runs at the same time.

    Branches of a graph may: there only kernels count that take much longer than others of their name, and so
    reach into what follows them.
    """
    work = recording.work
    graph = recording.under_graph
    of_name = stats(work.name, work.dur, len(work.names))
    long = (of_name.number >= LEAST_NAMESAKES)[work.name]
    long &= work.dur > LONG_RATIO * of_name.median[work.name]
    reaching = np.where(~graph | long, work.end, work.start)
    starts: list[Int] = []
    ends: list[Int] = []
    for part in (np.flatnonzero(~graph), np.flatnonzero(graph)):
        for rows in rows_by_code(work.lane[part]).values():
            start, end = work.start[part[rows]], work.end[part[rows]]
            reached = np.maximum.accumulate(reaching[part[rows]])[:-1]
            low, high = start[1:], np.minimum(reached, end[1:])
            starts.append(low[high > low])
            ends.append(high[high > low])
    start, end = (np.concatenate(times) if times else np.empty(0, np.int64) for times in (starts, ends))
    clipped = sum(number for what, number in recording.meta.repaired.items() if what.startswith(_CLIPPED))
    overlap = int((end - start).sum())
    much = overlap > OVERLAP_SHARE * recording.busy.total or bool((end - start > OVERLAP_NS).any())
    if not much and not clipped:
        return
    reasons = [f"{len(start):,} kernels overlap their predecessor on the stream, by {milliseconds(overlap)}"]
    if clipped:
        reasons.append(f"{clipped:,} overran the next one by more than 1 ms and were cut there")
    yield Doubt(
        "overlapping kernels",
        len(start) * much + clipped,
        "; ".join(reasons if much else reasons[1:]),
        over(start, end),
    )


CHECKS = (
    file_losses,
    missing_kernels,
    missing_launches,
    missing_links,
    missing_collectives,
    missing_step_marks,
    missing_graph_kernels,
    missing_work,
    waiting_at_the_end,
    profiler_edges,
    steps,
    clock,
    overlapping_kernels,
)
