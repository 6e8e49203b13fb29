"""Copies between host and devices, fills, single values."""

import pytest

from tests.costs.recorded import costed
from tracelens.costs import OpCall, OpCost, Uncounted, find


def copied(name: str, size: int) -> OpCost:
    model = find(name)
    assert model is not None
    return model.function(OpCall(name, [[size]], ["u8"]))


@pytest.mark.parametrize(
    ("name", "read", "written", "link"),
    [
        ("memcpy::htod", 0, 4096, "host"),
        ("memcpy::dtoh", 4096, 0, "host"),
        ("memcpy::ptop", 4096, 4096, "gpu"),
        ("memcpy::dtod", 4096, 4096, ""),
        ("memset::device", 0, 4096, ""),
    ],
)
def test_copies(name: str, read: int, written: int, link: str) -> None:
    cost = copied(name, 4096)
    assert (cost.flops, cost.read_bytes, cost.write_bytes, cost.link) == (0, read, written, link)
    assert cost.link_bytes == (4096 if link else 0)
    assert copied(name, 0).link_bytes == 0


def test_a_value_goes_over_the_host_link() -> None:
    cost = costed("aten::_local_scalar_dense", "i64")
    assert (cost.read_bytes, cost.link, cost.link_bytes) == (8, "host", 8)


def test_no_size() -> None:
    with pytest.raises(Uncounted, match="no shapes"):
        costed("memcpy::htod")
