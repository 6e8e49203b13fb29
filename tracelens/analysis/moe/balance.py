"""Token balance over ranks and experts, and what imbalance costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.moe.passes import RankPasses
from tracelens.analysis.moe.regions import PHASES, RECOMPUTE
from tracelens.analysis.moe.stages import EXPERTS
from tracelens.arrays import Int
from tracelens.table import RANK, STEP, Column, Schema, sums
from tracelens.trace import is_step

LAYER = Column("layer", "int64", doc="among the MoE layers of all chunks of the rank, from 0")

BALANCE = Schema(
    "Expert balance",
    (
        LAYER,
        Column("ranks", "str", doc="in the expert-parallel group"),
        Column("tokens_mean", "float64", "count", "rows that a rank's experts compute per pass"),
        Column("tokens_max", "float64", "count", "of the busiest rank, mean over passes"),
        Column("max_mean_ratio", "float64", "ratio", "imbalance: 100% is balanced"),
        Column("worst_rank", "int64", doc="most often the rank with the most tokens"),
        Column("experts_ns", "int64", "ns", "time in the experts per step, mean of the ranks"),
        Column("cost_ns", "int64", "ns", "per step: slowest rank's experts beyond the mean, pass by pass"),
    ),
    doc="The ranks of an expert-parallel group continue together: the slowest sets the pace.",
)  # fmt: skip

TOKENS = Schema(
    "Tokens by layer and rank",
    (
        RANK,
        LAYER,
        Column("tokens", "float64", "count", "mean rows its experts compute per pass"),
        Column("ratio", "float64", "ratio", "relative to the mean of its expert-parallel group"),
    ),
    detail=True,
    key=("layer",),
)

EXPERT_ROWS = Schema(
    "Tokens by expert",
    (
        RANK,
        LAYER,
        Column(
            "expert", "int64", doc="in launch order on this rank, from 0; unused experts are not launched"
        ),
        Column("tokens", "float64", "count", "mean rows per pass"),
    ),
    doc="The busiest experts first.",
    brief=True,
    key=(),
    leading="tokens",
)

WAITS = Schema(
    "Waiting for slower experts",
    (
        RANK,
        STEP,
        LAYER,
        Column("phase", "category", doc="pass of the micro-batch: forward, recompute or backward"),
        Column("ts_ns", "int64", "ns", "when its own experts finished, by its own clock"),
        Column("dur_ns", "int64", "ns", "until the slowest rank's experts finished"),
    ),
    detail=True,
    key=(),
)


class _Pass(NamedTuple):
    """What all ranks of a group do at the same time."""

    step: str
    microbatch: int
    layer: int
    phase: int


class Group:
    """Ranks of one expert-parallel group.

    Attributes:
        ranks: in order.
        passes: that all ranks recorded.
        rows: of each of them (rows) and each rank (columns), its place among the rank's passes.
        layers: numbers of the layers that all ranks have, ascending.
        layer: place in `layers` of each pass.
        counted: passes forward in which all ranks know how many rows their experts compute.
        tokens: these rows: of each pass counted (rows) and each rank (columns).
    """

    def __init__(self, ranks: Sequence[RankPasses]) -> None:
        self.ranks = ranks
        row_of: dict[_Pass, dict[int, int]] = {}
        for column, rank in enumerate(ranks):
            for row, (number, phase) in enumerate(
                zip(rank.number.tolist(), rank.phase.tolist(), strict=True)
            ):
                layer_pass = rank.passes[number]
                if phase != RECOMPUTE:  # its time is in the backward pass of the others
                    step = rank.labels[layer_pass.step]
                    key = _Pass(step, layer_pass.microbatch, layer_pass.layer, phase)
                    row_of.setdefault(key, {})[column] = row
        complete = {key: rows for key, rows in row_of.items() if len(rows) == len(ranks)}
        self.passes = list(complete)
        rows = [[rows[column] for column in range(len(ranks))] for rows in complete.values()]
        self.rows = np.array(rows, dtype=np.int64).reshape(-1, len(ranks))
        self.layers, self.layer = np.unique(
            np.array([key.layer for key in self.passes], dtype=np.int64), return_inverse=True
        )
        forward = np.array([PHASES[key.phase] == "forward" for key in self.passes], dtype=bool)
        counts = [
            [float(rank.rows_of(int(rank.number[row]))) for rank, row in zip(ranks, of_pass, strict=True)]
            for of_pass in self.rows[forward].tolist()
        ]
        tokens = np.array(counts, dtype=float).reshape(-1, len(ranks))
        known = (tokens >= 0).all(axis=1)
        self.counted, self.tokens = np.flatnonzero(forward)[known], tokens[known]

    def of_passes(self, values: Sequence[Int]) -> Int:
        """Values of each pass (rows) on each rank (columns), from those of all passes of each rank."""
        return np.stack([of_rank[self.rows[:, column]] for column, of_rank in enumerate(values)], axis=1)

    def longer_ns(self) -> Int:
        """What the experts of the slowest rank take longer; 0 where a rank's own experts do nothing."""
        experts_ns = self.of_passes([rank.stage_ns[:, EXPERTS] for rank in self.ranks])
        slowest = experts_ns.max(axis=1, keepdims=True, initial=0)
        return np.where(experts_ns > 0, slowest - experts_ns, 0)


