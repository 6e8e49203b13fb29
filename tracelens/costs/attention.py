"""Attention: of PyTorch, forward and backward, of libraries, over paged caches, and over lists of keys.

Forward, scaled_dot_product_attention and what PyTorch runs for it:

In each of H heads every query of Nq meets every key of Nk (2·Dqk FLOPs), and its weight every value (2·Dv):
2·B·H·Nq·Nk·(Dqk + Dv), H being the heads of the queries where keys and values have fewer (GQA and MQA,
Ainslie et al. 2023). Scaling, masking and softmax are not counted, as in FlashAttention's papers (Dao 2022).
What a mask leaves out is not counted where the mask is known:

- causal over a square of scores: half, the convention of those papers (the diagonal counts half);
- causal over unequal lengths, and windows: the scores that remain, one by one.

Bytes: queries, keys, values and a bias once, the output and the log-sum-exp (FP32) that backward needs once.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

from msgspec import Struct

from tracelens.costs.model import (
    NO_SHAPES,
    Lengths,
    OpCall,
    OpCost,
    ServingBatch,
    Tensor,
    Uncounted,
    cost,
    size,
)


class AttentionSizes(NamedTuple):
    """Sizes of one attention: batch, heads of queries and of keys, lengths, widths of keys and of values."""

    batch: int
    heads: int
    kv_heads: int
    nq: int
    nk: int
    d: int
    dv: int

    @property
    def dims(self) -> tuple[tuple[str, int], ...]:
        """What the table shows; sizes of keys and values only where they differ."""
        b, h, kv, nq, nk, d, dv = self
        grouped = (("Hkv", kv),) if kv != h else ()
        wide = (("Dv", dv),) if dv != d else ()
        return (("B", b), ("H", h), *grouped, ("Nq", nq), ("Nk", nk), ("D", d), *wide)


class Mask(NamedTuple):
    """Which scores exist."""

    causal: bool = False  # no key after its query
    left: int = -1  # keys before and after a query that it sees, -1 for all
    right: int = -1  # keys before and after a query that it sees, -1 for all
    top_left: bool = False  # the first query faces the first key; else the last faces the last


FULL = Mask()


class AttentionCall(Struct, frozen=True):
    """One attention as its op was called."""

    q: Tensor  # queries, keys and values
    k: Tensor  # queries, keys and values
    v: Tensor  # queries, keys and values
    sizes: AttentionSizes  # of the attention
    scores: tuple[int, str]  # twice the scores of one head that are computed, and a note on their count
    extra: int = 0  # further bytes read (bias, mask)

    def forward(self, saved: bool = True) -> OpCost:
        """The cost of the output; `saved`: the log-sum-exp of every row is a result too."""
        q, sizes = self.q, self.sizes
        out = size(self._rows * sizes.dv, "bf16" if q.dtype.startswith("fp8") else q.dtype)
        return self._cost(sizes.d + sizes.dv, self._read, out + (4 * self._rows if saved else 0))

    def backward(self) -> OpCost:
        """The cost of the three gradients."""
        q, k, v, sizes = self.q, self.k, self.v, self.sizes
        # The output and its gradient, in the type of the queries, and the log-sum-exp.
        read = self._read + 2 * size(self._rows * sizes.dv, q.dtype) + 4 * self._rows
        return self._cost(3 * sizes.d + 2 * sizes.dv, read, q.dense_bytes + k.dense_bytes + v.dense_bytes)

    @property
    def _rows(self) -> int:
        return self.sizes.batch * self.sizes.heads * self.sizes.nq

    @property
    def _read(self) -> int:
        return self.q.bytes + self.k.bytes + self.v.bytes + self.extra

    def _cost(self, widths: int, read: int, written: int) -> OpCost:
        twice_scores, note = self.scores
        flops = self.sizes.batch * self.sizes.heads * twice_scores * widths
        return OpCost(flops, read, written, self.q.dtype, "matrix", dims=self.sizes.dims, note=note)


_DISAGREE = "recorded shapes of queries, keys and values disagree"
_NO_LENGTHS = "the lengths of packed sequences are not recorded"
_NO_MASK = "the mask (causal or not) is not recorded"
_CACHE_LAYOUT = "a KV cache in an unknown layout"
_OPERANDS_LAYOUT = "operands in an unknown layout"
_QUERIES_LAYOUT = "queries in an unknown layout"
_UNKNOWN = "neither arguments nor a step label show the sequence lengths in the KV cache"
CAPTURED = "no step label shows the sequence lengths, and the arguments are those of the capture"
_LABEL = "lengths from the step label"
_ARGUMENTS = "lengths from the longest ones and the pages in use"
_WINDOW = "upper bound: a sliding window is not counted"


class Paged(Struct, frozen=True):
    """One call over a paged cache."""

    q: Tensor  # queries (T, H, D) of all sequences
    k: Tensor  # keys and values of one token in the cache, (heads, width)
    v: Tensor  # keys and values of one token in the cache, (heads, width)
    sequences: int = 0  # how many; 0 where not recorded
    longest: tuple[int, int] = (0, 0)  # most queries and most keys of one sequence; 0 where not recorded
    keys: int = -1  # most tokens that the sequences have in the cache together, -1 where not recorded
    mask: Mask = Mask(causal=True)  # of each sequence

    def forward(self, call: OpCall) -> OpCost:
        """The cost of the call in its serving step; Uncounted where no lengths are known."""
        if len(self.q.shape) != 3:
            raise Uncounted(_QUERIES_LAYOUT)
        labelled = self._of_label(call.batch)
        if not labelled and call.is_replayed:
            raise Uncounted(CAPTURED)
        phases = labelled or (self._of_arguments(),)
        queries, keys = (sum(lengths[index] for lengths in phases) for index in (0, 1))
        # Where several queries of a sequence are causal, half a square of them is masked.
        masked = sum(p.squares for p in phases if self.mask.causal and p.squares != p.queries)
        scores, left = 2 * sum(lengths.products for lengths in phases) - masked, self.mask.left
        notes = [_LABEL if labelled else _ARGUMENTS]
        if left >= 0 and self.sequences == 1:
            scores, note = twice_unmasked(queries, keys, self.mask)
            keys, notes = min(keys, queries + left), [*notes, note]
        elif left >= 0:
            notes.append(_WINDOW)
        (_, heads, d), (kv_heads, dk), (kv_heads2, dv) = self.q.shape, self.k.shape, self.v.shape
        if d != dk or kv_heads != kv_heads2 or not kv_heads or heads % kv_heads:
            raise Uncounted(_DISAGREE)
        q = Tensor((queries, heads, d), self.q.dtype, queries * heads * d)
        k, v = (Tensor((keys, *t.shape), t.dtype, keys * t.stored) for t in (self.k, self.v))
        sizes = AttentionSizes(batch=1, heads=heads, kv_heads=kv_heads, nq=queries, nk=keys, d=d, dv=dv)
        return AttentionCall(q, k, v, sizes, (scores, "; ".join(notes))).forward(saved=False)

    def _of_label(self, batch: ServingBatch | None) -> tuple[Lengths, ...]:
        """The lengths of the step's sequences that the call is about, empty where it is about others.

        These are all or those of one phase; graphs and compiled models pad the queries of all.
        """
        rows = self.q.shape[0]
        if batch is None or not rows:
            return ()
        together = batch.prefill.queries + batch.decode.queries
        phases: tuple[Lengths, ...] = tuple(batch)
        if together != rows:
            phases = next(((phase,) for phase in batch if phase.queries == rows), phases)
            if len(phases) > 1 and not 0 < together < rows:
                return ()
        # The call's own pages must have room for them.
        fits = self.keys < 0 or sum(phase.keys for phase in phases) <= self.keys
        return phases if fits else ()

    def _of_arguments(self) -> Lengths:
        """The lengths by the number of sequences, the longest and the pages in use."""
        queries, (max_q, max_k), sequences = self.q.shape[0], self.longest, self.sequences
        if not (sequences and 0 < max_q <= queries and max_k > 0):
            raise Uncounted(_UNKNOWN)
        keys = sequences * max_k if self.keys < 0 else min(self.keys, sequences * max_k)
        if sequences == 1:
            max_q = queries
        elif queries != sequences * max_q or (self.keys < 0 and max_q != max_k):
            raise Uncounted(_UNKNOWN)
        return Lengths(queries, keys, queries * max_q, max_q * keys)


_OWN_ATTENTION = re.compile(r"mla|attn|attention|^_fwd_(?:grouped_)?kernel_stage1", re.IGNORECASE)

_LAYOUTS = [(3, 5, 4), (3, 5, 5)]
"""Dimensions of the queries (T, heads, D), of the keys and of the values in the cache."""

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

_UNKNOWN_MASK = "upper bound: the mask is not recorded"

_LISTS = "upper bound: every list entry is a key"
_VALUE_WIDTH = 512  # of a latent; the default of the function


def twice_unmasked(nq: int, nk: int, mask: Mask) -> tuple[int, str]:
    """Twice the scores that a mask leaves (half a square need not be whole), and a note.

    Query i faces key i + shift. The scores with a key at most c behind that place are the sum over all
    queries of i + shift + c + 1, cut to 0..Nk; a window is the difference of two such sums.
    """
    causal, left, right, top_left = mask
    if not causal and left < 0 and right < 0:
        return 2 * nq * nk, ""
    if causal and nq == nk and (left < 0 or left >= nk - 1):
        return nq * nk, "causal: half of the scores"
    shift = 0 if top_left else nk - nq
    reach = 0 if causal else right
    kept = _clipped(nq, nk, shift + reach + 1) if reach >= 0 else nq * nk
    if left >= 0:
        kept -= _clipped(nq, nk, shift - left)
    return 2 * kept, "masked scores not counted"


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> AttentionSizes:
    """Sizes of (B, H, N, D) tensors; (H, N, D) is one of a batch."""
    return _agreeing(_four(q), _four(k), _four(v))


def tokens_first(q: Tensor, k: Tensor, v: Tensor) -> AttentionSizes:
    """Sizes of (B, N, H, D) tensors; (N, H, D) is one of a batch."""
    return _agreeing(*((b, h, n, d) for b, n, h, d in map(_four, (q, k, v))))


def packed(sizes: AttentionSizes, sequences: int, max_q: int, max_k: int, causal: bool) -> tuple[int, str]:
    """Twice the scores of sequences laid end to end, of which only the longest lengths are recorded.

    All have at most Nq·max_k scores, nor more than max_q·Nk; exact when all are of the longest length.
    """
    if max_q <= 0 or max_k <= 0:
        raise Uncounted(_NO_LENGTHS)
    scores = min(sizes.nq * max_k, max_q * sizes.nk)
    exact = sequences > 0 and (sizes.nq, sizes.nk) == (sequences * max_q, sequences * max_k)
    bound = "" if exact else "upper bound: the split into sequences is not recorded"
    if not causal:
        return 2 * scores, bound
    if max_q == max_k and sizes.nq == sizes.nk:
        return scores, ", ".join(filter(None, ("causal: half of the scores", bound)))
    return 2 * scores, "upper bound: causal over unequal lengths, and the split is not recorded"


@cost("aten::_scaled_dot_product_flash_attention")
def sdpa_flash(call: OpCall) -> OpCost:
    """Flash attention of (B, H, N, D) tensors."""
    return heads_first_attention(call, 0, causal=4, top_left=False).forward()


@cost("aten::_scaled_dot_product_flash_attention_for_cpu")
def sdpa_cpu(call: OpCall) -> OpCost:
    """Flash attention on the CPU, (B, H, N, D)."""
    return heads_first_attention(call, 0, causal=4, bias=5).forward()


@cost("aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_cudnn_attention")
def sdpa_efficient(call: OpCall) -> OpCost:
    """Memory-efficient and cuDNN attention of (B, H, N, D) tensors, with a bias."""
    return heads_first_attention(call, 0, causal=6, bias=3).forward(saved=call.flag(4, True))


@cost("aten::_scaled_dot_product_fused_attention_overrideable")
def sdpa_overrideable(call: OpCall) -> OpCost:
    """Attention of another backend, (B, H, N, D), with a bias."""
    return heads_first_attention(call, 0, causal=5, bias=3).forward()


@cost(
    "aten::scaled_dot_product_attention",
    "aten::_scaled_dot_product_attention_math",
    "aten::_scaled_dot_product_attention_math_for_mps",
)
def sdpa(call: OpCall) -> OpCost:
    """Attention of (B, H, N, D) tensors with a mask; no log-sum-exp."""
    return heads_first_attention(call, 0, causal=5, bias=3).forward(saved=False)


@cost("aten::_cudnn_attention_forward")
def cudnn_forward(call: OpCall) -> OpCost:
    """Attention by cuDNN of (B, H, N, D) tensors."""
    if call.has(4):
        raise Uncounted("packed sequences in an unknown layout")
    return heads_first_attention(call, 0, causal=10, bias=3).forward(saved=call.flag(8, True))


@cost("aten::_flash_attention_forward")
def flash_forward(call: OpCall) -> OpCost:
    """Flash attention of (B, N, H, D) tensors, or of packed sequences (T, H, D)."""
    return flash_attention(call, 0, bounds=3, longest=5, causal=8, window=11).forward()


@cost("aten::_efficient_attention_forward")
def efficient_forward(call: OpCall) -> OpCost:
    """Memory-efficient attention of (B, N, H, D) tensors, or of packed sequences (1, T, H, D)."""
    attention = efficient_attention(call, 0, bias=3, bounds=4, longest=6, mask=9)
    return attention.forward(saved=call.flag(10, True))


def heads_first_attention(
    call: OpCall, first: int, causal: int, bias: int = -1, top_left: bool = True
) -> AttentionCall:
    """Attention of (B, H, N, D) tensors that begin with argument `first`."""
    q, k, v = _operands(call, first)
    sizes = heads_first(q, k, v)
    # PyTorch aligns its causal mask at the top left. FlashAttention on GPUs does so at the bottom right: over
    # unequal lengths PyTorch does not choose it, and who calls it by name (causal_lower_right) means that.
    mask = Mask(causal_flag(call, causal), top_left=top_left)
    return AttentionCall(q, k, v, sizes, twice_unmasked(sizes.nq, sizes.nk, mask), call.bytes(bias))


def flash_attention(
    call: OpCall, first: int, bounds: int, longest: int, causal: int, window: int
) -> AttentionCall:
    """Attention of (B, N, H, D) tensors, or of sequences that a tensor of their bounds cuts apart."""
    q, k, v = _operands(call, first)
    sizes = tokens_first(q, k, v)
    is_causal = causal_flag(call, causal)
    # Without packed sequences backward has tensors of no elements in place of their bounds.
    if call.has(bounds) and call.tensor(bounds).shape and call.tensor(bounds).numel:
        scores = _packed(call, sizes, bounds, longest, is_causal)
    else:
        mask = Mask(is_causal, call.integer(window, -1), call.integer(window + 1, -1))
        scores = twice_unmasked(sizes.nq, sizes.nk, mask)
    return AttentionCall(q, k, v, sizes, scores)


def efficient_attention(
    call: OpCall, first: int, bias: int, bounds: int, longest: int, mask: int
) -> AttentionCall:
    """Memory-efficient attention, whose mask is 0 none, 1 top left, 2 bottom right."""
    q, k, v = _operands(call, first)
    sizes = tokens_first(q, k, v)
    kind = call.integer(mask)
    if call.has(bounds):
        scores = _packed(call, sizes, bounds, longest, kind > 0)
    else:
        scores = twice_unmasked(sizes.nq, sizes.nk, Mask(kind > 0, top_left=kind == 1))
    return AttentionCall(q, k, v, sizes, scores, call.bytes(bias))


def _operands(call: OpCall, first: int) -> tuple[Tensor, Tensor, Tensor]:
    return call.tensor(first), call.tensor(first + 1), call.tensor(first + 2)


def _packed(call: OpCall, sizes: AttentionSizes, bounds: int, longest: int, causal: bool) -> tuple[int, str]:
    sequences = call.tensor(bounds).numel - 1
    return packed(sizes, sequences, call.integer(longest), call.integer(longest + 1), causal)


def causal_flag(call: OpCall, index: int) -> bool:
    """Whether the mask is causal; Uncounted where the trace has no values."""
    text = call.text(index).lower()
    if text not in _WORDS:
        raise Uncounted(_NO_MASK)
    return text == "true"


def _clipped(nq: int, nk: int, first: int) -> int:
    """Sum of first + i over i < nq, each cut to 0..nk."""
    return _ramp(first + nq, nk) - _ramp(first, nk)


def _ramp(end: int, top: int) -> int:
    """Sum of min(t, top) over 0 <= t < end."""
    if end <= 0:
        return 0
    low = min(end - 1, top)
    return low * (low + 1) // 2 + (end - 1 - low) * top


def _four(tensor: Tensor) -> tuple[int, int, int, int]:
    shape = tensor.shape if len(tensor.shape) == 4 else (1, *tensor.shape)
    if len(shape) != 4:
        raise Uncounted(f"an operand with {len(tensor.shape)} dimensions instead of 4")
    return shape[0], shape[1], shape[2], shape[3]


def _agreeing(
    q: tuple[int, int, int, int], k: tuple[int, int, int, int], v: tuple[int, int, int, int]
) -> AttentionSizes:
    """The sizes of operands (B, H, N, D)."""
    (batch, heads, nq, d), (_, kv_heads, nk, dk) = q, k
    # A batch of 1 is broadcast; any other is another layout, such as the pages of a cache.
    if (dk, v[1], v[2]) != (d, kv_heads, nk) or any(operand[0] not in (1, batch) for operand in (k, v)):
        raise Uncounted(_DISAGREE)
    if kv_heads and heads % kv_heads:
        raise Uncounted(f"{heads} heads cannot share {kv_heads} heads of keys")
    return AttentionSizes(batch=batch, heads=heads, kv_heads=kv_heads, nq=nq, nk=nk, d=d, dv=v[3])


# ====================
# Attention, backward, of PyTorch's own ops.
#
# Flash attention keeps no scores and makes them again, so its backward pass has five GEMMs to the forward's
# two (Dao 2022): S = QKᵀ again, dV = PᵀdO, dP = dO·Vᵀ, dQ = dS·K and dK = dSᵀQ. Three are Dqk wide and two
# Dv: 2·B·H·Nq·Nk·(3·Dqk + 2·Dv), less what the mask leaves out.
#
# Bytes: queries, keys, values, the output, its gradient and the log-sum-exp once; the three gradients once.


@cost("aten::_scaled_dot_product_flash_attention_backward")
def sdpa_flash_backward(call: OpCall) -> OpCost:
    """Gradients of flash attention of (B, H, N, D) tensors."""
    return heads_first_attention(call, 1, causal=11, top_left=False).backward()


@cost("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
def sdpa_cpu_backward(call: OpCall) -> OpCost:
    """Gradients of flash attention on the CPU, (B, H, N, D)."""
    return heads_first_attention(call, 1, causal=7, bias=8).backward()


@cost("aten::_scaled_dot_product_efficient_attention_backward")
def sdpa_efficient_backward(call: OpCall) -> OpCost:
    """Gradients of memory-efficient attention of (B, H, N, D) tensors."""
    return heads_first_attention(call, 1, causal=11, bias=4).backward()


@cost("aten::_scaled_dot_product_cudnn_attention_backward", "aten::_cudnn_attention_backward")
def cudnn_backward(call: OpCall) -> OpCost:
    """Gradients of cuDNN attention of (B, H, N, D) tensors."""
    return heads_first_attention(call, 1, causal=14, bias=8).backward()


@cost("aten::_scaled_dot_product_fused_attention_overrideable_backward")
def sdpa_overrideable_backward(call: OpCall) -> OpCost:
    """Gradients of another backend's attention, (B, H, N, D)."""
    return heads_first_attention(call, 1, causal=13, bias=4).backward()


