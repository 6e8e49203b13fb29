"""Element types: a short name for each, its size, and its names in torch, profilers and kernels.

Everything in the package calls a type by its short name ("bf16"); scripts that run torch use torch's.
"""

from __future__ import annotations

from msgspec import Struct


class ElementType(Struct, frozen=True):
    """An element type.

    Attributes:
        bits: of one element in memory.
        torch: its name in torch, "" where torch has none, or several of the same layout.
        scalar_type: its name in c10::ScalarType, as the profiler records it for collectives; "" as above.
        numbers: in c10::ScalarType, as a dtype argument of an op is recorded.
        aliases: other names, lower case: C++ types in ops and kernels, and torch's where there are several.
        mantissa: bits of the fraction, of complex types that of each part; None for integers.
    """

    bits: int
    torch: str = ""
    scalar_type: str = ""
    numbers: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    mantissa: int | None = None


E4M3 = ("float8_e4m3fn", "float8_e4m3fnuz")
E5M2 = ("float8_e5m2", "float8_e5m2fnuz")
BFLOAT16 = ("__nv_bfloat16", "__hip_bfloat16", "hip_bfloat16")

ELEMENT_TYPES = {
    "fp64": ElementType(64, "float64", "Double", (7,), mantissa=52),
    "fp32": ElementType(32, "float32", "Float", (6,), mantissa=23),
    "tf32": ElementType(32, mantissa=10),
    "bf16": ElementType(16, "bfloat16", "BFloat16", (15,), BFLOAT16, 7),
    "fp16": ElementType(16, "float16", "Half", (5,), ("__half",), 10),
    "fp8": ElementType(8),
    "fp8e4m3": ElementType(8, "", "", (24, 26), (*E4M3, "__nv_fp8_e4m3"), 3),
    "fp8e5m2": ElementType(8, "", "", (23, 25), (*E5M2, "__nv_fp8_e5m2"), 2),
    "fp8e8m0": ElementType(8, "float8_e8m0fnu", "Float8_e8m0fnu", (44,), mantissa=0),
    "fp6": ElementType(6),
    "fp4": ElementType(4, mantissa=1),
    "fp4x2": ElementType(8, "", "", (45,), ("float4_e2m1fn_x2",), 1),  # a byte that holds two fp4
    "i64": ElementType(64, "int64", "Long", (4,), ("long int", "long long")),
    "i32": ElementType(32, "int32", "Int", (3,)),
    "i16": ElementType(16, "int16", "Short", (2,), ("short int",)),
    "i8": ElementType(8, "int8", "Char", (1,), ("signed char",)),
    "u64": ElementType(64, "uint64", "UInt64", (29,), ("unsigned long",)),
    "u32": ElementType(32, "uint32", "UInt32", (28,), ("unsigned int",)),
    "u16": ElementType(16, "uint16", "UInt16", (27,), ("unsigned short",)),
    "u8": ElementType(8, "uint8", "Byte", (0,), ("unsigned char",)),
    "bool": ElementType(8, "bool", "Bool", (11,)),
    "c128": ElementType(128, "complex128", "ComplexDouble", (10,), ("complex<double>",), 52),
    "c64": ElementType(64, "complex64", "ComplexFloat", (9,), ("complex<float>",), 23),
    "c32": ElementType(32, "complex32", "ComplexHalf", (8,), (), 10),
}

BITS = {short: element.bits for short, element in ELEMENT_TYPES.items()}
"""Bits of one element in memory, by short name."""

SCALAR_TYPES = {str(number): short for short, element in ELEMENT_TYPES.items() for number in element.numbers}
"""Numbers in c10::ScalarType, as text, to short names."""

_SHORT = {
    alias: short
    for short, element in ELEMENT_TYPES.items()
    for alias in (short, element.torch, element.scalar_type.lower(), *element.aliases)
    if alias
}


def plain_dtype(name: str) -> str:
    """The name of an element type in lower case and without its namespace."""
    return name.lower().removeprefix("c10::")


def known_dtype(name: str) -> str:
    """The short name of an element type by any of its names, "" where none is known."""
    return _SHORT.get(plain_dtype(name), "")


def short_dtype(name: str) -> str:
    """The short name of an element type by any of its names; an unknown name as `plain_dtype`."""
    return known_dtype(name) or plain_dtype(name)


def element_bytes(name: str) -> int:
    """Bytes of one element by any of the type's names; 0 for an unknown type and for less than a byte."""
    return BITS.get(known_dtype(name), 0) // 8


def torch_dtype(name: str) -> str:
    """Torch's name of an element type by any of its names; "" where torch has none or it is not known which.

    The short names of 8-bit floats stand for two layouts of torch each; torch's own names say which.
    """
    plain = plain_dtype(name)
    if plain in (*E4M3, *E5M2):
        return plain
    short = known_dtype(name)
    return ELEMENT_TYPES[short].torch if short else ""


def scalar_type(name: str) -> str:
    """The name in c10::ScalarType of an element type by any of its names; "" where it has none or several."""
    short = known_dtype(name)
    return ELEMENT_TYPES[short].scalar_type if short else ""


def epsilon(name: str) -> float:
    """Distance from 1 to the next larger number of an element type; 0 for integers and unknown types."""
    short = known_dtype(name)
    mantissa = ELEMENT_TYPES[short].mantissa if short else None
    return 0.0 if mantissa is None else 2.0**-mantissa
