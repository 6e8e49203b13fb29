"""Collectives against the factors of nccl-tests, and as real traces record them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.costs import OpCall, OpCost, Uncounted, find

MESSAGE = st.integers(0, 1 << 36)  # whole messages stay below 2**48 bytes, more than any tensor has
RANKS = st.integers(2, 4096)


def counted(name: str, sent: int, received: int, ranks: int | str, *splits: str) -> OpCost:
    model = find(f"collective::{name}")
    assert model is not None
    values = [str(ranks), *(splits or ("", ""))]
    return model.function(OpCall(f"collective::{name}", [[sent], [received]], ["u8", "u8"], values))


def test_all_reduce() -> None:
    # 2 · 7/8 of 17,632,384 bytes.
    assert counted("allreduce", 17_632_384, 17_632_384, 8) == OpCost(
        0, 17_632_384, 17_632_384, "u8", link="gpu", link_bytes=30_856_672, dims=(("ranks", 8),)
    )


def test_gather_and_scatter_as_megatron_records_them() -> None:
    gather = counted("allgather_into_tensor_coalesced", 67_703_040, 270_812_160, 4)
    scatter = counted("reduce_scatter_tensor_coalesced", 270_812_160, 67_703_040, 4)
    # Three of four parts of 67,703,040 bytes.
    assert gather.link_bytes == scatter.link_bytes == 203_109_120
    assert gather.read_bytes == scatter.write_bytes == 67_703_040


@given(MESSAGE, RANKS)
def test_a_reduce_scatter_and_an_all_gather_are_an_all_reduce(part: int, ranks: int) -> None:
    whole = part * ranks
    both = counted("_reduce_scatter_base", whole, part, ranks).link_bytes
    both += counted("_allgather_base", part, whole, ranks).link_bytes
    assert both == counted("allreduce", whole, whole, ranks).link_bytes == 2 * part * (ranks - 1)


@given(MESSAGE, RANKS)
def test_even_parts(message: int, ranks: int) -> None:
    op_cost = counted("all_to_all", message, message, ranks)
    assert 0 <= Fraction(message * (ranks - 1), ranks) - op_cost.link_bytes < 1
    assert op_cost.note == "split sizes not recorded: assumed even"


def test_splits_say_what_goes_to_others() -> None:
    op_cost = counted("all_to_allv", 44_818_432, 50_331_648, 8, "38000000", "45000000")
    assert (op_cost.link_bytes, op_cost.note) == (45_000_000, "")
    assert (op_cost.read_bytes, op_cost.write_bytes) == (44_818_432, 50_331_648)
    assert counted("all_to_allv", 100, 200, 8, "90", "").link_bytes == 90
    assert counted("all_to_allv", 100, 200, 8, "0", "0").link_bytes == 0


@pytest.mark.parametrize(
    ("name", "sent", "received", "link"),
    [
        ("broadcast", 160, 160, 160),
        ("_broadcast_oop", 160, 160, 160),
        ("reduce", 64, 64, 64),
        ("gather", 100, 800, 700),
        ("gather", 100, 0, 100),
        ("scatter", 800, 100, 700),
        ("scatter", 0, 100, 100),
        ("alltoall", 800, 800, 700),
        ("all_gather", 100, 800, 700),
        ("reduce_scatter", 800, 100, 700),
    ],
)
def test_link_bytes(name: str, sent: int, received: int, link: int) -> None:
    op_cost = counted(name, sent, received, 8)
    assert (op_cost.link, op_cost.link_bytes) == ("gpu", link)


def test_send_reads_and_receive_writes() -> None:
    send, receive = counted("send", 8_388_608, 8_388_608, 2), counted("recv", 8_388_608, 8_388_608, 2)
    assert (send.read_bytes, send.write_bytes, send.link_bytes) == (8_388_608, 0, 8_388_608)
    assert (receive.read_bytes, receive.write_bytes, receive.link_bytes) == (0, 8_388_608, 8_388_608)


@pytest.mark.parametrize("name", ["allreduce", "_allgather_base", "broadcast", "all_to_allv", "gather"])
def test_one_rank_alone_uses_no_link(name: str) -> None:
    op_cost = counted(name, 4096, 4096, 1)
    assert (op_cost.link, op_cost.link_bytes) == ("", 0)
    assert op_cost.read_bytes == op_cost.write_bytes == 4096
    assert "one rank" in op_cost.note


@pytest.mark.parametrize("name", ["barrier", "wait", "coalesced"])
def test_synchronisation_moves_nothing(name: str) -> None:
    with pytest.raises(Uncounted, match=f"{name} moves no data of its own"):
        counted(name, 0, 0, 8)


@pytest.mark.parametrize("ranks", ["", "0", "-1", "many"])
def test_without_the_size_of_the_group_nothing_is_counted(ranks: str) -> None:
    with pytest.raises(Uncounted, match="size of the group not recorded"):
        counted("allreduce", 8, 8, ranks)
