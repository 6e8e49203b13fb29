"""The workload's `small` preset beside Hugging Face transformers' DeepSeek-V2 of the same sizes, on one GPU.

    python -m benchmarks.workload_against_transformers

Both train in bfloat16 on the same batch shape, with torch's fused AdamW on the bfloat16 parameters, and with
grouped GEMMs for the experts. One after the other trains for some rounds of steps; printed are the medians of
the rounds, their spread and the ratio. Needs a GPU, torch and transformers 5.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tracelens.planner.config.config import Config, override, preset
from tracelens.workload.parallel.collectives import Groups
from tracelens.workload.train import Trainer

ROUNDS, STEPS, WARMUP = 5, 6, 4
# As transformers trains: no balance loss, no float32 copies of the parameters.
SAME = ["aux_loss=0", "main_params=false"]
VARIANTS = {
    "workload, baseline (expert loop)": [],
    "workload, grouped experts": ["experts=grouped"],
    "workload, grouped, sync-free 2": ["experts=grouped", "sync_free=2"],
    "workload, all fused": [
        "experts=grouped", "sync_free=3", "permute=fused", "router=fused", "loss=fused", "gc=manual",
    ],
}  # fmt: skip


def theirs(config: Config, experts: str) -> Callable[[], float]:
    """A training step of transformers' model with these sizes."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    model, training = config.model, config.training
    settings = DeepseekV2Config(
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        intermediate_size=model.dense_ffn,
        moe_intermediate_size=model.expert_ffn,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.heads,
        n_routed_experts=model.experts_count,
        num_experts_per_tok=model.top_k,
        n_shared_experts=model.shared_ffn // model.expert_ffn,
        first_k_dense_replace=model.dense_layers,
        q_lora_rank=model.q_lora or None,
        kv_lora_rank=model.kv_lora,
        qk_nope_head_dim=model.qk_dim,
        qk_rope_head_dim=model.rope_dim,
        v_head_dim=model.v_dim,
        max_position_embeddings=training.seq,
        use_cache=False,
    )
    with torch.device("cuda"):
        network = DeepseekV2ForCausalLM._from_config(
            settings, dtype=torch.bfloat16, attn_implementation="sdpa", experts_implementation=experts
        )
    network.train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=training.learning_rate, fused=True)

    def step() -> float:
        ids = torch.randint(model.vocab, (training.micro_batch, training.seq)).pin_memory()
        ids = ids.to("cuda", non_blocking=True)
        loss = network(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def ours(config: Config) -> Callable[[], float]:
    """A training step of the workload's model."""
    return Trainer(config, Groups(config.layout), torch.device("cuda")).step


def measured(step: Callable[[], float], steps: int) -> list[float]:
    """Milliseconds of each of some steps; a step ends with reading its loss, so nothing is left running."""
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--layers", type=int, default=5, help="of the model")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="for all variants")
    options = parser.parse_args()
    base = override(preset("small"), [*SAME, f"layers={options.layers}", *options.set])
    makers: dict[str, Callable[[], Callable[[], float]]] = {
        "transformers, grouped_mm": lambda: theirs(base, "grouped_mm")
    }
    for name, changes in VARIANTS.items():
        makers[name] = partial(ours, override(base, changes))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {base.global_tokens} tokens a step")
    typical: dict[str, float] = {}
    peaks: dict[str, float] = {}
    runs: dict[str, Any] = {}
    for name, make in makers.items():  # one after the other: all models at once would not fit
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step = make()
        measured(step, WARMUP)
        runs[name] = [statistics.median(measured(step, STEPS)) for _ in range(ROUNDS)]
        typical[name], peaks[name] = statistics.median(runs[name]), torch.cuda.max_memory_allocated() / 1e9
        del step
    reference = typical["transformers, grouped_mm"]
    for name, time_ms in typical.items():
        spread = f"{min(runs[name]):.1f}-{max(runs[name]):.1f}"
        tokens = base.global_tokens / time_ms * 1e3
        print(
            f"{name:34} {time_ms:8.1f} ms ({spread}) {tokens:10,.0f} tokens/s "
            f"{reference / time_ms:5.2f}x {peaks[name]:6.1f} GB"
        )


if __name__ == "__main__":
    main()