@cost("aten::_flash_attention_backward")
def flash_backward(call: OpCall) -> OpCost:
    """Gradients of flash attention of (B, N, H, D) tensors, or of packed sequences (T, H, D)."""
    return flash_attention(call, 1, bounds=6, longest=8, causal=11, window=15).backward()


@cost("aten::_efficient_attention_backward")
def efficient_backward(call: OpCall) -> OpCost:
    """Gradients of memory-efficient attention of (B, N, H, D) tensors, or of packed ones."""
    return efficient_attention(call, 1, bias=4, bounds=6, longest=8, mask=14).backward()


# ====================
# Attention over a paged cache of keys and values, whose pages belong to all sequences that are served.
#
# What is read is what the sequences of one call have in the cache, never the cache. Their lengths are in GPU
# memory; a trace has them, or sums of them, in
#
# - the label of the serving step around the call (`OpCall.batch`), if it has as many queries as the call;
# - the arguments: the number of pages in use, and the longest lengths, where these tell all of them: of one
#   sequence, or of sequences with equally many queries. In a graph they are those of the capture, and the
#   replay has other sequences.
#
# Scores of a sequence with q queries and k keys, causal and ending at the bottom right: q·k - q²/2, so that a
# square counts half; a single query sees all of its keys.


def of_token(tensor: Tensor, heads: int, width: int) -> Tensor:
    """One token of a cache."""
    return Tensor((heads, width), tensor.dtype, heads * width)


