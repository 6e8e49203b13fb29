"""Attention of libraries: flash-attn, AITER, Composable Kernel, Transformer Engine, vLLM, SGLang.

Formulas as in forward.py and backward.py. The libraries share an order of arguments that outlasts
their versions: queries, keys and values first (after the output's gradient in backward), (B, N, H, D) or
packed (T, H, D), and somewhere later the causal flag right before the two window sizes. The whole numbers
before that flag begin with the longest lengths of queries and keys. Their causal mask ends at the bottom
right (flash-attn 2.1).
"""

from __future__ import annotations

from math import prod

from tracelens.costs.attention.forward import (
    FULL,
    Attention,
    Mask,
    Sizes,
    heads_first,
    packed,
    tokens_first,
    twice_unmasked,
)
from tracelens.costs.attention.paged import CAPTURED, Paged, of_latent, of_token
from tracelens.costs.call import OpCall, Tensor, Uncounted
from tracelens.costs.model import OpCost, cost

_WORDS = ("true", "false")

_FORWARD = (
    "flash_attn::_flash_attn_forward", "flash_attn::_flash_attn_varlen_forward", "flash_attn::fwd",
    "flash_attn_2_cuda::fwd", "flash_attn_3::fwd", "flash_attn_3::_flash_attn_forward", "FlashAttnFunc",
    "FlashAttnVarlenFunc", "aiter::_flash_attn_forward", "aiter::_flash_attn_varlen_forward",
    "aiter::mha_fwd*", "aiter::mha_varlen_fwd*", "aiter::fmha_v3_fwd*", "aiter::fmha_v3_varlen_fwd*",
    "aiter::wrapper_fmha_v3_fwd", "aiter::wrapper_fmha_v3_varlen_fwd", "_vllm_fa2_C::varlen_fwd",
    "_vllm_fa2_C::fwd", "_vllm_fa3_C::fwd", "sgl_kernel::fwd", "xformers_flash::flash_fwd",
    "xformers_flash3::flash_fwd", "_diffusers_flash_attn_3::_flash_attn_forward",
)  # fmt: skip

_BACKWARD = (
    "flash_attn::_flash_attn_backward", "flash_attn::_flash_attn_varlen_backward", "flash_attn::bwd",
    "flash_attn_2_cuda::bwd", "flash_attn_3::bwd", "flash_attn_3::_flash_attn_backward",
    "aiter::_flash_attn_backward", "aiter::_flash_attn_varlen_backward", "aiter::mha_bwd*",
    "aiter::mha_varlen_bwd*", "aiter::fmha_v3_bwd*", "aiter::fmha_v3_varlen_bwd*",
    "aiter::wrapper_fmha_v3_bwd", "aiter::wrapper_fmha_v3_varlen_bwd",
)  # fmt: skip


@cost(*_FORWARD, batch=True)
def library_forward(call: OpCall) -> OpCost:
    """Flash attention of a library, dense, packed or over a paged cache (pages, page, heads, width)."""
    q, k, v = call.tensor(0), call.tensor(1), call.tensor(2)
    if len(q.shape) == 3 and len(k.shape) == len(v.shape) == 4:
        mask, longest = _mask(call)
        sequences, max_q, max_k = _packing(call, 3, longest)
        longest_keys = min(max_k, k.shape[0] * k.shape[1])
        keys, values = of_token(k, *k.shape[2:]), of_token(v, *v.shape[2:])
        return Paged(q, keys, values, sequences, (max_q, longest_keys), mask=mask).forward(call)
    return _flash(call, 0).forward()


@cost("aiter::mha_batch_prefill*", "aiter::_mha_batch_prefill*", batch=True)
def batch_prefill(call: OpCall) -> OpCost:
    """AITER's attention over a paged cache; its pages in use are argument 5 (ROCm/aiter, aiter/ops/mha.py).

    Queries (T, H, D); keys and values (tokens, H, D), (pages, page, H, D), or with the page split for vector
    loads: (pages, H, D/x, page, x) and (pages, H, page/x, D, x).
    """
    q, k, v, pages = call.tensor(0), call.tensor(1), call.tensor(2), call.tensor(5)
    mask, longest = _mask(call)
    sequences, max_q, max_k = _packing(call, 3, longest)
    rank = len(k.shape)
    if rank != len(v.shape) or rank not in (3, 4, 5) or len(pages.shape) != 1:
        raise Uncounted("a KV cache in an unknown layout")
    if rank == 5:
        page = k.shape[3]
        keys, values = of_token(k, k.shape[1], k.shape[2] * k.shape[4]), of_token(v, v.shape[1], v.shape[3])
    else:
        page = k.shape[1] if rank == 4 else 1
        keys, values = of_token(k, *k.shape[-2:]), of_token(v, *v.shape[-2:])
    used = min(pages.numel, k.shape[0]) * page
    return Paged(q, keys, values, sequences, (max_q, max_k), used, mask).forward(call)


