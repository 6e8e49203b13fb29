"""One step of a run, replayed under several scenarios: its tables, critical paths, and how far to trust them.

Trust has two measures: of the critical path, what nothing in the trace explains; and the starts of all nodes,
predicted from durations alone, against the recorded ones (`durations_only`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from tracelens.analysis.host import SYNCHRONIZE
from tracelens.arrays import Bool, Int, lookup, percentiles
from tracelens.table import RANK, Coded, Column, Schema, Table, codes, stats, sums
from tracelens.trace import matching
from tracelens.what_if.graph import Edge, Edit, Node, Recorded, RunGraph
from tracelens.what_if.replay.projector import Projector, mean_ns
from tracelens.what_if.replay.schedule import (
    Extent,
    NodeTimes,
    SteadyStep,
    durations,
    schedule,
)
from tracelens.what_if.scenario import ScenarioRequest
from tracelens.what_if.thresholds import (
    CALIBRATED,
    DOUBTFUL,
    RERUN_CHANGED_SHARE,
    RERUN_GPU_SHARE,
    RERUN_HOST_SHARE,
    SYNCHRONIZE_NS,
)

Rows = dict[str, Any]
REPLAYS = {
    "as measured": "nothing changed, unexplained delays kept",
    "durations only": "durations as recorded (GPU work, transfers, the host between its calls); every gap "
    "is the median of its kind, and nothing waits without a recorded cause",
}


class ScenarioOutcome(Struct, frozen=True):
    """The result of one scenario: rows of the tables of these names."""

    gain: float  # of throughput
    whatif: Rows  # a single one
    assumptions: Rows  # a single one
    critical_path: Rows  # one row per category
    bottlenecks: Rows  # one row per name
    ranks: Rows  # one row per rank


MEASURED = "(measured)"
"""Names the step without any scenario: the recorded one, less the profiler's share where that is known."""
_SCENARIO = Column("scenario", "str", doc="the change, as `--scenario` takes it")
WHATIF = Schema(
    "Projected step time",
    (
        _SCENARIO,
        Column("base_ns", "int64", "ns", "step without the profiler where known, else recorded; rank mean"),
        Column("projected_ns", "int64", "ns", "step under the scenario"),
        Column("low_ns", "int64", "ns", "shortest replayed step"),
        Column("high_ns", "int64", "ns", "longest replayed step"),
        Column("rerun_low_ns", "int64", "ns", "shortest step that a run with the change should measure"),
        Column("rerun_high_ns", "int64", "ns", "longest step that a run with the change should measure"),
        Column(
            "gain", "float64", "ratio", "of tokens/s: base / projected, times tokens / those recorded, - 1"
        ),
        Column("bottleneck", "category", doc="largest part of the new critical path"),
    ),
    doc="Replays the run's dependency graph (launches, streams, waits, collectives across ranks) with other "
    "durations. Low to high: all recorded steps but the first, with unexplained delays kept, at their "
    "median, and removed; "
    "with N similar steps, another one falls in this range with probability (N-1)/(N+1). Where the step "
    "without the profiler is unknown, low also covers half the host time, else low and high cover 0.65 and "
    f"1.25 of it. Rerun low to high adds run-to-run variation: host time ±{RERUN_HOST_SHARE:.0%}, GPU work "
    f"±{RERUN_GPU_SHARE:.0%}, and ±{RERUN_CHANGED_SHARE:.0%} where the scenario sets its duration; it is "
    f"{CALIBRATED:g} times as wide as that, which holds 90% of the measured pairs.",
)
ASSUMPTIONS = Schema(
    "Assumptions",
    (
        _SCENARIO,
        Column("change", "str", doc="what the scenario changes", prose=True),
        Column(
            "assumption", "str", doc="what the projection assumes, with the amount that changes", prose=True
        ),
    ),
    kind="entries",
)

