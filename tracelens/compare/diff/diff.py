"""Compares two runs: a waterfall that adds up exactly to the difference of their step times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.analysis import ANALYZERS
from tracelens.analysis.overview import NO_PACE, pace_summary
from tracelens.compare.diff.changes import KINDS, Change, Key, changes, merged
from tracelens.compare.diff.cuts import ALL_CAUSES, LEVELS, add_rank, regrouped
from tracelens.compare.diff.graphs import GRAPHS, graph_rows, graph_state, repetitions, unattributed
from tracelens.compare.diff.icicle import ICICLE, icicle_rows
from tracelens.compare.diff.ledger import Level, spread
from tracelens.compare.diff.noise import Spread, differences
from tracelens.compare.diff.pairing import NO_OP as WITHOUT_OP
from tracelens.compare.diff.pairing import ONE_SIDED, Pairing, pair
from tracelens.compare.diff.sides import Side
from tracelens.compare.diff.substitutions import SUBSTITUTIONS, substitution_rows
from tracelens.registry import purpose
from tracelens.table import Column, Result, Schema, Skip, Table, codes, result
from tracelens.trace import Run, Union, union

TAIL = 0.025
"""Probability of each tail of the interval of a difference; an interval that excludes 0 is beyond noise."""

WATERFALL = Schema(
    "Waterfall",
    (
        Column("level", "category", doc=", ".join(LEVELS)),
        Column("name", "category", doc="row within its level, such as a category or an op"),
        Column("base_ns", "int64", "ns", "per step"),
        Column("cand_ns", "int64", "ns", "per step"),
        Column("delta_ns", "int64", "ns", "candidate - base"),
        Column("share", "float64", "ratio", "share of the total difference"),
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
        Column("base_rank", "int64", doc="rank of the longest occurrence, -1 for none"),
        Column("base_ts_ns", "int64", "ns", "longest occurrence, since the trace's first event; -1 for none"),
        Column("cand_rank", "int64", doc="the same in the candidate"),
        Column("cand_ts_ns", "int64", "ns", "the same in the candidate"),
    ),
    doc="Calls are matched by names and structure, not by position. Nested changes overlap, so times here do "
    "not add up; the waterfall does.",
)


PACE = Schema(
    "Without the profiler",
    (
        Column("side", "category", doc="base or cand"),
        Column("step_ns", "float64", "ns", "step without the profiler, mean over ranks"),
        Column("profiled_ns", "float64", "ns", "recorded step, mean over ranks"),
        Column("profiler_cost", "float64", "ratio", "profiled / step - 1"),
        Column("tokens_per_s", "float64", doc="without the profiler; -1 if unknown"),
        Column("steps", "int64", "count", "timed without the profiler"),
    ),
    doc="Timed around the recorded steps; the waterfall covers the recorded steps.",
)


TABLES = {
    "waterfall": WATERFALL,
    "changes": CHANGES,
    "substitutions": SUBSTITUTIONS,
    "icicle": ICICLE,
    "graphs": GRAPHS,
    "pace": PACE,
}


def diff(base: Run, cand: Run) -> Result:
    """What changed between two runs, and what makes up the difference of their step times.

    Args:
        base: the run before.
        cand: the run after; steps, ranks, libraries and hardware may differ.

    Returns:
        tables `waterfall` (level, name, base, candidate, difference, cause), `changes` (edits by kind),
        `substitutions` (kernels side by side), `icicle` and, where a side has them, `graphs` and `pace`.
        meta: base_ns, cand_ns and delta_ns, mean step times; aligned_fraction, the share of GPU time whose
        call has a counterpart; `repetitions` where recordings without step marks repeat their work unequally
        often.

    Raises:
        TracelensError: a rank has no GPU work.
    """
    sides = [[Side(trace) for trace in run.traces] for run in (base, cand)]
    has_graphs = any(side.in_graph.any() for ranks in sides for side in ranks)
    ranks = len(base.traces), len(cand.traces)
    levels = [Level(name, len(ALL_CAUSES), ranks) for name in LEVELS if has_graphs or name != "graph"]
    pairings, aligned_fraction = _add_ranks(levels, sides, [_waits(run) for run in (base, cand)])
    step_ns = _mean_step(sides[0]), _mean_step(sides[1])
    rows = [_rows(level, step_ns) for level in levels]
    edits = _change_rows(merged([changes(*pairing) for pairing in pairings]), sides)
    table = sorted(edits, key=lambda row: (-abs(row["delta_ns"][0]), row["kind"][0]))
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
    pace, lacking = _pace({"base": base, "cand": cand})
    skips += lacking
    meta: dict[str, Any] = {
        "base_ns": step_ns[0],
        "cand_ns": step_ns[1],
        "delta_ns": step_ns[1] - step_ns[0],
        "aligned_fraction": aligned_fraction,
        **({"repetitions": times} if times[0] != times[1] else {}),
    }
    tables = {
        "waterfall": WATERFALL.concat(rows),
        "changes": CHANGES.concat(table),
        "substitutions": SUBSTITUTIONS.concat(list(substitution_rows(pairings))),
        "icicle": ICICLE.concat([icicle_rows(sides)]),
        **({"graphs": GRAPHS.table(graphs)} if graphs else {}),
        **pace,
    }
    return replace(result(tables, skips, **meta), analyzer="diff", title="What changed", doc=purpose(diff))


def _add_ranks(
    levels: Sequence[Level], sides: Sequence[Sequence[Side]], waits: Sequence[Mapping[int, Union]]
) -> tuple[list[tuple[Side, Side, Pairing]], float]:
    """Add all ranks to the levels; their pairs, and the share of GPU time whose call has a counterpart."""
    ranks, experts = [len(side) for side in sides], regrouped(*sides)
    pairings: list[tuple[Side, Side, Pairing]] = []
    aligned_ns, total_ns = 0, 0
    for number in range(max(ranks)):
        pair_of_ranks = base_side, cand_side = sides[0][number % ranks[0]], sides[1][number % ranks[1]]
        pairing = pair(base_side, cand_side)
        pairings.append((base_side, cand_side, pairing))
        for which, side in enumerate(pair_of_ranks):
            if number < ranks[which]:  # the ranks of the smaller run repeat
                cause = pairing.cause[which]
                state = graph_state(side, pair_of_ranks[1 - which], pairing.partner_of_node[which])
                add_rank(levels, which, side, cause, state, waits[which].get(side.rank, _NONE), experts)
                lost = np.isin(cause, (ONE_SIDED, WITHOUT_OP))
                aligned_ns, total_ns = aligned_ns + int(side.ns[~lost].sum()), total_ns + int(side.ns.sum())
    return pairings, aligned_ns / max(total_ns, 1)


_UNEQUAL = (
    "no step marks: whole recordings are compared, and the base repeats its work {} times, the candidate {} "
    "times; calls beyond that are on one side only"
)

_NONE = Union(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


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


def _pace(runs: Mapping[str, Run]) -> tuple[dict[str, Table], list[Skip]]:
    """The table PACE, if a side has a pace, and why the other one is not in it."""
    summaries = {side: pace_summary(run) for side, run in runs.items()}
    known = {side: summary for side, summary in summaries.items() if summary is not None}
    if not known:
        return {}, []
    columns = {name: [getattr(summary, name) for summary in known.values()] for name in PACE.names[1:]}
    skips = [Skip(f"{side}: step without the profiler", NO_PACE) for side in runs if side not in known]
    return {"pace": PACE.table({"side": list(known), **columns})}, skips


def _mean_step(sides: Sequence[Side]) -> int:
    return round(float(np.mean([side.step_ns.mean() for side in sides])))


def _rows(level: Level, step_ns: tuple[int, int]) -> dict[str, Any]:
    """Rows of WATERFALL of one level."""
    rows, total_ns = level.rows(step_ns), step_ns[1] - step_ns[0]
    delta_ns = rows.ns[1] - rows.ns[0]
    return {
        "level": [level.name] * len(delta_ns),
        "name": rows.names,
        "base_ns": rows.ns[0],
        "cand_ns": rows.ns[1],
        "delta_ns": delta_ns,
        "share": delta_ns / total_ns if total_ns else np.zeros(len(delta_ns)),
        "cause": [ALL_CAUSES[code] if ns else "" for code, ns in zip(rows.cause, delta_ns, strict=True)],
        "noise": _noise(*rows.by_step),
        "base_count": rows.counts[0],
        "cand_count": rows.counts[1],
    }


def _noise(base: Spread, cand: Spread) -> list[str]:
    """Whether each difference exceeds the step-to-step noise."""
    if min(base.steps, cand.steps) < 2:
        return ["unknown"] * len(base.mean)
    low, high = differences(base, cand, TAIL)
    return ["within" if inside else "beyond" for inside in ((low <= 0) & (high >= 0)).tolist()]


def _change_rows(by_key: Mapping[Key, Change], sides: Sequence[Sequence[Side]]) -> Iterator[dict[str, Any]]:
    by_step = [
        _by_step([change.ns[number] for change in by_key.values()], ranks)
        for number, ranks in enumerate(sides)
    ]
    noise = _noise(*by_step)
    for row, (key, change) in enumerate(by_key.items()):
        base, cand = (round(float(side.mean[row])) for side in by_step)
        locations = [_location(*example, ranks) for example, ranks in zip(change.example, sides, strict=True)]
        kind = "faster" if key.kind == "slower" and cand < base else key.kind
        times = cand - base, base, cand, change.count, noise[row]
        values = kind, key.base, key.cand, *times, key.where, *locations[0], *locations[1]
        yield {name: [value] for name, value in zip(CHANGES.names, values, strict=True)}


def _by_step(changes: Sequence[Mapping[tuple[int, int], float]], sides: Sequence[Side]) -> Spread:
    """Ns per step of each change, mean over ranks."""
    steps = min(side.steps for side in sides)
    row = np.repeat(np.arange(len(changes)), [len(values) for values in changes])
    step = np.array([min(step, steps - 1) for values in changes for _, step in values], dtype=np.int64)
    ns = np.array([ns for values in changes for ns in values.values()], dtype=np.float64)
    return spread(row, step, ns, len(changes), steps, len(sides))


def _location(rank: int, event: int, sides: Sequence[Side]) -> tuple[int, int]:
    """(rank, ns since its first event) of an event, -1 for none."""
    if event < 0:
        return -1, -1
    side = next(side for side in sides if side.rank == rank)
    return rank, int(side.trace.arrays.start[event]) - side.first_ns
