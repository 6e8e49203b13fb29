"""Bytes that the allocator of a pipeline rank reserves, by simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import NormalDist

from tracelens.planner.block import Sizes
from tracelens.planner.config import Config
from tracelens.planner.memory.assumptions import Assumptions
from tracelens.planner.memory.flight import round_size, warm_up
from tracelens.planner.memory.megatron.allocator import Allocator
from tracelens.planner.memory.megatron.chunks import ChunkKind, chunk_segments
from tracelens.planner.memory.megatron.steps import run, schedule

STATE_PIECES = 8
"""Tensors of optimizer states and main parameters per layer."""
VARIANTS = 16
"""Numbers of rows that a layer's experts get in the simulation."""
TURNS = 4
"""Turns of a rank with all its chunks in flight, after which every turn is alike."""


def simulated(
    config: Config,
    layer_config: Config,
    assumptions: Assumptions,
    pp_rank: int,
    kinds: Sequence[ChunkKind],
    permanent: Mapping[str, int],
    stream_bytes: int,
    capacity: int | None = None,
) -> Allocator:
    """The allocator after two steps; raises OutOfMemory if it does not get by with the capacity.

    Args:
        config: of the run.
        layer_config: reduced to what its layers depend on.
        assumptions: beyond the configuration.
        pp_rank: pipeline rank.
        kinds: its chunks.
        permanent: its model state and other memory between steps, by component.
        stream_bytes: of an activation between stages.
        capacity: bytes that the allocator may reserve; None for any number.
    """
    allocator = Allocator(capacity)
    ratios = _ratios(layer_config)
    chunks = [chunk_segments(layer_config, assumptions, kind, ratios) for kind in kinds]
    group, first = round_size(config), warm_up(config, pp_rank, assumptions.overlap)
    layers = sum(len(kind[2]) for kind in kinds)
    forwards = min(config.training.micro_batches * len(kinds), first + TURNS * group * len(kinds))
    forwards -= forwards % (group * len(kinds))
    main, states = permanent.get("main_parameters", 0), permanent["optimizer"]
    whole = [size for name, size in permanent.items() if name not in ("main_parameters", "optimizer")]
    run(
        allocator, chunks, list(schedule(forwards, min(first, forwards), len(kinds), group)),
        [*whole, *_pieces(main, layers)], _pieces(states, 2 * layers), stream_bytes,
        (kinds[0][0], kinds[-1][1]),
    )  # fmt: skip
    return allocator


def _pieces(size: int, layers: int) -> list[int]:
    count = STATE_PIECES * max(1, layers)
    return [size // count] * count


def _ratios(config: Config) -> list[float]:
    """Rows of a rank's experts / their mean, as they vary between layers and micro-batches.

    A token picks K of E experts at random, e of them on this rank: a hypergeometric number, summed over the
    tokens of all ranks. Forced balance sends the same number to each expert.
    """
    s = Sizes(config)
    E, K, tokens = s.model.experts_count, s.model.top_k, s.T * s.P
    if config.training.routing != "learned" or s.P == 1:
        return [1.0]
    share = s.e / E
    deviation = sqrt(tokens * K * share * (1 - share) * (E - K) / (E - 1)) / (tokens * K * share)
    normal = NormalDist(1, deviation)
    return [normal.inv_cdf((number + 0.5) / VARIANTS) for number in range(VARIANTS)]
