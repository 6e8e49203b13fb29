"""Attention, forward: scaled_dot_product_attention and what PyTorch runs for it.

In each of H heads every query of Nq meets every key of Nk (2·Dqk FLOPs), and its weight every value (2·Dv):
2·B·H·Nq·Nk·(Dqk + Dv), H being the heads of the queries where keys and values have fewer (GQA and MQA,
Ainslie et al. 2023). Scaling, masking and softmax are not counted, as in FlashAttention's papers (Dao 2022).
What a mask leaves out is not counted where the mask is known:

- causal over a square of scores: half, the convention of those papers (the diagonal counts half);
- causal over unequal lengths, and windows: the scores that remain, one by one.

Bytes: queries, keys, values and a bias once, the output and the log-sum-exp (FP32) that backward needs once.
"""

from __future__ import annotations

from typing import NamedTuple

from tracelens.costs.call import OpCall, Tensor, Uncounted, size
from tracelens.costs.model import OpCost, cost


class Sizes(NamedTuple):
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
    """Which scores exist.

    Attributes:
        causal: no key after its query.
        left, right: keys before and after a query that it sees, -1 for all.
        top_left: the first query faces the first key; else the last faces the last.
    """

    causal: bool = False
    left: int = -1
    right: int = -1
    top_left: bool = False


FULL = Mask()


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


class Attention(NamedTuple):
    """One attention as its op was called.

    Attributes:
        q, k, v: queries, keys and values.
        sizes: of the attention.
        twice_scores: twice the scores of one head that are computed.
        note: on the count of scores.
        extra: further bytes read (bias, mask).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    sizes: Sizes
    twice_scores: int
    note: str = ""
    extra: int = 0

    def forward(self, saved: bool = True) -> OpCost:
        """The cost of the output; `saved`: the log-sum-exp of every row is a result too."""
        q, sizes = self.q, self.sizes
        out = size(self._rows * sizes.dv, "bf16" if q.dtype.startswith("fp8") else q.dtype)
        written = out + (4 * self._rows if saved else 0)
        return self._cost(sizes.d + sizes.dv, self._read, written)

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
        flops = self.sizes.batch * self.sizes.heads * self.twice_scores * widths
        return OpCost(flops, read, written, self.q.dtype, "matrix", dims=self.sizes.dims, note=self.note)


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Sizes:
    """Sizes of (B, H, N, D) tensors; (H, N, D) is one of a batch."""
    (b, h, nq, d), (b2, kv, nk, dk), (b3, kv2, nk2, dv) = _four(q), _four(k), _four(v)
    return _agreeing(Sizes(b, h, kv, nq, nk, d, dv), (b2, b3), (dk, kv2, nk2))


def tokens_first(q: Tensor, k: Tensor, v: Tensor) -> Sizes:
    """Sizes of (B, N, H, D) tensors; (N, H, D) is one of a batch."""
    (b, nq, h, d), (b2, nk, kv, dk), (b3, nk2, kv2, dv) = _four(q), _four(k), _four(v)
    return _agreeing(Sizes(b, h, kv, nq, nk, d, dv), (b2, b3), (dk, kv2, nk2))


def packed(sizes: Sizes, sequences: int, max_q: int, max_k: int, causal: bool) -> tuple[int, str]:
    """Twice the scores of sequences laid end to end, of which only the longest lengths are recorded.

    All have at most Nq·max_k scores, nor more than max_q·Nk; exact when all are of the longest length.
    """
    if max_q <= 0 or max_k <= 0:
        raise Uncounted("the lengths of packed sequences are not recorded")
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
) -> Attention:
    """Attention of (B, H, N, D) tensors that begin with argument `first`."""
    q, k, v = _operands(call, first)
    sizes = heads_first(q, k, v)
    # PyTorch aligns its causal mask at the top left. FlashAttention on GPUs does so at the bottom right: over
    # unequal lengths PyTorch does not choose it, and who calls it by name (causal_lower_right) means that.
    mask = Mask(causal_flag(call, causal), top_left=top_left)
    return Attention(q, k, v, sizes, *twice_unmasked(sizes.nq, sizes.nk, mask), call.bytes(bias))


def flash_attention(
    call: OpCall, first: int, bounds: int, longest: int, causal: int, window: int
) -> Attention:
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
    return Attention(q, k, v, sizes, *scores)


def efficient_attention(
    call: OpCall, first: int, bias: int, bounds: int, longest: int, mask: int
) -> Attention:
    """Memory-efficient attention, whose mask is 0 none, 1 top left, 2 bottom right."""
    q, k, v = _operands(call, first)
    sizes = tokens_first(q, k, v)
    kind = call.integer(mask)
    if call.has(bounds):
        scores = _packed(call, sizes, bounds, longest, kind > 0)
    else:
        scores = twice_unmasked(sizes.nq, sizes.nk, Mask(kind > 0, top_left=kind == 1))
    return Attention(q, k, v, sizes, *scores, call.bytes(bias))


def _operands(call: OpCall, first: int) -> tuple[Tensor, Tensor, Tensor]:
    return call.tensor(first), call.tensor(first + 1), call.tensor(first + 2)


def _packed(call: OpCall, sizes: Sizes, bounds: int, longest: int, causal: bool) -> tuple[int, str]:
    sequences = call.tensor(bounds).numel - 1
    return packed(sizes, sequences, call.integer(longest), call.integer(longest + 1), causal)


def causal_flag(call: OpCall, index: int) -> bool:
    """Whether the mask is causal; Uncounted where the trace has no values."""
    text = call.text(index).lower()
    if text not in ("true", "false"):
        raise Uncounted("the mask (causal or not) is not recorded")
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


def _agreeing(sizes: Sizes, batches: tuple[int, int], key_sizes: tuple[int, int, int]) -> Sizes:
    # A batch of 1 is broadcast; any other is another layout, such as the pages of a cache.
    if key_sizes != (sizes.d, sizes.kv_heads, sizes.nk) or any(b not in (1, sizes.batch) for b in batches):
        raise Uncounted("recorded shapes of queries, keys and values disagree")
    if sizes.kv_heads and sizes.heads % sizes.kv_heads:
        raise Uncounted(f"{sizes.heads} heads cannot share {sizes.kv_heads} heads of keys")
    return sizes
