"""Models from files: every figure ends where it belongs, and what a model cannot say is refused or told."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from tracelens.errors import MissingExtra, TracelensError
from tracelens.planner.config import MODELS, Model, ModelFile, read_config, read_file
from tracelens.planner.expected import totals

FOLDER = Path(sys.modules[Model.__module__].__file__ or "").parent / "models"

QWEN3 = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "intermediate_size": 6144,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "tie_word_embeddings": False, "router_aux_loss_coef": 0.001,
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2_moe", "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 16, "vocab_size": 151936, "intermediate_size": 5632, "num_experts": 60,
    "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 32000, "intermediate_size": 14336, "num_local_experts": 8,
    "num_experts_per_tok": 2, "sliding_window": None,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "intermediate_size": 14336,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "vocab_size": 129280, "intermediate_size": 18432, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
    "n_shared_experts": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "n_group": 8,
    "topk_group": 4, "num_nextn_predict_layers": 1, "aux_loss_alpha": 0.0001,
}  # fmt: skip


def written(folder: Path, content: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return str(path)


def left_out(file: ModelFile) -> int:
    """Parameters that the notes say are not counted."""
    counts = (re.search(r"not counted: .*, ([\d,]+) parameters", note) for note in file.notes)
    return sum(int(count[1].replace(",", "")) for count in counts if count)


def read_model(name: str) -> Model:
    return read_file(name).model


@pytest.mark.parametrize("name", MODELS)
def test_bundled_models_are_files_with_a_source_for_every_figure(name: str) -> None:
    assert read_model(name) == read_model(str(FOLDER / f"{name}.toml")) == MODELS[name]
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    figures = set(content) - {"title", "sources", "attention", "score", "aux_loss"}
    if sources := content.get("sources"):
        sourced = [field for source in sources.values() for field in source["fields"]]
        assert len(sourced) == len(set(sourced))
        assert figures <= set(sourced) <= figures | {"score", "aux_loss"}
        assert all(source["url"].startswith("https://") for source in sources.values())
    else:
        assert name in ("tiny", "small")


def test_models_go_from_small_to_large() -> None:
    sizes = [totals(model).total for model in MODELS.values()]
    assert sizes == sorted(sizes)
    assert list(MODELS)[:2] == ["tiny", "small"]
    assert len(MODELS) == 7


# The fields of each config.json on huggingface.co that matter here; the parameters of its checkpoint without
# multi-token prediction, as its page shows; and those active per token in billions, as its model card or
# report says, of which some count both embeddings, some the head only, some neither.
PUBLIC = json.loads(Path(__file__).with_name("public_models.json").read_text())
ROUNDED_OTHERWISE = {
    "moonshotai/Kimi-K2-Instruct": 0.01,
    "Qwen/Qwen3-30B-A3B": 0.02,
    "deepseek-ai/DeepSeek-V2-Lite": 0.025,
}
"""Published active parameters that no way of counting gives to the last digit, and how far they are off."""


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_of_public_models_are_the_published_ones(tmp_path: Path, name: str) -> None:
    known = PUBLIC[name]
    file = read_file(written(tmp_path, known["config"]))
    assert read_file(str(tmp_path)) == file
    counted = totals(file.model)
    # To the last one, but for biases that some checkpoints hold as buffers.
    assert counted.total + left_out(file) == pytest.approx(known["total"], rel=1e-5)
    embedding = file.model.vocab * file.model.hidden
    active = (counted.active - (2 - known["embeddings"]) * embedding) / 1e9
    text = known["active"]
    last_digit = 10.0 ** -len(text.partition(".")[2])
    assert active == pytest.approx(float(text), abs=last_digit / 2, rel=ROUNDED_OTHERWISE.get(name, 0.005))


def test_llama_is_counted_to_the_last_parameter(tmp_path: Path) -> None:
    assert totals(read_file(written(tmp_path, LLAMA)).model).total == 8_030_261_248


def test_the_indexer_of_deepseek_v32_is_noted(tmp_path: Path) -> None:
    sparse = {"model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128}
    file = read_file(written(tmp_path, DEEPSEEK_V3 | sparse))
    assert file.model == MODELS["deepseek_v3"]
    # Per layer: 64 heads of 128 from the latent of 1,536; a key of 128 and 64 weights from 7,168; a norm.
    indexer = 61 * (1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128)
    assert f"not counted: indexers of sparse attention, {indexer:,} parameters" in file.notes


def test_the_published_config_of_deepseek_is_the_bundled_model(tmp_path: Path) -> None:
    file = read_file(written(tmp_path, DEEPSEEK_V3))
    assert file.model == MODELS["deepseek_v3"]
    assert file.notes == (
        "not counted: 1 multi-token prediction layers",
        "not counted: expert biases of the router, 14,848 parameters",
    )
    greedy = DEEPSEEK_V3 | {"topk_method": "greedy", "q_lora_rank": None}
    model = read_model(written(tmp_path, greedy))
    assert (model.expert_groups, model.top_groups, model.q_lora) == (1, 1, 0)


def test_what_else_a_config_says_is_told(tmp_path: Path) -> None:
    more = {
        "tie_word_embeddings": True, "sliding_window": 4096, "attention_bias": True, "mlp_bias": True,
        "router_aux_loss_coef": 0.02,
    }  # fmt: skip
    notes = " | ".join(read_file(written(tmp_path, MIXTRAL | more)).notes)
    for part in (
        "the file ties embedding and head", "131,072,000", "window of 4096 positions", "attention_bias",
        "mlp_bias", "router_aux_loss_coef = 0.02",
    ):  # fmt: skip
        assert part in notes
    off = {"sliding_window": 4096, "use_sliding_window": False}
    assert read_file(written(tmp_path, MIXTRAL | off)).notes == ()


def test_leading_dense_layers_of_qwen(tmp_path: Path) -> None:
    assert read_model(written(tmp_path, QWEN3 | {"mlp_only_layers": [0, 1]})).dense_layers == 2
    assert read_model(written(tmp_path, LLAMA)).moe_layers == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_type": "gpt2"}, "unknown model_type 'gpt2'"),
        ({"model_type": "qwen3_next"}, "did you mean 'qwen3"),
        ({"architectures": ["X"]}, "'model_type' is missing"),
        ({"model_type": "mixtral"}, "'num_hidden_layers' is missing"),
        (QWEN3 | {"decoder_sparse_step": 2}, "layer 2 is dense but layer 1 has experts"),
        (QWEN3 | {"mlp_only_layers": [4]}, "layer 4 is dense"),
        (QWEN3 | {"hidden_size": "wide"}, "hidden_size must be a whole number, not 'wide'"),
        (QWEN3 | {"num_experts_per_tok": 256}, "top_k .256. exceeds"),
        (DEEPSEEK_V3 | {"moe_layer_freq": 2}, "only before the first MoE layer"),
        (DEEPSEEK_V3 | {"scoring_func": "tanh"}, "unknown score"),
        (MIXTRAL | {"attention_bias": "yes"}, "attention_bias must be true or false"),
        (MIXTRAL | {"router_aux_loss_coef": "x"}, "router_aux_loss_coef must be a number"),
        (MIXTRAL | {"router_aux_loss_coef": float("nan")}, "router_aux_loss_coef must be a number, not nan"),
        (
            MIXTRAL | {"num_attention_heads": [[]]},
            r"num_attention_heads must be a whole number, not \[\[\]\]",
        ),
        (MIXTRAL | {"num_attention_heads": 0}, "num_attention_heads must be 1 to 10,000,000, not 0"),
        (MIXTRAL | {"num_hidden_layers": 10**9}, "num_hidden_layers must be 1 to 10,000,000"),
        (MIXTRAL | {"num_hidden_layers": 10**6}, "layers must be at most 1,000, not 1,000,000"),
        (QWEN3 | {"decoder_sparse_step": 0}, "decoder_sparse_step must be 1 to"),
        (QWEN3 | {"mlp_only_layers": 5}, "mlp_only_layers must be a list of whole numbers, not 5"),
        (DEEPSEEK_V3 | {"moe_layer_freq": 0}, "moe_layer_freq must be 1 to"),
        (DEEPSEEK_V3 | {"q_lora_rank": -5}, "q_lora_rank must be 0 to 10,000,000, not -5"),
        (DEEPSEEK_V3 | {"first_k_dense_replace": -1}, "first_k_dense_replace must be 0 to"),
    ],
)
def test_a_config_that_cannot_be_told_is_refused(
    tmp_path: Path, content: dict[str, Any], message: str
) -> None:
    with pytest.raises(TracelensError, match=message) as caught:
        read_model(written(tmp_path, content))
    assert "config.json: " in str(caught.value)


SMALLEST = (
    "layers = 1\nhidden = 8\nheads = 1\nexperts_count = 1\ntop_k = 1\nexpert_ffn = 8\nvocab = 1\n"
    "dense_layers = 0"
)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "layers = 2", "'hidden' is missing; add it"),
        ("a.toml", "layers = '2'", "layers must be a whole number, not '2'"),
        ("a.toml", "layers = true", "layers must be a whole number"),
        ("a.toml", "aux_loss = 'x'", "aux_loss must be a number"),
        ("a.toml", f"{SMALLEST}\naux_loss = nan", "aux_loss must be 0 or more, not nan"),
        ("a.toml", f"{SMALLEST}\nshared_ffn = -8", "shared_ffn must be 0 or more, not -8"),
        ("a.toml", f"{SMALLEST}\nv_dim = 0", "v_dim must be at least 1, not 0"),
        ("a.toml", f"{SMALLEST}\nkv_lora = -1", "kv_lora must be at least 1, not -1"),
        (
            "a.toml",
            SMALLEST.replace("layers = 1", "layers = 4000"),
            "layers must be at most 1,000, not 4,000",
        ),
        ("a.toml", "attention = 1", "attention must be text in quotes"),
        ("a.toml", "hiden = 2", "unknown key 'hiden'; did you mean 'hidden'"),
        ("a.toml", "layers = ", "not TOML"),
        ("a.toml", "title = 1", "title must be text"),
        ("a.toml", "[sources]\na = 1", "a source must be a table"),
        ("a.toml", "[sources.a]\ntitle = 'x'\nfields = ['laiers']", "did you mean 'layers'"),
        ("a.toml", "[sources.a]\ntitle = 'x'\nwho = 'y'", "unknown key of a source"),
        ("a.json", "{", "not JSON"),
        ("a.json", "[]", "not an object"),
        ("a.txt", "", "a model file ends in .toml, .json, .yaml, .yml"),
        ("a.json", b"\xff\xfe\x00", "not a text file"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TracelensError, match=message) as caught:
        read_model(str(tmp_path / name))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TracelensError, match="did you mean 'deepseek_v3'"):
        read_model("deepseek_v33")
    with pytest.raises(TracelensError, match="no such file"):
        read_model(str(tmp_path / "none.toml"))


def test_a_toml_file_needs_only_what_has_no_default(tmp_path: Path) -> None:
    needed = ["layers", "hidden", "heads", "experts_count", "top_k", "expert_ffn", "vocab"]
    values = {name: getattr(MODELS["moe_1t"], name) for name in needed} | {"dense_layers": 0}
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(f"{name} = {value}" for name, value in values.items()))
    assert read_model(str(path)) == Model(**values)


# A model as Primus keeps it: a chain of files, the nearer ones over the farther.
BASE = """
swiglu: true
normalization: RMSNorm
untie_embeddings_and_output_weights: true
num_layers: 24
vocab_size: null
moe_router_topk: 2
"""
MIDDLE = """
extends:
  - base.yaml
