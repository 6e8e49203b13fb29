"""Batches of one forward pass, and their halves for two-batch overlap. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracelens.workload.serving.settings import SplitName


class Piece(NamedTuple):
    """Tokens of one request that go through the model together.

    Attributes:
        slot: of the cache.
        first: position of the first of them: so many are in the cache already.
        tokens: one after the other.
        answers: whether it yields a token; the front part of a prompt that was cut does not.
    """

    slot: int
    first: int
    tokens: tuple[int, ...]
    answers: bool = True


Batch = tuple[Piece, ...]


def size(batch: Sequence[Piece]) -> int:
    """Tokens of a batch."""
    return sum(len(piece.tokens) for piece in batch)


def halves(batch: Batch, how: SplitName) -> tuple[Batch, Batch]:
    """A batch in two.

    Args:
        batch: of one forward pass.
        how: "token" cuts at half of the tokens, through a request if need be: to what lies behind the cut,
            the front counts as cached. "request" leaves requests whole and deals them out, the longest first,
            to the half with fewer tokens.
    """
    return _by_token(batch) if how == "token" else _by_request(batch)


def _by_request(batch: Batch) -> tuple[Batch, Batch]:
    order = sorted(range(len(batch)), key=lambda index: (-len(batch[index].tokens), index))
    parts: tuple[list[int], list[int]] = ([], [])
    filled = [0, 0]
    for index in order:
        smaller = int(filled[1] <= filled[0])
        parts[smaller].append(index)
        filled[smaller] += len(batch[index].tokens)
    first, second = (tuple(batch[index] for index in sorted(part)) for part in parts)
    return first, second


def _by_token(batch: Batch) -> tuple[Batch, Batch]:
    remaining = size(batch) // 2
    front: list[Piece] = []
    back: list[Piece] = []
    for piece in batch:
        cut = min(remaining, len(piece.tokens))
        remaining -= cut
        if cut == len(piece.tokens):
            front.append(piece)
        elif cut == 0:
            back.append(piece)
        else:
            front.append(piece._replace(tokens=piece.tokens[:cut], answers=False))
            back.append(piece._replace(first=piece.first + cut, tokens=piece.tokens[cut:]))
    return tuple(front), tuple(back)
