"""Forward and backward time of each layer: computation and exposed communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.planner.block import (
    CHUNKS,
    Load,
    Op,
    RoutedCounts,
    embedding_section,
    head_section,
    layer_ops,
    recomputed,
)
from tracelens.planner.collectives import expected_maximum
from tracelens.planner.config import Config
from tracelens.planner.expected import Message, Routed, Share, balanced, is_routed, layer_messages
from tracelens.planner.step_time.machine import Machine
from tracelens.planner.step_time.network import Network
from tracelens.planner.step_time.overlap import hidden_ns, paired_share
from tracelens.planner.step_time.rates import KernelRates

GROUPS = {"ep": "experts", "cp": "context", "cp_tp": "context", "tp": "tensor"}
"""Process group of a layer's messages to the kind of communication."""

WAITING = "waiting"
"""Kind of communication: waiting for the slowest rank of the expert group."""


class LayerTimes(NamedTuple):
    """Times of a micro-batch, ns.

    Attributes:
        forward: of each layer.
        backward: of each layer.
        forward_comm: exposed communication in `forward`.
        backward_comm: exposed communication in `backward`.
        embedding: its forward and backward.
        head: its forward and backward, with final norm and loss.
    """

    forward: Int
    backward: Int
    forward_comm: Int
    backward_comm: Int
    embedding: tuple[int, int] = (0, 0)
    head: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Pass:
    """Times of one layer, or of embedding or head, in one micro-batch on one rank, ns.

    Attributes:
        forward: computation.
        backward: computation.
        recomputed: recompute of the forward.
        forward_comm: exposed communication by kind (see GROUPS).
        backward_comm: the same, recompute included.
        hidden: communication that 1F1B hides, mean over micro-batches.
    """

    forward: float
    backward: float
    recomputed: float = 0.0
    forward_comm: Mapping[str, float] = field(default_factory=dict)
    backward_comm: Mapping[str, float] = field(default_factory=dict)
    hidden: float = 0.0

    @property
    def total(self) -> float:
        comm_ns = sum(self.forward_comm.values()) + sum(self.backward_comm.values())
        return self.forward + self.backward + self.recomputed + comm_ns


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
        self.share = Share(replace(config, layout=one_stage, training=training), rank)
        self.network = Network(config.layout, device, machine)
        self.spread = self.network.spread(config.model, expert_ids_TK)
        overlaps = machine.overlaps(config.toggles.overlap_exchange != "off")
        self.paired = paired_share(config) if overlaps else 0.0
        self.rates = KernelRates(config, device, machine)
        self.is_eager = self.rates.by_size and machine.kernels == "eager"
        self._recomputed = frozenset(config.toggles.recompute_layer_ids)
        self._known: dict[LayerKind, Pass] = {}

    def kind(self, number: int) -> LayerKind:
        return LayerKind(self.share.is_moe(number), number in self._recomputed)

    def of_kind(self, kind: LayerKind) -> Pass:
        if kind not in self._known:
            self._known[kind] = self._make(kind)
        return self._known[kind]

    def forward_ns(self, layers: Iterable[tuple[LayerKind, int]]) -> float:
        """GPU time of the forward of layers, with exposed communication."""
        passes = ((self.of_kind(kind), times) for kind, times in layers)
        return sum(times * (item.forward + sum(item.forward_comm.values())) for item, times in passes)

    @cached_property
    def embedding(self) -> Pass:
        return Pass(*self._both(embedding_section(self.share.sizes).ops))

    @cached_property
    def head(self) -> Pass:
        """Final norm, head and loss."""
        return Pass(*self._both(head_section(self.share.sizes).ops))

    def stage_message(self) -> float:
        """Time of activations or gradients between neighboring stages."""
        size = self.share.tokens * self.share.row
        return self.network.nanoseconds("send", "pp", self.config.layout.pp, size, 0)

    @cached_property
    def routed(self) -> Routed:
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

    def nanoseconds(self, load: Load) -> float:
        """Time of a load on the GPU."""
        return self.rates.nanoseconds(load)

    def _both(self, ops: Sequence[Op]) -> tuple[float, float]:
        kernels = [kernel for op in ops for kernel in op.kernels if self.is_eager or kernel.kind != "eager"]
        forward = sum(self.nanoseconds(kernel.forward) for kernel in kernels)
        return forward, sum(self.nanoseconds(kernel.backward) for kernel in kernels)

    def _make(self, kind: LayerKind) -> Pass:
        ops, share = self.ops(kind.is_moe), self.share
        number = next(layer for layer in range(self.config.model.layers) if self.kind(layer) == kind)
        forward, backward = self._both(ops)
        recompute_ns, _ = self._both(ops[: recomputed(ops)]) if kind.is_recomputed else (0.0, 0.0)
        routed = self.routed if kind.is_moe and is_routed(share) else None
        forward_comm: dict[str, float] = defaultdict(float)
        backward_comm: dict[str, float] = defaultdict(float)
        for message in layer_messages(share, number, 0, routed):
            comm = forward_comm if message.phase == "forward" else backward_comm
            comm[self._scope(message)] += self._exposed_message(message)
        shared = [op for op in ops if op.scope == "shared"]
        hidden = self._both(shared) if self.config.toggles.overlap_shared else (0.0, 0.0)
        exposed = [self._exposed(*pair) for pair in zip((forward_comm, backward_comm), hidden, strict=True)]
        computation = forward, backward + recompute_ns
        exchange = _exchange(exposed[0]), _exchange(exposed[1])
        overlapped = self.paired * hidden_ns(computation, exchange)
        exposed_share = 1 - overlapped / max(sum(exchange), 1.0)
        for comm, computation_ns in zip(exposed, computation, strict=True):
            if "experts" in comm:
                comm["experts"] *= exposed_share
            if kind.is_moe:
                comm[WAITING] = self._waiting(computation_ns)
        return Pass(forward, backward, recompute_ns, exposed[0], exposed[1], overlapped)

    def _scope(self, message: Message) -> str:
        name = message.scope.removesuffix(".B").partition(".")[2]
        return "dispatch" if name == "dispatch" else GROUPS[message.group]

    def message(self, message: Message) -> float:
        """Time of a message, exposed or not."""
        # The others wait for the fullest rank, which receives most.
        factor = self.machine.imbalance if message.group == "ep" else 1.0
        if message.collective == "deepep":
            tokens = self.share.tokens * factor
            return self.network.deepep_nanoseconds(tokens, self.share.row, self.spread, message.ranks)
        sent, received = round(message.sent * factor), round(message.received * factor)
        return self.network.nanoseconds(message.collective, message.group, message.ranks, sent, received)

    def _exposed_message(self, message: Message) -> float:
        message_ns = self.message(message)
        # Chunked, or copied during the GEMM: only the first chunk is exposed.
        overlapped = message.group == "tp" and self.config.toggles.tp_overlap != "off"
        return message_ns / CHUNKS if overlapped else message_ns

    def _exposed(self, comm: Mapping[str, float], shared: float) -> dict[str, float]:
        """Exposed communication by kind; the shared expert hides part of the dispatch."""
        exposed = dict(comm)
        dispatch = exposed.pop("dispatch", 0.0)
        if dispatch:
            exposed["experts"] = exposed.get("experts", 0.0) + max(0.0, dispatch - shared)
        return exposed

    def _waiting(self, computation_ns: float) -> float:
        """Expected wait for the slowest rank of the expert group after this much computation.

        Arrivals are taken as independent and normal, with `jitter` as the coefficient of variation.
        """
        ranks = self.config.layout.experts_over
        return self.machine.jitter * expected_maximum(ranks) * computation_ns if ranks > 1 else 0.0


def _exchange(comm: Mapping[str, float]) -> float:
    """All-to-alls of a pass."""
    return comm.get("experts", 0.0)


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
    rounded = (
        np.rint(np.array(ns)).astype(np.int64) for ns in (forward, backward, forward_comm, backward_comm)
    )
    ends = (
        (round(layer_pass.forward), round(layer_pass.backward))
        for layer_pass in (timer.embedding, timer.head)
    )
    return LayerTimes(*rounded, *ends)
