"""Peak memory of a pipeline rank: its model state, the micro-batches in flight, and the pass that runs.

A rank runs its warm-up forwards, then forwards and backwards in turn, then the remaining backwards: 1F1B with
one chunk per rank, the interleaved schedule with several (arXiv:2104.04473), whose forwards take a round of
micro-batches through the first chunk, then through the next; backwards likewise from the last chunk on.

What a chunk holds follows from the sections of the model (`planner.block`, or `memory.megatron`), of which
some are recomputed. Where two micro-batches overlap, the forward of one alternates with the backward of the
previous one: the forward begins, each hands over when it waits for other ranks, and the last backward runs
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.planner.block import (
    TEMPORARY,
    Held,
    Piece,
    RankSizes,
    SectionMemory,
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
from tracelens.planner.bubble import in_flight
from tracelens.planner.config import Config
from tracelens.planner.expected import (
    FLOAT32,
    REPLICA_GROUPS,
    RankShare,
    attention_kernel,
    buffer_bytes,
    group_ranks,
)
from tracelens.planner.memory import megatron
from tracelens.planner.memory.allocator import Allocator, Segment, run_steps, schedule
from tracelens.planner.memory.assumptions import STATES, Assumptions

PIPELINE = "buffers.pipeline"
IDLE = "allocator"

STATE_PIECES = 8
"""Tensors of optimizer states and main parameters per layer, in the simulation of the allocator."""
VARIANTS = 16
"""Numbers of rows that a layer's experts get in that simulation."""
TURNS = 4
"""Turns of a rank with all its chunks in flight, after which every turn is alike."""

LayerKind = tuple[bool, str]
"""Whether a layer has experts, and its recomputation."""
ChunkKind = tuple[bool, bool, tuple[LayerKind, ...]]
"""Whether a chunk is the first, whether it is the last, and its layers."""


class ChunkMemory(NamedTuple):
    """Memory of one micro-batch of a model chunk."""

    kept: Held  # between its forward and its backward
    forward: Held  # at the peak of its forward, including what it has saved by then
    backward: Held  # at the peak of its backward, likewise


class Kept(NamedTuple):
    """Bytes that a micro-batch keeps between forward and backward: layers, embedding, head with loss."""

    layers: tuple[int, ...]
    embedding: int
    head: int


class StageMemory(NamedTuple):
    """Memory of the fullest rank of a pipeline stage."""

    rank: int  # of the run
    held: Held  # bytes by component at the peak of a step
    moment: str  # phase of the peak: "forward", "backward" or "optimizer"
    moments: dict[str, int]  # bytes at the peak of each of these, and "between" steps
    in_flight: int  # most micro-batch chunks in flight

    @property
    def total(self) -> int:
        return total(self.held)

    def with_idle(self, size: int) -> StageMemory:
        """The same with bytes that the allocator reserves without a tensor in them."""
        return self._replace(held=self.held | {IDLE: size}) if size else self


