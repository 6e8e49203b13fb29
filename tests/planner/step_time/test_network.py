"""Times of messages by hand, and which ranks share a node against the groups themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tracelens.devices import Bandwidth, Device, Measured, device
from tracelens.errors import TracelensError
from tracelens.planner.config import MODELS, Config, Layout
from tracelens.planner.step_time import ROOFLINE, Machine, Network, assumed, estimate

FREE = Machine(link_latency_ns=0, nic_latency_ns=0)
SIZE = 8_000_000_000


def seconds(layout: Layout, collective: str, group: str, ranks: int, name: str = "h100") -> float:
    network = Network(layout, device(name), FREE)
    return network.nanoseconds(collective, group, ranks, SIZE, SIZE) / 1e9  # type: ignore[arg-type]


def test_inside_a_node_by_hand() -> None:
    layout = Layout(ranks=8)
    # 450 GB/s through a switch; a rank keeps an eighth to itself.
    assert seconds(layout, "all_to_all", "ep", 8) == pytest.approx(7 / 450)
    assert seconds(layout, "all_gather", "dp_cp_tp", 8) == pytest.approx(7 / 450)
    assert seconds(layout, "all_reduce", "dp_cp_tp", 8) == pytest.approx(2 * 7 / 450)
    assert seconds(layout, "broadcast", "tp", 8) == pytest.approx(7 / 450)
    assert seconds(layout, "all_reduce", "tp", 1) == 0.0


def test_links_from_each_to_each_by_hand() -> None:
    # Seven links of 64 GB/s; among two only one of them is of use.
    assert seconds(Layout(ranks=8), "all_to_all", "ep", 8, "mi300x") == pytest.approx(1 / 64)
    pairs = Layout(ranks=8, cp=2)
    assert seconds(pairs, "all_gather", "cp", 2, "mi300x") == pytest.approx(4 / 64)
    assert seconds(pairs, "all_gather", "cp", 2) == pytest.approx(4 / 450)
    switch = Network(pairs, device("mi300x"), replace(FREE, links="switch"))
    assert switch.nanoseconds("all_gather", "cp", 2, SIZE, SIZE) / 1e9 == pytest.approx(4 / 448)


def with_links(name: str, ranks: int, *, skewed: bool = False) -> Device:
    """A device with the same bus bandwidth for all sizes: 100 GB/s, 25 in all-to-alls of skew 4."""
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
    curves = [Bandwidth(collective, (1,), (100e9,), ranks, ranks) for collective in names]
    if skewed:
        curves.append(Bandwidth("all_to_all", (1,), (25e9,), ranks, ranks, skew=4))
    return structs.replace(device(name), measured=Measured(bandwidths=tuple(curves)))


def test_inside_a_node_what_was_measured_counts_without_another_latency() -> None:
    """8 GB at 100 GB/s; the ranks of a group are as many as measured, or fewer."""
    network = Network(Layout(ranks=16, node=8), with_links("h200", 8), Machine())
    for collective, share in (
        ("all_to_all", 7),
        ("all_gather", 7),
        ("reduce_scatter", 7),
        ("all_reduce", 14),
    ):
        measured_ns = network.nanoseconds(collective, "dp_node", 8, SIZE, SIZE)  # type: ignore[arg-type]
        assert measured_ns == pytest.approx(share / 100 * 1e9)
    assert network.nanoseconds("all_gather", "tp", 2, SIZE, SIZE) == pytest.approx(4 / 100 * 1e9)
    # Between nodes, and broadcasts, which are not measured: bandwidth and latency.
    far = network.nanoseconds("all_to_all", "ep", 16, SIZE, SIZE)
    assert far == pytest.approx(4 / 50 * 1e9 + Machine().nic_latency_ns)
    broadcast = network.nanoseconds("broadcast", "dp_node", 8, SIZE, SIZE)
    assert broadcast == pytest.approx(7 / 450 * 1e9 + Machine().link_latency_ns)


def test_stages_of_a_node_send_at_the_measured_rate() -> None:
    pipeline = Network(Layout(ranks=8, pp=2), with_links("h200", 2), Machine())
    assert pipeline.nanoseconds("send", "pp", 2, SIZE, 0) == pytest.approx(8 / 100 * 1e9)


def test_a_mesh_has_more_links_among_more_ranks_than_measured() -> None:
    """Measured over the one link of two ranks: eight have seven of them, behind a switch no more."""
    for name, links in (("mi300x", 7), ("h200", 1)):
        network = Network(Layout(ranks=8), with_links(name, 2), Machine())
        measured_ns = network.nanoseconds("all_to_all", "ep", 8, SIZE, SIZE)
        assert measured_ns == pytest.approx(7 / 100 / links * 1e9)


def test_an_uneven_all_to_all_takes_the_rate_of_its_skew() -> None:
    network = Network(Layout(ranks=8), with_links("h200", 8, skewed=True), Machine())
    for skew, rate in ((1, 100), (2, 50), (4, 25), (8, 25)):
        measured_ns = network.nanoseconds("all_to_all", "ep", 8, SIZE, SIZE, skew)
        assert measured_ns == pytest.approx(7 / rate * 1e9)


@pytest.mark.parametrize(
    "machine",
    [Machine(messages="bandwidth"), Machine(link_efficiency=0.5), ROOFLINE],
    ids=["bandwidth", "efficiency", "roofline"],
)
def test_links_as_assumed_and_bounds_take_no_measured_rates(machine: Machine) -> None:
    networks = [Network(Layout(ranks=8), each, machine) for each in (with_links("h200", 8), device("h100"))]
    measured, plain = (network.nanoseconds("all_to_all", "ep", 8, SIZE, SIZE) for network in networks)
    assert measured == plain


def test_assumptions_name_the_number_of_ranks_that_rates_are_from() -> None:
    for ranks, source in (
        (8, "measured among 8 ranks"),
        (2, "measured among 2 ranks, scaled by bus bandwidth"),
    ):
        table = assumed(Machine(), [with_links("h200", ranks)], "bf16").frame.set_index("name")
        assert table.loc["all_to_all_bytes_per_s", "value"] == f"{100e9 * 8 / 7:.4g}"
        assert str(table.loc["all_to_all_bytes_per_s", "note"]).endswith(source)
    assert not any(
        "all_to_all" in name for name in assumed(Machine(), [device("a100")], "bf16").frame["name"]
    )


def test_a_step_takes_the_measured_messages() -> None:
    """At 100 instead of 450 GB/s all-to-alls take 4.5 times as long."""
    config = Config(MODELS["deepseek_v2_lite"], Layout(ranks=8, ep=8))
    slow, fast = (
        structs.replace(device("h100"), measured=structs.replace(device("h100").measured, bandwidths=curves))
        for curves in (
            (*device("h100").measured.bandwidths, *with_links("h200", 8).measured.bandwidths),
            device("h100").measured.bandwidths,
        )
    )
    machine = Machine(link_latency_ns=0)
    parts = [estimate(config, each, machine).parts["experts_exchange"] for each in (slow, fast)]
    assert parts[0] / parts[1] == pytest.approx(4.5, rel=0.01)


def test_between_nodes_by_hand() -> None:
    two = Layout(ranks=16)
    # Half of all goes to the other node, through a NIC of 50 GB/s for each rank.
    assert seconds(two, "all_to_all", "ep", 16) == pytest.approx(4 / 50)
    # Around both nodes: a half enters each, on eight NICs; inside it goes at 450 GB/s.
    assert seconds(two, "all_gather", "dp_cp_tp", 16) == pytest.approx(max(4 / 8 / 50, 7.5 / 450))
    # One rank of each node.
    far = Layout(ranks=16, ep=8)
    assert seconds(far, "reduce_scatter", "edp", 2) == pytest.approx(4 / 50)
    assert seconds(Layout(ranks=16, pp=2), "send", "pp", 2) == pytest.approx(8 / 50)
    assert seconds(Layout(ranks=8, pp=2), "send", "pp", 2) == pytest.approx(8 / 450)
    assert seconds(Layout(ranks=16, node=8), "reduce_scatter", "dp_node", 8) == pytest.approx(7 / 450)
    assert seconds(Layout(ranks=16, node=8), "all_reduce", "dp_across", 2) == pytest.approx(2 * 4 / 50)


def test_deepep_by_hand() -> None:
    # Top-2 of 4 experts, one per rank, two nodes of two: 2 ranks, and 5/3 nodes, a token.
    model = replace(MODELS["moe_2t"], experts_count=4, top_k=2)
    network = Network(Layout(ranks=4), device("h100"), replace(FREE, node=2))
    spread = network.spread(model)
    assert spread == pytest.approx((2, 2, 5 / 3))
    # Half of the nodes are remote, and half of the ranks are not where the token enters the node.
    through_nic, over_links = 5 / 3 / 2 * 8 / 50, 2 / 2 * 8 / 450
    taken = network.deepep_nanoseconds(1e6, 8000, spread, 4) / 1e9
    assert taken == pytest.approx(max(through_nic, over_links))
    fast = Network(Layout(ranks=4), device("h100"), replace(FREE, node=2, nic_bytes_per_s=1e12))
    assert fast.deepep_nanoseconds(1e6, 8000, spread, 4) / 1e9 == pytest.approx(over_links)
    # In one node: seven eighths of the distinct ranks are others.
    inside = Network(Layout(ranks=8), device("h100"), FREE)
    ranks = inside.spread(MODELS["moe_2t"]).ranks
    assert inside.deepep_nanoseconds(1e6, 8000, inside.spread(MODELS["moe_2t"]), 8) / 1e9 == pytest.approx(
        ranks * 7 / 8 * 8 / 450
    )
    assert Network(Layout(ranks=1), device("h100"), FREE).deepep_nanoseconds(1, 1, spread, 1) == 0


def test_many_small_messages_take_the_message_rate() -> None:
    limited = replace(FREE, nic_messages_per_s=1e6)
    network = Network(Layout(ranks=64), device("h100"), limited)
    # 56 messages to other nodes, 1 us each; inside the node nothing counts.
    assert network.nanoseconds("all_to_all", "ep", 64, 64, 64) == pytest.approx(56_000)
    assert Network(Layout(ranks=8), device("h100"), limited).nanoseconds("all_to_all", "ep", 8, 8, 8) < 1
    slow = replace(FREE, nic_efficiency=0.5)
    size = Network(Layout(ranks=64), device("h100"), slow).nanoseconds("all_to_all", "ep", 64, SIZE, SIZE)
    assert size / 1e9 == pytest.approx(8 * 56 / 64 / 25)


@pytest.mark.parametrize(
    ("nodes", "published"), [(2, (43, 43, 90, 81)), (4, (58, 57, 61, 61)), (8, (51, 50))]
)
def test_published_rates_of_deepep_are_below_the_model(nodes: int, published: tuple[int, ...]) -> None:
    """Hopper with a 400 Gb/s NIC each; rates count what stays on the node as well.

    DeepEP, README.md and docs/legacy.md, tables of normal kernels, 2025,
    https://github.com/deepseek-ai/DeepEP: 4 groups of 8, 8 of 256 experts, 7168 wide.
    """
    ranks, row = 8 * nodes, 7168 * 2
    network = Network(Layout(ranks=ranks), device("h100"), FREE)
    spread = network.spread(MODELS["deepseek_v3"])
    seconds = network.deepep_nanoseconds(4096, row, spread, ranks) / 1e9
    rate = 4096 * row * spread.nodes / seconds / 1e9
    assert rate == pytest.approx(50 * nodes / (nodes - 1))
    assert max(published) < rate < max(published) / 0.85


def test_latency_is_added() -> None:
    machine = Machine(link_latency_ns=7, nic_latency_ns=11)
    assert Network(Layout(ranks=8), device("h100"), machine).nanoseconds("all_to_all", "ep", 8, 0, 0) == 7
    assert Network(Layout(ranks=16), device("h100"), machine).nanoseconds("all_to_all", "ep", 16, 0, 0) == 11


def test_a_device_without_link_rate_is_told() -> None:
    lone = structs.replace(device("h100"), gpu_link_bytes_per_s=0.0)
    network = Network(Layout(ranks=8), lone, FREE)
    with pytest.raises(TracelensError, match="the link rate of h100 is unknown: add gpu_link_bytes_per_s"):
        network.nanoseconds("all_to_all", "ep", 8, 1, 1)
    assert Network(Layout(ranks=64, ep=8), lone, FREE).nanoseconds("all_gather", "edp", 8, SIZE, SIZE) > 0


@given(
    st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4, 6, 8]), st.sampled_from([1, 2, 4, 8, 12]),
)  # fmt: skip
def test_who_shares_a_node_is_as_in_the_groups(
    pp: int, dp: int, cp: int, tp: int, node: int, ep: int
) -> None:
    stage = dp * cp * tp
    if stage % ep:
        ep = 1
    # Stages begin with a node, as the first one does.
    layout = Layout(ranks=pp * stage, pp=pp, cp=cp, tp=tp, ep=ep)
    network = Network(layout, device("h100"), replace(FREE, node=node))
    groups = {"tp": ("tp",), "cp": ("cp",), "ep": ("ep",), "edp": ("edp",), "dp_cp": ("dp", "cp"),
              "cp_tp": ("cp", "tp"), "dp_cp_tp": ("dp", "cp", "tp")}  # fmt: skip
    for name, dimensions in groups.items():
        first_stage = [ranks for ranks in layout.groups(*dimensions) if ranks[0] < stage]
        fewest = min(min(Counter(rank // node for rank in ranks).values()) for ranks in first_stage)
        assert network.neighbours(name, len(first_stage[0])) == fewest, name