@cost("vllm::unified_attention*", "sglang::unified_attention*", batch=True)
def unified(call: OpCall) -> OpCost:
    """Queries, keys and values (T, H, D) of all requests, whose earlier keys are in the cache."""
    q, k, v = _operands(call, 0)
    if not len(q.shape) == len(k.shape) == len(v.shape) == 3:
        raise Uncounted(_UNKNOWN)
    counted = Paged(q, of_token(k, *k.shape[1:]), of_token(v, *v.shape[1:])).forward(call)
    return counted._replace(note=f"{counted.note}; {_WINDOW}, nor recorded")


@cost("aiter::pa_decode_gluon", batch=True)
def gluon_decode(call: OpCall) -> OpCost:
    """Decoding over a paged cache (ROCm/aiter, aiter/ops/triton/gluon/pa_decode_gluon.py).

    Output, queries (T, H, D), keys (pages, H, D/x, page, x), values (pages, H, D, page) or (pages, H, page/x,
    D, x), lengths, pages of each sequence; argument 7 is the number of queries a sequence has, 19 a window.
    """
    q, k, v, pages = call.tensor(1), call.tensor(2), call.tensor(3), call.tensor(5)
    if len(k.shape) != 5 or len(v.shape) not in (4, 5) or len(pages.shape) != 2:
        raise Uncounted(_CACHE_LAYOUT)
    keys = of_token(k, k.shape[1], k.shape[2] * k.shape[4])
    values = of_token(v, v.shape[1], v.shape[len(v.shape) - 2])
    window = call.integer(19, 0)
    mask = Mask(causal=True, left=window - 1 if window > 0 else -1)
    # The width of the table of pages is that of the longest sequence that the engine allows.
    return Paged(q, keys, values, pages.shape[0], mask=mask).forward(call)


