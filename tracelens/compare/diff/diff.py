"""Compares two runs: a waterfall that adds up exactly to the difference of their step times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from tracelens.analysis import ANALYZERS
from tracelens.analysis.overview import NO_PACE, pace_summary
from tracelens.arrays import Bool, Float, Int, lookup, unique
from tracelens.compare.diff.align import DUPLICATE, MOVED, ONLY, RENAMED, WRAPPER
from tracelens.compare.diff.breakdown import (
    ALL_CAUSES,
    ICICLE,
    LEVELS,
    WaterfallLevel,
    add_rank,
    graph_state,
    icicle,
    main_cause,
    regrouped,
    spread,
)
from tracelens.compare.diff.pairing import NO_OP as WITHOUT_OP
from tracelens.compare.diff.pairing import (
    ONE_SIDED,
    OTHER_KERNELS,
    OTHER_SHAPES,
    OTHER_TYPES,
    RENAMED_CALLS,
    SAME_WORK,
    WAIT,
    Aligned,
    Pairing,
    pair,
)
from tracelens.compare.diff.sides import NO_ROWS, Forest, RankSide
from tracelens.compare.gate import step_noise
from tracelens.compare.noise import StepSpread, differences
from tracelens.compare.thresholds import SAME_CALLS, TAIL
from tracelens.errors import TracelensError
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip, Table, codes, result
from tracelens.trace import Run, Union, union
from tracelens.units import duration

WATERFALL = Schema(
    "Waterfall",
    (
        Column("level", "category", doc=", ".join(LEVELS)),
        Column("name", "category", doc="row within its level, such as a category or an op"),
        Column("base_ns", "int64", "ns", "per step"),
        Column("cand_ns", "int64", "ns", "per step"),
        Column("delta_ns", "int64", "ns", "candidate - base"),
        Column("fraction_of_difference", "float64", "ratio", "share of the total difference"),
        Column("cause", "category", doc="category of most of the difference"),
        Column("noise", "category", doc="does the difference exceed the step-to-step noise? unknown if a "
                                        "run has a single step"),
        Column("base_count", "float64", "count", "kernels, memcpys and memsets per step"),
        Column("cand_count", "float64", "count", "the same in the candidate"),
    ),
    kind="levels",
    doc="The rows of each level add up to the difference of the two step times. Overlapping activities "
        "count once, as in the breakdown; means over steps and ranks.",
)  # fmt: skip

KINDS = (
    "removed", "added", "duplicated", "wrapper removed", "wrapper added", "renamed", "moved", "exchanged",
    "slower", "faster", "other types", "other shapes", "other kernels",
)  # fmt: skip

CHANGES = Schema(
    "What changed",
    (
        Column("kind", "category", doc=", ".join(KINDS)),
        Column("base", "str", doc="op; for replaced calls, the ops with the most GPU time"),
        Column("cand", "str", doc="op of the candidate"),
        Column("delta_ns", "int64", "ns", "per step, including callees"),
        Column("base_ns", "int64", "ns", "GPU time per step of these calls, 0 for added ones"),
        Column("cand_ns", "int64", "ns", "the same in the candidate, 0 for removed ones"),
        Column("count", "int64", "count", "occurrences in all steps and ranks"),
        Column("noise", "category", doc="does the difference exceed the step-to-step noise?"),
        Column("location", "str", doc="enclosing scopes"),
        Column("base_rank", "int64", doc="rank of the longest occurrence, missing for none", absent=-1),
        Column(
            "base_ts_ns",
            "int64",
            "ns",
            "longest occurrence, since the trace's first event; missing for none",
            absent=-1,
        ),
        Column("cand_rank", "int64", doc="the same in the candidate", absent=-1),
        Column("cand_ts_ns", "int64", "ns", "the same in the candidate", absent=-1),
    ),
    doc="Calls are matched by names and structure, not by position. Nested changes overlap, so times here do "
    "not add up; the waterfall does.",
)

RANKS = Schema(
    "Step of each rank",
    (
        Column("rank", "int64", doc="of both runs"),
        Column("base_ns", "int64", "ns", "the rank's own step"),
        Column("cand_ns", "int64", "ns", "the same in the candidate"),
        Column(
            "base_work_ns", "int64", "ns", "GPU work in it, without waiting for other ranks in collectives"
        ),
        Column("cand_work_ns", "int64", "ns", "the same in the candidate"),
        Column("work_delta_ns", "int64", "ns", "candidate - base"),
        Column("base_idle_ns", "int64", "ns", "no GPU work runs"),
        Column("cand_idle_ns", "int64", "ns", "the same in the candidate"),
        Column("idle_delta_ns", "int64", "ns", "candidate - base"),
        Column("cause", "category", doc="what changes most of its work and idle time, in their direction"),
    ),
    key=(),
    doc="Ranks that wait for each other take equally long; what a rank takes without the waiting shows which "
    "one became slower. Largest difference of work and idle time first; only for runs with the same ranks.",
)

PACE = Schema(
    "Without the profiler",
    (
        Column("side", "category", doc="base or cand"),
        Column("step_ns", "float64", "ns", "step without the profiler, mean over ranks"),
        Column("profiled_ns", "float64", "ns", "recorded step, mean over ranks"),
        Column("profiler_cost", "float64", "ratio", "profiled / step - 1"),
        Column("tokens_per_s", "float64", doc="without the profiler; missing if unknown", absent=-1),
        Column("steps", "int64", "count", "timed without the profiler"),
    ),
    doc="Timed around the recorded steps; the waterfall covers the recorded steps.",
)

SUBSTITUTIONS = Schema(
    "Kernels side by side",
    (
        Column("op", "category", doc="op of the base that launches them"),
        Column("base_kernel", "category", doc="longest kernel of the call"),
        Column("cand_kernel", "category", doc="the same in the candidate"),
        Column("base_ns", "int64", "ns", "per step, all kernels of these calls"),
        Column("cand_ns", "int64", "ns", "the same calls in the candidate"),
        Column("delta_ns", "int64", "ns", "candidate - base"),
        Column("ratio", "float64", "ratio", "candidate / base", absent=-1),
        Column("count", "float64", "count", "calls per step"),
    ),
    doc="Calls with equal arguments that launch different kernels: another library, tile or GPU.",
)

GRAPHS = Schema(
    "Launches",
    (
        Column("side", "category", doc="base or cand"),
        Column("launches", "float64", "count", "launch calls per step, graph launches among them"),
        Column("graph_launches", "float64", "count", "graph launches per step"),
        Column("launch_ns", "int64", "ns", "host time in launch calls per step"),
        Column("in_graphs", "float64", "count", "kernels, memcpys and memsets in graphs per step"),
        Column("in_graphs_ns", "int64", "ns", "their GPU time per step"),
        Column(
            "attributed_fraction",
            "float64",
            "ratio",
            "share of that time whose op is known, missing for none",
            absent=-1,
        ),
        Column("op_source", "str", doc="where these ops are recorded: capture, twin"),
    ),
    doc="Means over steps and ranks. What launching graphs changes is in level graph of the waterfall.",
)

TABLES = {
    "waterfall": WATERFALL,
    "changes": CHANGES,
    "substitutions": SUBSTITUTIONS,
    "icicle": ICICLE,
    "ranks": RANKS,
    "graphs": GRAPHS,
    "pace": PACE,
}

_UNEQUAL = (
    "no step marks: whole recordings are compared, and the base repeats its work {} times, the candidate {} "
    "times; calls beyond that are on one side only"
)
_SHOWN = 3
"""Ops named per side of a replaced group, those with most GPU time."""

NOWHERE = (-1, -1)
"""(rank, event) of a call that a side does not have."""
BASE, CAND = range(2)


class ChangeKey(NamedTuple):
    """What edits are grouped by."""

    kind: str  # one of KINDS; slower and faster are separated at the end
    base: str  # op of the base, "" if it has none
    cand: str
    where: str  # names of the enclosing scopes, outermost first


class Change(Struct):
    """All edits with one key; pairs are of the base and of the candidate."""

    count: int = 0  # edits in all steps of all ranks
    ns: tuple[dict[tuple[int, int], float], ...] = field(default_factory=lambda: ({}, {}))  # by (rank, step)
    # (rank, event row) of the edit with most GPU time, to find it in the trace.
    example: list[tuple[int, int]] = field(default_factory=lambda: [NOWHERE, NOWHERE])
    most: float = -1.0  # GPU time of that edit, ns

    def add(self, side: int, rank_step: tuple[int, int], ns: float) -> None:
        """Add time of a step of a rank to one side."""
        self.ns[side][rank_step] = self.ns[side].get(rank_step, 0.0) + ns

    def merge(self, other: Change) -> None:
        self.count += other.count
        for side in (BASE, CAND):
            for rank_step, ns in other.ns[side].items():
                self.add(side, rank_step, ns)
            unknown = self.example[side] == NOWHERE
            if other.example[side] != NOWHERE and (unknown or other.most > self.most):
                self.example[side] = other.example[side]
        self.most = max(self.most, other.most)


class _SideTimes:
    """One side and the GPU time of its nodes, but of those that are matched because a graph replays them."""

    def __init__(self, side: RankSide, replayed: Bool) -> None:
        self.side, self.forest, self.names = side, side.forest, side.forest.names
        self.node_ns = np.zeros(len(self.forest), dtype=np.int64)
        known = side.node >= 0
        np.add.at(self.node_ns, side.node[known], side.ns[known])
        self.node_ns[replayed] = 0
        self.before_ns = np.concatenate(([0], np.cumsum(self.node_ns)))

    def name(self, node: int) -> str:
        name: str = self.names[self.forest.name[node]]
        return name

    def total_ns(self, nodes: Int) -> int:
        """GPU time of nodes with all that they call."""
        return int((self.before_ns[nodes + self.forest.size[nodes]] - self.before_ns[nodes]).sum())

    def heaviest(self, nodes: Int) -> str:
        """The ops with most GPU time in these subtrees."""
        inside = self.forest.within(nodes)
        busy = inside[self.node_ns[inside] > 0]
        weight = self.node_ns[busy]
        if not len(busy):  # nothing runs on the GPU: by count
            busy, weight = nodes, np.ones(len(nodes), dtype=np.int64)
        names, code = np.unique(self.forest.name[busy], return_inverse=True)
        order = np.argsort(-np.bincount(code, weights=weight), kind="stable")[:_SHOWN]
        return ", ".join(self.names[name] for name in names[order].tolist())


def diff(base: Run, cand: Run) -> Result:
    """What changed between two runs, and what makes up the difference of their step times.

    Args:
        base: the run before.
        cand: the run after; steps, ranks, libraries and hardware may differ.

    Returns:
        tables `waterfall` (level, name, base, candidate, difference, cause), `changes` (edits by kind),
        `substitutions` (kernels side by side), `icicle`, of runs with the same ranks `ranks` and, where a
        side has them, `graphs` and `pace`.
        meta: base_ns, cand_ns and delta_ns, mean step times; step_noise, what a gate says of them (beyond,
        within or unclear); aligned_fraction, the share of GPU time whose
        call has a counterpart; `repetitions` where recordings without step marks repeat their work unequally
        often.

    Raises:
        TracelensError: a rank has no GPU work.
    """
    sides = [[RankSide(trace) for trace in run.traces] for run in (base, cand)]
    has_graphs = any(side.in_graph.any() for ranks in sides for side in ranks)
    ranks = len(base.traces), len(cand.traces)
    levels = [
        WaterfallLevel(name, len(ALL_CAUSES), ranks) for name in LEVELS if has_graphs or name != "graph"
    ]
    waits, experts = [_waits(run) for run in (base, cand)], regrouped(*sides)
    pairings: list[tuple[RankSide, RankSide, Pairing]] = []
    aligned_ns, gpu_ns = 0, 0
    by_cause: tuple[dict[int, Float], ...] = ({}, {})  # ns per step of each rank
    for number in range(max(ranks)):
        pair_of_ranks = base_side, cand_side = sides[0][number % ranks[0]], sides[1][number % ranks[1]]
        pairing = pair(base_side, cand_side)
        pairings.append((base_side, cand_side, pairing))
        for which, side in enumerate(pair_of_ranks):
            if number < ranks[which]:  # the ranks of the smaller run repeat
                cause = pairing.cause[which]
                state = graph_state(side, pair_of_ranks[1 - which], pairing.partner_of_node[which])
                waiting = waits[which].get(side.rank, Union(NO_ROWS, NO_ROWS))
                of_rank = add_rank(levels, which, side, cause, state, waiting, experts)
                by_cause[which][side.rank] = of_rank
                lost = np.isin(cause, (ONE_SIDED, WITHOUT_OP))
                aligned_ns, gpu_ns = aligned_ns + int(side.ns[~lost].sum()), gpu_ns + int(side.ns.sum())
    base_ns, cand_ns = (round(float(np.mean([side.step_ns.mean() for side in of_run]))) for of_run in sides)
    waterfall, total_ns = [], cand_ns - base_ns
    for level in levels:
        rows = level.rows((base_ns, cand_ns))
        delta_ns = rows.ns[1] - rows.ns[0]
        causes = [ALL_CAUSES[code] if ns else "" for code, ns in zip(rows.cause, delta_ns, strict=True)]
        waterfall.append(
            {
                "level": [level.name] * len(delta_ns),
                "name": rows.names,
                "base_ns": rows.ns[0],
                "cand_ns": rows.ns[1],
                "delta_ns": delta_ns,
                "fraction_of_difference": delta_ns / total_ns if total_ns else np.zeros(len(delta_ns)),
                "cause": causes,
                "noise": _noise(*rows.by_step),
                "base_count": rows.counts[0],
                "cand_count": rows.counts[1],
            }
        )
    edits = _change_rows(merged([changes(*pairing) for pairing in pairings]), sides)
    table = sorted(edits, key=lambda row: (-abs(row["delta_ns"]), row["kind"]))
    skips = []
    if min(len(side[0].labels) for side in sides) < 2:
        skips.append(Skip("noise", "a run has a single step; record two or more (schedule(active=3))"))
    skips += dict.fromkeys(skip for *_, pairing in pairings for skip in pairing.lacking)
    is_marked = any(side.marked for ranks in sides for side in ranks)
    times = (1, 1) if is_marked else repetitions(*sides)
    if times[0] != times[1]:
        skips.append(Skip("steps", _UNEQUAL.format(*times)))
    graphs = graph_rows(sides) if has_graphs else {}
    skips += unattributed(graphs)
    summaries = {"base": pace_summary(base), "cand": pace_summary(cand)}
    known = {side: summary for side, summary in summaries.items() if summary is not None}
    pace: dict[str, Table] = {}
    if known:
        columns = {name: [getattr(summary, name) for summary in known.values()] for name in PACE.names[1:]}
        pace["pace"] = PACE.table({"side": list(known), **columns})
        skips += [
            Skip(f"{side}: step without the profiler", NO_PACE) for side in summaries if side not in known
        ]
    meta: dict[str, Any] = {
        "base_ns": base_ns,
        "cand_ns": cand_ns,
        "delta_ns": total_ns,
        "step_noise": step_noise(_each_step(sides[BASE]), _each_step(sides[CAND]), min(map(_waiting, sides))),
        "aligned_fraction": aligned_ns / max(gpu_ns, 1),
        **({"repetitions": times} if times[0] != times[1] else {}),
    }
    of_ranks = {}
    if len(by_cause[BASE]) > 1 and by_cause[BASE].keys() == by_cause[CAND].keys():
        of_ranks = {"ranks": RANKS.from_rows(_rank_rows(*by_cause))}
    tables = {
        "waterfall": WATERFALL.concat(waterfall),
        **of_ranks,
        "changes": CHANGES.from_rows(table),
        "substitutions": SUBSTITUTIONS.from_rows(substitution_rows(pairings)),
        "icicle": icicle(sides),
        **({"graphs": GRAPHS.table(graphs)} if graphs else {}),
        **pace,
    }
    return replace(result(tables, skips, **meta), analyzer="diff", title="What changed", doc=purpose(diff))


def _rank_rows(base: Mapping[int, Float], cand: Mapping[int, Float]) -> list[dict[str, Any]]:
    """Rows of RANKS; the arguments are ns per step of each rank by cause."""
    waits, idles = (np.arange(len(ALL_CAUSES)) == code for code in (WAIT, ALL_CAUSES.index("idle")))
    rows = []
    for rank in base:
        delta = np.where(waits, 0, cand[rank] - base[rank])
        cause = int(main_cause(delta[None, :])[0])
        row = {"rank": rank, "cause": ALL_CAUSES[cause] if delta[cause] else ""}
        for name, counted in (("", waits | True), ("work_", ~(waits | idles)), ("idle_", idles)):
            base_ns, cand_ns = (round(float(times[rank][counted].sum())) for times in (base, cand))
            row |= {f"base_{name}ns": base_ns, f"cand_{name}ns": cand_ns}
            if name:
                row[f"{name}delta_ns"] = cand_ns - base_ns
        rows.append(row)
    return sorted(rows, key=lambda row: (-abs(row["work_delta_ns"] + row["idle_delta_ns"]), row["rank"]))


def _each_step(ranks: Sequence[RankSide]) -> Float:
    """The step times, mean over ranks; extra steps of some ranks are left out."""
    steps = min(side.steps for side in ranks)
    return np.asarray(np.mean([side.step_ns[:steps] for side in ranks], axis=0), dtype=float)


def _waiting(ranks: Sequence[RankSide]) -> float:
    """The share of the step in which the GPU computes nothing, mean over ranks."""
    computed_ns, step_ns = 0.0, 0.0
    for side in ranks:
        computed = side.work.union("computation").covered(side.edges[:-1], side.edges[1:])
        computed_ns += float(computed.mean())
        step_ns += float(side.step_ns.mean())
    return min(max(1 - computed_ns / step_ns, 0.0), 1.0) if step_ns else 0.0


def _waits(run: Run) -> dict[int, Union]:
    """When each rank waits for others in collectives."""
    if len(run.traces) < 2:
        return {}
    participants = ANALYZERS.get("collectives")(run).data["participants"]
    group, (ranks,) = codes(participants.array("rank"))
    order = np.argsort(group, kind="stable")
    borders = np.cumsum(np.bincount(group))[:-1]
    starts, waits = (
        np.split(participants.array(name)[order], borders) for name in ("local_ts_ns", "wait_ns")
    )
    return {
        rank: union(start_ns, start_ns + wait_ns)
        for rank, start_ns, wait_ns in zip(ranks.tolist(), starts, waits, strict=False)
    }


def _noise(base: StepSpread, cand: StepSpread) -> list[str]:
    """Whether each difference exceeds the step-to-step noise."""
    if min(base.steps, cand.steps) < 2:
        return ["unknown"] * len(base.mean)
    low, high = differences(base, cand, TAIL)
    return ["within" if inside else "beyond" for inside in ((low <= 0) & (high >= 0)).tolist()]


def headline(result: Result) -> str:
    """The change of the step time in a few words."""
    before, after = result.meta["base_ns"] / 1e6, result.meta["cand_ns"] / 1e6
    change = f"{before:,.3f} ms to {after:,.3f} ms per step"
    change += f" ({after / before - 1:+.1%})" if before else ""
    pace = result.data.get("pace")
    if pace is not None and len(pace) == 2:  # both sides were timed without the profiler
        before, after = (pace.array("step_ns") / 1e6).tolist()
        change += f", without the profiler {before:,.3f} ms to {after:,.3f} ms ({after / before - 1:+.1%})"
    return change


def changed_ops(result: Result, row: int, base: Run) -> list[str]:
    """The candidate's ops in a row of the table `changes`, counted from 1.

    Raises:
        TracelensError: no such row, or only the base has its ops.
    """
    changes = result.data["changes"]
    if not 1 <= row <= len(changes):
        raise TracelensError(f"no row {row}: {len(changes)} rows changed")
    ops = changes.texts("cand")[row - 1].split(", ")
    if ops == [""]:
        op = changes.texts("base")[row - 1].split(", ")[0]
        path = ", ".join(trace.meta.path for trace in base.traces[:1])
        raise TracelensError(f"row {row} exists only in {path}: replay that, --op {op}")
    return ops


def _change_rows(
    by_key: Mapping[ChangeKey, Change], sides: Sequence[Sequence[RankSide]]
) -> Iterator[dict[str, Any]]:
    # Ns per step of each change, mean over ranks.
    by_step = []
    for number, ranks in enumerate(sides):
        of_change = [change.ns[number] for change in by_key.values()]
        steps = min(side.steps for side in ranks)
        cells = np.repeat(np.arange(len(of_change)), [len(values) for values in of_change])
        step = np.array(
            [min(index, steps - 1) for values in of_change for _, index in values], dtype=np.int64
        )
        ns = np.array([ns for values in of_change for ns in values.values()], dtype=np.float64)
        by_step.append(spread(cells, step, ns, len(of_change), steps, len(ranks)))
    noise = _noise(*by_step)
    for row, (key, change) in enumerate(by_key.items()):
        base, cand = (round(float(side.mean[row])) for side in by_step)
        # (rank, ns since its first event) of the longest occurrence, -1 for none.
        locations = [(-1, -1), (-1, -1)]
        for number, (rank, event) in enumerate(change.example):
            if event >= 0:
                side = next(side for side in sides[number] if side.rank == rank)
                locations[number] = rank, int(side.trace.arrays.start[event]) - side.first_ns
        kind = "faster" if key.kind == "slower" and cand < base else key.kind
        yield {
            "kind": kind,
            "base": key.base,
            "cand": key.cand,
            "delta_ns": cand - base,
            "base_ns": base,
            "cand_ns": cand,
            "count": change.count,
            "noise": noise[row],
            "location": key.where,
            "base_rank": locations[0][0],
            "base_ts_ns": locations[0][1],
            "cand_rank": locations[1][0],
            "cand_ts_ns": locations[1][1],
        }


def changes(base: RankSide, cand: RankSide, pairing: Pairing) -> dict[ChangeKey, Change]:
    """The changes between two ranks."""
    by_key: dict[ChangeKey, Change] = {}
    sides = _SideTimes(base, pairing.replayed[BASE]), _SideTimes(cand, pairing.replayed[CAND])
    for aligned in pairing.steps:
        _structure(by_key, sides, aligned)
    # Matched calls whose time differs.
    kinds = {
        SAME_WORK: "slower",
        OTHER_TYPES: "other types",
        OTHER_SHAPES: "other shapes",
        OTHER_KERNELS: "other kernels",
    }
    collected: dict[ChangeKey, Change] = {}
    for number, (side, other) in enumerate(((base, cand), (cand, base))):
        cause, partner = pairing.cause[number], pairing.partner[number]
        pieces = np.flatnonzero(np.isin(cause, list(kinds)))
        op_name, partner_name = side.forest.name[side.node[pieces]], other.forest.name[partner[pieces]]
        group, groups = codes(cause[pieces], op_name, partner_name, side.step[pieces])
        total = np.bincount(group, weights=side.ns[pieces], minlength=len(groups[0])).tolist()
        _, first_piece = np.unique(group, return_index=True)
        events = side.op[side.row[pieces[first_piece]]].tolist()
        for code, name, partner_code, step, ns, event in zip(
            *(key.tolist() for key in groups), total, events, strict=True
        ):
            names = side.forest.names[name], other.forest.names[partner_code]
            key = ChangeKey(kinds[code], *(names if number == BASE else names[::-1]), "")
            change = collected.setdefault(key, Change())
            change.add(number, (side.rank, step), ns)
            if ns > change.most or change.example[number] == NOWHERE:
                change.most = max(change.most, ns)
                change.example[number] = side.rank, event
    for key, change in collected.items():
        base_ns, cand_ns = (sum(ns.values()) for ns in change.ns)
        if base_ns != cand_ns:
            change.count = max(map(len, change.ns))
            by_key[key] = change
    return by_key


def _structure(
    by_key: dict[ChangeKey, Change], sides: tuple[_SideTimes, _SideTimes], aligned: Aligned
) -> None:
    """Add the edits of one aligned pair of steps.

    Where a graph replays calls of one side, the host's calls without GPU work are gone, and no edits.
    """
    base, cand = sides
    alignment, around = aligned.alignment, base.forest.around
    has_graphs = aligned.base.copied.any() or aligned.cand.copied.any()

    def add(key: ChangeKey, *nodes_of_side: tuple[int, Int]) -> None:
        if has_graphs and not any(sides[side].total_ns(nodes) for side, nodes in nodes_of_side):
            return
        change = by_key.setdefault(key, Change())
        change.count += 1
        for side, nodes in nodes_of_side:
            times = sides[side]
            total, first, rank = times.total_ns(nodes), int(nodes[0]), times.side.rank
            change.add(side, (rank, int(times.forest.step[first])), total)
            if total >= change.most:
                change.most = total
                change.example[side] = rank, int(times.forest.event[first])

    for base_group, cand_group in alignment.groups:
        base_nodes, cand_nodes = base_group + aligned.base_offset, cand_group + aligned.cand_offset
        names = base.heaviest(base_nodes), cand.heaviest(cand_nodes)
        add(
            ChangeKey("exchanged", *names, around(int(base_nodes[0]))), (BASE, base_nodes), (CAND, cand_nodes)
        )
    for side, part, offset, how, kinds in (
        (BASE, aligned.base, aligned.base_offset, alignment.how, ("removed", "wrapper removed")),
        (CAND, aligned.cand, aligned.cand_offset, alignment.how_back, ("added", "wrapper added")),
    ):
        for outcome, kind in zip((ONLY, WRAPPER, DUPLICATE), (*kinds, "duplicated"), strict=True):
            for node in (_tops(part, how, outcome) + offset).tolist():
                name = sides[side].name(node)
                names = (name, "") if side == BASE else ("", name)
                timed = [(side, np.array([node]))] if outcome != WRAPPER else []
                add(ChangeKey(kind, *names, sides[side].forest.around(node)), *timed)
    for outcome, kind in ((RENAMED, "renamed"), (MOVED, "moved")):
        rows = _tops(aligned.base, alignment.how, outcome)
        partners = alignment.match[rows] + aligned.cand_offset
        for node, partner in zip((rows + aligned.base_offset).tolist(), partners.tolist(), strict=True):
            key = ChangeKey(kind, base.name(node), cand.name(partner), around(node))
            add(key, (BASE, np.array([node])), (CAND, np.array([partner])))


def _tops(forest: Forest, how: Int, outcome: int) -> Int:
    """Nodes with an outcome that their parent does not have."""
    inside = how == outcome
    inside &= (lookup(how, forest.parent, -1) != outcome) | (outcome == WRAPPER)
    return np.flatnonzero(inside)


def merged(per_rank: Sequence[dict[ChangeKey, Change]]) -> dict[ChangeKey, Change]:
    """The changes of all ranks, summed by key."""
    total: dict[ChangeKey, Change] = {}
    for by_key in per_rank:
        for key, change in by_key.items():
            total.setdefault(key, Change()).merge(change)
    return total


def substitution_rows(pairings: Sequence[tuple[RankSide, RankSide, Pairing]]) -> Iterator[dict[str, Any]]:
    """Rows of SUBSTITUTIONS over pairs of ranks, largest difference first."""
    total: dict[tuple[str, str, str], list[float]] = {}
    for base, cand, pairing in pairings:
        weight = 1 / len(pairings)
        replaced = np.isin(pairing.cause[0], (OTHER_KERNELS, RENAMED_CALLS))
        nodes, first = np.unique(base.node[replaced], return_index=True)
        partners = pairing.partner[0][replaced][first]
        (base_kernel_of, base_total), (cand_kernel_of, cand_total) = _by_node(base), _by_node(cand)
        for node, partner in zip(nodes.tolist(), partners.tolist(), strict=True):
            op = base.forest.names[base.forest.name[node]]
            key = (op, base.work.names[base_kernel_of[node]], cand.work.names[cand_kernel_of[partner]])
            entry = total.setdefault(key, [0.0, 0.0, 0.0])
            entry[0] += weight * float(base_total[node]) / base.steps
            entry[1] += weight * float(cand_total[partner]) / cand.steps
            entry[2] += weight / base.steps
    for (op, base_kernel, cand_kernel), (base_ns, cand_ns, count) in sorted(
        total.items(), key=lambda item: -abs(item[1][1] - item[1][0])
    ):
        yield {
            "op": op,
            "base_kernel": base_kernel,
            "cand_kernel": cand_kernel,
            "base_ns": round(base_ns),
            "cand_ns": round(cand_ns),
            "delta_ns": round(cand_ns) - round(base_ns),
            "ratio": cand_ns / base_ns if base_ns else -1.0,
            "count": count,
        }


def _by_node(side: RankSide) -> tuple[Int, Int]:
    """The name of each node's longest kernel, and the time of all its kernels."""
    name = np.zeros(len(side.forest), dtype=np.int64)
    total = np.zeros(len(side.forest), dtype=np.int64)
    known = np.flatnonzero(side.node >= 0)
    known = known[np.argsort(side.ns[known], kind="stable")]
    name[side.node[known]] = side.work.name[side.row[known]]  # the last write stays: the longest
    np.add.at(total, side.node[known], side.ns[known])
    return name, total


