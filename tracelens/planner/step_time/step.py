"""A whole step: pipeline stages, bubble, gradient reduction and optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from tracelens.arrays import Int
from tracelens.devices import Device
from tracelens.dtypes import known_dtype
from tracelens.errors import TracelensError
from tracelens.planner.config import Config, Layout, Model, Toggles, Training
from tracelens.planner.expected import (
    FLOAT32,
    REPLICA_GROUPS,
    Message,
    Share,
    flops,
    group_ranks,
    parameters,
    step_messages,
)
from tracelens.planner.step_time.layers import WAITING, LayerKind, Timer
from tracelens.planner.step_time.machine import Machine

PARTS = (
    "forward", "backward", "recompute", "experts_exchange", "context_exchange", "tensor_exchange",
    "stage_exchange", "waiting", "bubble", "gradients", "optimizer",
)  # fmt: skip
"""Parts of a step's time, see `Estimate`."""


@dataclass(frozen=True)
class Estimate:
    """Lower bound of the step time.

    Attributes:
        parts: name of PARTS to ns, on the slowest stage: computation of forward, backward and recomputation;
            exposed communication of expert, context and tensor parallelism and with the neighboring stages;
            waiting for the slowest rank of the expert group; the pipeline's bubble; gradient reduction and
            parameter all-gather; the optimizer.
        stage: the slowest one.
        tokens: per step on all ranks.
        ranks: of the run.
        mfu: model FLOPs utilization: three times the forward's GEMM FLOPs without recomputation, over the
            data-sheet peak (Chowdhery et al. 2022, arXiv:2204.02311, appendix B; half of the scores for
            causal attention).
    """

    parts: Mapping[str, float]
    stage: int
    tokens: int
    ranks: int
    mfu: float

    @property
    def step_ns(self) -> int:
        return round(sum(self.parts.values()))

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second and rank."""
        return self.tokens / self.ranks / self.step_ns * 1e9


def estimate(
    config: Config, device: Device, machine: Machine | None = None, expert_ids_TK: Int | None = None
) -> Estimate:
    """Lower bound of the step time; see `Timer` for `expert_ids_TK`.

    Stage s takes t_s per micro-batch, forward and backward of all its chunks. The slowest stage takes m t_s
    for m micro-batches; before and after that it waits for one chunk of each other stage:

        m max(t_s) + (sum(t_s) - max(t_s)) / vpp

    With equal stages that is the bubble of (interleaved) 1F1B (Narayanan et al. 2021, arXiv:2104.04473,
    section 2.2). Where 1F1B hides all-to-alls, the chunks of that wait still run alone, with theirs exposed.

    Raises:
        TracelensError: the device has no rate for the activation type, or for its links.
    """
    timer = Timer(config, device, machine or Machine(), expert_ids_TK)
    kinds = _kinds(timer)
    passes = {kind: _stage(timer, kind) for kind in set(kinds)}
    totals = {kind: sum(parts.values()) for kind, parts in passes.items()}
    slowest = max(kinds, key=totals.__getitem__)
    batches = config.training.micro_batches
    parts = {name: batches * ns for name, ns in passes[slowest].items()}
    alone = {kind: totals[kind] + _hidden(timer, kind) for kind in passes}
    waited = sum(map(alone.__getitem__, kinds)) - alone[slowest]
    parts["bubble"] = waited / config.layout.vpp
    parts |= _once(timer, {kind: kinds.index(kind) for kind in passes})
    peak = device.peak("matrix", known_dtype(config.training.dtype))
    if peak is None:
        raise TracelensError(f"{device.name} has no peak for {config.training.dtype}")
    work = 3 * _forward_flops(config.model, config.training) * batches * config.layout.dp
    mfu = work / (config.layout.ranks * peak * sum(parts.values()) / 1e9)
    return Estimate(parts, kinds.index(slowest), config.global_tokens, config.layout.ranks, mfu)


class _Kind(NamedTuple):
    """A kind of pipeline stage: layer kinds with their count, embedding, head."""

    layers: frozenset[tuple[LayerKind, int]]
    is_first: bool
    is_last: bool


def _kinds(timer: Timer) -> list[_Kind]:
    layout, model = timer.config.layout, timer.config.model
    of_layer = [timer.kind(layer) for layer in range(model.layers)]
    chunks, kinds = layout.chunks(model.layers), []
    for stage in range(layout.pp):
        kinds_of_stage = (of_layer[chunk.start : chunk.stop] for chunk in chunks[stage :: layout.pp])
        counts = Counter(chain.from_iterable(kinds_of_stage))
        kinds.append(_Kind(frozenset(counts.items()), stage == 0, stage == layout.pp - 1))
    return kinds


def _stage(timer: Timer, kind: _Kind) -> dict[str, float]:
    """Times of a stage of this kind in one micro-batch, by part."""
    layout, parts = timer.config.layout, dict.fromkeys(PARTS, 0.0)
    passes = [(timer.of_kind(layer_kind), times) for layer_kind, times in kind.layers]
    if kind.is_first:
        passes.append((timer.embedding, 1))
    if kind.is_last:
        passes.append((timer.head, 1))
    for layer_pass, times in passes:
        parts["forward"] += times * layer_pass.forward
        parts["backward"] += times * layer_pass.backward
        parts["recompute"] += times * layer_pass.recomputed
        for comm in (layer_pass.forward_comm, layer_pass.backward_comm):
            for name, ns in comm.items():
                parts[name if name == WAITING else f"{name}_exchange"] += times * ns
    if layout.pp > 1 and not timer.machine.hide_p2p:
        # Every chunk but the first receives activations, every chunk but the last gradients.
        edges = 2 * layout.vpp - kind.is_first - kind.is_last
        parts["stage_exchange"] = edges * timer.stage_message()
    return parts


def _hidden(timer: Timer, kind: _Kind) -> float:
    """Communication of a stage that 1F1B hides in one micro-batch, mean over micro-batches."""
    return sum(times * timer.of_kind(layer_kind).hidden for layer_kind, times in kind.layers)


def _once(timer: Timer, stages: Mapping[_Kind, int]) -> dict[str, float]:
    """Gradient reduction and optimizer on the stage where they take longest, of one of each kind."""
    longest = {"gradients": 0.0, "optimizer": 0.0}
    for stage in stages.values():
        messages, moved = _update(*_update_key(timer.config), stage)
        update = {
            "gradients": 0.0 if timer.machine.hide_gradients else sum(map(timer.message, messages)),
            "optimizer": moved / timer.memory * 1e9,
        }
        longest = max(longest, update, key=lambda candidate: sum(candidate.values()))
    return longest


def _update_key(config: Config) -> tuple[Model, Layout, Toggles, Training]:
    """What the parameter update depends on, as a cache key.

    Context-parallel ranks hold the same parameters, and reduce gradients like data-parallel ranks.
    """
    layout, training = replace(config.layout, cp=1), config.training
    reduced = Training(
        seq=layout.tp, micro_batches=layout.pp, dtype=training.dtype, main_params=training.main_params
    )
    return config.model, layout, Toggles(grad_reduce=config.toggles.grad_reduce), reduced


@lru_cache(maxsize=1024)
def _update(
    model: Model, layout: Layout, toggles: Toggles, training: Training, stage: int
) -> tuple[list[Message], int]:
    """Messages of a rank once per step, and bytes that AdamW moves for its shard of the parameters.

    AdamW reads the gradient, and reads and writes the parameter and two moments in float32; with main
    parameters it also writes the model's parameter.
    """
    config = Config(model, layout, toggles, training)
    share = Share(config, stage * layout.stage_ranks)
    bytes_per_element = (1 + training.main_params) * training.element_bytes + 6 * FLOAT32
    counts = parameters(config, share.rank)
    shared = (
        bytes_per_element * sum(counts.get(replicas, {}).values()) // group_ranks(layout, group)
        for replicas, group in REPLICA_GROUPS.items()
    )
    return step_messages(share), sum(shared)


@lru_cache(maxsize=64)
def _forward_flops(model: Model, training: Training) -> int:
    """FLOPs of the forward of a micro-batch of the whole model."""
    single = replace(training, micro_batches=1, routing="balanced")
    return sum(work.forward for work in flops(Config(model, training=single), 0).values())
