"""Times of messages from hand-made curves, by size, number of ranks and skew."""

from __future__ import annotations

from math import sqrt
from pathlib import Path

import pytest
from msgspec.structs import replace

from tracelens.devices import (
    AttentionCurve,
    Bandwidth,
    GemmCurve,
    LaunchCost,
    Measured,
    device,
    device_toml,
    message_seconds,
    read_device,
)
from tracelens.errors import TracelensError

MIB = 1 << 20
SIZES = (MIB, 4 * MIB)


def curve(name: str, rate: float, ranks: int, skew: float = 1.0, on_node: int = 0) -> Bandwidth:
    return Bandwidth(name, SIZES, (rate, 2 * rate), ranks, on_node or ranks, skew=skew)


LINKS = Measured(
    bandwidths=(
        curve("all_reduce", 100e9, 2),
        curve("all_reduce", 120e9, 8),
        curve("all_to_all", 100e9, 8),
        curve("all_to_all", 50e9, 8, skew=4),
        curve("send_recv", 30e9, 8),
        curve("all_gather", 10e9, 16, on_node=8),
    )
)


def seconds(collective: str, size: float, ranks: int, skew: float = 1.0) -> float:
    time = message_seconds(LINKS, collective, size, ranks, skew)
    assert time is not None
    return time.seconds


def test_a_time_is_bus_bytes_over_bus_bandwidth() -> None:
    assert seconds("all_reduce", MIB, 2) == pytest.approx(MIB / 100e9)
    assert seconds("all_reduce", MIB, 8) == pytest.approx(2 * 7 / 8 * MIB / 120e9)
    assert seconds("all_to_all", 4 * MIB, 8) == pytest.approx(7 / 8 * 4 * MIB / 200e9)
    assert seconds("send_recv", 2 * MIB, 8) == pytest.approx(2 * MIB / (30e9 * sqrt(2)))
    # A smaller message takes as long as the smallest that was measured, a larger one has its rate.
    assert seconds("all_reduce", 8, 2) == pytest.approx(MIB / 100e9)
    assert seconds("all_reduce", 64 * MIB, 2) == pytest.approx(64 * MIB / 200e9)


@pytest.mark.parametrize(("ranks", "nearest", "rate"), [(3, 2, 100e9), (4, 8, 120e9), (6, 8, 120e9)])
def test_the_nearest_number_of_ranks_counts_at_its_bus_bandwidth(
    ranks: int, nearest: int, rate: float
) -> None:
    time = message_seconds(LINKS, "all_reduce", MIB, ranks)
    assert time == (pytest.approx(2 * (ranks - 1) / ranks * MIB / rate), nearest)
    assert LINKS.message_ranks == "2 and 8 ranks"


def test_uneven_all_to_alls_lie_between_those_measured() -> None:
    assert seconds("all_to_all", MIB, 8, 4) == pytest.approx(7 / 8 * MIB / 50e9)
    assert seconds("all_to_all", MIB, 8, 2) == pytest.approx(7 / 8 * MIB / (50e9 * sqrt(2)))
    assert seconds("all_to_all", MIB, 8, 8) == seconds("all_to_all", MIB, 8, 4)


def test_what_was_not_measured_on_one_node_has_no_time() -> None:
    for collective in ("all_gather", "reduce_scatter", "broadcast"):
        assert message_seconds(LINKS, collective, MIB, 8) is None
    assert message_seconds(LINKS, "all_reduce", MIB, 1) is None
    assert Measured().message_ranks == ""


def test_curves_of_several_numbers_of_ranks_come_back_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(device_toml(replace(device("a100"), measured=LINKS)))
    assert read_device(path).measured.bandwidths == LINKS.bandwidths


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("skew = 4", "skew = 0.5"), "number 4: skew must be a number of 1 or more"),
        (("skew = 4", "skew = 1"), r"all_to_all \(ranks = 8\) is there twice; keep one"),
    ],
)
def test_what_is_wrong_with_a_curve_is_said(tmp_path: Path, change: tuple[str, str], problem: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(device_toml(replace(device("a100"), measured=LINKS)).replace(*change))
    with pytest.raises(TracelensError, match=problem):
        read_device(path)


def test_newer_measurements_replace_those_of_the_same() -> None:
    gemm = GemmCurve("bf16", 512, 512, (16,), (1e12,))
    wider = GemmCurve("bf16", 512, 2048, (16,), (2e12,))
    head = AttentionCurve("bf16", 128, 128, (512,), (1e14,), (1e14,))
    old = Measured(
        (gemm, wider), (head,), LINKS.bandwidths, LaunchCost(kernel_ns=5), {"date": "1", "gpu": "x"}
    )
    faster = curve("all_to_all", 200e9, 8)
    new = old.updated(Measured((replace(wider, kind="weight"),), (), (faster,), about={"date": "2"}))
    assert new.gemms == (gemm, wider, replace(wider, kind="weight"))
    assert new.attention == (head,)
    assert len(new.bandwidths) == len(LINKS.bandwidths)
    time = message_seconds(new, "all_to_all", MIB, 8)
    assert time is not None
    assert time.seconds == pytest.approx(7 / 8 * MIB / 200e9)
    assert new.launch == old.launch
    assert new.about == {"date": "2", "gpu": "x"}
    # A grid is replaced as a whole: points of two measurements make none.
    assert old.updated(Measured(gemms=(gemm,))).gemms == (gemm,)
