"""Which stage of an MoE layer works on tensors of which size, as its forward work shows.

The GEMM (M, K) x (K, N) and its two gradients work on tensors of the same three sizes, and what surrounds
them on some of these. So sizes tell the stage of backward work that has no forward op of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

from tracelens.analysis.moe.stages import EXPERTS, PERMUTATION, STAGES
from tracelens.analysis.moe.windows import GemmSize

UNATTRIBUTED = len(STAGES)
"""Stage of backward work of a compiled region whose sizes do not tell it, or were not recorded."""

UNATTRIBUTED_NAME = "compiled backward, stage unknown"
"""What tables call it. Some of it may lie outside of MoE layers."""

OUTSIDE = -1

Size = tuple[int, ...]
"""Dimensions in ascending order, so that a transposed tensor has the size of the other; without ones."""


class Owner(NamedTuple):
    """Pass and stage of work."""

    layer_pass: int
    stage: int


class Routed(NamedTuple):
    """Sizes of the routed tokens of a layer pass; -1 where not known.

    Attributes:
        tokens: that the router sees.
        top_k: experts a token.
        hidden: size of a token.
        rows: that the experts compute.
        inner: sizes of a row between the expert GEMMs.
    """

    tokens: int
    top_k: int
    hidden: int
    rows: int
    inner: frozenset[int]

    def sizes(self) -> Iterator[tuple[Size, int]]:
        """Sizes of routed tokens, of their positions and weights, with the stages that work on them."""
        chosen = self.tokens * self.top_k if min(self.tokens, self.top_k) > 0 else -1
        for rows in {row_count for row_count in (chosen, self.rows) if row_count > 0} - {self.tokens}:
            yield (rows,), PERMUTATION
            for size in sizes_of((rows, self.hidden)) if self.hidden > 1 else ():
                yield size, PERMUTATION
                if self.hidden in self.inner:
                    yield size, EXPERTS
        if min(self.tokens, self.top_k) > 1:
            yield (self.top_k, self.tokens), PERMUTATION


class TensorSizes:
    """Sizes of tensors by the forward work on them."""

    def __init__(self) -> None:
        self._gemms: dict[Size, set[Owner]] = {}
        self._moved: dict[Size, set[Owner]] = {}
        self._others: dict[Size, set[Owner]] = {}
        self._tokens: set[Size] = set()

    def add(self, owner: Owner, shapes: Iterable[Size], gemm: GemmSize | None) -> None:
        """Add forward work: the shapes of its tensors and, of a GEMM, its sizes."""
        shapes = list(shapes)
        if gemm is not None and min(gemm) > 0:
            shapes += [(gemm.rows, gemm.depth), (gemm.depth, gemm.columns), (gemm.rows, gemm.columns)]
        known = self._others if gemm is None else self._gemms
        for size in {size for shape in shapes for size in sizes_of(shape)}:
            if len(size) > 1:  # vectors have the sizes of much else
                known.setdefault(size, set()).add(owner)

    def add_routed(self, number: int, routed: Routed) -> None:
        """Add the sizes of a pass's routed tokens."""
        self._tokens |= sizes_of((routed.tokens, routed.hidden))
        for size, stage in routed.sizes():
            self._moved.setdefault(size, set()).add(Owner(number, stage))

    def stage(self, shapes: Iterable[Size], is_gemm: bool) -> tuple[int, set[int]]:
        """Stage of backward work by the shapes of its tensors, and the passes with tensors of these sizes.

        A size that several stages have says nothing, and sizes of different stages leave the work without
        one. Those of routed tokens, on which router and experts work, too, give way to all others, and count
        only beside tensors of whole tokens, which all stages have.
        """
        telling: list[set[Owner]] = []
        moving: list[set[Owner]] = []
        unclear = False
        for shape in shapes:
            sizes = sizes_of(shape)
            gemm, moved, other = (
                set().union(*(known.get(size, ()) for size in sizes))
                for known in (self._gemms, self._moved, self._others)
            )
            if moved and not is_gemm and {owner.stage for owner in gemm} <= {EXPERTS}:
                moving.append(moved)
                continue
            # Other forward work is fused with what is around it, so that GEMMs say more of a size.
            owners = gemm or other
            if len({owner.stage for owner in owners}) == 1:
                telling.append(owners)
            else:
                unclear |= bool(owners) and not sizes & self._tokens
        deciding = telling or ([] if unclear else moving)
        stages = {owner.stage for owners in deciding for owner in owners}
        if len(stages) != 1:
            return UNATTRIBUTED, set()
        return stages.pop(), set.intersection(
            *({owner.layer_pass for owner in owners} for owners in deciding)
        )


def sizes_of(shape: Size) -> set[Size]:
    """The sizes by which a tensor is recognized: with all its dimensions, and as matrix of its last one."""
    dims = [dim for dim in shape if dim != 1]
    return (
        {tuple(sorted(dims)), tuple(sorted((prod(dims[:-1]), dims[-1])))} if len(dims) > 1 else {tuple(dims)}
    )


def tensor_shapes(arguments: Iterable[Any]) -> Iterator[Size]:
    """Shapes of the tensors among the recorded arguments of an op, those in lists included."""
    for shape in arguments:
        if shape and isinstance(shape[0], list):
            yield from tensor_shapes(shape)
        elif shape:
            yield tuple(shape)
