"""Reads Megatron and Primus YAML: arguments of Megatron-LM, with its defaults."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from tracelens.planner.config.foreign import NO_EXPERTS, Fields, ModelFile
from tracelens.planner.config.model import Model
from tracelens.planner.config.model_file import make_model
from tracelens.planner.config.yaml_files import read_yaml

# Tokenizer to `vocab_size` of the published config, for files that name only the tokenizer.
VOCABULARIES = {
    "deepseek-ai/DeepSeek-V2-Lite": 102400,
    "deepseek-ai/DeepSeek-V2": 102400,
    "deepseek-ai/DeepSeek-V3": 129280,
    "mistralai/Mixtral-8x7B-v0.1": 32000,
    "mistralai/Mixtral-8x22B-v0.1": 32768,
    "Qwen/Qwen3-30B-A3B": 151936,
    "Qwen/Qwen3-235B-A22B": 151936,
}

# Argument to field of Layout or Training.
_SETTINGS = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "micro_batch_size": "micro_batch",
    "seq_length": "seq",
}


def read_megatron(path: Path) -> ModelFile:
    """The model, layout and batch of a file.

    Raises:
        TracelensError: unreadable, an argument is missing, or not expressible as `Model`.
        MissingExtra: PyYAML is not installed.
    """
    file = Fields(str(path), read_yaml(path))
    if not file.is_on("swiglu", default=False):
        raise file.refuse("only gated MLPs are supported: swiglu must be true")
    sizes = {
        "layers": file.whole("num_layers"),
        "hidden": file.whole("hidden_size"),
        "heads": file.whole("num_attention_heads"),
        "vocab": _vocabulary(file),
    }
    values = sizes | _attention(file) | _experts(file, sizes["layers"])
    model = make_model(str(path), values)
    _notes(file, model)
    return ModelFile(model, tuple(file.notes), _settings(file, model), file.whole("global_batch_size", 0))


def _vocabulary(file: Fields) -> int:
    """Rows of the embedding, padded as Megatron does."""
    if padded := file.whole("padded_vocab_size", 0):
        return padded
    size = file.whole("vocab_size", 0)
    if not size:
        name = file.word("tokenizer_model", "")
        if name not in VOCABULARIES:
            raise file.refuse(
                f"vocab_size is missing, and the vocabulary of the tokenizer {name or '(none)'} is unknown; "
                "add vocab_size"
            )
        file.notes.append(f"vocab_size = {VOCABULARIES[name]} from the config.json of {name}")
        return VOCABULARIES[name]
    step = file.whole("make_vocab_size_divisible_by", 128) * file.whole("tensor_model_parallel_size", 1)
    return -(-size // step) * step


def _attention(file: Fields) -> dict[str, Any]:
    heads, hidden = file.whole("num_attention_heads"), file.whole("hidden_size")
    if file.is_on("multi_latent_attention"):
        return {
            "attention": "mla",
            "q_lora": file.whole("q_lora_rank", 0),
            "kv_lora": file.whole("kv_lora_rank"),
            "qk_dim": file.whole("qk_head_dim", 128),
            "rope_dim": file.whole("qk_pos_emb_head_dim", 64),
            "v_dim": file.whole("v_head_dim", 128),
        }
    width = file.whole("kv_channels", hidden // heads)
    groups = file.whole("num_query_groups", heads) if file.is_on("group_query_attention") else heads
    if file.is_on("qk_layernorm"):
        file.left_out("norms of queries and keys", file.whole("num_layers") * 2 * width)
    return {"attention": "gqa", "kv_groups": groups, "head_dim": width}


def _experts(file: Fields, layers: int) -> dict[str, Any]:
    # Megatron's default for a gated MLP: 2/3 of 4 x hidden, rounded down to a multiple of 64.
    dense_ffn = file.whole("ffn_hidden_size", file.whole("hidden_size") * 4 * 2 // 3 // 64 * 64)
    if not file.whole("num_experts", 0):
        return NO_EXPERTS | {"dense_layers": layers, "dense_ffn": dense_ffn}
    balance = file.word("moe_router_load_balancing_type", "aux_loss")
    coefficient = file.number("moe_aux_loss_coeff", 0.0)
    if coefficient and balance != "seq_aux_loss":
        file.notes.append(
            f"left out: the balance loss (moe_router_load_balancing_type = {balance}); aux_loss is "
            "sequence-wise"
        )
    return {
        "dense_layers": file.leading_dense(_pattern(file, layers)),
        "dense_ffn": dense_ffn,
        "experts_count": file.whole("num_experts"),
        "top_k": file.whole("moe_router_topk", 2),
        "expert_ffn": file.whole("moe_ffn_hidden_size", dense_ffn),
        "shared_ffn": file.whole("moe_shared_expert_intermediate_size", 0),
        "score": file.word("moe_router_score_function", "softmax"),
        "expert_groups": file.whole("moe_router_num_groups", 1),
        "top_groups": file.whole("moe_router_group_topk", 1),
        "aux_loss": coefficient if balance == "seq_aux_loss" else 0.0,
    }


def _pattern(file: Fields, layers: int) -> list[bool]:
    """Which layers have experts: `moe_layer_freq` is a number, a list, or an expression for a list."""
    value = file.values.get("moe_layer_freq", 1)
    if isinstance(value, str):
        try:
            value = _list(ast.parse(value.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError):
            raise file.refuse(
                f"moe_layer_freq must be a number or a list such as ([0]*1+[1]*26), not {value!r}"
            ) from None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return [layer % value == 0 for layer in range(layers)]
    if not isinstance(value, list) or len(value) != layers or not set(value) <= {0, 1}:
        raise file.refuse(f"moe_layer_freq must be 0 or 1 for each of {layers} layers, not {value!r}")
    return [bool(flag) for flag in value]


def _list(node: ast.expr) -> Any:
    """The value of an expression of whole numbers, lists, + and *; raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) <= 10_000:
        return node.value
    if isinstance(node, ast.List):
        return [_list(element) for element in node.elts]
    if isinstance(node, ast.BinOp):
        left, right = _list(node.left), _list(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        if isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int):
            if len(left) * right > 10_000:
                raise ValueError("too long")
            return left * right
    raise ValueError("not a list")


