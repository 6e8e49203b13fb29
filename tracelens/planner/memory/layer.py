"""Memory of passes over blocks of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens.planner.block import TEMPORARY, Block, Held, Piece, added, total


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
