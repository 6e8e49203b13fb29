"""Collectives of dense layers: in one ring over hosts, after their GEMM, or of parameters gathered twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import HostKernels, MatchedCollective, Repetition, host_spans, spans_of
from tracelens.analysis.comm import regathers as regathers_of
from tracelens.analysis.fusable import StepWork, exposed_pairs, pairs, speed_of_light
from tracelens.arrays import Float, Int, unique
from tracelens.devices import Device
from tracelens.findings import (
    Confidence,
    Detection,
    Detections,
    Outcome,
    Quantity,
    RankContext,
    Remedy,
    detector,
    in_steps,
    step_count,
)
from tracelens.table import Result, codes
from tracelens.trace import WORK_KINDS, Trace, Union, difference, union
from tracelens.units import amount, duration
from tracelens.what_if import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.graph import Edge, Edit, Node, drop_work, marked, marked_calls, meetings_of

NOT_REGATHERED = "no module whose parameters are gathered twice in a step by FSDP2"


@detector(
    "hierarchical_all_reduce",
    evidence="collectives",
    scenario="hierarchical_all_reduce",
    title="Collectives across hosts use one flat ring",
    fix="a hierarchical all-reduce",
    needs=("collectives",),
    measures={
        "collectives per step": "those in flat rings over hosts",
        "bus bandwidth": "of their transfers, without waiting",
        "bytes sent per host, flat ring": "bytes that cross hosts, per step",
        "bytes sent per host, hierarchical": "the same with a reduction within each host first",
        "time without waiting": "of their transfers, per step",
        "expected time, hierarchical": "the same with a reduction within each host first",
        "hosts": "most hosts of one collective",
    },
    threshold="equal numbers of ranks on several hosts, more than one each, in a kernel not named a tree",
    limits="Needs traces that name their hosts.",
    remedy="Use a hierarchical algorithm: reduce-scatter within the host, all-reduce of each rank's part "
    "across hosts, all-gather within the host; keep tensor-parallel groups within a host.",
    remedies=(
        Remedy(
            "{megatron}: --num-distributed-optimizer-instances for gradients.",
            framework=("megatron", "primus"),
        ),
        Remedy("The bundled workload: --grad-reduce hierarchical with --node.", framework=("workload",)),
        Remedy("torch: hybrid sharding (FSDP with a mesh of hosts by ranks).", plain=True),
        Remedy("{library}: NCCL_ALGO=Tree comes close for all-reduce.", vendor=("nvidia", "amd")),
    ),
)
def hierarchical_all_reduce(results: Mapping[str, Result]) -> Detections:
    """All-reduce, reduce-scatter or all-gather over hosts with several ranks each, as one flat ring."""
    participants = results["collectives"].data["participants"]
    if not len(participants):
        return "no collective is recorded on several ranks"
    hosts = set(participants.texts("host"))
    if "" in hosts or len(hosts) == 1:
        return "the traces do not name their hosts" if "" in hosts else "all ranks are on one host"
    group = np.unique(np.array(participants.texts("group")), return_inverse=True)[1]
    names, name = np.unique(np.array(participants.texts("collective")), return_inverse=True)
    first, order = participants.array("first_rank"), participants.array("order")
    of_row, keys = codes(group.ravel(), first, name.ravel(), order)
    parts = HostKernels(
        number=of_row,
        host=participants.texts("host"),
        kernel=participants.texts("kernel"),
        bytes=participants.array("bytes"),
        dur=participants.array("dur_ns"),
        size=participants.array("group_size"),
    )
    spans = host_spans(parts, [names[code] for code in keys[2].tolist()])
    if reason := spans.reason():
        return reason
    flat = spans.divisible & spans.flat
    expected_ns, inside_known = spans.expected()
    # Share of its time that each collective saves.
    gain = spans.gain()
    steps = step_count(results)
    counted = in_steps(participants) & (spans.hosts[of_row] > 0) & flat[of_row]
    confidence: Confidence = "medium" if inside_known and spans.ring[flat].all() else "low"
    detections = {}
    for rank in unique(participants.array("rank")[counted]).tolist():
        rows = np.flatnonzero(counted & (participants.array("rank") == rank))
        exposed, wait, start, dur = (
            participants.array(column)[rows] for column in ("exposed_ns", "wait_ns", "local_ts_ns", "dur_ns")
        )
        index = of_row[rows]
        n, across, latency = spans.ranks[index], spans.hosts[index], spans.latency[index]
        sent = spans.rounds[index] * spans.bytes[index]
        ring, levels = float((sent * (n - 1) / n).sum()), float((sent * (across - 1) / across).sum())
        rate = float(sent.dot((n - 1) / n) / max(int(latency.sum()), 1)) * 1e9
        lost = (exposed > 0) & (gain[index] > 0)
        expected = float(expected_ns[index].sum()) / steps
        detections[rank] = Detection(
            (
                Quantity("collectives per step", len(rows) / steps, "count"),
                Quantity("bus bandwidth", rate, "bytes/s"),
                Quantity("bytes sent per host, flat ring", ring / steps, "bytes"),
                Quantity("bytes sent per host, hierarchical", levels / steps, "bytes"),
                Quantity("time without waiting", float(latency.sum()) / steps, "ns"),
                Quantity("expected time, hierarchical", expected, "ns"),
                Quantity("hosts", float(across.max()), "count"),
            ),
            float((gain[index] * exposed).sum()) / steps,
            union((start + wait)[lost], (start + dur)[lost]),
            f"{len(rows) / steps:,.0f} collectives per step across {across.max()} hosts with "
            f"{(n // across).max()} ranks each spend {duration(latency.sum() / steps)} transferring, at "
            f"{rate / 1e9:,.2f} GB/s; a hierarchical algorithm sends {levels / max(ring, 1):.0%} of the "
            f"bytes per host: {duration(expected)} expected",
            confidence,
        )
    return detections or "no such collective lies in a step"


@scenario("hierarchical_all_reduce")
def hierarchical_collectives(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Collectives across hosts are hierarchical: first within each host, then across hosts.

    Assumes:
        Over H hosts, (H-1)/H of the bytes cross them, at the measured rate. Waiting for late ranks stays.
    """
    meetings, collectives = context.meetings()
    spans = spans_of(context.recorded.collectives.aligned.ranks, collectives)
    if isinstance(spans, str):
        raise NotApplicable(spans)
    if reason := spans.reason():
        raise NotApplicable(reason)
    _, inside_known = spans.expected()
    gain = spans.gain()
    edit.set_dur(meetings, edit.dur[meetings] * (1 - gain))
    links = "as measured in this run" if inside_known else "free where this run has none of their size"
    return (
        f"{int((gain > 0).sum()):,} collectives send (H-1)/H instead of (n-1)/n of their bytes between "
        f"H hosts, at the measured rate; transfers within a host are {links}; waiting for late ranks stays"
    )


