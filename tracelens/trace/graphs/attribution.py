"""Which template each replay is a replay of.

Captures of several batch sizes look alike, and arguments hold for one of them only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, takewhile
from operator import mul
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tracelens.arrays import Int, lookup, unique
from tracelens.trace.graphs.alignment import (
    LEAST_UNNAMED,
    SAME,
    Alignment,
    Known,
    align,
    consistent,
    ops_of_kernels,
)
from tracelens.trace.graphs.nodes import (
    KERNEL,
    UNKNOWN,
    Content,
    Nodes,
    Replay,
    Size,
    Template,
    captures,
    eager,
    named,
    op_texts,
    replays,
)
from tracelens.trace.graphs.splice import Arguments, Attribution, spliced
from tracelens.trace.links import is_unattributed
from tracelens.trace.run import Run
from tracelens.trace.trace import Trace

LEAST_COVERED = 0.5
"""A template of which less of a replay is found is of another graph."""
SIZED_COVERED = 0.1
"""By so much less of a replay the capture of its batch size may cover than that of another."""
MOST_STRETCHES, SLACK = 16, 0.1
"""Stretches of an eager run that a replay is compared with, and by how much longer than it they may be."""
MOST_ENDS = 32
"""Nodes by which the beginning and the end of a replay are looked for."""
LEAST_VOTES = 0.9
"""Of the equal nodes of the stretch that has most, the share that others must have to be compared as well."""
LEAST_SLACK_NODES = 8
"""Nodes by which a stretch may be longer than a short replay, where not all nodes are equal."""
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


class Fit(NamedTuple):
    """The templates that fit a replay equally well."""

    matches: list[Match]  # at least one
    # whether all have the same ops with the same arguments, and differ at most in the layer
    is_one_size: bool
    is_sized: bool  # whether that is, for all that is known, the replay's batch size too

    @property
    def orders(self) -> set[Order]:
        """The captures among them, where they differ in the layer only."""
        return (
            {match.order for match in self.matches if match.order is not None} if self.is_one_size else set()
        )

    def only(self, order: Order) -> Fit:
        """The fit with the match of this capture."""
        of_order = [match for match in self.matches if match.order == order]
        return self._replace(matches=of_order or self.matches)


def attributed(
    trace: Trace,
    others: Sequence[Trace] = (),
    twins: Sequence[Trace] = (),
    sizes: Sequence[Size] = (),
    of_others: Sequence[Size] = (),
) -> Trace:
    """The trace with what its graphs replay attributed to ops, modules and scopes.

    Args:
        trace: with graph launches.
        others: traces of captures.
        twins: traces of the same program without graphs.
        sizes: batch sizes that were captured, in addition to those of the captures' labels.
        of_others: the size of each of `others` whose labels do not say it.
    """
    graphs = replays(trace)
    if not graphs:
        return trace
    sources = [captures(source) for source in (*others, trace)]
    for number, size in enumerate(of_others):
        sources[number] = [
            replace(graph, size=size) if graph.size == UNKNOWN else graph for graph in sources[number]
        ]
    unlaunched = [eager(source) for source in (*others, trace, *twins)]
    templates = Templates(sources, [stretch for stretch in unlaunched if len(stretch.call)], frozenset(sizes))
    of_nodes: dict[tuple[object, ...], Fit | None] = {}
    fits = []
    for graph in graphs:
        nodes = graph.nodes
        key: tuple[object, ...] = (
            graph.batch,
            nodes.kind.tobytes(),
            tuple(nodes.name),
            nodes.blocks.tobytes(),
        )
        if len(unique(graph.stream)) > 1:  # for safety also how they overlap
            key = (*key, graph.call)
        if key not in of_nodes:
            of_nodes[key] = templates.fit(graph)
        fits.append(of_nodes[key])
    known = [(graph, fit) for graph, fit in zip(graphs, fits, strict=True) if fit is not None]
    # Pieces that are alike are replayed in the order in which they were captured: their fits are narrowed by
    # it, where the neighbours that are told apart, one or both, say the same.
    fits_known = [fit for _, fit in known]
    ahead, behind = _followed(fits_known, 1), _followed(fits_known[::-1], -1)[::-1]
    decided = []
    for (graph, fit), *neighbours in zip(known, ahead, behind, strict=True):
        orders = {order for order in neighbours if order is not None}
        matches = (fit.only(*orders) if len(orders) == 1 else fit).matches
        match, is_sole = matches[0], len(matches) == 1
        node = match.alignment.node
        if not is_sole:  # what holds is what the matches agree in
            texts = [contents(other) for other in matches]
            same_op = [len({op for op, _ in row}) == 1 for row in zip(*texts, strict=True)]
            node = np.where(same_op, node, -1)
        arguments = Arguments.RECORDED if fit.is_sized else Arguments.INFERRED
        decided.append(
            Attribution(
                call=graph.call,
                work=graph.work,
                node=node,
                template=match.template,
                arguments=arguments if fit.is_one_size else Arguments.NONE,
                has_frames=is_sole or match.template.source == "twin",
            )
        )
    return spliced(trace, decided)


class Templates(Struct, frozen=True, dict=True):
    """What replays are compared with: the captures of each trace in order of time, and eager stretches."""

    captured: Sequence[Sequence[Template]]
    unlaunched: Sequence[Template]
    listed: frozenset[Size] = frozenset()

    @cached_property
    def sizes(self) -> frozenset[Size]:
        """All batch sizes that are known to be captured."""
        return self.listed | {template.size for graphs in self.captured for template in graphs} - {UNKNOWN}

    @cached_property
    def _named(self) -> list[tuple[Order, Template]]:
        """Captures, and behind those of a trace the ones without names with the names of an eager run."""
        listed: list[tuple[Order, Template]] = []
        for number, graphs in enumerate(self.captured):
            listed += [((number, order), graph) for order, graph in enumerate(graphs)]
            for order, graph in enumerate(graphs):
                guess = None if any(graph.nodes.name) else named(graph, self.unlaunched)
                listed += [((number, order), guess)] if guess is not None else []
        return listed

    @cached_property
    def known(self) -> Known:
        """Which ops launch a kernel, from all calls that name theirs."""
        calls = [*self.unlaunched, *(template for graphs in self.captured for template in graphs)]
        return ops_of_kernels(part.nodes for part in calls)

    def fit(self, graph: Replay) -> Fit | None:
        """The templates that fit a replay best, several where nothing tells them apart."""
        candidates: list[Match] = []
        made: dict[tuple[object, ...], Alignment] = {}
        for order, template in self._named:
            nodes = template.nodes
            key = (nodes.kind.tobytes(), tuple(nodes.name), nodes.blocks.tobytes(), tuple(nodes.op))
            if key not in made:
                made[key] = align(nodes, graph, self.known)
            alignment = made[key] if any(nodes.name) else consistent(template, graph, made[key])
            if alignment is not None:
                candidates.append(Match(template, alignment, order))
        sized = [self._is_labelled_size(match, graph) for match in candidates]
        whole = [match.alignment.is_whole for match in candidates]
        if not any(fits and size is not False for fits, size in zip(whole, sized, strict=True)):
            for stretch in self.unlaunched:
                windows = [stretch.window(*part) for part in _stretches(stretch, graph)]
                candidates += [Match(part, align(part.nodes, graph, self.known)) for part in windows]
        candidates = [match for match in candidates if match.covered >= LEAST_COVERED]
        if not candidates:
            return None
        # Of the templates that cover most those of the replay's size: by labels, else by grids.
        most = max(match.covered for match in candidates)
        full = [match for match in candidates if match.covered >= most - SIZED_COVERED]
        if by_label := [match for match in full if self._is_labelled_size(match, graph)]:
            candidates = by_label
        else:
            others = [match for match in candidates if self._is_labelled_size(match, graph) is False]
            by_grid = [match for match in full if match not in others and is_sized(match, graph)]
            candidates = by_grid if others and by_grid else candidates
        best = max(_quality(match) for match in candidates)
        matches = [match for match in candidates if _quality(match) >= best - 1e-9]
        matches = of_grid(graph, matches)
        first, *more = [contents(match) for match in matches]
        is_right_size = [
            is_sized(match, graph) if says is None else says
            for match, says in ((match, self._is_labelled_size(match, graph)) for match in matches)
        ]
        return Fit(matches, all(texts == first for texts in more), all(is_right_size))

    def _is_labelled_size(self, match: Match, graph: Replay) -> bool | None:
        """Whether labels say that a capture is of the replay's batch size; None where they do not tell."""
        return graph.batch.fits(match.template.size, self.sizes) if match.order is not None else None


