"""Mangled symbols as readable text."""

from __future__ import annotations

import pytest

from tracelens.symbols import demangled, qualified_name


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("_ZN5aiter3addIfEEvv", "aiter::add"),
        ("_Z4siluv", "silu"),
        ("_ZN2ck12_GLOBAL__N_14gemmILi128ELin1ELb1EEEvv", "ck::gemm<128, -1, true>"),
        (
            "_ZN2ck4gemmINS_4TileILi4EEENS_6tensor3RowELNS_4ModeE7ELi64EEEvT_",
            "ck::gemm<Tile, 4, tensor::Row, Mode, 7, 64>",
        ),
        ("_ZN3sgl3actI14__hip_bfloat16DF16_EEvv", "sgl::act<__hip_bfloat16, half>"),
        ("gemm_kernel [clone .kd]", "gemm_kernel"),
        ("aten::mm", "aten::mm"),
        ("_Zebra", "_Zebra"),
    ],
)
def test_names_and_numbers_of_template_arguments(symbol: str, expected: str) -> None:
    assert demangled(symbol) == expected


def test_the_leading_name_and_what_follows() -> None:
    assert qualified_name("_ZN5aiter3addIfEEvv") == ("aiter::add", "IfEEvv")
    assert qualified_name("_ZNSt6vectorIiE") == ("vector", "IiE")


def test_endless_arguments_end() -> None:
    assert demangled(f"_Z1aI{'Li1E' * 10_000}E").count("1") == 60
