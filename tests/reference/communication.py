"""Communication of all ranks: what each kernel waited for, and what it took to move the data.

A kernel waits until the last rank of its collective has started; the rest of its duration is transfer. Of a
send and its receive the two ends are the ranks. A kernel of several messages waits for the last of all peers.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import Any, NamedTuple

from tests.reference.raw import Recording, Span, Work

_KERNEL = re.compile("nccl|rccl", re.IGNORECASE)
P2P = ("send", "recv")
# Of a host, clocks agree to less than this.
ONE_CLOCK_NS = 20_000

Key = tuple[Any, ...]


class Part(NamedTuple):
    """One rank's part in one collective or message, times by the common clock.

    Attributes:
        kernel: position among the communication kernels of the rank.
    """

    rank: int
    kernel: int
    start: int
    end: int
    record: dict[str, Any]

    @property
    def dur(self) -> int:
        return self.end - self.start


class Instance(NamedTuple):
    """The same collective on all its ranks; of a message the sender's part comes first.

    Attributes:
        key: process group, or (src, dst) of messages.
        order: position among those of the same key.
    """

    key: Key
    order: int
    parts: tuple[Part, ...]

    @property
    def is_message(self) -> bool:
        return self.key[0] == "message"

    @property
    def arrival(self) -> int:
        return max(part.start for part in self.parts)

    @property
    def latency(self) -> int:
        return min(part.dur for part in self.parts)

    @property
    def start_skew(self) -> int:
        return self.arrival - min(part.start for part in self.parts)

    @property
    def end_skew(self) -> int:
        ends = [part.end for part in self.parts]
        return max(ends) - min(ends)

    @property
    def last_rank(self) -> int:
        return min(part.rank for part in self.parts if part.start == self.arrival)

    def wait(self, part: Part) -> int:
        return min(self.arrival - part.start, part.dur)


@dataclass
class RankSplit:
    """Time of one rank's communication kernels.

    Attributes:
        kernel_ns: of all = sync_ns + transfer_ns.
        unmatched_ns: of the transfer, kernels of which no other rank's part is known.
        caused_ns: what other ranks waited for this one.
    """

    kernel_ns: int
    sync_ns: int
    unmatched_ns: int
    caused_ns: int
    last_arrivals: int

    @property
    def transfer_ns(self) -> int:
        return self.kernel_ns - self.sync_ns


class Communication(NamedTuple):
    """Attributes:
    split: by rank.
    instances: all collectives and messages of two ranks and more.
    offsets: by rank, subtracted from its clock.
    """

    split: dict[int, RankSplit]
    instances: list[Instance]
    offsets: dict[int, Fraction]


def kernels_of(recording: Recording) -> list[Work]:
    return [work for work in recording.work if _KERNEL.search(work.name)]


def records_of(recording: Recording) -> Iterator[tuple[int, float, dict[str, Any]]]:
    """(kernel, when it was asked for, record) of each collective and message.

    Kineto repeats the record on the kernel that the call launched. A batch has
    one kernel without any, launched in the region that ends it, for what the thread recorded since the last.
    """
    batches: dict[str, list[Span]] = defaultdict(list)
    messages: dict[str, list[Span]] = defaultdict(list)
    for op in recording.ops:
        if op.name == "nccl:coalesced":
            batches[op.thread].append(op)
        elif op.name == "record_param_comms" and op.args.get("Collective name") in P2P:
            messages[op.thread].append(op)
    for number, kernel in enumerate(kernels_of(recording)):
        if "Collective name" in kernel.args:
            asked = kernel.start if kernel.called is None else kernel.called
            yield number, asked, kernel.args
            continue
        if kernel.called is None:
            continue
        regions = batches[kernel.thread]
        for place, region in enumerate(regions):
            if region.start <= kernel.called < region.end:
                since = regions[place - 1].end if place else 0
                for message in messages[kernel.thread]:
                    if since <= message.start < region.start:
                        yield number, message.start, message.args


def communication(recordings: Sequence[Recording]) -> Communication:
    first = min(recordings, key=lambda recording: recording.rank)
    by_key: dict[Key, dict[tuple[str, int], list[tuple[float, Part]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for recording in recordings:
        kernels = kernels_of(recording)
        shift = recording.base - first.base
        for number, asked, record in records_of(recording):
            kernel = kernels[number]
            part = Part(recording.rank, number, kernel.start + shift, kernel.end + shift, record)
            key, side = _key(recording.rank, record)
            by_key[key][side].append((asked, part))
    instances = []
    for key, sides in by_key.items():
        lists = [
            [part for _, part in sorted(parts, key=lambda pair: pair[0])]
            for _, parts in sorted(sides.items())
        ]
        if len(lists) < 2:
            continue
        for order, parts in enumerate(zip(*lists, strict=True)):
            _check(key, parts)
            instances.append(Instance(key, order, parts))
    offsets = _offsets([recording.rank for recording in recordings], instances)
    if max(map(abs, offsets.values())) > ONE_CLOCK_NS:
        instances = [
            item._replace(parts=tuple(_moved(part, offsets[part.rank]) for part in item.parts))
            for item in instances
        ]
    else:
        offsets = dict.fromkeys(offsets, Fraction(0))
    return Communication(_split(recordings, instances), instances, offsets)


def _key(rank: int, record: dict[str, Any]) -> tuple[Key, tuple[str, int]]:
    """What is matched by, and which side of it this is: messages by their two ends, in global ranks."""
    kind, group = record["Collective name"], record["Process Group Name"]
    if kind == "send":
        return ("message", group, rank, int(record["Dst Rank"])), ("a sender", rank)
    if kind == "recv":
        return ("message", group, int(record["Src Rank"]), rank), ("receiver", rank)
    return ("collective", group, tuple(json.loads(record["Process Group Ranks"]))), ("rank", rank)


def _check(key: Key, parts: Sequence[Part]) -> None:
    """Ranks that disagree on a collective show that the wrong ones were put together."""
    same = {(part.record["Collective name"], part.record["dtype"]) for part in parts}
    if key[0] == "message":
        same = {(part.record["In msg nelems"], part.record["dtype"]) for part in parts}
    if len(same) > 1:
        raise ValueError(f"{key}: {same}")


def _moved(part: Part, offset: Fraction) -> Part:
    return part._replace(start=part.start - round(offset), end=part.end - round(offset))


def _offsets(ranks: Sequence[int], instances: Sequence[Instance]) -> dict[int, Fraction]:
    """Clock of each rank against the lowest one's: all ranks of a collective end together."""
    known = {min(ranks): Fraction(0)}
    collectives = [instance for instance in instances if not instance.is_message]
    while True:
        apart: dict[int, list[Fraction]] = defaultdict(list)
        for instance in collectives:
            reached = [part.end - known[part.rank] for part in instance.parts if part.rank in known]
            for part in instance.parts:
                if reached and part.rank not in known:
                    apart[part.rank].append(part.end - median(reached))
        if not apart:
            return known | {rank: Fraction(0) for rank in ranks if rank not in known}
        known |= {rank: Fraction(median(differences)) for rank, differences in apart.items()}


def _split(recordings: Sequence[Recording], instances: Sequence[Instance]) -> dict[int, RankSplit]:
    sync: dict[tuple[int, int], int] = {}
    waited_for: dict[tuple[int, int], int] = {}  # the rank that the kernel waits for longest
    last: Counter[int] = Counter()
    for instance in instances:
        last[instance.last_rank] += 1
        for part in instance.parts:
            key = part.rank, part.kernel
            if key not in sync or instance.wait(part) > sync[key]:
                sync[key], waited_for[key] = instance.wait(part), instance.last_rank
    caused: Counter[int] = Counter()
    for key, wait in sync.items():
        caused[waited_for[key]] += wait
    splits = {}
    for recording in recordings:
        rank, kernels = recording.rank, kernels_of(recording)
        of_rank = {kernel: wait for (owner, kernel), wait in sync.items() if owner == rank}
        unmatched = sum(kernel.dur for number, kernel in enumerate(kernels) if number not in of_rank)
        splits[rank] = RankSplit(
            sum(kernel.dur for kernel in kernels), sum(of_rank.values()), unmatched, caused[rank], last[rank]
        )
    return splits
