"""Parts on their way: nothing is lost, and integers take as few bytes as they need."""

from __future__ import annotations

from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tracelens.analysis import ANALYZERS
from tracelens.devices import device
from tracelens.errors import TracelensError
from tracelens.packing import PackedApart, PackedPart
from tracelens.read import SideTraces
from tracelens.trace import TraceMeta
from tracelens.workers import tasks

TYPES = st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])


@given(
    TYPES.flatmap(lambda dtype: npst.arrays(dtype, st.integers(0, 200)))
    | npst.arrays(np.float64, (3, 40))
    | npst.arrays(np.bool_, 100)
)
def test_an_array_comes_back_as_it_was(values: np.ndarray) -> None:
    back = PackedPart.of({"values": values}).unpack()["values"]
    assert back.dtype == values.dtype
    assert back.flags.writeable
    np.testing.assert_array_equal(back, values)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**33), st.integers(64, 300))
def test_so_do_numbers_far_from_zero(first: int, spread: int, count: int) -> None:
    last = min(first + spread, 2**63 - 1)
    values = np.linspace(0, 1, count) * (last - first)
    numbers = np.int64(first) + np.minimum(values, last - first).astype(np.int64)
    np.testing.assert_array_equal(PackedPart.of(numbers).unpack(), numbers)


def test_times_take_four_bytes_each_at_most() -> None:
    rng = np.random.default_rng(0)
    times = 1_700_000_000_000_000_000 + np.sort(rng.integers(0, 2**31, 10_000))
    assert len(PackedPart.of(times).data) < 4.1 * len(times)


def test_values_apart_are_unpacked_one_by_one() -> None:
    there = PackedPart.of(PackedApart(rows=np.arange(100), name="rank 0")).unpack()
    again = PackedPart.of(there).unpack()
    for values in (there, again):
        assert {*values} == {"rows", "name"}
        assert isinstance(dict.__getitem__(values, "rows"), PackedPart)
        np.testing.assert_array_equal(values["rows"], np.arange(100))
        assert values["name"] == "rank 0"


def test_equal_devices_are_one() -> None:
    h100 = device("h100")
    one, other = (PackedPart.of([h100]).unpack()[0] for _ in range(2))
    assert one is other
    assert one == h100


@pytest.mark.parametrize("full", [False, True])
def test_parts_wait_in_a_file_or_where_none_is_in_memory(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if full:
        monkeypatch.setattr(tasks, "TemporaryFile", lambda buffering: FileIO("/dev/full", "r+"))
    file = tasks.PartsFile()
    parts = {name: {"rows": np.arange(1000) * row} for row, name in enumerate(("kernels", "ops"))}
    portion = tasks.Portion("rank0.json", TraceMeta("rank0.json", "kineto"), 0, (0, 1), parts).parked(file)
    assert {type(part) for part in portion.parts.values()} == {PackedPart if full else tasks.ParkedPart}
    for name in ("ops", "kernels"):
        np.testing.assert_array_equal(portion.take(name)["rows"], parts[name]["rows"])


def test_a_part_of_another_version_is_one_line() -> None:
    parts = {"kernels": PackedPart.of({"rows": 1})}
    portion = tasks.Portion("rank0.json", TraceMeta("rank0.json", "kineto"), 0, (0, 1), parts)
    assert portion._replace(parts={**parts}).take("kernels") == {"rows": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PackedPart, "unpack", _fails(AttributeError("no class Gone")))
        with pytest.raises(TracelensError, match=r"rank0\.json: .*no class Gone"):
            portion.take("kernels")


def _fails(error: Exception) -> Callable[[PackedPart], Any]:
    def unpack(_: PackedPart) -> Any:
        raise error

    return unpack


@pytest.mark.slow
def test_the_part_of_a_rank_has_at_most_a_megabyte(corpus: Path) -> None:
    """One of eight ranks, with 7,584 activities in three steps."""
    trace = next(
        path for path in sorted((corpus / "nvidia-h200-megatron/ep8").iterdir()) if "rank0" in path.name
    )
    names = tuple(name for name, _ in ANALYZERS.items())
    (portion,) = tasks.carry_out(tasks.Task(str(trace), 0, names, None, ()), SideTraces())
    parts = portion.packed().parts.values()
    assert sum(len(part.data) for part in parts) < 1_000_000
