"""Memory of the blocks of the model on one rank; blocks of a kind are alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tracelens.planner.block import (
    TEMPORARY,
    AttentionKernel,
    Block,
    Held,
    Piece,
    Sizes,
    added,
    attention_section,
    embedding_section,
    head_section,
    mlp_section,
    moe_section,
    replay,
    total,
)
from tracelens.planner.config import Config

_ROWS = ("activations.dispatch", "activations.experts")
"""Components whose tensors have one row per token and expert."""


class Cost(NamedTuple):
    """What a part of the model holds.

    Attributes:
        kept: between forward and backward, its input included.
        forward: pieces of its forward.
        backward: pieces of its backward.
    """

    kept: Held
    forward: tuple[Piece, ...]
    backward: tuple[Piece, ...]


def joined(first: tuple[Piece, ...], second: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Two passes in sequence, without a wait between them."""
    if not first:
        return second
    both = Piece(max(first[-1].peak, second[0].peak, key=total), second[0].end)
    return (*first[:-1], both, *second[1:])


def beside(held: Held, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """A pass while other memory is held."""
    return tuple(Piece(added(held, piece.peak), added(held, piece.end)) for piece in pieces)


@lru_cache(maxsize=512)
def attention_block(config: Config, kernel: AttentionKernel) -> Block:
    """Norm and attention, added to the residual stream."""
    return replay(*attention_section(Sizes(config), kernel))


@lru_cache(maxsize=512)
def mlp_block(config: Config) -> Block:
    """Norm and MLP, added to the residual stream."""
    return replay(*mlp_section(Sizes(config)))


@lru_cache(maxsize=512)
def moe_block(config: Config, imbalance: float) -> Block:
    """Norm, router, routed and shared experts, added to the residual stream."""
    s = Sizes(config, imbalance)
    return _split(s, replay(*moe_section(s)))


def _split(s: Sizes, block: Block) -> Block:
    """Count rows of worst-case buffers that hold no token as a component of their own."""
    if not s.static or s.P == 1:
        return block
    part = 1 - s.rows / s.buffer_rows

    def with_padding(held: Held) -> Held:
        empty = {name: round(held.get(name, 0) * part) for name in _ROWS}
        lower = {name: -size for name, size in empty.items()}
        return added(added(held, lower), {"buffers.worst_case": sum(empty.values())})

    def pieces(of_pass: tuple[Piece, ...]) -> tuple[Piece, ...]:
        return tuple(Piece(with_padding(piece.peak), with_padding(piece.end)) for piece in of_pass)

    return block._replace(
        kept=with_padding(block.kept), forward=pieces(block.forward), backward=pieces(block.backward)
    )


@lru_cache(maxsize=512)
def embedding_block(config: Config) -> Block:
    """The embedding, which saves nothing."""
    return replay(*embedding_section(Sizes(config)))


@lru_cache(maxsize=512)
def head_block(config: Config) -> Block:
    """Norm, head and loss."""
    return replay(*head_section(Sizes(config)))


def plain(block: Block) -> Cost:
    """A block that saves what its backward needs."""
    return Cost(block.kept, block.forward, block.backward)


def recomputed(blocks: Sequence[Block], component: str = "activations.recomputed") -> Cost:
    """Blocks that save only their first input, and recompute the rest in the backward."""
    first, last = blocks[0], blocks[-1]
    kept = {component: first.input_bytes}
    forward: tuple[Piece, ...] = ()
    backward: tuple[Piece, ...] = ()
    before: Held = {}
    for number, block in enumerate(blocks):
        # Only the input of the first block is saved; those of the others are temporary.
        held = kept if number else {}
        forward = joined(forward, beside(held, block.unsaved))
        backward = joined(backward, beside(added(before, {TEMPORARY: last.output}), block.forward))
        before = added(before, block.kept)
    for block in reversed(blocks):
        before = added(before, {name: -size for name, size in block.kept.items()})
        backward = joined(backward, beside(before, block.backward))
    # Memory that is not saved counts as temporary.

    def with_temporary(held: Held) -> Held:
        return kept | {TEMPORARY: total(held) - total(kept)}

    forward = tuple(Piece(with_temporary(piece.peak), with_temporary(piece.end)) for piece in forward)
    return Cost(kept, (*forward[:-1], Piece(forward[-1].peak, kept)), backward)