@cost("sglang_profiler::attention_paged_attention_ragged*", batch=True)
def ragged(call: OpCall) -> OpCost:
    """Decoding over a paged cache with lists of pages (ROCm/aiter, aiter/ops/attention.py).

    Output, workspace, queries (T, H, D), keys and values (pages, page, heads, width), bounds of the lists,
    the lists, in a buffer that may be larger. The op records tensors only, no lengths.
    """
    q, k, v, bounds, pages = (call.tensor(index) for index in (2, 3, 4, 5, 6))
    if len(k.shape) != 4 or len(v.shape) != 4 or len(bounds.shape) != 1:
        raise Uncounted(_CACHE_LAYOUT)
    used = min(pages.numel, k.shape[0]) * k.shape[1]
    keys, values = of_token(k, *k.shape[2:]), of_token(v, *v.shape[2:])
    return Paged(q, keys, values, max(bounds.numel - 1, 0), keys=used).forward(call)


def of_latent(heads: int, width: int, dtype: str) -> Tensor:
    """The values of one token where they are part of its keys: nothing more is read."""
    return Tensor((heads, width), dtype, 0)


@cost("vllm::unified_mla_attention*", batch=True, inner=True)
def latent(call: OpCall) -> OpCost:
    """Decoding with multi-head latent attention: queries (T, H, .), latents (T, L), rotary part (T, 1, R).

    Queries are multiplied with the weights of the keys first, in ops of their own, and then meet latents of
    L + R elements, of which L are the values (DeepSeek-V2, 2024). A prefill computes keys and values instead.
    """
    q, kv, rotary = call.tensor(0), call.tensor(1), call.tensor(2)
    if any(_OWN_ATTENTION.search(inner.name) for inner in call.inner):
        raise Uncounted("its attention is counted by the op inside")
    if not any(_OWN_ATTENTION.search(name) for name, _ in call.launches):
        raise Uncounted("no attention kernel of its own")
    if len(q.shape) != 3 or len(kv.shape) != 2 or len(rotary.shape) != 3:
        raise Uncounted("queries and latents in an unknown layout")
    if call.batch is None or call.batch.prefill.queries:
        raise Uncounted("the sequence lengths in the KV cache lie in GPU memory")
    width = kv.shape[1] + rotary.shape[2]
    absorbed = Tensor((*q.shape[:2], width), q.dtype, q.shape[0] * q.shape[1] * width)
    return Paged(absorbed, of_token(kv, 1, width), of_latent(1, kv.shape[1], kv.dtype)).forward(call)


