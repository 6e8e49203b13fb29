"""What the wide DataFrames of a run hold: a row per kernel, op call or collective."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from msgspec import Struct

from tracelens.analysis.analyzer import ANALYZERS
from tracelens.analysis.comm import AlignedRun, Group, align_run, collective_kinds
from tracelens.analysis.common import (
    call_time,
    choose_device,
    distinct_names,
    group_kind,
    own_device,
    recomputed,
)
from tracelens.analysis.moe import PHASES, STAGES, model_layers, regions
from tracelens.analysis.pipeline import in_autograd, passes
from tracelens.analysis.roofline import BOUNDS, bounds, costing
from tracelens.analysis.serving import at_step
from tracelens.analysis.step_timeline import activity_texts
from tracelens.arrays import Int, lookup
from tracelens.devices import Device
from tracelens.dtypes import short_dtype
from tracelens.errors import TracelensError, WrongOption
from tracelens.table import RANK, Coded, Column, Schema, Table, codes, nearest, sums
from tracelens.trace import (
    WORK_KINDS,
    Run,
    Scope,
    Trace,
    Work,
    collectives,
    exclusive,
    gpu_work,
    launched_in,
    shares,
    steps_of,
)

if TYPE_CHECKING:
    import pandas as pd

_OF_LONGEST = (
    *("step", "stage", "layer", "micro_batch", "phase", "module", "source", "category", "forward_op"),
    *("shapes", "dtype", "bound", "op_source"),
)

_OF_KERNEL = (
    *("rank", "step", "stage", "layer", "micro_batch", "phase", "module", "source", "stream", "name"),
    *("dur_ns", "link_bytes", "roofline_ns", "kernel_id"),
)
_OF_COLLECTIVE = (
    "order",
    "latency_ns",
    "start_skew_ns",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
    "last_rank",
)


class Matches(Struct, frozen=True):
    """What the ranks of a run know of its collectives together."""

    aligned: AlignedRun  # the run
    tables: Mapping[str, Table]  # of the analyzer `collectives` on it
    # row of the table `collectives` by the identity of a record; matched records only
    collective: Mapping[int, int]
    participant: Mapping[int, int]  # row of the table `participants` by the same
    group: Mapping[Group, str]  # name of each process group


AMOUNTS = ("flops", "read_bytes", "write_bytes", "link_bytes")


_STEP = Column("step", "category", doc="the step that launched it: name of its mark")
_PROGRAM = (
    Column("stage", "category", doc=f"of the MoE layer: {', '.join(STAGES)}; '' outside MoE layers"),
    Column(
        "layer",
        "int64",
        doc="among the MoE layers of the model, through all pipeline stages, from 0; missing outside them",
        absent=-1,
    ),
    Column(
        "micro_batch",
        "int64",
        doc="of the MoE layer, in the step, from 0; missing outside MoE layers",
        absent=-1,
    ),
    Column(
        "phase",
        "category",
        doc=f"{', '.join(PHASES)} (forward work that runs again in the backward pass); '' for neither, "
        "such as the optimizer, or unknown",
    ),
    Column(
        "module",
        "category",
        doc="innermost nn.Module, else record_function scope; of backward work around the forward op",
    ),
    Column("source", "category", doc="innermost frame of the user's program; '' unless recorded with stacks"),
)
_SHAPES = Column(
    "shapes",
    "category",
    doc="types and sizes of the op's tensor arguments; with ~ those of another batch size; "
    "'' if not recorded",
)
_FORWARD_OP = Column(
    "forward_op", "category", doc="of backward work: the forward op whose gradient it computes"
)
_COSTS = (
    Column("dtype", "category", doc="element type of the arithmetic, which determines the peak"),
    Column(
        "flops", "int64", "flops", "what it has to compute; missing where `uncounted` says why", absent=-1
    ),
    Column("read_bytes", "int64", "bytes", "what it has to read, each tensor once", absent=-1),
    Column("write_bytes", "int64", "bytes", "what it has to write", absent=-1),
    Column(
        "link_bytes",
        "int64",
        "bytes",
        "what it has to send over the link to the host or other GPUs",
        absent=-1,
    ),
    Column("flops_per_s", "float64", "flops/s", "achieved", intensive=True, absent=-1),
    Column(
        "bytes_per_s",
        "float64",
        "bytes/s",
        "achieved; on the link if that is the bound",
        intensive=True,
        absent=-1,
    ),
    Column("roofline_ns", "float64", "ns", "least time on the device; missing without its peaks", absent=-1),
    Column("efficiency", "float64", "efficiency", "roofline time / measured time", intensive=True, absent=-1),
    Column("bound", "category", doc="limit: compute, memory, host link, gpu link; '' if unknown"),
    Column("uncounted", "category", doc="why its FLOPs and bytes are unknown; '' otherwise"),
)
_OP_SOURCE = Column(
    "op_source",
    "category",
    doc="where the op is recorded: trace; capture or twin for what a graph replayed, with "
    "`, inferred` where its shapes are of another batch size; empty for no op",
)
KERNELS = Schema(
    "Every kernel, copy and memset",
    (
        RANK,
        _STEP,
        *_PROGRAM,
        Column("kind", "category", doc=", ".join(WORK_KINDS)),
        Column("category", "category", doc="kernel class; copy and fill for copies and memsets"),
        Column("op", "category", doc="innermost op around the launch call"),
        _FORWARD_OP,
        Column("name", "category", doc="of the kernel, copy or memset"),
        _SHAPES,
        Column("device", "int64", doc="GPU index, missing on a host without GPU", absent=-1),
        Column("stream", "int64", doc="of the GPU; the thread on a host without GPU"),
        Column("ts_ns", "int64", "ns", "start, by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "duration of the kernel, copy or memset"),
        Column(
            "exclusive_ns",
            "int64",
            "ns",
            "wall time of its own: of overlapping work each nanosecond goes to one row, as in the breakdown",
        ),
        Column("launch_ts_ns", "int64", "ns", "start of the launch call, missing if not recorded", absent=-1),
        *_COSTS,
        Column("kernel_id", "int64", doc="row in the trace's `events`"),
        Column("op_id", "int64", doc="row of the op in the trace's `events`, missing for none", absent=-1),
        _OP_SOURCE,
    ),
    doc="In order of rank and start. FLOPs, bytes and roofline time of an op call with several kernels are "
    "divided among these by their time, so they add up and have the call's rate and efficiency.",
    key=(),
)
OPS = Schema(
    "Every op call with GPU work",
    (
        RANK,
        _STEP,
        *_PROGRAM,
        Column("category", "category", doc="kernel class of its longest kernel"),
        Column("name", "category", doc="of the op"),
        _FORWARD_OP,
        _SHAPES,
        Column("thread", "int64", doc="on the host"),
        Column("host_ts_ns", "int64", "ns", "start on the host, by the clock of the rank's own trace"),
        Column(
            "host_dur_ns",
            "int64",
            "ns",
            "on the host, with the ops that it calls; unknown in graphs",
            absent=-1,
        ),
        Column("ts_ns", "int64", "ns", "first start of its GPU work, by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "GPU time: union of its kernels, copies and memsets"),
        Column("kernels", "int64", "count", "kernels, copies and memsets that it launched"),
        *_COSTS,
        Column("op_id", "int64", doc="row in the trace's `events`"),
        _OP_SOURCE,
    ),
    doc="GPU work belongs to the innermost op around its launch call, so each kernel is in one row and sums "
    "count nothing twice. In order of rank and call. Stage, layer, phase, module and step are those of the "
    "longest kernel.",
    key=(),
)
COLLECTIVES = Schema(
    "Every collective by rank",
    (
        RANK,
        _STEP,
        *_PROGRAM,
        Column("collective", "category", doc="send/recv: a send with its receive; '' if unknown"),
        Column("role", "category", doc="what the process group is for, such as EP, else its own name"),
        Column("group", "category", doc="process group: what it is for, and its ranks"),
        Column("group_size", "int64", "count", "ranks of the process group", absent=-1),
        Column(
            "order",
            "int64",
            "count",
            "position among the collectives of the group; missing if not matched",
            absent=-1,
        ),
        Column("dtype", "category", doc="element type"),
        Column(
            "bytes",
            "int64",
            "bytes",
            "largest message of any rank; for all-gather the whole buffer",
            absent=-1,
        ),
        Column("sent_bytes", "int64", "bytes", "what this rank puts in", absent=-1),
        Column("received_bytes", "int64", "bytes", "what this rank gets out", absent=-1),
        Column("ts_ns", "int64", "ns", "start of the kernel, by the clock of the first rank"),
        Column("local_ts_ns", "int64", "ns", "start of the kernel, by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "of the kernel: waiting + moving data"),
        Column(
            "wait_ns",
            "int64",
            "ns",
            "part waiting for the last rank; missing if not matched across ranks",
            absent=-1,
        ),
        Column("comm_ns", "int64", "ns", "part moving data; missing if not matched across ranks", absent=-1),
        Column("exposed_ns", "int64", "ns", "part of dur_ns that is exposed: the GPU computes nothing then"),
        Column(
            "exposed_comm_ns",
            "int64",
            "ns",
            "part moving data and exposed; missing if not matched across ranks",
            absent=-1,
        ),
        Column(
            "latency_ns",
            "int64",
            "ns",
            "time on the wire: shortest duration of any rank, since the last to arrive does not wait; "
            "missing if not matched",
            absent=-1,
        ),
        Column("start_skew_ns", "int64", "ns", "last start - first start; missing if not matched", absent=-1),
        Column("algbw_bytes_per_s", "float64", "bytes/s", "bytes / latency", intensive=True, absent=-1),
        Column(
            "busbw_bytes_per_s",
            "float64",
            "bytes/s",
            "algbw x share of the data that crosses links, by the conventions of nccl-tests",
            intensive=True,
            absent=-1,
        ),
        Column("last_rank", "int64", doc="last to arrive; missing if not matched", absent=-1),
        Column("ranks", "int64", "count", "ranks of the run that recorded it"),
        Column(
            "link_bytes",
            "int64",
            "bytes",
            "what the kernel has to send over the link to other GPUs",
            absent=-1,
        ),
        Column(
            "roofline_ns",
            "float64",
            "ns",
            "least time on the link; missing without the device's figures",
            absent=-1,
        ),
        Column("host", "category", doc="machine of the rank, '' if not recorded"),
        Column("name", "category", doc="of the kernel"),
        Column("stream", "int64", doc="stream of the kernel; the thread on a host without GPU"),
        Column("group_name", "category", doc="the program's identifier for the group, often a number"),
        Column("kernel_id", "int64", doc="row in the trace's `events`"),
    ),
    doc="In order of rank and start. A kernel that serves several sends and receives has a row for each; "
    "`drop_duplicates(['rank', 'kernel_id'])` keeps one of them.",
    key=(),
)


class RankSelection(Struct, frozen=True):
    """What they select of one rank."""

    trace: Trace
    work: Work  # any of its work
    device: Device | None  # whose peaks set the roofline, None where they are not known
    layers: Int | None  # numbers of its MoE layers in the model by those on the rank, None where not known


class RunSelection(Struct, frozen=True):
    """What the arguments of a table select."""

    run: Run  # all ranks, narrowed to the step
    scope: Scope
    parts: list[RankSelection]  # of selected ranks with work


def select(
    run: Run,
    step: str | int | None,
    rank: int | Iterable[int] | None,
    scope: Scope,
    device: str | None,
    device_file: str | os.PathLike[str] | None,
) -> RunSelection:
    """Check what a table is asked for, and narrow the run.

    Raises:
        TracelensError: no such step, rank, scope or device.
    """
    if scope not in get_args(Scope):
        known = " or ".join(map(repr, get_args(Scope)))
        raise WrongOption(f"scope must be {known}, not {scope!r}")
    peaks = choose_device(device, device_file)
    ranks = set(run.ranks if rank is None else [rank] if isinstance(rank, int) else rank)
    if unknown := ranks - set(run.ranks):
        raise TracelensError(f"no rank {min(unknown)} (has: {', '.join(map(str, run.ranks))})")
    narrowed = at_step(run, step)
    traces = [trace for trace in narrowed.traces if trace.meta.rank in ranks]
    # Layers are numbered through the stages of a pipeline, also those of ranks that are not selected.
    counted = list(narrowed.traces) if any(passes(trace).staged for trace in traces) else traces
    numbers = model_layers([trace.once(regions).chunk_layers for trace in counted])
    ranks_counted = [trace.meta.rank for trace in counted]
    layers = {} if isinstance(numbers, str) else dict(zip(ranks_counted, numbers, strict=True))
    parts = [
        RankSelection(trace, gpu_work(trace, scope), peaks or own_device(trace), layers.get(trace.meta.rank))
        for trace in traces
    ]
    return RunSelection(narrowed, scope, [part for part in parts if len(part.work.event)])


def kernel_frame(selected: RunSelection) -> pd.DataFrame:
    """Every kernel, copy and memset, as in KERNELS."""
    return KERNELS.concat([kernel_rows(part) for part in selected.parts]).frame


def op_frame(selected: RunSelection) -> pd.DataFrame:
    """Every op call that launched GPU work itself, as in OPS."""
    return OPS.concat([op_rows(part.trace, part.work, kernel_rows(part)) for part in selected.parts]).frame


def collective_frame(selected: RunSelection) -> pd.DataFrame:
    """Every collective, on each rank that took part, as in COLLECTIVES."""
    aligned = align_run(selected.run, selected.scope)
    result = ANALYZERS.get("collectives")(selected.run, {"aligned run": aligned}, scope=selected.scope)
    matched = matches(aligned, result.data)
    rows = [collective_rows(part.trace, part.work, kernel_rows(part), matched) for part in selected.parts]
    return COLLECTIVES.concat(rows).frame


def kernel_rows(part: RankSelection) -> dict[str, Any]:
    """Columns of KERNELS of one rank."""
    trace, work = part.trace, part.work
    names = trace.arrays.names
    # Where each op is recorded, and whether its shapes are of another batch size.
    source, ops = trace.tables["events"].coded("source"), trace.tables["ops"]
    count = len(source.values)
    is_inferred = np.zeros(len(trace.arrays.start), dtype=bool)
    is_inferred[ops.array("event_id")[ops.coded("inferred").mask(bool)]] = True
    source_code = source.codes + count * is_inferred
    sources = [*source.values, *(f"{text}, inferred" for text in source.values), ""]
    # Wall time of each piece of work alone, by the rule of the breakdown.
    piece, _, alone_ns = shares(work.start, work.end, work.kind.astype(np.int64), steps_of(trace).edges)
    return (
        activity_texts(trace, work)
        | program(trace, work, part.layers)
        | kernel_costs(trace, work, part.device)
        | {
            "rank": np.full(len(work.event), trace.meta.rank),
            "kind": Coded.used(work.kind, WORK_KINDS),
            "forward_op": Coded.used(lookup(trace.arrays.name, work.forward, len(names)), [*names, ""]),
            "device": work.device,
            "stream": work.stream,
            "ts_ns": work.start,
            "dur_ns": work.dur,
            "exclusive_ns": sums(piece, alone_ns, len(work.event)),
            "launch_ts_ns": lookup(trace.arrays.start, work.launch, -1),
            "kernel_id": work.event,
            "op_id": work.op,
            "op_source": Coded.used(lookup(source_code, work.op, 2 * count), sources),
        }
    )


def program(trace: Trace, work: Work, layers: Int | None) -> dict[str, Any]:
    """Step, MoE layer, micro-batch and phase of each piece of work.

    The MoE layers tell the phase first. Elsewhere autograd does: what its engine runs is backward, unless it
    is a forward pass again; what an op launches that it numbered for a later backward pass is forward.
    """
    steps, moe, places = (
        steps_of(trace),
        trace.once(regions),
        trace.arrays.places(trace.work.event)[work.event],
    )
    number = moe.layer_pass[places]
    layer, micro_batch = (
        np.array([getattr(layer_pass, name) for layer_pass in moe.passes], dtype=np.int64)
        for name in ("layer", "micro_batch")
    )
    if layers is not None:
        layer = layers[layer]
    # Code into PHASES, -1 where nothing tells.
    forward, backward, recompute = range(len(PHASES))
    events, ops = trace.arrays, trace.tables["ops"]
    # Events inside of ops that autograd numbered for a later backward pass.
    numbered = np.zeros(len(events.start), dtype=bool)
    is_forward = (ops.array("sequence") >= 0) & (ops.array("forward_thread") <= 0)
    numbered[ops.array("event_id")[is_forward]] = True
    is_inside = nearest(events.parent, events.depth, numbered) >= 0
    phase = np.where(lookup(is_inside, work.op, False), forward, -1)
    phase[lookup(in_autograd(trace), work.host_call, False)] = backward
    phase[lookup(trace.once(recomputed), work.host_call, False)] = recompute
    of_moe = moe.phase[places]
    return {
        "step": Coded.used(launched_in(trace, steps, work.event), steps.labels),
        "layer": lookup(layer, number, -1),
        "micro_batch": lookup(micro_batch, number, -1),
        "phase": Coded.used(np.where(of_moe >= 0, of_moe, phase), [*PHASES, ""]),
    }


def op_rows(trace: Trace, work: Work, kernels: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of OPS of one rank: the ops that launched GPU work themselves.

    Args:
        trace: of the rank.
        work: any of its work.
        kernels: columns of KERNELS of this work.
    """
    row = np.flatnonzero(work.op >= 0)
    launched = work.take(row)
    call, (op,) = codes(launched.op)
    _, dur = call_time(launched, launched.op)
    longest = row[largest(launched.dur, call)]
    first = np.full(len(op), np.iinfo(np.int64).max)
    np.minimum.at(first, call, launched.start)
    events = trace.arrays
    start = events.start[op]
    columns = {name: kernels[name].take(longest) for name in _OF_LONGEST}
    columns |= _costs(kernels, row, call, dur)
    columns |= {
        "rank": np.full(len(op), trace.meta.rank),
        "name": kernels["op"].take(longest),
        "thread": events.tid[op],
        "host_ts_ns": start,
        "host_dur_ns": np.where(events.copied[op], -1, events.end[op] - start),
        "ts_ns": first,
        "dur_ns": dur,
        "kernels": np.bincount(call, minlength=len(op)),
        "op_id": op,
    }
    return columns


