"""The blocks of a model chunk in Megatron-core, with their recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens.planner.config import Config
from tracelens.planner.memory.assumptions import Assumptions
from tracelens.planner.memory.layer import Cost, plain, recomputed
from tracelens.planner.memory.megatron.blocks import block, block_program
from tracelens.planner.memory.megatron.settings import Settings, settings_of
from tracelens.planner.memory.megatron.steps import Segment

ChunkKind = tuple[bool, bool, tuple[tuple[bool, str], ...]]
"""Whether a chunk is first and last; of each layer, whether it has experts, and its recomputation."""


class _Part(NamedTuple):
    """Blocks that are kept, or recomputed together from `component`, their first input."""

    names: tuple[str, ...]
    settings: Settings
    component: str = ""


def chunk_costs(config: Config, assumptions: Assumptions, kind: ChunkKind) -> list[Cost]:
    """What its parts hold, in order."""
    costs = []
    for names, settings, component in _parts(config, assumptions, kind):
        made = [block(name, config, settings, assumptions.imbalance) for name in names]
        costs.append(recomputed(made, component) if component else plain(made[0]))
    return costs


def chunk_segments(
    config: Config, assumptions: Assumptions, kind: ChunkKind, ratios: Sequence[float] = (1.0,)
) -> list[list[Segment]]:
    """Allocations of each part, in variants in which its experts get these ratios of their rows."""
    made = []
    for names, settings, component in _parts(config, assumptions, kind):
        routed = any(name.startswith("moe") for name in names)
        made.append(
            [
                Segment(
                    tuple(
                        block_program(name, config, settings, assumptions.imbalance * ratio) for name in names
                    ),
                    bool(component),
                )
                for ratio in (ratios if routed else (1.0,))
            ]
        )
    return made


def _parts(config: Config, assumptions: Assumptions, kind: ChunkKind) -> list[_Part]:
    is_first, is_last, layers = kind
    ends = settings_of(config, assumptions)
    parts = [_Part(("embedding",), ends)] if is_first else []
    for is_moe, recompute in layers:
        parts += _layer(settings_of(config, assumptions, recompute), is_moe, recompute)
    if is_last:
        parts.append(_Part(("head",), ends))
    return parts


def _layer(settings: Settings, is_moe: bool, recompute: str) -> list[_Part]:
    if recompute == "full":
        return [_Part(("attention", "moe" if is_moe else "mlp"), settings, "activations.recomputed")]
    attention = _Part(("attention",), settings, "activations.recomputed" if recompute == "attention" else "")
    if is_moe and recompute == "moe":
        return [attention, _Part(("norm",), settings), _Part(("moe_only",), settings, "activations.dispatch")]
    return [attention, _Part(("moe" if is_moe else "mlp",), settings)]