# ====================
# Attention over a cache of blocks that tables assign to sequences: vLLM's and aiter's paged attention.
#
# Keys lie as (blocks, heads, D/x, block, x), values as (blocks, heads, D, block) or (blocks, heads, block/x,
# D, x): see vllm-project/vllm, csrc/attention, and ROCm/aiter, aiter/ops/attention.py. The lengths of the
# sequences are in GPU memory: the label of the serving step tells their sums.


@cost(
    "_C::paged_attention*",
    "_rocm_C::paged_attention*",
    "aiter::paged_attention*",
    "aiter::pa_fwd*",
    batch=True,
)
def blocked(call: OpCall) -> OpCost:
    """Decoding over a cache of blocks: queries, keys and values follow each other, behind the outputs."""
    # The position among the arguments differs between ops and their versions.
    for first in range(len(call.dtypes) - 2):
        if all(call.has(index) for index in range(first, first + 3)):
            q, k, v = _operands(call, first)
            layout = tuple(len(tensor.shape) for tensor in (q, k, v))
            if layout in _LAYOUTS and k.shape[:2] == v.shape[:2]:
                break
    else:
        raise Uncounted(_CACHE_LAYOUT if call.shapes else NO_SHAPES)
    blocks, heads, width = k.shape[0], k.shape[1], q.shape[2]
    block = _remaining_side(k, blocks * heads * width)
    keys, values = of_token(k, heads, width), of_token(v, heads, _remaining_side(v, blocks * heads * block))
    return Paged(q, keys, values, keys=blocks * block).forward(call)