multi_latent_attention: true
qk_layernorm: true
moe_router_topk: 6
moe_router_load_balancing_type: seq_aux_loss
moe_aux_loss_coeff: 0.001
"""
LITE = """
bases:
  - ../middle.yaml
tokenizer_model: deepseek-ai/DeepSeek-V2-Lite
num_layers: 27
hidden_size: 2048
ffn_hidden_size: 10944
num_attention_heads: 16
q_lora_rank: null
kv_lora_rank: 512
qk_head_dim: 128
qk_pos_emb_head_dim: 64
v_head_dim: 128
moe_layer_freq: "([0]*1+[1]*26)"
num_experts: 64
moe_ffn_hidden_size: 1408
moe_shared_expert_intermediate_size: 2816
moe_router_num_groups: null
expert_model_parallel_size: 8
"""
EXPERIMENT = """
work_group: ${TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${MODEL_NAME:lite}.yaml
    overrides:
      num_layers: ${LAYERS:9}
      moe_layer_freq: ${PATTERN:"[0]*1+[1]*8"}
      micro_batch_size: 2
      global_batch_size: 64
      seq_length: 1024
      pipeline_model_parallel_size: ${PP:2}
      num_layers_per_virtual_pipeline_stage: null
      recompute_granularity: full
"""


@pytest.fixture
def primus(tmp_path: Path) -> Path:
    pytest.importorskip("yaml", reason="YAML model files need PyYAML")
    models = tmp_path / "primus" / "configs" / "models"
    (models / "megatron").mkdir(parents=True)
    (tmp_path / "examples").mkdir()
    (models / "base.yaml").write_text(BASE)
    (models / "middle.yaml").write_text(MIDDLE)
    (models / "megatron" / "lite.yaml").write_text(LITE)
    (tmp_path / "examples" / "run.yaml").write_text(EXPERIMENT)
    return tmp_path


def test_a_model_of_primus_is_the_bundled_one(primus: Path) -> None:
    file = read_file(str(primus / "primus/configs/models/megatron/lite.yaml"))
    assert file.model == MODELS["deepseek_v2_lite"]
    assert file.notes == ("vocab_size = 102400 from the config.json of deepseek-ai/DeepSeek-V2-Lite",)
    assert file.settings == {"ep": 8}


def test_of_several_files_the_later_one_counts(primus: Path) -> None:
    path = primus / "primus/configs/models/megatron/both.yaml"
    (path.parent / "wide.yaml").write_text("hidden_size: 4096\nnum_layers: 9\n")
    path.write_text("extends: [lite.yaml, wide.yaml]\nnum_layers: 27\n")
    assert (read_model(str(path)).hidden, read_model(str(path)).layers) == (4096, 27)


def test_an_experiment_of_primus(primus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(primus / "examples/run.yaml")
    file = read_file(path)
    changed = {"layers": 9}
    assert asdict(file.model) == asdict(MODELS["deepseek_v2_lite"]) | changed
    assert file.settings == {"ep": 8, "micro_batch": 2, "seq": 1024, "pp": 2}
    assert "left out: recompute_granularity = full; set it as an option" in file.notes
    config = read_config(path, ["ranks=16"])
    # 64 sequences over 8 data-parallel ranks with 2 at a time.
    assert (config.layout.dp, config.training.micro_batches, config.layout.ep) == (8, 4, 8)
    assert read_config(path, ["ranks=16", "micro_batches=2"]).training.micro_batches == 2
    with pytest.raises(TracelensError, match="64 is not a multiple of dp x micro_batch = 24"):
        read_config(path, ["ranks=24", "ep=12", "experts_count=60"])
    monkeypatch.setenv("LAYERS", "5")
    monkeypatch.setenv("PATTERN", "[0]+[1]*4")
    assert read_model(path).layers == 5
    monkeypatch.setenv("MODEL_NAME", "none")
    with pytest.raises(
        TracelensError, match=r"its model none\.yaml is neither in the same folder nor in primus"
    ):
        read_model(path)


def test_a_file_of_megatron_with_sections(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="YAML model files need PyYAML")
    path = tmp_path / "gpt.yaml"
    path.write_text(
        "language_model:\n  num_layers: 8\n  hidden_size: 1024\n  num_attention_heads: 16\n  swiglu: true\n"
        "  group_query_attention: true\n  num_query_groups: 4\n  qk_layernorm: true\n  add_qkv_bias: true\n"
        "  num_experts: 16\n  moe_ffn_hidden_size: 512\n  moe_layer_freq: 1\n  moe_aux_loss_coeff: 0.01\n"
        "  moe_router_enable_expert_bias: true\n  mtp_num_layers: 2\n"
        "model_parallel:\n  tensor_model_parallel_size: 2\n  pipeline_model_parallel_size: 2\n"
        "  num_layers_per_virtual_pipeline_stage: 2\n"
        "vocab_size: 50257\n"
    )
    file = read_file(str(path))
    model = file.model
    assert (model.attention, model.kv_groups, model.head_dim, model.top_k) == ("gqa", 4, 64, 2)
    # Filled up to a multiple of 128 x tp; 4 x 1024 x 2/3 in steps of 64.
    assert (model.vocab, model.dense_layers, model.aux_loss) == (50432, 0, 0.0)
    assert file.settings == {"tp": 2, "pp": 2, "vpp": 2}
    notes = " | ".join(file.notes)
    for part in (
        "queries and keys, 1,024", "2 multi-token prediction", "biases of the router, 128 ", "RMSNorm",
        "add_qkv_bias", "ties embedding and head", "expert_tensor_parallel_size", "balancing_type = aux_loss",
    ):  # fmt: skip
        assert part in notes


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("swiglu: false", "only gated MLPs"),
        ("swiglu: 1", "swiglu must be true or false"),
        ("num_layers: null", "'num_layers' is missing"),
        ("moe_layer_freq: 2", "only before the first MoE layer"),
        ("moe_layer_freq: '__import__(\"os\")'", "moe_layer_freq must be a number or a list"),
        ("moe_layer_freq: '[1]*99999'", "moe_layer_freq must be a number or a list"),
        ("moe_layer_freq: '[0]*3'", "0 or 1 for each of 27 layers"),
        ("tokenizer_model: mine", "the vocabulary of the tokenizer mine is unknown; add vocab_size"),
        ("extends: [lite.yaml]", "the file includes itself"),
        ("extends: [none.yaml]", "none.yaml: no such file"),
        ("extends: 7", "must be a list of files"),
        ("num_layers: ${SURELY_NOT_SET}", "set the environment variable SURELY_NOT_SET"),
        ("a: [", "not YAML"),
        ("num_layers_per_virtual_pipeline_stage: 2", "must divide the 27 layers"),
        ("num_layers_per_virtual_pipeline_stage: -1", "must be 0 to 10,000,000, not -1"),
        ("pipeline_model_parallel_size: 0", "pipeline_model_parallel_size must be 1 to"),
        ("make_vocab_size_divisible_by: 0\nvocab_size: 5", "make_vocab_size_divisible_by must be 1 to"),
        ("modules: {}", "must name a model, not 0"),
        ("modules: {a: {model: m, framework: torchtitan}}", "not of 'torchtitan'"),
    ],
)
def test_yaml_that_cannot_be_told_is_refused(primus: Path, line: str, message: str) -> None:
    path = primus / "primus/configs/models/megatron/lite.yaml"
    path.write_text(f"{LITE}\n{line}\n".replace("bases:", "includes:"))
    with pytest.raises(TracelensError, match=message) as caught:
        read_model(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["- 1", "7", "1: 2"])
def test_yaml_that_is_no_model(tmp_path: Path, content: str) -> None:
    pytest.importorskip("yaml", reason="YAML model files need PyYAML")
    (tmp_path / "a.yml").write_text(content)
    with pytest.raises(TracelensError, match="not a mapping"):
        read_model(str(tmp_path / "a.yml"))


def test_without_the_library_yaml_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text("")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tracelens-moe\[yaml\]'"):
        read_model(str(tmp_path / "a.yaml"))


def test_a_run_of_a_bundled_model_is_like_its_preset() -> None:
    config = read_config("moe_1t", ["ranks=768", "pp=24", "micro_batches=24"])
    assert (config.layout.dp, config.model) == (32, MODELS["moe_1t"])
    assert {item.name for item in fields(ModelFile)} == {"model", "notes", "settings", "global_batch"}
