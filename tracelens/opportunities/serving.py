"""Serving ranks in different phases, padded to the largest, or with exposed communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from tracelens.analysis.serving import (
    LEAST_WORK,
    GlobalStep,
    RankSteps,
    by_one_clock,
    global_steps,
    rank_steps,
)
from tracelens.arrays import Int, lookup, median, unique
from tracelens.devices import Device
from tracelens.findings import JOB, Detection, Detections, Quantity, Remedy, detector, step_count
from tracelens.table import Result, Table, codes, sums
from tracelens.trace import Trace, Union, interval_of, rows_by_code, union
from tracelens.units import duration
from tracelens.what_if import NotApplicable, ScenarioContext, efficiency, scenario
from tracelens.what_if.graph import Edge, Edit, Node, RunGraph

PADDED_SHARE = 0.1
"""Less padding of the token slots than this is the odd request more on one rank."""

EXPOSED_SHARE = 0.1
"""A serving step that keeps a smaller share of its communication exposed has little to win."""

NO_LABELS = "no step labels of a serving engine"
_PREFILLS = ("prefill", "mixed")


@detector(
    "serving_phases",
    evidence="serving",
    scenario="prefill_delayer",
    title="Ranks prefill while others decode",
    fix="aligning the prefills",
    needs=("collectives", "serving"),
    measures={
        "phase mismatch, share of step time": "common steps with ranks in different phases, by time",
        "steps with ranks in different phases": "by number, / steps",
        "delay of decoding": "time beyond an all-decode step, per step",
        "avoidable delay: prefills at different times": "part that prefills at the same time would save",
        "eager decode, share of decode time": "decode time outside graph replays, where known",
    },
    threshold="one step in which a rank prefills while another decodes",
    limits="Latency of the prompts that wait is not part of the saving. Without an all-decode step, decoding "
    "ranks are compared with the least GPU work of one of them, as a graph would replay it.",
    remedy="Let the data-parallel ranks agree on when to prefill: then all prefill or all decode, with "
    "graphs and without padding. Or separate prefill from decode servers.",
    remedies=(
        Remedy(
            "ATOM: ATOM_ENABLE_PREFILL_DELAYER=1 holds prefills back until enough have gathered, bounded by "
            "waiting ticks and the KV cache's low watermark.",
            framework=("atom",),
        ),
        Remedy(
            "SGLang: --enable-prefill-delayer, or --disaggregation-mode prefill and decode.",
            framework=("sglang",),
        ),
        Remedy("vLLM: separate prefill and decode instances with --kv-transfer-config.", framework=("vllm",)),
        Remedy("The bundled workload: --prefill-delayer on.", framework=("workload_serve",)),
    ),
)
def serving_phases(results: Mapping[str, Result]) -> Detections:
    """Expert-parallel ranks are in different phases: decoding ranks wait for a prefill."""
    if isinstance(row := _summary(results), str):
        return row
    steps, aligned = step_count(results), results["serving"].data["alignment"]
    if not len(aligned):
        return "no two ranks' steps overlap in time"
    mismatch = aligned.array("mismatch")
    if not mismatch.any():
        return "all ranks with requests are in the same phase in every step"
    delay, alignable = row["delay_ns"], row["alignable_ns"]
    if delay < 0:
        return "ranks in different phases, but no all-decode step and no matched collective to compare with"
    start, dur = aligned.array("ts_ns")[mismatch], aligned.array("dur_ns")[mismatch]
    # Without an all-decode step what a decode takes is derived, not recorded.
    basis = (
        f"; compared with {duration(row['decode_ns'])}, the least GPU work of a decoding rank, since no "
        "all-decode step is recorded"
        if results["serving"].data["summary"].values("decode_source") == [LEAST_WORK]
        else ""
    )
    return {
        JOB: Detection(
            (
                Quantity("phase mismatch, share of step time", row["phase_mismatch_fraction"], "fraction"),
                Quantity("steps with ranks in different phases", row["mismatch_steps"] / steps, "count"),
                Quantity("delay of decoding", delay / steps, "ns"),
                Quantity("avoidable delay: prefills at different times", alignable / steps, "ns"),
                *_known("eager decode, share of decode time", row["eager_fraction"]),
            ),
            max(alignable, 0) / steps,
            union(start, start + dur),
            f"{row['mismatch_steps']:,.0f} of {row['steps']:,.0f} common steps "
            f"({row['phase_mismatch_fraction']:.0%} of their time) have ranks in different phases; this "
            f"delays decoding ranks by {duration(delay)}, {duration(alignable)} of that for prefills that "
            f"could have run together with another rank's{basis}",
            "low" if basis else "medium",
        )
    }


class ServingRank(Struct, frozen=True):
    """What the serving scenarios read of a rank."""

    steps: RankSteps
    calls: Int  # event rows of its runtime calls; none where it has no steps
    kernel_ns: int  # of its shortest kernel, 0 without any


class ServingSteps(Struct, frozen=True):
    """The global steps of a run."""

    steps: list[GlobalStep]  # in order of time
    of_node: Int  # index into `steps` of each node, -1 for none


class StepOutcome(Struct, frozen=True):
    """What becomes of a step."""

    decodes: bool  # all ranks decode, and its prompts wait
    token_factor: float = 1.0  # growth of the most tokens that a rank prefills in it


def serving_rank(trace: Trace, device: Device | None) -> ServingRank:
    """The labeled steps of a rank, and what its engine launches at least."""
    steps = trace.once(rank_steps)
    calls = np.flatnonzero(trace.arrays.where("launch") if steps.steps else np.zeros(0, dtype=bool))
    kernel_ns = trace.work.dur[trace.work.is_kernel & (trace.work.dur > 0)]
    return ServingRank(steps, calls, int(kernel_ns.min()) if len(kernel_ns) else 0)


@scenario("prefill_delayer", reads=(serving_rank,))
def prefill_delayer(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Serving ranks hold prompts back until others prefill too: no rank decodes while another prefills.

    Assumes:
        Requests arrive as recorded; prompts join the next step in which another rank prefills, without a
        token limit, and those without a partner stay.
    """
    graph, serving = context.graph, serving_steps(context)
    mismatched = sum(step.mismatch for step in serving.steps)
    if not mismatched:
        raise NotApplicable("all ranks are in the same phase in every step")
    outcomes = delayed(serving.steps)
    decodes = np.array([outcome.decodes for outcome in outcomes], dtype=bool)
    if not decodes.any():
        raise NotApplicable("no step with both prefill and decoding is followed by a prefill of another rank")
    decode_ns, source = _decode_ns(context, serving)
    dur_ns = np.array([step.dur_ns for step in serving.steps], dtype=np.int64)
    shrink = np.where(decodes, np.minimum(decode_ns / np.maximum(dur_ns, 1), 1.0), 1.0)
    factor = lookup(shrink, serving.of_node, 1.0)
    affected = lookup(decodes, serving.of_node, False)
    nodes = np.flatnonzero(affected)
    for values in (edit.dur, edit.delay):
        values[nodes] = np.rint(values[nodes] * factor[nodes]).astype(np.int64)
    step_of = serving.of_node
    inside = np.flatnonzero(affected[graph.src] & (step_of[graph.src] == step_of[graph.dst]))
    edit.lag[inside] = np.rint(edit.lag[inside] * factor[graph.src[inside]]).astype(np.int64)
    growth = np.array([1.0 if step.decodes else max(step.token_factor, 1.0) for step in outcomes])
    longer = lookup(growth, step_of, 1.0)
    busy = np.flatnonzero((longer > 1) & np.isin(graph.kind, (Node.WORK, Node.MEET)))
    edit.set_dur(busy, edit.dur[busy] * longer[busy])
    return (
        f"{decodes.sum()} of {mismatched} steps with both prefill and decoding "
        f"({dur_ns[decodes].sum() / 1e6:,.1f} ms) become pure decode steps, {source}; their prompts join "
        "the next step in which another rank prefills; its GPU work and transfers grow with the tokens of "
        "the rank with the most, without a token limit; requests arrive as recorded; prompts without a "
        "partner stay"
    )


