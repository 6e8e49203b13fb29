"""Two micro-batches at once: the forward of one alternates with the backward of the previous one.

The forward begins; each hands over when it waits for other ranks. The last backward runs alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracelens.planner.block import Held, Piece, added, total
from tracelens.planner.memory.layer import Cost, beside, joined


def together(costs: Sequence[Cost], batches: int) -> tuple[Held, Held]:
    """Memory at the peak of a forward and of a backward, for a model of these blocks."""
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
        kept = forward[-1].end
        for is_forward, held in _turns(forward, backward, kept):
            (first if is_forward else second).append(held)
    return max(first, key=total), max(second, key=total)


def _turns(forward: Sequence[Piece], backward: Sequence[Piece], kept: Held) -> Iterator[tuple[bool, Held]]:
    """Whether it is the forward's turn, and the peak of each turn, while the other pass waits or is done."""
    forward_held: Held = {}
    backward_held = kept
    for turn in range(max(len(forward), len(backward))):
        if turn < len(forward):
            yield True, added(forward[turn].peak, backward_held)
            forward_held = forward[turn].end
        if turn < len(backward):
            yield False, added(forward_held, backward[turn].peak)
            backward_held = backward[turn].end if turn + 1 < len(backward) else {}
