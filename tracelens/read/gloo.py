"""The work of a CPU-only trace: the host's ops and gloo's communication, in the form of GPU work.

The profiler records an op (c10d::allreduce_) on the calling thread, and the communication itself as an
annotation (gloo:all_reduce) on a thread of the group; sends and receives on the calling thread. Neither names
the other nor the process group, and gloo leaves no records as NCCL does: what they would say is read from the
ops.

Each group has two threads of its own, made with the group. So threads in order of their ids, taken in ones
and twos, are the groups in order of their making, some left out whose threads did nothing; and some
collectives tell the size of their group. What that leaves open stays unknown: ranks must not be compared by
a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracelens.arrays import Bool, Int, lookup
from tracelens.dtypes import scalar_type
from tracelens.limits import LARGEST_COUNT
from tracelens.read.header import THREADS_KEY, ranks_of_header, valid_ranks
from tracelens.read.json import CollectiveRow, Encoded, integer
from tracelens.trace import EVENT_KINDS, Calls, Stack, decoded, element_count, host_work

if TYPE_CHECKING:
    from tracelens.read.build import EventRows

RECORD = "record_param_comms"
"""The op inside of one that starts communication, with the profiler's record of it, where there is one."""


MARK = "gloo:"


class HostEvents(NamedTuple):
    """Events of a trace, one row each."""

    is_op: Bool
    is_annotation: Bool
    name: Int
    names: Sequence[str]
    thread: Int
    tid: Int
    start: Int
    end: Int


class Communication(NamedTuple):
    """gloo's communication, one element an annotation."""

    row: Int  # of the annotation, ascending
    op: Int  # of the op that started it, -1 if not in the trace
    aside: Bool  # whether it ran on a thread of its group


_NO_RANKS = b'""'
_PIPELINE = re.compile(r"pipeline|(^|_)pp($|_)|p2p", re.IGNORECASE)

THREADS = 2
"""Worker threads of a group (ProcessGroupGloo::Options)."""


class Group(NamedTuple):
    """A process group as the header describes it; of one not known, `name` is the rank's own."""

    name: str
    description: str
    ranks: tuple[int, ...]


class GlooKind(NamedTuple):
    """How to read one c10d op."""

    mark: str  # what gloo calls it
    name: str  # what the profiler calls it where it records collectives
    input: int  # index of the argument that goes in, one tensor or a list of them
    output: int  # index of the argument that comes out
    input_per_rank: bool = False  # whether the input holds as much again for each rank of the group
    output_per_rank: bool = False  # whether the output does


OPS: Mapping[str, GlooKind] = {
    "c10d::allreduce_": GlooKind("all_reduce", "allreduce", 0, 0),
    "c10d::allreduce_coalesced_": GlooKind("all_reduce", "allreduce_coalesced", 0, 0),
    "c10d::allgather_": GlooKind("all_gather", "allgather", 1, 1, output_per_rank=True),
    "c10d::_allgather_base_": GlooKind("all_gather", "_allgather_base", 1, 0),
    "c10d::allgather_coalesced_": GlooKind("all_gather", "allgather_coalesced", 1, 1, output_per_rank=True),
    "c10d::allgather_into_tensor_coalesced_": GlooKind("all_gather", "allgather_into_tensor_coalesced", 1, 0),
    "c10d::reduce_scatter_": GlooKind("reduce_scatter", "reduce_scatter", 0, 0, input_per_rank=True),
    "c10d::_reduce_scatter_base_": GlooKind("all_reduce", "_reduce_scatter_base", 1, 0),
    "c10d::reduce_scatter_tensor_coalesced_": GlooKind("all_reduce", "reduce_scatter_tensor_coalesced", 1, 0),
    "c10d::alltoall_base_": GlooKind("all_to_all", "all_to_all", 1, 0),
    "c10d::alltoall_": GlooKind("all_to_all", "all_to_all", 1, 0),
    "c10d::broadcast_": GlooKind("broadcast", "broadcast", 0, 0),
    "c10d::reduce_": GlooKind("reduce", "reduce", 0, 0),
    "c10d::gather_": GlooKind("gather", "gather", 1, 1, output_per_rank=True),
    "c10d::scatter_": GlooKind("scatter", "scatter", 0, 0, input_per_rank=True),
    "c10d::send": GlooKind("send", "send", 0, 0),
    "c10d::recv_": GlooKind("recv", "recv", 0, 0),
    "c10d::recv_any_source_": GlooKind("recv", "recv_any_source", 0, 0),
    "c10d::barrier": GlooKind("barrier", "barrier", -1, -1),
}


