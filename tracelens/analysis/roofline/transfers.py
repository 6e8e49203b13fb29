"""Copies, memsets and collectives as calls for the cost models."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tracelens.analysis.common import group_kind, integers
from tracelens.arrays import Int, lookup
from tracelens.costs import OpCall, OpCost, Uncounted, find
from tracelens.dtypes import short_dtype
from tracelens.table import Table, codes
from tracelens.trace import WORK_KINDS, Trace, Work

NamedCost = tuple[str, str, OpCost]
"""Name, arguments as text and cost of a call."""

_DIRECTION = re.compile(r"(h|d|p|host|device|peer)to(h|d|p|host|device|peer)")
_NO_LETTERS = re.compile(r"[^a-z]")


def copies(trace: Trace, work: Work) -> Iterator[tuple[Int, str, NamedCost | str]]:
    """Copies and memsets by the copy engines, those of one name and size together.

    Yields:
        (positions in `work`, kind - htod, dtoh, ptop, dtod or memset -, cost or why it is not known).
    """
    rows = np.flatnonzero(~work.is_kernel)
    sizes = trace.tables["events"].array("bytes")[work.event[rows]]
    memset = WORK_KINDS.index("memset")
    group, (name, kind, size) = codes(work.name[rows], work.kind[rows], sizes)
    for number in range(len(name)):
        label = work.names[name[number]]
        copy_kind = "memset" if kind[number] == memset else direction(label)
        positions = rows[group == number]
        if size[number] < 0:
            yield positions, copy_kind, "size of the copy not recorded"
        else:
            yield (
                positions,
                copy_kind,
                (label, f"{size[number]:,} bytes", copy_cost(copy_kind, int(size[number]))),
            )


def direction(name: str) -> str:
    """htod, dtoh, ptop or dtod, from the name that a profiler gives a copy; dtod where it does not say."""
    matched = _DIRECTION.search(_NO_LETTERS.sub("", name.lower()))
    return f"{matched[1][0]}to{matched[2][0]}" if matched else "dtod"


def copy_cost(copy_kind: str, size: int) -> OpCost:
    """Cost of a copy or memset of this many bytes."""
    model = find(f"memcpy::{copy_kind}" if copy_kind != "memset" else "memset::device") or find(
        "memcpy::dtod"
    )
    assert model is not None  # the models are tracelens's own
    return model.count(OpCall(model.name, [[size]], ["u8"]))


def collectives(trace: Trace, work: Work) -> Iterator[tuple[Int, NamedCost | str]]:
    """Communication kernels with the record that the profiler made of their sizes.

    Yields:
        (positions in `work`, cost or why it is not known).
    """
    table = trace.tables["collectives"]
    if not len(table):
        return
    position_of = trace.arrays.places(work.event)
    kernel = table.array("kernel_id")
    row = lookup(position_of, kernel, -1)
    recorded = np.flatnonzero(row >= 0)
    recorded = recorded[np.argsort(row[recorded], kind="stable")]
    positions, first = np.unique(row[recorded], return_index=True)
    for position, records in zip(positions.tolist(), np.split(recorded, first[1:]), strict=False):
        # Several records of one kernel are one launch of several sends and receives.
        parts = [_collective(table, record, trace.meta.rank) for record in records.tolist()]
        yield np.array([position]), _together(parts)


def _together(parts: list[NamedCost | str]) -> NamedCost | str:
    counted = [part for part in parts if not isinstance(part, str)]
    if len(counted) < len(parts):
        return next(part for part in parts if isinstance(part, str))
    name, text, cost = counted[0]
    for _, more, added in counted[1:]:
        text = f"{text} {more}"
        cost = cost._replace(
            read_bytes=cost.read_bytes + added.read_bytes,
            write_bytes=cost.write_bytes + added.write_bytes,
            link_bytes=cost.link_bytes + added.link_bytes,
        )
    return name, text, cost


def _collective(table: Table, record: int, rank: int) -> NamedCost | str:
    """One record of the collectives table."""

    def text(column: str) -> str:
        return table.texts(column, [record])[0]

    def number(column: str) -> int:
        return int(table.array(column)[record])

    name = text("collective")
    model = find(f"collective::{name}")
    if model is None:
        return f"unknown collective {name!r}"
    sizes = [number("in_bytes"), number("out_bytes")]
    if min(sizes) < 0:
        return "size of the collective not recorded"
    size = number("group_size")
    group = group_kind(text("group"), text("group_description"), integers(text("group_ranks")))
    own_index = _index_of(text("group_ranks"), rank)
    splits = zip((text("in_split"), text("out_split")), sizes, strict=True)
    values = [str(size), *(_to_others(split, own_index, size) for split, size in splits)]
    call = OpCall(f"collective::{name}", [[size] for size in sizes], ["u8", "u8"], values)
    try:
        cost = model.count(call)
    except Uncounted as why:
        return why.reason
    dtype = short_dtype(text("dtype"))
    shown = f"{dtype} {sizes[0]:,} -> {sizes[1]:,} bytes, {size} ranks"
    return (
        f"{name} ({group})",
        shown,
        cost._replace(dtype=dtype),
    )


def _to_others(split: str, own_index: int, size: int) -> str:
    """Bytes of a message that are for (or from) other ranks, by its split sizes; "" where not known."""
    parts = integers(split)
    if not 0 <= own_index < len(parts) or sum(parts) <= 0:
        return ""
    return str(size - size * parts[own_index] // sum(parts))


def _index_of(ranks: str, rank: int) -> int:
    numbers = integers(ranks)
    return numbers.index(rank) if rank in numbers else -1
