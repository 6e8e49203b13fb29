"""Runs on one GPU that show what toggles do: read by who records them and by who tests the recordings."""

from __future__ import annotations

SIZE = (
    "layers=2 hidden=512 heads=4 kv_lora=128 dense_ffn=1024 experts_count=8 top_k=2 expert_ffn=256 "
    "shared_ffn=256 vocab=8192 seq=512 micro_batch=1"
)
"""Fields of the preset small that are smaller: one dense layer and one with experts."""

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
}
"""Name of a run to its toggles."""

LARGEST_BYTES = 150_000
