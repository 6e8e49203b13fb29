"""Idle stages of a pipeline: the ramp, slower stages, messages; more chunks on each stage, or equal work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.comm import SEND_RECV
from tracelens.analysis.pipeline import Passes, lane_of, numbered, passes, pipelines, stage_messages
from tracelens.arrays import Int, isin, lookup, unique
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.findings import Confidence, Detection, Detections, Quantity, Remedy, detector
from tracelens.table import Result
from tracelens.trace import Trace, union
from tracelens.units import duration, plural
from tracelens.what_if import NotApplicable, ScenarioContext, scenario
from tracelens.what_if.graph import Edge, Edit, Node, RunGraph, of_calls, scale_pace

SLOW_HOST = 1.1
"""Host time of equal ops against the other ranks' from which a stage's host counts as slow."""

EVEN_STAGES = 1.005
"""Slowest stage / mean of its pipeline up to which all have equal work: a smaller gain is not
worth a projection."""

_MOST_CHUNKS = 64
_MEASURES = {
    "bubble": "idle time of the stage within the phase",
    "bubble of the pipeline's phase": "bubble / duration of the phase",
    "stages": "PP",
    "micro-batches": "per step",
    "chunks per stage": "VPP, model chunks of a stage",
}
_THRESHOLD = "any of this idle time in a pipeline of two stages or more"


@detector(
    "pipeline_ramp",
    evidence="pipeline",
    scenario="vpp",
    title="Pipeline ramp: stages idle while it fills and drains",
    fix="more chunks per stage",
    needs=("pipeline",),
    measures={
        "ramp": "idle time while the pipeline fills and drains",
        **_MEASURES,
    },
    threshold=_THRESHOLD,
    limits="Assumes that twice as many chunks halve the ramp.",
    remedy="More model chunks per rank (interleaved 1F1B), more micro-batches per step, fewer stages, or a "
    "zero-bubble schedule. The bubble is (PP - 1) / (PP - 1 + GA x VPP): twice the chunks halve the ramp "
    "and double the messages; layers must divide by PP x VPP.",
    remedies=(
        Remedy(
            "{megatron}: --num-layers-per-virtual-pipeline-stage or --num-virtual-stages-per-pipeline-rank.",
            framework=("megatron", "primus"),
            best=True,
        ),
        Remedy(
            "torchtitan: parallelism.pipeline_parallel_schedule Interleaved1F1B.", framework=("torchtitan",)
        ),
        Remedy("The bundled workload: --vpp, --micro-batches.", framework=("workload",)),
        Remedy("torch.distributed.pipelining: ScheduleInterleaved1F1B.", plain=True),
    ),
)
def pipeline_ramp(results: Mapping[str, Result]) -> Detections:
    """Stages idle before all have started their backward passes, or after one runs out of forward passes."""
    ranks = _ranks(results, "ramp")
    if isinstance(ranks, str):
        return ranks
    detections = {}
    for rank in ranks:
        bubble = _Rank(results, rank)
        ramp, beside = bubble.mean("ramp_ns"), bubble.mean("overlapped_ns")
        stages, work = bubble.first("stages"), bubble.first("micro_batches") * bubble.first("chunks")
        # By the formula a ramp lasts (PP - 1)(f + b) / VPP, so with 2 VPP half of it is left. What runs
        # beside the bubble, mostly gradient sync, needs its time in any schedule: it is all taken for part
        # of the ramp, and never counted as won.
        saving = max(ramp - beside, 0.0) / 2
        chunks = bubble.first("chunks")
        now, then = ((stages - 1) / (stages - 1 + times * work) for times in (1, 2))
        evidence = (
            f"{duration(ramp)} ramp per step on stage {bubble.first('stage')} of {stages}, "
            f"{bubble.first('micro_batches')} micro-batches, {plural(chunks, 'chunk')} per rank; "
            f"{duration(beside)} of the bubble is overlapped by other GPU work; bubble "
            f"{bubble.mean('bubble_fraction'):.1%} of the phase, theory {now:.1%}, with {2 * chunks} chunks "
            f"{then:.1%}"
        )
        detection = bubble.detection("ramp", saving, evidence, "medium")
        detections[rank] = detection._replace(scenario=f"vpp={2 * chunks}")
    return detections


@detector(
    "pipeline_imbalance",
    evidence="pipeline",
    scenario="balanced_stages",
    title="Pipeline stages of unequal work",
    fix="balancing the stages",
    needs=("pipeline",),
    measures={"imbalance": "idle time while the stage that it waits for computes", **_MEASURES},
    threshold=f"{_THRESHOLD}; the slowest stage has more GPU work",
    limits="Layers do not divide as freely as the saving assumes.",
    remedy="Move layers from the slowest stage to the others; embedding, loss and dense layers count. "
    "Recompute on the stages with time to spare.",
    remedies=(
        Remedy(
            "Primus: pipeline_model_parallel_layout or decoder_pipeline_manual_split_list; "
            "recompute_layer_ids.",
            framework=("primus",),
        ),
        Remedy(
            "Megatron-LM: --pipeline-model-parallel-layout, or --decoder-first-pipeline-num-layers and "
            "--decoder-last-pipeline-num-layers.",
            framework=("megatron",),
            best=True,
        ),
        Remedy("The bundled workload: --pp-layout.", framework=("workload",)),
        Remedy(
            "torch.distributed.pipelining: the layers of each PipelineStage, or split_spec of pipeline().",
            plain=True,
        ),
    ),
)
def pipeline_imbalance(results: Mapping[str, Result]) -> Detections:
    """Stages of a full pipeline wait while a stage with more GPU work computes."""
    ranks = _ranks(results, "imbalance")
    if isinstance(ranks, str):
        return ranks
    most, stages = _behind(results, ranks)
    detections = {}
    for rank, behind in stages.items():
        bubble = _Rank(results, rank)
        # Waits go to and fro where micro-batches differ, which no partition helps; a stage can gain no more
        # than the slowest one has more to do.
        evidence = (
            f"stage {bubble.first('stage')} waits {duration(behind.waits_ns)} per step for slower stages; "
            f"forward and backward take {duration(behind.pass_ns[0])} on it and "
            f"{duration(behind.pass_ns[1])} on stage {most}, with {duration(behind.gpu_ns[0])} and "
            f"{duration(behind.gpu_ns[1])} of GPU work"
        )
        if behind.more_work_ns < behind.waits_ns:
            rest = "is idle time inside the passes" if behind.more_idle_ns else "varies by micro-batch"
            more = duration(behind.more_work_ns)
            evidence += (
                f": {more} more work, which a better partition spreads over the stages; the rest {rest}"
            )
        saving = min(behind.waits_ns, behind.more_work_ns)
        detections[rank] = bubble.detection("imbalance", saving, evidence, "medium")
    if any(detection.saving_ns for detection in detections.values()):
        return detections
    longer = any(behind.more_idle_ns > 0 for behind in stages.values())
    return (
        "the slowest stage has no more GPU work than the others" if longer else "all stages have equal work"
    )


@detector(
    "pipeline_slow_host",
    evidence="pipeline",
    title="Pipeline stages wait for a stage with a slow host",
    fix="stages with equally fast hosts",
    needs=("pipeline", "stragglers"),
    measures={
        "imbalance": "idle time while the stage that it waits for computes",
        "idle inside the slowest stage's passes": "its GPU's, per step, beyond that of this stage",
        **_MEASURES,
    },
    threshold=f"{_THRESHOLD}; most of what the slowest stage takes longer its GPU is idle, and its host is "
    "not known to be as fast as the others'",
    limits="No scenario models it: one stage's host at the pace of the others.",
    remedy="Compare the host of the slow stage with the others': `tracelens analyze idle` shows what it does "
    "while its GPU idles. Bind each process to cores of its GPU's NUMA node (numactl), and look for other "
    "programs on them.",
)
def pipeline_slow_host(results: Mapping[str, Result]) -> Detections:
    """Stages of a full pipeline wait for one whose GPU idles inside its passes, and has no more work."""
    ranks = _ranks(results, "imbalance")
    if isinstance(ranks, str):
        return ranks
    most, stages = _behind(results, ranks)
    slower = _host_ratio(results, most)
    if slower and slower.ratio < SLOW_HOST:
        # The host of the last stage is the last to launch, those of the others run ahead while GPUs wait.
        return "the slowest stage's host is as fast as the others' for equal ops"
    host = f"; its host takes {slower.text}" if slower else ""
    detections = {}
    for rank, behind in stages.items():
        saving = min(behind.waits_ns, behind.more_idle_ns)
        if saving <= 0 or behind.more_idle_ns < behind.more_work_ns:
            continue
        bubble = _Rank(results, rank)
        evidence = (
            f"stage {bubble.first('stage')} waits {duration(behind.waits_ns)} per step for stage {most}, "
            f"whose passes take {duration(behind.pass_ns[1])} ({duration(behind.pass_ns[0])} here) although "
            f"its GPU works for {duration(behind.gpu_ns[1])} of that ({duration(behind.gpu_ns[0])} here): "
            f"inside them it idles {duration(behind.more_idle_ns)} longer{host}"
        )
        detection = bubble.detection("imbalance", saving, evidence, "medium")
        more = Quantity("idle inside the slowest stage's passes", behind.more_idle_ns, "ns")
        detections[rank] = detection._replace(quantities=(*detection.quantities, more))
    return detections or "the slowest stage's GPU idles no longer inside its passes than the others'"


@detector(
    "pipeline_p2p",
    evidence="pipeline",
    title="Pipeline stages wait for messages",
    fix="stages that do not wait for messages",
    needs=("pipeline",),
    measures={"p2p wait": "time in a send or receive whose data is ready", **_MEASURES},
    threshold=_THRESHOLD,
    limits="No scenario models it.",
    remedy="Overlap sends and receives with computation; put neighboring stages on neighboring nodes.",
    remedies=(
        Remedy(
            "{megatron}: the interleaved schedule with --overlap-p2p-communication-warmup-flush, without "
            "--no-overlap-p2p-communication.",
            framework=("megatron", "primus"),
            best=True,
        ),
    ),
)
def pipeline_p2p(results: Mapping[str, Result]) -> Detections:
    """Stages of a full pipeline wait in a send or receive whose data is ready."""
    ranks = _ranks(results, "p2p_wait")
    if isinstance(ranks, str):
        return ranks
    detections = {}
    for rank in ranks:
        bubble = _Rank(results, rank)
        lost = bubble.mean("p2p_wait_ns")
        evidence = (
            f"stage {bubble.first('stage')} of {bubble.first('stages')} waits {duration(lost)} per step "
            f"in sends and receives whose data is ready, {lost / max(bubble.mean('bubble_ns'), 1):.0%} of "
            "its bubble"
        )
        detections[rank] = bubble.detection("p2p_wait", lost, evidence, "medium")
    return detections


def _ranks(results: Mapping[str, Result], part: str) -> Sequence[int] | str:
    """Ranks with idle time of this part in a pipeline of several stages, or why there are none."""
    pipeline = results["pipeline"]
    table = pipeline.data["bubble"]
    if not len(table):
        reasons = dict.fromkeys(skip.reason for skip in pipeline.skips)
        return "; ".join(reasons) or "no pipeline"
    several = table.array("stages") > 1
    if not several.any():
        return "the pipeline has one stage"
    idle = several & (table.array(f"{part}_ns") > 0)
    ranks: list[int] = unique(table.array("rank")[idle]).tolist()
    return ranks or f"no idle time due to {part.replace('_', ' ')}"


class _Rank:
    """The bubble of one rank, per step."""

    def __init__(self, results: Mapping[str, Result], rank: int) -> None:
        self._bubble, self._waits = (
            table.take(table.array("rank") == rank)
            for table in (results["pipeline"].data[name] for name in ("bubble", "waits"))
        )

    def mean(self, column: str) -> float:
        return float(self._bubble.array(column).mean())

    def first(self, column: str) -> int:
        """What is the same in all steps."""
        return int(self._bubble.array(column)[0])

    def detection(self, part: str, saving_ns: float, evidence: str, confidence: Confidence) -> Detection:
        """A detection with what is common to the detectors here: when the rank idles, by its own clock."""
        waits = self._waits.take(self._waits.coded("part").equals(part))
        start = waits.array("local_ts_ns")
        quantities = (
            Quantity(part.replace("_", " "), self.mean(f"{part}_ns"), "ns"),
            Quantity("bubble", self.mean("bubble_ns"), "ns"),
            Quantity("bubble of the pipeline's phase", self.mean("bubble_fraction"), "fraction"),
            Quantity("stages", float(self.first("stages")), "count"),
            Quantity("micro-batches", float(self.first("micro_batches")), "count"),
            Quantity("chunks per stage", float(self.first("chunks")), "count"),
        )
        where = union(start, start + waits.array("dur_ns"))
        return Detection(quantities, max(saving_ns, 0.0), where, evidence, confidence)


class _Slowest(Struct, frozen=True):
    """A stage against the slowest one, means of a step."""

    waits_ns: float  # for slower stages
    pass_ns: tuple[float, float]  # forward and backward passes, here and on the slowest stage
    gpu_ns: tuple[float, float]  # with GPU work running, in these

    @property
    def more_work_ns(self) -> float:
        """How much more the slowest stage computes; its passes are at least that much longer."""
        return min(max(self.gpu_ns[1] - self.gpu_ns[0], 0.0), self.pass_ns[1] - self.pass_ns[0])

    @property
    def more_idle_ns(self) -> float:
        """How much longer its GPU idles inside its passes."""
        return self.pass_ns[1] - self.pass_ns[0] - self.more_work_ns


def _behind(results: Mapping[str, Result], ranks: Sequence[int]) -> tuple[int, Mapping[int, _Slowest]]:
    """The slowest stage, and how each of these ranks stands against it."""
    table, spans = (results["pipeline"].data[name] for name in ("bubble", "spans"))
    total, stages = table.array("forward_ns") + table.array("backward_ns"), table.array("stage")
    of_span = spans.array("stage")
    passes, gpu = {}, {}
    for stage in unique(stages).tolist():
        steps = int((stages == stage).sum())
        passes[stage] = float(total[stages == stage].sum()) / steps
        gpu[stage] = float(spans.array("busy_ns")[of_span == stage].sum()) / steps
    most = max(passes, key=lambda stage: passes[stage])
    found = {}
    for rank in ranks:
        bubble = _Rank(results, rank)
        stage = bubble.first("stage")
        found[rank] = _Slowest(
            bubble.mean("imbalance_ns"), (passes[stage], passes[most]), (gpu[stage], gpu[most])
        )
    return most, found


class _HostRatio(Struct, frozen=True):
    """Host time of a stage for equal ops against the other ranks'."""

    ratio: float
    names: int  # of ops

    @property
    def text(self) -> str:
        return f"{self.ratio:.2f} times as long as the others' for equal ops ({self.names} names)"


