"""Batch sizes: captures of several look alike, and arguments hold for one of them only."""

from __future__ import annotations

import json
from typing import NamedTuple

from tracelens.arrays import lookup
from tracelens.trace.graphs.alignment import SAME, Alignment
from tracelens.trace.graphs.nodes import KERNEL, Content, Replay, Template, op_texts

EVIDENCE = 3
"""By so many nodes whose grid is a product of its op's dimensions one batch size must lead another."""

LEAST_HITS = 0.1
"""Share of the grids that are such a product where the batch size is right."""

EQUAL_GRIDS = 0.9
"""Share of a twin's grids that the replay has as well where the batch size is the same."""

Order = tuple[int, int]
"""Which capture: the number of its trace, and its number among the captures there, in order of time."""


class Match(NamedTuple):
    """A template that a replay may be of; `order` is None for an eager stretch."""

    template: Template
    alignment: Alignment
    order: Order | None = None

    @property
    def covered(self) -> float:
        """Share of the replay's nodes that are attributed."""
        return float((self.alignment.node >= 0).mean())


def contents(match: Match) -> list[Content]:
    """Op and arguments of each node of the replay."""
    node = match.alignment.node
    return op_texts(match.template.trace, lookup(match.template.op, node, -1))


def of_grid(graph: Replay, matches: list[Match]) -> list[Match]:
    """Of captures of several batch sizes the one whose dimensions the grids of the replay repeat."""
    if len(matches) < 2 or not (graph.nodes.blocks > 1).any():
        return matches
    hits = [_hits(match, graph) for match in matches]
    best = max(hits)
    left = [match for match, count in zip(matches, hits, strict=True) if count == best]
    return left if all(count == best or count <= best - EVIDENCE for count in hits) else matches


def _products(arguments: tuple[str, ...]) -> frozenset[int]:
    """Products of the first dimensions of an op's tensors, above 1."""
    try:
        shapes = json.loads(arguments[0]) if arguments and arguments[0] else []
    except ValueError:
        return frozenset()
    found = set()
    for shape in shapes if isinstance(shapes, list) else []:
        product = 1
        for size in shape if isinstance(shape, list) else []:
            if not isinstance(size, int):
                break
            product *= size
            found.add(product)
    return frozenset(found - {1, 0})


def is_sized(match: Match, graph: Replay) -> bool:
    """Whether a template is of the replay's batch size, as far as grids or names can tell.

    Grids of a twin are those of the replay. A capture names kernels or, with CUDA, neither kernels nor grids:
    then some grids are products of the dimensions of their ops. Without any grid the names of an eager run
    must all be equal.
    """
    nodes, replayed = match.template.nodes, graph.nodes
    paired = match.alignment.node >= 0
    blocks = nodes.blocks[match.alignment.node[paired]]
    known = (blocks >= 0) & (replayed.blocks[paired] >= 0)
    if known.any():
        return float((blocks[known] == replayed.blocks[paired][known]).mean()) >= EQUAL_GRIDS
    if match.order is None:
        kernels = paired & (replayed.kind == KERNEL)
        return match.alignment.is_whole and bool((match.alignment.weight[kernels] == SAME).all())
    has_grid = replayed.blocks > 1
    if any(nodes.name) or not has_grid.any():
        return True
    return _hits(match, graph) >= LEAST_HITS * int(has_grid.sum())


def _hits(match: Match, graph: Replay) -> int:
    """Nodes whose grid is a product of the first dimensions of a tensor of their op."""
    products = (_products(arguments) for _, arguments in contents(match))
    return sum(count in of for count, of in zip(graph.nodes.blocks.tolist(), products, strict=True))
