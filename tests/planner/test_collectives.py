"""Times of collectives against the bytes that cross each link, counted pair by pair."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.planner import (
    DEEPEP_CHUNK,
    LinkRates,
    StepLatency,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    deepep_seconds,
    expected_maximum,
    hierarchical_all_reduce,
    one_shot_all_reduce,
    pair_seconds,
    ring_all_reduce,
    ring_seconds,
    traffic_seconds,
    two_shot_all_reduce,
)

SWITCH = LinkRates(links=450e9, nic=50e9, is_mesh=False)
MESH = LinkRates(links=448e9, nic=50e9, is_mesh=True)


@given(st.integers(1, 8), st.integers(1, 6), st.sampled_from([SWITCH, MESH]))
def test_all_to_all_is_the_fullest_link(near: int, nodes: int, rates: LinkRates) -> None:
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


def seconds_of(wires: Counter[tuple[str, int, int]], rates: LinkRates) -> float:
    """Time of the fullest wire: a link per pair of ranks in a mesh, one to the switch otherwise, a NIC."""
    rate = {"nic": rates.nic, "link": rates.links / 7 if rates.is_mesh else rates.links}
    return max((count / rate[kind] for (kind, _, _), count in wires.items()), default=0.0)


def direct(nodes: int, near: int, size: float, rates: LinkRates) -> Counter[tuple[str, int, int]]:
    """Bytes on each wire when every rank sends `size` bytes to every other."""
    wires: Counter[tuple[str, int, int]] = Counter()
    for source in range(nodes * near):
        for target in range(nodes * near):
            if source // near != target // near:
                wires["nic", source, 0] += size
            elif source != target:
                wires["link", source, target if rates.is_mesh else 0] += size
    return wires


PLACES = given(st.integers(1, 4), st.integers(1, 8), st.sampled_from([SWITCH, MESH]))
STEPS = StepLatency(link_s=2e-6, nic_s=5e-6)


@PLACES
def test_one_shot_and_two_shot_send_to_all_ranks(nodes: int, near: int, rates: LinkRates) -> None:
    size, ranks = 1e6, nodes * near
    for algorithm, message, steps in (
        (one_shot_all_reduce, size, 1),
        (two_shot_all_reduce, size / ranks, 2),
    ):
        time = algorithm(nodes, near, rates, STEPS)
        transfer = steps * seconds_of(direct(nodes, near, message, rates), rates)
        assert time.beta_s * size == pytest.approx(transfer)
        assert time.alpha_s == pytest.approx(steps * (STEPS.link_s if nodes == 1 else STEPS.nic_s))


@PLACES
def test_a_ring_is_walked_twice_less_two_steps(nodes: int, near: int, rates: LinkRates) -> None:
    """Each chunk is followed from hop to hop: the slowest one is the latency, the bytes fill the wires."""
    ranks, size = nodes * near, 1e6
    hops = ["nic" if rank // near != (rank + 1) % ranks // near else "link" for rank in range(ranks)]
    latency = {"link": STEPS.link_s, "nic": STEPS.nic_s}
    walks = [[hops[(first + step) % ranks] for step in range(2 * (ranks - 1))] for first in range(ranks)]
    time = ring_all_reduce(nodes, near, rates, STEPS)
    if ranks > 1:
        assert time.alpha_s == pytest.approx(max(sum(latency[hop] for hop in walk) for walk in walks))
        assert time.link_steps + time.nic_steps == len(walks[0])
    # Each rank passes on 2 (n-1) chunks of 1/n of the buffer; a NIC carries one ring of `near`.
    sent = 2 * (ranks - 1) * size / ranks
    inside = sent / rates.among(near) if near > 1 else 0.0
    assert time.beta_s * size == pytest.approx(max(inside, sent / near / rates.nic if nodes > 1 else 0.0))


@PLACES
def test_a_hierarchy_is_two_shots_inside_and_two_between(nodes: int, near: int, rates: LinkRates) -> None:
    size = 1e6
    inside = 2 * seconds_of(direct(1, near, size / near, rates), rates)
    between = 2 * seconds_of(direct(nodes, 1, size / near / nodes, rates), rates)
    time = hierarchical_all_reduce(nodes, near, rates, STEPS)
    assert time.beta_s * size == pytest.approx(inside + between)
    assert (time.link_steps, time.nic_steps) == (2 * (near > 1), 2 * (nodes > 1))
    assert time.seconds(size) == pytest.approx(inside + between + time.alpha_s)


@PLACES
def test_no_algorithm_beats_the_least_time(nodes: int, near: int, rates: LinkRates) -> None:
    least = all_reduce_seconds(1e6, nodes, near, rates)
    for algorithm in (ring_all_reduce, one_shot_all_reduce, two_shot_all_reduce, hierarchical_all_reduce):
        assert least <= algorithm(nodes, near, rates, STEPS).beta_s * 1e6 + 1e-15
    # On one node all links carry 2 (n-1)/n of the buffer.
    if nodes == 1 and near > 1:
        assert least == pytest.approx(2 * (near - 1) / near * 1e6 / rates.among(near))


def test_an_all_reduce_by_hand() -> None:
    """Two nodes of 8 MI300X: 448 GB/s of links, 50 GB/s of NIC; 1 MB on each."""
    ring = ring_all_reduce(2, 8, MESH, STEPS)
    # 30 steps, four of them between nodes; 1.875 MB over links in 4.19 us, 0.234 MB through the NIC in 4.69.
    assert (ring.link_steps, ring.nic_steps) == (26, 4)
    assert ring.seconds(1e6) == pytest.approx(26 * 2e-6 + 4 * 5e-6 + 1.875e6 / 8 / 50e9)
    # One-shot: eight times 1 MB through each NIC.
    assert one_shot_all_reduce(2, 8, MESH, STEPS).seconds(1e6) == pytest.approx(5e-6 + 8e6 / 50e9)
    # Two-shot: 8 x 1/16 MB through each NIC, twice.
    assert two_shot_all_reduce(2, 8, MESH, STEPS).seconds(1e6) == pytest.approx(10e-6 + 1e6 / 50e9)
    # Hierarchical: 2 x 7/8 MB over links, then 2 x 1/16 MB through each NIC.
    by_hand = 14e-6 + 1.75e6 / 448e9 + 0.125e6 / 50e9
    assert hierarchical_all_reduce(2, 8, MESH, STEPS).seconds(1e6) == pytest.approx(by_hand)


@PLACES
def test_even_traffic_is_an_all_to_all(nodes: int, near: int, rates: LinkRates) -> None:
    ranks, size = nodes * near, 1e6
    even = [[size / ranks] * ranks for _ in range(ranks)]
    time = traffic_seconds(even, [rank // near for rank in range(ranks)], rates)
    assert time == pytest.approx(all_to_all_seconds(size, ranks, near, rates))


def test_uneven_traffic_waits_for_its_fullest_wire() -> None:
    nobody = [[0.0] * 3 for _ in range(3)]
    assert traffic_seconds(nobody, [0, 0, 0], MESH) == 0
    to_one = [[0, 64e9, 0], [0, 9e9, 0], [0, 64e9, 0]]
    # In a mesh rank 1 takes both in at once; through a switch one after the other. What stays is free.
    assert traffic_seconds(to_one, [0, 0, 0], MESH) == 1
    assert traffic_seconds(to_one, [0, 0, 0], SWITCH) == pytest.approx(128 / 450)
    assert traffic_seconds(to_one, [0, 0, 1], SWITCH) == pytest.approx(64 / 50)


def test_a_broadcast_brings_all_bytes_to_every_rank() -> None:
    assert broadcast_seconds(64e9, 1, 2, MESH) == 1
    assert broadcast_seconds(450e9, 1, 8, SWITCH) == 1
    assert broadcast_seconds(400e9, 2, 8, SWITCH) == 1
    assert broadcast_seconds(400e9, 1, 1, SWITCH) == 0


@pytest.mark.parametrize(("nodes", "near"), [(1, 4), (2, 2), (3, 4), (4, 1)])
@pytest.mark.parametrize("rates", [SWITCH, MESH._replace(messages=2e6)])
def test_deepep_is_the_fullest_link_of_drawn_tokens(nodes: int, near: int, rates: LinkRates) -> None:
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
