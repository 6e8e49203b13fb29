"""Manifold-constrained hyper-connections (Xie et al., "mHC", 2025): n streams of a residual of width C.

Of each token: logits = (all n·C elements) · fn, fn being (n² + 2n, n·C), scaled by the root of the sum of
squares. They give weights to mix the streams into a layer's input (n), to add its output to them (n), and
a doubly stochastic matrix (n, n) between them, by Sinkhorn iterations.

- logits: 2·M·(n² + 2n)·n·C FLOPs, which are a GEMM, and 2 an element for squares;
- after a layer: out = post · x + comb · residual, 2·M·n·C·(1 + n);
- before a layer: input = pre · residual, 2·M·n·C; with RMS norm 4·M·C more. The iterations work on n² numbers
  a token and are not counted.

Bytes: inputs and parameters once, results once; logits are there once for each part of a split inner
dimension, as recorded. Source: ROCm/aiter, aiter/ops/mhc.py.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall, Tensor, Uncounted
from tracelens.costs.gemm import math_dtype
from tracelens.costs.model import OpCost, cost

_RMS = 4


@cost("aiter::mhc_pre_gemm_sqrsum")
def logits(call: OpCall) -> OpCost:
    """Logits and sums of squares of x (M, n, C) by fn: both results first."""
    x, fn = call.tensor(2), call.tensor(3)
    tokens, _, _ = _streams(x)
    flops = _projection(tokens, fn, x)
    counted = _cost(flops, x.bytes + fn.bytes, call.tensor(0).bytes + call.tensor(1).bytes, x)
    return counted._replace(engine="matrix", dtype=math_dtype(call, x, fn))


@cost("aiter::mhc_post")
def after_layer(call: OpCall) -> OpCost:
    """Next residual (M, n, C), first, from a layer's output, the residual and both mixes."""
    out, residual = call.tensor(0), call.tensor(2)
    tokens, streams, width = _streams(residual)
    read = sum(call.tensor(index).bytes for index in (1, 2, 3, 4))
    flops = 2 * tokens * streams * width * (1 + streams)
    return _cost(flops, read, out.bytes, residual)


@cost("aiter::mhc_fused_post_pre_gemm_sqrsum")
def after_layer_and_logits(call: OpCall) -> OpCost:
    """The next residual, and at once its logits and sums of squares: three results first."""
    residual, fn = call.tensor(4), call.tensor(7)
    tokens, streams, width = _streams(residual)
    flops = 2 * tokens * streams * width * (1 + streams) + _projection(tokens, fn, residual)
    read = sum(call.tensor(index).bytes for index in (3, 4, 5, 6, 7))
    counted = _cost(flops, read, sum(call.tensor(index).bytes for index in (0, 1, 2)), residual)
    return counted._replace(engine="matrix", dtype=math_dtype(call, residual, fn))


@cost("aiter::mhc_pre_big_fuse", "aiter::mhc_pre_big_fuse_rmsnorm")
def before_layer(call: OpCall) -> OpCost:
    """Both mixes and a layer's input (M, C), first, from logits, sums of squares and the residual."""
    residual = call.tensor(7)
    tokens, streams, width = _streams(residual)
    norm = call.name.endswith("rmsnorm")
    reads = (3, 4, 5, 6, 7, *((8,) if norm else ()))
    flops = 2 * tokens * streams * width + (_RMS * tokens * width if norm else 0)
    read, written = (sum(call.tensor(index).bytes for index in part) for part in (reads, (0, 1, 2)))
    return _cost(flops, read, written, residual)


def _streams(residual: Tensor) -> tuple[int, int, int]:
    if len(residual.shape) != 3:
        raise Uncounted(f"a residual with {len(residual.shape)} dimensions instead of 3")
    tokens, streams, width = residual.shape
    return tokens, streams, width


def _projection(tokens: int, fn: Tensor, residual: Tensor) -> int:
    _, streams, width = _streams(residual)
    if len(fn.shape) != 2 or fn.shape[1] != streams * width:
        raise Uncounted("recorded shapes of streams and their projection disagree")
    return 2 * tokens * fn.shape[0] * fn.shape[1] + 2 * residual.numel


def _cost(flops: int, read: int, written: int, residual: Tensor) -> OpCost:
    tokens, streams, width = _streams(residual)
    dims = (("M", tokens), ("streams", streams), ("C", width))
    return OpCost(flops, read, written, residual.dtype, dims=dims)
