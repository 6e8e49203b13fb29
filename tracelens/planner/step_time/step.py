"""A whole step: pipeline stages, bubble, gradient reduction and optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

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
from tracelens.planner.step_time.launches import Host, Launches, ends_launches, layer_launches
from tracelens.planner.step_time.layers import WAITING, LayerKind, Timer
from tracelens.planner.step_time.machine import Machine

PARTS = (
    "forward", "backward", "recompute", "experts_exchange", "context_exchange", "tensor_exchange",
    "stage_exchange", "waiting", "bubble", "launch", "gradients", "optimizer",
)  # fmt: skip
"""Parts of a step's time, see `Estimate`."""

OPTIMIZER_RATE = 0.75
"""Of the bandwidth of elementwise kernels, in two recorded runs on an H200 with torch 2.11: 0.74 and 0.72 for
the whole update, 0.79 for fused AdamW (tests/conformance/truth/before, medium and loop_large, 2026-11-22)."""


@dataclass(frozen=True)
class Estimate:
    """A step time: a projection by default, a lower bound with `ROOFLINE`.

    Attributes:
        parts: name of PARTS to ns, on the slowest stage: computation of forward, backward and recomputation;
            exposed communication of expert, context and tensor parallelism and with the neighboring stages;
            waiting for the slowest rank of the expert group; the pipeline's bubble; the GPU waiting for
            launches; gradient reduction and parameter all-gather; the optimizer.
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
    config, device, kinds = timer.config, timer.device, _kinds(timer)
    passes = {kind: _stage(timer, kind) for kind in set(kinds)}
    totals = {kind: sum(parts.values()) for kind, parts in passes.items()}
    slowest = max(kinds, key=totals.__getitem__)
    batches = config.training.micro_batches
    parts = {name: batches * ns for name, ns in passes[slowest].items()}
    alone = {kind: totals[kind] + _hidden(timer, kind) for kind in passes}
    waited = sum(map(alone.__getitem__, kinds)) - alone[slowest]
    parts["bubble"] = waited / config.layout.vpp
    parts |= _once(timer, {kind: kinds.index(kind) for kind in passes})
    parts["launch"] = _launch(timer, slowest, sum(parts.values()))
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


def _launch(timer: Timer, kind: _Kind, gpu_ns: float) -> float:
    """Time that the GPU of a stage waits for launches in a step."""
    config, batches = timer.config, timer.config.training.micro_batches
    host = Host(config, timer.device, timer.machine)
    launches = ends_launches(config, kind.is_first, kind.is_last)
    recomputed = Launches()
    for layer_kind, times in kind.layers:
        layer = layer_launches(config, layer_kind.is_moe).times(times)
        launches += layer
        recomputed += layer if layer_kind.is_recomputed else Launches()
    has_moe = any(layer_kind.is_moe for layer_kind, _ in kind.layers)
    forward_wait = max(0.0, host.forward(launches) - timer.forward_ns(kind.layers))
    waits = batches * forward_wait if has_moe and host.has_syncs else 0.0
    host_ns = batches * (host.both(launches) + host.forward(recomputed)) + host.once
    return max(waits, host_ns - gpu_ns)


def _once(timer: Timer, stages: Mapping[_Kind, int]) -> dict[str, float]:
    """Gradient reduction and optimizer on the stage where they take longest, of one of each kind."""
    longest = {"gradients": 0.0, "optimizer": 0.0}
    training = timer.config.training
    more = _eager_update(training) if timer.is_eager else 1.0
    for stage in stages.values():
        messages, moved = _update(*_update_key(timer.config), stage)
        update = {
            "gradients": 0.0 if timer.machine.hide_gradients else sum(map(timer.message, messages)),
            "optimizer": timer.rates.moved(moved * more),
        }
        longest = max(longest, update, key=lambda candidate: sum(candidate.values()))
    return longest


def _eager_update(training: Training) -> float:
    """Traffic of the parameter update run op by op, over the least.

    Gradients are cast to float32 (2 + 4 bytes), parameters back (4 + 2), and gradients cleared (2). Kernels
    over many tensors reach OPTIMIZER_RATE of the bandwidth.
    """
    return (1 + 14 * training.main_params / _update_bytes(training)) / OPTIMIZER_RATE


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


@lru_cache(maxsize=64)
def _forward_flops(model: Model, training: Training) -> int:
    """FLOPs of the forward of a micro-batch of the whole model."""
    single = replace(training, micro_batches=1, routing="balanced")
    return sum(work.forward for work in flops(Config(model, training=single), 0).values())
