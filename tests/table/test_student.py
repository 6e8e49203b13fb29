"""Student's t against published tables."""

from __future__ import annotations

import pytest

from tracelens.table import t_quantile, t_tail


@pytest.mark.parametrize(
    ("tail", "freedom", "value"),
    [
        (0.025, 1, 12.706),
        (0.025, 2, 4.3027),
        (0.005, 3, 5.8409),
        (0.001, 18, 3.6105),
        (0.025, 100000, 1.9600),
    ],
)
def test_tail_and_quantile(tail: float, freedom: float, value: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(value, rel=3e-4)
    assert t_tail(value, freedom) == pytest.approx(tail, rel=2e-3)


def test_half_lies_above_zero() -> None:
    assert t_tail(0, 4) == pytest.approx(0.5)
