"""Where the time of the MoE layers goes: router, dispatch, permutation, experts, combine, shared expert."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.moe.balance import (
    BALANCE,
    EXPERT_ROWS,
    TOKENS,
    WAITS,
    balance_rows,
    by_rank,
    expert_rows,
    groups,
    token_rows,
    wait_rows,
)
from tracelens.analysis.moe.passes import RankPasses, passes_of
from tracelens.analysis.moe.regions import BACKWARD, FORWARD, PHASES, RECOMPUTE
from tracelens.analysis.moe.stages import EXPERTS, PERMUTATION, ROUTER, STAGES
from tracelens.arrays import Int
from tracelens.table import Column, Result, Schema, Skip, result, stack, sums
from tracelens.trace import Scope

_STAGE_COLUMNS = tuple(f"{name.replace(' ', '_')}_ns" for name in STAGES)

STAGE_TABLE = Schema(
    "Time in the MoE layers by stage",
    (
        Column("rank", "int64"),
        Column("stage", "category"),
        Column("forward_ns", "int64", "ns", "of a step"),
        Column("backward_ns", "int64", "ns", "of a step"),
        Column("recompute_ns", "int64", "ns", "of a step, forward work done again in the backward pass"),
        Column("fraction", "float64", "fraction", "of the step, all three together"),
        Column("blocking_count", "float64", "count", "blocking calls in one pass, forward and backward"),
    ),
    doc="Time with work of the stage; what overlaps counts in each of its stages. Dispatch and combine are "
    "the communication before and behind the experts, with waiting for other ranks; permute is all sorting "
    "and moving of tokens on the rank itself.",
)

LAYERS = Schema(
    "MoE layers",
    (
        Column("rank", "int64"),
        Column("layer", "int64", doc="among the rank's MoE layers, from 0"),
        Column("passes", "int64", "count", "micro-batches in all steps"),
        Column("forward_ns", "int64", "ns", "wall time of a pass"),
        Column("backward_ns", "int64", "ns", "wall time of a pass, with recompute"),
        *(Column(name, "int64", "ns", "forward and backward") for name in _STAGE_COLUMNS),
        Column("exposed_ns", "int64", "ns", "in its communication and without computation"),
        Column("idle_ns", "int64", "ns", "without any GPU work"),
        Column("gemms", "float64", "count", "matrix products of the experts, forward"),
        Column("blocking_count", "float64", "count", "blocking calls"),
        Column("blocked_ns", "int64", "ns", "that the host is in them"),
        Column("tokens", "float64", "count", "rows that its experts compute, -1 if not recorded"),
    ),
    doc="Means of one micro-batch passing through the layer.",
)

PASS_TABLE = Schema(
    "Passes of micro-batches through MoE layers",
    (
        Column("rank", "int64"),
        Column("step", "category"),
        Column("microbatch", "int64", doc="in the step, from 0"),
        Column("layer", "int64"),
        Column("phase", "category", doc=", ".join(PHASES)),
        Column("ts_ns", "int64", "ns", "start of its first GPU work, by the rank's own clock"),
        Column("dur_ns", "int64", "ns", "to the end of its last"),
        *(Column(name, "int64", "ns") for name in _STAGE_COLUMNS),
        Column("exposed_ns", "int64", "ns", "in its communication and without computation"),
        Column("idle_ns", "int64", "ns", "without any GPU work"),
        Column("blocking_count", "int64", "count", "blocking calls"),
        Column("blocked_ns", "int64", "ns", "that the host is in them"),
        Column("tokens", "int64", "count", "rows that its experts compute, -1 if not recorded"),
    ),
    detail=True,
)

SYNC_FREE = {
    0: "blocking calls in the router or the permutation",
    1: "none in the router and the permutation",
    2: "none in the router, the permutation and the experts, whose products take their sizes on the GPU",
    3: "none at all",
}
"""Stages of sync-free MoE layers, by what is left of blocking calls (Primus' turbo_sync_free_moe_stage)."""


@analyzer("moe", title="MoE layers", order=82, part=passes_of)
def moe(ranks: Sequence[RankPasses], *, scope: Scope = "all") -> Result:
    """Where does the time of the MoE layers go, and how evenly are the tokens spread?

    Layers are told by the program's scopes or modules; without, by a router's top-k between two
    normalisations. Backward work belongs to the stage of its forward op.

    Args:
        ranks: from `passes_of`.
        scope: "all", or "linked" for work whose launch call is in the trace.

    Returns:
        tables `stages`, `layers`, `balance`, `passes`, `tokens`, `experts` and `waits`. meta: `layers`,
        `experts` and `chosen` (of one layer's router), `found_by`, `sync_free_stage` (see SYNC_FREE).
    """
    found = [one for one in ranks if one.visits]
    skips = [
        Skip(f"rank {one.rank}", "no MoE layer: no router with experts behind it")
        for one in ranks
        if not one.visits
    ]
    exchanged = groups(ranks)
    rows: dict[Schema, list[dict[str, Any]]] = {
        STAGE_TABLE: [_stage_rows(one) for one in found],
        LAYERS: [_layer_rows(one) for one in found],
        BALANCE: [balance_rows(group) for group in exchanged],
        PASS_TABLE: [_pass_rows(one) for one in found],
        TOKENS: by_rank(token_rows(group) for group in exchanged),
        EXPERT_ROWS: [row for one in found for row in expert_rows(one)],
        WAITS: by_rank(wait_rows(group) for group in exchanged),
    }
    names = ("stages", "layers", "balance", "passes", "tokens", "experts", "waits")
    tables = {name: stack(schema, rows[schema]) for name, schema in zip(names, rows, strict=True)}
    skips += _unknown(found, exchanged != [])
    return result(tables, skips, scope=scope, **_meta(found))


def _unknown(found: Sequence[RankPasses], exchanged: bool) -> Iterator[Skip]:
    """What is not known of ranks with MoE layers."""
    if not found:
        return
    if any(visit.grouped for one in found for visit in one.visits):
        yield Skip("tokens of single experts", "grouped products take their sizes from GPU memory")
    if not exchanged:
        if any(len(one.group) > 1 for one in found):
            reason = "ranks of the group are missing"
        elif any(one.exchanged for one in found):
            reason = "the trace does not say which ranks exchange tokens"
        else:
            reason = "no rank exchanges tokens with another"
        yield Skip("balance between ranks", reason)
    elif any(one.rows_of(at) < 0 for one in found for at in range(len(one.visits))):
        yield Skip("tokens of some passes", "no shapes of the experts' products; use record_shapes=True")


def _meta(found: Sequence[RankPasses]) -> dict[str, Any]:
    visits = [visit for one in found for visit in one.visits]
    if not visits:
        return {}
    stages = {_sync_free(one) for one in found}
    return {
        "layers": max(visit.layer for visit in visits) + 1,
        "experts": max(visit.experts for visit in visits),
        "chosen": max(visit.chosen for visit in visits),
        "found_by": "scopes or modules" if all(one.framed for one in found) else "order of ops",
        "sync_free_stage": min(stages),
    }


def _sync_free(one: RankPasses) -> int:
    """Stage of sync-free MoE layers that a rank's blocking calls allow, see SYNC_FREE."""
    calls = one.blocking[one.phase == FORWARD].sum(axis=0)
    if not calls.sum():
        return 3
    if calls[[ROUTER, PERMUTATION]].sum():
        return 0
    # A loop over experts has all sizes on the host, also where they came with those of messages.
    grouped = all(visit.grouped for visit in one.visits)
    return 2 if grouped and not calls[EXPERTS].sum() else 1


def _stage_rows(one: RankPasses) -> dict[str, Any]:
    """Rows of STAGE_TABLE of one rank."""
    ns = {
        phase: one.stage_ns[one.in_step & (one.phase == phase)].sum(axis=0) / one.steps
        for phase in range(len(PHASES))
    }
    passes = max(sum(not visit.again for visit in one.visits), 1)
    return {
        "rank": [one.rank] * len(STAGES),
        "stage": list(STAGES),
        "forward_ns": ns[FORWARD].astype(np.int64),
        "backward_ns": ns[BACKWARD].astype(np.int64),
        "recompute_ns": ns[RECOMPUTE].astype(np.int64),
        "fraction": np.minimum(sum(ns.values()) / max(one.step_ns, 1), 1.0),
        "blocking_count": one.blocking.sum(axis=0) / passes,
    }


def _layer_rows(one: RankPasses) -> dict[str, Any]:
    """Rows of LAYERS of one rank."""
    layers, layer = np.unique(one.layer, return_inverse=True)
    place = {number: at for at, number in enumerate(layers.tolist())}
    first = [number for number, visit in enumerate(one.visits) if not visit.again and visit.layer in place]
    at = np.array([place[one.visits[number].layer] for number in first], dtype=np.int64)
    gemms = np.array([len(one.visits[number].products) for number in first], dtype=np.int64)
    rows = np.array([one.rows_of(number) for number in first], dtype=np.float64)
    known = rows >= 0
    passes, with_rows = (np.bincount(some, minlength=len(layers)) for some in (at, at[known]))
    count = np.maximum(passes, 1)
    dur, forward = one.end - one.start, one.phase == FORWARD

    def mean(values: Int) -> Int:
        # In floats: passes whose events lie far apart may add up to more than int64 holds.
        total = np.bincount(layer, weights=values, minlength=len(layers))
        return np.rint(total / count).astype(np.int64)

    return {
        "rank": np.full(len(layers), one.rank),
        "layer": layers,
        "passes": passes,
        "forward_ns": mean(np.where(forward, dur, 0)),
        "backward_ns": mean(np.where(forward, 0, dur)),
        **{name: mean(one.stage_ns[:, stage]) for stage, name in enumerate(_STAGE_COLUMNS)},
        "exposed_ns": mean(one.exposed_ns),
        "idle_ns": mean(one.idle_ns),
        "gemms": sums(at, gemms, len(layers)) / count,
        "blocking_count": sums(layer, one.blocking.sum(axis=1), len(layers)) / count,
        "blocked_ns": mean(one.blocked_ns),
        "tokens": np.where(
            with_rows > 0,
            np.bincount(at[known], rows[known], len(layers)) / np.maximum(with_rows, 1),
            -1.0,
        ),
    }


def _pass_rows(one: RankPasses) -> dict[str, Any]:
    """Rows of PASS_TABLE of one rank."""
    visits = [one.visits[number] for number in one.number.tolist()]
    return {
        "rank": [one.rank] * len(visits),
        "step": [one.labels[visit.step] for visit in visits],
        "microbatch": [visit.microbatch for visit in visits],
        "layer": [visit.layer for visit in visits],
        "phase": [PHASES[phase] for phase in one.phase.tolist()],
        "ts_ns": one.start,
        "dur_ns": one.end - one.start,
        **{name: one.stage_ns[:, stage] for stage, name in enumerate(_STAGE_COLUMNS)},
        "exposed_ns": one.exposed_ns,
        "idle_ns": one.idle_ns,
        "blocking_count": one.blocking.sum(axis=1),
        "blocked_ns": one.blocked_ns,
        "tokens": [one.rows_of(number) for number in one.number.tolist()],
    }