def _host_ratio(results: Mapping[str, Result], stage: int) -> _HostRatio | None:
    """Of the slowest rank of a stage; None where no rank ran equal ops."""
    bubble, equal = results["pipeline"].data["bubble"], results["stragglers"].data.get("equal")
    if equal is None:
        return None
    rows = np.flatnonzero(
        np.isin(equal.array("rank"), bubble.array("rank")[bubble.array("stage") == stage])
        & (equal.array("host_ops") > 0)
    )
    ratios = equal.array("host_ratio")[rows]
    if not len(rows):
        return None
    row = int(np.argmax(ratios))
    return _HostRatio(float(ratios[row]), int(equal.array("host_ops")[rows[row]]))


class PipelinePasses(Struct, frozen=True):
    """The forwards and backwards of one rank of a pipeline."""

    passes: Passes  # of the rank
    rows: Int  # positions in its work of all that was launched in or behind a span
    span: Int  # of each the number of the last span launched before it
    messages: Int  # positions in its work of the kernels of its messages
    host_ns: Int  # of each the host's time, from the first op of the messages to the launch


class StagePlace(NamedTuple):
    """One rank's place in its pipeline."""

    rank: int  # index of its trace
    pipeline: int
    stage: int
    stages: int
    chunks: int

    def messages(self, chunks: int) -> int:
        """What it sends of each micro-batch with so many chunks."""
        return 2 * chunks - (self.stage in (0, self.stages - 1))


