"""Times of collectives against the bytes that cross each link, counted pair by pair."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.planner.collectives import Rates, all_to_all_seconds, pair_seconds, ring_seconds

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


def test_a_pair_takes_one_link_or_the_nic() -> None:
    assert pair_seconds(64e9, True, MESH) == 1
    assert pair_seconds(450e9, True, SWITCH) == 1
    assert pair_seconds(50e9, False, MESH) == 1
