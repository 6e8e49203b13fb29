"""Expected number of distinct ranks and nodes that the top-k experts of a token lie on.

An all-to-all sends a token once per expert, DeepEP once per distinct node and then once per distinct rank of
that node. Experts lie on the ranks of a group in order, equally many on each; ranks likewise on nodes.

- `balanced_spread`: closed form for a router without preference. k of E experts without replacement miss a
  block of b experts with probability C(E - b, k) / C(E, k), the hypergeometric distribution. Group-limited
  routing (DeepSeek-V3, arXiv:2412.19437, section 2.1.2) first keeps some groups of experts; the closed form
  averages over the sets of groups.
- `routed_spread`: the same of a recorded routing.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import comb
from typing import NamedTuple

import numpy as np

from tracelens.arrays import Int
from tracelens.errors import TracelensError
from tracelens.planner.config import Model


class Spread(NamedTuple):
    """Where the copies of a token go, expected value per token."""

    experts: float  # rows, one per expert of the token: top-k
    ranks: float  # distinct ranks with one of these experts, the token's own rank included
    nodes: float  # distinct nodes, the token's own node included


class Pool(NamedTuple):
    """The experts that a router selects from; fields as in `Model`."""

    experts: int
    top_k: int
    groups: int
    top_groups: int


def balanced_spread(model: Model, ranks: int, near: int) -> Spread:
    """Spread of a router without preference over ranks that share the experts, `near` of them on a node."""
    pool = Pool(model.experts_count, model.top_k, model.expert_groups, model.top_groups)
    return Spread(pool.top_k, distinct_blocks(pool, ranks), distinct_blocks(pool, max(ranks // near, 1)))


def routed_spread(expert_ids_TK: Int, model: Model, ranks: int, near: int) -> Spread:
    """Spread of a recorded routing, the experts of each token: an expert at most once per row.

    Raises:
        TracelensError: see `check_routing`.
    """
    check_routing(expert_ids_TK, model)
    experts, nodes = model.experts_count, max(ranks // near, 1)
    return Spread(
        float(model.top_k),
        _mean_distinct(_blocks(expert_ids_TK, experts, ranks)),
        _mean_distinct(_blocks(expert_ids_TK, experts, nodes)),
    )


def check_routing(expert_ids_TK: Int, model: Model) -> None:
    """Raise TracelensError for anything but the experts of tokens, one row per token."""
    experts = model.experts_count
    if expert_ids_TK.ndim != 2 or expert_ids_TK.shape[1] != model.top_k or not len(expert_ids_TK):
        raise TracelensError(f"a routing has a row of {model.top_k} experts per token")
    if not np.issubdtype(expert_ids_TK.dtype, np.integer):
        raise TracelensError("a routing holds numbers of experts, whole numbers")
    if expert_ids_TK.min() < 0 or expert_ids_TK.max() >= experts:
        raise TracelensError(f"the routing names experts outside 0 to {experts - 1}")


def routed_imbalance(expert_ids_TK: Int, model: Model, ranks: int) -> float:
    """Rows of the fullest rank / mean over ranks, of a recorded routing (see `routed_spread`)."""
    rows = np.bincount(_blocks(expert_ids_TK, model.experts_count, ranks).ravel(), minlength=ranks)
    return float(rows.max() / rows.mean())


def _blocks(expert_ids_TK: Int, experts: int, count: int) -> Int:
    """Which of `count` equal ranges of experts each expert lies in."""
    # Recorded numbers may be of a type too small for the product.
    blocks: Int = expert_ids_TK.astype(np.int64) * count // experts
    return blocks


def _mean_distinct(values_TK: Int) -> float:
    """Mean number of distinct values per row."""
    ordered = np.sort(values_TK, axis=1)
    return float(1 + (np.diff(ordered, axis=1) != 0).sum(axis=1).mean())


@lru_cache(maxsize=1024)
def distinct_blocks(pool: Pool, blocks: int) -> float:
    """Expected number of `blocks` equal ranges of experts that a token's experts lie in."""
    size, group = pool.experts // blocks, pool.experts // pool.groups
    # Experts that a block shares with each group it touches: blocks that cut the groups alike are hit alike.
    patterns: Counter[tuple[int, ...]] = Counter()
    for first in range(0, blocks * size, size):
        last = first + size
        touched = range(first // group, (last - 1) // group + 1)
        shared = (min(last, (number + 1) * group) - max(first, number * group) for number in touched)
        patterns[tuple(sorted(shared))] += 1
    reachable, sets = group * pool.top_groups, comb(pool.groups, pool.top_groups)
    expected = []
    for pattern, count in patterns.items():
        # Ways to keep some of the touched groups: (groups kept, experts of the block in them) to number.
        ways = Counter({(0, 0): 1})
        for inside in pattern:
            ways += Counter({(kept + 1, held + inside): number for (kept, held), number in ways.items()})
        # Probability that no expert of a token lies in a block with this pattern.
        others = pool.groups - len(pattern)
        missed = sum(
            number * comb(others, pool.top_groups - kept) * comb(reachable - held, pool.top_k)
            for (kept, held), number in ways.items()
            if kept <= pool.top_groups
        ) / (sets * comb(reachable, pool.top_k))
        expected.append(count * (1 - missed))
    return sum(expected)