@detector(
    "gemm_collective",
    evidence="overlap",
    scenario="gemm_collective_overlap",
    title="GEMMs do not overlap their collectives",
    fix="overlapping GEMMs with their collectives",
    measures={
        "pairs per step": "GEMMs that run sequentially with their collective",
        "serialized time": "their GEMMs and exposed transfers, per step",
        "with perfect overlap": "the longer one of each pair, per step",
        "speed of light": "bound for GEMM and transfer together, per step; known devices only",
        "speed of light / time": "the same / serialized time",
    },
    threshold="the GEMM and its collective run in sequence, and no computation hides half of the transfer",
    limits="Assumes that both run at full speed at the same time.",
    remedy="Fuse or overlap each GEMM with its collective tile by tile: GEMM + reduce-scatter, all-gather + "
    "GEMM.",
    remedies=(
        Remedy(
            "Megatron-LM: --tp-comm-overlap with --sequence-parallel (Transformer Engine).",
            framework=("megatron",),
        ),
        Remedy(
            "torchtitan: parallelism.enable_async_tensor_parallel with compile enabled.",
            framework=("torchtitan",),
        ),
        Remedy("The bundled workload: --tp-overlap chunked or symmetric.", framework=("workload",)),
        Remedy(
            "With torch alone: async tensor parallelism over torch symmetric memory (torch.compile).",
            vendor=("nvidia",),
            plain=True,
        ),
        Remedy(
            "For example Triton-distributed or Iris kernels on a symmetric heap, as in the AMD Developer "
            "Challenge 2025.",
            vendor=("amd",),
            plain=True,
        ),
    ),
)
def gemm_collective(context: RankContext) -> Outcome:
    """A GEMM and the collective of its tensor run sequentially (GEMM + reduction, gather + GEMM)."""
    gemm_pairs = pairs(context)
    if isinstance(gemm_pairs, str):
        return gemm_pairs
    start, end = context.work.start[gemm_pairs.row], context.work.end[gemm_pairs.row]
    dur = end - start
    computation = context.work.union("computation")
    exposed, slow = exposed_pairs(context, gemm_pairs)
    count = int(slow.sum())
    if not count:
        return f"the collectives of all {len(slow)} tensor-parallel GEMMs are overlapped"
    light = speed_of_light(gemm_pairs, context.device)
    now = (gemm_pairs.gemm_ns + exposed)[slow]
    # At best the shorter of the two hides in the longer one, and both are bound by the device.
    best = np.maximum(np.maximum(gemm_pairs.gemm_ns, dur), light)[slow]
    saving = context.per_step(float(np.maximum(now - best, 0).sum()))
    measured, limit_ns = context.per_step(float(now.sum())), context.per_step(float(light[slow].sum()))
    kinds = ", ".join(
        f"{int(number)} {kind}"
        for kind, number in zip(
            gemm_pairs.kinds, np.bincount(gemm_pairs.kind[slow], minlength=len(gemm_pairs.kinds)), strict=True
        )
        if number
    )
    limit, bound = "", tuple[Quantity, ...]()
    if context.device:
        limit = f", {duration(limit_ns)} at the speed of light of {context.device.title}"
        share = Quantity("speed of light / time", limit_ns / max(measured, 1), "ratio")
        bound = (Quantity("speed of light", limit_ns, "ns"), share)
    return Detection(
        (
            Quantity("pairs per step", context.per_step(count), "count"),
            Quantity("serialized time", measured, "ns"),
            Quantity("with perfect overlap", context.per_step(float(best.sum())), "ns"),
            *bound,
        ),
        saving,
        difference(union(start[slow], end[slow]), computation),
        f"{count} of {len(slow)} GEMMs do not overlap the collective of their tensor ({kinds}): "
        f"{duration(measured)} per step{limit}; overlapped, only the longer of each pair counts",
        "medium" if context.device else "low",
    )


