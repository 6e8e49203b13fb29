"""Achieved rates by size: GEMMs, plain and grouped, by rows, and causal attention by sequence length."""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
import torch.nn.functional as F

from tracelens.calibrate.sizes import GroupedSizes, MeasuredAttention, PlainSizes
from tracelens.calibrate.timing import Call, FailedMeasurement, Stopwatch, first_line
from tracelens.devices import AttentionCurve, GemmCurve

DTYPES = {
    "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32,
    "fp8": torch.bfloat16,  # of the result; operands are converted
}  # fmt: skip


def gemm_curves(
    watch: Stopwatch, sizes: PlainSizes | GroupedSizes
) -> list[GemmCurve] | list[FailedMeasurement]:
    """Curves of one dtype; FP8 multiplies with one scale per tensor, into BF16."""
    counts = sizes.matrices if isinstance(sizes, GroupedSizes) else (1,)
    name = f"{'grouped ' if max(counts) > 1 else ''}GEMM {sizes.dtype} {sizes.kind}"
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if sizes.dtype == "tf32" else "highest")
    curves = []
    try:
        for k, n, matrices in product(sizes.k, sizes.n, counts):
            rates = []
            for m in sizes.rows:
                seconds = watch.seconds(_gemm_calls(watch, sizes, m, k, n, matrices), name)
                rates.append(2 * m * k * n * matrices / seconds)
            curve = GemmCurve(
                dtype=sizes.dtype,
                k=k,
                n=n,
                rows=sizes.rows,
                flops_per_s=tuple(rates),
                matrices=matrices,
                kind=sizes.kind,
            )
            curves.append(curve)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        # A grid with holes cannot be interpolated: leave all of it out.
        return [FailedMeasurement(name, first_line(error))]
    finally:
        torch.set_float32_matmul_precision(precision)
    return curves


def _gemm_calls(
    watch: Stopwatch, sizes: PlainSizes | GroupedSizes, m: int, k: int, n: int, matrices: int
) -> list[Call]:
    """A GEMM on as many sets of buffers as take turns; weights are (n, k), as a linear layer holds them."""
    dtype = DTYPES[sizes.dtype]
    randn = partial(torch.randn, device=watch.device, dtype=dtype)
    if isinstance(sizes, GroupedSizes):
        grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
        if grouped_mm is None:
            raise NotImplementedError(f"torch {torch.__version__} has no grouped_mm")
        rows = m * matrices
        ends = torch.arange(m, rows + 1, m, device=watch.device, dtype=torch.int32)
        buffers = range(watch.buffers((rows * (k + n) + matrices * k * n) * dtype.itemsize))
        if sizes.kind == "weight":
            return [partial(grouped_mm, randn(rows, k).t(), randn(rows, n), offs=ends) for _ in buffers]
        return [partial(grouped_mm, randn(rows, k), randn(matrices, k, n), offs=ends) for _ in buffers]
    if sizes.dtype == "fp8":
        # The E4M3 format of the device: MI300X has another than the standard's.
        arch = getattr(torch.cuda.get_device_properties(0), "gcnArchName", "") if torch.version.hip else ""
        fp8 = torch.float8_e4m3fnuz if arch.startswith("gfx94") else torch.float8_e4m3fn
        scale = torch.ones((), device=watch.device)
        scaled_mm = partial(
            torch._scaled_mm, scale_a=scale, scale_b=scale, out_dtype=dtype, use_fast_accum=True
        )
        return [
            partial(scaled_mm, randn(m, k).to(fp8), randn(n, k).to(fp8).t(), out=randn(m, n))
            for _ in range(watch.buffers(m * k + k * n + 2 * m * n))
        ]
    buffers = range(watch.buffers((m * k + k * n + m * n) * dtype.itemsize))
    if sizes.kind == "weight":
        return [partial(torch.mm, randn(m, n).t(), randn(m, k), out=randn(n, k)) for _ in buffers]
    return [partial(torch.mm, randn(m, k), randn(n, k).t(), out=randn(m, n)) for _ in buffers]


def attention_curve(watch: Stopwatch, sizes: MeasuredAttention) -> AttentionCurve | FailedMeasurement:
    """Rates of `scaled_dot_product_attention`.

    FLOPs are those of FlashAttention: half of a square of scores; two GEMMs in the forward, and five in the
    backward, three of them as wide as a query and two as wide as a value (Dao et al. 2022, arXiv:2205.14135).
    """
    forward, backward = [], []
    name = f"attention {sizes.query_dim}/{sizes.value_dim}"
    try:
        for seq in sizes.seq:
            batch = sizes.tokens // seq
            q, k, v = (
                torch.randn(batch, seq, sizes.heads, width, device=watch.device, dtype=torch.bfloat16)
                .transpose(1, 2)
                .requires_grad_()
                for width in (sizes.query_dim, sizes.query_dim, sizes.value_dim)
            )
            attention = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
            with torch.no_grad():
                forward_s = watch.seconds([attention], name)
            out = attention()
            # Autograd runs on a thread of its own; its kernels are long enough for the host to stay ahead.
            gradients = partial(torch.autograd.grad, out, (q, k, v), torch.randn_like(out), retain_graph=True)
            backward_s = watch.seconds([gradients], f"{name} backward", capture=False)
            scores = seq * seq * sizes.heads * batch
            forward.append(scores * (sizes.query_dim + sizes.value_dim) / forward_s)
            backward.append(scores * (3 * sizes.query_dim + 2 * sizes.value_dim) / backward_s)
    except RuntimeError as error:
        return FailedMeasurement(name, first_line(error))
    return AttentionCurve(
        dtype="bf16",
        query_dim=sizes.query_dim,
        value_dim=sizes.value_dim,
        seq=sizes.seq,
        forward_flops_per_s=tuple(forward),
        backward_flops_per_s=tuple(backward),
    )
