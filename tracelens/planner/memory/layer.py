"""Blocks of one rank's model: what each keeps for its backward, and its peaks. Blocks of a kind are alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from tracelens.planner.config import Config
from tracelens.planner.expected import AttentionKernel
from tracelens.planner.memory import dense
from tracelens.planner.memory.experts import experts
from tracelens.planner.memory.routing import bring_back, router, send
from tracelens.planner.memory.sizes import Sizes
from tracelens.planner.memory.tape import TEMPORARY, Block, Held, Piece, Tape, added, total

_ROWS = ("activations.dispatch", "activations.experts")
"""Components whose tensors have a row for each token of an expert."""


class Cost(NamedTuple):
    """What a part of the model holds; see Block.

    Attributes:
        input_bytes: bytes of its input.
        output: bytes of its output.
        kept: between forward and backward, its input included.
        forward: in its pieces.
        backward: in its pieces.
    """

    input_bytes: int
    output: int
    kept: Held
    forward: tuple[Piece, ...]
    backward: tuple[Piece, ...]


def joined(first: tuple[Piece, ...], second: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Passes one behind the other: between them nothing waits."""
    if not first:
        return second
    both = Piece(max(first[-1].peak, second[0].peak, key=total), second[0].end)
    return (*first[:-1], both, *second[1:])


def beside(held: Held, pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """A pass while something else is held."""
    return tuple(Piece(added(held, piece.peak), added(held, piece.end)) for piece in pieces)


@lru_cache(maxsize=512)
def attention_block(config: Config, kernel: AttentionKernel) -> Block:
    """Norm and attention, added to the stream."""
    s, t = Sizes(config), Tape("activations.attention")
    with t.part("activations.norms"):
        x = t.input(s.T * s.row)
    y = dense.attention(t, s, x, kernel)
    return t.block(x, t.op([x, y], s.T * s.row, gradient="same"))


@lru_cache(maxsize=512)
def mlp_block(config: Config) -> Block:
    """Norm and MLP, added to the stream."""
    s, t = Sizes(config), Tape("activations.mlp")
    with t.part("activations.norms"):
        x = t.input(s.T * s.row)
        normed = dense.norm(t, s, x, s.model.hidden, s.T)
    y = dense.gated(t, s, normed, s.model.dense_ffn)
    return t.block(x, t.op([x, y], s.T * s.row, gradient="same"))


@lru_cache(maxsize=512)
def moe_block(config: Config, imbalance: float) -> Block:
    """Norm, router, experts and the shared expert, added to the stream."""
    s, t = Sizes(config, imbalance), Tape("activations.dispatch")
    early = config.toggles.overlap_shared
    with t.part("activations.norms"):
        x = t.input(s.T * s.row)
        normed = dense.norm(t, s, x, s.model.hidden, s.T)
    with t.part("activations.router"):
        weight, expert = router(t, s, normed)
    trip = send(t, s, normed, weight, expert)
    shared = None
    if early and s.model.shared_ffn:
        with t.part("activations.shared"):
            shared = dense.gated(t, s, normed, s.model.shared_ffn)
    with t.part("activations.experts"):
        y_R = experts(t, s, trip.x, trip.rows.size)
    y = bring_back(t, s, y_R, trip)
    # The module's own function refers to these to its end.
    t.touch(y_R, trip.x, weight, expert)
    if shared is None and s.model.shared_ffn:
        with t.part("activations.shared"):
            shared = dense.gated(t, s, normed, s.model.shared_ffn)
    if shared is not None:
        y = t.op([y, shared], s.T * s.row, gradient="same")
    return _split(s, t.block(x, t.op([x, y], s.T * s.row, gradient="same")))


def _split(s: Sizes, block: Block) -> Block:
    """Tell rows that hold no token, in buffers for the worst case, from the others."""
    if not s.static or s.P == 1:
        return block
    part = 1 - s.rows / (s.P * s.T * s.most)

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
    """The embedding, which keeps nothing of its own."""
    s, t = Sizes(config), Tape("activations.embedding")
    token = t.input(0)
    return t.block(token, dense.embed(t, s, token))


@lru_cache(maxsize=512)
def head_block(config: Config) -> Block:
    """Norm, head and loss."""
    s, t = Sizes(config), Tape("loss")
    with t.part("activations.norms"):
        x = t.input(s.T * s.row)
    return t.block(x, dense.head(t, s, x))


def plain(block: Block) -> Cost:
    """A block that keeps what its backward needs."""
    return Cost(block.input_bytes, block.output, block.kept, block.forward, block.backward)


def recomputed(blocks: Sequence[Block], component: str = "activations.recomputed") -> Cost:
    """Blocks that keep their first input alone, and run again when their gradient comes."""
    first, last = blocks[0], blocks[-1]
    kept = {component: first.input_bytes}
    forward: tuple[Piece, ...] = ()
    backward: tuple[Piece, ...] = ()
    before: Held = {}
    for number, block in enumerate(blocks):
        # Behind the first block its input is kept and the block's own is temporary.
        held = kept if number else {}
        forward = joined(forward, beside(held, block.unsaved))
        backward = joined(backward, beside(added(before, {TEMPORARY: last.output}), block.forward))
        before = added(before, block.kept)
    for block in reversed(blocks):
        before = added(before, {name: -size for name, size in block.kept.items()})
        backward = joined(backward, beside(before, block.backward))
    # What is not kept has no module to count for.
    forward = tuple(Piece(_kept_part(kept, piece.peak), _kept_part(kept, piece.end)) for piece in forward)
    return Cost(
        first.input_bytes, last.output, kept, (*forward[:-1], Piece(forward[-1].peak, kept)), backward
    )


def _kept_part(kept: Held, held: Held) -> Held:
    """As much, of which but this is kept."""
    return kept | {TEMPORARY: total(held) - total(kept)}
