"""Kernels, copies and memsets that the host launches in a step of a rank, and the time that takes it.

Counts are those of the reference workload's eager ops, per layer and micro-batch, as in its sample traces on
H200 (`sample_traces/one_gpu`, `sample_traces/ladder/ep4`); a GEMM may add a memset or a split reduction.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.devices import Device, launch_cost
from tracelens.planner.config import DEVICE_COUNTS, STATIC, Config
from tracelens.planner.step_time.machine import Machine


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

EMBEDDING, HEAD, LOSS, FUSED_LOSS, MICRO_BATCH = (
    Launches(1, 2), Launches(3, 7), Launches(4, 5), Launches(3, 2), Launches(9, 6),
)  # fmt: skip
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
    return count + (_moe_launches(config) if is_moe else DENSE_MLP)


def _moe_launches(config: Config) -> Launches:
    model, layout, toggles = config.model, config.layout, config.toggles
    is_exchanged, is_loop = layout.experts_over > 1, toggles.experts != "grouped"
    count = MOE_OUTPUT + ROUTER
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


class Host:
    """The host of a rank."""

    def __init__(self, config: Config, device: Device, machine: Machine) -> None:
        cost, source = launch_cost(device)
        self.source = "as assumed" if machine.launch_ns else source
        self.forward_ns = machine.launch_ns or cost.forward_ns
        self.backward_ns = machine.launch_ns or cost.backward_ns
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
