"""Where the time of the MoE layers goes by stage, and how evenly tokens are spread over experts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.moe.layers import EXPERTS, PERMUTATION, ROUTER, STAGES
from tracelens.analysis.moe.passes import RankPasses, rank_passes
from tracelens.analysis.moe.regions import (
    BACKWARD,
    FORWARD,
    PHASES,
    RECOMPUTE,
    UNATTRIBUTED,
    UNATTRIBUTED_NAME,
    model_layers,
)
from tracelens.arrays import Float, Int
from tracelens.table import RANK, STEP, Column, Result, Schema, Skip, result, sums
from tracelens.trace import Scope, is_step

_STAGE_COLUMNS = tuple(f"{name.replace(' ', '_')}_ns" for name in STAGES)
STAGE_TABLE = Schema(
    "Time in the MoE layers by stage",
    (
        RANK,
        Column("stage", "category", doc="router, dispatch, permute, experts, combine or shared expert"),
        Column("forward_ns", "int64", "ns", "per step"),
        Column("backward_ns", "int64", "ns", "per step"),
        Column("recompute_ns", "int64", "ns", "per step, forward work recomputed in the backward pass"),
        Column(
            "fraction_of_step", "float64", "fraction", "share of the step, forward + backward + recompute"
        ),
        Column(
            "blocking_count",
            "float64",
            "count",
            "blocking calls per pass, forward and backward",
            intensive=True,
        ),
    ),
    doc="Time with kernels of the stage running; overlapping stages each count it. Dispatch and combine "
    "are the communication before and after the experts, including waiting for other ranks; permute "
    "covers sorting and moving tokens on the rank itself.",
)

LAYER = Column("layer", "int64", doc="among the MoE layers of the model, through all pipeline stages, from 0")

LAYERS = Schema(
    "MoE layers",
    (
        RANK,
        LAYER,
        Column("passes", "int64", "count", "micro-batches, all steps together"),
        Column("forward_ns", "int64", "ns", "wall time of a pass"),
        Column("backward_ns", "int64", "ns", "wall time of a pass, with recompute"),
        *(Column(name, "int64", "ns", "forward and backward") for name in _STAGE_COLUMNS),
        Column("exposed_ns", "int64", "ns", "exposed communication of the layer"),
        Column("idle_ns", "int64", "ns", "no GPU work runs"),
        Column("gemms", "float64", "count", "expert GEMMs, forward"),
        Column(
            "blocking_count",
            "float64",
            "count",
            "blocking calls; a copy and the synchronize behind it are one",
        ),
        Column("blocked_ns", "int64", "ns", "host time in them"),
        Column(
            "tokens", "float64", "count", "rows that its experts compute, missing if not recorded", absent=-1
        ),
    ),
    doc="Means per micro-batch and layer.",
    key=("layer",),
    absent_is_zero=False,
)
PASS_TABLE = Schema(
    "Passes of micro-batches through MoE layers",
    (
        RANK,
        STEP,
        Column("micro_batch", "int64", doc="in the step, from 0"),
        LAYER,
        Column("phase", "category", doc=", ".join(PHASES)),
        Column("ts_ns", "int64", "ns", "start of its first GPU work, by the rank's own clock"),
        Column(
            "dur_ns", "int64", "ns", "to the end of its last; in a compiled graph without other layers' work"
        ),
        *(Column(name, "int64", "ns", "kernels of the stage run in this pass") for name in _STAGE_COLUMNS),
        Column("exposed_ns", "int64", "ns", "exposed communication of the layer"),
        Column("idle_ns", "int64", "ns", "no GPU work runs"),
        Column(
            "blocking_count", "int64", "count", "blocking calls; a copy and the synchronize behind it are one"
        ),
        Column("blocked_ns", "int64", "ns", "host time in them"),
        Column(
            "tokens", "int64", "count", "rows that its experts compute, missing if not recorded", absent=-1
        ),
    ),
    detail=True,
    key=(),
)
SYNC_FREE = {
    0: "blocking calls in the router or the permutation",
    1: "none in the router and the permutation",
    2: "none in the router, the permutation and the experts, whose GEMMs read their sizes on the GPU",
    3: "none",
}
"""Stages of sync-free MoE layers (Primus' turbo_sync_free_moe_stage), by what is left of blocking calls.

Those for memory do not count."""

BALANCE = Schema(
    "Expert balance",
    (
        LAYER,
        Column("ranks", "str", doc="in the expert-parallel group"),
        Column("tokens_mean", "float64", "count", "rows that a rank's experts compute per pass", absent=-1),
        Column("tokens_max", "float64", "count", "of the busiest rank, mean over passes", absent=-1),
        Column("max_mean_ratio", "float64", "ratio", "imbalance: 100% is balanced", absent=-1),
        Column("worst_rank", "int64", doc="most often the rank with the most tokens", absent=-1),
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
EXPERT_BALANCE = Schema(
    "Balance of a rank's experts",
    (
        RANK,
        LAYER,
        Column("experts", "int64", "count", "on the rank", intensive=True),
        Column("unused", "float64", "count", "experts without tokens per pass", intensive=True),
        Column("tokens_mean", "float64", "count", "rows of an expert per pass"),
        Column("tokens_max", "float64", "count", "of the busiest expert, mean over passes"),
        Column("max_mean_ratio", "float64", "ratio", "imbalance: 100% is balanced", intensive=True),
        Column(
            "variation",
            "float64",
            "ratio",
            "standard deviation / mean over the experts, mean over passes",
            intensive=True,
        ),
    ),
    doc="Of passes forward whose calls record the rows of each expert.",
    key=("layer",),
    leading="max_mean_ratio",
    absent_is_zero=False,
)
EXPERT_ROWS = Schema(
    "Tokens by expert",
    (
        RANK,
        LAYER,
        Column("expert", "int64", doc="on the rank, from 0, by recorded split sizes or arguments"),
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

TABLES = {
    "stages": STAGE_TABLE,
    "layers": LAYERS,
    "balance": BALANCE,
    "expert_balance": EXPERT_BALANCE,
    "passes": PASS_TABLE,
    "tokens": TOKENS,
    "experts": EXPERT_ROWS,
    "waits": WAITS,
}


class _Pass(NamedTuple):
    """What all ranks of a group do at the same time."""

    step: str
    micro_batch: int
    layer: int
    phase: int


class ExpertGroup:
    """Ranks of one expert-parallel group."""

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
                    key = _Pass(step, layer_pass.micro_batch, layer_pass.layer, phase)
                    row_of.setdefault(key, {})[column] = row
        complete = {key: rows for key, rows in row_of.items() if len(rows) == len(ranks)}
        self.passes = list(complete)  # that all ranks recorded
        # Of each of them (rows) and each rank (columns), its place among the rank's passes.
        rows = [[rows[column] for column in range(len(ranks))] for rows in complete.values()]
        self.rows = np.array(rows, dtype=np.int64).reshape(-1, len(ranks))
        # Numbers of the layers that all ranks have, ascending, and the place in them of each pass.
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
        # The passes forward in which all ranks know how many rows their experts compute, and these rows: of
        # each such pass (rows) and each rank (columns).
        self.counted, self.tokens = np.flatnonzero(forward)[known], tokens[known]

    def of_passes(self, values: Sequence[Int]) -> Int:
        """Values of each pass (rows) on each rank (columns), from those of all passes of each rank."""
        return np.stack([of_rank[self.rows[:, column]] for column, of_rank in enumerate(values)], axis=1)

    def longer_ns(self) -> Int:
        """What the experts of the slowest rank take longer; 0 where a rank's own experts do nothing."""
        experts_ns = self.of_passes([rank.stage_ns[:, EXPERTS] for rank in self.ranks])
        slowest = experts_ns.max(axis=1, keepdims=True, initial=0)
        return np.where(experts_ns > 0, slowest - experts_ns, 0)


@analyzer("moe", title="MoE layers", order=82, part=rank_passes, tables=TABLES)
def moe(ranks: Sequence[RankPasses], *, scope: Scope = "all") -> Result:
    """Where does the time of the MoE layers go, and how evenly are tokens spread over experts?

    Layers are identified by the program's scopes or modules, else by a router's top-k between two
    normalizations. Backward work belongs to the stage of its forward op; that of a compiled region, which has
    one for several layers, to the stage of its tensors' sizes.

    Reading:
        `stages` shows where the time goes, `layers` which layer takes it. In `balance`, a ratio of 100% is
        balanced, and `cost_ns` is what the slowest rank costs. `expert_balance` is about the experts of each
        rank, and of a single GPU.

    Limits:
        Tokens by expert are unknown where grouped GEMMs read their sizes from GPU memory, and those of a rank
        where it leaves out the rows of other ranks' experts. A loop over experts records sizes, but only a
        split of the rows in front of it tells whose they are.

    Args:
        ranks: from `rank_passes`.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `stages`, `layers`, `balance`, `expert_balance`, `passes`, `tokens`, `experts` and `waits`.
        meta: `layers`, `experts` and `chosen` (of one layer's router), `found_by`, `sync_free_stage` (see
        SYNC_FREE).
    """
    numbers = model_layers([rank.chunk_layers for rank in ranks])
    if not isinstance(numbers, str):
        ranks = [rank.numbered(layers) for rank, layers in zip(ranks, numbers, strict=True)]
    with_layers = [rank for rank in ranks if rank.passes]
    skips = [Skip(f"rank {rank.rank}", rank.lacking) for rank in ranks if rank.lacking]
    ep_groups = groups(ranks)
    rows: dict[str, list[dict[str, Any]]] = {
        "layers": [_layer_rows(rank) for rank in with_layers],
        "balance": [balance_rows(group) for group in ep_groups],
        "tokens": by_rank(token_rows(group) for group in ep_groups),
        "expert_balance": [row for rank in with_layers for row in expert_balance_rows(rank)],
        "experts": [row for rank in with_layers for row in expert_rows(rank)],
        "waits": by_rank(wait_rows(group) for group in ep_groups),
        "stages": [],
        "passes": [],
    }
    sync_free_stages = []
    for rank in with_layers:
        # The last stage, of work of no known one, only where there is any.
        names = [*STAGES, UNATTRIBUTED_NAME][: UNATTRIBUTED + bool(rank.no_layer_ns[UNATTRIBUTED])]
        ns = {
            phase: np.append(rank.stage_ns[rank.in_step & (rank.phase == phase)].sum(axis=0), 0)[: len(names)]
            / rank.steps
            for phase in range(len(PHASES))
        }
        ns[BACKWARD] += rank.no_layer_ns[: len(names)] / rank.steps
        passes = max(sum(not layer_pass.is_recompute for layer_pass in rank.passes), 1)
        rows["stages"].append(
            {
                "rank": [rank.rank] * len(names),
                "stage": names,
                "forward_ns": ns[FORWARD].astype(np.int64),
                "backward_ns": ns[BACKWARD].astype(np.int64),
                "recompute_ns": ns[RECOMPUTE].astype(np.int64),
                "fraction_of_step": np.minimum(sum(ns.values()) / max(rank.step_ns, 1), 1.0),
                "blocking_count": np.append(rank.blocking.sum(axis=0), 0)[: len(names)] / passes,
            }
        )
        layer_passes = [rank.passes[number] for number in rank.number.tolist()]
        rows["passes"].append(
            {
                "rank": [rank.rank] * len(layer_passes),
                "step": [rank.labels[layer_pass.step] for layer_pass in layer_passes],
                "micro_batch": [layer_pass.micro_batch for layer_pass in layer_passes],
                "layer": [layer_pass.layer for layer_pass in layer_passes],
                "phase": [PHASES[phase] for phase in rank.phase.tolist()],
                "ts_ns": rank.start,
                "dur_ns": rank.dur,
                **{name: rank.stage_ns[:, stage] for stage, name in enumerate(_STAGE_COLUMNS)},
                "exposed_ns": rank.exposed_ns,
                "idle_ns": rank.idle_ns,
                "blocking_count": rank.blocking.sum(axis=1),
                "blocked_ns": rank.blocked_ns,
                "tokens": [rank.rows_of(number) for number in rank.number.tolist()],
            }
        )
        # Calls for memory are none that a layer waits with for what its GPU makes. A loop over experts has
        # all sizes on the host, also where they came with those of messages.
        waits = (rank.blocking - rank.allocations)[rank.phase == FORWARD].sum(axis=0)
        if not waits.any():
            sync_free_stages.append(3)
        elif waits[[ROUTER, PERMUTATION]].any():
            sync_free_stages.append(0)
        else:
            grouped = all(item.grouped for item in rank.passes)
            sync_free_stages.append(2 if grouped and not waits[EXPERTS] else 1)
    tables = {name: schema.concat(rows[name]) for name, schema in TABLES.items()}
    tables["experts"] = tables["experts"].take(np.argsort(-tables["experts"].array("tokens"), kind="stable"))
    if not with_layers:
        return result(tables, skips, scope=scope)
    # What is unknown about ranks with MoE layers.
    compiled = "compiled backward work"
    if any(rank.no_layer_ns[UNATTRIBUTED] for rank in with_layers):
        reason = "tensor sizes are ambiguous or not recorded; use record_shapes=True"
        skips.append(Skip(f"stages of some {compiled}", reason))
    if any(rank.no_layer_ns[:UNATTRIBUTED].any() for rank in with_layers):
        skips.append(Skip(f"layers of some {compiled}", "not every layer has ops of the same sizes"))
    if isinstance(numbers, str):
        reason = f"each rank counts its own MoE layers from 0: {numbers}"
        skips.append(Skip("layer numbers through the pipeline", reason))
    all_passes = [layer_pass for rank in with_layers for layer_pass in rank.passes]
    skips += _unknown_experts(with_layers)
    if any(rank.has_noted_rows and any(rank.buffered) for rank in with_layers):
        reason = "buffers for the worst case: the rows that the recorder noted of another step stand for all"
        skips.append(Skip("tokens of each pass", reason))
    if not ep_groups:
        if any(len(rank.group) > 1 for rank in with_layers):
            reason = "ranks of the expert-parallel group are missing"
        elif any(rank.moves_tokens for rank in with_layers):
            reason = "the ranks of the all-to-all are not recorded"
        else:
            reason = "no expert parallelism: no rank sends tokens to another"
        skips.append(Skip("balance between ranks", reason))
    elif any(rank.rows_of(number) < 0 for rank in with_layers for number in range(len(rank.passes))):
        reason = "shapes of the expert GEMMs not recorded; use record_shapes=True"
        if any(rank.masks_rows(number) for rank in with_layers for number in range(len(rank.passes))):
            reason = "grouped GEMMs leave out rows of other ranks' experts; the GPU alone knows how many"
        elif any(any(rank.buffered) for rank in with_layers):
            reason = (
                "experts compute buffers for the worst case, of which the GPU alone knows the tokens' rows"
            )
        skips.append(Skip("tokens of some passes", reason))
    return result(
        tables,
        skips,
        scope=scope,
        layers=max(layer_pass.layer for layer_pass in all_passes) + 1,
        # -1 where the trace does not say
        experts=max((count for layer_pass in all_passes if (count := layer_pass.experts) >= 0), default=None),
        top_k=max((count for layer_pass in all_passes if (count := layer_pass.top_k) >= 0), default=None),
        found_by="scopes or modules" if all(rank.framed for rank in with_layers) else "order of ops",
        sync_free_stage=min(sync_free_stages),
    )


def _unknown_experts(ranks: Sequence[RankPasses]) -> list[Skip]:
    """Why the tokens of some experts are not known."""
    passes = [
        (layer_pass, rank.rows_by_expert(number))
        for rank in ranks
        for number, layer_pass in enumerate(rank.passes)
        if not layer_pass.expert_rows
    ]
    loops = [(layer_pass.rows, rows) for layer_pass, rows in passes if not layer_pass.grouped]
    skips = []
    if len(loops) < len(passes):
        skips.append(Skip("tokens by expert", "grouped GEMMs read their sizes from GPU memory"))
    if any(launched and min(launched) < 0 for launched, _ in loops):
        reason = "shapes of the expert GEMMs not recorded; use record_shapes=True"
        skips.append(Skip("tokens by expert", reason))
    if any(len(rows) > 1 for _, rows in loops):
        reason = "a loop does not record which expert each GEMM is of; only their balance is known"
        skips.append(Skip("tokens by expert", reason))
    if any(launched and min(launched) >= 0 and not rows for launched, rows in loops):
        reason = "number of experts on the rank not recorded"
        skips.append(Skip("balance of a rank's experts", reason))
    return skips


def _layer_rows(rank: RankPasses) -> dict[str, Any]:
    """Rows of LAYERS of one rank."""
    layers, layer = np.unique(rank.layer, return_inverse=True)
    row_of = {number: row for row, number in enumerate(layers.tolist())}
    forwards = [
        number
        for number, layer_pass in enumerate(rank.passes)
        if not layer_pass.is_recompute and layer_pass.layer in row_of
    ]
    row = np.array([row_of[rank.passes[number].layer] for number in forwards], dtype=np.int64)
    gemms = np.array([len(rank.passes[number].gemms) for number in forwards], dtype=np.int64)
    tokens = np.array([rank.rows_of(number) for number in forwards], dtype=np.float64)
    known = tokens >= 0
    passes, with_tokens = (np.bincount(rows, minlength=len(layers)) for rows in (row, row[known]))
    count = np.maximum(passes, 1)
    forward = rank.phase == FORWARD

    def mean(values: Int) -> Int:
        # In floats: passes whose events lie far apart may add up to more than int64 holds.
        total = np.bincount(layer, weights=values, minlength=len(layers))
        return np.rint(total / count).astype(np.int64)

    return {
        "rank": np.full(len(layers), rank.rank),
        "layer": layers,
        "passes": passes,
        "forward_ns": mean(np.where(forward, rank.dur, 0)),
        "backward_ns": mean(np.where(forward, 0, rank.dur)),
        **{name: mean(rank.stage_ns[:, stage]) for stage, name in enumerate(_STAGE_COLUMNS)},
        "exposed_ns": mean(rank.exposed_ns),
        "idle_ns": mean(rank.idle_ns),
        "gemms": _means(gemms, row, len(layers)),
        "blocking_count": sums(layer, rank.blocking.sum(axis=1), len(layers)) / count,
        "blocked_ns": mean(rank.blocked_ns),
        "tokens": np.where(with_tokens > 0, _means(tokens[known], row[known], len(layers)), -1.0),
    }


def _means(values: Int | Float, group: Int, groups: int) -> Float:
    """Mean of the values of each group, 0 of a group without any."""
    means: Float = np.bincount(group, values, groups) / np.maximum(np.bincount(group, minlength=groups), 1)
    return means


def groups(ranks: Sequence[RankPasses]) -> list[ExpertGroup]:
    """The expert-parallel groups whose ranks are all in the run."""
    rank_of = {rank.rank: rank for rank in ranks if rank.passes}
    ep_groups = dict.fromkeys(tuple(sorted(rank.group)) for rank in rank_of.values() if len(rank.group) > 1)
    return [
        ExpertGroup([rank_of[rank] for rank in group])
        for group in ep_groups
        if all(rank in rank_of for rank in group)
    ]


def by_rank(parts: Iterable[Iterable[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The columns of all groups, one mapping a rank, in order of rank."""
    return sorted((part for group in parts for part in group), key=lambda part: part["rank"][0])


def wait_rows(group: ExpertGroup) -> Iterator[dict[str, Any]]:
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


def balance_rows(group: ExpertGroup) -> dict[str, Any]:
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
    most = _means(tokens.max(axis=1), layer, count)
    mean = np.bincount(layer, tokens.sum(axis=1), count) / np.maximum(passes * ranks, 1)
    first = np.bincount(layer * ranks + tokens.argmax(axis=1), minlength=count * ranks)
    worst = first.reshape(count, ranks).argmax(axis=1)
    # Ranks as ranges: "0-3, 8".
    ranges: list[list[int]] = []
    for rank in group.ranks:
        if ranges and rank.rank == ranges[-1][-1] + 1:
            ranges[-1][1:] = [rank.rank]
        else:
            ranges.append([rank.rank])
    return {
        "layer": group.layers,
        "ranks": [", ".join("-".join(map(str, ends)) for ends in ranges)] * count,
        "tokens_mean": np.where(known, mean, -1.0),
        "tokens_max": np.where(known, most, -1.0),
        "max_mean_ratio": np.where(known & (mean > 0), most / np.where(mean > 0, mean, 1.0), -1.0),
        "worst_rank": np.where(known, np.array([rank.rank for rank in group.ranks])[worst], -1),
        "experts_ns": np.rint(spent_ns / ranks / steps).astype(np.int64),
        "cost_ns": np.rint(lost_ns / ranks / steps).astype(np.int64),
    }


def token_rows(group: ExpertGroup) -> Iterator[dict[str, Any]]:
    """Rows of TOKENS of one group, a mapping for each rank."""
    code, layer = np.unique(group.layer[group.counted], return_inverse=True)
    mean = np.stack([_means(own, layer, len(code)) for own in group.tokens.T], axis=1)
    ratio = mean / np.maximum(mean.mean(axis=1, keepdims=True), 1e-9)
    for column, rank in enumerate(group.ranks):
        if len(code):
            yield {
                "rank": [rank.rank] * len(code),
                "layer": group.layers[code],
                "tokens": mean[:, column],
                "ratio": ratio[:, column],
            }


def expert_balance_rows(rank: RankPasses) -> Iterator[dict[str, Any]]:
    """Rows of EXPERT_BALANCE of one rank, a mapping for each layer with several experts."""
    of_layer: dict[int, list[Float]] = {}
    for number, layer_pass in enumerate(rank.passes):
        rows = np.array(rank.rows_by_expert(number), dtype=np.float64)
        if not layer_pass.is_recompute and len(rows) > 1:
            of_layer.setdefault(layer_pass.layer, []).append(rows)
    for layer, passes in sorted(of_layer.items()):
        mean = np.mean([of_pass.mean() for of_pass in passes])
        most = np.mean([of_pass.max() for of_pass in passes])
        yield {
            "rank": [rank.rank],
            "layer": [layer],
            "experts": [max(map(len, passes))],
            "unused": [np.mean([(of_pass == 0).sum() for of_pass in passes])],
            "tokens_mean": [mean],
            "tokens_max": [most],
            "max_mean_ratio": [most / max(mean, 1e-9)],
            "variation": [np.mean([of_pass.std() / max(of_pass.mean(), 1e-9) for of_pass in passes])],
        }


def expert_rows(rank: RankPasses) -> Iterator[dict[str, Any]]:
    """Rows of EXPERT_ROWS of one rank, of passes that record the rows of each expert by its number."""
    of_layer: dict[int, list[tuple[int, ...]]] = {}
    for layer_pass in rank.passes:
        if layer_pass.expert_rows and not layer_pass.is_recompute:
            of_layer.setdefault(layer_pass.layer, []).append(layer_pass.expert_rows)
    for layer, passes in sorted(of_layer.items()):
        experts = max(map(len, passes))
        yield {
            "rank": [rank.rank] * experts,
            "layer": [layer] * experts,
            "expert": list(range(experts)),
            "tokens": np.mean([rows for rows in passes if len(rows) == experts], axis=0).tolist(),
        }
