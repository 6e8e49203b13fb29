"""How much communication is hidden under computation, and how much that slows the computation down."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from msgspec import Struct

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.comm.records import NO_COMMUNICATION
from tracelens.analysis.common import group_kind, integers, no_gpu_work, op_arguments
from tracelens.arrays import Int, isin, unique
from tracelens.table import RANK, Coded, Column, Result, Schema, Skip, codes, result, sums
from tracelens.trace import WORK_KINDS, Run, Scope, Trace, Work, gpu_work, recorded_span, union

ALL, NOT_RECORDED = "(all)", "(not recorded)"
FEWEST = 3  # calls, overlapped and alone each, that means are compared of
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


SLOWDOWN = Schema(
    "Computation slowed down by communication",
    (
        RANK,
        Column("name", "category", doc="kernel"),
        Column("shapes", "category", doc="arguments of the op that launched it, '' where not recorded"),
        Column(
            "blocks", "int64", "count", "thread blocks of the kernel, missing where not recorded", absent=-1
        ),
        Column(
            "overlapped_count",
            "int64",
            "count",
            "calls overlapped by communication for at least half of their time",
        ),
        Column("alone_count", "int64", "count", "calls without communication"),
        Column("overlapped_mean_ns", "float64", "ns", "mean duration of the overlapped calls"),
        Column("alone_mean_ns", "float64", "ns", "mean duration of the calls without communication"),
        Column("slowdown", "float64", "ratio", "overlapped mean / alone mean; 100%: no slowdown"),
        Column("extra_ns", "int64", "ns", "difference of means x overlapped calls; negative if faster"),
    ),
    doc="Same kernel, shapes and grid: overlapped by communication on another stream of its GPU against "
    f"alone, with at least {FEWEST} calls of each. (all) sums over kernels, with the alone mean of "
    "the same mix. Negative extra time: overlapped calls were faster, by coincidence or because their "
    "data differed.",
    key=("name", "shapes", "blocks"),
    leading="extra_ns",
    absent_is_zero=False,
)

TABLES = {"overlap": OVERLAP, "slowdown": SLOWDOWN}


class Labels(Struct, frozen=True):
    """Process group and collective of each communication kernel."""

    group: Coded
    collective: Coded
    unrecorded: int  # kernels without a record


@analyzer(
    "overlap", title="Overlap of communication and computation", order=82, tables=TABLES, sums_steps=True
)
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
        rank = trace.meta.rank
        work = gpu_work(trace, scope)
        is_comm = work.kind == WORK_KINDS.index("comm")
        if not work.dur[is_comm].any():
            if not len(work.event):
                why = no_gpu_work(trace, scope)
            elif is_comm.any():
                why = "its communication kernels have no duration"
            elif scope == "linked" and (gpu_work(trace).kind == WORK_KINDS.index("comm")).any():
                why = "no communication is linked to a launch call; use --scope all"
            else:
                why = NO_COMMUNICATION
            skips.append(Skip(f"rank {rank}", why))
            continue

        # The rows of one rank, by process group and collective after one for all.
        computing = work.union("computation", "memset") if scope == "linked" else work.union("computation")
        comm = work.take(is_comm)
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
        count = np.array([mask.sum() for mask in masks])
        running = [union(comm.start[mask], comm.end[mask]) for mask in masks]
        comm_ns = np.array([merged.total for merged in running], dtype=np.int64)
        hidden_ns = np.array([computing.covered(*merged).sum() for merged in running], dtype=np.int64)
        begin, end = recorded_span(trace, work)  # the timeline's total
        nonzero = np.maximum(comm_ns, 1)
        columns = {
            "comm_ns": comm_ns,
            "hidden_ns": hidden_ns,
            "exposed_ns": comm_ns - hidden_ns,
            "hidden_fraction": hidden_ns / nonzero,
            "bound_fraction": np.minimum(comm_ns, computing.total) / nonzero,
            "exposed_fraction_of_total": (comm_ns - hidden_ns) / max(int(end - begin), 1),
        }
        names = [(ALL, ALL)] + [
            (labels.group.values[group_code], labels.collective.values[collective_code])
            for group_code, collective_code in zip(group.tolist(), collective.tolist(), strict=True)
        ]
        order = np.concatenate(([0], 1 + np.argsort(-comm_ns[1:], kind="stable")))
        empty = comm_ns[order] == 0
        skips += [
            Skip(f"rank {rank}: {names[row][1]} of {names[row][0]}", "its kernels have no duration")
            for row in order[empty].tolist()
        ]
        order = order[~empty]
        rows.append(
            {
                "rank": np.full(len(order), rank),
                "group": [names[row][0] for row in order.tolist()],
                "collective": [names[row][1] for row in order.tolist()],
                "count": count[order],
                **{name: column[order] for name, column in columns.items()},
            }
        )

        if slowdown_rows := slowdown(trace, work, skips):
            slower.append(slowdown_rows)
    tables = {"overlap": OVERLAP.concat(rows)}
    if slower:
        tables["slowdown"] = SLOWDOWN.concat(slower)
    return result(tables, skips, scope=scope)


def communication_labels(trace: Trace, comm: Work) -> Labels:
    """Process group and collective of these communication kernels, as people know them."""
    table = trace.tables["collectives"]
    # The process group of each record, without its ranks. That is the same on all ranks; the name of the same
    # group may not be. Where it stands for several groups of this rank, the description tells them apart, or
    # else the name.
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
    group_of_record, collectives = Coded.merged(pair, texts), table.coded("collective")
    kernel = table.array("kernel_id")
    host = collectives.mask(_HOST.__contains__)
    order = np.argsort(comm.event)
    row = np.minimum(np.searchsorted(comm.event, kernel, sorter=order), len(order) - 1)
    known = comm.event[order[row]] == kernel
    known &= ~host | ~isin(kernel, kernel[~host])
    position, count = order[row[known]], len(comm.event)
    return Labels(
        _joined(position, group_of_record.take(known), count),
        _joined(position, collectives.take(known), count),
        count - len(unique(position)),
    )


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


def slowdown(trace: Trace, work: Work, skips: list[Skip]) -> dict[str, Any] | None:
    """The rows of one rank, largest extra time first after the row for all; None, with a skip, if none.

    Args:
        trace: of the rank.
        work: its GPU work in scope.
        skips: where to say what could not be compared.
    """
    subject, events = f"rank {trace.meta.rank}: slowdown", trace.arrays
    # How long work took is known where it has an extent and is not cut off by the border of a step.
    cut = (events.start[work.event] != work.start) | (events.end[work.event] != work.end)
    comp = work.take((work.kind == WORK_KINDS.index("computation")) & (work.dur > 0) & ~cut)
    comm = work.take(work.kind == WORK_KINDS.index("comm"))
    # For each computing kernel, ns during which communication runs on another stream of its GPU.
    beside_ns = np.zeros(len(comp.event), dtype=np.int64)
    lane, (devices, streams) = codes(comp.device, comp.stream)
    for number, (device, stream) in enumerate(zip(devices, streams, strict=True)):
        concurrent, on_lane = (comm.device == device) & (comm.stream != stream), lane == number
        communicating = union(comm.start[concurrent], comm.end[concurrent])
        beside_ns[on_lane] = communicating.covered(comp.start[on_lane], comp.end[on_lane])
    overlapped, alone = 2 * beside_ns >= comp.dur, beside_ns == 0
    if not overlapped.any():
        skips.append(Skip(subject, "no kernel is overlapped by communication for half of its time"))
        return None
    argument, arguments = op_arguments(trace, comp.op)
    described = arguments.texts()
    texts = list(dict.fromkeys(described))
    code = {text: number for number, text in enumerate(texts)}
    shape = np.array([code[text] for text in described], dtype=np.int64)[argument]
    # One op may launch a kernel at several sizes; those that differ in blocks take differently long.
    group, (name, shape, blocks) = codes(comp.name, shape, comp.blocks)
    overlapped_count, alone_count = (
        np.bincount(group[mask], minlength=len(name)) for mask in (overlapped, alone)
    )
    enough = (overlapped_count >= FEWEST) & (alone_count >= FEWEST)
    if too_few := int(overlapped_count[~enough].sum()):
        skips.append(
            Skip(
                f"{subject} of {too_few:,} kernel calls under communication",
                f"needs {FEWEST} overlapped and {FEWEST} alone calls of the same kernel, shapes and blocks",
            )
        )
    if not enough.any():
        return None
    overlapped_ns, alone_ns = (sums(group[mask], comp.dur[mask], len(name)) for mask in (overlapped, alone))
    rows = np.flatnonzero(enough)
    alone_mean = alone_ns[rows] / alone_count[rows]
    extra_ns = np.rint(overlapped_ns[rows] - alone_mean * overlapped_count[rows]).astype(np.int64)
    order = np.argsort(-extra_ns, kind="stable")
    rows, alone_mean, extra_ns = rows[order], alone_mean[order], extra_ns[order]
    overlapped_mean = overlapped_ns[rows] / overlapped_count[rows]
    calls, total, total_extra = (
        int(overlapped_count[rows].sum()),
        int(overlapped_ns[rows].sum()),
        int(extra_ns.sum()),
    )
    return {
        "rank": np.full(len(rows) + 1, trace.meta.rank),
        "name": [ALL, *(comp.names[code] for code in name[rows].tolist())],
        "shapes": ["", *(texts[code] for code in shape[rows].tolist())],
        "blocks": np.append(-1, blocks[rows]),
        "overlapped_count": np.append(calls, overlapped_count[rows]),
        "alone_count": np.append(alone_count[rows].sum(), alone_count[rows]),
        "overlapped_mean_ns": np.append(total / calls, overlapped_mean),
        "alone_mean_ns": np.append((total - total_extra) / calls, alone_mean),
        "slowdown": np.append(total / (total - total_extra), overlapped_mean / alone_mean),
        "extra_ns": np.append(total_extra, extra_ns),
    }
