"""A whole step: its layers, pipeline stages, bubble, launches, gradient reduction and optimizer.

A layer's forward and backward are computation and exposed communication, from the ops of `planner.block`; a
step is the slowest pipeline stage, what it waits for, and the host that launches kernels.

How much of its all-to-alls 1F1B hides is as in `planner.pipeline.schedules.overlapped`: lone forwards first,
then pairs of a forward and the backward of an earlier micro-batch, then lone backwards.

Launches are those of the reference workload's eager ops, per layer and micro-batch, as in its sample traces
on H200 (`sample_traces/one_gpu`, `sample_traces/ladder/ep4`); a GEMM may add a memset or a split reduction.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.devices import Device, launch_cost
from tracelens.dtypes import known_dtype
from tracelens.errors import TracelensError
from tracelens.planner.block import (
    CHUNKS,
    Op,
    RoutedCounts,
    embedding_section,
    head_section,
    layer_ops,
    recomputed,
)
from tracelens.planner.collectives import expected_maximum
from tracelens.planner.config import DEVICE_COUNTS, STATIC, Config, Layout, Model, Toggles, Training
from tracelens.planner.expected import (
    FLOAT32,
    REPLICA_GROUPS,
    RankRouting,
    RankShare,
    StepMessage,
    balanced,
    flops,
    group_ranks,
    is_routed,
    layer_messages,
    parameters,
    step_messages,
)
from tracelens.planner.step_time.machine import KernelRates, Machine
from tracelens.planner.step_time.network import Network

PARTS = (
    "forward", "backward", "recompute", "experts_exchange", "context_exchange", "tensor_exchange",
    "stage_exchange", "waiting", "bubble", "launch", "gradients", "optimizer",
)  # fmt: skip
"""Parts of a step's time, see `Estimate`."""

OPTIMIZER_RATE = 0.75
"""Of the bandwidth of elementwise kernels, in two recorded runs on an H200 with torch 2.11: 0.74 and 0.72 for
the whole update, 0.79 for fused AdamW (tests/conformance/truth/before, medium and loop_large, 2026-11-22)."""

GROUPS = {"ep": "experts", "cp": "context", "cp_tp": "context", "tp": "tensor"}
"""Process group of a layer's messages to the kind of communication."""

WAITING = "waiting"
"""Kind of communication: waiting for the slowest rank of the expert group."""


