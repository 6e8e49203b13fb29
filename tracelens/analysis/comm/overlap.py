"""How much of the communication computation hides, by process group and collective."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm.slowdown import SLOWDOWN, slowdown
from tracelens.analysis.common import no_gpu_work
from tracelens.arrays import Int
from tracelens.table import Coded, Column, Result, Schema, Skip, codes, result, stack
from tracelens.trace import WORK_KINDS, Run, Scope, Trace, Union, Work, gpu_work, union

ALL, NOT_RECORDED = "(all)", "(not recorded)"
# What the host recorded around a batch or a wait; its kernel is better named by what was in the batch.
_HOST = ("coalesced", "wait")

OVERLAP = Schema(
    "Communication hidden under computation",
    (
        Column("rank", "int64"),
        Column("group", "category", doc="process group: its description, else its name"),
        Column("collective", "category", doc="as recorded; of a batch all that are in it"),
        Column("count", "int64", "count", "communication kernels"),
        Column("comm_ns", "int64", "ns", "at least one of these kernels runs"),
        Column("hidden_ns", "int64", "ns", "of it, a computing kernel runs at the same time"),
        Column("exposed_ns", "int64", "ns", "of it, no computing kernel runs"),
        Column("hidden_fraction", "float64", "fraction", "hidden / comm, the overlap efficiency"),
        Column("bound_fraction", "float64", "fraction", "min(comm, computation of the rank) / comm"),
        Column("exposed_fraction_of_total", "float64", "fraction", "of the rank's total in the timeline"),
    ),
    doc="The bound is the hidden fraction if all computation of the rank ran beside this communication. "
    "Groups that communicate at the same time each count it: rows need not add up to (all), where time "
    "counts once. Computation is what it is in the timeline.",
)


class _Labels(NamedTuple):
    """Process group and collective of each communication kernel."""

    group: Coded
    collective: Coded
    unrecorded: int


@analyzer("overlap", title="Overlap of communication and computation", order=82)
def overlap(run: Run, *, scope: Scope = "all") -> Result:
    """How much of the communication is hidden under computation, and what does it cost the computation?

    Args:
        run: the ranks.
        scope: "all", or "linked" for work whose launch call is in the trace, with fills as computation (as
            in the timeline).

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
        if found := slowdown(trace, work, skips):
            slower.append(found)
    tables = {"overlap": stack(OVERLAP, rows)}
    if slower:
        tables["slowdown"] = stack(SLOWDOWN, slower)
    return result(tables, skips, scope=scope)


def _no_communication(trace: Trace, work: Work, scope: Scope) -> str:
    """Why there is nothing that could be hidden; '' if there is."""
    if not len(work.event):
        return no_gpu_work(trace, scope)
    comm = work.kind == WORK_KINDS.index("comm")
    if comm.any():
        return "" if work.dur[comm].any() else "its communication kernels have no extent"
    if scope == "linked" and (gpu_work(trace).kind == WORK_KINDS.index("comm")).any():
        return "no communication is linked to a launch call; use --scope all"
    return "no communication kernel in the trace"


def _overlap(trace: Trace, work: Work, scope: Scope, skips: list[Skip]) -> dict[str, Any]:
    rank = trace.meta.rank
    computing = work.union("computation", "memset") if scope == "linked" else work.union("computation")
    comm = work.take(work.kind == WORK_KINDS.index("comm"))
    labels = _labels(trace, comm)
    if labels.unrecorded:
        skips.append(
            Skip(
                f"rank {rank}: group and collective of {labels.unrecorded:,} communication kernels",
                "no record_param_comms around their launch; record with ProfilerActivity.CPU",
            )
        )
    member, (group, collective) = codes(_int(labels.group), _int(labels.collective))
    members = [np.ones(len(member), dtype=bool), *(member == place for place in range(len(group)))]
    sets = [union(comm.start[mine], comm.end[mine]) for mine in members]
    count = np.array([mine.sum() for mine in members])
    found = _columns(sets, computing, _total(trace, work))
    names = [(ALL, ALL)] + [
        (labels.group.values[one], labels.collective.values[other])
        for one, other in zip(group.tolist(), collective.tolist(), strict=True)
    ]
    order = np.concatenate(([0], 1 + np.argsort(-found["comm_ns"][1:], kind="stable")))
    empty = found["comm_ns"][order] == 0
    skips += [
        Skip(f"rank {rank}: {names[row][1]} of group {names[row][0]}", "its kernels have no extent")
        for row in order[empty].tolist()
    ]
    order = order[~empty]
    return {
        "rank": np.full(len(order), rank),
        "group": [names[row][0] for row in order.tolist()],
        "collective": [names[row][1] for row in order.tolist()],
        "count": count[order],
        **{name: column[order] for name, column in found.items()},
    }