HOST_TIME, STARTING, UNEXPLAINED, COMMUNICATION = "host", "kernel start", "unexplained", "communication"
CATEGORIES = {
    HOST_TIME: "host time between calls",
    STARTING: "typical latency from a call or activity to a kernel's start, and from GPU back to host",
    COMMUNICATION: "transfer time of collectives; waiting for a rank counts as that rank's activity at "
    "the time",
    UNEXPLAINED: "delay with no cause in the trace",
}
"""Parts of the path besides kernel classes."""

CRITICAL_PATH = Schema(
    "Critical path",
    (
        Column("scenario", "str", doc=f"{MEASURED} for the recorded step"),
        Column(
            "category",
            "category",
            doc="kernel class, or: " + "; ".join(f"{name}: {doc}" for name, doc in CATEGORIES.items()),
        ),
        Column("dur_ns", "int64", "ns", "on the rank that ends the step last"),
        Column("fraction_of_step", "float64", "fraction", "of that step"),
        Column("delta_ns", "int64", "ns", "projected - measured"),
    ),
    doc="The largest part of each step, then the second largest, and so on. "
    + "; ".join(f"{name}: {doc}" for name, doc in CATEGORIES.items())
    + ".",
)
BOTTLENECKS = Schema(
    "Bottlenecks",
    (
        _SCENARIO,
        Column("rank", "int64", doc="rank that the critical path runs on there"),
        Column("category", "category", doc="as in `critical_path`"),
        Column("name", "category", doc="kernel, op or collective; for host time, the op it leads to"),
        Column("count", "int64", "count", "pieces of the path"),
        Column("dur_ns", "int64", "ns", "time on the critical path"),
        Column("fraction_of_step", "float64", "fraction", "of the step"),
    ),
    doc="What to shorten next, by rank and name: the largest part of each critical path, then the second "
    "largest, and so on.",
    key=(),
)
EXPLAINED = Schema(
    "How well the graph explains the step",
    (
        Column("replay", "str", doc="which replay: unchanged, or from durations alone"),
        Column("base_ns", "int64", "ns", "recorded step"),
        Column("replayed_ns", "int64", "ns", "step that this replay gives"),
        Column("error", "float64", "ratio", "replayed / base - 1"),
        Column("unexplained_fraction", "float64", "fraction", "of the step, see `trust`"),
        Column("meaning", "str", doc="what this replay tests", prose=True),
    ),
)
TRUST = Schema(
    "Predicted starts against recorded ones",
    (
        RANK,
        Column("kind", "category", doc="kernel (copies and memsets included), collective, or host call"),
        Column("count", "int64", "count", "in the step"),
        Column("without_cause", "int64", "count", "of these, waiting for nothing recorded: not predicted"),
        Column("p50_ns", "int64", "ns", "median distance of predicted and recorded start", intensive=True),
        Column("p90_ns", "int64", "ns", "90th percentile of it", intensive=True),
        Column("p99_ns", "int64", "ns", "99th percentile of it", intensive=True),
        Column("unexplained_ns", "int64", "ns", "on the rank's critical path"),
        Column("unexplained_fraction", "float64", "fraction", "of the rank's step"),
    ),
    doc="Starts predicted from durations alone: of GPU work, of transfers, and of the host between calls. "
    "All other gaps follow from recorded dependencies, at the median of their kind. Unexplained is "
    "time for which something waited longer, and communication whose other ranks are not in the "
    "traces.",
)
STEP_RANKS = Schema(
    "Step time by rank",
    (
        _SCENARIO,
        RANK,
        Column("base_ns", "int64", "ns", "step before the change"),
        Column("projected_ns", "int64", "ns", "step under the scenario"),
    ),
    detail=True,
)
TABLES = {
    "whatif": WHATIF,
    "assumptions": ASSUMPTIONS,
    "critical_path": CRITICAL_PATH,
    "bottlenecks": BOTTLENECKS,
    "explained": EXPLAINED,
    "trust": TRUST,
    "ranks": STEP_RANKS,
}
_NAMES = 8