@dataclass(frozen=True)
class Estimate:
    """A step time: a projection by default, a lower bound with `ROOFLINE`."""

    # name of PARTS to ns, on the slowest stage: computation of forward, backward and recomputation; exposed
    # communication of expert, context and tensor parallelism and with the neighboring stages; waiting for the
    # slowest rank of the expert group; the pipeline's bubble; the GPU waiting for launches; gradient
    # reduction and parameter all-gather; the optimizer
    parts: Mapping[str, float]
    stage: int  # the slowest one
    tokens: int  # per step on all ranks
    ranks: int  # of the run
    # model FLOPs utilization: three times the forward's GEMM FLOPs without recomputation, over the data-sheet
    # peak (Chowdhery et al. 2022, arXiv:2204.02311, appendix B; half of the scores for causal attention)
    mfu: float

    @property
    def step_ns(self) -> int:
        return round(sum(self.parts.values()))

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second and rank."""
        return self.tokens / self.ranks / self.step_ns * 1e9


def estimate(config: Config, device: Device, machine: Machine | None = None) -> Estimate:
    """Project the step time.

    Two assumptions of `Machine` make it a projection: kernels run at the rates of their sizes, and a host
    launches them. With `ROOFLINE` it is a lower bound: one rate for all GEMMs, and a host that keeps up.

    Stage s takes t_s per micro-batch, forward and backward of all its chunks. The slowest stage takes m t_s
    for m micro-batches; before and after that it waits for one chunk of each other stage:

        m max(t_s) + (sum(t_s) - max(t_s)) / vpp

    With equal stages that is the bubble of (interleaved) 1F1B (Narayanan et al. 2021, arXiv:2104.04473,
    section 2.2). Where 1F1B hides all-to-alls, the chunks of that wait still run alone, with theirs exposed.

    A step takes at least as long as the host of the slowest stage needs to launch its kernels. Where the host
    reads sizes in each MoE layer, it cannot run ahead through a forward, which takes at least as long as its
    launches.

    Raises:
        TracelensError: the device has no rate for the activation type, or for its links.
    """
    return timed_step(Timer(config, device, machine or Machine()))


def timed_step(timer: Timer) -> Estimate:
    """The step of `estimate`, where its layers are timed already."""
    config, layout, training = timer.config, timer.config.layout, timer.config.training
    of_layer = [timer.kind(layer) for layer in range(config.model.layers)]
    chunks, kinds = layout.chunks(config.model.layers), []
    for stage in range(layout.pp):
        kinds_of_stage = (of_layer[chunk.start : chunk.stop] for chunk in chunks[stage :: layout.pp])
        counts = Counter(chain.from_iterable(kinds_of_stage))
        kinds.append(_StageKind(frozenset(counts.items()), stage == 0, stage == layout.pp - 1))
    # Times of a stage of each kind in one micro-batch, by part.
    passes: dict[_StageKind, dict[str, float]] = {}
    for kind in set(kinds):
        passes[kind] = stage_parts = dict.fromkeys(PARTS, 0.0)
        layer_passes = [(timer.of_kind(layer_kind), times) for layer_kind, times in kind.layers]
        if kind.is_first:
            layer_passes.append((timer.embedding, 1))
        if kind.is_last:
            layer_passes.append((timer.head, 1))
        for layer_pass, times in layer_passes:
            stage_parts["forward"] += times * layer_pass.forward
            stage_parts["backward"] += times * layer_pass.backward
            stage_parts["recompute"] += times * layer_pass.recomputed
            for comm in (layer_pass.forward_comm, layer_pass.backward_comm):
                for name, ns in comm.items():
                    stage_parts[name if name == WAITING else f"{name}_exchange"] += times * ns
        if layout.pp > 1 and not timer.machine.hide_p2p:
            # Every chunk but the first receives activations, every chunk but the last gradients.
            edges = 2 * layout.vpp - kind.is_first - kind.is_last
            stage_parts["stage_exchange"] = edges * timer.stage_message()
    totals = {kind: sum(parts.values()) for kind, parts in passes.items()}
    slowest = max(kinds, key=totals.__getitem__)
    batches = training.micro_batches
    parts = {name: batches * ns for name, ns in passes[slowest].items()}
    # In the bubble, chunks run alone: what 1F1B hides in a micro-batch is exposed.
    alone = {
        kind: totals[kind] + sum(times * timer.of_kind(layer).hidden for layer, times in kind.layers)
        for kind in passes
    }
    waited = sum(map(alone.__getitem__, kinds)) - alone[slowest]
    parts["bubble"] = waited / layout.vpp
    parts |= _update_parts(timer, [kinds.index(kind) for kind in passes])
    # The GPU of the slowest stage waits for launches.
    host = LaunchTime(config, timer.device, timer.machine)
    launches, again = ends_launches(config, slowest.is_first, slowest.is_last), Launches()
    for layer_kind, times in slowest.layers:
        layer = layer_launches(config, layer_kind.is_moe).times(times)
        launches += layer
        again += layer if layer_kind.is_recomputed else Launches()
    has_moe = any(layer_kind.is_moe for layer_kind, _ in slowest.layers)
    forward_wait = max(0.0, host.forward(launches) - timer.forward_ns(slowest.layers))
    waits = batches * forward_wait if has_moe and host.has_syncs else 0.0
    host_ns = batches * (host.both(launches) + host.forward(again)) + host.once
    parts["launch"] = max(waits, host_ns - sum(parts.values()))
    peak = timer.device.peak("matrix", known_dtype(training.dtype))
    if peak is None:
        raise TracelensError(f"{timer.device.name} has no peak for {training.dtype}")
    work = 3 * _forward_flops(config.model, training) * batches * layout.dp
    mfu = work / (layout.ranks * peak * sum(parts.values()) / 1e9)
    return Estimate(parts, kinds.index(slowest), config.global_tokens, layout.ranks, mfu)


@lru_cache(maxsize=64)
def _forward_flops(model: Model, training: Training) -> int:
    """FLOPs of the forward of a micro-batch of the whole model."""
    single = replace(training, micro_batches=1, routing="balanced")
    return sum(work.forward for work in flops(Config(model, training=single), 0).values())


class _StageKind(NamedTuple):
    """A kind of pipeline stage: layer kinds with their count, embedding, head."""

    layers: frozenset[tuple[LayerKind, int]]
    is_first: bool
    is_last: bool


def _update_parts(timer: Timer, stages: Sequence[int]) -> dict[str, float]:
    """Gradient reduction and optimizer on the stage where they take longest, of one of each kind."""
    config, training = timer.config, timer.config.training
    # Context-parallel ranks hold the same parameters, and reduce gradients like data-parallel ranks.
    layout = replace(config.layout, cp=1)
    reduced = Training(
        seq=layout.tp, micro_batches=layout.pp, dtype=training.dtype, main_params=training.main_params
    )
    toggles = Toggles(grad_reduce=config.toggles.grad_reduce)
    # Run op by op, gradients are cast to float32 (2 + 4 bytes), parameters back (4 + 2), and gradients
    # cleared (2); kernels over many tensors reach OPTIMIZER_RATE of the bandwidth.
    more = (
        (1 + 14 * training.main_params / _update_bytes(training)) / OPTIMIZER_RATE if timer.is_eager else 1.0
    )
    longest = {"gradients": 0.0, "optimizer": 0.0}
    for stage in stages:
        messages, moved = _update(config.model, layout, toggles, reduced, stage)
        update = {
            "gradients": 0.0 if timer.machine.hide_gradients else sum(map(timer.message, messages)),
            "optimizer": timer.rates.moved(moved * more),
        }
        longest = max(longest, update, key=lambda candidate: sum(candidate.values()))
    return longest


@lru_cache(maxsize=1024)
def _update(
    model: Model, layout: Layout, toggles: Toggles, training: Training, stage: int
) -> tuple[list[StepMessage], int]:
    """Messages of a rank once per step, and bytes that AdamW moves for its shard of the parameters.

    AdamW reads the gradient, and reads and writes the parameter and two moments in float32; with main
    parameters it also writes the model's parameter.
    """
    config = Config(model, layout, toggles, training)
    share = RankShare(config, stage * layout.stage_ranks)
    bytes_per_element = _update_bytes(training)
    counts = parameters(config, share.rank)
    shared = (
        bytes_per_element * sum(counts.get(replicas, {}).values()) // group_ranks(layout, group)
        for replicas, group in REPLICA_GROUPS.items()
    )
    return step_messages(share), sum(shared)


def _update_bytes(training: Training) -> int:
    """Bytes that AdamW moves per parameter."""
    return (1 + training.main_params) * training.element_bytes + 6 * FLOAT32


class LayerTimes(NamedTuple):
    """Times of a micro-batch, ns."""

    forward: Int  # of each layer
    backward: Int  # of each layer
    forward_comm: Int  # exposed communication in `forward`
    backward_comm: Int  # exposed communication in `backward`
    embedding: tuple[int, int] = (0, 0)  # its forward and backward
    head: tuple[int, int] = (0, 0)  # its forward and backward, with final norm and loss


@dataclass(frozen=True)
class LayerPassTimes:
    """Times of one layer, or of embedding or head, in one micro-batch on one rank, ns."""

    forward: float  # computation
    backward: float  # computation
    recomputed: float = 0.0  # recompute of the forward
    forward_comm: Mapping[str, float] = field(
        default_factory=dict
    )  # exposed communication by kind (see GROUPS)
    backward_comm: Mapping[str, float] = field(default_factory=dict)  # the same, recompute included
    hidden: float = 0.0  # communication that 1F1B hides, mean over micro-batches

    @property
    def total(self) -> float:
        comm_ns = sum(self.forward_comm.values()) + sum(self.backward_comm.values())
        return self.forward + self.backward + self.recomputed + comm_ns


def layer_times(config: Config, device: Device, machine: Machine | None = None) -> LayerTimes:
    """Forward and backward of each layer in one micro-batch on the busiest ranks.

    Recompute counts as backward; exposed communication counts in both, and separately.

    Raises:
        TracelensError: the device has no rate for the activation type, or for its links.
    """
    timer = Timer(config, device, machine or Machine())
    layers = [timer.of_kind(timer.kind(number)) for number in range(config.model.layers)]
    forward_comm = [sum(layer_pass.forward_comm.values()) for layer_pass in layers]
    backward_comm = [sum(layer_pass.backward_comm.values()) for layer_pass in layers]
    forward = [layer_pass.forward + comm for layer_pass, comm in zip(layers, forward_comm, strict=True)]
    backward = [
        layer_pass.backward + layer_pass.recomputed + comm
        for layer_pass, comm in zip(layers, backward_comm, strict=True)
    ]
    return LayerTimes(
        forward=np.rint(np.array(forward)).astype(np.int64),
        backward=np.rint(np.array(backward)).astype(np.int64),
        forward_comm=np.rint(np.array(forward_comm)).astype(np.int64),
        backward_comm=np.rint(np.array(backward_comm)).astype(np.int64),
        embedding=(round(timer.embedding.forward), round(timer.embedding.backward)),
        head=(round(timer.head.forward), round(timer.head.backward)),
    )


class LayerKind(NamedTuple):
    """Whether a layer has experts, and whether it is recomputed."""

    is_moe: bool
    is_recomputed: bool


class Timer:
    """Times of the layers on the busiest ranks: the last of context parallelism.

    `expert_ids_TK` is a recorded routing, experts of each token, from which DeepEP's copies follow.
    """

    def __init__(
        self, config: Config, device: Device, machine: Machine, expert_ids_TK: Int | None = None
    ) -> None:
        self.config, self.device, self.machine = config, device, machine
        # One stage with all layers: the time of a layer does not depend on the pipeline partition.
        one_stage = replace(config.layout, ranks=config.layout.stage_ranks, pp=1, vpp=1, pp_layout="", node=0)
        # With contiguous shards of the sequence, the last rank's queries attend to most keys.
        rank = (config.layout.cp - 1) * config.layout.tp
        # Micro-batches are alike, and two of them can overlap.
        training = replace(config.training, micro_batches=min(2, config.training.micro_batches))
        self.share = RankShare(replace(config, layout=one_stage, training=training), rank)
        self.network = Network(config.layout, device, machine)
        self.spread = self.network.spread(config.model, expert_ids_TK)
        overlaps = machine.overlaps(config.toggles.overlap_exchange != "off")
        self.paired = paired_share(config) if overlaps else 0.0
        self.rates = KernelRates(config, device, machine)
        self.is_eager = self.rates.by_size and machine.kernels == "eager"
        self._recomputed = frozenset(config.toggles.recompute_layer_ids)
        self._known: dict[LayerKind, LayerPassTimes] = {}

    def kind(self, number: int) -> LayerKind:
        return LayerKind(self.share.is_moe(number), number in self._recomputed)

    def of_kind(self, kind: LayerKind) -> LayerPassTimes:
        """Times of each layer of this kind."""
        if kind in self._known:
            return self._known[kind]
        ops, share = self.ops(kind.is_moe), self.share
        number = next(layer for layer in range(self.config.model.layers) if self.kind(layer) == kind)
        forward, backward = self._computation(ops)
        recompute_ns, _ = self._computation(ops[: recomputed(ops)]) if kind.is_recomputed else (0.0, 0.0)
        computation = forward, backward + recompute_ns
        routed = self.routed if kind.is_moe and is_routed(share) else None
        # Communication of forward and backward, with recompute, by kind (see GROUPS).
        forward_comm: dict[str, float] = defaultdict(float)
        backward_comm: dict[str, float] = defaultdict(float)
        for message in layer_messages(share, number, 0, routed):
            comm = forward_comm if message.phase == "forward" else backward_comm
            is_dispatch = message.scope.removesuffix(".B").partition(".")[2] == "dispatch"
            group, message_ns = message.exchange.group, self.message(message)
            if group == "tp" and self.config.toggles.tp_overlap != "off":
                # Chunked, or copied during the GEMM: only the first chunk is exposed.
                message_ns /= CHUNKS
            comm["dispatch" if is_dispatch else GROUPS[group]] += message_ns
        exposed = forward_comm, backward_comm
        # The shared expert can hide part of the dispatch.
        shared = [op for op in ops if op.scope == "shared"]
        hidden = self._computation(shared) if self.config.toggles.overlap_shared else (0.0, 0.0)
        for comm, shared_ns in zip(exposed, hidden, strict=True):
            dispatch = comm.pop("dispatch", 0.0)
            if dispatch:
                comm["experts"] += max(0.0, dispatch - shared_ns)
        exchange = forward_comm.get("experts", 0.0), backward_comm.get("experts", 0.0)
        overlapped = self.paired * hidden_ns(computation, exchange)
        exposed_share = 1 - overlapped / max(sum(exchange), 1.0)
        ranks = self.config.layout.experts_over
        for comm, computation_ns in zip(exposed, computation, strict=True):
            if "experts" in comm:
                comm["experts"] *= exposed_share
            if kind.is_moe:
                # Expected wait for the slowest rank of the expert group after this much computation: arrivals
                # are taken as independent and normal, with `jitter` as the coefficient of variation.
                waits = ranks > 1
                comm[WAITING] = (
                    self.machine.jitter * expected_maximum(ranks) * computation_ns if waits else 0.0
                )
        self._known[kind] = LayerPassTimes(
            forward=forward,
            backward=backward,
            recomputed=recompute_ns,
            forward_comm=forward_comm,
            backward_comm=backward_comm,
            hidden=overlapped,
        )
        return self._known[kind]

    def forward_ns(self, layers: Iterable[tuple[LayerKind, int]]) -> float:
        """GPU time of the forward of layers, with exposed communication."""
        passes = ((self.of_kind(kind), times) for kind, times in layers)
        return sum(times * (item.forward + sum(item.forward_comm.values())) for item, times in passes)

    @cached_property
    def embedding(self) -> LayerPassTimes:
        forward, backward = self._computation(embedding_section(self.share.sizes).ops)
        return LayerPassTimes(forward=forward, backward=backward)

    @cached_property
    def head(self) -> LayerPassTimes:
        """Final norm, head and loss."""
        forward, backward = self._computation(head_section(self.share.sizes).ops)
        return LayerPassTimes(forward=forward, backward=backward)

    def stage_message(self) -> float:
        """Time of activations or gradients between neighboring stages."""
        size = self.share.tokens * self.share.row
        return self.network.nanoseconds("send", "pp", self.config.layout.pp, size, 0)

    @cached_property
    def routed(self) -> RankRouting:
        """Balanced routing of a micro-batch."""
        return balanced(self.share.config, self.share.rank).at(self.config.model.layers - 1, 0)

    def ops(self, is_moe: bool) -> Sequence[Op]:
        """The ops of a layer in execution order, on the rank with most rows."""
        if not is_moe:
            return layer_ops(self.share.sizes, is_moe)
        rows, sent, received = self.routed.counts
        if self.config.toggles.dispatch == "deepep":
            sent = received = round(self.share.tokens * self.spread.ranks)
        factor = self.machine.imbalance
        fullest = RoutedCounts(round(rows * factor), sent, round(received * factor))
        return layer_ops(self.share.routed(fullest), is_moe)

    def _computation(self, ops: Sequence[Op]) -> tuple[float, float]:
        """GPU time of the forward and the backward of ops."""
        kernels = [kernel for op in ops for kernel in op.kernels if self.is_eager or kernel.kind != "eager"]
        forward = sum(self.rates.nanoseconds(kernel.forward) for kernel in kernels)
        return forward, sum(self.rates.nanoseconds(kernel.backward) for kernel in kernels)

    def message(self, message: StepMessage) -> float:
        """Time of a message, exposed or not."""
        exchange = message.exchange
        # The others wait for the fullest rank, which receives most.
        factor = self.machine.imbalance if exchange.group == "ep" else 1.0
        if exchange.collective == "deepep":
            tokens = self.share.tokens * factor
            return self.network.deepep_nanoseconds(tokens, self.share.row, self.spread, message.ranks)
        sent, received = round(exchange.sent * factor), round(exchange.received * factor)
        return self.network.nanoseconds(
            exchange.collective, exchange.group, message.ranks, sent, received, skew=factor
        )


def paired_share(config: Config) -> float:
    """Passes of a step that run as overlapped pairs of a forward and a backward / all passes.

    The last stage sets the pace. Of m micro-batches in v chunks on p stages, (v - 1) p + 1 forwards go ahead
    of its first pair, so that few micro-batches leave few pairs; without a pipeline m - 1 pairs.
    """
    layout = config.layout
    passes = config.training.micro_batches * layout.vpp
    alone = (layout.vpp - 1) * layout.pp + 1
    return max(0, passes - alone) / passes


def hidden_ns(computation: tuple[float, float], exchange: tuple[float, float]) -> float:
    """Time by which a pair of a forward and a backward is shorter than the two after each other.

    Computation runs one at a time, and so do all-to-alls; within a pass they follow each other.

    Args:
        computation: of the forward and of the backward, ns.
        exchange: their all-to-alls, ns.
    """
    passes = [sum(pair) for pair in zip(computation, exchange, strict=True)]
    return sum(passes) - max(sum(computation), sum(exchange), *passes)


class Launches(NamedTuple):
    """Launches of the forward, and of the backward with the accumulation of gradients."""

    forward: int = 0
    backward: int = 0

    def __add__(self, other: tuple[int, ...]) -> Launches:  # type: ignore[override]  # sums, not a longer tuple
        return Launches(self.forward + other[0], self.backward + other[1])

    def times(self, count: int) -> Launches:
        return Launches(self.forward * count, self.backward * count)


LATENT_ATTENTION, GROUPED_QUERY_ATTENTION = Launches(18, 43), Launches(15, 38)

QUERY_LATENT = Launches(2, 6)
"""Norm and GEMM more."""

DENSE_MLP, SHARED_EXPERT = Launches(8, 21), Launches(5, 13)

ROUTER, AUXILIARY_LOSS, FUSED_ROUTER = Launches(6, 11), Launches(13, 10), Launches(-4, -3)

PERMUTE, PERMUTE_LOCAL_LOOP, FUSED_PERMUTE = Launches(39, 12), Launches(21, 9), Launches(-7, -8)

DEVICE_COUNTED, STATIC_BUFFERS = Launches(36, 0), Launches(14, 0)
"""More in the permutation where the device keeps the counts, and where buffers are for the worst case."""

ALL_TO_ALL, DEDUPLICATED, STATIC_MESSAGES = Launches(13, 2), Launches(41, 9), Launches(19, 2)

EXPERT, EXPERT_LOOP, GROUPED_EXPERTS = Launches(5, 8), Launches(1, 5), Launches(8, 14)

MOE_OUTPUT = Launches(1, 1)

TENSOR_MESSAGES, CONTEXT_MESSAGES = Launches(4, 4), Launches(3, 3)
"""Collectives of an attention or MLP block, with the copies around them."""

EMBEDDING, HEAD, LOSS, FUSED_LOSS = Launches(1, 2), Launches(3, 7), Launches(4, 5), Launches(3, 2)
MICRO_BATCH = Launches(9, 6)

STEP = 41
"""Data, gradient reduction, optimizer and log of a step."""


def layer_launches(config: Config, is_moe: bool) -> Launches:
    """Of a layer in one micro-batch."""
    model, layout = config.model, config.layout
    if model.attention == "gqa":
        count = GROUPED_QUERY_ATTENTION
    else:
        count = LATENT_ATTENTION + (QUERY_LATENT if model.q_lora else Launches())
    count += TENSOR_MESSAGES.times(2) if layout.tp > 1 else Launches()
    count += CONTEXT_MESSAGES if layout.cp > 1 else Launches()
    if not is_moe:
        return count + DENSE_MLP
    toggles = config.toggles
    is_exchanged, is_loop = layout.experts_over > 1, toggles.experts != "grouped"
    count += MOE_OUTPUT + ROUTER
    count += AUXILIARY_LOSS if model.aux_loss else Launches()
    count += FUSED_ROUTER if toggles.router == "fused" else Launches()
    count += PERMUTE_LOCAL_LOOP if is_loop and not is_exchanged else PERMUTE
    count += FUSED_PERMUTE if toggles.permute == "fused" else Launches()
    count += DEVICE_COUNTED if toggles.sync_free >= DEVICE_COUNTS else Launches()
    count += STATIC_BUFFERS if toggles.sync_free >= STATIC else Launches()
    if is_exchanged:
        count += DEDUPLICATED if toggles.dispatch == "dedup" else ALL_TO_ALL
        count += STATIC_MESSAGES if toggles.sync_free >= STATIC else Launches()
    experts = model.experts_count // layout.experts_over
    count += EXPERT_LOOP + EXPERT.times(experts) if is_loop else GROUPED_EXPERTS
    return count + (SHARED_EXPERT if model.shared_ffn else Launches())


def ends_launches(config: Config, is_first: bool, is_last: bool) -> Launches:
    """Of a stage's micro-batch outside its layers."""
    count = MICRO_BATCH
    count += EMBEDDING if is_first else Launches()
    loss = FUSED_LOSS if config.toggles.loss == "fused" else LOSS
    return count + (HEAD + loss if is_last else Launches())


class LaunchTime:
    """The host of a rank."""

    def __init__(self, config: Config, device: Device, machine: Machine) -> None:
        cost, source = launch_cost(device)
        self.source = "as assumed" if machine.host_ns else source
        self.forward_ns = machine.host_ns or cost.forward_ns
        self.backward_ns = machine.host_ns or cost.backward_ns
        # One launch for all kernels of a graph.
        self.is_free = machine.launches == "none" or config.toggles.graph != "off"
        self.has_syncs = config.toggles.sync_free < STATIC

    def forward(self, launches: Launches) -> float:
        """Host time of a forward, ns."""
        return 0.0 if self.is_free else launches.forward * self.forward_ns

    def both(self, launches: Launches) -> float:
        """Host time of a forward and its backward, ns."""
        return 0.0 if self.is_free else self.forward(launches) + launches.backward * self.backward_ns

    @property
    def once(self) -> float:
        """Host time of what is done once a step, ns."""
        return 0.0 if self.is_free else STEP * self.forward_ns