def delayed(steps: Sequence[GlobalStep]) -> list[StepOutcome]:
    """What a delayer makes of the steps: prompts wait for the next step in which another rank prefills.

    A step with prefill beside decoding becomes a decode step if its prompts meet such a step later on; one
    in which waiting ranks and others prefill together takes as long as the rank with most tokens needs.
    """
    outcomes = [StepOutcome(False) for _ in steps]
    waiting: dict[int, int] = {}
    since: list[int] = []
    for number, step in enumerate(steps):
        prefills = {
            rank: max(rank_step.label.tokens, 0)
            for rank, rank_step in step.rank_steps
            if rank_step.label.kind in _PREFILLS and not rank_step.label.dummy
        }
        if not prefills:
            continue
        if step.mismatch and set(waiting) <= set(prefills):
            for rank, tokens in prefills.items():
                waiting[rank] = waiting.get(rank, 0) + tokens
            since.append(number)
        elif waiting:
            most = max(prefills.values())
            together = max(
                prefills.get(rank, 0) + waiting.get(rank, 0) for rank in prefills.keys() | waiting.keys()
            )
            outcomes[number] = StepOutcome(False, together / max(most, 1))
            for waiting_step in since:
                outcomes[waiting_step] = StepOutcome(True)
            waiting, since = {}, []
    return outcomes