def _remaining_side(cache: Tensor, rest: int) -> int:
    """Elements along the remaining dimension of a cache."""
    if not rest or cache.numel % rest:
        raise Uncounted(_DISAGREE)
    return cache.numel // rest


# ====================
# Attention of libraries: flash-attn, AITER, Composable Kernel, Transformer Engine, vLLM, SGLang.
#
# Formulas as above. The libraries share an order of arguments that outlasts their versions: queries, keys and
# values first (after the output's gradient in backward), (B, N, H, D) or packed (T, H, D), and somewhere
# later the causal flag right before the two window sizes. The whole numbers before that flag begin with the
# longest lengths of queries and keys. Their causal mask ends at the bottom right (flash-attn 2.1).


@cost(*_FORWARD, batch=True)
def library_forward(call: OpCall) -> OpCost:
    """Flash attention of a library, dense, packed or over a paged cache (pages, page, heads, width)."""
    q, k, v = _operands(call, 0)
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
        raise Uncounted(_CACHE_LAYOUT)
    if rank == 5:
        page = k.shape[3]
        keys, values = of_token(k, k.shape[1], k.shape[2] * k.shape[4]), of_token(v, v.shape[1], v.shape[3])
    else:
        page = k.shape[1] if rank == 4 else 1
        keys, values = of_token(k, *k.shape[-2:]), of_token(v, *v.shape[-2:])
    used = min(pages.numel, k.shape[0]) * page
    return Paged(q, keys, values, sequences, (max_q, max_k), keys=used, mask=mask).forward(call)


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
    sizes = AttentionSizes(
        batch=1,
        heads=q.shape[1],
        kv_heads=cache.shape[2],
        nq=q.shape[0],
        nk=tokens,
        d=q.shape[2],
        dv=widths[-1],
    )
    read = Tensor((tokens, cache.shape[2], q.shape[2]), cache.dtype, tokens * cache.shape[2] * q.shape[2])
    none = Tensor((), cache.dtype, 0)
    note = "upper bound: pages in use and the longest query, not each length"
    return AttentionCall(q, read, none, sizes, (2 * longest * tokens, note)).forward()


