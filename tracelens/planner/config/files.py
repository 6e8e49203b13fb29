"""Models by name, or from TOML, a Hugging Face config.json, or a Megatron or Primus YAML.

    read_file("deepseek_v3").model                  # bundled
    read_file("mine.toml").model                    # see models/*.toml
    read_file("Qwen3-30B-A3B/config.json")          # Hugging Face
    read_file("deepseek_v2_lite.yaml")              # Megatron, Primus; needs the extra `yaml`
    read_config("experiment.yaml", ["ranks=64"])    # with the file's layout and batch

A setting that `Model` cannot express is an error if it changes the model; others are listed in `notes`.
Defaults are those of transformers (for `_ARCHITECTURES`), and those of Megatron-LM's arguments.

A Primus model file extends others (`extends`; in older files `bases` and `includes`) and refers to
environment variables as `${NAME:default}`; an experiment names a model file and overrides parts of it.
Megatron files have sections (`language_model`, `model_parallel`).
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from tracelens.bundled import bundled_toml
from tracelens.config_files import read_text
from tracelens.errors import MissingExtra, TracelensError, UnknownName
from tracelens.limits import limits
from tracelens.planner.config.config import (
    GEMM_ALIGNMENT,
    MODELS,
    Config,
    Model,
    make_model,
    override,
    preset,
    read_model,
)

KINDS = (".toml", ".json", ".yaml", ".yml")

Values = dict[str, Any]


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
    attention = _sizes(file) | {
        "attention": "mla",
        "q_lora": file.whole("q_lora_rank", 0),
        "kv_lora": file.whole("kv_lora_rank"),
        "qk_dim": file.whole("qk_nope_head_dim"),
        "rope_dim": file.whole("qk_rope_head_dim"),
        "v_dim": file.whole("v_head_dim"),
    }
    if file.word("model_type", "") == "deepseek_v32":
        # Queries from their latent, one key with the bias and weight of its norm, weights of the heads.
        heads, width = file.whole("index_n_heads"), file.whole("index_head_dim")
        indexer = attention["q_lora"] * heads * width + attention["hidden"] * (width + heads) + 2 * width
        file.left_out("indexers of sparse attention", attention["layers"] * indexer)
    return _with_shared_experts(file, attention)


def _glm(file: Fields) -> Values:
    """Experts as in DeepSeek-V3, attention of grouped queries."""
    values = _with_grouped_attention(file)
    kind = file.word("model_type", "")
    if kind == "dots1" or file.is_on("use_qk_norm"):
        _note_head_norms(file, values)
    if kind == "glm4_moe" and file.is_on("attention_bias"):
        _note_biases(file, values)
    if kind == "glm4_moe":
        file.values = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"} | dict(file.values)
    return _with_shared_experts(file, values)


def _with_shared_experts(file: Fields, values: Values) -> Values:
    layers = file.whole("num_hidden_layers")
    width = file.whole("moe_intermediate_size")
    every, first = file.whole("moe_layer_freq", 1), file.whole("first_k_dense_replace", 0)
    is_grouped = file.word("topk_method", "greedy") != "greedy"
    if (mtp := file.whole("num_nextn_predict_layers", 0)) > 0:
        file.notes.append(f"not counted: {mtp} multi-token prediction layers")
    if file.word("topk_method", "") == "noaux_tc":
        file.left_out("expert biases of the router", (layers - first) * file.whole("n_routed_experts"))
    return values | {
        "dense_layers": file.leading_dense([n >= first and n % every == 0 for n in range(layers)]),
        "dense_ffn": file.whole("intermediate_size"),
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
    values = _with_grouped_attention(file) | {
        "dense_layers": file.leading_dense(is_sparse),
        "dense_ffn": file.whole("intermediate_size", 0),
        "experts_count": file.whole("num_experts"),
        "top_k": file.whole("num_experts_per_tok"),
        "expert_ffn": file.whole("moe_intermediate_size"),
        "aux_loss": 0.0,
    }
    if file.word("model_type", "") == "qwen3_moe":
        _note_head_norms(file, values)
        return values
    values["shared_ffn"] = file.whole("shared_expert_intermediate_size", 0)
    if file.is_on("qkv_bias", default=True):
        _note_biases(file, values)
    if values["shared_ffn"]:
        sparse = values["layers"] - values["dense_layers"]
        file.left_out("gates of the shared experts", sparse * values["hidden"])
    return values


def _mixtral(file: Fields) -> Values:
    """Experts in all layers; other architectures add norms, biases and scores to those of Mixtral."""
    kind, values = file.word("model_type", ""), _with_grouped_attention(file)
    layers, hidden, width = values["layers"], values["hidden"], values["heads"] * values["head_dim"]
    experts = file.whole("num_experts" if kind == "olmoe" else "num_local_experts")
    values |= {
        "dense_layers": 0,
        "experts_count": experts,
        "top_k": file.whole("num_experts_per_tok"),
        "expert_ffn": file.whole("intermediate_size"),
        "aux_loss": 0.0,
    }
    if kind == "olmoe" or (kind == "minimax_m2" and file.is_on("use_qk_norm")):
        norms = width + values["kv_groups"] * values["head_dim"]
        file.left_out("norms of all queries and keys", layers * norms)
    if kind == "minimax_m2":
        values["score"] = file.word("scoring_func", "sigmoid")
        if file.is_on("use_routing_bias"):
            file.left_out("expert biases of the router", layers * experts)
    if kind == "gpt_oss":
        _note_biases(file, values)
        file.left_out("sinks of the heads, biases of the output", layers * (values["heads"] + hidden))
        biases = 1 + 2 * values["expert_ffn"] + hidden
        file.left_out("biases of router and experts", layers * experts * biases)
    if kind == "phimoe":
        _note_biases(file, values)
        # LayerNorm, and biases of the output and the head.
        file.left_out("other biases", (3 * layers + 1) * hidden + values["vocab"])
    return values


def _dense(file: Fields) -> Values:
    values = _with_grouped_attention(file) | NO_EXPERTS
    values |= {"dense_layers": values["layers"], "dense_ffn": file.whole("intermediate_size")}
    kind = file.word("model_type", "")
    if kind == "qwen2":
        _note_biases(file, values)
    if kind == "qwen3":
        _note_head_norms(file, values)
    return values


def _note_biases(file: Fields, values: Values) -> None:
    width = (values["heads"] + 2 * values["kv_groups"]) * values["head_dim"]
    file.left_out("biases of queries, keys and values", values["layers"] * width)


def _note_head_norms(file: Fields, values: Values) -> None:
    file.left_out("norms of queries and keys", values["layers"] * 2 * values["head_dim"])


NO_EXPERTS = {"experts_count": 1, "top_k": 1, "expert_ffn": GEMM_ALIGNMENT, "aux_loss": 0.0}
"""Fields of a dense model: no layer has experts, so these sizes do not matter."""
LARGEST = 10_000_000
"""Upper limit of any whole number in a file."""


@dataclass
class Fields:
    """The fields of a file, and the notes made while reading them.

    Every method raises TracelensError, which names the file, for a value of the wrong type.
    """

    path: str
    values: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number of 1 to LARGEST, or 0 if that is the default; without a default it is required."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise TracelensError(f"{self.path}: {name!r} is missing; add it")
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TracelensError(f"{self.path}: {name} must be a whole number, not {value!r}")
        if not (least := 0 if default == 0 else 1) <= value <= LARGEST:
            raise TracelensError(f"{self.path}: {name} must be {least} to {LARGEST:,}, not {value:,}")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """Whole numbers in a list; empty if missing."""
        value = self.values.get(name) or []
        if not isinstance(value, list) or not all(isinstance(number, int) for number in value):
            raise TracelensError(f"{self.path}: {name} must be a list of whole numbers, not {value!r}")
        return tuple(value)

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise TracelensError(f"{self.path}: {name} must be a number, not {value!r}")
        return float(value)

    def is_on(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise TracelensError(f"{self.path}: {name} must be true or false, not {value!r}")
        return value

    def word(self, name: str, default: str) -> str:
        value = self.values.get(name)
        return default if value is None else str(value)

    def left_out(self, subject: str, parameters: int) -> None:
        """Note parameters of the file that the model does not have."""
        self.notes.append(f"not counted: {subject}, {parameters:,} parameters")

    def leading_dense(self, sparse: Sequence[bool]) -> int:
        """Number of dense layers before the first MoE layer; `sparse` tells which layers have experts."""
        dense = sparse.index(True) if True in sparse else len(sparse)
        if not all(sparse[dense:]):
            later = dense + sparse[dense:].index(False)
            raise TracelensError(
                f"{self.path}: layer {later} is dense but layer {dense} has experts; dense layers are "
                "supported only before the first MoE layer"
            )
        return dense


_ARCHITECTURES: dict[str, Callable[[Fields], Values]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _deepseek,
    "dots1": _glm,
    "glm4_moe": _glm,
    "gpt_oss": _mixtral,
    "kimi_k2": _deepseek,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "minimax_m2": _mixtral,
    "mixtral": _mixtral,
    "olmoe": _mixtral,
    "phimoe": _mixtral,
    "llama": _dense,
    "mistral": _dense,
    "qwen2": _dense,
    "qwen3": _dense,
}

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


@dataclass(frozen=True)
class ModelFile:
    """A model file, read."""

    model: Model  # the architecture
    notes: tuple[str, ...] = ()  # what the file has and the model leaves out, one line each
    # its layout and training, by field name of the parts of `Config`
    settings: dict[str, int] = field(default_factory=dict)
    global_batch: int = 0  # sequences per step on all ranks, 0 if the file does not say


INCLUDES = ("extends", "bases", "includes")
# Folders of Primus model files, below a common parent of experiment and models.
_MODEL_FOLDERS = ("primus/configs/models/{0}", "configs/models/{0}", "models/{0}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::([^{}]*))?\}")


def read_file(name: str) -> ModelFile:
    """The bundled model of this name, or a model file with this path.

    Raises:
        UnknownName: neither a bundled model nor a file.
        TracelensError: the file is malformed, or not expressible as `Model`.
        MissingExtra: it is YAML, and PyYAML is not installed.
    """
    if name in MODELS:
        return ModelFile(MODELS[name])
    path = Path(name)
    if path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    suffix = path.suffix.lower()
    if suffix not in KINDS:
        if path.exists():
            raise TracelensError(f"{name}: a model file ends in {', '.join(KINDS)}")
        raise UnknownName("model (nor is it a file)", name, MODELS)
    if suffix == ".toml":
        return ModelFile(read_model(path))
    return read_huggingface(path) if suffix == ".json" else read_megatron(path)


def read_config(name: str, assignments: Iterable[str] = ()) -> Config:
    """The preset of this name, or a file's model with its layout and training.

    Args:
        name: as for `read_file`.
        assignments: texts `field=value` as for `override`, which take precedence over the file. Without
            `micro_batches` among them, the file's global batch determines it.

    Raises:
        TracelensError: as for `read_file` and `override`, or the global batch is not a multiple of the
            sequences that all data-parallel ranks take at once.
    """
    if name in MODELS:
        return override(preset(name), assignments)
    file = read_file(name)
    settings = [*(f"{field}={value}" for field, value in file.settings.items()), *assignments]
    if not file.global_batch or any(text.startswith("micro_batches=") for text in settings):
        return override(Config(file.model), settings)
    # A pipeline needs some micro-batches for its layout to be valid, and dp determines how many there are.
    config = override(Config(file.model), [*settings, f"micro_batches={file.global_batch}"])
    at_once = config.layout.dp * config.training.micro_batch
    if file.global_batch % at_once:
        raise TracelensError(
            f"{name}: a global batch of {file.global_batch} is not a multiple of dp x micro_batch = {at_once}"
        )
    return replace(config, training=replace(config.training, micro_batches=file.global_batch // at_once))


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
        raise TracelensError(f"{file.path}: 'model_type' is missing; is it a model's config.json?")
    if kind not in _ARCHITECTURES:
        unknown = UnknownName("model_type", kind, _ARCHITECTURES)
        raise TracelensError(f"{file.path}: {unknown}; describe the model in a .toml instead")
    model = make_model(file.path, _ARCHITECTURES[kind](file))
    if file.is_on("attention_bias") and not any("biases of queries" in note for note in file.notes):
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
    return ModelFile(model, tuple(file.notes))


def read_megatron(path: Path) -> ModelFile:
    """The model, layout and batch of a file.

    Raises:
        TracelensError: unreadable, an argument is missing, or not expressible as `Model`.
        MissingExtra: PyYAML is not installed.
    """
    file = Fields(str(path), read_yaml(path))
    if not file.is_on("swiglu", default=False):
        raise TracelensError(f"{path}: only gated MLPs are supported: swiglu must be true")
    sizes = {
        "layers": file.whole("num_layers"),
        "hidden": file.whole("hidden_size"),
        "heads": file.whole("num_attention_heads"),
    }
    # Rows of the embedding, padded as Megatron does.
    vocab = file.whole("padded_vocab_size", 0)
    if not vocab and (size := file.whole("vocab_size", 0)):
        step = file.whole("make_vocab_size_divisible_by", 128) * file.whole("tensor_model_parallel_size", 1)
        vocab = -(-size // step) * step
    elif not vocab:
        name = file.word("tokenizer_model", "")
        if name not in VOCABULARIES:
            raise TracelensError(
                f"{path}: vocab_size is missing, and the vocabulary of the tokenizer {name or '(none)'} is "
                "unknown; add vocab_size"
            )
        vocab = VOCABULARIES[name]
        file.notes.append(f"vocab_size = {vocab} from the config.json of {name}")
    values = sizes | {"vocab": vocab} | _attention(file) | _experts(file, sizes["layers"])
    model = make_model(str(path), values)
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
    settings = {
        field: file.whole(name) for name, field in _SETTINGS.items() if file.values.get(name) is not None
    }
    vpp = file.whole("num_virtual_stages_per_pipeline_rank", 0)
    if layers_per_chunk := file.whole("num_layers_per_virtual_pipeline_stage", 0):
        pp = settings.get("pp", 1)
        if model.layers % (pp * layers_per_chunk):
            raise TracelensError(
                f"{path}: num_layers_per_virtual_pipeline_stage ({layers_per_chunk}) must divide the "
                f"{model.layers} layers of {pp} stages"
            )
        vpp = model.layers // (pp * layers_per_chunk)
    return ModelFile(
        model, tuple(file.notes), settings | ({"vpp": vpp} if vpp else {}), file.whole("global_batch_size", 0)
    )


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
    # Which layers have experts: `moe_layer_freq` is a number, a list, or an expression for a list.
    value = file.values.get("moe_layer_freq", 1)
    if isinstance(value, str):
        try:
            value = _list(ast.parse(value.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError):
            raise TracelensError(
                f"{file.path}: moe_layer_freq must be a number or a list such as ([0]*1+[1]*26), not "
                f"{value!r}"
            ) from None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        value = [layer % value == 0 for layer in range(layers)]
    elif not isinstance(value, list) or len(value) != layers or not set(value) <= {0, 1}:
        raise TracelensError(
            f"{file.path}: moe_layer_freq must be 0 or 1 for each of {layers} layers, not {value!r}"
        )
    return {
        "dense_layers": file.leading_dense([bool(has_experts) for has_experts in value]),
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


def read_yaml(path: Path, including: tuple[Path, ...] = ()) -> dict[str, Any]:
    """All values of a file and its includes, without sections; the file overrides its includes.

    `including` are the files that led to this one.

    Raises:
        TracelensError: a file is missing, not YAML, or includes itself, or a variable has no value.
        MissingExtra: PyYAML is not installed.
    """
    if path.resolve() in including:
        raise TracelensError(f"{path}: the file includes itself")
    including = (*including, path.resolve())
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingExtra("a YAML model file", "yaml") from None
    text = read_text(path)
    try:
        _check_values(path, yaml.compose(text, Loader=yaml.SafeLoader))
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise TracelensError(f"{path}: not YAML: {error}") from error
    content = _resolved(path, content, yaml.safe_load)
    if content is None:
        content = {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise TracelensError(f"{path}: not a model file: its outermost value is not a mapping")
    values: dict[str, Any] = {}
    for key in INCLUDES:
        value = content.pop(key, None)
        names = [value] if isinstance(value, str) else value or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise TracelensError(f"{path}: {key} must be a list of files")
        for name in names:
            values |= read_yaml(path.parent / name, including)
    if not isinstance(modules := content.get("modules"), dict):
        for key, value in content.items():
            values |= value if isinstance(value, dict) else {key: value}
        return values
    # The model of the Primus trainer, with its overrides.
    trainers = [module for module in modules.values() if isinstance(module, dict) and "model" in module]
    if len(trainers) != 1:
        raise TracelensError(f"{path}: exactly one module must name a model, not {len(trainers)}")
    (trainer,) = trainers
    name, framework = str(trainer["model"]), str(trainer.get("framework", "megatron"))
    if framework != "megatron":
        raise TracelensError(f"{path}: only models of 'megatron' can be read, not of {framework!r}")
    folders = [folder.format(framework) for folder in _MODEL_FOLDERS]
    above = (parent / folder for parent in path.resolve().parents for folder in folders)
    for folder in (path.parent, *above):
        if (candidate := folder / name).is_file():
            return values | read_yaml(candidate, including) | (trainer.get("overrides") or {})
    raise TracelensError(
        f"{path}: its model {name} is neither in the same folder nor in primus/configs/models/{framework} of "
        "a parent folder; pass the model file itself"
    )


def _check_values(path: Path, root: Any) -> None:
    """Refuse a document that its aliases blow up: nine lists of nine aliases each are a billion values.

    Args:
        path: the file, for messages.
        root: tree of nodes, in which an alias is the node it refers to; None for an empty file.

    Raises:
        TracelensError: more values than the limit, or a value contains itself.
    """
    most = limits().config_values
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()
    waiting = [(root, False)] if root is not None else []
    while waiting:
        node, is_measured = waiting.pop()
        values = node.value if isinstance(node.value, list) else []
        parts = [part for item in values for part in (item if isinstance(item, tuple) else (item,))]
        if is_measured:
            open_nodes.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(part)] for part in parts)
            if sizes[id(node)] > most:
                problem = f"{path}: more than {most:,} values after its aliases are expanded"
                raise TracelensError(f"{problem}; {limits().exceeded('config_values')}")
        elif id(node) in open_nodes:
            raise TracelensError(f"{path}: a value contains itself through an alias")
        elif id(node) not in sizes:
            open_nodes.add(id(node))
            waiting.append((node, True))
            waiting += ((part, False) for part in parts)


def _resolved(path: Path, value: Any, parse: Any) -> Any:
    """A value with its variables replaced; a text that had one is parsed as YAML again."""
    if isinstance(value, dict):
        return {key: _resolved(path, item, parse) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(path, item, parse) for item in value]
    if not isinstance(value, str) or not _VARIABLE.search(value):
        return value

    def text(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name in os.environ:
            return os.environ[name]
        if default is None:
            raise TracelensError(f"{path}: {match[0]} has no value: set the environment variable {name}")
        return str(default)

    replaced = _VARIABLE.sub(text, value)
    # A quoted default such as "[0]*1+[1]*3" stays a text.
    scalar = parse(replaced) if not replaced.startswith(("[", "{", "*", "&")) else replaced
    return scalar if isinstance(scalar, str | int | float | bool | None) else replaced


class PublishedFigure(NamedTuple):
    """A figure of AMD's MoE training guide: the run, and each printed number."""

    title: str
    source: str
    rows: tuple[Mapping[str, Any], ...]  # by column of the chart
    run: Mapping[
        str, Any
    ]  # model, device, network, fields of the run, what is fitted, why a target is missed


@cache
def published_figures() -> Mapping[int, PublishedFigure]:
    """The figures of `published.toml`, by number."""
    content = bundled_toml(Path(__file__).with_name("published.toml"))
    common = {name: content[name] for name in ("network", "trainer")}
    figures = {}
    for entry in content["figure"]:
        columns, number = entry.pop("columns"), entry.pop("number")
        rows = tuple(dict(zip(columns, row, strict=True)) for row in entry.pop("rows"))
        source = content["source"].format(figure=number)
        figures[number] = PublishedFigure(entry.pop("title"), source, rows, common | entry)
    return figures
