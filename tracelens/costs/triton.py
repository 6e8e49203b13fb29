"""Kernels that torch.compile generates with Triton, from the arguments recorded with their launch.

Inductor records a kernel's launch as an op with the kernel's name, such as `triton_poi_fused_add_0`, and its
arguments: tensors that are input and output (in_out_ptr), inputs, outputs, and the sizes of its iteration
domain (xnumel, ynumel, r0_numel; PyTorch, torch/_inductor/codegen/triton.py), in this order. Which tensor is
which the trace does not tell, so each is counted once, as read, but for two cases:

- A pointwise kernel writes one tensor as large as its domain. Where its last tensor is smaller than that, its
  first one is updated in place: read and written. Scatters write less, and what is created is written only.
- A tensor larger than the domain is a table of which rows are gathered, or a slice of it is read: at most one
  element an output is counted. It counts whole where every element of the domain reads several of its parts:
  halves (split, chunk), rows that an index of as many rows names, and sums that are unrolled.

How many operations were fused is not recorded either: 1 an element of the largest argument is counted, which
is a lower bound of pointwise kernels and reductions and next to nothing beside their bytes.
"""

from __future__ import annotations

from math import prod

from tracelens.costs.gemm import gemm_cost, math_dtype
from tracelens.costs.model import OpCall, OpCost, Tensor, Uncounted, cost, size

_NOTE = "every argument once, read or written"
_IN_PLACE = "the first in place"
_PART = "gathers and slices: at most one element per output"
_OPERATIONS = "operations: 1 per element of the largest argument"
# Names of fused ops, which stand in the kernel's name.
_SCATTERS = frozenset({"scatter", "put", "embedding"})
_CREATES = frozenset({"zeros", "ones", "full", "empty", "arange", "rand", "randn", "bernoulli"}) | _SCATTERS
_READS_PARTS = frozenset({"split", "chunk", "glu", "unbind"})
_REDUCES = frozenset({"sum", "mean", "amax", "amin", "max", "min", "prod", "any", "all"})
_PARTS = 8  # most that are unrolled (torch/_inductor/config.py, unroll_reductions_threshold)
_POINTWISE = "triton_poi_"
_NO_CONVOLUTION = "arguments of the template kernel do not show a convolution"
_DIGITS = 19  # of a number in 64 bits


@cost(
    "triton_poi_*", "triton_red_*", "triton_per_*", "triton_for_*", "triton_unk_*", "triton_mix_order_*",
)  # fmt: skip
def generated(call: OpCall) -> OpCost:
    """Pointwise kernel or reduction: every tensor argument once, as far as its iteration domain reaches."""
    tensors = call.tensors()
    domain, ops = _domain(call, tensors), frozenset(call.name.replace("split_with_sizes", "slice").split("_"))
    pointwise = call.name.startswith(_POINTWISE)
    several = ops & (_READS_PARTS | _REDUCES if pointwise else _READS_PARTS)
    indexed = {tensor.numel for tensor in tensors if tensor.dtype in ("i32", "i64")}
    moved = [
        min(tensor.stored, domain) if _is_part(tensor, domain, indexed, bool(several)) else tensor.stored
        for tensor in tensors
    ]
    amounts = [size(elements, tensor.dtype) for elements, tensor in zip(moved, tensors, strict=True)]
    written = amounts[0] if pointwise and _in_place(tensors, domain, ops) else 0
    largest = max(range(len(tensors)), key=lambda index: moved[index])
    partly = sum(moved) < sum(tensor.stored for tensor in tensors)
    note = ", ".join(filter(None, (_NOTE, _IN_PLACE if written else "", _PART if partly else "")))
    dims = (("elements", moved[largest]),)
    dtype = tensors[largest].dtype
    return OpCost(moved[largest], sum(amounts), written, dtype, dims=dims, note=f"{note}; {_OPERATIONS}")