def _decode_ns(context: ScenarioContext, serving: ServingSteps) -> tuple[float, str]:
    """Duration of a step in which all ranks decode, ns, and its source.

    The median of those in the recording. Without any: of the mismatched steps the one in which a decoding
    rank had least work, and that work and its transfers alone, as a CUDA graph would replay them. Beside a
    prefill ranks replay no graphs, and compute its tokens in their experts; so it is an upper bound of the
    work.
    """
    decode_steps = [step.dur_ns for step in serving.steps if step.phases == {"decode"}]
    if decode_steps:
        typical_ns = float(median(decode_steps))
        return typical_ns, f"as long as the recorded ones ({typical_ns / 1e6:,.2f} ms)"
    graph = context.graph
    index_of = {rank.number: index for index, rank in enumerate(graph.ranks)}
    work_ns = _sums_ns(graph, serving.of_node, graph.rank, Node.WORK)
    transfer_ns = _sums_ns(graph, serving.of_node, np.zeros_like(graph.rank), Node.MEET)
    decode_work = [
        float(work_ns.get((number, index_of[rank]), 0) + transfer_ns.get((number, 0), 0))
        for number, step in enumerate(serving.steps)
        if step.mismatch
        for rank, rank_step in step.rank_steps
        if rank_step.label.kind == "decode" and not rank_step.label.dummy
    ]
    if not decode_work:
        raise NotApplicable("no rank decodes in the steps whose ranks are in different phases")
    least_ns = min(decode_work)
    return least_ns, (
        f"as long as the least GPU work of a decoding rank ({least_ns / 1e6:,.2f} ms), replayed as a CUDA "
        "graph, since no pure decode step is recorded"
    )


def _sums_ns(graph: RunGraph, step: Int, part: Int, kind: Node) -> dict[tuple[int, int], int]:
    """(step, part) to the duration of all its nodes of a kind."""
    nodes = np.flatnonzero((step >= 0) & (graph.kind == kind))
    group, (steps, parts) = codes(step[nodes], part[nodes])
    total = sums(group, graph.dur[nodes], len(steps))
    return dict(zip(zip(steps.tolist(), parts.tolist(), strict=True), total.tolist(), strict=True))


