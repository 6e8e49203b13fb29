"""Record pairs of runs of the Hugging Face library's models on one GPU, before and after one change each.

    python3 tests/conformance/record_families.py OUT [--device cuda|cpu] [--only REGEX] [--budget SECONDS]
        [--together]

Each run is a process of its own: steps to warm up, steps timed without the profiler, then recorded ones.
Hosts of two processes of one program differ by as much as many changes, so with --together both sides of a
pair are in one process, and blocks of timed steps take turns.
Uses nothing of tracelens. OUT/before-N.tar and OUT/after-N.tar hold NAME/rank0.json.zst and NAME/times.json;
nothing of the runs after the change is printed but whether they ended.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import time
import traceback
from pathlib import Path
from typing import Any

import pack_pairs
import torch
import transformers
from torch.utils.data import DataLoader

WARM, BLOCKS, BLOCK, BEFORE, RECORDED = 5, 3, 8, 2, 3
EAGER, GROUPED = "eager", "grouped_mm"


@dataclasses.dataclass(frozen=True)
class Run:
    """A program: the model, its batch, and what it does beside its steps.

    Attributes:
        item: after each layer the host reads a value, or whether there are any NaNs.
        pause: seconds it sleeps at a place of a step; where.
        collect: the place of a step where Python's garbage is collected.
        loader_s: Python time that the loader needs for a batch.
        log: the loss is read at the end of each step.
        optimizer: fused kernels, lists of parameters, or one parameter at a time (plain).
    """

    family: str
    batch: int
    sequence: int
    experts: str = GROUPED
    dtype: str = "bfloat16"
    recompute: bool = False
    item: str = ""
    pause: tuple[float, str] = (0.0, "")
    collect: str = ""
    loader_s: float = 0.0
    log: bool = True
    loss: str = ""
    kind: str = "train"
    graph: bool = False
    capturable: bool = False
    optimizer: str = "fused"

    def but(self, **changes: Any) -> Run:
        return dataclasses.replace(self, **changes)


SIZES: dict[str, dict[str, Any]] = {
    "qwen2_moe": {
        "hidden_size": 2048, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 2816,
        "num_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 2, "vocab_size": 65536,
    },
    "granitemoe": {
        "hidden_size": 1536, "intermediate_size": 512, "num_local_experts": 24, "num_experts_per_tok": 8,
        "num_attention_heads": 24, "num_key_value_heads": 8, "num_hidden_layers": 3, "vocab_size": 49152,
    },
    "phimoe": {
        "hidden_size": 4096, "intermediate_size": 6400, "num_local_experts": 8, "num_experts_per_tok": 2,
        "num_hidden_layers": 2, "vocab_size": 32064,
    },
    "ernie4_5_moe": {
        "hidden_size": 2560, "intermediate_size": 6144, "moe_intermediate_size": 1536, "moe_num_experts": 16,
        "moe_k": 4, "num_hidden_layers": 3, "vocab_size": 32768,
    },
    "glm4_moe": {
        "hidden_size": 2048, "intermediate_size": 5472, "moe_intermediate_size": 1024, "n_routed_experts": 32,
        "num_experts_per_tok": 8, "num_attention_heads": 32, "num_hidden_layers": 3, "vocab_size": 49152,
    },
    "dots1": {
        "hidden_size": 3072, "intermediate_size": 8192, "moe_intermediate_size": 1408, "n_routed_experts": 24,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "num_attention_heads": 24, "num_key_value_heads": 24,
        "head_dim": 128, "num_hidden_layers": 3, "vocab_size": 32768,
    },
    "gpt_oss": {
        "hidden_size": 1440, "intermediate_size": 1440, "num_local_experts": 16, "num_experts_per_tok": 4,
        "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 65536,
    },
    "lfm2_moe": {
        "hidden_size": 1024, "intermediate_size": 3584, "moe_intermediate_size": 896, "num_experts": 16,
        "num_experts_per_tok": 4, "num_attention_heads": 16, "num_dense_layers": 1, "num_hidden_layers": 4,
        "vocab_size": 32768, "layer_types": ["conv", "full_attention", "conv", "conv"],
    },
    "minimax_m2": {
        "hidden_size": 1536, "intermediate_size": 768, "num_local_experts": 32, "num_experts_per_tok": 8,
        "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 2,
        "vocab_size": 32768,
    },
    "gemma2": {
        "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 3, "vocab_size": 32768,
    },
    "qwen3_moe": {
        "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 64, "num_experts_per_tok": 8,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 3,
        "vocab_size": 49152,
    },
    "olmoe": {
        "hidden_size": 2048, "intermediate_size": 1024, "num_experts": 32, "num_experts_per_tok": 4,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 4, "vocab_size": 50304,
    },
    "mixtral": {
        "hidden_size": 3072, "intermediate_size": 6144, "num_local_experts": 8, "num_experts_per_tok": 2,
        "num_attention_heads": 24, "num_key_value_heads": 8, "num_hidden_layers": 3, "vocab_size": 32000,
    },
    "hunyuan_v1_moe": {
        "hidden_size": 2048, "intermediate_size": 3072, "num_experts": 16, "moe_topk": 2,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 3,
        "vocab_size": 65536,
    },
    "qwen3": {
        "hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 4, "vocab_size": 49152,
    },
    "llama": {
        "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_hidden_layers": 6,
        "vocab_size": 16384,
    },
    "flex_olmo": {
        "hidden_size": 2048, "intermediate_size": 2816, "num_experts": 8, "num_experts_per_tok": 4,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 4, "vocab_size": 50304,
    },
    "afmoe": {
        "hidden_size": 1536, "intermediate_size": 4096, "moe_intermediate_size": 1024, "num_experts": 32,
        "num_experts_per_tok": 6, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128,
        "num_hidden_layers": 4, "vocab_size": 65536,
    },
    "exaone_moe": {
        "hidden_size": 2560, "intermediate_size": 8192, "moe_intermediate_size": 1024, "num_experts": 32,
        "num_experts_per_tok": 8, "num_attention_heads": 20, "num_key_value_heads": 4,
        "num_hidden_layers": 3, "vocab_size": 51200,
    },
    "solar_open": {
        "hidden_size": 2048, "moe_intermediate_size": 1280, "n_routed_experts": 48, "num_experts_per_tok": 8,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "num_hidden_layers": 3,
        "vocab_size": 65536,
    },
    "hy_v3": {
        "hidden_size": 3072, "intermediate_size": 8192, "moe_intermediate_size": 1536, "num_experts": 24,
        "num_experts_per_tok": 4, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 128,
        "num_hidden_layers": 3, "vocab_size": 40960,
    },
    "glm4_moe_lite": {
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1536, "n_routed_experts": 24,
        "num_experts_per_tok": 4, "num_hidden_layers": 3, "vocab_size": 51200,
    },
    "mellum": {
        "hidden_size": 1152, "intermediate_size": 3584, "moe_intermediate_size": 448, "num_experts": 32,
        "num_experts_per_tok": 4, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 72,
        "num_hidden_layers": 4, "vocab_size": 32768,
    },
    "phi3": {
        "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_hidden_layers": 5, "vocab_size": 32064,
    },
    "starcoder2": {
        "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 18, "num_key_value_heads": 2,
        "num_hidden_layers": 5, "vocab_size": 49152,
    },
    "laguna": {
        "hidden_size": 1792, "intermediate_size": 5120, "moe_intermediate_size": 640,
        "shared_expert_intermediate_size": 640, "num_experts": 40, "num_experts_per_tok": 6,
        "num_attention_heads": 14, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 50176,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "num_attention_heads_per_layer": [14, 14, 14], "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "granitemoeshared": {
        "hidden_size": 1280, "intermediate_size": 768, "shared_intermediate_size": 1536,
        "num_local_experts": 20, "num_experts_per_tok": 4, "num_attention_heads": 20,
        "num_key_value_heads": 4, "num_hidden_layers": 4, "vocab_size": 49152,
    },
    "cohere2_moe": {
        "hidden_size": 2048, "intermediate_size": 1536, "num_experts": 16, "num_experts_per_tok": 4,
        "num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 65536,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "sparse", "sparse"],
    },
    "mimo_v2_flash": {
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1024,
        "n_routed_experts": 32, "num_experts_per_tok": 8, "num_attention_heads": 16,
        "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 50176,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "smollm3": {
        "hidden_size": 1536, "intermediate_size": 6144, "num_attention_heads": 12, "num_key_value_heads": 4,
        "num_hidden_layers": 5, "vocab_size": 65536,
    },
    "gemma3_text": {
        "hidden_size": 1152, "intermediate_size": 6912, "num_attention_heads": 4, "num_key_value_heads": 1,
        "num_hidden_layers": 6, "vocab_size": 65536,
    },
    "exaone4": {
        "hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": 4, "vocab_size": 51200,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "olmo2": {
        "hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 8, "num_key_value_heads": 8,
        "num_hidden_layers": 6, "vocab_size": 50304,
    },
    "zaya": {
        "hidden_size": 1536, "moe_intermediate_size": 1536, "num_experts": 16, "num_experts_per_tok": 1,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "router_hidden_size": 256,
        "num_hidden_layers": 4, "vocab_size": 65536,
    },
    "granitemoe_swa": {
        "hidden_size": 2048, "intermediate_size": 1024, "num_local_experts": 16, "num_experts_per_tok": 4,
        "num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 49152,
    },
    "minimax": {
        "hidden_size": 1536, "intermediate_size": 3072, "num_local_experts": 8, "num_experts_per_tok": 2,
        "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 3,
        "vocab_size": 32000,
    },
    "axk2": {
        "hidden_size": 1536, "intermediate_size": 4096, "moe_intermediate_size": 512, "n_routed_experts": 48,
        "num_experts_per_tok": 6, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_hidden_layers": 3, "vocab_size": 50176,
    },
    "jetmoe": {
        "hidden_size": 1536, "intermediate_size": 4096, "num_local_experts": 8, "num_experts_per_tok": 2,
        "num_key_value_heads": 12, "kv_channels": 128, "num_hidden_layers": 3, "vocab_size": 32000,
    },
    "mistral": {
        "hidden_size": 2048, "intermediate_size": 7168, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 128, "num_hidden_layers": 5, "vocab_size": 32768,
    },
    "arcee": {
        "hidden_size": 1536, "intermediate_size": 9216, "num_attention_heads": 12, "num_key_value_heads": 12,
        "head_dim": 128, "num_hidden_layers": 5, "vocab_size": 49152,
    },
    "olmo3": {
        "hidden_size": 1536, "intermediate_size": 4096, "num_attention_heads": 12, "num_key_value_heads": 12,
        "num_hidden_layers": 5, "vocab_size": 50304,
        "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
                        "sliding_attention"],
    },
    "helium": {
        "hidden_size": 1280, "intermediate_size": 3520, "num_attention_heads": 10, "num_key_value_heads": 10,
        "head_dim": 128, "num_hidden_layers": 6, "vocab_size": 48000,
    },
    "nemotron": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 20, "num_key_value_heads": 4,
        "head_dim": 128, "num_hidden_layers": 4, "vocab_size": 49152,
    },
    "granite": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 4,
        "num_hidden_layers": 6, "vocab_size": 49152,
    },
    "seed_oss": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 128, "num_hidden_layers": 4, "vocab_size": 65536,
    },
    "apertus": {
        "hidden_size": 2048, "intermediate_size": 7168, "num_attention_heads": 16, "num_key_value_heads": 4,
        "num_hidden_layers": 4, "vocab_size": 65536,
    },
    "stablelm": {
        "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_hidden_layers": 5, "vocab_size": 50304,
    },
    "hunyuan_v1_dense": {
        "hidden_size": 1536, "intermediate_size": 6144, "num_attention_heads": 12, "num_key_value_heads": 4,
        "head_dim": 128, "num_hidden_layers": 5, "vocab_size": 65536,
    },
    "ernie4_5": {
        "hidden_size": 2560, "intermediate_size": 7680, "num_attention_heads": 20, "num_key_value_heads": 4,
        "head_dim": 128, "num_hidden_layers": 3, "vocab_size": 49152,
    },
    "ministral3": {
        "hidden_size": 1536, "intermediate_size": 5120, "num_attention_heads": 12, "num_key_value_heads": 12,
        "head_dim": 128, "num_hidden_layers": 5, "vocab_size": 32768,
    },
    "cohere2": {
        "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 4,
        "num_hidden_layers": 4, "vocab_size": 65536,
    },
    "gpt_neox": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_hidden_layers": 4,
        "vocab_size": 50432,
    },
    "gemma": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 8, "num_key_value_heads": 1,
        "head_dim": 256, "num_hidden_layers": 4, "vocab_size": 32768,
    },
    "olmo": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_hidden_layers": 5, "vocab_size": 50304,
    },
    "phi": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32, "num_hidden_layers": 4,
        "vocab_size": 51200,
    },
    "glm": {
        "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16, "num_key_value_heads": 4,
        "head_dim": 128, "num_hidden_layers": 6, "vocab_size": 32000,
    },
    "deepseek_v3": {
        "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 1024,
        "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 768, "kv_lora_rank": 256,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 16,
        "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "num_hidden_layers": 4, "vocab_size": 32000,
    },
    "llama4_text": {
        "hidden_size": 2048, "intermediate_size": 2048, "intermediate_size_mlp": 6144,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "num_local_experts": 8,
        "num_experts_per_tok": 1, "num_hidden_layers": 4, "vocab_size": 32000,
    },
}  # fmt: skip
TINY = {
    "hidden_size": 64, "vocab_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16,
    "intermediate_size": 32, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "kv_channels": 16, "intermediate_size_mlp": 64, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
}  # fmt: skip

QWEN = Run("qwen2_moe", 2, 2048)
GRANITE = Run("granitemoe", 4, 512)
PHI = Run("phimoe", 4, 2048, log=False)
ERNIE = Run("ernie4_5_moe", 1, 4096, EAGER)
GLM = Run("glm4_moe", 2, 2048)
DOTS = Run("dots1", 4, 1024, log=False)
GPT = Run("gpt_oss", 2, 1024)
LFM = Run("lfm2_moe", 4, 512)
MINIMAX = Run("minimax_m2", 2, 1024)
GEMMA = Run("gemma2", 2, 2048, "")
QWEN3 = Run("qwen3_moe", 2, 2048)
OLMOE = Run("olmoe", 4, 2048, log=False)
MIXTRAL = Run("mixtral", 2, 2048)
HUNYUAN = Run("hunyuan_v1_moe", 8, 1024)
DENSE = Run("qwen3", 4, 1024, "", log=False)
QWEN3_DECODES = Run("qwen3_moe", 32, 1, kind="decode")
MIXTRAL_DECODES = Run("mixtral", 16, 1, kind="decode")
LLAMA = Run("llama", 4, 512, "")
LLAMA_SMALL = Run("llama", 1, 512, "", log=False, capturable=True)
QWEN_DECODES = Run("qwen2_moe", 16, 1, kind="decode")
OLMOE_DECODES = Run("olmoe", 8, 1, kind="decode")
HUNYUAN_DECODES = Run("hunyuan_v1_moe", 32, 1, kind="decode")
MINIMAX_DECODES = Run("minimax_m2", 64, 1, kind="decode")
HUNYUAN_READS = Run("hunyuan_v1_moe", 2, 256, kind="read")
GRANITE_DECODES = Run("granitemoe", 64, 1, kind="decode")
GLM_DECODES = Run("glm4_moe", 8, 1, kind="decode")
DOTS_READS = Run("dots1", 1, 128, kind="read")
FLEX = Run("flex_olmo", 4, 1024)
AFMOE = Run("afmoe", 4, 1024, log=False)
EXAONE = Run("exaone_moe", 2, 2048)
SOLAR = Run("solar_open", 4, 2048)
HY = Run("hy_v3", 2, 2048, log=False)
GLM_LITE = Run("glm4_moe_lite", 2, 1024)
MELLUM = Run("mellum", 2, 1024)
PHI3 = Run("phi3", 4, 1024, "")
STARCODER = Run("starcoder2", 2, 2048, "", log=False)
OLMO2 = Run("olmo2", 8, 512, "")
SOLAR_DECODES = Run("solar_open", 32, 1, kind="decode")
GLM_LITE_DECODES = Run("glm4_moe_lite", 16, 1, kind="decode")
MELLUM_READS = Run("mellum", 4, 256, kind="read")
LAGUNA = Run("laguna", 2, 2048)
SHARED = Run("granitemoeshared", 4, 1024, log=False)
COHERE = Run("cohere2_moe", 4, 1024)
MIMO = Run("mimo_v2_flash", 2, 1024)
SMOL = Run("smollm3", 4, 1024, "", log=False)
GEMMA3 = Run("gemma3_text", 4, 512, "")
EXAONE4 = Run("exaone4", 4, 1024, "")
LAGUNA_DECODES = Run("laguna", 16, 1, kind="decode")
SHARED_DECODES = Run("granitemoeshared", 64, 1, kind="decode")
COHERE_READS = Run("cohere2_moe", 1, 256, kind="read")
ZAYA = Run("zaya", 4, 1024)
SWA = Run("granitemoe_swa", 4, 1024, log=False)
LIGHTNING = Run("minimax", 4, 1024)
AXK = Run("axk2", 2, 1024)
JET = Run("jetmoe", 4, 1024, "", log=False)
MISTRAL = Run("mistral", 2, 2048, "")
ARCEE = Run("arcee", 4, 1024, "", log=False)
OLMO3 = Run("olmo3", 4, 1024, "")
HELIUM = Run("helium", 4, 512, "", log=False)
NEMOTRON = Run("nemotron", 4, 1024, "")
PLAIN_GRANITE = Run("granite", 4, 1024, "", log=False)
SEED = Run("seed_oss", 2, 1024, "")
APERTUS = Run("apertus", 4, 1024, "")
STABLE = Run("stablelm", 4, 1024, "", log=False)
HUNYUAN_DENSE = Run("hunyuan_v1_dense", 4, 1024, "")
ERNIE_DENSE = Run("ernie4_5", 2, 2048, "", log=False)
MINISTRAL = Run("ministral3", 8, 1024, "")
COHERE_DENSE = Run("cohere2", 2, 2048, "")
NEOX = Run("gpt_neox", 4, 1024, "", log=False)
ZAYA_DECODES = Run("zaya", 32, 1, kind="decode")
SWA_DECODES = Run("granitemoe_swa", 16, 1, kind="decode")
MISTRAL_DECODES = Run("mistral", 64, 1, "", kind="decode")
LIGHTNING_READS = Run("minimax", 2, 256, kind="read")

# The runs after a change; NAME.CHANGE is a run before it, that ends as NAME.
GEMMA1 = Run("gemma", 4, 1024, "")
OLMO1 = Run("olmo", 4, 1024, "")
PHI2 = Run("phi", 2, 1024, "", log=False)
GLM_DENSE = Run("glm", 4, 1024, "")
DSV3 = Run("deepseek_v3", 4, 1024, log=False)
LLAMA4 = Run("llama4_text", 4, 1024, "")
AFTER = {
    "qwen": QWEN,
    "granite": GRANITE,
    "phi": PHI,
    "ernie": ERNIE,
    "glm": GLM,
    "dots": DOTS,
    "gpt_oss": GPT,
    "lfm": LFM,
    "minimax": MINIMAX,
    "gemma": GEMMA,
    "llama": LLAMA,
    "qwen3": QWEN3,
    "olmoe": OLMOE,
    "mixtral": MIXTRAL,
    "hunyuan": HUNYUAN,
    "dense": DENSE,
    "qwen3_decode": QWEN3_DECODES.but(graph=True),
    "mixtral_decode": MIXTRAL_DECODES.but(graph=True),
    "qwen_loss": QWEN.but(loss="compiled", batch=1),
    "qwen_decode": QWEN_DECODES.but(graph=True),
    "granite_decode": GRANITE_DECODES.but(graph=True),
    "glm_decode": GLM_DECODES.but(graph=True),
    "dots_read": DOTS_READS.but(graph=True),
    "olmoe_decode": OLMOE_DECODES.but(graph=True),
    "hunyuan_decode": HUNYUAN_DECODES.but(graph=True),
    "minimax_decode": MINIMAX_DECODES.but(graph=True),
    "hunyuan_read": HUNYUAN_READS.but(graph=True),
    "llama_graph": LLAMA_SMALL.but(graph=True),
    "flex": FLEX,
    "afmoe": AFMOE,
    "exaone": EXAONE,
    "solar": SOLAR,
    "hy": HY,
    "glm_lite": GLM_LITE,
    "mellum": MELLUM,
    "phi3": PHI3,
    "starcoder": STARCODER,
    "olmo2": OLMO2,
    "solar_decode": SOLAR_DECODES.but(graph=True),
    "glm_lite_decode": GLM_LITE_DECODES.but(graph=True),
    "mellum_read": MELLUM_READS.but(graph=True),
    "laguna": LAGUNA,
    "shared": SHARED,
    "cohere": COHERE,
    "mimo": MIMO,
    "smol": SMOL,
    "gemma3": GEMMA3,
    "exaone4": EXAONE4,
    "laguna_decode": LAGUNA_DECODES.but(graph=True),
    "shared_decode": SHARED_DECODES.but(graph=True),
    "cohere_read": COHERE_READS.but(graph=True),
    "zaya": ZAYA,
    "swa": SWA,
    "lightning": LIGHTNING,
    "axk": AXK,
    "jet": JET,
    "mistral": MISTRAL,
    "arcee": ARCEE,
    "olmo3": OLMO3,
    "helium": HELIUM,
    "nemotron": NEMOTRON,
    "plain_granite": PLAIN_GRANITE,
    "seed": SEED,
    "apertus": APERTUS,
    "stable": STABLE,
    "hunyuan_dense": HUNYUAN_DENSE,
    "ernie_dense": ERNIE_DENSE,
    "ministral": MINISTRAL,
    "cohere_dense": COHERE_DENSE,
    "neox": NEOX,
    "zaya_decode": ZAYA_DECODES.but(graph=True),
    "swa_decode": SWA_DECODES.but(graph=True),
    "mistral_decode": MISTRAL_DECODES.but(graph=True),
    "lightning_read": LIGHTNING_READS.but(graph=True),
    "gemma1": GEMMA1,
    "olmo1": OLMO1,
    "phi2": PHI2,
    "glm_dense": GLM_DENSE,
    "dsv3": DSV3,
    "llama4": LLAMA4,
}
BEFORE_IT = {
    "qwen.loop": QWEN.but(experts=EAGER),
    "granite.loop": GRANITE.but(experts=EAGER),
    "phi.loop": PHI.but(experts=EAGER),
    "glm.loop": GLM.but(experts=EAGER),
    "dots.loop": DOTS.but(experts=EAGER),
    "gpt_oss.loop": GPT.but(experts=EAGER),
    "lfm.loop": LFM.but(experts=EAGER),
    "minimax.loop": MINIMAX.but(experts=EAGER),
    "qwen_decode.eager": QWEN_DECODES,
    "granite_decode.eager": GRANITE_DECODES,
    "glm_decode.eager": GLM_DECODES,
    "dots_read.eager": DOTS_READS,
    "olmoe_decode.eager": OLMOE_DECODES,
    "hunyuan_decode.eager": HUNYUAN_DECODES,
    "minimax_decode.eager": MINIMAX_DECODES,
    "hunyuan_read.eager": HUNYUAN_READS,
    "lfm.quadruple": LFM.but(batch=16),
    "minimax.quadruple": MINIMAX.but(batch=8),
    "granite.quadruple": GRANITE.but(batch=16),
    "llama.eightfold": LLAMA.but(batch=32),
    "lfm.recompute": LFM.but(recompute=True),
    "minimax.recompute": MINIMAX.but(recompute=True),
    "lfm.sleep_end": LFM.but(pause=(0.02, "end")),
    "hunyuan.recompute": HUNYUAN.but(recompute=True),
    "llama_graph.eager": LLAMA_SMALL,
    "qwen.recompute": QWEN.but(recompute=True),
    "phi.recompute": PHI.but(recompute=True),
    "ernie.recompute": ERNIE.but(recompute=True),
    "gpt_oss.recompute": GPT.but(recompute=True),
    "ernie.fp32": ERNIE.but(dtype="float32"),
    "gemma.fp32": GEMMA.but(dtype="float32"),
    "glm.half": GLM.but(batch=1),
    "dots.half": DOTS.but(batch=2),
    "dots.short": DOTS.but(sequence=512),
    "granite.double": GRANITE.but(batch=8),
    "gemma.half": GEMMA.but(batch=1),
    "qwen3.half": QWEN3.but(batch=1),
    "qwen3.double": QWEN3.but(batch=4),
    "qwen3.loop": QWEN3.but(experts=EAGER),
    "olmoe.half": OLMOE.but(batch=2),
    "olmoe.quarter": OLMOE.but(batch=1),
    "olmoe.double": OLMOE.but(batch=8),
    "olmoe.recompute": OLMOE.but(recompute=True),
    "olmoe.loop": OLMOE.but(experts=EAGER),
    "mixtral.half": MIXTRAL.but(batch=1),
    "mixtral.double": MIXTRAL.but(batch=4),
    "mixtral.recompute": MIXTRAL.but(recompute=True),
    "mixtral.fp32": MIXTRAL.but(dtype="float32"),
    "hunyuan.half": HUNYUAN.but(batch=4),
    "hunyuan.short": HUNYUAN.but(sequence=512),
    "hunyuan.sleep_end": HUNYUAN.but(pause=(0.03, "end")),
    "dense.half": DENSE.but(batch=2),
    "dense.double": DENSE.but(batch=8),
    "dense.recompute": DENSE.but(recompute=True),
    "dense.loader": DENSE.but(loader_s=0.06),
    "qwen3_decode.eager": QWEN3_DECODES,
    "mixtral_decode.eager": MIXTRAL_DECODES,
    "qwen.item": QWEN.but(item="item"),
    "granite.item": GRANITE.but(item="item"),
    "glm.nan": GLM.but(item="nan"),
    "granite.collect_end": GRANITE.but(collect="end"),
    "glm.collect_middle": GLM.but(collect="middle"),
    "llama.collect_start": LLAMA.but(collect="start"),
    "granite.loader": GRANITE.but(loader_s=0.03),
    "phi.loader": PHI.but(loader_s=0.06),
    "lfm.loader": LFM.but(loader_s=0.02),
    "qwen.sleep_start": QWEN.but(pause=(0.025, "start")),
    "phi.sleep_middle": PHI.but(pause=(0.02, "middle")),
    "dots.sleep_end": DOTS.but(pause=(0.06, "end")),
    "llama.sleep_end": LLAMA.but(pause=(0.012, "end")),
    "minimax.sleep_middle": MINIMAX.but(pause=(0.015, "middle")),
    "qwen_loss.plain": QWEN.but(batch=1),
    "flex.loop": FLEX.but(experts=EAGER),
    "flex.recompute": FLEX.but(recompute=True),
    "afmoe.loop": AFMOE.but(experts=EAGER),
    "afmoe.double": AFMOE.but(batch=8),
    "afmoe.loader": AFMOE.but(loader_s=0.04),
    "exaone.loop": EXAONE.but(experts=EAGER),
    "exaone.half": EXAONE.but(batch=1),
    "exaone.recompute": EXAONE.but(recompute=True),
    "solar.loop": SOLAR.but(experts=EAGER),
    "solar.half": SOLAR.but(batch=2),
    "solar.recompute": SOLAR.but(recompute=True),
    "hy.double": HY.but(batch=4),
    "hy.recompute": HY.but(recompute=True),
    "hy.sleep_middle": HY.but(pause=(0.05, "middle")),
    "glm_lite.loop": GLM_LITE.but(experts=EAGER),
    "glm_lite.item": GLM_LITE.but(item="item"),
    "glm_lite.quadruple": GLM_LITE.but(batch=8),
    "mellum.loop": MELLUM.but(experts=EAGER),
    "mellum.recompute": MELLUM.but(recompute=True),
    "mellum.collect_end": MELLUM.but(collect="end"),
    "phi3.fp32": PHI3.but(dtype="float32"),
    "phi3.recompute": PHI3.but(recompute=True),
    "starcoder.half": STARCODER.but(batch=1),
    "starcoder.recompute": STARCODER.but(recompute=True),
    "olmo2.quadruple": OLMO2.but(batch=32),
    "olmo2.loader": OLMO2.but(loader_s=0.04),
    "olmo2.sleep_start": OLMO2.but(pause=(0.03, "start")),
    "solar_decode.eager": SOLAR_DECODES,
    "glm_lite_decode.eager": GLM_LITE_DECODES,
    "mellum_read.eager": MELLUM_READS,
    "laguna.loop": LAGUNA.but(experts=EAGER),
    "laguna.recompute": LAGUNA.but(recompute=True),
    "laguna.item": LAGUNA.but(item="item"),
    "shared.loop": SHARED.but(experts=EAGER),
    "shared.recompute": SHARED.but(recompute=True),
    "shared.double": SHARED.but(batch=8),
    "cohere.loop": COHERE.but(experts=EAGER),
    "cohere.recompute": COHERE.but(recompute=True),
    "cohere.half": COHERE.but(batch=2),
    "mimo.loop": MIMO.but(experts=EAGER),
    "mimo.recompute": MIMO.but(recompute=True),
    "mimo.sleep_middle": MIMO.but(pause=(0.02, "middle")),
    "smol.recompute": SMOL.but(recompute=True),
    "smol.double": SMOL.but(batch=8),
    "smol.loader": SMOL.but(loader_s=0.04),
    "gemma3.recompute": GEMMA3.but(recompute=True),
    "gemma3.fp32": GEMMA3.but(dtype="float32"),
    "gemma3.sleep_end": GEMMA3.but(pause=(0.02, "end")),
    "exaone4.recompute": EXAONE4.but(recompute=True),
    "exaone4.half": EXAONE4.but(batch=2),
    "exaone4.loader": EXAONE4.but(loader_s=0.03),
    "mimo.quadruple": MIMO.but(batch=8),
    "exaone4.collect_end": EXAONE4.but(collect="end"),
    "laguna_decode.eager": LAGUNA_DECODES,
    "shared_decode.eager": SHARED_DECODES,
    "cohere_read.eager": COHERE_READS,
    "zaya.loop": ZAYA.but(experts=EAGER),
    "zaya.recompute": ZAYA.but(recompute=True),
    "zaya.half": ZAYA.but(batch=2),
    "swa.loop": SWA.but(experts=EAGER),
    "swa.quadruple": SWA.but(batch=16),
    "swa.sleep_start": SWA.but(pause=(0.03, "start")),
    "lightning.loop": LIGHTNING.but(experts=EAGER),
    "lightning.recompute": LIGHTNING.but(recompute=True),
    "lightning.loader": LIGHTNING.but(loader_s=0.04),
    "axk.loop": AXK.but(experts=EAGER),
    "axk.recompute": AXK.but(recompute=True),
    "axk.sleep_end": AXK.but(pause=(0.03, "end")),
    "jet.double": JET.but(batch=8),
    "jet.half": JET.but(batch=2),
    "mistral.recompute": MISTRAL.but(recompute=True),
    "mistral.half": MISTRAL.but(batch=1),
    "mistral.collect_end": MISTRAL.but(collect="end"),
    "arcee.fp32": ARCEE.but(dtype="float32"),
    "arcee.double": ARCEE.but(batch=8),
    "olmo3.recompute": OLMO3.but(recompute=True),
    "olmo3.loader": OLMO3.but(loader_s=0.05),
    "helium.double": HELIUM.but(batch=8),
    "helium.sleep_middle": HELIUM.but(pause=(0.015, "middle")),
    "nemotron.half": NEMOTRON.but(batch=2),
    "nemotron.recompute": NEMOTRON.but(recompute=True),
    "plain_granite.quadruple": PLAIN_GRANITE.but(batch=16),
    "plain_granite.recompute": PLAIN_GRANITE.but(recompute=True),
    "seed.fp32": SEED.but(dtype="float32"),
    "apertus.fp32": APERTUS.but(dtype="float32"),
    "stable.fp32": STABLE.but(dtype="float32"),
    "hunyuan_dense.fp32": HUNYUAN_DENSE.but(dtype="float32"),
    "ernie_dense.fp32": ERNIE_DENSE.but(dtype="float32"),
    "ministral.fp32": MINISTRAL.but(dtype="float32"),
    "cohere_dense.fp32": COHERE_DENSE.but(dtype="float32"),
    "neox.fp32": NEOX.but(dtype="float32"),
    "apertus.recompute": APERTUS.but(recompute=True),
    "ministral.recompute": MINISTRAL.but(recompute=True),
    "neox.recompute": NEOX.but(recompute=True),
    "stable.double": STABLE.but(batch=8),
    "cohere_dense.half": COHERE_DENSE.but(batch=1),
    "zaya_decode.eager": ZAYA_DECODES,
    "swa_decode.eager": SWA_DECODES,
    "mistral_decode.eager": MISTRAL_DECODES,
    "lightning_read.eager": LIGHTNING_READS,
    "gemma1.fp32": GEMMA1.but(dtype="float32"),
    "gemma1.plain": GEMMA1.but(optimizer="plain"),
    "olmo1.fp32": OLMO1.but(dtype="float32"),
    "olmo1.lists": OLMO1.but(optimizer="lists"),
    "phi2.fp32": PHI2.but(dtype="float32"),
    "phi2.plain": PHI2.but(optimizer="plain"),
    "glm_dense.fp32": GLM_DENSE.but(dtype="float32"),
    "glm_dense.lists": GLM_DENSE.but(optimizer="lists"),
    "dsv3.loop": DSV3.but(experts=EAGER),
    "dsv3.fp32": DSV3.but(dtype="float32"),
    "dsv3.plain": DSV3.but(optimizer="plain"),
    "llama4.fp32": LLAMA4.but(dtype="float32"),
    "llama4.recompute": LLAMA4.but(recompute=True),
    "llama4.lists": LLAMA4.but(optimizer="lists"),
    "swa.fp32": SWA.but(dtype="float32"),
    "shared.fp32": SHARED.but(dtype="float32"),
    "cohere.fp32": COHERE.but(dtype="float32"),
    "laguna.fp32": LAGUNA.but(dtype="float32"),
    "mimo.fp32": MIMO.but(dtype="float32"),
    "axk.fp32": AXK.but(dtype="float32"),
    "arcee.lists": ARCEE.but(optimizer="lists"),
    "axk.plain": AXK.but(optimizer="plain"),
    "olmo3.plain": OLMO3.but(optimizer="plain"),
    "mistral.lists": MISTRAL.but(optimizer="lists"),
}


def model_of(run: Run, device: str) -> Any:
    """The model with random weights."""
    torch.manual_seed(0)
    sizes = dict(SIZES[run.family])
    if device == "cpu":
        config = transformers.AutoConfig.for_model(run.family)
        sizes |= {key: value for key, value in TINY.items() if hasattr(config, key)}
    config = transformers.AutoConfig.for_model(run.family, **sizes, pad_token_id=0)
    more = {"experts_implementation": run.experts} if run.experts else {}
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, run.dtype), **more)
    return model.to(device)


class Trainer:
    """Steps of training."""

    def __init__(self, run: Run, device: str) -> None:
        self.run, self.device = run, device
        self.model = model_of(run, device).train()
        if run.recompute:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.vocabulary = int(self.model.config.vocab_size)
        chosen = {"fused": device == "cuda" and run.optimizer == "fused", "foreach": run.optimizer == "lists"}
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-5, capturable=run.capturable, **chosen
        )
        data = pack_pairs.Tokens(run, self.vocabulary)
        self.batches = iter(DataLoader(data, batch_size=None, shuffle=False))
        if run.item:
            for layer in self.model.model.layers:
                layer.register_forward_hook(self.read)
        self.heap: Any = None
        if run.collect:
            gc.collect()
            gc.freeze()
            self.heap = [[number] for number in range(400_000)]
        self.compiled = torch.compile(self.cross_entropy) if run.loss else None
        self.graph: Any = None
        if run.graph:
            self.capture()

    def read(self, module: Any, inputs: Any, output: Any) -> None:
        """The host looks at what a layer gives."""
        rows = output[0] if isinstance(output, tuple) else output
        if self.run.item == "item":
            rows[0, 0, 0].item()
        elif torch.isnan(rows).any():
            raise FloatingPointError

    @staticmethod
    def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        rows = logits[:, :-1].float().flatten(0, 1)
        return torch.nn.functional.cross_entropy(rows, labels[:, 1:].flatten())

    def place(self, where: str) -> None:
        """What happens at a place of a step."""
        seconds, place = self.run.pause
        if place == where:
            time.sleep(seconds)
        if self.run.collect == where:
            gc.collect()

    def compute(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.compiled:
            loss: torch.Tensor = self.compiled(self.model(input_ids=tokens).logits, tokens)
        else:
            loss = self.model(input_ids=tokens, labels=tokens).loss
        self.place("middle")
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def capture(self) -> None:
        self.static = next(self.batches).to(self.device)
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.compute(self.static)
        torch.cuda.current_stream().wait_stream(beside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.static_loss = self.compute(self.static)

    def step(self) -> None:
        self.place("start")
        tokens = next(self.batches)
        if self.graph:
            self.static.copy_(tokens, non_blocking=True)
            self.graph.replay()
        else:
            loss = self.compute(tokens.to(self.device, non_blocking=True))
            if self.run.log:
                loss.item()
        self.place("end")


class Reader:
    """Forward passes: of one token after those of a cache, or of a prompt."""

    def __init__(self, run: Run, device: str) -> None:
        self.run = run
        self.model = model_of(run, device).eval()
        self.cache: Any = None
        vocabulary = int(self.model.config.vocab_size)
        self.tokens = torch.randint(vocabulary, (run.batch, run.sequence), device=device)
        if run.kind == "decode":
            self.cache = transformers.StaticCache(config=self.model.config, max_cache_len=512)
            prompt = torch.randint(vocabulary, (run.batch, 64), device=device)
            self.model(input_ids=prompt, past_key_values=self.cache, use_cache=True)
        self.graph: Any = None
        if run.graph:
            self.capture()

    def compute(self) -> None:
        if self.cache:
            given = self.model(input_ids=self.tokens, past_key_values=self.cache, use_cache=True)
        else:
            given = self.model(input_ids=self.tokens, use_cache=False)
        self.tokens.copy_(given.logits.argmax(-1))

    def capture(self) -> None:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(3):
                self.compute()
        torch.cuda.current_stream().wait_stream(beside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.compute()

    def step(self) -> None:
        if self.graph:
            self.graph.replay()
        else:
            self.compute()


def run_of(name: str) -> Run:
    """The program of that name; NAME.CHANGE.after is the one that NAME.CHANGE ends as."""
    if name.endswith(".after"):
        name = name.partition(".")[0]
    return {**AFTER, **BEFORE_IT}[name]


def record(names: list[str], out: Path, device: str, idle: Any) -> None:
    """Time and record runs, whose timed steps take turns; `idle` is set when they need the GPU no more."""
    runs = [run_of(name) for name in names]
    if device == "cpu":
        runs = [run.but(batch=min(2, run.batch), sequence=min(run.sequence, 32), graph=False) for run in runs]
        runs = [run.but(loss="", capturable=False) for run in runs]
    sync = torch.cuda.synchronize if device == "cuda" else lambda: None
    with torch.set_grad_enabled(runs[0].kind == "train"):
        programs = [Trainer(run, device) if run.kind == "train" else Reader(run, device) for run in runs]
        for program in programs:
            for _ in range(WARM):
                program.step()
        blocks: list[list[float]] = [[] for _ in runs]
        for _ in range(BLOCKS):
            for program, times in zip(programs, blocks, strict=True):
                program.step()
                sync()
                began = time.perf_counter()
                for _ in range(BLOCK):
                    program.step()
                sync()
                times.append((time.perf_counter() - began) / BLOCK * 1e3)
        for name, program in zip(names, programs, strict=True):
            path, last = out / name / "rank0.json.gz", name == names[-1]
            pack_pairs.profile(program.step, path, device, BEFORE, RECORDED, idle if last else None)
    for name, run, times in zip(names, runs, blocks, strict=True):
        told = {
            "run": dataclasses.asdict(run),
            "sizes": SIZES[run.family],
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "unprofiled_ms": times,
        }
        folder = out / name
        pack_pairs.squeeze(folder)
        (folder / "times.json").write_text(json.dumps(told))
        shown = f" {sum(times) / len(times):.2f} ms a step," if name in BEFORE_IT else ""
        size = sum(path.stat().st_size for path in folder.glob("rank*"))
        print(f"{name}:{shown} {size / 1e3:.0f} kB", flush=True)


def child(
    names: list[str], out: Path, rank: int, device: str, port: int, idle: Any, cores: list[int]
) -> None:
    """A process of one run or two."""
    if device == "cuda":
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(min(4, len(cores)))
    else:
        torch.set_num_threads(1)
    try:
        record(names, out, device, idle)
    except Exception:
        print(f"{', '.join(names)}: FAILED\n{traceback.format_exc()[-1500:]}", flush=True)
    finally:
        idle.set()


def main() -> None:
    options = pack_pairs.options(__doc__)
    if options.together:
        before = [name for name in BEFORE_IT if re.search(options.only, name)]
        groups = [[name, f"{name}.after"] for name in before]
    else:
        groups = [[name] for name in pack_pairs.runs(BEFORE_IT, options.only)]
    pack_pairs.take_turns(groups, 1, child, options, limit_s=lambda names: 60)
    pack_pairs.pack(options.out, [*AFTER, *(names[-1] for names in groups if len(names) > 1)])


if __name__ == "__main__":
    main()
