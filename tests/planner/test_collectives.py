"""Times of collectives against the bytes that cross each link, counted pair by pair."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.planner.collectives import (
    DEEPEP_CHUNK,
    Rates,
    all_to_all_seconds,
    deepep_seconds,
    expected_maximum,
    pair_seconds,
    ring_seconds,
)

SWITCH = Rates(links=450e9, nic=50e9, is_mesh=False)
MESH = Rates(links=448e9, nic=50e9, is_mesh=True)


@given(st.integers(1, 8), st.integers(1, 6), st.sampled_from([SWITCH, MESH]))
def test_all_to_all_is_the_fullest_link(near: int, nodes: int, rates: Rates) -> None:
    ranks, size = near * nodes, 840e6
    wires: Counter[tuple[str, int, int]] = Counter()
    for source in range(ranks):
        for target in range(ranks):
            if source == target:
                continue
            if source // near != target // near:
                wires["nic", source, 0] += size / ranks
            else:
                wires["link", source, target if rates.is_mesh else 0] += size / ranks
    rate = {"nic": rates.nic, "link": rates.links / 7 if rates.is_mesh else rates.links}
    fullest = max((count / rate[kind] for (kind, _, _), count in wires.items()), default=0.0)
    assert all_to_all_seconds(size, ranks, near, rates) == pytest.approx(fullest)


@given(st.integers(1, 8), st.integers(1, 6))
def test_a_gather_brings_each_node_what_it_lacks(near: int, nodes: int) -> None:
    ranks, size = near * nodes, 840e6
    seconds = ring_seconds(size, ranks, near, SWITCH)
    each = size / ranks
    through_nics = (ranks - near) * each / near / SWITCH.nic
    assert seconds >= through_nics - 1e-12
    if near > 1:
        # A rank passes on every part but its own.
        assert seconds == pytest.approx(max(through_nics, (ranks - 1) * each / SWITCH.links))
    else:
        assert seconds == pytest.approx(through_nics)


def test_few_ranks_of_a_mesh_use_few_of_its_links() -> None:
    assert [MESH.among(near) / 1e9 for near in (2, 3, 8)] == [64, 128, 448]
    assert SWITCH.among(2) == SWITCH.links
    # More ranks on a node than a mesh has links: all links, and no more.
    assert MESH.among(16) == MESH.links


@pytest.mark.parametrize(("near", "nodes"), [(8, 1), (8, 4), (4, 2), (1, 4)])
def test_bus_bandwidths_are_those_of_nccl_tests(near: int, nodes: int) -> None:
    """Factors of doc/PERFORMANCE.md: what a rank sends is (n-1)/n of the buffer, twice for an all-reduce."""
    ranks, size = near * nodes, 8e9
    busbw = size / all_to_all_seconds(size, ranks, near, SWITCH) * (ranks - 1) / ranks
    # Across nodes the NIC carries (n-m)/n of it, so that the bus is that much faster than the NIC.
    limit = SWITCH.links if nodes == 1 else SWITCH.nic * (ranks - 1) / (ranks - near)
    assert busbw == pytest.approx(limit)
    ring = size / ring_seconds(size, ranks, near, SWITCH) * (ranks - 1) / ranks
    through_nics = SWITCH.nic * near * (ranks - 1) / (ranks - near) if nodes > 1 else SWITCH.links
    assert ring == pytest.approx(min(through_nics, SWITCH.links if near > 1 else through_nics))


def test_a_pair_takes_one_link_or_the_nic() -> None:
    assert pair_seconds(64e9, True, MESH) == 1
    assert pair_seconds(450e9, True, SWITCH) == 1
    assert pair_seconds(50e9, False, MESH) == 1


@pytest.mark.parametrize(("nodes", "near"), [(1, 4), (2, 2), (3, 4), (4, 1)])
@pytest.mark.parametrize("rates", [SWITCH, MESH._replace(messages=2e6)])
def test_deepep_is_the_fullest_link_of_drawn_tokens(nodes: int, near: int, rates: Rates) -> None:
    """Every rank sends tokens to three random experts, one expert per rank; bytes counted link by link."""
    rng, ranks, tokens, row = np.random.default_rng(0), nodes * near, 4000, 16_384
    wires: Counter[tuple[str, int, int]] = Counter()
    to_ranks = to_nodes = 0
    for source in range(ranks):
        experts_TK = rng.random((tokens, ranks)).argsort(axis=1)[:, :3]
        for chosen in experts_TK.tolist():
            to_ranks, to_nodes = (
                to_ranks + len(set(chosen)),
                to_nodes + len({rank // near for rank in chosen}),
            )
            for node in {rank // near for rank in chosen}:
                entry = node * near + source % near
                wires["nic", source, 0] += node != source // near
                for target in chosen:
                    if target // near == node and target != entry:
                        wires["link", entry, target if rates.is_mesh else 0] += 1
    link = rates.links / 7 if rates.is_mesh else rates.links
    counted = [
        count * row / link
        if kind == "link"
        else max(count * row / rates.nic, count / DEEPEP_CHUNK / rates.messages)
        for (kind, _, _), count in wires.items()
    ]
    copies = to_ranks / ranks / tokens, to_nodes / ranks / tokens
    seconds = deepep_seconds(tokens, row, copies, ranks, near, rates)
    # The fullest of drawn links has some per cent more than the mean.
    assert seconds <= max(counted) * (1 + 1e-9)
    assert seconds == pytest.approx(max(counted), rel=0.08)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, 0), (2, 1 / np.sqrt(np.pi)), (3, 1.5 / np.sqrt(np.pi)), (8, 1.42360), (100, 2.50759)],
)
def test_the_largest_of_draws_from_a_normal_distribution(count: int, expected: float) -> None:
    """Tables of order statistics (Harter, Biometrika 48, 1961)."""
    assert expected_maximum(count) == pytest.approx(expected, abs=1e-5)


def test_the_largest_of_draws_is_what_draws_show() -> None:
    drawn = np.random.default_rng(0).standard_normal((20_000, 32)).max(axis=1)
    assert expected_maximum(32) == pytest.approx(drawn.mean(), abs=0.02)
