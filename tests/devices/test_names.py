"""Names in traces and on the command line, and the devices they mean."""

import pytest

from tracelens.devices import device, devices, match
from tracelens.devices.catalogue import best
from tracelens.errors import UnknownName


@pytest.mark.parametrize(
    ("trace_name", "name"),
    [
        # As they stand in real traces.
        ("AMD Instinct MI300X VF", "mi300x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PG509-200", "a100-40gb"),
        # As drivers call them.
        ("AMD Instinct MI355X", "mi355x"),
        ("AMD Instinct MI325X OAM", "mi325x"),
        ("AMD Instinct MI250X", "mi250x"),
        ("A100-SXM-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA B200", "b200"),
        ("AMD Instinct MI350X", "mi350x"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("amd instinct mi300x", "mi300x"),
    ],
)
def test_the_device_of_a_trace(trace_name: str, name: str) -> None:
    found = match(trace_name)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "trace_name",
    [
        "AMD Radeon Graphics",  # an MI250 with ROCm 6.2
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM2e",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H100",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA GB300",
        "NVIDIA H20-3e",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "Tesla V100-PCIE-16GB",
        "Tesla V100-SXM3-32GB",
        "AMD Instinct MI250X/MI250",
        "AMD Instinct MI300A",
        "AMD Instinct MI308X",
        "NVIDIA B2000",
        "CPU",
        "",
    ],
)
def test_other_products_match_nothing(trace_name: str) -> None:
    assert match(trace_name) is None


def test_the_longest_alias_wins() -> None:
    short, long = device("h100"), device("h200")
    made = [
        type(short)(**{field: getattr(item, field) for field in item.__slots__} | {"aliases": aliases})
        for item, aliases in ((short, ("X1",)), (long, ("X1 Ultra",)))
    ]
    for candidates in (made, made[::-1]):
        assert best("Maker X1 Ultra 80GB", candidates) == made[1]
        assert best("Maker X1 80GB", candidates) == made[0]
        assert best("Maker X12 Ultra", candidates) is None


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("mi300x", "mi300x"),
        ("MI300X", "mi300x"),
        ("Mi355X", "mi355x"),
        ("H100", "h100"),
        ("A100-SXM4-40GB", "a100-40gb"),
        ("A100 40GB", "a100-40gb"),
        ("NVIDIA H200 SXM", "h200"),
        ("AMD Instinct MI300X VF", "mi300x"),
    ],
)
def test_a_device_by_name_title_or_alias(spelling: str, name: str) -> None:
    assert device(spelling).name == name


@pytest.mark.parametrize("item", devices(), ids=lambda item: item.name)
def test_every_name_title_and_alias_finds_its_device(item) -> None:
    assert {device(name).name for name in (item.name, item.title, *item.aliases)} == {item.name}
    assert all(match(alias) is item for alias in item.aliases)


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("MI352X", "unknown device 'mi352x'; did you mean 'mi355x'?"),
        ("h10", "unknown device 'h10'; did you mean 'h100'?"),
        ("H100 PCIe", "unknown device 'h100 pcie'; did you mean 'h100'?"),
    ],
)
def test_an_unknown_device_is_told_with_the_nearest_known(spelling: str, message: str) -> None:
    with pytest.raises(UnknownName) as caught:
        device(spelling)
    assert str(caught.value) == message


@pytest.mark.parametrize("spelling", ["", "?", "zzz"])
def test_a_name_like_no_other_gets_the_whole_list(spelling: str) -> None:
    with pytest.raises(UnknownName, match="known: a100, a100-40gb, b200, b300, gb200, h100, h20"):
        device(spelling)