_OF_EDGE: dict[int, str] = {
    Edge.HOST: HOST_TIME,
    Edge.HANDOVER: HOST_TIME,
    Edge.ORDER: HOST_TIME,
    Edge.LAUNCH: STARTING,
    Edge.STREAM: STARTING,
    Edge.WAIT: STARTING,
    Edge.SYNC: STARTING,
    Edge.QUEUE: STARTING,
    Edge.TRANSFER: COMMUNICATION,
    Edge.OWN: COMMUNICATION,
}


class PathPieces(NamedTuple):
    """Parts of a critical path."""

    node: Int  # that ran or waited
    category: Int  # index into the categories of the path
    start: Int
    end: Int


class Path(NamedTuple):
    """The critical path of a step, from its end backwards."""

    rank: int  # index of the rank that ends the step last; the path is that rank's step
    start: int  # of the step, ns
    end: int  # of the step, ns
    pieces: PathPieces  # without gaps between start and end, the last one first
    categories: list[str]  # kernel classes, and CATEGORIES

    def lasting(self, ns: int) -> Path:
        """The same path with all of its times in proportion, so that it lasts that long."""
        scale = ns / max(self.end - self.start, 1)
        start, end = (np.rint((times - self.start) * scale).astype(np.int64) for times in self.pieces[2:])
        return self._replace(start=0, end=ns, pieces=self.pieces._replace(start=start, end=end))

    def by_category(self) -> dict[str, int]:
        """Category to ns, most first."""
        pieces = self.pieces
        codes, first, index = np.unique(pieces.category, return_index=True, return_inverse=True)
        ns = sums(index.ravel(), pieces.end - pieces.start, len(codes))
        most = np.lexsort((first, -ns)).tolist()
        return {self.categories[codes[number]]: int(ns[number]) for number in most}


KINDS = ("kernel", "collective", "host call")
_DERIVED = (Edge.LAUNCH, Edge.STREAM, Edge.WAIT, Edge.SYNC, Edge.QUEUE, Edge.TRANSFER)


class NodeLabels(NamedTuple):
    """Names of all nodes."""

    # of an activity its kernel or op, of a meeting its collective, of a host point the enclosing op,
    # else the call or mark itself
    name: Coded
    # kernel class of an activity and of a collective's kernels, "communication" of a meeting, else ""
    category: Coded


