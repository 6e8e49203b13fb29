"""How much communication is hidden under computation, by process group and collective."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm.slowdown import SLOWDOWN, slowdown
from tracelens.analysis.common import group_kind, integers, no_gpu_work
from tracelens.arrays import Int
from tracelens.table import RANK, Coded, Column, Result, Schema, Skip, codes, result
from tracelens.trace import WORK_KINDS, Run, Scope, Trace, Union, Work, gpu_work, union

ALL, NOT_RECORDED = "(all)", "(not recorded)"
# What the host recorded around a batch or a wait; its kernel is better named by what was in the batch.
_HOST = ("coalesced", "wait")

OVERLAP = Schema(
    "Communication hidden under computation",
    (
        RANK,
        Column("group", "category", doc="process group: what it is for, else its description, ranks or name"),
        Column("collective", "category", doc="as recorded; a batch lists all its collectives"),
        Column("count", "int64", "count", "communication kernels"),
        Column("comm_ns", "int64", "ns", "time with at least one of these kernels running"),
        Column("hidden_ns", "int64", "ns", "overlapped by computation"),
        Column("exposed_ns", "int64", "ns", "not overlapped by computation"),
        Column("hidden_fraction", "float64", "fraction", "hidden / comm, the overlap efficiency"),
        Column("bound_fraction", "float64", "fraction", "min(comm, computation of the rank) / comm"),
        Column(
            "exposed_fraction_of_total", "float64", "fraction", "share of the rank's total in the timeline"
        ),
    ),
    doc="The bound is the hidden fraction if all computation of the rank ran under this communication. "
    "While several groups communicate, the time counts for each of them, and once in (all). "
    "Computation as in the timeline.",
    leading="comm_ns",
    descending=True,
)


class Labels(NamedTuple):
    """Process group and collective of each communication kernel."""

    group: Coded
    collective: Coded
    unrecorded: int


TABLES = {"overlap": OVERLAP, "slowdown": SLOWDOWN}


@analyzer("overlap", title="Overlap of communication and computation", order=82, tables=TABLES)
def overlap(run: Run, *, scope: Scope = "all") -> Result:
    """How much communication is hidden under computation, and how much does that slow computation down?

    Reading:
        A `hidden_fraction` near `bound_fraction` leaves nothing to hide. `slowdown` is the price that
        computation pays.

    Limits:
        Communication includes waiting for other ranks. Calls that overlap may differ from the others in data
        or caches, too.

    Args:
        run: the ranks.
        scope: "all", or "linked" for work whose launch call is in the trace, with memsets as computation
            (as in the timeline).

    Returns:
        tables `overlap`, one row a rank, process group and collective, after one for all of them; and
        `slowdown`, one row a kernel name and argument shapes that ran both beside communication and
        without, after one for all of them.
    """
    skips: list[Skip] = []
    rows: list[dict[str, Any]] = []
    slower: list[dict[str, Any]] = []
    for trace in run.traces:
        work = gpu_work(trace, scope)
        if why := _no_communication(trace, work, scope):
            skips.append(Skip(f"rank {trace.meta.rank}", why))
            continue
        rows.append(_overlap(trace, work, scope, skips))
        if slowdown_rows := slowdown(trace, work, skips):
            slower.append(slowdown_rows)
    tables = {"overlap": OVERLAP.concat(rows)}
    if slower:
        tables["slowdown"] = SLOWDOWN.concat(slower)
    return result(tables, skips, scope=scope)


def _no_communication(trace: Trace, work: Work, scope: Scope) -> str:
    """Why there is nothing that could be hidden; '' if there is."""
    if not len(work.event):
        return no_gpu_work(trace, scope)
    comm = work.kind == WORK_KINDS.index("comm")
    if comm.any():
        return "" if work.dur[comm].any() else "its communication kernels have no duration"
    if scope == "linked" and (gpu_work(trace).kind == WORK_KINDS.index("comm")).any():
        return "no communication is linked to a launch call; use --scope all"
    return "no communication kernel in the trace"


def _overlap(trace: Trace, work: Work, scope: Scope, skips: list[Skip]) -> dict[str, Any]:
    rank = trace.meta.rank
    computing = work.union("computation", "memset") if scope == "linked" else work.union("computation")
    comm = work.take(work.kind == WORK_KINDS.index("comm"))
    labels = communication_labels(trace, comm)
    if labels.unrecorded:
        skips.append(
            Skip(
                f"rank {rank}: group and collective of {labels.unrecorded:,} communication kernels",
                "no record_param_comms around their launches; record with ProfilerActivity.CPU",
            )
        )
    label, (group, collective) = codes(_int(labels.group), _int(labels.collective))
    masks = [np.ones(len(label), dtype=bool), *(label == number for number in range(len(group)))]
    sets = [union(comm.start[mask], comm.end[mask]) for mask in masks]
    count = np.array([mask.sum() for mask in masks])
    columns = _columns(sets, computing, _total(trace, work))
    names = [(ALL, ALL)] + [
        (labels.group.values[group_code], labels.collective.values[collective_code])
        for group_code, collective_code in zip(group.tolist(), collective.tolist(), strict=True)
    ]
    order = np.concatenate(([0], 1 + np.argsort(-columns["comm_ns"][1:], kind="stable")))
    empty = columns["comm_ns"][order] == 0
    skips += [
        Skip(f"rank {rank}: {names[row][1]} of {names[row][0]}", "its kernels have no duration")
        for row in order[empty].tolist()
    ]
    order = order[~empty]
    return {
        "rank": np.full(len(order), rank),
        "group": [names[row][0] for row in order.tolist()],
        "collective": [names[row][1] for row in order.tolist()],
        "count": count[order],
        **{name: column[order] for name, column in columns.items()},
    }


def _columns(sets: list[Union], computing: Union, total: int) -> dict[str, NDArray[Any]]:
    """The numbers of each set of communication."""
    comm = np.array([merged.total for merged in sets], dtype=np.int64)
    hidden = np.array([computing.covered(merged.start, merged.end).sum() for merged in sets], dtype=np.int64)
    nonzero = np.maximum(comm, 1)
    return {
        "comm_ns": comm,
        "hidden_ns": hidden,
        "exposed_ns": comm - hidden,
        "hidden_fraction": hidden / nonzero,
        "bound_fraction": np.minimum(comm, computing.total) / nonzero,
        "exposed_fraction_of_total": (comm - hidden) / max(total, 1),
    }


def _total(trace: Trace, work: Work) -> int:
    """The timeline's total: first start to last end of GPU work; of a step its window."""
    if trace.window is not None:
        return trace.window.end - trace.window.start
    return int(work.end.max() - work.start.min())