def _costs(kernels: Mapping[str, Any], row: Int, call: Int, dur: Int) -> dict[str, Any]:
    """The columns of costs of each call: sums of those of its kernels.

    Where some kernels are not counted, amounts are those of the others, and rates are not known.

    Args:
        kernels: columns of KERNELS.
        row: of each kernel that an op launched.
        call: number of its op call.
        dur: GPU time of each call, ns.
    """
    columns = {name: kernels[name][row] for name in (*AMOUNTS, "roofline_ns")}
    counted, count = columns["flops"] >= 0, len(dur)
    is_counted, has_roofline = (
        np.bincount(call, ~known, count) == 0 for known in (counted, columns["roofline_ns"] >= 0)
    )
    none = np.bincount(call, counted, count) == 0
    link, memory = columns["link_bytes"], columns["read_bytes"] + columns["write_bytes"]
    moved = sums(call, np.where(counted, np.where(link > 0, link, memory), 0), count)
    amounts = {name: sums(call, np.where(counted, columns[name], 0), count) for name in AMOUNTS}
    roofline_ns, ns = np.bincount(call, columns["roofline_ns"], count), np.maximum(dur, 1)
    return {name: np.where(none, -1, amount) for name, amount in amounts.items()} | {
        "flops_per_s": np.where(is_counted, amounts["flops"] / ns * 1e9, -1.0),
        "bytes_per_s": np.where(is_counted, moved / ns * 1e9, -1.0),
        "roofline_ns": np.where(has_roofline, roofline_ns, -1.0),
        "efficiency": np.where(has_roofline, roofline_ns / ns, -1.0),
        # The reason for most of what is not counted.
        "uncounted": kernels["uncounted"].take(
            row[largest(np.where(counted, -1, kernels["dur_ns"][row]), call)]
        ),
    }