class ReplayedStep:
    """One step of a run, replayed."""

    def __init__(self, projector: Projector) -> None:
        recorded = projector.context.recorded
        self.graph, self.projector = recorded.graph, projector
        self.names = labels(recorded)
        same, base = Edit.recorded(self.graph), projector.base_edit
        self.before: Mapping[str, int] = {}
        as_recorded = self._path(MEASURED, same, projector.step.as_recorded)
        self.recorded: Mapping[str, int] = as_recorded[-1]  # its critical path, ns by category
        self.path, self.bottlenecks, self.before = (
            as_recorded
            if projector.share.as_recorded
            else self._path(MEASURED, base, projector.step.steady(base))
        )
        self.path["delta_ns"] = [0] * len(self.before)
        gaps = durations_only(self.graph)
        # The step replayed from durations alone, behind what was done before it.
        self.derived = projector.step.extents(projector.step.edited(gaps).schedule())
        # Of each rank, unexplained time on the critical path of its recorded step, ns by kind of node.
        self.unexplained: list[dict[str, int]] = []
        # The recorded times, and when the edges would have allowed each node to start.
        graph, kind, waits_unseen = self.graph, kind_of(self.graph), unmatched(recorded)
        via = graph.last_edges(gaps.lag)
        ready = lookup(graph.end[graph.src] + gaps.lag, via, graph.start)
        times = NodeTimes(graph.start, graph.end, ready, via)
        for rank, extent in enumerate(projector.step.extents(times)):
            path = critical_path(self.graph, self.names, rank, extent, gaps.lag)
            node, category, start, end = path.pieces
            own = category == self.names.category.codes[node]
            counted = (category == path.categories.index(UNEXPLAINED)) | (own & waits_unseen[node])
            ns = sums(kind[node[counted]], (end - start)[counted], len(KINDS))
            self.unexplained.append(dict(zip(KINDS, ns.tolist(), strict=True)))

    def scenario(self, request: ScenarioRequest) -> ScenarioOutcome:
        """Replay the step under one scenario, or several together; raises as `Projector.project`."""
        projection = self.projector.project(request)
        typical = projection.typical
        path, bottlenecks, parts = self._path(request.text, projection.edit, typical)
        gain = projection.edit.tokens * self.projector.base_ns / max(projection.step_ns, 1) - 1
        row = {
            "scenario": request.text,
            "base_ns": self.projector.base_ns,
            "projected_ns": projection.step_ns,
            "low_ns": projection.low_ns,
            "high_ns": projection.high_ns,
            "rerun_low_ns": projection.rerun_ns[0],
            "rerun_high_ns": projection.rerun_ns[1],
            "gain": gain,
            "bottleneck": next(iter(parts), ""),
        }
        assumption_row = {
            "scenario": request.text,
            "change": " ".join(dict.fromkeys(item.doc for item, _ in request.parts)),
            "assumption": "; ".join(dict.fromkeys(projection.assumed)),
        }
        ranks = {
            "scenario": [request.text] * len(typical.dur),
            "rank": np.array([rank.number for rank in self.graph.ranks]),
            "base_ns": self.projector.base,
            "projected_ns": typical.dur,
        }
        return ScenarioOutcome(gain, row, assumption_row, path, bottlenecks, ranks)

    def explained(self) -> Table:
        recorded_ns = self.projector.recorded_ns
        replayed_ns = [recorded_ns, mean_ns(durations(self.derived))]
        path_ns, ranks_ns = max(sum(self.recorded.values()), 1), max(int(self.projector.recorded.sum()), 1)
        unexplained_ns = sum(sum(parts.values()) for parts in self.unexplained)
        return EXPLAINED.table(
            {
                "replay": list(REPLAYS),
                "base_ns": [recorded_ns] * len(replayed_ns),
                "replayed_ns": replayed_ns,
                "error": [ns / max(recorded_ns, 1) - 1 for ns in replayed_ns],
                "unexplained_fraction": [
                    self.recorded.get(UNEXPLAINED, 0) / path_ns,
                    unexplained_ns / ranks_ns,
                ],
                "meaning": list(REPLAYS.values()),
            }
        )

    def trust(self) -> Table:
        """TRUST: predicted starts against recorded ones, and what of the step nothing explains."""
        graph, computed = self.graph, self.projector.step.segment.computed
        times = schedule(graph, durations_only(graph), "typical", self.projector.step.segment)
        kind = kind_of(graph)
        counted = computed[graph.kind[computed] != Node.LEAVE]
        rows = []
        for index, rank in enumerate(graph.ranks):
            for code, name in enumerate(KINDS):
                nodes = counted[(graph.rank[counted] == index) & (kind[counted] == code)]
                if not len(nodes):
                    continue
                # Nodes that wait for nothing recorded stay as recorded.
                caused = nodes[graph.first[nodes + 1] > graph.first[nodes]]
                error_ns = np.abs((times.start - graph.start)[caused]) if len(caused) else np.zeros(1)
                p50, p90, p99 = percentiles(error_ns, 50, 90, 99).round().astype(np.int64).tolist()
                unexplained_ns = self.unexplained[index].get(name, 0)
                rows.append(
                    {
                        "rank": rank.number,
                        "kind": name,
                        "count": len(nodes),
                        "without_cause": len(nodes) - len(caused),
                        "p50_ns": p50,
                        "p90_ns": p90,
                        "p99_ns": p99,
                        "unexplained_ns": unexplained_ns,
                        "unexplained_fraction": unexplained_ns / max(int(self.projector.recorded[index]), 1),
                    }
                )
        return TRUST.from_rows(rows)

    def tables(self, outcomes: Sequence[ScenarioOutcome]) -> dict[str, Table]:
        """All tables; scenarios best first, the measured path before the projected ones."""
        ordered = sorted(outcomes, key=lambda outcome: -outcome.gain)
        return {
            "whatif": WHATIF.from_rows(outcome.whatif for outcome in ordered),
            "assumptions": ASSUMPTIONS.from_rows(outcome.assumptions for outcome in ordered),
            "critical_path": interleaved(
                CRITICAL_PATH, [self.path, *(outcome.critical_path for outcome in ordered)]
            ),
            "bottlenecks": interleaved(
                BOTTLENECKS, [self.bottlenecks, *(outcome.bottlenecks for outcome in ordered)]
            ),
            "explained": self.explained(),
            "trust": self.trust(),
            "ranks": STEP_RANKS.concat([outcome.ranks for outcome in ordered]),
        }

    def _path(self, name: str, edit: Edit, step: SteadyStep) -> tuple[Rows, Rows, dict[str, int]]:
        """Rows of CRITICAL_PATH and of BOTTLENECKS, and the path's parts by category, most first."""
        last = max(range(len(step.extents)), key=lambda rank: step.extents[rank].end)
        path = critical_path(self.graph, self.names, last, step.extents[last], edit.lag)
        path = path.lasting(int(step.dur[last]))
        now, step_ns = path.by_category(), max(path.end - path.start, 1)
        categories = [*now, *(category for category in self.before if category not in now)]
        rows = {
            "scenario": [name] * len(categories),
            "category": categories,
            "dur_ns": [now.get(category, 0) for category in categories],
            "fraction_of_step": [now.get(category, 0) / step_ns for category in categories],
            "delta_ns": [now.get(category, 0) - self.before.get(category, 0) for category in categories],
        }
        node, category, start, end = path.pieces
        name_code = self.names.name.codes[node].astype(np.int64)
        group, keys = codes(self.graph.rank[node], category, name_code)
        _, first, count = np.unique(group, return_index=True, return_counts=True)
        dur_ns = sums(group, end - start, len(first))
        most = np.lexsort((first, -dur_ns))[:_NAMES]
        ranks, category_codes, name_codes = (key[most].tolist() for key in keys)
        bottlenecks = {
            "scenario": [name] * len(most),
            "rank": [self.graph.ranks[index].number for index in ranks],
            "category": [path.categories[code] for code in category_codes],
            "name": [self.names.name.values[code] for code in name_codes],
            "count": count[most].tolist(),
            "dur_ns": dur_ns[most].tolist(),
            "fraction_of_step": [ns / step_ns for ns in dur_ns[most].tolist()],
        }
        return rows, bottlenecks, now


