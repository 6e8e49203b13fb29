"""Element types: their names in torch, profilers and kernels, and their sizes."""

from __future__ import annotations

import pytest

from tracelens.dtypes import (
    BITS,
    ELEMENT_TYPES,
    SCALAR_TYPES,
    element_bytes,
    epsilon,
    known_dtype,
    scalar_type,
    short_dtype,
    torch_dtype,
)


def test_no_name_means_two_types() -> None:
    names = [
        name
        for short, element in ELEMENT_TYPES.items()
        for name in {short, element.torch, element.scalar_type.lower(), *element.aliases} - {""}
    ]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("c10::Half", "fp16"),
        ("c10::BFloat16", "bf16"),
        ("__hip_bfloat16", "bf16"),
        ("long int", "i64"),
        ("Long", "i64"),
        ("unsigned char", "u8"),
        ("Byte", "u8"),
        ("c10::Float8_e4m3fnuz", "fp8e4m3"),
        ("complex<float>", "c64"),
        ("float32", "fp32"),
        ("fp4", "fp4"),
    ],
)
def test_types_are_known_by_the_names_of_every_source(name: str, short: str) -> None:
    assert known_dtype(name) == short_dtype(name) == short


@pytest.mark.parametrize("name", ["c10::Int4x2", "Scalar", "TensorList", "", "fp3"])
def test_unknown_types_stay_unknown(name: str) -> None:
    assert known_dtype(name) == torch_dtype(name) == scalar_type(name) == ""
    assert element_bytes(name) == 0
    assert epsilon(name) == 0
    assert short_dtype(name) == name.removeprefix("c10::").lower()


def test_sizes() -> None:
    assert all(bits > 0 for bits in BITS.values())
    names = ("double", "c10::BFloat16", "Byte", "bool", "complex128")
    assert [element_bytes(name) for name in names] == [8, 2, 1, 1, 16]
    assert (BITS["fp4"], element_bytes("fp4"), element_bytes("float4_e2m1fn_x2")) == (4, 0, 1)


def test_torch_names_say_which_layout_of_an_8_bit_float() -> None:
    assert torch_dtype("c10::Float8_e4m3fnuz") == "float8_e4m3fnuz"
    assert torch_dtype("c10::Float8_e5m2") == "float8_e5m2"
    assert torch_dtype("fp8e4m3") == ""
    assert torch_dtype("signed char") == "int8"


def test_names_and_numbers_of_scalar_types() -> None:
    assert [scalar_type(name) for name in ("float", "long int", "unsigned char")] == ["Float", "Long", "Byte"]
    assert (SCALAR_TYPES["6"], SCALAR_TYPES["15"], SCALAR_TYPES["24"]) == ("fp32", "bf16", "fp8e4m3")


def test_epsilon() -> None:
    assert epsilon("float64") == epsilon("complex128") == 2**-52
    assert (epsilon("bfloat16"), epsilon("float8_e4m3fn"), epsilon("int8")) == (2**-7, 2**-3, 0)