def matches(aligned: AlignedRun, tables: Mapping[str, Table]) -> Matches:
    """Find the rows of each record: `participants` are in order of rank, then of `collectives`."""
    records: dict[int, list[int]] = {rank.rank: [] for rank in aligned.ranks}
    collective: dict[int, int] = {}
    for row, matched in enumerate(aligned.collectives):
        for participant in matched.participants:
            records[participant.rank].append(id(participant.record))
            collective[id(participant.record)] = row
    in_order = [record for rank in sorted(records) for record in records[rank]]
    groups: dict[Group, str] = {}
    for record in (record for rank in aligned.ranks for record in rank.records):
        key = record.group, record.group_ranks
        groups[key] = groups.get(key) or record.description
    position = {record: row for row, record in enumerate(in_order)}
    return Matches(aligned, tables, collective, position, distinct_names(groups))


def collective_rows(trace: Trace, work: Work, kernels: Mapping[str, Any], matched: Matches) -> dict[str, Any]:
    """Columns of COLLECTIVES of one rank.

    Args:
        trace: of the rank.
        work: its work, of which `matched` knows the communication.
        kernels: columns of KERNELS of this work.
        matched: the collectives of the run.
    """
    own = next(rank for rank in matched.aligned.ranks if rank.rank == trace.meta.rank)
    records, shared, parts = own.records, matched.tables["collectives"], matched.tables["participants"]
    # One row a record, then one a kernel without a record.
    of_record = np.array([record.kernel for record in records], dtype=np.int64)
    silent = np.flatnonzero(~np.isin(np.arange(len(own.start)), of_record))
    kernel = np.append(of_record, silent)
    row = np.flatnonzero(work.kind == WORK_KINDS.index("comm"))[kernel]
    collective, participant = (
        np.array([*(row_of.get(id(record), -1) for record in records), *[-1] * len(silent)], dtype=np.int64)
        for row_of in (matched.collective, matched.participant)
    )

    def recorded(name: str) -> Int:
        values = [getattr(record, name) for record in records]
        return np.array([*values, *[-1] * len(silent)], dtype=np.int64)

    # What kernels without a record are by their names; "" where these do not tell.
    names, kinds = shared.coded("collective"), (*collectives(), "")
    places = trace.arrays.places(trace.work.event)[work.event[row[len(records) :]]]
    kind = [
        names.values[names.codes[place]] if place >= 0 else record.collective
        for record, place in zip(records, collective.tolist(), strict=False)
    ] + [kinds[code] for code in trace.once(collective_kinds)[places]]
    texts = {
        "role": [group_kind(record.group, record.description, record.group_ranks) for record in records],
        "group": [matched.group[record.group, record.group_ranks] for record in records],
        "group_name": [record.group for record in records],
        "dtype": [short_dtype(record.dtype) for record in records],
    }
    columns: dict[str, Any] = {name: Coded.of(values + [""] * len(silent)) for name, values in texts.items()}
    columns |= {name: lookup(shared.array(name), collective, -1) for name in _OF_COLLECTIVE}
    columns |= {name: kernels[name].take(row) for name in _OF_KERNEL}
    start, end, wait = own.start[kernel], own.end[kernel], lookup(parts.array("wait_ns"), participant, -1)
    columns |= {
        "collective": Coded.of(kind),
        "group_size": recorded("size"),
        "bytes": lookup(shared.array("bytes"), collective, recorded("bytes")),
        "sent_bytes": recorded("sent"),
        "received_bytes": recorded("received"),
        "wait_ns": wait,
        "exposed_comm_ns": lookup(parts.array("exposed_ns"), participant, -1),
        "ranks": lookup(shared.array("ranks"), collective, 1),
        "host": Coded(np.zeros(len(kernel), dtype=np.int64), [own.host]),
        "ts_ns": start + matched.aligned.shift[own.rank],
        "local_ts_ns": start,
        "comm_ns": np.where(wait >= 0, end - start - wait, -1),
        "exposed_ns": own.alone.covered(start, end),
    }
    order = np.argsort(kernel, kind="stable")
    return {name: values.take(order) for name, values in columns.items()}


