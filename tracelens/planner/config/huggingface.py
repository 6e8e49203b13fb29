"""Reads a Hugging Face config.json of one of `_ARCHITECTURES`; defaults are those of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.config.foreign import NO_EXPERTS, Fields, ModelFile
from tracelens.planner.config.model import Model
from tracelens.planner.config.model_file import make_model, read_text

Values = dict[str, Any]


def read_huggingface(path: Path) -> ModelFile:
    """The model of a config.json.

    Raises:
        TracelensError: not JSON, an unknown architecture, a missing field, or not expressible as `Model`.
    """
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TracelensError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TracelensError(f"{path}: not a model's config.json: the outermost value is not an object")
    file = Fields(str(path), content)
    kind = file.word("model_type", "")
    if not kind:
        raise file.refuse("'model_type' is missing; is it a model's config.json?")
    if kind not in _ARCHITECTURES:
        unknown = UnknownName("model_type", kind, _ARCHITECTURES)
        raise file.refuse(f"{unknown}; describe the model in a .toml instead")
    model = make_model(file.path, _ARCHITECTURES[kind](file))
    _common_notes(file, model)
    return ModelFile(model, tuple(file.notes))


def _sizes(file: Fields) -> Values:
    return {
        "layers": file.whole("num_hidden_layers"),
        "hidden": file.whole("hidden_size"),
        "heads": file.whole("num_attention_heads"),
        "vocab": file.whole("vocab_size"),
    }


def _with_grouped_attention(file: Fields) -> Values:
    sizes = _sizes(file)
    groups = file.whole("num_key_value_heads", sizes["heads"])
    width = file.whole("head_dim", sizes["hidden"] // sizes["heads"])
    return sizes | {"attention": "gqa", "kv_groups": groups, "head_dim": width}


def _deepseek(file: Fields) -> Values:
    layers = file.whole("num_hidden_layers")
    width = file.whole("moe_intermediate_size")
    every, first = file.whole("moe_layer_freq", 1), file.whole("first_k_dense_replace", 0)
    is_grouped = file.word("topk_method", "greedy") != "greedy"
    if (mtp := file.whole("num_nextn_predict_layers", 0)) > 0:
        file.notes.append(f"not counted: {mtp} multi-token prediction layers")
    if file.word("topk_method", "") == "noaux_tc":
        file.left_out("expert biases of the router", (layers - first) * file.whole("n_routed_experts"))
    return _sizes(file) | {
        "dense_layers": file.leading_dense([n >= first and n % every == 0 for n in range(layers)]),
        "dense_ffn": file.whole("intermediate_size"),
        "attention": "mla",
        "q_lora": file.whole("q_lora_rank", 0),
        "kv_lora": file.whole("kv_lora_rank"),
        "qk_dim": file.whole("qk_nope_head_dim"),
        "rope_dim": file.whole("qk_rope_head_dim"),
        "v_dim": file.whole("v_head_dim"),
        "experts_count": file.whole("n_routed_experts"),
        "top_k": file.whole("num_experts_per_tok"),
        "expert_ffn": width,
        "shared_ffn": width * file.whole("n_shared_experts", 0),
        "score": file.word("scoring_func", "softmax"),
        "expert_groups": file.whole("n_group", 1) if is_grouped else 1,
        "top_groups": file.whole("topk_group", 1) if is_grouped else 1,
        "aux_loss": file.number("aux_loss_alpha", 0.0),
    }


def _qwen_moe(file: Fields) -> Values:
    layers, every = file.whole("num_hidden_layers"), file.whole("decoder_sparse_step", 1)
    dense = set(file.numbers("mlp_only_layers"))
    is_sparse = [layer not in dense and (layer + 1) % every == 0 for layer in range(layers)]
    return _with_grouped_attention(file) | {
        "dense_layers": file.leading_dense(is_sparse),
        "dense_ffn": file.whole("intermediate_size", 0),
        "experts_count": file.whole("num_experts"),
        "top_k": file.whole("num_experts_per_tok"),
        "expert_ffn": file.whole("moe_intermediate_size"),
        "aux_loss": 0.0,
    }


def _qwen2_moe(file: Fields) -> Values:
    values = _qwen_moe(file) | {"shared_ffn": file.whole("shared_expert_intermediate_size", 0)}
    if file.is_on("qkv_bias", default=True):
        _note_biases(file, values)
    if values["shared_ffn"]:
        sparse = values["layers"] - values["dense_layers"]
        file.left_out("gates of the shared experts", sparse * values["hidden"])
    return values


def _qwen3_moe(file: Fields) -> Values:
    values = _qwen_moe(file)
    _note_head_norms(file, values)
    return values


def _mixtral(file: Fields) -> Values:
    return _with_grouped_attention(file) | {
        "dense_layers": 0,
        "experts_count": file.whole("num_local_experts"),
        "top_k": file.whole("num_experts_per_tok"),
        "expert_ffn": file.whole("intermediate_size"),
        "aux_loss": 0.0,
    }


def _dense(file: Fields) -> Values:
    sizes = _with_grouped_attention(file) | NO_EXPERTS
    return sizes | {"dense_layers": sizes["layers"], "dense_ffn": file.whole("intermediate_size")}


def _qwen2(file: Fields) -> Values:
    values = _dense(file)
    _note_biases(file, values)
    return values


def _qwen3(file: Fields) -> Values:
    values = _dense(file)
    _note_head_norms(file, values)
    return values


_ARCHITECTURES: dict[str, Callable[[Fields], Values]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "llama": _dense,
    "mistral": _dense,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}


def _note_biases(file: Fields, values: Values) -> None:
    width = (values["heads"] + 2 * values["kv_groups"]) * values["head_dim"]
    file.left_out("biases of queries, keys and values", values["layers"] * width)


def _note_head_norms(file: Fields, values: Values) -> None:
    file.left_out("norms of queries and keys", values["layers"] * 2 * values["head_dim"])


def _common_notes(file: Fields, model: Model) -> None:
    if file.is_on("attention_bias"):
        file.notes.append("not counted: biases of the attention's linear layers (attention_bias)")
    if file.is_on("mlp_bias"):
        file.notes.append("not counted: biases of the MLP's linear layers (mlp_bias)")
    if file.is_on("tie_word_embeddings"):
        file.notes.append(
            f"counted twice: the file ties embedding and head (tie_word_embeddings), "
            f"{model.vocab * model.hidden:,} parameters"
        )
    if file.values.get("sliding_window") and file.is_on("use_sliding_window", default=True):
        file.notes.append(
            f"attention counts as causal over the whole sequence, not over a window of "
            f"{file.values['sliding_window']} positions (sliding_window)"
        )
    if (coefficient := file.number("router_aux_loss_coef", 0.0)) and model.moe_layers:
        file.notes.append(
            f"left out: the batch-wise balance loss (router_aux_loss_coef = {coefficient:g}); aux_loss is "
            "sequence-wise"
        )