class GlooArguments:
    """The recorded arguments of events, decoded when asked for.

    `texts` are of an event row the JSON texts of dims, types and values.
    """

    def __init__(self, texts: Mapping[int, tuple[str, str, str]]) -> None:
        self._texts = texts

    def dims(self, row: int, index: int) -> list[list[int]]:
        """Dimensions of the tensors in one argument, [] where they are not recorded."""
        dims = _at(decoded(self._texts[row][0]), index) if row in self._texts else None
        if not isinstance(dims, list):
            return []
        if dims and all(isinstance(tensor_dims, list) for tensor_dims in dims):
            return dims if all(_are_sizes(tensor_dims) for tensor_dims in dims) else []
        listed = _at(decoded(self._texts[row][1]), index)
        is_tensor = listed not in ("", "TensorList", "Scalar", "ScalarList", "GenericList", None)
        return [dims] if is_tensor and _are_sizes(dims) else []

    def dtype(self, row: int) -> str:
        """Element type of the first argument that has one."""
        types = decoded(self._texts[row][1]) if row in self._texts else []
        names = (
            text.removeprefix("c10::") if text.startswith("c10::") else scalar_type(text)
            for text in map(str, types)
        )
        return next(filter(None, names), "")

    def value(self, row: int, index: int) -> str:
        text = _at(decoded(self._texts[row][2]), index) if row in self._texts else ""
        return text if isinstance(text, str) else ""


def host_side(
    table: Encoded,
    rows: EventRows,
    kind: Int,
    location: tuple[Int, Int, Int],
    calls: Calls,
    info: Mapping[str, Any],
) -> tuple[dict[str, Int], list[CollectiveRow]]:
    """The work of the host in a CPU-only trace.

    Args:
        table: as decoded.
        rows: its events.
        kind: code into EVENT_KINDS of each.
        location: number of the thread, thread id and end of each.
        calls: the same events as calls.
        info: the header's distributedInfo, with THREADS_KEY where the recorder wrote it.

    Returns:
        (columns of the links table without the forward ops, collectives: those that the profiler recorded,
        else those that ran through gloo).
    """
    thread, tid, end = location
    is_annotation = kind == EVENT_KINDS.index("annotation")
    events = HostEvents(
        is_op=calls.is_op,
        is_annotation=is_annotation,
        name=rows.table.name,
        names=table.names,
        thread=thread,
        tid=tid,
        start=calls.start,
        end=end,
    )
    # Dims, types and values of what has to do with communication.
    talks = np.array(["c10d::" in name or name.startswith(MARK) for name in table.names], dtype=bool)
    op_of = np.full(len(rows.category), -1, dtype=np.int64)
    op_of[table.ops.event] = np.arange(len(table.ops.event))
    columns = table.ops
    texts = {}
    for row in np.flatnonzero(talks[events.name]).tolist():
        if (op := op_of[rows.source[row]]) >= 0:
            dims, types = table.dims[columns.dims[op]], table.types[columns.types[op]]
            texts[row] = (dims, types, table.values[columns.values[op]])
    arguments = GlooArguments(texts)
    talk = communication(events, arguments)
    within, called = np.zeros(len(rows.source), dtype=bool), np.zeros(len(rows.source), dtype=bool)
    within[talk.row[talk.aside]] = True
    # The record inside of each op, the op itself where it has none.
    record_code = [code for code, text in enumerate(events.names) if text == RECORD]
    inside = np.flatnonzero(events.is_op & np.isin(events.name, record_code))
    record_of = np.arange(len(events.start))
    record_of[calls.parent[inside]] = inside
    recorded = lookup(record_of, talk.op, -1)
    called[np.concatenate((talk.op[talk.op >= 0], recorded[recorded >= 0]))] = True
    stack = Stack(calls.is_op, rows.table.name, calls.parent, calls.depth)
    ops = host_work(stack, list(events.names), within, called)
    work, op = np.concatenate((ops, talk.row)), np.concatenate((ops, recorded))
    order = np.argsort(work)
    link = {
        "kernel_id": work[order],
        "launch_id": np.full(len(work), -1, dtype=np.int64),
        "op_id": op[order],
    }
    return link, table.collectives or records(events, arguments, talk, rows.source, info)


