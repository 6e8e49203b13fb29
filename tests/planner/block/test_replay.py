"""The tape: hand-drawn passes, and what must hold of every block of the model."""

from __future__ import annotations

import pytest

from tracelens.planner.block import (
    TEMPORARY,
    RankSizes,
    Tape,
    attention_section,
    embedding_section,
    head_section,
    mlp_section,
    moe_section,
    total,
)
from tracelens.planner.config import override, preset


def test_two_products_by_hand() -> None:
    """x (10) -> a = x W (20), kept -> y = a V (30); gradients of W 7, of V 9.

    Forward: x 10, + a 20, + y 30 = 60. Backward: kept 30, gradient of y 30; in the second product, gradient
    of a 20 and of V 9 come on top: 89. Then a (20), the gradients of y (30) and V (9) are gone: x 10 and
    gradient of a 20, and those of x 10 and W 7 come: 47.
    """
    t = Tape("part")
    x = t.input(10)
    a = t.op([x], 20, saves=[x], weights=7)
    y = t.op([a], 30, saves=[a], weights=9)
    block = t.section(x, y).memory
    assert block.kept == {"part": 30}
    assert [total(one.peak) for one in block.forward] == [60]
    assert [total(one.peak) for one in block.unsaved] == [60]
    assert [total(one.peak) for one in block.backward] == [89]
    assert block.backward[0].peak == {"part": 30, TEMPORARY: 59}
    assert block.backward[0].end == {"part": 0, TEMPORARY: 10}


def test_without_saving_what_is_read_is_freed() -> None:
    t = Tape("part")
    x = t.input(1)
    y = x
    for _ in range(5):
        y = t.op([y], 10, saves=[y])
    block = t.section(x, y).memory
    assert block.kept == {"part": 41}
    assert [total(one.peak) for one in block.forward] == [51]
    assert [total(one.peak) for one in block.unsaved] == [21]


def test_a_gradient_of_two_readers_is_summed_in_place() -> None:
    """x goes to two ops: the first gradient of x (5) waits, the second (5) is added to it and freed."""
    t = Tape("part")
    x = t.input(5)
    y = t.op([t.op([x], 5), t.op([x], 5)], 5, gradient="same")
    (piece,) = t.section(x, y).memory.backward
    # x 5, the gradient of y, which is that of both, 5, the first of x 5, the second 5.
    assert total(piece.peak) == 20
    assert piece.end == {"part": 5, TEMPORARY: 5}


def test_a_pass_is_cut_where_it_waits() -> None:
    t = Tape("part")
    x = t.input(4)
    a = t.op([x], 8, saves=[x], waits=True)
    y = t.op([a], 2, saves=[a])
    block = t.section(x, y).memory
    assert [total(one.end) for one in block.forward] == [12, 14]
    assert [total(one.end) for one in block.backward] == [4 + 8 + 4, 4]


def test_views_share_memory_and_their_gradients_are_joined() -> None:
    t = Tape("part")
    x = t.input(8)
    left, right = t.split(x, [3, 5])
    y = t.op([left, right], 8, saves=[left, right])
    block = t.section(x, y).memory
    assert block.kept == {"part": 8}
    assert [total(one.peak) for one in block.forward] == [16]
    # x, the gradients of y and of both parts; then of x instead of y.
    assert [total(one.peak) for one in block.backward] == [24]


TOGGLES = [
    "", "experts=grouped", "sync_free=1", "overlap_shared=on", "ranks=4 tp=2 cp=2", "ranks=4 ep=2",
    "ranks=4 tp=2 tp_overlap=chunked", "attention=gqa kv_groups=2 ranks=2 cp=2", "score=sigmoid q_lora=16",
    *(
        f"ranks={ranks} dispatch={dispatch} {more}"
        for ranks in (1, 4)
        for dispatch in ("alltoall", "allgather", "dedup")
        for more in ("", "permute=fused router=fused loss=fused", "experts=grouped sync_free=3")
    ),
]  # fmt: skip


@pytest.mark.parametrize("fields", TOGGLES)
def test_a_backward_leaves_the_gradient_of_the_input_alone(fields: str) -> None:
    config = override(preset("tiny"), fields.split())
    s = RankSizes(config)
    for section in (
        attention_section(s, "flash"),
        attention_section(s, "math"),
        mlp_section(s),
        moe_section(RankSizes(config, 1.5)),
        embedding_section(s),
        head_section(s),
    ):
        block = section.memory
        left = dict(block.backward[-1].end)
        assert left.pop(TEMPORARY, 0) == block.input_bytes
        assert not any(left.values())
        kept = dict(block.forward[-1].end)
        assert kept.pop(TEMPORARY) == block.output
        assert kept == block.kept
