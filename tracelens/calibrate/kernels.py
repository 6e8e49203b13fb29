"""Achieved rates by size: GEMMs, plain and grouped, attention, device memory, and to and from the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F

from tracelens.calibrate.sizes import GroupedSizes, MeasuredAttention, PlainSizes
from tracelens.calibrate.timing import Call, FailedMeasurement, Stopwatch, first_line
from tracelens.devices import AttentionCurve, Bandwidth, GemmCurve

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


def memory_bandwidths(watch: Stopwatch, sizes: Sequence[int]) -> list[Bandwidth]:
    """By all bytes that are moved, for buffers of these sizes.

    - copy: one read, one write.
    - triad: a = b + 2 c: two reads, one write.
    - concat: heads from parts of two tensors, as where rotary positions are a part of a head.
    - scatter: rows added to rows in random order, as outputs of experts are combined: reads, and as many
      additions in memory.
    """
    ones = partial(torch.ones, dtype=torch.bfloat16, device=watch.device)
    curves = []
    for name, times in (("copy", 2), ("triad", 3), ("concat", 2), ("scatter", 2)):
        rates = []
        for size in sizes:
            calls: list[Call] = []
            for _ in range(watch.buffers(times * size)):
                if name == "copy":
                    calls.append(partial(ones(size // 2).copy_, ones(size // 2)))
                elif name == "triad":
                    calls.append(
                        partial(torch.add, ones(size // 2), ones(size // 2), alpha=2, out=ones(size // 2))
                    )
                elif name == "concat":
                    # Of a head's 192 numbers 128 are a part of a wider tensor, and 64 are the same for all
                    # heads of a token.
                    heads = 16
                    tokens = max(1, size // (2 * heads * 192))
                    parts = [ones(tokens, heads, 256)[..., :128], ones(tokens, 1, 64).expand(-1, heads, -1)]
                    calls.append(partial(torch.cat, parts, dim=-1, out=ones(tokens, heads, 192)))
                else:  # four rows to each row of the result
                    width = 2048
                    rows = max(4, size // (2 * width))
                    out = torch.zeros(rows // 4, width, dtype=torch.bfloat16, device=watch.device)
                    index = torch.randperm(rows, device=watch.device) % (rows // 4)
                    calls.append(partial(out.index_add_, 0, index, ones(rows, width)))
            rates.append(times * size / watch.seconds(calls, name))
            del calls  # frees its buffers before the next are made
        curves.append(Bandwidth(name, tuple(times * size for size in sizes), tuple(rates)))
    return curves


def transfer_bandwidths(watch: Stopwatch, sizes: Sequence[int]) -> list[Bandwidth]:
    """From and to page-locked memory of the host."""
    to_device, to_host = [], []
    for size in sizes:
        host = torch.ones(size // 4, pin_memory=watch.device.type == "cuda")
        on_device = torch.ones(size // 4, device=watch.device)

        upload = partial(on_device.copy_, host, non_blocking=True)
        download = partial(host.copy_, on_device, non_blocking=True)
        to_device.append(size / watch.seconds([upload], "to_device", capture=False))
        to_host.append(size / watch.seconds([download], "to_host", capture=False))
    return [
        Bandwidth("to_device", tuple(sizes), tuple(to_device)),
        Bandwidth("to_host", tuple(sizes), tuple(to_host)),
    ]