def _flash(call: OpCall, first: int) -> AttentionCall:
    """Flash attention with its operands from argument `first` on."""
    q, k, v = _operands(call, first)
    mask, longest = _mask(call)
    if len(q.shape) == 4:
        sizes = tokens_first(q, k, v)
        return AttentionCall(q, k, v, sizes, twice_unmasked(sizes.nq, sizes.nk, mask))
    sequences, max_q, max_k = _packing(call, first + 3, longest)
    sizes = tokens_first(q, k, v)
    return AttentionCall(q, k, v, sizes, packed(sizes, sequences, max_q, max_k, mask.causal))


def _packing(call: OpCall, first: int, longest: list[int]) -> tuple[int, int, int]:
    """How many sequences are packed, by their bounds behind the operands, and the longest lengths."""
    bounds = next((t for t in call.tensors()[first:] if len(t.shape) == 1 and t.dtype == "i32"), None)
    if bounds is None or len(longest) < 2:
        raise Uncounted(_NO_LENGTHS)
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
    # An autograd function: its window is a pair, which is not recorded.
    for index, text in enumerate(values):
        if text.lower() in _WORDS:
            before = [int(word) for word in values[:index] if word.isdigit()]
            return (Mask(True) if text.lower() == "true" else FULL), before
    raise Uncounted(_NO_MASK)


def _fused(call: OpCall) -> AttentionCall:
    q, k, v = _widest_tensors(call)
    longest = [int(text) for text in call.values if text.isdigit()][:2]
    if len(longest) < 2 or not all(longest):
        raise Uncounted("the longest lengths are not recorded")
    # (N, B, H, D) or (B, N, H, D), or packed (T, H, D): tokens of all sequences either way.
    if not len(q.shape) == len(k.shape) == len(v.shape) >= 3:
        raise Uncounted(_OPERANDS_LAYOUT)
    flat = [Tensor((prod(t.shape[:-2]), *t.shape[-2:]), t.dtype, t.stored) for t in (q, k, v)]
    sizes = tokens_first(*flat)
    scores, _ = packed(sizes, 0, longest[0], longest[1], causal=False)
    return AttentionCall(q, k, v, sizes, (scores, _UNKNOWN_MASK))