def _quality(match: Match) -> float:
    """How well a template fits: by coverage, then by how alike the nodes are, names above order alone."""
    return round(match.covered, 3) + match.alignment.score


def _stretches(stretch: Template, graph: Replay) -> list[tuple[int, int]]:
    """Where in an eager run the nodes of a replay may stand."""
    nodes, replay = stretch.nodes, graph.nodes
    code: dict[tuple[str, int, int], int] = {}

    def codes(part: Nodes) -> Int:
        keys = zip(part.name, part.blocks.tolist(), part.kind.tolist(), strict=True)
        return np.array([code.setdefault(key, len(code)) for key in keys], dtype=np.int64)

    own, other = codes(replay), codes(nodes)
    if len(unique(graph.stream)) > 1:
        # Those that begin and end as a replay on several streams does outside of its forks.
        changes = np.flatnonzero(np.diff(graph.stream))
        first = min(int(changes[0]) + 1, MOST_ENDS)
        last = min(len(own) - 1 - int(changes[-1]), MOST_ENDS)
        if first + last < LEAST_UNNAMED:
            return []
        begins, ends = _begins(other, own[:first]), _begins(other, own[len(own) - last :]) + last
        stretches = []
        for begin in begins.tolist():
            lengths = ends - begin
            fitting = lengths[np.abs(lengths - len(own)) <= SLACK * len(own)]
            if len(fitting):
                stretches.append((begin, begin + int(fitting[np.argmin(np.abs(fitting - len(own)))])))
        return stretches[:MOST_STRETCHES]
    # Those with most nodes equal in equal distance, with some slack where not all are.
    votes = np.zeros(len(other) + len(own), dtype=np.int64)
    order = np.argsort(other, kind="stable")
    low, high = (np.searchsorted(other[order], own, side=side) for side in ("left", "right"))
    for position, (start, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        votes[order[start:end] - position + len(own)] += 1
    best = votes.max(initial=0)
    if best < LEAST_COVERED * len(own) / 2:
        return []
    starts: list[int] = []
    for offset in np.argsort(-votes, kind="stable")[: 20 * MOST_STRETCHES].tolist():
        if votes[offset] < LEAST_VOTES * best or len(starts) == MOST_STRETCHES:
            break
        start = offset - len(own)
        if all(abs(start - other_start) > len(own) // 2 for other_start in starts):
            starts.append(start)
    # Of stretches that agree in ops and arguments the first counts.
    texts: dict[Content, int] = {}
    contents_of = op_texts(stretch.trace, stretch.op)
    content = np.array([texts.setdefault(text, len(texts)) for text in contents_of], dtype=np.int64)
    by_content = {content[max(start, 0) : start + len(own)].tobytes(): start for start in reversed(starts)}
    slack = 0 if best == len(own) else max(int(SLACK * len(own)), LEAST_SLACK_NODES)
    return [
        (max(start - slack, 0), min(start + len(own) + slack, len(other)))
        for start in sorted(by_content.values())
    ]


def _begins(nodes: Int, pattern: Int) -> Int:
    """Where most nodes of a pattern stand in its order: a branch may run before the program launched it."""
    equal = np.zeros(max(len(nodes) - len(pattern) + 1, 0), dtype=np.int64)
    for position, code in enumerate(pattern.tolist()):
        equal += nodes[position : position + len(equal)] == code
    return np.flatnonzero((equal == equal.max(initial=0)) & (equal > len(pattern) / 2))


def _followed(fits: Sequence[Fit], stride: int) -> list[Order | None]:
    """For each replay the capture behind that of the replay before it, where that may be its own."""
    known: list[Order | None] = []
    last: Order | None = None
    for fit in fits:
        orders = fit.orders
        follower = None if last is None else (last[0], last[1] + stride)
        last = follower if follower in orders else next(iter(orders)) if len(orders) == 1 else None
        known.append(last)
    return known


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
    leading = [match for match, count in zip(matches, hits, strict=True) if count == best]
    return leading if all(count == best or count <= best - EVIDENCE for count in hits) else matches


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
    """Nodes whose grid is a product, above 1, of the first dimensions of a tensor of their op."""
    hits = 0
    for count, (_, arguments) in zip(graph.nodes.blocks.tolist(), contents(match), strict=True):
        try:
            shapes = json.loads(arguments[0]) if arguments and arguments[0] else []
        except ValueError:
            continue
        products: set[int] = set()
        for shape in shapes if isinstance(shapes, list) else []:
            sizes = takewhile(lambda size: isinstance(size, int), shape if isinstance(shape, list) else [])
            products.update(accumulate(sizes, mul))
        hits += count in products - {0, 1}
    return hits


def with_twin(run: Run, other: Run) -> Run:
    """The run; ranks whose graph launches are attributed to nothing have those of the other run as twins."""
    if not any(map(is_unattributed, run.traces)):
        return run
    twins = {trace.meta.rank: trace for trace in other.traces}
    return Run(
        tuple(
            attributed(trace, (), [twins.get(trace.meta.rank, other.traces[0])])
            if is_unattributed(trace)
            else trace
            for trace in run.traces
        )
    )