def kernel_costs(trace: Trace, work: Work, device: Device | None) -> dict[str, Any]:
    """The columns of costs of each piece of work, -1 and "" where they are not known.

    Args:
        trace: of the rank.
        work: any of its work.
        device: whose peaks set the roofline, None where they are not known.
    """
    counted = costing(trace, work)
    # The counted pieces of work, and the call that each is of.
    row = np.flatnonzero(counted.item >= 0)
    item, start, end = counted.item[row], work.start[row], work.end[row]
    call, (calls,) = codes(counted.call[row])
    # Within a call the kernel that started first owns the time, so shares add up to the call's GPU time.
    own_ns = end - exclusive(start, end, call)
    call_ns = sums(call, own_ns, len(calls))[call]
    is_longest = np.zeros(len(row), dtype=bool)
    is_longest[largest(own_ns, call)] = True
    fraction = np.where(call_ns > 0, own_ns / np.maximum(call_ns, 1), is_longest)

    costs = counted.costs
    limits = bounds(costs, device)
    amounts = {name: getattr(costs, name)[item] for name in AMOUNTS}
    is_link = costs.is_linked[item]
    moved = np.where(is_link, amounts["link_bytes"], amounts["read_bytes"] + amounts["write_bytes"])
    least, ns = limits.roofline[item], np.maximum(call_ns, 1)
    numbers = {
        "flops_per_s": amounts["flops"] / ns * 1e9,
        "bytes_per_s": moved / ns * 1e9,
        "roofline_ns": np.where(least >= 0, least * fraction, -1.0),
        "efficiency": np.where(least >= 0, least / ns, -1.0),
    }
    for name, amount in amounts.items():
        # The longest piece takes what rounding leaves, so sums are exact.
        part = np.where(is_longest, 0, np.floor(amount * fraction).astype(np.int64))
        others = sums(call, part, len(calls))[call]
        numbers[name] = np.where(is_longest, amount - others, part)
    position = np.full(len(work.event), -1, dtype=np.int64)
    position[row] = np.arange(len(row))
    bound = np.full(len(counted.items) + 1, BOUNDS.index(""))
    bound[:-1] = limits.bound
    item_of, reason = (np.where(code >= 0, code, -1) for code in (counted.item, counted.reason))
    return {name: lookup(values, position, -1) for name, values in numbers.items()} | {
        "dtype": Coded.used(item_of, [*costs.dtype, ""]),
        "bound": Coded.used(bound[item_of], BOUNDS),
        "uncounted": Coded.used(reason, [*counted.reasons, ""]),
    }


def largest(values: Int, group: Int) -> Int:
    """Position of the largest value of each group; of equal ones the last."""
    order = np.lexsort((values, group))
    return order[np.flatnonzero(np.diff(group[order], append=-1))]