@detector(
    "serving_padding",
    evidence="serving",
    title="Ranks are padded to the rank with the most tokens",
    fix="balancing tokens over the ranks",
    needs=("collectives", "serving"),
    measures={
        "padding of the slots": "1 - tokens / slots",
        "tokens": "of requests, per step",
        "slots": "ranks x most tokens of a rank, per step",
        "padding of graphs": "1 - requests / captured batch size, where known",
    },
    threshold=f"{PADDED_SHARE:.0%} of the slots are padding",
    limits="Attention is not padded, so the saving is an upper bound.",
    remedy="Balance tokens over the data-parallel ranks (route requests by load, chunk prefills alike), keep "
    "ranks in one phase, gather by each rank's own token count (all_gatherv, reduce_scatterv) instead of "
    "padding, and capture graphs for more batch sizes.",
    remedies=(
        Remedy("ATOM: ATOM_ENABLE_PREFILL_DELAYER=1, --cudagraph-capture-sizes.", framework=("atom",)),
        Remedy(
            "SGLang: --enable-prefill-delayer, --chunked-prefill-size, --cuda-graph-bs.",
            framework=("sglang",),
        ),
        Remedy(
            "vLLM: --max-num-batched-tokens, and cudagraph_capture_sizes in --compilation-config.",
            framework=("vllm",),
        ),
        Remedy("The bundled workload: --prefill-delayer on.", framework=("workload_serve",)),
    ),
)
def serving_padding(results: Mapping[str, Result]) -> Detections:
    """Ranks that gather tokens for the experts pad them to the rank with the most tokens."""
    if isinstance(row := _summary(results), str):
        return row
    steps, aligned = step_count(results), results["serving"].data["alignment"]
    is_known = aligned.array("padding_fraction") >= 0
    if not is_known.any():
        return "no step in which all ranks label their tokens"
    share = row["padding_fraction"]
    if share < PADDED_SHARE:
        return f"{share:.0%} of the token slots are padding"
    tokens, most, ranks, dur, start = (
        aligned.array(name)[is_known] for name in ("tokens_sum", "tokens_max", "ranks", "dur_ns", "ts_ns")
    )
    slots = most * ranks
    # By how much steps get longer with each slot, by least squares, unless all have the same.
    apart = slots - slots.mean()
    if not apart.any():
        wasted = dur * (1 - tokens / np.maximum(slots, 1))
        basis = "all steps have the same number of slots, so step time is assumed proportional to it"
    else:
        slot_ns = max(float((apart * (dur - dur.mean())).sum() / (apart**2).sum()), 0.0)
        wasted = np.minimum(slot_ns * (slots - tokens), dur)
        basis = f"each additional slot takes {duration(slot_ns)}"
    padded = wasted > 0
    return {
        JOB: Detection(
            (
                Quantity("padding of the slots", share, "fraction"),
                Quantity("tokens", float(tokens.sum()) / steps, "count"),
                Quantity("slots", float(slots.sum()) / steps, "count"),
                *_known("padding of graphs", row["graph_padding_fraction"]),
            ),
            float(wasted.sum()) / steps,
            union(start[padded], start[padded] + dur[padded]),
            f"{tokens.sum():,} tokens in {slots.sum():,} slots, {share:.1%} padding; {basis}, including "
            "attention, which is not padded: an upper bound",
            "low",
            fact=f"{share:.0%} of the token slots are padding",
        )
    }


@detector(
    "serving_two_batch",
    evidence="serving",
    scenario="two_batch_overlap",
    title="Exposed communication in serving steps",
    fix="two-batch overlap",
    needs=("collectives", "serving"),
    measures={
        "exposed communication": "of the steps in question, per step",
        "exposed communication, share of step time": "the same / time of these steps",
        "overlap efficiency": "hidden / all communication of the steps run as two batches",
        "token imbalance of the halves": "|a - b| / (a + b) of their tokens",
    },
    threshold=f"{EXPOSED_SHARE:.0%} of the time of these steps is exposed communication",
    limits="Two small batches may be less efficient than a large one.",
    remedy="Split the batch in two and let one half compute while the other communicates; split by tokens, "
    "not requests, to make both halves end together (a cut request's prefix counts as cached for its "
    "suffix).",
    remedies=(
        Remedy("ATOM: --enable-tbo.", framework=("atom",)),
        Remedy("SGLang: --enable-two-batch-overlap.", framework=("sglang",)),
        Remedy("vLLM: --enable-dbo.", framework=("vllm",)),
        Remedy("The bundled workload: --tbo token.", framework=("workload_serve",)),
    ),
)
def serving_two_batch(results: Mapping[str, Result]) -> Detections:
    """Serving steps with two-batch overlap, or prefills without it, keep communication exposed."""
    if isinstance(row := _summary(results), str):
        return row
    table = results["serving"].data["steps"]
    overlapped = table.array("tbo")
    # A decode that is split in two runs two small batches instead of one: only prefills have work to hide by.
    candidate = (
        overlapped if overlapped.any() else table.coded("kind").equals("prefill") & ~table.array("dummy")
    )
    if not candidate.any():
        return "no step with two-batch overlap, and no prefill to split"
    steps, detections = step_count(results), {}
    # What two-batch overlap does already, where steps have it.
    tbo, imbalance, efficiency = row["tbo_steps"] > 0, row["tbo_imbalance"], row["tbo_efficiency"]
    what = "prefill(s) without two-batch overlap"
    if tbo:
        halves = f", halves differ by {imbalance:.0%} of their tokens" if imbalance >= 0 else ""
        what = f"step(s) with two-batch overlap{halves}"
    batches = [
        *([Quantity("overlap efficiency", efficiency, "ratio")] if tbo and efficiency >= 0 else []),
        *([Quantity("token imbalance of the halves", imbalance, "ratio")] if imbalance >= 0 else []),
    ]
    for rank in unique(table.array("rank")[candidate]).tolist():
        of_rank = table.take(candidate & (table.array("rank") == rank))
        start, dur = of_rank.array("ts_ns"), of_rank.array("dur_ns")
        basis = "excluding waiting for other ranks"
        participants = results["collectives"].data["participants"]
        exposed, where = _exposed_without_waiting(participants, rank, start, dur)
        if exposed is None:
            # By the table of two-batch overlap; 0 where it has none.
            basis = "including waiting for other ranks"
            overlap = results["serving"].data["overlap"]
            overlap = overlap.take(overlap.array("rank") == rank)
            exposed_ns = (overlap.array("comm_ns") - overlap.array("hidden_ns")).tolist()
            of_step = dict(zip(overlap.values("index"), exposed_ns, strict=True))
            exposed = np.array([of_step.get(index, 0) for index in of_rank.values("index")], dtype=np.int64)
        exposed_total, total = exposed.sum(), dur.sum()
        # Something must be left to hide it under.
        lost = np.minimum(exposed, dur - exposed).sum()
        if lost < EXPOSED_SHARE * total:
            continue
        share = float(exposed_total) / max(float(total), 1)
        detections[rank] = Detection(
            (
                Quantity("exposed communication", float(exposed_total) / steps, "ns"),
                Quantity("exposed communication, share of step time", share, "fraction"),
                *batches,
            ),
            float(lost) / steps,
            where,
            f"{duration(exposed_total)} of exposed communication in {duration(total)} of {len(of_rank)} "
            f"{what}, {basis}; upper bound: all of it hidden under the rest of these steps",
            "low",
        )
    how = "two-batch overlap" if overlapped.any() else "prefill"
    return (
        detections
        or f"under {EXPOSED_SHARE:.0%} of the {how} time is exposed communication, as far as recorded"
    )