def _settings(file: Fields, model: Model) -> dict[str, int]:
    settings = {
        field: file.whole(name) for name, field in _SETTINGS.items() if file.values.get(name) is not None
    }
    vpp = file.whole("num_virtual_stages_per_pipeline_rank", 0)
    if layers_per_chunk := file.whole("num_layers_per_virtual_pipeline_stage", 0):
        pp = settings.get("pp", 1)
        if model.layers % (pp * layers_per_chunk):
            raise file.refuse(
                f"num_layers_per_virtual_pipeline_stage ({layers_per_chunk}) must divide the {model.layers} "
                f"layers of {pp} stages"
            )
        vpp = model.layers // (pp * layers_per_chunk)
    return settings | ({"vpp": vpp} if vpp else {})


def _notes(file: Fields, model: Model) -> None:
    if mtp := file.whole("mtp_num_layers", 0):
        file.notes.append(f"not counted: {mtp} multi-token prediction layers (mtp_num_layers)")
    if file.is_on("moe_router_enable_expert_bias") and model.moe_layers:
        file.left_out("expert biases of the router", model.moe_layers * model.experts_count)
    if not file.is_on("untie_embeddings_and_output_weights"):
        file.notes.append(
            "counted twice: the file ties embedding and head (untie_embeddings_and_output_weights is not "
            f"true), {model.vocab * model.hidden:,} parameters"
        )
    if file.word("normalization", "LayerNorm") != "RMSNorm":
        file.notes.append("norms count as RMSNorm, without biases (normalization)")
    for name in ("add_bias_linear", "add_qkv_bias"):
        if file.is_on(name):
            file.notes.append(f"not counted: biases of linear layers ({name})")
    for name in ("pipeline_model_parallel_layout", "recompute_granularity"):
        if file.values.get(name) is not None:
            file.notes.append(f"left out: {name} = {str(file.values[name])[:60]}; set it as an option")
    tp = file.whole("tensor_model_parallel_size", 1)
    if tp > 1 and file.whole("expert_tensor_parallel_size", tp) > 1 and model.moe_layers:
        file.notes.append(
            "experts count as not sharded by tensor parallelism (expert_tensor_parallel_size = 1)"
        )
