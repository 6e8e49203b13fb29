"""How evenly the tokens are spread over ranks and experts, and what it costs that they are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.moe.passes import RankPasses
from tracelens.analysis.moe.regions import PHASES, RECOMPUTE
from tracelens.analysis.moe.stages import EXPERTS
from tracelens.table import Column, Schema
from tracelens.trace import is_step

BALANCE = Schema(
    "Balance of the experts",
    (
        Column("layer", "int64"),
        Column("ranks", "str", doc="that exchange tokens"),
        Column("tokens_mean", "float64", "count", "rows that a rank's experts compute in a pass"),
        Column("tokens_max", "float64", "count", "of the rank with most, each pass by itself, mean of them"),
        Column("max_mean_ratio", "float64", "ratio", "imbalance: 100% is even"),
        Column("worst_rank", "int64", doc="most often the one with most"),
        Column("experts_ns", "int64", "ns", "time in the experts of a step, mean of the ranks"),
        Column("cost_ns", "int64", "ns", "of a step: what the slowest rank's experts take longer than "
               "the mean, pass by pass"),
    ),
    doc="Ranks that exchange tokens go on together, so the slowest of them sets the pace.",
)  # fmt: skip

TOKENS = Schema(
    "Tokens by layer and rank",
    (
        Column("rank", "int64"),
        Column("layer", "int64"),
        Column("tokens", "float64", "count", "rows that its experts compute in a pass, mean"),
        Column("ratio", "float64", "ratio", "of the mean of the ranks that it exchanges tokens with"),
    ),
    detail=True,
)

EXPERT_ROWS = Schema(
    "Tokens by expert",
    (
        Column("rank", "int64"),
        Column("layer", "int64"),
        Column(
            "expert", "int64", doc="in order of launch on this rank, from 0; unused ones are not launched"
        ),
        Column("tokens", "float64", "count", "rows in a pass, mean"),
    ),
    detail=True,
)

WAITS = Schema(
    "Waiting for slower experts",
    (
        Column("rank", "int64"),
        Column("step", "category"),
        Column("layer", "int64"),
        Column("phase", "category"),
        Column("ts_ns", "int64", "ns", "when its own experts were done, by its own clock"),
        Column("dur_ns", "int64", "ns", "what those of the slowest rank took longer"),
    ),
    detail=True,
)


class _Pass(NamedTuple):
    """What all ranks of a group do at the same time."""

    step: str
    microbatch: int
    layer: int
    phase: int


class Group:
    """Ranks that exchange tokens.

    Args:
        ranks: in order.
    """

    def __init__(self, ranks: Sequence[RankPasses]) -> None:
        self.ranks = ranks
        self._tokens: dict[int, list[list[int]]] = {}
        self._places: dict[_Pass, dict[int, int]] = {}
        for number, one in enumerate(ranks):
            for row, (visit, phase) in enumerate(zip(one.number.tolist(), one.phase.tolist(), strict=True)):
                of = one.visits[visit]
                if phase != RECOMPUTE:  # its time is in the backward pass of the others
                    key = _Pass(one.labels[of.step], of.microbatch, of.layer, phase)
                    self._places.setdefault(key, {})[number] = row
        for key, rows in self._complete():
            of_layer = self._tokens.setdefault(key.layer, [])
            if PHASES[key.phase] == "forward":
                counts = [rank.rows_of(int(rank.number[rows[at]])) for at, rank in enumerate(ranks)]
                if min(counts) >= 0:
                    of_layer.append(counts)

    def layers(self) -> list[int]:
        """Numbers of the layers that all ranks have."""
        return sorted(self._tokens)

    def _complete(self) -> Iterator[tuple[_Pass, dict[int, int]]]:
        """Passes that all ranks recorded, with each one's row."""
        for key, rows in self._places.items():
            if len(rows) == len(self.ranks):
                yield key, rows

    def tokens(self, layer: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Rows that each rank's experts compute: one row a pass, one column a rank; without unknown ones."""
        return np.array(self._tokens[layer], dtype=float).reshape(-1, len(self.ranks))

    def experts_ns(self) -> dict[int, int]:
        """Layer to the time in its experts in all steps, of all ranks."""
        result: dict[int, int] = {}
        for rank in self.ranks:
            counted = rank.in_step
            spent = rank.stage_ns[counted, EXPERTS].tolist()
            for layer, ns in zip(rank.layer[counted].tolist(), spent, strict=True):
                result[layer] = result.get(layer, 0) + ns
        return result

    def waits(self) -> Iterator[dict[str, Any]]:
        for key, rows in self._complete():
            took = np.array([rank.stage_ns[rows[at], EXPERTS] for at, rank in enumerate(self.ranks)])
            for at, less in enumerate((took.max() - took).tolist()):
                one = self.ranks[at]
                if less > 0 and took[at] > 0:
                    yield {
                        "rank": [one.rank],
                        "step": [key.step],
                        "layer": [key.layer],
                        "phase": [PHASES[key.phase]],
                        "ts_ns": [int(one.experts_end[rows[at]])],
                        "dur_ns": [less],
                    }


def groups(ranks: Sequence[RankPasses]) -> list[Group]:
    """The groups in which tokens are exchanged, of ranks that are all there."""
    of = {one.rank: one for one in ranks if one.visits}
    found = dict.fromkeys(tuple(sorted(one.group)) for one in of.values() if len(one.group) > 1)
    return [Group([of[rank] for rank in group]) for group in found if all(rank in of for rank in group)]


def balance_rows(group: Group, waits: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of BALANCE of one group, from its rows of WAITS."""
    number, steps = len(group.ranks), group.ranks[0].steps
    spent, ranks = group.experts_ns(), _ranges([one.rank for one in group.ranks])
    lost: Counter[int] = Counter()
    for row in waits:
        if is_step(row["step"][0]):
            lost[row["layer"][0]] += row["dur_ns"][0]
    for layer in group.layers():
        tokens = group.tokens(layer)
        known = len(tokens) > 0
        worst = np.bincount(tokens.argmax(axis=1), minlength=number) if known else np.zeros(number)
        mean, most = (float(tokens.mean()), float(tokens.max(axis=1).mean())) if known else (-1.0, -1.0)
        yield {
            "layer": [layer],
            "ranks": [ranks],
            "tokens_mean": [mean],
            "tokens_max": [most],
            "max_mean_ratio": [most / mean if mean > 0 else -1.0],
            "worst_rank": [group.ranks[int(worst.argmax())].rank if known else -1],
            "experts_ns": [round(spent.get(layer, 0) / number / steps)],
            "cost_ns": [round(lost[layer] / number / steps)],
        }


def token_rows(group: Group) -> Iterator[dict[str, Any]]:
    """Rows of TOKENS of one group."""
    for layer in group.layers():
        tokens = group.tokens(layer)
        if len(tokens):
            mean = tokens.mean(axis=0)
            for one, value in zip(group.ranks, mean.tolist(), strict=True):
                ratio = value / max(float(mean.mean()), 1e-9)
                yield {"rank": [one.rank], "layer": [layer], "tokens": [value], "ratio": [ratio]}


def expert_rows(one: RankPasses) -> Iterator[dict[str, Any]]:
    """Rows of EXPERT_ROWS of one rank; none for grouped products, whose sizes stay on the GPU."""
    of_layer: dict[int, list[list[int]]] = {}
    for visit in one.visits:
        if not visit.grouped and visit.rows and min(visit.rows) >= 0:
            of_layer.setdefault(visit.layer, []).append(visit.rows)
    for layer, passes in sorted(of_layer.items()):
        most = max(len(rows) for rows in passes)
        # Where experts without tokens are left out, the order of launch says nothing of which they are.
        whole = [rows for rows in passes if len(rows) == most]
        for expert, rows in enumerate(np.array(whole, dtype=float).mean(axis=0).tolist()):
            yield {"rank": [one.rank], "layer": [layer], "expert": [expert], "tokens": [rows]}


def _ranges(ranks: Sequence[int]) -> str:
    pieces: list[list[int]] = []
    for rank in ranks:
        if pieces and rank == pieces[-1][-1] + 1:
            pieces[-1][1:] = [rank]
        else:
            pieces.append([rank])
    return ", ".join("-".join(str(rank) for rank in piece) for piece in pieces)