def communication(events: HostEvents, arguments: GlooArguments) -> Communication:
    """Tie the annotations to the ops that started them.

    Those of sends and receives begin inside of their op. Others begin later on another thread; a group works
    in the order of the calls, so of equal ones the first belongs to the first.
    """
    marked = np.array([name.startswith(MARK) for name in events.names], dtype=bool)
    row = np.flatnonzero(events.is_annotation & marked[events.name])
    calls_gloo = np.array([name in OPS for name in events.names], dtype=bool)
    ops = np.flatnonzero(events.is_op & calls_gloo[events.name])
    ops = ops[np.argsort(events.start[ops], kind="stable")]
    waiting_ops: dict[str, list[int]] = {}
    for op_row in ops.tolist():
        waiting_ops.setdefault(OPS[events.names[events.name[op_row]]].mark, []).append(op_row)
    tied = {}
    for annotation in row[np.argsort(events.start[row], kind="stable")].tolist():
        waiting = waiting_ops.get(events.names[events.name[annotation]].removeprefix(MARK), [])
        begin, dims = events.start[annotation], arguments.dims(annotation, 0)
        tied[annotation] = -1
        for position, op_row in enumerate(waiting):
            if events.start[op_row] > begin:
                break
            if events.thread[op_row] == events.thread[annotation]:
                is_calling = begin <= events.end[op_row]
            else:
                op_dims = arguments.dims(op_row, OPS[events.names[events.name[op_row]]].input)
                is_calling = not dims or not op_dims or dims[0] == op_dims[0]
            if is_calling:
                tied[annotation] = waiting.pop(position)
                break
    op = np.array([tied[annotation] for annotation in row.tolist()], dtype=np.int64)
    aside = events.thread[row] != lookup(events.thread, op, -1)
    return Communication(row, op, aside & ~np.isin(events.thread[row], events.thread[ops]))


