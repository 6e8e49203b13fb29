"""Ranks, groups and chunks, without torch."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.planner.config import DIMENSIONS, Layout


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    pp, cp, tp, dp = (draw(st.sampled_from([1, 2, 3, 4])) for _ in range(4))
    stage = dp * cp * tp
    ep = draw(st.sampled_from([size for size in range(1, stage + 1) if stage % size == 0]))
    return Layout(ranks=pp * stage, pp=pp, cp=cp, tp=tp, ep=ep)


def test_groups_of_eight_ranks_by_hand() -> None:
    layout = Layout(ranks=8, pp=2, tp=2, ep=2)
    assert layout.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups("pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert layout.groups("dp", "cp", "tp") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert layout.groups("ep") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups("edp") == [[0, 2], [1, 3], [4, 6], [5, 7]]


@given(layouts())
def test_every_kind_of_group_holds_every_rank_once(layout: Layout) -> None:
    kinds = [("ep",), ("edp",), ("dp", "cp"), ("cp", "tp"), *((name,) for name in DIMENSIONS)]
    for kind in kinds:
        groups = layout.groups(*kind)
        assert sorted(rank for group in groups for rank in group) == list(range(layout.ranks))
        assert len({len(group) for group in groups}) == 1
        assert all(group == sorted(group) for group in groups)


@given(layouts())
def test_ranks_of_a_group_differ_in_its_dimensions_alone(layout: Layout) -> None:
    for name in DIMENSIONS:
        for group in layout.groups(name):
            places = [layout.coordinates(rank) for rank in group]
            assert [place[name] for place in places] == list(range(getattr(layout, name)))
            for other in set(DIMENSIONS) - {name}:
                assert len({place[other] for place in places}) == 1
    for stage, group in product(range(layout.pp), layout.groups("ep")):
        if layout.coordinates(group[0])["pp"] == stage:
            assert {layout.coordinates(rank)["pp"] for rank in group} == {stage}
            assert [layout.coordinates(rank)["ep"] for rank in group] == list(range(layout.experts_over))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 40))
def test_chunks_share_layers_evenly_and_in_order(pp: int, vpp: int, more: int) -> None:
    layout = Layout(ranks=pp, pp=pp, vpp=vpp if pp > 1 else 1)
    count = layout.pp * layout.vpp
    chunks = layout.chunks(count + more)
    assert [layer for chunk in chunks for layer in chunk] == list(range(count + more))
    assert max(map(len, chunks)) - min(map(len, chunks)) <= 1


def test_a_partition_by_hand_may_leave_a_chunk_empty() -> None:
    layout = Layout(ranks=2, pp=2, vpp=2, pp_layout="0,3,1,1")
    assert layout.chunks(5) == [range(0), range(3), range(3, 4), range(4, 5)]


@pytest.mark.parametrize("text", ["1,2", "1,1,1,3", "1,1,1,-1,3"])
def test_a_partition_that_does_not_add_up(text: str) -> None:
    from tracelens.errors import TracelensError

    with pytest.raises(TracelensError, match="pp_layout"):
        Layout(ranks=2, pp=2, vpp=2, pp_layout=text).chunks(5)