class OverlapPairs(Struct, frozen=True):
    """GEMMs of one rank that do not overlap the collective of their tensor."""

    row: Int  # position of the collective in the rank's work
    gemm_ns: Int  # GPU time of the GEMM
    least_ns: Float  # of both together at the speed of light, 0 if unknown
    reason: str  # why there are none, "" if there are


def overlap_pairs(trace: Trace, device: Device | None) -> OverlapPairs:
    """GEMMs of a rank that could overlap a collective and do not."""
    step = StepWork(trace, device)
    empty = np.empty(0, dtype=np.int64)
    if not len(step.work.event):
        return OverlapPairs(empty, empty, np.empty(0), "no GPU work")
    gemms = pairs(step)
    if isinstance(gemms, str):
        return OverlapPairs(empty, empty, np.empty(0), gemms)
    _, serial = exposed_pairs(step, gemms)
    if not serial.any():
        reason = f"the collectives of all {len(serial)} tensor-parallel GEMMs are overlapped"
        return OverlapPairs(empty, empty, np.empty(0), reason)
    least_ns = speed_of_light(gemms, device)
    return OverlapPairs(step.rows[gemms.row[serial]], gemms.gemm_ns[serial], least_ns[serial], "")


@scenario("gemm_collective_overlap", reads=(overlap_pairs,))
def gemm_collective_overlap(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """GEMMs overlap the collective of their tensor: the longer of both remains (GEMM+RS, AG+GEMM).

    Assumes:
        GEMM and transfer both run at full speed, but no faster than the device allows. Waiting for late ranks
        stays.
    """
    graph, by_rank = context.gpu_graph(), context.read(overlap_pairs)
    if all(part.reason for part in by_rank):
        raise NotApplicable("; ".join(dict.fromkeys(part.reason for part in by_rank)))
    gemm_ns, least_ns = (np.zeros(len(graph)) for _ in range(2))
    for rank, part in enumerate(by_rank):
        nodes = graph.nodes(rank, Node.WORK, Node.ARRIVE)
        row, first = np.unique(graph.work[nodes], return_index=True)
        node = nodes[first[np.searchsorted(row, part.row)]]
        gemm_ns[node], least_ns[node] = part.gemm_ns, part.least_ns
    # A meeting hides no more than behind the shortest of its ranks' GEMMs.
    arrival = np.flatnonzero(graph.edge == Edge.ARRIVAL)
    met = unique(graph.dst[arrival])
    gemm_ns[met] = np.inf
    np.minimum.at(gemm_ns, graph.dst[arrival], gemm_ns[graph.src[arrival]])
    np.maximum.at(least_ns, graph.dst[arrival], least_ns[graph.src[arrival]])
    gemm_ns[graph.kind == Node.ARRIVE] = 0
    rows = np.flatnonzero((gemm_ns > 0) & (graph.dur > 0))
    own_ns = graph.dur[rows].astype(float)
    together_ns = np.maximum(np.maximum(gemm_ns[rows], own_ns), least_ns[rows])
    hidden_ns = np.clip(gemm_ns[rows] + own_ns - together_ns, 0, own_ns)
    edit.set_dur(rows, edit.dur[rows] * (1 - hidden_ns / np.maximum(own_ns, 1)))
    return (
        f"{len(rows):,} transfers hide {duration(hidden_ns.sum())} behind their GEMMs: of each pair the "
        "longer one remains, at least the speed of light where the device is known; both run at full "
        "speed, and waiting for late ranks stays"
    )


@detector(
    "parameters_regathered",
    evidence="overlap",
    scenario="keep_parameters",
    title="Parameters are gathered again for the backward pass",
    fix="keeping parameters gathered",
    remedy="Keep parameters gathered between the passes where memory allows: fully_shard(module, "
    "reshard_after_forward=False), for some modules if not for all; for the last one in any case. FSDP1: "
    "ShardingStrategy.SHARD_GRAD_OP.",
    measures={
        "gathers again per step": "all-gathers of modules gathered before in the step, waiting included",
        "exposed per step": "part of it without computation",
    },
    threshold="one module gathered twice in a step",
    limits="Reads the marks of FSDP2. The parameters of all modules must fit into memory together.",
)
def parameters_regathered(context: RankContext) -> Outcome:
    """FSDP frees the parameters of a module after its forward pass and gathers them again."""
    gathering, exposed = communicated_again(context, context.trace.once(regathers_of))
    if not gathering.total:
        return NOT_REGATHERED
    return Detection(
        (
            Quantity("gathers again per step", context.per_step(gathering.total), "ns"),
            Quantity("exposed per step", context.per_step(exposed.total), "ns"),
        ),
        context.per_step(exposed.total),
        gathering,
        f"{context.per_step(gathering.total) / 1e6:,.1f} ms/step of all-gathers repeat those of the forward "
        f"pass; {context.per_step(exposed.total) / 1e6:,.1f} ms/step of them are exposed",
        "medium",
    )


def regathers(trace: Trace, device: Device | None) -> Repetition:
    """What a rank gathers again in a step."""
    return trace.once(regathers_of)


@scenario("keep_parameters", reads=(regathers,))
def keep_parameters(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Sharded parameters stay on the GPU from forward to backward pass (FSDP2: reshard_after_forward=False).

    Assumes:
        What gathers the parameters of a module again, for a backward pass, goes, with its copies, calls and
        host time. Their memory stays in use until the backward pass is through the module.
    """
    dropped, transfer_ns = drop_repetition(context, edit, context.read(regathers), NOT_REGATHERED)
    gathered = [collective.participants[0].record.bytes for collective in dropped]
    steps = len(context.recorded.windows)
    # One module's parameters are in use in any case.
    more = sum(gathered) / steps - max(gathered, default=0)
    return (
        f"{len(dropped) / steps:,.0f} all-gathers a step go, {duration(transfer_ns)} of transfers, with "
        f"their copies and calls; each GPU holds {amount(more, 'bytes')} of parameters more as the backward "
        "pass begins"
    )


def communicated_again(context: RankContext, repeated: Repetition) -> tuple[Union, Union]:
    """When a rank communicates what it repeats, and when nothing is computed meanwhile."""
    again = np.isin(context.rows, repeated.rows) & (context.work.kind == WORK_KINDS.index("comm"))
    during = context.during(again)
    return during, difference(during, context.work.union("computation"))


def drop_repetition(
    context: ScenarioContext, edit: Edit, by_rank: Sequence[Repetition], nothing: str
) -> tuple[list[MatchedCollective], float]:
    """Drop what ranks repeat; returns its collectives, and ns of their transfers in a step.

    Raises:
        NotApplicable: they repeat `nothing`.
    """
    graph = context.gpu_graph()
    work = marked(graph, [part.rows for part in by_rank])
    if not work.any():
        raise NotApplicable(nothing)
    calls = marked_calls(graph, [part.event for part in by_rank], Node.POINT, Node.WAITED)
    meetings = np.flatnonzero(meetings_of(graph, work))
    matched = context.recorded.collectives.matched
    transfer_ns = float(edit.dur[meetings].sum()) / len(context.recorded.windows)
    drop_work(graph, edit, work, calls)
    return [matched[number] for number in graph.collective[meetings].tolist()], transfer_ns
