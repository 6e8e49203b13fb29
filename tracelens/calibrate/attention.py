"""Achieved rates of causal attention by sequence length, forward and backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tracelens.calibrate.gemms import DTYPES, Failure
from tracelens.calibrate.sizes import AttentionSizes
from tracelens.calibrate.timing import Stopwatch
from tracelens.devices import AttentionCurve


def attention_curve(watch: Stopwatch, sizes: AttentionSizes, dtype: str = "bf16") -> AttentionCurve | Failure:
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
        return Failure(name, str(error).strip().partition("\n")[0])
    dims = (sizes.query_dim, sizes.value_dim)
    return AttentionCurve(dtype, *dims, sizes.seq, tuple(forward), tuple(backward))


def _seconds(
    watch: Stopwatch, sizes: AttentionSizes, seq: int, dtype: torch.dtype, name: str
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
