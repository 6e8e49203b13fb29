"""Attention over a paged cache of keys and values, whose pages belong to all sequences that are served.

What is read is what the sequences of one call have in the cache, never the cache. Their lengths are in GPU
memory; a trace has them, or sums of them, in

- the label of the serving step around the call (`OpCall.batch`), if it has as many queries as the call;
- the arguments: the number of pages in use, and the longest lengths, where these tell all of them: of one
  sequence, or of sequences with equally many queries. In a graph they are those of the capture, and the
  replay has other sequences.

Scores of a sequence with q queries and k keys, causal and ending at the bottom right: q·k - q²/2, so that a
square counts half (see forward.py); a single query sees all of its keys.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tracelens.costs.attention.forward import Attention, Mask, Sizes, twice_unmasked
from tracelens.costs.call import Batch, Lengths, OpCall, Tensor, Uncounted
from tracelens.costs.model import OpCost, cost

_UNKNOWN = "neither arguments nor a step label show the sequence lengths in the KV cache"
CAPTURED = "no step label shows the sequence lengths, and the arguments are those of the capture"
_LABEL = "lengths from the step label"
_ARGUMENTS = "lengths from the longest ones and the pages in use"
_WINDOW = "upper bound: a sliding window is not counted"


class Paged(NamedTuple):
    """One call over a paged cache.

    Attributes:
        q: queries (T, H, D) of all sequences.
        k, v: keys and values of one token in the cache, (heads, width).
        sequences: how many; 0 where not recorded.
        longest: most queries and most keys of one sequence; 0 where not recorded.
        keys: most tokens that the sequences have in the cache together, -1 where not recorded.
        mask: of each sequence.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    sequences: int = 0
    longest: tuple[int, int] = (0, 0)
    keys: int = -1
    mask: Mask = Mask(causal=True)

    def forward(self, call: OpCall) -> OpCost:
        """The cost of the call in its serving step; Uncounted where no lengths are known."""
        if len(self.q.shape) != 3:
            raise Uncounted("queries in an unknown layout")
        labelled = self._of_label(call.batch)
        if not labelled and call.is_replayed:
            raise Uncounted(CAPTURED)
        phases = labelled or (self._of_arguments(),)
        queries, keys = (sum(lengths[index] for lengths in phases) for index in (0, 1))
        scores, left = sum(map(self._twice_scores, phases)), self.mask.left
        notes = [_LABEL if labelled else _ARGUMENTS]
        if left >= 0 and self.sequences == 1:
            scores, note = twice_unmasked(queries, keys, self.mask)
            keys, notes = min(keys, queries + left), [*notes, note]
        elif left >= 0:
            notes.append(_WINDOW)
        (_, heads, d), (kv_heads, dk), (kv_heads2, dv) = self.q.shape, self.k.shape, self.v.shape
        if d != dk or kv_heads != kv_heads2 or not kv_heads or heads % kv_heads:
            raise Uncounted("recorded shapes of queries, keys and values disagree")
        q = Tensor((queries, heads, d), self.q.dtype, queries * heads * d)
        k, v = (Tensor((keys, *t.shape), t.dtype, keys * t.stored) for t in (self.k, self.v))
        sizes = Sizes(1, heads, kv_heads, queries, keys, d, dv)
        return Attention(q, k, v, sizes, scores, "; ".join(notes)).forward(saved=False)

    def _twice_scores(self, lengths: Lengths) -> int:
        single = lengths.squares == lengths.queries
        return 2 * lengths.products - (lengths.squares if self.mask.causal and not single else 0)

    def _of_label(self, batch: Batch | None) -> tuple[Lengths, ...]:
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


def of_token(tensor: Tensor, heads: int, width: int) -> Tensor:
    """One token of a cache."""
    return Tensor((heads, width), tensor.dtype, heads * width)


@cost("vllm::unified_attention*", "sglang::unified_attention*", batch=True)
def unified(call: OpCall) -> OpCost:
    """Queries, keys and values (T, H, D) of all requests, whose earlier keys are in the cache."""
    q, k, v = call.tensor(0), call.tensor(1), call.tensor(2)
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
        raise Uncounted("a KV cache in an unknown layout")
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
        raise Uncounted("a KV cache in an unknown layout")
    used = min(pages.numel, k.shape[0]) * k.shape[1]
    keys, values = of_token(k, *k.shape[2:]), of_token(v, *v.shape[2:])
    return Paged(q, keys, values, max(bounds.numel - 1, 0), keys=used).forward(call)


def of_latent(heads: int, width: int, dtype: str) -> Tensor:
    """The values of one token where they are part of its keys: nothing more is read."""
    return Tensor((heads, width), dtype, 0)


_OWN_ATTENTION = re.compile(r"mla|attn|attention|^_fwd_(?:grouped_)?kernel_stage1", re.IGNORECASE)


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