def rank_passes(trace: Trace, device: Device | None) -> PipelinePasses:
    """The forwards and backwards of a rank, and the work of each."""
    own, work = passes(trace), trace.work
    called = lookup(trace.arrays.start, work.host_call, -1)
    launched = np.array([span.launched for span in own.spans], dtype=np.int64)
    order = np.argsort(launched, kind="stable")
    position = np.searchsorted(launched[order], called, side="right") - 1
    rows = np.flatnonzero((called >= 0) & (position >= 0))
    messages, host_ns = _message_kernels(trace) if own.staged else (rows[:0], rows[:0])
    return PipelinePasses(own, rows, order[position[rows]], messages, host_ns)


def _message_kernels(trace: Trace) -> tuple[Int, Int]:
    """The kernels of a rank's messages, as positions in its work, and the host's time for each."""
    table, events, work = trace.tables["collectives"], trace.arrays, trace.work
    kernel = stage_messages(trace).kernel
    rows = np.flatnonzero(isin(table.array("kernel_id"), kernel[kernel >= 0]))
    record = table.array("event_id")[rows]
    # The op around the record is of the message, such as c10d::send.
    around = events.parent[record]
    begin = events.start[np.where(lookup(events.where("op"), around, False), around, record)]
    position = events.places(work.event)[table.array("kernel_id")[rows]]
    rows, order = unique(position), np.argsort(position, kind="stable")
    first = np.minimum.reduceat(begin[order], np.searchsorted(position[order], rows)) if len(rows) else begin
    launched = lookup(events.end, work.host_call[rows], -1)
    return rows, np.maximum(np.where(launched >= 0, launched - first, 0), 0)