def groups(ranks: Sequence[RankPasses]) -> list[Group]:
    """The expert-parallel groups whose ranks are all in the run."""
    rank_of = {rank.rank: rank for rank in ranks if rank.passes}
    ep_groups = dict.fromkeys(tuple(sorted(rank.group)) for rank in rank_of.values() if len(rank.group) > 1)
    return [
        Group([rank_of[rank] for rank in group])
        for group in ep_groups
        if all(rank in rank_of for rank in group)
    ]


def by_rank(parts: Iterable[Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The columns of all groups, one mapping a rank, in order of rank."""
    return sorted((part for group in parts for part in group), key=lambda part: part["rank"][0])


def wait_rows(group: Group) -> Iterator[dict[str, Any]]:
    """Rows of WAITS of one group, a mapping for each rank that waits."""
    longer_ns, done = group.longer_ns(), group.of_passes([rank.experts_end for rank in group.ranks])
    for column, rank in enumerate(group.ranks):
        waited = np.flatnonzero(longer_ns[:, column])
        if len(waited):
            passes = [group.passes[number] for number in waited.tolist()]
            yield {
                "rank": [rank.rank] * len(passes),
                "step": [key.step for key in passes],
                "layer": group.layers[group.layer[waited]],
                "phase": [PHASES[key.phase] for key in passes],
                "ts_ns": done[waited, column],
                "dur_ns": longer_ns[waited, column],
            }


def balance_rows(group: Group) -> dict[str, Any]:
    """Rows of BALANCE of one group."""
    count, ranks, steps = len(group.layers), len(group.ranks), group.ranks[0].steps
    in_step = np.array([is_step(key.step) for key in group.passes], dtype=bool)
    lost_ns = sums(group.layer[in_step], group.longer_ns().sum(axis=1)[in_step], count)
    spent_ns = np.zeros(count, dtype=np.int64)
    for rank in group.ranks:
        row = np.searchsorted(group.layers, rank.layer)
        mine = rank.in_step & (np.append(group.layers, -1)[row] == rank.layer)
        spent_ns += sums(row[mine], rank.stage_ns[mine, EXPERTS], count)
    layer, tokens = group.layer[group.counted], group.tokens
    passes = np.bincount(layer, minlength=count)
    known = passes > 0
    most = np.bincount(layer, tokens.max(axis=1), count) / np.maximum(passes, 1)
    mean = np.bincount(layer, tokens.sum(axis=1), count) / np.maximum(passes * ranks, 1)
    first = np.bincount(layer * ranks + tokens.argmax(axis=1), minlength=count * ranks)
    worst = first.reshape(count, ranks).argmax(axis=1)
    return {
        "layer": group.layers,
        "ranks": [_ranges([rank.rank for rank in group.ranks])] * count,
        "tokens_mean": np.where(known, mean, -1.0),
        "tokens_max": np.where(known, most, -1.0),
        "max_mean_ratio": np.where(known & (mean > 0), most / np.where(mean > 0, mean, 1.0), -1.0),
        "worst_rank": np.where(known, np.array([rank.rank for rank in group.ranks])[worst], -1),
        "experts_ns": np.rint(spent_ns / ranks / steps).astype(np.int64),
        "cost_ns": np.rint(lost_ns / ranks / steps).astype(np.int64),
    }


def token_rows(group: Group) -> Iterator[dict[str, Any]]:
    """Rows of TOKENS of one group, a mapping for each rank."""
    code, layer = np.unique(group.layer[group.counted], return_inverse=True)
    passes = np.bincount(layer)
    mean = np.stack([np.bincount(layer, own) / passes for own in group.tokens.T], axis=1)
    ratio = mean / np.maximum(mean.mean(axis=1, keepdims=True), 1e-9)
    for column, rank in enumerate(group.ranks):
        if len(code):
            yield {
                "rank": [rank.rank] * len(code),
                "layer": group.layers[code],
                "tokens": mean[:, column],
                "ratio": ratio[:, column],
            }


def expert_rows(rank: RankPasses) -> Iterator[dict[str, Any]]:
    """Rows of EXPERT_ROWS of one rank; none for grouped GEMMs, whose sizes stay on the GPU."""
    of_layer: dict[int, list[list[int]]] = {}
    for layer_pass in rank.passes:
        if not layer_pass.grouped and layer_pass.rows and min(layer_pass.rows) >= 0:
            of_layer.setdefault(layer_pass.layer, []).append(layer_pass.rows)
    for layer, passes in sorted(of_layer.items()):
        most = max(len(rows) for rows in passes)
        # Where experts without tokens are left out, the order of launch says nothing of which they are.
        whole = [rows for rows in passes if len(rows) == most]
        yield {
            "rank": [rank.rank] * most,
            "layer": [layer] * most,
            "expert": list(range(most)),
            "tokens": np.array(whole, dtype=float).mean(axis=0).tolist(),
        }


def _ranges(ranks: Sequence[int]) -> str:
    pieces: list[list[int]] = []
    for rank in ranks:
        if pieces and rank == pieces[-1][-1] + 1:
            pieces[-1][1:] = [rank]
        else:
            pieces.append([rank])
    return ", ".join("-".join(str(rank) for rank in piece) for piece in pieces)