def _domain(call: OpCall, tensors: list[Tensor]) -> int:
    """Size of the iteration domain, 0 where it is not recorded.

    The sizes of dynamic shapes may stand before those of the domain, so the longest list of last numbers
    whose product is the size of an argument is preferred to that of all.
    """
    last = max((index for index in range(len(call.dtypes)) if call.has(index)), default=-1)
    numbers = [int(text) for text in call.values[last + 1 :] if text.isdigit() and len(text) < _DIGITS]
    sizes = {tensor.numel for tensor in tensors}
    products = [prod(numbers[index:]) for index in range(len(numbers))]
    return next((product for product in products if product in sizes), max(products, default=0))


def _is_part(tensor: Tensor, domain: int, indexed: set[int], several: bool) -> bool:
    """Whether the domain, of a size that is 0 where not recorded, reaches only part of a tensor.

    `indexed` are the sizes of the arguments that may be indices; `several` says that the kernel may read
    several parts of one argument for each element of its domain.
    """
    if not 0 < domain < tensor.numel:
        return False
    parts, rest = divmod(tensor.numel, domain)
    whole = parts <= _PARTS and not rest and (several or prod(tensor.shape[:-1]) in indexed)
    return not whole


def _in_place(tensors: list[Tensor], domain: int, ops: frozenset[str]) -> bool:
    """Whether a pointwise kernel writes its result over its first argument."""
    if not domain or tensors[0].numel != domain:
        return False
    if len(tensors) == 1:
        return not ops & _CREATES
    return tensors[-1].numel < domain and not ops & _SCATTERS


# ====================
# Template kernels of torch.compile, from the arguments recorded with their launch.
#
# They are GEMMs: 2·M·N·K FLOPs, where the arguments are (M, K), (K, N) and the result (M, N), in that order,
# batched or not; or convolutions of (N, C, sizes…) with a filter (K, C/groups, taps…) to (N, K, sizes…):
# 2·prod(result)·prod(filter[1:]).


@cost("triton_tem_*")
def template(call: OpCall) -> OpCost:
    """GEMM (M, K) x (K, N) or convolution with whatever was fused behind it."""
    tensors = call.tensors()
    matrices = [tensor for tensor in tensors if len(tensor.shape) in (2, 3)]
    for index, b in enumerate(matrices[1:], 1):
        a, behind = matrices[index - 1], matrices[index + 1 :]
        result = (*a.shape[:-1], b.shape[-1])
        is_product = (
            len(a.shape) == len(b.shape) and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
        )
        if is_product and any(tensor.shape == result for tensor in behind):
            inputs = [tensor for tensor in tensors if tensor is not a and tensor is not b]
            out = next(tensor for tensor in reversed(behind) if tensor.shape == result)
            extra = sum(tensor.bytes for tensor in inputs) - out.bytes
            batch = prod(a.shape[:-2])
            return gemm_cost(call, a, b, a.shape[-2], b.shape[-1], a.shape[-1], batch, extra, out.dtype)
    if "convolution" in call.name:
        return _template_convolution(call, [tensor for tensor in tensors if len(tensor.shape) in (4, 5)])
    raise Uncounted("arguments of the template kernel do not show a GEMM")


def _template_convolution(call: OpCall, images: list[Tensor]) -> OpCost:
    """Convolution of the first tensor of four or five dimensions with the second; the last is the result."""
    if len(images) < 3 or len({len(tensor.shape) for tensor in images}) > 1:
        raise Uncounted(_NO_CONVOLUTION)
    x, weight, out = images[0], images[1], images[-1]
    channels = weight.shape[1]
    if out.shape[:2] != (x.shape[0], weight.shape[0]) or not channels or x.shape[1] % channels:
        raise Uncounted(_NO_CONVOLUTION)
    flops = 2 * out.numel * prod(weight.shape[1:])
    read = sum(tensor.bytes for tensor in call.tensors()) - out.bytes
    dims = (("N", x.shape[0]), ("C", x.shape[1]), ("K", weight.shape[0]))
    return OpCost(flops, read, out.dense_bytes, math_dtype(call, x, weight), "matrix", dims=dims)