def records(
    events: HostEvents, arguments: GlooArguments, talk: Communication, source: Int, info: Mapping[str, Any]
) -> list[CollectiveRow]:
    """What the profiler would have recorded about each collective.

    `source` is the position in the file of each row.
    """
    groups = header_groups(info)
    unknown = Group(f"not recorded (rank {integer(info.get('rank'))})", "", ())
    ran = {op: row for row, op in zip(talk.row.tolist(), talk.op.tolist(), strict=True) if op >= 0}
    calls_gloo = np.array([name in OPS for name in events.names], dtype=bool)
    ops = np.flatnonzero(events.is_op & calls_gloo[events.name]).tolist()
    sizes: dict[int, set[int]] = {int(events.tid[row]): set() for row in talk.row[talk.aside].tolist()}
    for op, row in ran.items():
        if int(events.tid[row]) in sizes:
            sizes[int(events.tid[row])] |= _sizes(OPS[events.names[events.name[op]]], arguments, op)
    listed = info.get(THREADS_KEY)
    threads = [integer(thread) for thread in listed] if isinstance(listed, list) else []
    of_thread = listed_groups(threads, sizes, groups) or thread_groups(sizes, groups, unknown)
    # Of sends and receives, the index of the other rank in the group.
    partners = {
        op: partner
        for op in ops
        if events.names[events.name[op]] in ("c10d::send", "c10d::recv_")
        and (partner := integer(arguments.value(op, 2))) >= 0
    }
    rank = integer(info.get("rank"))
    pairs = peer_group(
        rank, sorted(set(partners.values())), groups, lambda text: bool(_PIPELINE.search(text))
    )
    result = []
    # Thousands of records share one text, which may be long; so may the ranks be, too long to be hashed each.
    texts = {id(group.ranks): _text(json.dumps(list(group.ranks))) for group in groups}
    only = groups[0] if len({group.ranks for group in groups}) == 1 else unknown
    for op in ops:
        row = ran.get(op, op)
        group = of_thread.get(int(events.tid[row]), only)
        name, peer = events.names[events.name[op]], -1
        kind = OPS[name]
        if kind.mark in ("send", "recv"):
            group = pairs or unknown
            peer = pairs.ranks[partners[op]] if pairs and op in partners else -1
        counts = [_elements(arguments.dims(op, index)) for index in (kind.input, kind.output)]
        if kind.mark == "barrier":
            counts = [0, 0]
        in_elements, out_elements = (
            count * (len(group.ranks) or -1) if is_per_rank and count >= 0 else count
            for count, is_per_rank in zip(counts, (kind.input_per_rank, kind.output_per_rank), strict=True)
        )
        splits = ["", ""]
        if name == "c10d::alltoall_base_":
            recorded = (arguments.value(op, 4), arguments.value(op, 3))
            splits = [text if decoded(text) else "" for text in recorded]
        elif name == "c10d::alltoall_":
            shapes = (arguments.dims(op, 1), arguments.dims(op, 0))
            splits = [json.dumps([element_count(shape) for shape in part]) for part in shapes]
        likely_sizes = sorted(_sizes(kind, arguments, op))
        result.append(
            CollectiveRow(
                event=int(source[op]),
                collective="all_to_allv" if any(splits) else kind.name,
                group=_text(group.name),
                description=_text(group.description),
                ranks=texts.get(id(group.ranks), _NO_RANKS),
                size=len(group.ranks) or (likely_sizes[0] if len(likely_sizes) == 1 else -1),
                dtype=_text(arguments.dtype(row) or arguments.dtype(op)),
                in_elements=integer(max(in_elements, -1)),
                out_elements=integer(max(out_elements, -1)),
                in_split=_text(splits[0]),
                out_split=_text(splits[1]),
                peer=peer,
            )
        )
    return result