def doubt(explained: Table) -> float:
    """Share of the step that the graph does not explain or that its replay misses, from EXPLAINED."""
    missed, unexplained = explained.array("error"), explained.array("unexplained_fraction")
    return max(float(unexplained.max()), float(np.abs(missed).max()))


def reliability_warning(explained: Table) -> str:
    """Why projections are unreliable, from EXPLAINED; "" if the graph explains the step."""
    missed, unexplained = explained.array("error"), float(explained.array("unexplained_fraction").max())
    reasons = []
    if unexplained > DOUBTFUL:
        reasons.append(f"{unexplained:.0%} of the critical path is unexplained")
    if abs(off := float(missed[np.abs(missed).argmax()])) > DOUBTFUL:
        reasons.append(f"the replay is off by {off:+.0%}")
    if not reasons:
        return ""
    advice = "record all ranks with launch calls over several steps"
    return f"projections are unreliable: {' and '.join(reasons)}; {advice}"


def interleaved(schema: Schema, parts: Sequence[Mapping[str, Sequence[Any]]]) -> Table:
    """One table of several: the first row of each, then the second of each, and so on."""
    order = sorted((row, number) for number, part in enumerate(parts) for row in range(len(part["scenario"])))
    return schema.from_rows(
        {name: parts[number][name][row] for name in schema.names} for row, number in order
    )


