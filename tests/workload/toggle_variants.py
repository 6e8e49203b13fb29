"""Runs on GPUs that show what toggles do: read by who records them and by who tests the recordings."""

from __future__ import annotations

SIZE = (
    "layers=2 hidden=512 heads=4 kv_lora=128 dense_ffn=1024 experts_count=8 top_k=2 expert_ffn=256 "
    "shared_ffn=256 vocab=8192 seq=512 micro_batch=1"
)
"""Fields of the preset small that are smaller: one dense layer and one with experts."""

LARGE = (
    "ranks=2 layers=1 dense_layers=0 hidden=2048 heads=16 dense_ffn=4096 experts_count=8 top_k=4 "
    "expert_ffn=1024 shared_ffn=2048 vocab=8192 seq=4096 micro_batch=4 experts=grouped sync_free=3 "
    "permute=fused router=fused loss=fused"
)
"""Two ranks whose GPUs and not their hosts take the time, so that work can be laid over communication."""

EXPERTS = 8

VARIANTS = {
    "baseline": "",
    "multistream": "experts=multistream",
    "permute_fused": "permute=fused",
    "router_fused": "router=fused",
    "loss_fused": "loss=fused",
    # With one rank there are no sizes of messages: 2 reads as little as 3.
    "sync_free_0": "experts=grouped",
    "sync_free_1": "experts=grouped sync_free=1",
    "sync_free_3": "experts=grouped sync_free=3",
    "graph_step": "experts=grouped sync_free=3 graph=step",
    "recompute": "experts=grouped sync_free=3 recompute_layer_ids=0,1",
    "fp8": "experts=grouped sync_free=3 fp8=experts",
    "exchange": "micro_batches=3",
    "exchange_1f1b": "micro_batches=3 overlap_exchange=1f1b",
    "exchange_shared": "micro_batches=3 overlap_shared=on",
    "tensor": "tp=2",
    "tensor_chunked": "tp=2 tp_overlap=chunked",
}
"""Name of a run to what it changes; from "exchange" on runs of two ranks."""

_OF_TWO = tuple(VARIANTS)[tuple(VARIANTS).index("exchange") :]


def fields(variant: str) -> list[str]:
    """How a run differs from the preset small."""
    return f"{LARGE if variant in _OF_TWO else SIZE} {VARIANTS[variant]}".split()


LARGEST_BYTES = 250_000
