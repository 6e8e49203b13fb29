"""Distinct ranks and nodes of a token: closed forms against drawn routings."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.planner import balanced_spread, routed_imbalance, routed_spread
from tracelens.planner.config import MODELS, Model

TOKENS = 20_000


def drawn(model: Model, seed: int) -> Int:
    """Experts of tokens: some groups at random, then experts of these at random."""
    rng, group = np.random.default_rng(seed), model.experts_count // model.expert_groups
    score_TG = rng.random((TOKENS, model.expert_groups))
    kept_TG = score_TG.argsort(axis=1).argsort(axis=1) < model.top_groups
    score_TE = rng.random((TOKENS, model.experts_count)) + ~np.repeat(kept_TG, group, axis=1)
    chosen: Int = score_TE.argsort(axis=1)[:, : model.top_k]
    return chosen


def with_experts(experts: int, top_k: int, groups: int = 1, top_groups: int = 1) -> Model:
    sizes = {"experts_count": experts, "top_k": top_k, "expert_groups": groups, "top_groups": top_groups}
    return replace(MODELS["moe_2t"], **sizes)


@pytest.mark.parametrize(
    ("model", "ranks", "near"),
    [
        (MODELS["moe_2t"], 64, 8),
        (MODELS["moe_2t"], 8, 8),
        (MODELS["deepseek_v3"], 64, 8),
        (MODELS["deepseek_v3"], 32, 8),
        (MODELS["deepseek_v3"], 16, 8),
        (MODELS["deepseek_v3"], 128, 8),
        (with_experts(96, 5, 6, 2), 8, 2),  # blocks that cut groups unequally
        (with_experts(64, 6), 16, 1),
    ],
)
def test_closed_form_is_the_mean_of_many_tokens(model: Model, ranks: int, near: int) -> None:
    expected = balanced_spread(model, ranks, near)
    counted = routed_spread(drawn(model, 1), model, ranks, near)
    assert counted.experts == expected.experts
    # Seven standard errors of a count with a standard deviation of at most 1.5.
    assert counted.ranks == pytest.approx(expected.ranks, abs=0.07)
    assert counted.nodes == pytest.approx(expected.nodes, abs=0.07)


def test_by_hand() -> None:
    # Two of four experts, one per rank: 2 ranks. Two nodes of 2: both experts on one with 2 x 1/6.
    spread = balanced_spread(with_experts(4, 2), 4, 2)
    assert spread == pytest.approx((2, 2, 2 - 1 / 3))
    # Only one of two groups, each a node: never two nodes.
    assert balanced_spread(with_experts(8, 2, 2, 1), 4, 2).nodes == pytest.approx(1)
    # The 2T model on 8 nodes of 56 experts: all 16 miss one with a probability of 392/448 x 391/447 x ...
    missed = math.prod((392 - drawn) / (448 - drawn) for drawn in range(16))
    assert balanced_spread(MODELS["moe_2t"], 64, 8).nodes == pytest.approx(8 * (1 - missed))


@given(
    st.sampled_from([8, 16, 64]), st.integers(1, 8), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 8]), st.sampled_from([1, 2, 4]),
)  # fmt: skip
@settings(deadline=None)
def test_bounds(experts: int, top_k: int, groups: int, top_groups: int, ranks: int, near: int) -> None:
    if top_groups > groups or top_k > experts // groups * top_groups or ranks % near:
        return
    spread = balanced_spread(with_experts(experts, top_k, groups, top_groups), ranks, near)
    assert 1 <= spread.nodes <= spread.ranks + 1e-9
    assert spread.ranks <= min(top_k, ranks) + 1e-9
    assert spread.nodes <= ranks // near + 1e-9
    # All experts that can be reached are taken: every rank and node with one of them.
    whole = balanced_spread(with_experts(experts, experts), ranks, near)
    assert whole == pytest.approx((experts, ranks, ranks // near))


def test_fewer_groups_mean_fewer_nodes() -> None:
    nodes = [balanced_spread(with_experts(256, 8, 8, kept), 64, 8).nodes for kept in (1, 2, 4, 8)]
    assert nodes == sorted(nodes)
    assert nodes[0] == pytest.approx(1)
    assert nodes[2] < 4


def test_a_recorded_routing() -> None:
    ids = np.array([[0, 1], [0, 7], [3, 4]])
    # Four ranks of two experts, two nodes of two ranks.
    model = with_experts(8, 2)
    assert routed_spread(ids, model, 4, 2) == pytest.approx((2, 5 / 3, 5 / 3))
    assert routed_spread(ids.astype(np.uint8), with_experts(8, 2), 4, 2) == routed_spread(ids, model, 4, 2)
    large = np.array([[200, 251]], dtype=np.uint8)
    assert routed_spread(large, with_experts(256, 2), 64, 8).nodes == 2
    # Experts 0 and 1 lie on the first rank, which has 3 of 6 rows.
    assert routed_imbalance(ids, model, 4) == 2
    with pytest.raises(TracelensError, match="outside 0 to 3"):
        routed_spread(ids, with_experts(4, 2), 4, 2)
    for wrong in (np.arange(3), ids[:, :1], ids[:0]):
        with pytest.raises(TracelensError, match="a row of 2 experts per token"):
            routed_spread(wrong, model, 4, 2)
    with pytest.raises(TracelensError, match="whole numbers"):
        routed_spread(ids * 0.5, model, 4, 2)  # type: ignore[arg-type]
