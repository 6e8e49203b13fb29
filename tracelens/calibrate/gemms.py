"""Achieved rates by size: GEMMs, plain and grouped, by rows, and causal attention by sequence length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tracelens.calibrate.sizes import GroupedSizes, MeasuredAttention, PlainSizes
from tracelens.calibrate.timing import Call, Stopwatch
from tracelens.devices import AttentionCurve, GemmCurve, GemmKind

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}


class FailedMeasurement(NamedTuple):
    """A measurement that the device or this torch cannot do."""

    name: str
    reason: str


class GemmBench:
    """Measures GEMMs; what fails is listed in `failures`."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch
        self.failures: list[FailedMeasurement] = []

    def plain(self, sizes: PlainSizes) -> list[GemmCurve]:
        """Curves of one dtype; FP8 multiplies with one scale per tensor, into BF16."""
        make = self._scaled if sizes.dtype == "fp8" else self._mm
        with _tf32(sizes.dtype == "tf32"):
            return self._curves(make, sizes.dtype, sizes.kind, sizes.k, sizes.n, [1], sizes.rows)

    def grouped(self, sizes: GroupedSizes) -> list[GemmCurve]:
        return self._curves(
            self._grouped, sizes.dtype, sizes.kind, sizes.k, sizes.n, sizes.matrices, sizes.rows
        )

    def _curves(
        self,
        make: Callable[..., list[Call]],
        dtype: str,
        kind: GemmKind,
        ks: Sequence[int],
        ns: Sequence[int],
        counts: Sequence[int],
        rows: Sequence[int],
    ) -> list[GemmCurve]:
        curves = []
        name = f"{'grouped ' if max(counts) > 1 else ''}GEMM {dtype} {kind}"
        try:
            for k, n, matrices in product(ks, ns, counts):
                rates = []
                for m in rows:
                    seconds = self.watch.seconds(make(dtype, kind, m, k, n, matrices), name)
                    rates.append(2 * m * k * n * matrices / seconds)
                curves.append(
                    GemmCurve(
                        dtype=dtype,
                        k=k,
                        n=n,
                        rows=tuple(rows),
                        flops_per_s=tuple(rates),
                        matrices=matrices,
                        kind=kind,
                    )
                )
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            # A grid with holes cannot be interpolated: leave all of it out.
            self.failures.append(FailedMeasurement(name, str(error).strip().partition("\n")[0]))
            return []
        return curves

    def _mm(self, dtype: str, kind: GemmKind, m: int, k: int, n: int, _matrices: int) -> list[Call]:
        element = DTYPES[dtype]
        count = self.watch.buffers((m * k + k * n + m * n) * element.itemsize)
        return [_mm_call(self._random(m, k, n, element), kind) for _ in range(count)]

    def _scaled(self, _dtype: str, _kind: GemmKind, m: int, k: int, n: int, _matrices: int) -> list[Call]:
        element = _fp8()
        count = self.watch.buffers(m * k + k * n + 2 * m * n)
        scale = torch.ones((), device=self.watch.device)
        calls = []
        for _ in range(count):
            x_MK, w_NK, out_MN = self._random(m, k, n, torch.bfloat16)
            calls.append(_scaled_call(x_MK.to(element), w_NK.to(element), scale, out_MN))
        return calls

    def _grouped(self, dtype: str, kind: GemmKind, m: int, k: int, n: int, matrices: int) -> list[Call]:
        element, rows, device = DTYPES[dtype], m * matrices, self.watch.device
        count = self.watch.buffers((rows * (k + n) + matrices * k * n) * element.itemsize)
        ends = torch.arange(m, rows + 1, m, device=device, dtype=torch.int32)
        grouped_mm = _grouped_mm()
        calls: list[Call] = []
        for _ in range(count):
            x_RK = torch.randn(rows, k, device=device, dtype=element)
            if kind == "weight":
                other = torch.randn(rows, n, device=device, dtype=element)
                calls.append(partial(grouped_mm, x_RK.t(), other, offs=ends))
            else:
                other = torch.randn(matrices, k, n, device=device, dtype=element)
                calls.append(partial(grouped_mm, x_RK, other, offs=ends))
        return calls

    def _random(self, m: int, k: int, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Input, weights as a linear layer holds them, and output."""
        device = self.watch.device
        return (
            torch.randn(m, k, device=device, dtype=dtype),
            torch.randn(n, k, device=device, dtype=dtype),
            torch.randn(m, n, device=device, dtype=dtype),
        )


def _mm_call(tensors: tuple[Tensor, Tensor, Tensor], kind: GemmKind) -> Call:
    x_MK, w_NK, y_MN = tensors
    if kind == "weight":
        return lambda: torch.mm(y_MN.t(), x_MK, out=w_NK)
    return lambda: torch.mm(x_MK, w_NK.t(), out=y_MN)


def _scaled_call(x_MK: Tensor, w_NK: Tensor, scale: Tensor, out_MN: Tensor) -> Call:
    def call() -> None:
        torch._scaled_mm(
            x_MK, w_NK.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True,
            out=out_MN,
        )  # fmt: skip

    return call


def _fp8() -> torch.dtype:
    """The E4M3 format of the device: MI300X has another than the standard's."""
    arch = getattr(torch.cuda.get_device_properties(0), "gcnArchName", "") if torch.version.hip else ""
    return torch.float8_e4m3fnuz if arch.startswith("gfx94") else torch.float8_e4m3fn


def _grouped_mm() -> Callable[..., Tensor]:
    op: Callable[..., Tensor] | None = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if op is None:
        raise NotImplementedError(f"torch {torch.__version__} has no grouped_mm")
    return op


@contextmanager
def _tf32(enabled: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def attention_curve(
    watch: Stopwatch, sizes: MeasuredAttention, dtype: str = "bf16"
) -> AttentionCurve | FailedMeasurement:
    """Rates of `scaled_dot_product_attention`.

    FLOPs are those of FlashAttention: half of a square of scores; two GEMMs in the forward, and five in the
    backward, three of them as wide as a query and two as wide as a value (Dao et al. 2022, arXiv:2205.14135).
    """
    forward, backward = [], []
    name = f"attention {sizes.query_dim}/{sizes.value_dim}"
    try:
        for seq in sizes.seq:
            seconds = _seconds(watch, sizes, seq, DTYPES[dtype], name)
            scores = seq * seq * sizes.heads * (sizes.tokens // seq)
            forward.append(scores * (sizes.query_dim + sizes.value_dim) / seconds[0])
            backward.append(scores * (3 * sizes.query_dim + 2 * sizes.value_dim) / seconds[1])
    except RuntimeError as error:
        return FailedMeasurement(name, str(error).strip().partition("\n")[0])
    dims = (sizes.query_dim, sizes.value_dim)
    return AttentionCurve(dtype, *dims, sizes.seq, tuple(forward), tuple(backward))


def _seconds(
    watch: Stopwatch, sizes: MeasuredAttention, seq: int, dtype: torch.dtype, name: str
) -> tuple[float, float]:
    """Time of the forward, and of the backward."""
    batch = sizes.tokens // seq

    def heads(width: int) -> torch.Tensor:
        x_BSnv = torch.randn(batch, seq, sizes.heads, width, device=watch.device, dtype=dtype)
        return x_BSnv.transpose(1, 2).requires_grad_()

    q, k, v = heads(sizes.query_dim), heads(sizes.query_dim), heads(sizes.value_dim)

    def forward() -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    with torch.no_grad():
        forward_s = watch.seconds([forward], name)
    out = forward()
    d_out = torch.randn_like(out)

    def backward() -> None:
        torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)

    # Autograd runs on a thread of its own; its kernels are long enough for the host to stay ahead.
    return forward_s, watch.seconds([backward], f"{name} backward", capture=False)