def graph_rows(sides: Sequence[Sequence[RankSide]]) -> dict[str, Any]:
    """Columns of GRAPHS; `sides` are the ranks of the base and of the candidate."""
    rows = []
    for name, ranks in zip(("base", "cand"), sides, strict=True):
        launches = graph_launches = activities = 0.0
        launch_ns = graph_ns = known_ns = 0.0
        sources: set[str] = set()
        for side in ranks:
            weight = 1 / side.steps / len(ranks)
            events, work = side.trace.arrays, side.work
            in_graph = side.in_graph[side.row]
            calls = unique(work.launch[side.row])
            calls = calls[calls >= 0]
            graph_launches += weight * len(unique(work.launch[side.row[in_graph]]))
            launches += weight * len(calls)
            launch_ns += weight * float((events.end - events.start)[calls].sum())
            begins = (work.start >= side.edges[0]) & (work.start < side.edges[-1])
            activities += weight * int((side.in_graph & begins).sum())
            graph_ns += weight * float(side.ns[in_graph].sum())
            op = side.op[side.row]
            known_ns += weight * float(side.ns[in_graph & (op >= 0)].sum())
            source = side.trace.tables["events"].coded("source")
            of_known = unique(source.codes[op[in_graph & (op >= 0)]])
            sources |= {source.values[code] for code in of_known.tolist()}
        rows.append(
            {
                "side": name,
                "launches": launches,
                "graph_launches": graph_launches,
                "launch_ns": round(launch_ns),
                "in_graphs": activities,
                "in_graphs_ns": round(graph_ns),
                "attributed_fraction": known_ns / graph_ns if graph_ns else -1.0,
                "op_source": ", ".join(sorted(sources)),
            }
        )
    return {name: [row[name] for row in rows] for name in GRAPHS.names}


