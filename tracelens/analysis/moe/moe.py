"""Where the time of the MoE layers goes: router, dispatch, permutation, experts, combine, shared expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.moe.balance import (
    BALANCE,
    EXPERT_ROWS,
    LAYER,
    TOKENS,
    WAITS,
    balance_rows,
    by_rank,
    expert_rows,
    groups,
    token_rows,
    wait_rows,
)
from tracelens.analysis.moe.passes import RankPasses, rank_passes
from tracelens.analysis.moe.regions import BACKWARD, FORWARD, PHASES, RECOMPUTE
from tracelens.analysis.moe.stages import EXPERTS, PERMUTATION, ROUTER, STAGES
from tracelens.analysis.moe.tensor_sizes import UNATTRIBUTED, UNATTRIBUTED_NAME
from tracelens.arrays import Int
from tracelens.table import RANK, STEP, Column, Result, Schema, Skip, result, sums
from tracelens.trace import Scope

_STAGE_COLUMNS = tuple(f"{name.replace(' ', '_')}_ns" for name in STAGES)

STAGE_TABLE = Schema(
    "Time in the MoE layers by stage",
    (
        RANK,
        Column("stage", "category", doc="router, dispatch, permute, experts, combine or shared expert"),
        Column("forward_ns", "int64", "ns", "per step"),
        Column("backward_ns", "int64", "ns", "per step"),
        Column("recompute_ns", "int64", "ns", "per step, forward work recomputed in the backward pass"),
        Column("fraction", "float64", "fraction", "share of the step, forward + backward + recompute"),
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
        Column("blocking_count", "float64", "count", "blocking calls"),
        Column("blocked_ns", "int64", "ns", "host time in them"),
        Column("tokens", "float64", "count", "rows that its experts compute, -1 if not recorded"),
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
        Column("microbatch", "int64", doc="in the step, from 0"),
        LAYER,
        Column("phase", "category", doc=", ".join(PHASES)),
        Column("ts_ns", "int64", "ns", "start of its first GPU work, by the rank's own clock"),
        Column(
            "dur_ns", "int64", "ns", "to the end of its last; in a compiled graph without other layers' work"
        ),
        *(Column(name, "int64", "ns", "kernels of the stage run in this pass") for name in _STAGE_COLUMNS),
        Column("exposed_ns", "int64", "ns", "exposed communication of the layer"),
        Column("idle_ns", "int64", "ns", "no GPU work runs"),
        Column("blocking_count", "int64", "count", "blocking calls"),
        Column("blocked_ns", "int64", "ns", "host time in them"),
        Column("tokens", "int64", "count", "rows that its experts compute, -1 if not recorded"),
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
"""Stages of sync-free MoE layers, by what is left of blocking calls (Primus' turbo_sync_free_moe_stage)."""


TABLES = {
    "stages": STAGE_TABLE,
    "layers": LAYERS,
    "balance": BALANCE,
    "passes": PASS_TABLE,
    "tokens": TOKENS,
    "experts": EXPERT_ROWS,
    "waits": WAITS,
}


@analyzer("moe", title="MoE layers", order=82, part=rank_passes, tables=TABLES)
def moe(ranks: Sequence[RankPasses], *, scope: Scope = "all") -> Result:
    """Where does the time of the MoE layers go, and how evenly are tokens spread over experts?

    Layers are identified by the program's scopes or modules, else by a router's top-k between two
    normalizations. Backward work belongs to the stage of its forward op; that of a compiled region, which has
    one for several layers, to the stage of its tensors' sizes.

    Reading:
        `stages` shows where the time goes, `layers` which layer takes it. In `balance`, a ratio of 100% is
        balanced, and `cost_ns` is what the slowest rank costs.

    Limits:
        Tokens by expert are unknown where grouped GEMMs read their sizes from GPU memory.

    Args:
        ranks: from `rank_passes`.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `stages`, `layers`, `balance`, `passes`, `tokens`, `experts` and `waits`. meta: `layers`,
        `experts` and `chosen` (of one layer's router), `found_by`, `sync_free_stage` (see SYNC_FREE).
    """
    with_layers = [rank for rank in ranks if rank.passes]
    skips = [
        Skip(f"rank {rank.rank}", "no MoE layer: no router followed by experts")
        for rank in ranks
        if not rank.passes
    ]
    ep_groups = groups(ranks)
    rows: dict[str, list[dict[str, Any]]] = {
        "stages": [_stage_rows(rank) for rank in with_layers],
        "layers": [_layer_rows(rank) for rank in with_layers],
        "balance": [balance_rows(group) for group in ep_groups],
        "passes": [_pass_rows(rank) for rank in with_layers],
        "tokens": by_rank(token_rows(group) for group in ep_groups),
        "experts": [row for rank in with_layers for row in expert_rows(rank)],
        "waits": by_rank(wait_rows(group) for group in ep_groups),
    }
    tables = {name: schema.concat(rows[name]) for name, schema in TABLES.items()}
    tables["experts"] = tables["experts"].take(np.argsort(-tables["experts"].array("tokens"), kind="stable"))
    skips += _unknown(with_layers, ep_groups != [])
    return result(tables, skips, scope=scope, **_meta(with_layers))


def _unknown(ranks: Sequence[RankPasses], any_groups: bool) -> Iterator[Skip]:
    """What is unknown about ranks with MoE layers."""
    if not ranks:
        return
    compiled = "compiled backward work"
    if any(rank.no_layer_ns[UNATTRIBUTED] for rank in ranks):
        reason = "tensor sizes are ambiguous or not recorded; use record_shapes=True"
        yield Skip(f"stages of some {compiled}", reason)
    if any(rank.no_layer_ns[:UNATTRIBUTED].any() for rank in ranks):
        yield Skip(f"layers of some {compiled}", "not every layer has ops of the same sizes")
    if any(layer_pass.grouped for rank in ranks for layer_pass in rank.passes):
        yield Skip("tokens by expert", "grouped GEMMs read their sizes from GPU memory")
    if not any_groups:
        if any(len(rank.group) > 1 for rank in ranks):
            reason = "ranks of the expert-parallel group are missing"
        elif any(rank.moves_tokens for rank in ranks):
            reason = "the ranks of the all-to-all are not recorded"
        else:
            reason = "no expert parallelism: no rank sends tokens to another"
        yield Skip("balance between ranks", reason)
    elif any(rank.rows_of(number) < 0 for rank in ranks for number in range(len(rank.passes))):
        yield Skip("tokens of some passes", "shapes of the expert GEMMs not recorded; use record_shapes=True")


def _meta(ranks: Sequence[RankPasses]) -> dict[str, Any]:
    layer_passes = [layer_pass for rank in ranks for layer_pass in rank.passes]
    if not layer_passes:
        return {}
    stages = {_sync_free(rank) for rank in ranks}
    return {
        "layers": max(layer_pass.layer for layer_pass in layer_passes) + 1,
        "experts": max(layer_pass.experts for layer_pass in layer_passes),
        "chosen": max(layer_pass.top_k for layer_pass in layer_passes),
        "found_by": "scopes or modules" if all(rank.framed for rank in ranks) else "order of ops",
        "sync_free_stage": min(stages),
    }


def _sync_free(rank: RankPasses) -> int:
    """Stage of sync-free MoE layers that a rank's blocking calls allow, see SYNC_FREE."""
    calls = rank.blocking[rank.phase == FORWARD].sum(axis=0)
    if not calls.sum():
        return 3
    if calls[[ROUTER, PERMUTATION]].sum():
        return 0
    # A loop over experts has all sizes on the host, also where they came with those of messages.
    grouped = all(layer_pass.grouped for layer_pass in rank.passes)
    return 2 if grouped and not calls[EXPERTS].sum() else 1


def _stage_rows(rank: RankPasses) -> dict[str, Any]:
    """Rows of STAGE_TABLE of one rank; the last, of work of no known stage, only where there is any."""
    names = [*STAGES, UNATTRIBUTED_NAME][: UNATTRIBUTED + bool(rank.no_layer_ns[UNATTRIBUTED])]
    ns = {
        phase: np.append(rank.stage_ns[rank.in_step & (rank.phase == phase)].sum(axis=0), 0)[: len(names)]
        / rank.steps
        for phase in range(len(PHASES))
    }
    ns[BACKWARD] += rank.no_layer_ns[: len(names)] / rank.steps
    passes = max(sum(not layer_pass.is_recompute for layer_pass in rank.passes), 1)
    return {
        "rank": [rank.rank] * len(names),
        "stage": names,
        "forward_ns": ns[FORWARD].astype(np.int64),
        "backward_ns": ns[BACKWARD].astype(np.int64),
        "recompute_ns": ns[RECOMPUTE].astype(np.int64),
        "fraction": np.minimum(sum(ns.values()) / max(rank.step_ns, 1), 1.0),
        "blocking_count": np.append(rank.blocking.sum(axis=0), 0)[: len(names)] / passes,
    }


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
        "gemms": sums(row, gemms, len(layers)) / count,
        "blocking_count": sums(layer, rank.blocking.sum(axis=1), len(layers)) / count,
        "blocked_ns": mean(rank.blocked_ns),
        "tokens": np.where(
            with_tokens > 0,
            np.bincount(row[known], tokens[known], len(layers)) / np.maximum(with_tokens, 1),
            -1.0,
        ),
    }


def _pass_rows(rank: RankPasses) -> dict[str, Any]:
    """Rows of PASS_TABLE of one rank."""
    layer_passes = [rank.passes[number] for number in rank.number.tolist()]
    return {
        "rank": [rank.rank] * len(layer_passes),
        "step": [rank.labels[layer_pass.step] for layer_pass in layer_passes],
        "microbatch": [layer_pass.microbatch for layer_pass in layer_passes],
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