@scenario("vpp", argument="=CHUNKS", usual=("2",), reads=(rank_passes,))
def vpp(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """Each stage of the pipeline holds CHUNKS chunks of the model (interleaved 1F1B).

    Assumes:
        Layers and micro-batches divide by stages x chunks. Further messages take the host as long as those
        recorded, and nothing else.
    """
    if not argument.isdigit() or not 1 < int(argument) <= _MOST_CHUNKS:
        raise TracelensError(f"scenario vpp={argument}: write a number of chunks, 2 to {_MOST_CHUNKS}")
    chunks, by_rank, places = int(argument), context.read(rank_passes), _places(context)
    known = {stage.rank: stage.chunks for stage in places}
    if min(known.values()) >= chunks:
        raise NotApplicable(f"each stage holds {min(known.values())} chunks of the model already")
    graph = context.graph
    # Host time against that recorded, as without the profiler: in a pass it is what the GPU idles.
    host_time = graph.host_time
    pace = float(edit.lag[host_time].sum()) / max(float(graph.lag[host_time].sum()), 1.0)
    added_ns = _further_messages(graph, edit, by_rank, places, chunks, pace)
    early = np.zeros(len(graph), dtype=np.int64)
    for rank, part in enumerate(by_rank):
        share = 1 - min(known.get(rank, chunks) / chunks, 1)
        span_ns = np.array(
            [span.busy_ns + pace * (span.end - span.start - span.busy_ns) for span in part.passes.spans]
        )
        sends, span = _of_spans(graph, rank, part, Node.ARRIVE)
        early[sends] = np.rint(share * span_ns[span]).astype(np.int64)
    # From the sender's side of each message between two ranks to their meeting.
    meetings, collectives = context.meetings()
    index_of = {rank.number: index for index, rank in enumerate(graph.ranks)}
    sender = np.full(len(graph), -1, dtype=np.int64)
    sender[meetings] = [
        index_of[collective.participants[0].rank] if collective.collective == SEND_RECV else -1
        for collective in collectives
    ]
    arrival = graph.edge == Edge.ARRIVAL
    sent = np.flatnonzero(arrival & (graph.rank[graph.src] == sender[graph.dst]))
    edit.lag[sent] -= early[graph.src[sent]]
    now = ", ".join(map(str, sorted(set(known.values()))))
    return (
        f"{len(sent):,} messages leave a stage when the first of {chunks} chunks instead of {now} is "
        f"done, {duration(int(early[graph.src[sent]].sum()))} earlier in total; the work of a stage "
        f"stays, further messages take the hosts {duration(added_ns)} and nothing else, layers and "
        "micro-batches divide by stages x chunks"
    )


def _further_messages(
    graph: RunGraph,
    edit: Edit,
    by_rank: Sequence[PipelinePasses],
    places: Sequence[StagePlace],
    chunks: int,
    pace: float,
) -> int:
    """Make the host launch the messages of more chunks along with those recorded; its time for them, ns."""
    host_edge = np.full(len(graph), -1, dtype=np.int64)
    host_edge[graph.dst[graph.host_time]] = graph.host_time
    added_ns = 0
    for place in places:
        further = place.messages(chunks) / place.messages(place.chunks) - 1
        part = by_rank[place.rank]
        launch = np.flatnonzero((graph.edge == Edge.LAUNCH) & (graph.rank[graph.dst] == place.rank))
        kernel = np.searchsorted(part.messages, graph.work[graph.dst[launch]])
        kernel = np.minimum(kernel, len(part.messages) - 1)
        if not len(part.messages) or further <= 0:
            continue
        of_message = part.messages[kernel] == graph.work[graph.dst[launch]]
        call, row = np.unique(graph.src[launch[of_message]], return_index=True)
        edge = host_edge[call]
        more = np.rint(further * pace * part.host_ns[kernel[of_message][row]]).astype(np.int64)
        np.add.at(edit.lag, edge[edge >= 0], more[edge >= 0])
        added_ns += int(more[edge >= 0].sum())
    return added_ns


@scenario("balanced_stages", reads=(rank_passes,))
def balanced_stages(context: ScenarioContext, edit: Edit, argument: str) -> str:
    """No stage of the pipeline has more GPU work than the mean of all.

    Assumes:
        Layers divide freely, and take their launches along; messages keep their sizes.
    """
    graph, by_rank, places = context.graph, context.read(rank_passes), _places(context)
    total_ns = {
        stage: float(sum(span.busy_ns for span in by_rank[stage.rank].passes.spans)) for stage in places
    }
    factor = np.ones(len(graph))
    most = 1.0
    for pipeline in sorted({stage.pipeline for stage in places}):
        members = [stage for stage in places if stage.pipeline == pipeline]
        mean = sum(total_ns[stage] for stage in members) / len(members)
        for stage in members:
            share = min(mean / max(total_ns[stage], 1), 1.0)
            most = max(most, 1 / max(share, 1e-9))
            part = by_rank[stage.rank]
            nodes, span = _of_spans(graph, stage.rank, part, Node.WORK)
            end = np.array([span.end for span in part.passes.spans], dtype=np.int64)
            inside = graph.end[nodes] - graph.shift[stage.rank] <= end[span]
            factor[nodes[inside]] = share
            of_calls(graph, stage.rank, factor)
    if most <= EVEN_STAGES:
        raise NotApplicable("all stages have equal work")
    scale_pace(graph, edit, factor)
    return (
        f"the passes of a stage have {most:.2f}x the mean GPU work of its pipeline, then the mean, with the "
        "host time of its launches; the other stages take over the rest while they would wait; layers "
        "divide freely, messages keep their sizes"
    )


def _of_spans(graph: RunGraph, rank: int, part: PipelinePasses, kind: Node) -> tuple[Int, Int]:
    """The nodes of a kind whose work was launched in or behind a span of a rank, and the span of each."""
    nodes = graph.nodes(rank, kind)
    work, order = np.unique(part.rows, return_index=True)
    if not len(work):
        return nodes[:0], nodes[:0]
    index = np.minimum(np.searchsorted(work, graph.work[nodes]), len(work) - 1)
    known = work[index] == graph.work[nodes]
    return nodes[known], part.span[order[index[known]]]


def _places(context: ScenarioContext) -> list[StagePlace]:
    """The ranks of all pipelines of several stages.

    Raises:
        NotApplicable: there are none.
    """
    by_rank = [part.passes for part in context.read(rank_passes)]
    index_of = {part.rank: index for index, part in enumerate(by_rank)}
    places = []
    for number, (stages, members) in enumerate(
        pipelines(by_rank, context.recorded.collectives.aligned.shift, [])
    ):
        if stages < 2 or len({stage.stage for stage in members}) < 2:
            continue
        labels = dict.fromkeys(span.step for stage in members for span in stage.part.spans)
        sizes = [
            line.size.chunks
            for label in labels
            if not isinstance(line := numbered([lane_of(stage, label) for stage in members], stages), str)
        ]
        chunks = max(sizes, default=1)
        places += [
            StagePlace(
                rank=index_of[stage.part.rank],
                pipeline=number,
                stage=stage.stage,
                stages=stages,
                chunks=chunks,
            )
            for stage in members
        ]
    if not places:
        raise NotApplicable("no pipeline of which several stages are in the run")
    return places