def repetitions(base: Sequence[RankSide], cand: Sequence[RankSide]) -> tuple[int, int]:
    """How often each run does what both do, without step marks; (1, 1) where that is unclear.

    A recording that repeats its work n times has each call n times, or a multiple of it.
    """
    counts = _calls(base), _calls(cand)
    each = [math.gcd(*calls.values()) for calls in counts]
    if not all(each):
        return 1, 1
    once = [
        {call: number // times for call, number in calls.items()}
        for calls, times in zip(counts, each, strict=True)
    ]
    shared = sum(min(number, once[1].get(call, 0)) for call, number in once[0].items())
    if shared < SAME_CALLS * max(sum(calls.values()) for calls in once):
        return 1, 1
    return each[0], each[1]


def _calls(ranks: Sequence[RankSide]) -> dict[int, int]:
    """Names and arguments of the ops of GPU work, to the number of activities."""
    count: dict[int, int] = {}
    for side in ranks:
        node = side.node_of_work
        for call, number in zip(
            *map(np.ndarray.tolist, np.unique(side.forest.signature[node[node >= 0]], return_counts=True)),
            strict=True,
        ):
            count[call] = count.get(call, 0) + number
    return count


def unattributed(rows: dict[str, Any]) -> list[Skip]:
    """The sides with work in graphs of which no op is known; `rows` are columns of GRAPHS."""
    columns = (rows.get(name, ()) for name in ("side", "in_graphs_ns", "attributed_fraction"))
    return [
        Skip(
            f"{side}: ops in graphs",
            f"{duration((1 - known) * in_graphs_ns)} of GPU work per step in graphs has no known op; name "
            "the captures (--captures) or a run without graphs (--twin)",
        )
        for side, in_graphs_ns, known in zip(*columns, strict=True)
        if 0 <= known < 1
    ]