def _columns(sets: list[Union], computing: Union, total: int) -> dict[str, NDArray[Any]]:
    """The numbers of each set of communication."""
    comm = np.array([one.total for one in sets], dtype=np.int64)
    hidden = np.array([computing.covered(one.start, one.end).sum() for one in sets], dtype=np.int64)
    whole = np.maximum(comm, 1)
    return {
        "comm_ns": comm,
        "hidden_ns": hidden,
        "exposed_ns": comm - hidden,
        "hidden_fraction": hidden / whole,
        "bound_fraction": np.minimum(comm, computing.total) / whole,
        "exposed_fraction_of_total": (comm - hidden) / max(total, 1),
    }


def _total(trace: Trace, work: Work) -> int:
    """The timeline's total: first start to last end of GPU work; of a step its window."""
    if trace.window is not None:
        return trace.window.end - trace.window.start
    return int(work.end.max() - work.start.min())


def _labels(trace: Trace, comm: Work) -> _Labels:
    table = trace.tables["collectives"]
    groups, collectives = _groups(trace), _coded(table.columns["collective"])
    kernel = table.array("kernel_id")
    host = np.isin(collectives.codes, [code for code, name in enumerate(collectives.values) if name in _HOST])
    order = np.argsort(comm.event)
    place = np.minimum(np.searchsorted(comm.event, kernel, sorter=order), len(order) - 1)
    known = comm.event[order[place]] == kernel
    known &= ~host | ~np.isin(kernel, kernel[~host])
    position, count = order[place[known]], len(comm.event)
    return _Labels(
        _joined(position, Coded(groups.codes[known], groups.values), count),
        _joined(position, Coded(collectives.codes[known], collectives.values), count),
        count - len(np.unique(position)),
    )


def _groups(trace: Trace) -> Coded:
    """The process group of each recorded collective, as people know it.

    That is its description, which is the same on all ranks; the name of the same group may not be. Where
    one description stands for several groups of this rank, the name tells them apart.
    """
    table = trace.tables["collectives"]
    names, descriptions = _coded(table.columns["group"]), _coded(table.columns["group_description"])
    pair, (name, description) = codes(_int(names), _int(descriptions))
    same = np.bincount(description, minlength=len(descriptions.values))
    texts = []
    for one, other in zip(name.tolist(), description.tolist(), strict=True):
        text = descriptions.values[other]
        texts.append(f"{text} ({names.values[one]})" if text and same[other] > 1 else text)
        texts[-1] = texts[-1] or names.values[one] or NOT_RECORDED
    return _merged(pair, texts)


def _int(column: Coded) -> Int:
    return column.codes.astype(np.int64)


def _coded(column: Coded | list[str]) -> Coded:
    if isinstance(column, Coded):
        return column
    values = list(dict.fromkeys(column))
    place = {text: code for code, text in enumerate(values)}
    return Coded(np.array([place[text] for text in column], dtype=np.int64), values)


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
        here = depth == level
        pair, (before, added) = codes(label[kernel[here]], letter[here])
        label[kernel[here]] = len(texts) + pair
        texts += [
            ", ".join(filter(None, (texts[one], record.values[alphabet[other]])))
            for one, other in zip(before.tolist(), added.tolist(), strict=True)
        ]
    return _merged(label, [text or NOT_RECORDED for text in texts])


def _merged(label: Int, texts: list[str]) -> Coded:
    """The text of each label; labels with the same text become one."""
    values = list(dict.fromkeys(texts))
    place = {text: code for code, text in enumerate(values)}
    return Coded(np.array([place[text] for text in texts], dtype=np.int64)[label], values)