def communication_labels(trace: Trace, comm: Work) -> Labels:
    """Process group and collective of these communication kernels, as people know them."""
    table = trace.tables["collectives"]
    groups, collectives = _groups(trace), table.coded("collective")
    kernel = table.array("kernel_id")
    host = collectives.mask(_HOST.__contains__)
    order = np.argsort(comm.event)
    row = np.minimum(np.searchsorted(comm.event, kernel, sorter=order), len(order) - 1)
    known = comm.event[order[row]] == kernel
    known &= ~host | ~np.isin(kernel, kernel[~host])
    position, count = order[row[known]], len(comm.event)
    return Labels(
        _joined(position, groups.take(known), count),
        _joined(position, collectives.take(known), count),
        count - len(np.unique(position)),
    )


def _groups(trace: Trace) -> Coded:
    """The process group of each recorded collective, as people know it, without its ranks.

    That is the same on all ranks; the name of the same group may not be. Where it stands for several groups
    of this rank, the description tells them apart, or else the name.
    """
    table = trace.tables["collectives"]
    names, descriptions, ranks = map(table.coded, ("group", "group_description", "group_ranks"))
    pair, (name, description) = codes(_int(names), _int(descriptions))
    listed: dict[int, list[int]] = {}
    for of_pair, text in set(zip(pair.tolist(), ranks.texts(), strict=True)):
        listed[of_pair] = listed.get(of_pair) or integers(text)  # not every record lists them
    groups = [
        (names.values[name_code], descriptions.values[description_code])
        for name_code, description_code in zip(name.tolist(), description.tolist(), strict=True)
    ]
    texts = [group_kind(*group, listed[number]) or NOT_RECORDED for number, group in enumerate(groups)]
    for told_apart_by in (1, 0):
        alike = Counter(texts)
        texts = [
            f"{text} ({group[told_apart_by]})" if alike[text] > 1 and group[told_apart_by] != text else text
            for text, group in zip(texts, groups, strict=True)
        ]
    return Coded.merged(pair, texts)


def _int(column: Coded) -> Int:
    return column.codes.astype(np.int64)


def _joined(position: Int, record: Coded, count: int) -> Coded:
    """One text for each kernel: of the records that point at it, the distinct texts in order of the alphabet.

    Args:
        position: which kernel each record belongs to.
        record: text of each record.
        count: number of kernels.
    """
    alphabet = sorted(range(len(record.values)), key=lambda code: record.values[code])
    _, (kernel, letter) = codes(position, np.argsort(alphabet)[record.codes])
    depth = np.arange(len(kernel)) - np.searchsorted(kernel, kernel)
    label, texts = np.zeros(count, dtype=np.int64), [""]
    for level in range(int(depth.max(initial=-1)) + 1):  # as many as one kernel has different ones
        at_level = depth == level
        pair, (before, added) = codes(label[kernel[at_level]], letter[at_level])
        label[kernel[at_level]] = len(texts) + pair
        texts += [
            ", ".join(filter(None, (texts[label_code], record.values[alphabet[letter_code]])))
            for label_code, letter_code in zip(before.tolist(), added.tolist(), strict=True)
        ]
    return Coded.merged(label, [text or NOT_RECORDED for text in texts])