def critical_path(graph: RunGraph, names: NodeLabels, rank: int, extent: Extent, lag: Int) -> Path:
    """The chain of last dependencies, from the end of a rank's step, with these lags, back to its begin."""
    times, begin = extent.schedule.times, extent.begin
    known = list(dict.fromkeys([*names.category.values, *CATEGORIES]))
    # The nodes that waited for each other, from the last of the step to the first that starts in it.
    node, chain = extent.node, [extent.node]
    start_of, via_of, src_of = times.start.data, times.via.data, graph.src.data
    while start_of[node] > begin and (via := via_of[node]) >= 0:
        node = src_of[via]
        chain.append(node)
    nodes = np.array(chain, dtype=np.int64)
    edge = times.via[nodes]
    caused = edge >= 0
    start, ready = times.start[nodes], np.where(caused, times.ready[nodes], begin)
    # Backwards through each node: its end, its start, when it was ready, and the end of what it waited for.
    low = np.where(caused, ready - lookup(lag, edge, 0), begin)
    points = np.stack((times.end[nodes], start, ready, low), axis=1)
    cursor = np.minimum.accumulate(np.append(extent.end, points.ravel()))
    before = cursor[:-1].reshape(-1, 4)
    # Of each part the category: none, that of the node, unexplained, that of the edge that it waited for.
    of_kind = np.array([known.index(_OF_EDGE.get(kind, STARTING)) for kind in Edge])
    of_edge = lookup(of_kind, lookup(graph.edge, edge, -1), known.index(UNEXPLAINED))
    on_host = np.array([rank.cpu_only for rank in graph.ranks], dtype=bool)[graph.rank[nodes]]
    of_edge[on_host & (of_edge == known.index(STARTING))] = known.index(HOST_TIME)
    own = names.category.codes[nodes]
    blank = np.array([not name for name in names.category.values], dtype=bool)
    categories = np.stack(
        (
            np.full(len(nodes), -1),
            np.where(blank[own], known.index(HOST_TIME), own),
            np.full(len(nodes), known.index(UNEXPLAINED)),
            of_edge,
        ),
        axis=1,
    )
    # Time between a node's end and what followed it belongs to no piece.
    shown = (points < before) & (before > begin)
    shown[:, 0] = False
    row, _ = np.nonzero(shown)
    pieces = PathPieces(nodes[row], categories[shown], np.maximum(points, begin)[shown], before[shown])
    return Path(rank, begin, extent.end, pieces, known)