@cost(*_BACKWARD)
def library_backward(call: OpCall) -> OpCost:
    """Gradients of a library's flash attention, dense or packed."""
    return _flash(call, 1).backward()


@cost("FlashAttnFuncBackward", "FlashAttnVarlenFuncBackward", forward=True)
def function_backward(call: OpCall) -> OpCost:
    """Gradients of a flash-attn autograd function, sized by its forward."""
    return _flash(call.of_forward(), 0).backward()


@cost("FusedAttnFunc")
def fused_forward(call: OpCall) -> OpCost:
    """Transformer Engine's cuDNN or CK attention; its mask is text, which is not recorded."""
    return _fused(call).forward()


@cost("FusedAttnFuncBackward", forward=True)
def fused_backward(call: OpCall) -> OpCost:
    """Gradients of Transformer Engine's attention, sized by its forward."""
    return _fused(call.of_forward()).backward()


@cost("FlexAttentionAutogradOp")
def flex_forward(call: OpCall) -> OpCost:
    """FlexAttention of (B, H, N, D) tensors; its block mask is not recorded."""
    return _flex(call).forward()


@cost("FlexAttentionAutogradOpBackward", forward=True)
def flex_backward(call: OpCall) -> OpCost:
    """Gradients of FlexAttention, sized by its forward."""
    return _flex(call.of_forward()).backward()


@cost("EvoformerAttention", "EvoformerFusedAttention")
def evoformer_forward(call: OpCall) -> OpCost:
    """Attention of AlphaFold's blocks, (..., N, H, D), with one or two biases on the scores."""
    return _evoformer(call).forward()


@cost("EvoformerAttentionBackward", "EvoformerFusedAttentionBackward", forward=True)
def evoformer_backward(call: OpCall) -> OpCost:
    """Gradients of the same, sized by its forward; those of the biases are not counted."""
    return _evoformer(call.of_forward()).backward()


@cost("aiter::mla_decode_stage1_asm_fwd", batch=True)
def mla_decode(call: OpCall) -> OpCost:
    """Multi-head latent attention over a paged cache of latents, which are keys and values at once.

    Queries (T, H, Dqk), cache (pages, page, 1, Dqk), the pages in use are argument 4. Each latent meets the
    queries of one sequence, at most the longest length of them: scores = H·max_q·tokens (DeepSeek-V2, 2024).
    The values are the first Dv of a latent; Dv is that of the output.
    """
    q, cache, pages = call.tensor(0), call.tensor(1), call.tensor(4)
    if len(q.shape) != 3 or len(cache.shape) != 4:
        raise Uncounted("a KV cache or queries in an unknown layout")
    longest = next((int(text) for text in call.values if text.isdigit()), 0)
    widths = [t.shape[-1] for t in call.tensors()[2:] if len(t.shape) >= 3 and 1 < t.shape[-1] <= q.shape[-1]]
    if widths and call.batch and not call.batch.prefill.queries:
        keys, values = of_token(cache, *cache.shape[2:]), of_latent(cache.shape[2], widths[-1], cache.dtype)
        return Paged(q, keys, values).forward(call)
    if call.is_replayed:
        raise Uncounted(CAPTURED)
    if not longest or not widths:
        raise Uncounted("neither the longest query nor the width of the values is recorded")
    tokens = pages.numel * cache.shape[1]
    sizes = Sizes(1, q.shape[1], cache.shape[2], q.shape[0], tokens, q.shape[2], widths[-1])
    read = Tensor((tokens, cache.shape[2], q.shape[2]), cache.dtype, tokens * cache.shape[2] * q.shape[2])
    none = Tensor((), cache.dtype, 0)
    note = "upper bound: pages in use and the longest query, not each length"
    return Attention(q, read, none, sizes, 2 * longest * tokens, note).forward()


