"""Sampling of the next token: argmax of probabilities over exponential noise, which is a draw by them.

Of each logit: its division by the temperature, its exponential, its division by the noise and a comparison, 4
FLOPs; that all are divided by one sum does not change the largest and is not counted. Greedy: a comparison.
Bytes: logits, noise and temperatures once, one index a row written. Source: ROCm/aiter, aiter/ops/sample.py.
"""

from __future__ import annotations

from tracelens.costs.call import OpCall
from tracelens.costs.model import OpCost, cost


@cost("aiter::mixed_sample_outer_exponential", "aiter::random_sample_outer_exponential", engine="vector")
def sample(call: OpCall) -> OpCost:
    """Indices, logits (T, V), noise (T, V) or the same row for all, temperatures: 4 FLOPs a logit."""
    logits = call.tensor(1)
    read = logits.bytes + call.tensor(2).bytes + call.tensor(3).bytes
    return OpCost(4 * logits.numel, read, call.tensor(0).bytes, logits.dtype)


@cost("aiter::greedy_sample", engine="vector")
def greedy(call: OpCall) -> OpCost:
    """Indices of the largest of the logits (T, V)."""
    logits = call.tensor(1)
    return OpCost(logits.numel, logits.bytes, call.tensor(0).bytes, logits.dtype)
