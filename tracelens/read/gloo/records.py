"""Records of gloo's collectives: it leaves none as NCCL does, so what they would say is read from the ops."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.arrays import Int
from tracelens.read.gloo.gloo import Communication, HostEvents
from tracelens.read.gloo.groups import Group, header_groups, listed_groups, peer_group, thread_groups
from tracelens.read.gloo.ops import OPS, Arguments, GlooKind
from tracelens.read.json import CollectiveRow, integer
from tracelens.trace import decoded, element_count

THREADS_KEY = "gloo_threads"
"""Ids of all of gloo's worker threads in the process, as they were made, in the header's `tracelens`."""

_NO_RANKS = b'""'
_PIPELINE = re.compile(r"pipeline|(^|_)pp($|_)|p2p", re.IGNORECASE)


def records(
    events: HostEvents, arguments: Arguments, talk: Communication, source: Int, info: Mapping[str, Any]
) -> list[CollectiveRow]:
    """What the profiler would have recorded about each collective.

    Args:
        events: of the trace.
        arguments: of its ops and annotations.
        talk: from `communication`.
        source: position in the file of each row.
        info: the header's distributedInfo, with THREADS_KEY where the recorder wrote it.
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
    partners = _partners(events, arguments, ops)
    rank = integer(info.get("rank"))
    places = sorted(set(partners.values()))
    pairs = peer_group(rank, places, groups, lambda text: bool(_PIPELINE.search(text)))
    result = []
    # Thousands of records share one text, which may be long; so may the ranks be, too long to be hashed each.
    texts = {id(group.ranks): _text(json.dumps(list(group.ranks))) for group in groups}
    only = _only(groups, unknown)
    for op in ops:
        row = ran.get(op, op)
        group = of_thread.get(int(events.tid[row]), only)
        name, peer = events.names[events.name[op]], -1
        if OPS[name].mark in ("send", "recv"):
            group = pairs or unknown
            peer = pairs.ranks[partners[op]] if pairs and op in partners else -1
        record = _record(name, op, row, arguments, group, texts.get(id(group.ranks), _NO_RANKS))
        result.append(record._replace(event=int(source[op]), peer=peer))
    return result


def _only(groups: Sequence[Group], unknown: Group) -> Group:
    return groups[0] if len({group.ranks for group in groups}) == 1 else unknown


def _partners(events: HostEvents, arguments: Arguments, ops: Iterable[int]) -> dict[int, int]:
    """Of sends and receives, the group index of the other rank."""
    partners = {}
    for op in ops:
        name = events.names[events.name[op]]
        if name in ("c10d::send", "c10d::recv_") and (group_index := integer(arguments.value(op, 2))) >= 0:
            partners[op] = group_index
    return partners


def _sizes(kind: GlooKind, arguments: Arguments, op: int) -> set[int]:
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


def _record(name: str, op: int, row: int, arguments: Arguments, group: Group, ranks: bytes) -> CollectiveRow:
    kind, size = OPS[name], len(group.ranks)
    in_elements, out_elements = (_elements(arguments.dims(op, index)) for index in (kind.input, kind.output))
    if kind.mark == "barrier":
        in_elements = out_elements = 0
    each = size or -1
    in_elements = in_elements * each if kind.input_per_rank and in_elements >= 0 else in_elements
    out_elements = out_elements * each if kind.output_per_rank and out_elements >= 0 else out_elements
    splits = ["", ""]
    if name == "c10d::alltoall_base_":
        splits = [text if decoded(text) else "" for text in (arguments.value(op, 4), arguments.value(op, 3))]
    elif name == "c10d::alltoall_":
        splits = [
            json.dumps([element_count(shape) for shape in arguments.dims(op, index)]) for index in (1, 0)
        ]
    likely_sizes = sorted(_sizes(kind, arguments, op))
    return CollectiveRow(
        event=-1,
        collective="all_to_allv" if any(splits) else kind.name,
        group=_text(group.name),
        description=_text(group.description),
        ranks=ranks,
        size=size or (likely_sizes[0] if len(likely_sizes) == 1 else -1),
        dtype=_text(arguments.dtype(row) or arguments.dtype(op)),
        in_elements=integer(max(in_elements, -1)),
        out_elements=integer(max(out_elements, -1)),
        in_split=_text(splits[0]),
        out_split=_text(splits[1]),
    )


def _text(value: str) -> bytes:
    return json.dumps(value).encode()
