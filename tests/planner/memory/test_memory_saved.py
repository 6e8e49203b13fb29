"""What autograd keeps of the workload's model, byte by byte, against the projection."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the workload needs torch")

from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.planner.memory.kept import norms_on_cpu, of_rank, projected, saved
from tests.workload.ranks import run_ranks
from tracelens.planner.config import Config, override, preset

GQA = "attention=gqa kv_groups=2 head_dim=24"


def tiny(fields: str) -> Config:
    return override(preset("tiny"), ["micro_batch=1", *fields.split()])


@pytest.mark.parametrize(
    "fields",
    [
        "", "micro_batch=3", "router=fused", "sync_free=1", "experts=grouped", "experts=grouped sync_free=2",
        "experts=grouped sync_free=3", "overlap_shared=on", "dispatch=dedup", "dispatch=dedup sync_free=1",
        "dispatch=dedup experts=grouped sync_free=3", "experts=grouped fp8=experts",
        "dispatch=allgather", "score=sigmoid", "aux_loss=0",
        "q_lora=16", "shared_ffn=0", "dense_layers=0", "routing=balanced", "recompute_layer_ids=0,2",
        "experts_count=16 top_k=3 expert_groups=4 top_groups=2",
    ],
)  # fmt: skip
def test_all_that_a_forward_saves(fields: str) -> None:
    config = tiny(fields)
    assert projected(config) == saved(config) - norms_on_cpu(config)


@pytest.mark.parametrize(
    ("fields", "kernel", "backend"),
    [("v_dim=16", "math", SDPBackend.MATH), (GQA, "flash", SDPBackend.FLASH_ATTENTION)],
)
def test_kernels_of_attention(fields: str, kernel: str, backend: SDPBackend) -> None:
    config = tiny(fields)
    with sdpa_kernel(backend):
        assert projected(config, attention=kernel) == saved(config) - norms_on_cpu(config)


def test_what_the_fused_ops_hold_beside_autograd() -> None:
    plain, fused = (tiny(f"experts=grouped sync_free=2 {more}") for more in ("", "permute=fused loss=fused"))
    rows = fused.tokens * fused.model.top_k
    # Token, choice and row of each, and the gradient of the logits.
    hidden = fused.model.moe_layers * 3 * 8 * rows + 4 * fused.tokens * fused.model.vocab
    assert projected(fused) == saved(fused) - norms_on_cpu(fused) + hidden
    assert projected(plain) == saved(plain) - norms_on_cpu(plain)


# Experts are equally busy, as the projection takes them to be.
RANKS = [
    "ranks=2", "ranks=2 sync_free=1", "ranks=2 experts=grouped sync_free=3", "ranks=2 dispatch=allgather",
    "ranks=2 dispatch=allgather experts=grouped sync_free=3",
    "ranks=2 dispatch=dedup experts=grouped sync_free=3",
    "ranks=2 ep=1", "ranks=2 tp=2", "ranks=2 tp=2 tp_overlap=chunked", f"ranks=2 tp=2 {GQA}",
    "ranks=2 tp=2 q_lora=16", "ranks=2 tp=2 micro_batch=3", "ranks=2 cp=2", f"ranks=2 cp=2 {GQA}",
    "ranks=2 dispatch=dedup",
]  # fmt: skip


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    configs = [tiny(f"routing=balanced {fields}") for fields in RANKS]
    return run_ranks(2, of_rank, configs, folder=tmp_path_factory.mktemp("kept"))


@pytest.mark.parametrize("number", range(len(RANKS)), ids=RANKS)
def test_all_that_one_of_two_ranks_saves(number: int, on_two_ranks: list[list[int]]) -> None:
    config = tiny(f"routing=balanced {RANKS[number]}")
    # On a GPU torch has no kernel for grouped queries in float32.
    sizes = projected(config, attention="flash")
    kept = [of[number] for of in on_two_ranks]
    if config.layout.cp > 1:
        # The last rank sees most keys; on a CPU it keeps a mask, too.
        mask = config.model.layers * config.tokens * config.training.seq * 4
        assert kept[0] <= kept[1] - mask == sizes
    elif config.toggles.dispatch == "dedup" and not config.toggles.sync_free:
        # How many copies there are, is an average.
        assert kept == pytest.approx([sizes] * 2, rel=0.003)
    else:
        assert kept == [sizes] * 2
