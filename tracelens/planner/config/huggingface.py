"""Hugging Face config.json: the field names of transformers' model classes.

Read are the architectures in `_ARCHITECTURES`; defaults of fields are those of transformers' configuration
classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracelens.errors import UnknownName
from tracelens.planner.config.foreign import NO_EXPERTS, Fields
from tracelens.planner.config.model import Model
from tracelens.planner.config.model_file import make_model

Values = dict[str, Any]


def read_huggingface(where: str, content: Mapping[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """The model of a config.json, and what it leaves out.

    Args:
        where: the file, for messages.
        content: of the file.

    Raises:
        TracelensError: an architecture that is not known, a field is missing, or `Model` cannot say it.
    """
    file = Fields(where, content)
    kind = file.word("model_type", "")
    if kind not in _ARCHITECTURES:
        if not kind:
            raise file.refuse("'model_type' is missing; is it a model's config.json?")
        raise file.refuse(
            f"{UnknownName('model_type', kind, _ARCHITECTURES)}; describe the model in a .toml instead"
        )
    values = _ARCHITECTURES[kind](file)
    model = make_model(where, values)
    _common_notes(file, model)
    return model, tuple(file.notes)


def _sizes(file: Fields) -> Values:
    return {
        "layers": file.whole("num_hidden_layers"),
        "hidden": file.whole("hidden_size"),
        "heads": file.whole("num_attention_heads"),
        "vocab": file.whole("vocab_size"),
    }


def _grouped(file: Fields) -> Values:
    heads = file.whole("num_attention_heads")
    groups = file.whole("num_key_value_heads", heads)
    width = file.whole("head_dim", file.whole("hidden_size") // heads)
    return {"attention": "gqa", "kv_groups": groups, "head_dim": width}


def _deepseek(file: Fields) -> Values:
    layers = file.whole("num_hidden_layers")
    width = file.whole("moe_intermediate_size")
    every, first = file.whole("moe_layer_freq", 1), file.whole("first_k_dense_replace", 0)
    grouped = file.word("topk_method", "greedy") != "greedy"
    if (mtp := file.whole("num_nextn_predict_layers", 0)) > 0:
        file.notes.append(f"not counted: {mtp} layers of multi-token prediction")
    if file.word("topk_method", "") == "noaux_tc":
        file.left_out("biases of the experts' choice", (layers - first) * file.whole("n_routed_experts"))
    return _sizes(file) | {
        "dense_layers": file.leading_dense(
            [layer >= first and layer % every == 0 for layer in range(layers)]
        ),
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
        "expert_groups": file.whole("n_group", 1) if grouped else 1,
        "top_groups": file.whole("topk_group", 1) if grouped else 1,
        "aux_loss": file.number("aux_loss_alpha", 0.0),
    }


def _qwen_moe(file: Fields) -> Values:
    layers, every = file.whole("num_hidden_layers"), file.whole("decoder_sparse_step", 1)
    dense = set(file.numbers("mlp_only_layers"))
    is_sparse = [layer not in dense and (layer + 1) % every == 0 for layer in range(layers)]
    return (
        _sizes(file)
        | _grouped(file)
        | {
            "dense_layers": file.leading_dense(is_sparse),
            "dense_ffn": file.whole("intermediate_size", 0),
            "experts_count": file.whole("num_experts"),
            "top_k": file.whole("num_experts_per_tok"),
            "expert_ffn": file.whole("moe_intermediate_size"),
            "aux_loss": 0.0,
        }
    )


def _qwen2_moe(file: Fields) -> Values:
    values = _qwen_moe(file) | {"shared_ffn": file.whole("shared_expert_intermediate_size", 0)}
    _note_biases(file, values, file.is_on("qkv_bias", default=True))
    if values["shared_ffn"]:
        sparse = values["layers"] - values["dense_layers"]
        file.left_out("gates of the shared experts", sparse * values["hidden"])
    return values


def _qwen3_moe(file: Fields) -> Values:
    values = _qwen_moe(file)
    _note_head_norms(file, values)
    return values


def _mixtral(file: Fields) -> Values:
    return (
        _sizes(file)
        | _grouped(file)
        | {
            "dense_layers": 0,
            "experts_count": file.whole("num_local_experts"),
            "top_k": file.whole("num_experts_per_tok"),
            "expert_ffn": file.whole("intermediate_size"),
            "aux_loss": 0.0,
        }
    )


def _dense(file: Fields) -> Values:
    sizes = _sizes(file)
    return (
        sizes
        | _grouped(file)
        | NO_EXPERTS
        | {"dense_layers": sizes["layers"], "dense_ffn": file.whole("intermediate_size"), "aux_loss": 0.0}
    )


def _qwen2(file: Fields) -> Values:
    values = _dense(file)
    _note_biases(file, values, True)
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


def _note_biases(file: Fields, values: Values, are_there: bool) -> None:
    """Note the biases of queries, keys and values."""
    if are_there:
        width = (values["heads"] + 2 * values["kv_groups"]) * values["head_dim"]
        file.left_out("biases of queries, keys and values", values["layers"] * width)


def _note_head_norms(file: Fields, values: Values) -> None:
    """Note the norms of queries and keys."""
    file.left_out("norms of queries and keys", values["layers"] * 2 * values["head_dim"])


def _common_notes(file: Fields, model: Model) -> None:
    """Note what any architecture may have."""
    if file.is_on("attention_bias"):
        file.notes.append("not counted: biases of the attention's linear layers (attention_bias)")
    if file.is_on("mlp_bias"):
        file.notes.append("not counted: biases of the MLP's linear layers (mlp_bias)")
    if file.is_on("tie_word_embeddings"):
        file.notes.append(
            f"counted twice: embedding and head are one matrix in the file (tie_word_embeddings), "
            f"{model.vocab * model.hidden:,} parameters"
        )
    if file.values.get("sliding_window") and file.is_on("use_sliding_window", default=True):
        file.notes.append(
            f"attention is taken as causal over the whole sequence, not over {file.values['sliding_window']} "
            "positions (sliding_window)"
        )
    if (coefficient := file.number("router_aux_loss_coef", 0.0)) and model.moe_layers:
        file.notes.append(
            f"left out: a balance loss over the batch (router_aux_loss_coef = {coefficient:g}); aux_loss is "
            "one over each sequence"
        )
