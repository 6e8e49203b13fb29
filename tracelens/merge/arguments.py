"""The arguments that a viewer shows for a clicked event, as JSON text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int, lookup
from tracelens.merge.text import quote
from tracelens.trace import Events, Trace, describe


class Arrows(NamedTuple):
    """Launch calls and what they launched, under numbers that no other rank uses."""

    correlation: Int  # by event; 0 where there is nothing to join
    launch: Int  # events at the two ends of each arrow
    kernel: Int
    # number of each arrow. The first of a launch call has the call's correlation; an arrow has one end
    # only, so each piece of work of a graph launch gets an arrow of its own
    flow: Int
    free: int  # the first number that is not used


def find_arrows(trace: Trace, first: int, cpu: bool = True) -> Arrows:
    """Number the launches of a rank from `first`; without `cpu` there are none, but the work keeps numbers.

    Work without a launch call gets a number too, or readers may guess a launch by thread and time.
    """
    links = trace.tables["links"]
    kernel, launch = links.array("kernel_id"), links.array("launch_id")
    if trace.meta.cpu_only:  # nothing is launched
        kernel, launch = kernel[:0], launch[:0]
    if not cpu:
        launch = np.full_like(launch, -1)
    correlation = np.zeros(len(trace.arrays.start), dtype=np.int64)
    alone = kernel[launch < 0]
    kernel, launch = kernel[launch >= 0], launch[launch >= 0]
    calls, where, call = np.unique(launch, return_index=True, return_inverse=True)
    correlation[calls] = first + np.arange(len(calls))
    correlation[kernel] = first + call
    first += len(calls)
    correlation[alone] = first + np.arange(len(alone))
    first += len(alone)
    flow = first + np.arange(len(kernel))
    flow[where] = correlation[kernel[where]]
    return Arrows(correlation, launch, kernel, flow, first + len(kernel))


def arguments(trace: Trace, arrows: Arrows) -> list[str]:
    """The arguments of each event, each with a leading comma: `,"bytes":64`."""
    events = trace.arrays
    args = [""] * len(events.start)
    _ops(trace, args)
    _launches(trace, events, arrows, args)
    _work(trace, events, arrows, args)
    _collectives(trace, args)
    return args


def _ops(trace: Trace, args: list[str]) -> None:
    """Shapes and element types of the arguments of ops."""
    ops = trace.tables["ops"]
    shapes, dtypes = ops.columns["shapes"], ops.columns["dtypes"]
    pair = shapes.codes.astype(np.int64) * max(len(dtypes.values), 1) + dtypes.codes
    _, where, code = np.unique(pair, return_index=True, return_inverse=True)
    texts = []
    for shape, dtype in zip(ops.texts("shapes", where), ops.texts("dtypes", where), strict=True):
        text = describe(shape, dtype)
        texts.append(f',"shapes":{quote(text)}' if text else "")
    for event, pair_code in zip(ops.array("event_id").tolist(), code.tolist(), strict=True):
        args[event] = texts[pair_code]


def _launches(trace: Trace, events: Events, arrows: Arrows, args: list[str]) -> None:
    recorded = trace.tables["events"].array("correlation_id")
    rows = np.flatnonzero(events.where("launch", "sync") & ((recorded > 0) | (arrows.correlation > 0)))
    for event, number, recorded_number in zip(
        rows.tolist(), arrows.correlation[rows].tolist(), recorded[rows].tolist(), strict=True
    ):
        args[event] = _joined(number, recorded_number)


def _work(trace: Trace, events: Events, arrows: Arrows, args: list[str]) -> None:
    """Correlation, bytes, blocks and launching op of GPU work."""
    if trace.meta.cpu_only:
        return
    table, links = trace.tables["events"], trace.tables["links"]
    rows, op = links.array("kernel_id"), links.array("op_id")
    names = {code: quote(events.names[code]) for code in np.unique(events.name[op[op >= 0]]).tolist()}
    op_name = lookup(events.name, op, -1)
    for event, number, recorded_number, size, blocks, code in zip(
        rows.tolist(),
        arrows.correlation[rows].tolist(),
        table.array("correlation_id")[rows].tolist(),
        table.array("bytes")[rows].tolist(),
        table.array("blocks")[rows].tolist(),
        op_name.tolist(),
        strict=True,
    ):
        args[event] = (
            _joined(number, recorded_number)
            + (f',"bytes":{size}' if size >= 0 else "")
            + (f',"blocks":{blocks}' if blocks >= 0 else "")
            + (f',"op":{names[code]}' if code >= 0 else "")
        )


def _joined(number: int, recorded_number: int) -> str:
    """The number that joins launch and work in the fused file, and the one it has in the rank's own file."""
    return (f',"correlation":{number}' if number else "") + (
        f',"recorded correlation":{recorded_number}' if recorded_number > 0 else ""
    )


_SHOWN = {
    "collective": "collective",
    "group": "group",
    "group_description": "group description",
    "group_ranks": "group ranks",
    "group_size": "group size",
    "dtype": "dtype",
    "in_bytes": "in bytes",
    "out_bytes": "out bytes",
    "in_split": "elements sent by rank",
    "out_split": "elements received by rank",
    "order": "order in group",
}
"""Columns of the collectives table and their labels. With the profiler's names, a reader would count the
parts of all ranks as collectives of one."""


def _collectives(trace: Trace, args: list[str]) -> None:
    """Message sizes and groups, on the kernel, or on the host's record if the trace lacks the kernel."""
    table = trace.tables["collectives"]
    record, kernel = table.array("event_id"), table.array("kernel_id")
    shown_at = np.where(kernel >= 0, kernel, record).tolist()
    for column in table.schema.columns:
        if column.name not in _SHOWN:
            continue
        label = _SHOWN[column.name]
        if column.dtype == "int64":
            values = [str(value) if value >= 0 else "" for value in table.array(column.name).tolist()]
        else:
            values = [quote(text) if text not in ("", "[]") else "" for text in table.texts(column.name)]
        for event, value in zip(shown_at, values, strict=True):
            if value:
                args[event] += f',"{label}":{value}'
