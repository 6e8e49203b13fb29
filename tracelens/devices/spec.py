"""`Device`: the figures of one GPU, and which of them holds for which element type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tracelens.devices.measured import Measured

Engine = Literal["matrix", "vector"]

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp6", "fp4", "i64", "i32", "i16", "i8")
"""Element types that a device file can have peaks for."""

# Types that run at the rate of another one. Complex numbers are counted in complex operations; the rate of
# their parts is then an upper bound.
_SAME = {
    "fp8e4m3": "fp8", "fp8e5m2": "fp8", "fp8e8m0": "fp8", "fp4x2": "fp4",
    "u64": "i64", "u32": "i32", "u16": "i16", "u8": "i8",
    "c128": "fp64", "c64": "fp32", "c32": "fp16",
}  # fmt: skip

# What a vector unit computes in where no rate is published for the type itself, first choice first.
_VECTOR: Mapping[str, tuple[str, ...]] = {
    "tf32": ("fp32",),
    "bf16": ("fp32",),
    "fp16": ("fp32",),
    "i32": ("fp32",),
    "i64": ("i32", "fp32"),
    "i16": ("i32", "fp32"),
    "i8": ("i32", "fp32"),
    "bool": ("i32", "fp32"),
}

# Narrow floats exist only where matrix units take them; elsewhere nothing stands in.
_NARROW = ("fp8", "fp6", "fp4")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as software sees it. Rates are data-sheet peaks, dense, per second.

    A number that is not published is 0 (or missing in a mapping); none is made up by scaling another.

    Attributes:
        name: short and in lower case, as for --device.
        title: name for people.
        vendor: who makes it.
        aliases: names that tell it in a trace's device name.
        units: compute units (AMD) or streaming multiprocessors (NVIDIA).
        hbm_bytes: memory as on the nameplate, in decimal bytes; drivers may report up to 8% more.
        hbm_bytes_per_s: memory bandwidth.
        cache_bytes: last-level cache.
        matrix: FLOP/s of the matrix units by element type (see DTYPES); integer operations count alike.
        vector: FLOP/s of the vector units.
        maf: max-achievable FLOP/s of GEMMs, as measured and published by the vendor.
        gpu_link_bytes_per_s: out of one GPU to all others of its node together, one direction.
        host_link_bytes_per_s: between GPU and host, one direction.
        sources: where each number is from; keys are field names, "matrix.bf16" for those in mappings.
        measured: what `tracelens calibrate` measured on it, by size.
    """

    name: str
    title: str
    vendor: str
    aliases: tuple[str, ...]
    units: int
    hbm_bytes: int
    hbm_bytes_per_s: float
    cache_bytes: int
    matrix: Mapping[str, float] = field(hash=False)
    vector: Mapping[str, float] = field(hash=False)
    maf: Mapping[str, float] = field(hash=False)
    gpu_link_bytes_per_s: float
    host_link_bytes_per_s: float
    sources: Mapping[str, str] = field(hash=False)
    measured: Measured = field(default_factory=Measured, hash=False)

    def peak(self, engine: Engine, dtype: str) -> float | None:
        """Peak FLOP/s for an element type (short names as in traces); None where the device cannot do it.

        FP8 of any layout has one rate, so have signed and unsigned integers. Where the device has no rate
        of its own for a type, the one that the work falls back to stands in:

        - matrix: TF32 runs as FP32; FP64, FP32, FP16, BF16 and integers of 16 bits and more run on the
          vector units (NVIDIA GPUs have no FP32 matrix unit). FP8, FP6, FP4 and INT8: None.
        - vector: 16-bit floats and TF32 are computed in FP32; so are FP8, FP6 and FP4, on devices that know
          them. Integers and booleans count against the INT32 rate, else against FP32: these rates are
          hardly ever published, and such work is limited by memory long before.
        """
        dtype = _SAME.get(dtype, dtype)
        if engine == "vector":
            return self._vector_peak(dtype)
        if dtype == "tf32":
            return self.matrix.get("tf32") or self.peak("matrix", "fp32")
        if dtype in self.matrix or dtype in (*_NARROW, "i8"):
            return self.matrix.get(dtype)
        return self._vector_peak(dtype)

    def max_achievable(self, dtype: str) -> float | None:
        """Max-achievable FLOP/s of GEMMs; None where none is published for the type."""
        return self.maf.get(_SAME.get(dtype, dtype))

    def matrix_dtype(self, dtype: str) -> str:
        """The type under which the rate of a type is listed: FP8 of any layout is `fp8`."""
        return _SAME.get(dtype, dtype)

    def _vector_peak(self, dtype: str) -> float | None:
        stands_in = _VECTOR.get(dtype, ())
        if dtype in _NARROW and dtype in self.matrix:
            stands_in = ("fp32",)
        return next((self.vector[name] for name in (dtype, *stands_in) if name in self.vector), None)
