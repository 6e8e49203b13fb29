"""Peak memory of a pipeline rank: the micro-batches in flight, and the pass that runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tracelens.errors import TracelensError
from tracelens.planner.block import (
    TEMPORARY,
    Held,
    Sizes,
    added,
    attention_section,
    embedding_section,
    head_section,
    layer_config,
    mlp_section,
    moe_section,
    tokens,
    total,
)
from tracelens.planner.config import Config
from tracelens.planner.expected import attention_kernel
from tracelens.planner.memory import layer
from tracelens.planner.memory.assumptions import Assumptions
from tracelens.planner.memory.flight import Flight, flight
from tracelens.planner.memory.layer import Cost
from tracelens.planner.memory.megatron import Allocator, check, chunk_costs, simulated
from tracelens.planner.memory.overlap import together
from tracelens.planner.memory.static import Static, static

PIPELINE = "buffers.pipeline"
IDLE = "allocator"


class Chunk(NamedTuple):
    """Memory of one micro-batch of a model chunk.

    Attributes:
        kept: between its forward and its backward.
        forward: at the peak of its forward, including what it has saved by then.
        backward: at the peak of its backward, likewise.
    """

    kept: Held
    forward: Held
    backward: Held


class Kept(NamedTuple):
    """Bytes that a micro-batch keeps between forward and backward: layers, embedding, head with loss."""

    layers: tuple[int, ...]
    embedding: int
    head: int


_LayerKind = tuple[bool, str]
"""Whether a layer has experts, and its recomputation."""
_ChunkKind = tuple[bool, bool, tuple[_LayerKind, ...]]
"""Whether a chunk is the first, whether it is the last, and its layers."""


class Stage(NamedTuple):
    """Memory of the fullest rank of a pipeline stage.

    Attributes:
        rank: of the run.
        held: bytes by component at the peak of a step.
        moment: phase of the peak: "forward", "backward" or "optimizer".
        moments: bytes at the peak of each of these, and "between" steps.
        in_flight: most micro-batch chunks in flight.
    """

    rank: int
    held: Held
    moment: str
    moments: dict[str, int]
    in_flight: int

    @property
    def total(self) -> int:
        return total(self.held)

    def with_idle(self, size: int) -> Stage:
        """The same with bytes that the allocator reserves without a tensor in them."""
        return self._replace(held=self.held | {IDLE: size}) if size else self


class Stages:
    """The pipeline ranks of a run; equal chunks are computed once.

    Raises:
        TracelensError: configuration and assumptions both set the recomputation.
    """

    def __init__(self, config: Config, assumptions: Assumptions) -> None:
        if assumptions.recompute != "layers" and config.toggles.recompute_layer_ids:
            raise TracelensError(
                f"recompute={assumptions.recompute} and recompute_layer_ids exclude each other: set only one"
            )
        if assumptions.framework == "megatron":
            check(config)
        elif assumptions.recompute in ("moe", "moe_act", "mla_up_proj"):
            raise TracelensError(
                f"recompute={assumptions.recompute} is a module of Megatron-core: it needs framework=megatron"
            )
        self.config, self.assumptions = config, assumptions
        self.parts = config.layout.chunks(config.model.layers)
        self.sizes = Sizes(config)
        self._layer_config = layer_config(config)
        self._kinds = [self._layer_kind(layer) for layer in range(config.model.layers)]
        kernel = assumptions.attention
        self._kernel = attention_kernel(config, 0, "cuda") if kernel == "auto" else kernel
        self._chunks: dict[_ChunkKind, Chunk] = {}
        self._static: dict[tuple[_ChunkKind, ...], Static] = {}

    def stage(self, pp_rank: int) -> Stage:
        config, layout = self.config, self.config.layout
        # The last context-parallel rank attends to most keys; data- and tensor-parallel ranks are alike.
        rank = pp_rank * layout.stage_ranks + (layout.cp - 1) * layout.tp
        numbers, kinds = self._chunks_of(pp_rank)
        if kinds not in self._static:
            self._static[kinds] = static(config, rank, self.assumptions)
        permanent, step = self._static[kinds]
        permanent = added(permanent, self._buffers(numbers))
        if config.toggles.overlap_exchange == "off":
            timeline = flight(config, pp_rank, self.assumptions.overlap)
            forward, backward = _moments(timeline, [self._chunk(kind) for kind in kinds])
            in_flight = timeline.most
        else:
            forward, backward = together(self._costs(kinds[0]), config.training.micro_batches)
            in_flight = min(2, config.training.micro_batches)
        moments = {"forward": forward, "backward": backward, "optimizer": {TEMPORARY: step}}
        worst = max(moments, key=lambda name: total(moments[name]))
        between = total(permanent)
        sizes = {name: between + total(held) for name, held in moments.items()} | {"between": between}
        held = {name: size for name, size in added(permanent, moments[worst]).items() if size}
        return Stage(rank, held, worst, sizes, in_flight)

    def reserved(self, stage: Stage, capacity: int | None = None) -> Stage:
        """The stage with what Megatron-core's allocator reserves beyond its tensors.

        Raises:
            OutOfMemory: the allocator does not get by with `capacity` bytes.
        """
        return stage.with_idle(max(0, self.simulated(stage, capacity).most_reserved - stage.total))

    def simulated(self, stage: Stage, capacity: int | None = None) -> Allocator:
        """The allocator of a stage after two steps, see `reserved`."""
        pp_rank = stage.rank // self.config.layout.stage_ranks
        numbers, kinds = self._chunks_of(pp_rank)
        permanent = added(self._static[kinds].held, self._buffers(numbers))
        row = self.sizes.T * self.sizes.row
        return simulated(
            self.config, self._layer_config, self.assumptions, pp_rank, kinds, permanent, row, capacity
        )

    def kept(self) -> Kept:
        """What each part of the model keeps, for any partition into chunks."""

        def size(kind: _ChunkKind) -> int:
            return sum(total(cost.kept) for cost in self._costs(kind))

        bytes_of_kind = {kind: size((False, False, (kind,))) for kind in set(self._kinds)}
        layers = tuple(bytes_of_kind[kind] for kind in self._kinds)
        return Kept(layers, size((True, False, ())), size((False, True, ())))

    def _layer_kind(self, layer: int) -> _LayerKind:
        recompute = self.assumptions.recompute
        if recompute == "layers":
            recompute = "full" if layer in self.config.toggles.recompute_layer_ids else "none"
        return layer >= self.config.model.dense_layers, recompute

    def _chunks_of(self, pp_rank: int) -> tuple[range, tuple[_ChunkKind, ...]]:
        """Positions in the model of a rank's chunks, and their kinds."""
        numbers = range(pp_rank, len(self.parts), self.config.layout.pp)
        return numbers, tuple(map(self._chunk_kind, numbers))

    def _chunk_kind(self, number: int) -> _ChunkKind:
        layers = self.parts[number]
        return number == 0, number == len(self.parts) - 1, tuple(self._kinds[layers.start : layers.stop])

    def _chunk(self, kind: _ChunkKind) -> Chunk:
        if kind not in self._chunks:
            self._chunks[kind] = self._make(kind)
        return self._chunks[kind]

    def _make(self, kind: _ChunkKind) -> Chunk:
        """Memory of a micro-batch of a chunk, from its blocks."""
        before: Held = {}
        forward: list[Held] = []
        backward: list[Held] = []
        costs = self._costs(kind)
        for cost in costs:
            forward += [added(before, piece.peak) for piece in cost.forward]
            backward += [added(before, piece.peak) for piece in cost.backward]
            before = added(before, cost.kept)
        peaks = [before, max(forward, key=total), max(backward, key=total)]
        if self.config.layout.pp > 1 and self.assumptions.stage_buffers == "all":
            is_first, is_last, _ = kind
            row = self.sizes.T * self.sizes.row
            if not is_first:
                # The input lies in a permanent buffer.
                stream = next(iter(costs[0].kept))
                peaks = [added(held, {stream: -row}) for held in peaks]
            if not is_last:
                # So does the gradient of the output; the output is kept to the backward.
                peaks = [added(held, {PIPELINE: row}) for held in peaks]
                peaks[2] = added(peaks[2], {TEMPORARY: -row})
        return Chunk(*peaks)

    def _costs(self, kind: _ChunkKind) -> list[Cost]:
        """The blocks of a chunk in order; blocks that are recomputed together count as one."""
        if self.assumptions.framework == "megatron":
            return chunk_costs(self._layer_config, self.assumptions, kind)
        s, is_first, is_last, layers = Sizes(self._layer_config), *kind
        attention = attention_section(s, self._kernel).memory
        costs = [layer.plain(embedding_section(s).memory)] if is_first else []
        for moe, recompute in layers:
            ffn = moe_section(replace(s, imbalance=self.assumptions.imbalance)) if moe else mlp_section(s)
            if recompute == "full":
                costs.append(layer.recomputed((attention, ffn.memory)))
                continue
            costs.append(
                layer.recomputed((attention,)) if recompute == "attention" else layer.plain(attention)
            )
            costs.append(layer.plain(ffn.memory))
        if is_last:
            costs.append(layer.plain(head_section(s).memory))
        return costs

    def _buffers(self, numbers: Sequence[int]) -> Held:
        """Permanent memory besides the model state."""
        config, last = self.config, len(self.parts) - 1
        buffers = {"libraries": self.assumptions.library_bytes, "buffers.tokens": tokens(self.sizes)}
        if config.layout.pp > 1:
            sides = sum((number > 0) + (number < last) for number in numbers)
            per_side = config.training.micro_batches if self.assumptions.stage_buffers == "all" else 1
            buffers[PIPELINE] = sides * per_side * self.sizes.T * self.sizes.row
        return buffers


def _moments(moments: Flight, chunks: Sequence[Chunk]) -> tuple[Held, Held]:
    """Memory at the worst moment of a forward and of a backward, on top of the permanent memory."""
    kept = np.array([total(chunk.kept) for chunk in chunks])
    forward = np.array([total(chunk.forward) for chunk in chunks])
    backward = np.array([total(chunk.backward) for chunk in chunks]) - kept
    first = int(np.argmax(moments.before @ kept + forward[moments.forward]))
    second = int(np.argmax(moments.after @ kept + backward[moments.backward]))
    running = int(moments.backward[second])
    other_batches = moments.after[second].copy()
    other_batches[running] -= 1
    return (
        _with(moments.before[first].tolist(), chunks, chunks[moments.forward[first]].forward),
        _with(other_batches.tolist(), chunks, chunks[running].backward),
    )


def _with(counts: Sequence[int], chunks: Sequence[Chunk], running: Held) -> Held:
    """The running pass, and what these numbers of micro-batches of each chunk keep."""
    held = running.copy()
    for count, chunk in zip(counts, chunks, strict=True):
        if count:
            for name, size in chunk.kept.items():
                held[name] = held.get(name, 0) + count * size
    return held