def _flex(call: OpCall) -> AttentionCall:
    q, k, v = _widest_tensors(call)
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise Uncounted(_OPERANDS_LAYOUT)
    sizes = heads_first(q, k, v)
    return AttentionCall(q, k, v, sizes, (2 * sizes.nq * sizes.nk, _UNKNOWN_MASK))


def _evoformer(call: OpCall) -> AttentionCall:
    """Queries, keys, values, biases (deepspeedai/DeepSpeed, ops/deepspeed4science/evoformer_attn.py)."""
    operands = [call.tensor(index) for index in range(3)]
    if any(len(tensor.shape) < 4 for tensor in operands):
        raise Uncounted(_OPERANDS_LAYOUT)
    q, k, v = (t._replace(shape=(prod(t.shape[:-3]), *t.shape[-3:])) for t in operands)
    sizes = tokens_first(q, k, v)
    biases = call.bytes(*range(3, len(call.dtypes)))
    return AttentionCall(q, k, v, sizes, (2 * sizes.nq * sizes.nk, ""), biases)


def _widest_tensors(call: OpCall) -> tuple[Tensor, Tensor, Tensor]:
    wide = [tensor for tensor in call.tensors() if len(tensor.shape) >= 3]
    if len(wide) < 3:
        raise Uncounted("queries, keys and values are not recorded")
    return wide[0], wide[1], wide[2]


# ====================
# Sparse attention: each query sees a list of keys, which are rows of latents and values at once.
#
# With H heads, queries and keys of width D, values the first Dv of a row, and n (query, key) pairs in all
# lists: 2·n·H·(D + Dv) FLOPs. How many entries of a list are used is in GPU memory, so n is an upper bound:
# the length of the lists. Bytes: queries and lists once, each row once, of as many as there are pairs at
# most, the output once. (DeepSeek-V3.2-Exp, 2025, DeepSeek Sparse Attention.)
#
# Sources: ROCm/aiter, aiter/ops/pa_sparse_prefill_opus.py; sgl-project/sglang,
# python/sglang/srt/layers/attention/nsa/tilelang_kernel.py.


@cost("aiter::pa_sparse_prefill_opus_fwd")
def sparse_prefill(call: OpCall) -> OpCost:
    """Queries (T, H, D) over rows of a cache and of the new tokens, each with lists and their bounds.

    Queries, cached rows, their lists and bounds, new rows, their lists and bounds, sinks, the output.
    """
    q, cache, new, out = call.tensor(0), call.tensor(1), call.tensor(4), call.tensor(8)
    lists, bounds = (call.tensor(2), call.tensor(5)), call.bytes(3, 6, 7)
    width = q.shape[-1] if q.shape else 0
    parts = list(zip((cache, new), lists, strict=True))
    rows = sum(_listed_rows(pool, pairs.numel, width) for pool, pairs in parts)
    read = q.bytes + sum(pairs.bytes for pairs in lists) + bounds + rows
    return _sparse_cost(q, sum(pairs.numel for pairs in lists), width, read, out.bytes)


@cost("sglang_profiler::tilelang_kernel_tilelang_sparse_fwd*")
def sparse_tilelang(call: OpCall) -> OpCost:
    """Queries (T, H, D), latents (N, 1, D), lists (T, 1, k); argument 4 is the width of the values."""
    q, latents, lists = call.tensor(0), call.tensor(1), call.tensor(2)
    width = call.integer(4, _VALUE_WIDTH)
    if len(q.shape) != 3 or len(latents.shape) != 3 or len(lists.shape) != 3 or not 0 < width <= q.shape[2]:
        raise Uncounted("queries, latents or lists in an unknown layout")
    read = q.bytes + lists.bytes + _listed_rows(latents, lists.numel, q.shape[2])
    # The result of 8-bit queries has 16 bits.
    out = "bf16" if q.dtype.startswith("fp8") else q.dtype
    return _sparse_cost(q, lists.numel, width, read, size(q.shape[0] * q.shape[1] * width, out))


def _listed_rows(pool: Tensor, pairs: int, width: int) -> int:
    """Bytes of the rows that so many pairs can name."""
    count = pool.numel // width if width else 0
    return size(min(pairs, count) * width, pool.dtype)


def _sparse_cost(q: Tensor, pairs: int, value_width: int, read: int, written: int) -> OpCost:
    if len(q.shape) != 3:
        raise Uncounted(_QUERIES_LAYOUT)
    tokens, heads, width = q.shape
    dims = (("H", heads), ("Nq", tokens), ("pairs", pairs), ("D", width), ("Dv", value_width))
    flops = 2 * pairs * heads * (width + value_width)
    return OpCost(flops, read, written, q.dtype, "matrix", dims=dims, note=_LISTS)