def durations_only(graph: RunGraph) -> Edit:
    """Nothing but durations as recorded: of GPU work, of transfers, and of the host's own time between calls.

    All gaps are derived: every edge of a kind takes its median, on each rank and for each call by name, and
    no node waits beyond its edges. A synchronization whose work is not in the trace waits for nothing.
    """
    edit = Edit.of(graph)
    edit.delay[:] = 0
    gap = graph.start[graph.dst] - graph.end[graph.src]
    binds = np.zeros(len(graph.edge), dtype=bool)
    binds[graph.binding[graph.binding >= 0]] = True
    # Kernels of a graph after its first wait for others of the graph.
    launches, first = graph.edges(Edge.LAUNCH), np.full(len(graph), -1)
    first[graph.src[launches[::-1]]] = launches[::-1]  # of several values for a node the last one stays
    binds[launches[first[graph.src[launches]] != launches]] = False
    name, unresolved = np.full(len(graph), -1), np.zeros(len(graph), dtype=bool)
    for index, (nodes, rank) in enumerate(zip(graph.of_rank, graph.ranks, strict=True)):
        name[nodes] = lookup(rank.name.codes, graph.slot[nodes], -1)
        waited = graph.nodes(index, Node.WAITED)
        unresolved[waited] = matching(rank.name.values, SYNCHRONIZE)[name[waited]]
    on_host = np.array([rank.cpu_only for rank in graph.ranks])[graph.rank[graph.dst]]
    edges = np.flatnonzero(graph.is_edge(*_DERIVED) & ~on_host)
    # What is alike: a kind of edge on a rank, and where a call has it, that call by name.
    call = np.where(graph.edge[edges] == Edge.LAUNCH, graph.src[edges], graph.dst[edges])
    name_of = np.where(graph.is_edge(Edge.LAUNCH, Edge.SYNC, Edge.QUEUE)[edges], name[call], -1)
    group, keys = codes(graph.rank[graph.dst[edges]], graph.edge[edges], name_of)
    binding = np.flatnonzero(binds[edges])
    usual = stats(group[binding], gap[edges[binding]], len(keys[0]))
    known = np.flatnonzero(usual.number[group] > 0)
    edit.lag[edges[known]] = usual.median[group[known]].astype(np.int64)
    # Synchronisations whose work is not in the trace.
    unresolved[graph.dst[graph.edges(Edge.SYNC)]] = False
    own = graph.edges_to(Edge.HOST, unresolved)
    edit.lag[own] = np.minimum(edit.lag[own], SYNCHRONIZE_NS)
    return edit


def kind_of(graph: RunGraph) -> Int:
    """Code into KINDS of each node."""
    is_call = np.isin(np.arange(len(Node)), (Node.POINT, Node.WAITED))
    kind = np.where(is_call, 2, 1)[graph.kind]
    for nodes, rank in zip(graph.of_rank, graph.ranks, strict=True):
        work = nodes[graph.kind[nodes] == Node.WORK]
        kind[work] = rank.is_comm[graph.work[work]].astype(np.int64)
    return kind


def unmatched(recorded: Recorded) -> Bool:
    """Communication whose other ranks are not in the graph: its duration includes waiting for them."""
    graph = recorded.graph
    alone = np.zeros(len(graph), dtype=bool)
    for index, rank in enumerate(graph.ranks):
        if len(graph.ranks) < 2 and rank.world_size < 2:
            continue
        # A group of one waits for nobody.
        size = np.zeros(len(rank.is_comm), dtype=np.int64)
        records = recorded.collectives.aligned.ranks[index].records
        kernel = recorded.collectives.work[index][[record.kernel for record in records]]
        np.maximum.at(size, kernel, [record.size for record in records])
        nodes = graph.nodes(index, Node.WORK)
        work = graph.work[nodes]
        alone[nodes] = rank.is_comm[work] & (size[work] != 1)
    return alone


def labels(recorded: Recorded) -> NodeLabels:
    """The names of all nodes."""
    graph = recorded.graph
    of_rank = [nodes[graph.kind[nodes] != Node.MEET] for nodes in graph.of_rank]
    meetings = np.flatnonzero(graph.kind == Node.MEET)
    rows = np.concatenate((*of_rank, meetings))
    slots = [graph.slot[nodes] for nodes in of_rank]
    matched = recorded.collectives.matched
    collectives = Coded.of([matched[number].collective for number in graph.collective[meetings].tolist()])
    communication = Coded(np.zeros(len(meetings), dtype=np.int64), ["communication"])
    names = [rank.label.take(slot) for rank, slot in zip(graph.ranks, slots, strict=True)]
    categories = [rank.category.take(slot) for rank, slot in zip(graph.ranks, slots, strict=True)]
    return NodeLabels(_in_order([*names, collectives], rows), _in_order([*categories, communication], rows))


def _in_order(parts: list[Coded], rows: Int) -> Coded:
    """One column over all nodes from one per part, whose nodes follow each other in `rows`."""
    column = Coded.concat(parts)
    codes = np.empty(len(rows), dtype=np.int64)
    codes[rows] = column.codes
    return Coded(codes, column.values)
