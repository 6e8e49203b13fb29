"""The functions of `reference` as kernels in Triton, for NVIDIA and AMD GPUs.

They accumulate in float32, count with 64 bits wherever a whole tensor is addressed, and assume nothing of the
size of a warp.
"""

from __future__ import annotations

from tracelens.workload.kernels.activation import swiglu, swiglu_backward
from tracelens.workload.kernels.loss import cross_entropy
from tracelens.workload.kernels.permutation import permute, unpermute, unpermute_backward
from tracelens.workload.kernels.quantization import quantize, quantize_transposed
from tracelens.workload.kernels.router import route, route_backward

__all__ = [
    "cross_entropy",
    "permute",
    "quantize",
    "quantize_transposed",
    "route",
    "route_backward",
    "swiglu",
    "swiglu_backward",
    "unpermute",
    "unpermute_backward",
]