def _exposed_without_waiting(
    participants: Table, rank: int, start: Int, dur: Int
) -> tuple[Int | None, Union]:
    """Exposed communication of a rank in each step without waiting, and when; None if none is recorded."""
    kernels = participants.take(participants.array("rank") == rank)
    # A kernel that serves several messages is there with each of them.
    kernels = kernels.take(np.unique(kernels.array("local_ts_ns"), return_index=True)[1])
    begin = kernels.array("ts_ns")
    order = np.argsort(start, kind="stable")
    step = lookup(order, interval_of(start[order], (start + dur)[order], begin), -1)
    kernels, step = kernels.take(step >= 0), step[step >= 0]
    own_start = kernels.array("local_ts_ns")
    if not len(kernels):
        return None, union(own_start, own_start)
    total = np.zeros(len(start), dtype=np.int64)
    np.add.at(total, step, kernels.array("exposed_ns"))
    return np.minimum(total, dur), union(
        own_start + kernels.array("wait_ns"), own_start + kernels.array("dur_ns")
    )


@scenario("two_batch_overlap", argument="=EFFICIENCY", reads=(serving_rank,))
def two_batch_overlap(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Prefill steps run as two batches: one computes while the other communicates.

    Assumes:
        Each half launches its own kernels, so host time doubles, and each kernel takes longer by the time of
        the shortest one. Waiting for late ranks does not hide.
    """
    share = efficiency(argument, f"two_batch_overlap={argument}") if argument else 1.0
    graph, serving = context.graph, serving_steps(context)
    prefills = [
        number
        for number, step in enumerate(serving.steps)
        if step.phases == {"prefill"} and not any(rank_step.step.two_batches for rank_step in step.rank_steps)
    ]
    if not prefills:
        raise NotApplicable("no step in which all ranks prefill and none already runs two batches")
    split = np.isin(serving.of_node, prefills)
    if not (split & (graph.kind == Node.MEET)).any():
        raise NotApplicable("no collective recorded on several ranks in the prefill steps")
    computes = np.zeros(len(graph), dtype=bool)
    for rank, own in enumerate(context.read(serving_rank)):
        nodes = graph.nodes(rank, Node.WORK)
        computes[nodes] = ~graph.ranks[rank].is_comm[graph.work[nodes]]
        edit.dur[nodes[split[nodes] & computes[nodes]]] += own.kernel_ns
    edit.lag[(graph.edge == Edge.HOST) & split[graph.src] & split[graph.dst]] *= 2
    transfer_ns, hidden_ns = 0.0, 0.0
    split_nodes = np.flatnonzero(split)
    for rows in rows_by_code(serving.of_node[split_nodes]).values():
        nodes = split_nodes[rows]
        meetings, computing = nodes[graph.kind[nodes] == Node.MEET], nodes[computes[nodes]]
        step_ns = float(edit.dur[meetings].sum())
        rank_ns = [
            float(edit.dur[computing[rows]].sum()) for rows in rows_by_code(graph.rank[computing]).values()
        ]
        overlap_ns = share * min(step_ns, *rank_ns) if rank_ns else 0.0
        edit.set_dur(meetings, edit.dur[meetings] * (1 - overlap_ns / max(step_ns, 1)))
        transfer_ns, hidden_ns = transfer_ns + step_ns, hidden_ns + overlap_ns
    bound = f"{share:g} of what fits" if argument else "all that fits, an upper bound"
    return (
        f"in {len(prefills)} prefill steps {hidden_ns / 1e6:,.2f} of {transfer_ns / 1e6:,.2f} ms of "
        f"transfers hide behind the other half's computation ({bound}); waiting for late ranks does not; "
        "each half is launched separately (2x host time), and each kernel takes longer by the shortest "
        "kernel's time"
    )


def _summary(results: Mapping[str, Result]) -> dict[str, float] | str:
    """Numbers of the summary's row, or why there is none."""
    table = results["serving"].data["summary"]
    if not len(table):
        return NO_LABELS
    names = [column.name for column in table.schema.columns if column.is_number]
    return {name: float(table.array(name)[0]) for name in names}


def _known(measure: str, share: float) -> tuple[Quantity, ...]:
    return (Quantity(measure, share, "fraction"),) if share >= 0 else ()


def serving_steps(context: ScenarioContext) -> ServingSteps:
    """The steps that all ranks of a serving run ran together.

    Raises:
        NotApplicable: there are no labeled steps, or no rank to compare with.
    """
    shift = context.recorded.collectives.aligned.shift
    ranks = by_one_clock([rank.steps for rank in context.read(serving_rank)], shift)
    labelled = [rank for rank in ranks if rank.steps]
    if not labelled:
        raise NotApplicable("no step labels of a serving engine in the trace")
    steps = global_steps(labelled)
    if not steps:
        raise NotApplicable("no step that several serving ranks ran together; pass the traces of all ranks")

    # The step of each node: GPU work by its time, a call by what it launches, a meeting by its end.
    graph = context.graph
    step_of = np.full(len(graph), -1, dtype=np.int64)
    windows: dict[int, list[tuple[int, int, int]]] = {}
    for step_number, global_step in enumerate(steps):
        for rank, step in global_step.rank_steps:
            windows.setdefault(rank, []).append((step_number, step.start, step.end))
    for index, rank in enumerate(rank.number for rank in graph.ranks):
        if rank not in windows:
            continue
        number, start, end = np.array(windows[rank], dtype=np.int64).T
        nodes = graph.of_rank[index][graph.work[graph.of_rank[index]] >= 0]
        latest = np.maximum(np.searchsorted(start, graph.start[nodes], side="right") - 1, 0)
        inside = (graph.start[nodes] >= start[latest]) & (graph.start[nodes] <= end[latest])
        step_of[nodes[inside]] = number[latest[inside]]
    launch = graph.edge == Edge.LAUNCH
    step_of[graph.src[launch]] = step_of[graph.dst[launch]]
    launches = np.zeros(len(graph), dtype=bool)
    launches[graph.src[launch]] = True
    for index, own in enumerate(context.read(serving_rank)):
        # A call that launches nothing belongs to what was launched before it; step marks are no calls.
        calls = graph.nodes(index, Node.POINT, Node.WAITED)
        calls = calls[np.isin(graph.event[calls], own.calls)]
        last = np.maximum.accumulate(np.where(launches[calls], np.arange(len(calls)), -1))
        step_of[calls] = lookup(step_of[calls], last, -1)
    transfer = (graph.edge == Edge.TRANSFER) & (graph.kind[graph.src] == Node.MEET)
    step_of[graph.src[transfer]] = step_of[graph.dst[transfer]]
    return ServingSteps(steps, step_of)
