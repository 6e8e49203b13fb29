"""Rows sorted by expert, against a loop over tokens and experts in plain Python."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the workload needs torch")

from tracelens.workload.rows import RowMap, sort_rows, sort_rows_by_host, spread_rows  # noqa: E402


@st.composite
def choices(draw: st.DrawFn) -> tuple[list[list[int]], int]:
    """Experts that each token chose, and how many experts there are, whose number stands for none of them."""
    experts, K = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    token = st.lists(st.integers(0, experts), min_size=K, max_size=K)
    return draw(st.lists(token, min_size=1, max_size=7)), experts


def by_hand(chosen: list[list[int]], experts: int) -> list[tuple[int, int]]:
    """Token and choice of each row."""
    K = len(chosen[0])
    found = []
    for expert in range(experts):
        for token, of_token in enumerate(chosen):
            found += [(token, token * K + k) for k, one in enumerate(of_token) if one == expert]
    return found


def check(
    rows: RowMap, expected: list[tuple[int, int] | None], chosen: list[list[int]], experts: int
) -> None:
    """Compare everything in `rows` with the token and choice that each row should hold (None: nothing)."""
    K = len(chosen[0])
    assert rows.token_R.tolist() == [-1 if row is None else row[0] for row in expected]
    assert rows.choice_R.tolist() == [-1 if row is None else row[1] for row in expected]
    place = {row[1]: index for index, row in enumerate(expected) if row is not None}
    assert rows.row_TK.flatten().tolist() == [place.get(choice, -1) for choice in range(len(chosen) * K)]
    assert rows.rows_e.tolist() == [sum(t.count(expert) for t in chosen) for expert in range(experts)]


@given(choices())
def test_both_ways_to_sort_agree_with_a_loop(drawn: tuple[list[list[int]], int]) -> None:
    chosen, experts = drawn
    expected = by_hand(chosen, experts)
    check(sort_rows_by_host(torch.tensor(chosen), experts), expected, chosen, experts)
    rows = sort_rows(torch.tensor(chosen), experts, len(expected))
    check(rows, expected, chosen, experts)
    assert not rows.padded


@given(choices(), st.integers(0, 4))
def test_padded_rows_stand_behind_all_others(drawn: tuple[list[list[int]], int], more: int) -> None:
    chosen, experts = drawn
    expected = by_hand(chosen, experts)
    room = min(len(expected) + more, len(chosen) * len(chosen[0]))
    rows = sort_rows(torch.tensor(chosen), experts, room, padded=True)
    check(rows, expected + [None] * (room - len(expected)), chosen, experts)
    assert rows.padded


@settings(max_examples=200)
@given(choices(), st.integers(1, 3), st.integers(0, 2), st.booleans())
def test_rows_spread_over_parts_of_one_size(
    drawn: tuple[list[list[int]], int], parts: int, more: int, padded: bool
) -> None:
    chosen, each = drawn
    # As many experts for each part; the number that stands for none grows with them.
    experts = each * parts
    chosen = [[(one + token) % (experts + 1) for one in row] for token, row in enumerate(chosen)]
    expected = by_hand(chosen, experts)
    assume(padded or expected)
    of_part = [
        [row for row in expected if chosen[row[0]][row[1] % len(chosen[0])] // each == part]
        for part in range(parts)
    ]
    capacity = max(map(len, of_part)) + more
    room = len(chosen) * len(chosen[0]) if padded else len(expected)
    rows = spread_rows(sort_rows(torch.tensor(chosen), experts, room, padded=padded), parts, capacity)
    filled: list[tuple[int, int] | None] = []
    for part in of_part:
        filled += [*part, *[None] * (capacity - len(part))]
    check(rows, filled, chosen, experts)
    assert rows.padded