class _ChunkPart(NamedTuple):
    """Sections of a chunk by name: kept, or recomputed together from `component`, their first input."""

    names: tuple[str, ...]
    recompute: str = ""  # of their layer
    component: str = ""


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
            megatron.check(config)
        elif assumptions.recompute in ("moe", "moe_act", "mla_up_proj"):
            raise TracelensError(
                f"recompute={assumptions.recompute} is a module of Megatron-core: it needs framework=megatron"
            )
        self.config, self.assumptions = config, assumptions
        self.parts = config.layout.chunks(config.model.layers)
        self.sizes = RankSizes(config)
        self._layer_config = layer_config(config)
        recompute, recomputed_ids = assumptions.recompute, config.toggles.recompute_layer_ids
        self._kinds: list[LayerKind] = []
        for layer in range(config.model.layers):
            of_layer = "full" if layer in recomputed_ids else "none"
            has_experts = layer >= config.model.dense_layers
            self._kinds.append((has_experts, of_layer if recompute == "layers" else recompute))
        kernel = assumptions.attention
        self._kernel = attention_kernel(config, 0, "cuda") if kernel == "auto" else kernel
        self._chunks: dict[ChunkKind, ChunkMemory] = {}
        self._static: dict[tuple[ChunkKind, ...], Static] = {}

    def stage(self, pp_rank: int) -> StageMemory:
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
            for kind in kinds:
                if kind not in self._chunks:
                    self._chunks[kind] = self._chunk(kind)
            forward, backward = _worst_moments(timeline, [self._chunks[kind] for kind in kinds])
            in_flight = timeline.most
        else:
            forward, backward = together(self._costs(kinds[0]), config.training.micro_batches)
            in_flight = min(2, config.training.micro_batches)
        moments = {"forward": forward, "backward": backward, "optimizer": {TEMPORARY: step}}
        worst = max(moments, key=lambda name: total(moments[name]))
        between = total(permanent)
        sizes = {name: between + total(held) for name, held in moments.items()} | {"between": between}
        held = {name: size for name, size in added(permanent, moments[worst]).items() if size}
        return StageMemory(rank, held, worst, sizes, in_flight)

    def reserved(self, stage: StageMemory, capacity: int | None = None) -> StageMemory:
        """The stage with what Megatron-core's allocator reserves beyond its tensors.

        Raises:
            OutOfMemory: the allocator does not get by with `capacity` bytes.
        """
        return stage.with_idle(max(0, self.simulated(stage, capacity).most_reserved - stage.total))

    def simulated(self, stage: StageMemory, capacity: int | None = None) -> Allocator:
        """The allocator of a stage after two steps, see `reserved`."""
        config = self.config
        pp_rank = stage.rank // config.layout.stage_ranks
        numbers, kinds = self._chunks_of(pp_rank)
        permanent = added(self._static[kinds].held, self._buffers(numbers))
        # Rows of a rank's experts / their mean, as they vary between layers and micro-batches: a token picks
        # K of E experts at random, e of them on this rank, a hypergeometric number, summed over the tokens
        # of all ranks. Forced balance sends the same number to each expert.
        s, ratios = RankSizes(self._layer_config), [1.0]
        E, K, rank_tokens = s.model.experts_count, s.model.top_k, s.T * s.P
        if config.training.routing == "learned" and s.P > 1 and K < E:  # there is a choice of experts
            share = s.e / E
            mean = rank_tokens * K * share
            deviation = sqrt(rank_tokens * K * share * (1 - share) * (E - K) / (E - 1)) / mean
            normal = NormalDist(1, deviation)
            ratios = [normal.inv_cdf((number + 0.5) / VARIANTS) for number in range(VARIANTS)]
        # Allocations of each part of a chunk; a variant per ratio of its experts' rows.
        segments: list[list[list[Segment]]] = []
        for kind in kinds:
            segments.append([])
            for part in self._parts(kind):
                options = megatron.options_of(self._layer_config, self.assumptions, part.recompute)
                is_routed = any(name.startswith("moe") for name in part.names)
                variants = []
                for ratio in ratios if is_routed else (1.0,):
                    imbalance = self.assumptions.imbalance * ratio
                    programs = (
                        megatron.section_program(name, self._layer_config, options, imbalance)
                        for name in part.names
                    )
                    variants.append(Segment(tuple(programs), bool(part.component)))
                segments[-1].append(variants)
        group, first = round_size(config), warm_up(config, pp_rank, self.assumptions.overlap)
        forwards = min(config.training.micro_batches * len(kinds), first + TURNS * group * len(kinds))
        forwards -= forwards % (group * len(kinds))
        layers = sum(len(layers) for _, _, layers in kinds)

        def pieces(size: int, layers: int) -> list[int]:
            count = STATE_PIECES * max(1, layers)
            return [size // count] * count

        main, states = permanent.pop("main_parameters", 0), permanent.pop("optimizer")
        allocator = Allocator(capacity)
        run_steps(
            allocator,
            segments,
            list(schedule(forwards, min(first, forwards), len(kinds), group)),
            model_state=[*permanent.values(), *pieces(main, layers)],
            states=pieces(states, 2 * layers),
            stream_bytes=self.sizes.T * self.sizes.row,
            ends=(kinds[0][0], kinds[-1][1]),
        )
        return allocator

    def kept(self) -> Kept:
        """What each part of the model keeps, for any partition into chunks."""

        def size(kind: ChunkKind) -> int:
            return sum(total(cost.kept) for cost in self._costs(kind))

        bytes_of_kind = {kind: size((False, False, (kind,))) for kind in set(self._kinds)}
        layers = tuple(bytes_of_kind[kind] for kind in self._kinds)
        return Kept(layers, size((True, False, ())), size((False, True, ())))

    def _chunks_of(self, pp_rank: int) -> tuple[range, tuple[ChunkKind, ...]]:
        """Positions in the model of a rank's chunks, and their kinds."""
        numbers = range(pp_rank, len(self.parts), self.config.layout.pp)
        layers_of = (self.parts[number] for number in numbers)
        kinds = (tuple(self._kinds[layers.start : layers.stop]) for layers in layers_of)
        last = len(self.parts) - 1
        return numbers, tuple(
            (number == 0, number == last, layers) for number, layers in zip(numbers, kinds, strict=True)
        )

    def _chunk(self, kind: ChunkKind) -> ChunkMemory:
        """Memory of a micro-batch of a chunk, from its sections."""
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
        return ChunkMemory(*peaks)

    def _parts(self, kind: ChunkKind) -> list[_ChunkPart]:
        """The sections of a chunk in order."""
        is_first, is_last, layers = kind
        parts = [_ChunkPart(("embedding",))] if is_first else []
        for has_experts, recompute in layers:
            ffn = "moe" if has_experts else "mlp"
            if recompute == "full":
                parts.append(_ChunkPart(("attention", ffn), recompute, "activations.recomputed"))
                continue
            component = "activations.recomputed" if recompute == "attention" else ""
            parts.append(_ChunkPart(("attention",), recompute, component))
            if has_experts and recompute == "moe":
                parts.append(_ChunkPart(("norm",), recompute))
                parts.append(_ChunkPart(("moe_only",), recompute, "activations.dispatch"))
            else:
                parts.append(_ChunkPart((ffn,), recompute))
        return [*parts, _ChunkPart(("head",))] if is_last else parts

    def _costs(self, kind: ChunkKind) -> list[SectionCost]:
        """The sections of a chunk in order; those that are recomputed together count as one."""
        config, imbalance = self._layer_config, self.assumptions.imbalance
        s = RankSizes(config)
        costs = []
        for part in self._parts(kind):
            sections = []
            for name in part.names:
                if self.assumptions.framework == "megatron":
                    options = megatron.options_of(config, self.assumptions, part.recompute)
                    sections.append(megatron.section(name, config, options, imbalance))
                elif name == "attention":
                    sections.append(attention_section(s, self._kernel))
                elif name == "mlp":
                    sections.append(mlp_section(s))
                elif name == "moe":
                    sections.append(moe_section(replace(s, imbalance=imbalance)))
                else:
                    sections.append(embedding_section(s) if name == "embedding" else head_section(s))
            memories = [section.memory for section in sections]
            if part.component:
                costs.append(recomputed(memories, part.component))
            else:
                costs.append(SectionCost(memories[0].kept, memories[0].forward, memories[0].backward))
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


class Static(NamedTuple):
    """Memory between steps, and what the optimizer step adds."""

    held: Held  # bytes by component, including the padding to equal aligned shards
    step: int  # bytes of the float32 copy of a shard's gradients


def static(config: Config, rank: int, assumptions: Assumptions) -> Static:
    """Model state of one rank with ZeRO stage 1 (arXiv:1910.02054): optimizer and main copies are sharded."""
    share = RankShare(config, rank)
    a = share.element
    has_main_params = config.training.main_params and config.training.dtype == "bfloat16"
    elements = sharded = 0
    for replicas, size in buffer_bytes(share).items():
        ranks = (
            group_ranks(config.layout, REPLICA_GROUPS[replicas]) if assumptions.sharding == "replicas" else 1
        )
        elements += size // a
        sharded += size // a // ranks
    wide = assumptions.wide_gradients
    narrow = 2 if has_main_params else a
    state = FLOAT32 if has_main_params and assumptions.states == "float32" else narrow
    main = FLOAT32 if assumptions.main == "float32" else narrow
    held = {
        "parameters": elements * a,
        "gradients": elements * (FLOAT32 if wide else a),
        "main_parameters": sharded * main if has_main_params else 0,
        "optimizer": sharded * state * STATES[assumptions.optimizer],
    }
    return Static(held, sharded * FLOAT32 if has_main_params and not wide else 0)


class Flight(NamedTuple):
    """The moments with most in flight: one row per forward, and one per backward."""

    before: Int  # micro-batches in flight per chunk when a forward begins
    forward: Int  # chunk of the rank whose forward that is
    after: Int  # micro-batches in flight per chunk when a backward begins, its own included
    backward: Int  # chunk of the rank whose backward that is

    @property
    def most(self) -> int:
        """Most micro-batch chunks in flight."""
        return int(self.after.sum(axis=1).max())


def warm_up(config: Config, stage: int, overlap: bool = False) -> int:
    """Forwards of a pipeline rank before its first backward; see `bubble.in_flight` for `overlap`."""
    layout, batches = config.layout, config.training.micro_batches
    return in_flight(layout.pp, stage, batches, layout.vpp, round_size(config), overlap)


def round_size(config: Config) -> int:
    """Micro-batches that go through a chunk before it is the next chunk's turn."""
    batches = config.training.micro_batches
    return batches // max(1, batches // config.layout.pp)


def flight(config: Config, stage: int, overlap: bool = False) -> Flight:
    """The moments of one period of a pipeline rank: no other moment has more in flight."""
    chunks, size = config.layout.vpp, round_size(config)
    count, first = config.training.micro_batches * chunks, warm_up(config, stage, overlap)
    period = size * chunks

    def done(runs: Int) -> Int:
        """Micro-batches that went through each chunk after this many runs, in order of turns."""
        rest = runs % period
        inside = np.clip(rest[:, None] - np.arange(chunks) * size, 0, size)
        through: Int = runs[:, None] // period * size + inside
        return through

    # At moment i, i backwards are done, and i forwards beyond those before the first backward.
    steady = np.arange(min(count - first + 1, period))
    started = steady + first - 1
    before = done(started) - done(steady)[:, ::-1]
    backwards = np.arange(min(count, period))
    after = done(np.minimum(backwards + first, count)) - done(backwards)[:, ::-1]
    return Flight(before, started // size % chunks, after, chunks - 1 - backwards // size % chunks)


def _worst_moments(moments: Flight, chunks: Sequence[ChunkMemory]) -> tuple[Held, Held]:
    """Memory at the worst moment of a forward and of a backward, on top of the permanent memory."""
    kept = np.array([total(chunk.kept) for chunk in chunks])
    forward = np.array([total(chunk.forward) for chunk in chunks])
    backward = np.array([total(chunk.backward) for chunk in chunks]) - kept

    def with_others(running: Held, counts: Sequence[int]) -> Held:
        """The running pass, and what these numbers of micro-batches of each chunk keep."""
        held = running.copy()
        for count, chunk in zip(counts, chunks, strict=True):
            if count:
                for name, size in chunk.kept.items():
                    held[name] = held.get(name, 0) + count * size
        return held

    first = int(np.argmax(moments.before @ kept + forward[moments.forward]))
    second = int(np.argmax(moments.after @ kept + backward[moments.backward]))
    running = int(moments.backward[second])
    other_batches = moments.after[second].copy()
    other_batches[running] -= 1
    return (
        with_others(chunks[moments.forward[first]].forward, moments.before[first].tolist()),
        with_others(chunks[running].backward, other_batches.tolist()),
    )


class SectionCost(NamedTuple):
    """What sections that are kept or recomputed together hold."""

    kept: Held  # between forward and backward, their input included
    forward: tuple[Piece, ...]
    backward: tuple[Piece, ...]


def recomputed(memories: Sequence[SectionMemory], component: str = "activations.recomputed") -> SectionCost:
    """Sections that save only their first input, and recompute the rest in the backward."""
    first, last = memories[0], memories[-1]
    kept = {component: first.input_bytes}
    forward: tuple[Piece, ...] = ()
    backward: tuple[Piece, ...] = ()
    before: Held = {}
    for number, memory in enumerate(memories):
        # Only the input of the first section is saved; those of the others are temporary.
        held = kept if number else {}
        forward = joined(forward, beside(held, memory.unsaved))
        backward = joined(backward, beside(added(before, {TEMPORARY: last.output}), memory.forward))
        before = added(before, memory.kept)
    for memory in reversed(memories):
        before = added(before, {name: -size for name, size in memory.kept.items()})
        backward = joined(backward, beside(before, memory.backward))

    def with_temporary(held: Held) -> Held:
        """Memory that is not saved counts as temporary."""
        return kept | {TEMPORARY: total(held) - total(kept)}

    forward = tuple(Piece(with_temporary(piece.peak), with_temporary(piece.end)) for piece in forward)
    return SectionCost(kept, (*forward[:-1], Piece(forward[-1].peak, kept)), backward)


def joined(first: tuple[Piece, ...], second: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Two passes in sequence, without a wait between them."""
    if not first:
        return second
    both = Piece(max(first[-1].peak, second[0].peak, key=total), second[0].end)
    return (*first[:-1], both, *second[1:])


def beside(held: Held, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """A pass while other memory is held."""
    return tuple(Piece(added(held, piece.peak), added(held, piece.end)) for piece in pieces)


def together(costs: Sequence[SectionCost], batches: int) -> tuple[Held, Held]:
    """Memory at the peak of a forward and of a backward, of two micro-batches that alternate."""
    before: Held = {}
    forward: tuple[Piece, ...] = ()
    for cost in costs:
        forward = joined(forward, beside(before, cost.forward))
        before = added(before, cost.kept)
    backward: tuple[Piece, ...] = ()
    for cost in reversed(costs):
        before = added(before, {name: -size for name, size in cost.kept.items()})
        backward = joined(backward, beside(before, cost.backward))
    first, second = [piece.peak for piece in forward], [piece.peak for piece in backward]
    if batches > 1:
        # While one pass has its turn, the other waits or is done.
        forward_held: Held = {}
        backward_held = forward[-1].end
        for turn, (ahead, behind) in enumerate(zip_longest(forward, backward)):
            if ahead is not None:
                first.append(added(ahead.peak, backward_held))
                forward_held = ahead.end
            if behind is not None:
                second.append(added(forward_held, behind.peak))
                backward_held = behind.end if turn + 1 < len(backward) else {}
    return max(first, key=total), max(second, key=total)