def _sizes(kind: GlooKind, arguments: GlooArguments, op: int) -> set[int]:
    """Sizes of the group that the arguments of an op tell."""
    if kind.mark == "all_to_all":
        listed = [decoded(arguments.value(op, index)) for index in (3, 4)]
        return {len(splits) for splits in listed if splits}
    in_elements, out_elements = (_elements(arguments.dims(op, index)) for index in (kind.input, kind.output))
    if kind.input == kind.output or min(in_elements, out_elements) <= 0:
        return set()
    large, small = max(in_elements, out_elements), min(in_elements, out_elements)
    return {large // small} if large % small == 0 else set()


def _elements(dims: Sequence[Sequence[int]]) -> int:
    counts = [element_count(shape) for shape in dims]
    return sum(counts) if counts and min(counts) >= 0 else -1


def _text(value: str) -> bytes:
    return json.dumps(value).encode()


def header_groups(info: Mapping[str, Any]) -> list[Group]:
    """The process groups that this rank is in, in order of their making, from `distributedInfo`."""
    listed = info.get("pg_config")
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except (ValueError, RecursionError):
            listed = None
    groups = []
    for entry in listed if isinstance(listed, list) else []:
        ranks = valid_ranks(entry.get("ranks")) if isinstance(entry, dict) else ()
        if ranks:
            description = entry.get("pg_desc", "")
            groups.append(Group(str(entry.get("pg_name", "")), str(description), ranks))
    _, size, _ = ranks_of_header(info)
    return groups or ([Group("0", "default_pg", tuple(range(size)))] if size > 0 else [])


def thread_groups(sizes: Mapping[int, set[int]], groups: Sequence[Group], unknown: Group) -> dict[int, Group]:
    """The group of each worker thread.

    Args:
        sizes: thread id to the sizes of its group that its collectives tell.
        groups: from `header_groups`.
        unknown: stands for a group that cannot be told.
    """
    # Neighbouring threads in as few groups as possible, those with the closest ids together. Of the first n
    # threads: groups, distance, size of the last.
    threads = sorted(sizes)
    best = [(0, 0, 0)]
    for index, thread in enumerate(threads):
        count, apart, _ = best[index]
        ways = [(count + 1, apart, 1)]
        if index and len(sizes[thread] | sizes[threads[index - 1]]) <= 1:
            count, apart, _ = best[index - 1]
            ways.append((count + 1, apart + thread - threads[index - 1], 2))
        best.append(min(ways, key=lambda way: way[:2]))
    runs: list[list[int]] = []
    stop = len(threads)
    while stop:
        runs.append(threads[stop - best[stop][2] : stop])
        stop -= best[stop][2]
    runs.reverse()
    run_sizes = [set().union(*(sizes[thread] for thread in run)) for run in runs]

    def fits(run: int, group: int) -> bool:
        return run_sizes[run] <= {len(groups[group].ranks)}

    first = _assigned(len(runs), len(groups), fits)
    # The last group that each can have is the first one, counted from the other end.
    end, most = len(runs) - 1, len(groups) - 1
    last = _assigned(len(runs), len(groups), lambda run, group: fits(end - run, most - group))
    of_thread: dict[int, Group] = {}
    for number, run in enumerate(runs):
        group = unknown._replace(name=f"{unknown.name}, threads {number}")
        if first and last:
            candidates = range(first[number], most - last[end - number] + 1)
            possible = [groups[index] for index in candidates if fits(number, index)]
            if len(possible) == 1:
                group = possible[0]
            elif len({candidate.ranks for candidate in possible}) == 1:  # they have their ranks in common
                name = " or ".join(candidate.name for candidate in possible)
                group = possible[0]._replace(name=name, description="")
        of_thread |= dict.fromkeys(run, group)
    return of_thread


def listed_groups(
    threads: Sequence[int], sizes: Mapping[int, set[int]], groups: Sequence[Group]
) -> dict[int, Group]:
    """The group of each worker thread, where the header lists all worker threads that the process has.

    Args:
        threads: that list, as they were made, `THREADS` a group; {} is returned for any other.
        sizes: as for `thread_groups`.
        groups: from `header_groups`.
    """
    if len(threads) != THREADS * len(groups):
        return {}
    of_thread = {thread: groups[index // THREADS] for index, thread in enumerate(threads)}
    fits = all(
        thread in of_thread and known <= {len(of_thread[thread].ranks)} for thread, known in sizes.items()
    )
    return of_thread if fits else {}


def peer_group(
    rank: int, partners: Sequence[int], groups: Sequence[Group], prefer: Callable[[str], bool]
) -> Group | None:
    """The group of a rank's sends and receives, None where it cannot be told.

    `partners` are the indices in the group of those whom it sends to and receives from; `prefer` says whether
    a group of this description is for sends and receives.
    """
    possible = [
        group
        for group in groups
        if rank in group.ranks
        and all(0 <= partner < len(group.ranks) and group.ranks[partner] != rank for partner in partners)
    ]
    possible = [group for group in possible if prefer(group.description)] or possible
    partners_in = {tuple(group.ranks[partner] for partner in partners) for group in possible}
    return possible[0] if len(partners_in) == 1 else None


def _assigned(runs: int, groups: int, fits: Callable[[int, int], bool]) -> list[int]:
    """The first group that each run can have when they keep their order; [] if they do not fit."""
    assigned: list[int] = []
    for run in range(runs):
        begin = assigned[-1] + 1 if assigned else 0
        group = next((group for group in range(begin, groups) if fits(run, group)), -1)
        if group < 0:
            return []
        assigned.append(group)
    return assigned


def _are_sizes(dims: Sequence[Any]) -> bool:
    """Whether these are the dimensions of a tensor that can be: no size is negative, none fills 64 bits."""
    return all(type(size) is int and size >= 0 for size in dims) and prod(dims) <= LARGEST_COUNT


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if 0 <= index < len(values) else None