_UNKNOWN_MASK = "upper bound: the mask is not recorded"


def _flash(call: OpCall, first: int) -> Attention:
    """Flash attention with its operands from argument `first` on."""
    q, k, v = call.tensor(first), call.tensor(first + 1), call.tensor(first + 2)
    mask, longest = _mask(call)
    if len(q.shape) == 4:
        sizes = tokens_first(q, k, v)
        return Attention(q, k, v, sizes, *twice_unmasked(sizes.nq, sizes.nk, mask))
    sequences, max_q, max_k = _packing(call, first + 3, longest)
    sizes = tokens_first(q, k, v)
    return Attention(q, k, v, sizes, *packed(sizes, sequences, max_q, max_k, mask.causal))


def _packing(call: OpCall, first: int, longest: list[int]) -> tuple[int, int, int]:
    """How many sequences are packed, by their bounds behind the operands, and the longest lengths."""
    bounds = next((t for t in call.tensors()[first:] if len(t.shape) == 1 and t.dtype == "i32"), None)
    if bounds is None or len(longest) < 2:
        raise Uncounted("the lengths of packed sequences are not recorded")
    return max(bounds.numel - 1, 0), longest[0], longest[1]


def _mask(call: OpCall) -> tuple[Mask, list[int]]:
    """The mask, and the whole numbers before it."""
    values = call.values
    numbers = [text.lstrip("-").isdigit() for text in values]
    for index in range(len(values) - 2):
        if numbers[index + 1] and numbers[index + 2] and values[index].lower() in _WORDS:
            before = [int(text) for text, number in zip(values[:index], numbers, strict=False) if number]
            left, right = int(values[index + 1]), int(values[index + 2])
            return Mask(values[index].lower() == "true", left, right), before
    return _autograd_mask(call)


def _autograd_mask(call: OpCall) -> tuple[Mask, list[int]]:
    """The mask of an autograd function, whose window is a pair, which is not recorded."""
    for index, text in enumerate(call.values):
        if text.lower() in _WORDS:
            before = [int(word) for word in call.values[:index] if word.isdigit()]
            return (Mask(True) if text.lower() == "true" else FULL), before
    raise Uncounted("the mask (causal or not) is not recorded")


def _fused(call: OpCall) -> Attention:
    q, k, v = _operands(call)
    longest = [int(text) for text in call.values if text.isdigit()][:2]
    if len(longest) < 2 or not all(longest):
        raise Uncounted("the longest lengths are not recorded")
    # (N, B, H, D) or (B, N, H, D), or packed (T, H, D): tokens of all sequences either way.
    if not len(q.shape) == len(k.shape) == len(v.shape) >= 3:
        raise Uncounted("operands in an unknown layout")
    flat = [Tensor((prod(t.shape[:-2]), *t.shape[-2:]), t.dtype, t.stored) for t in (q, k, v)]
    sizes = tokens_first(*flat)
    scores, _ = packed(sizes, 0, longest[0], longest[1], causal=False)
    return Attention(q, k, v, sizes, scores, _UNKNOWN_MASK)


def _flex(call: OpCall) -> Attention:
    q, k, v = _operands(call)
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise Uncounted("operands in an unknown layout")
    sizes = heads_first(q, k, v)
    return Attention(q, k, v, sizes, 2 * sizes.nq * sizes.nk, _UNKNOWN_MASK)


def _evoformer(call: OpCall) -> Attention:
    """Queries, keys, values, biases (deepspeedai/DeepSpeed, ops/deepspeed4science/evoformer_attn.py)."""
    operands = [call.tensor(index) for index in range(3)]
    if any(len(tensor.shape) < 4 for tensor in operands):
        raise Uncounted("operands in an unknown layout")
    q, k, v = (t._replace(shape=(prod(t.shape[:-3]), *t.shape[-3:])) for t in operands)
    sizes = tokens_first(q, k, v)
    biases = call.bytes(*range(3, len(call.dtypes)))
    return Attention(q, k, v, sizes, 2 * sizes.nq * sizes.nk, extra=biases)


def _operands(call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    wide = [tensor for tensor in call.tensors() if len(tensor.shape) >= 3]
    if len(wide) < 3:
        raise Uncounted("queries, keys and values are not recorded")
    return wide[0], wide[1], wide[2]
