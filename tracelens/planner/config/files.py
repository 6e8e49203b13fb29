"""Models by name, or from TOML, a Hugging Face config.json, or a Megatron or Primus YAML.

    read_file("deepseek_v3").model                  # bundled
    read_file("mine.toml").model                    # see models/*.toml
    read_file("Qwen3-30B-A3B/config.json")          # Hugging Face
    read_file("deepseek_v2_lite.yaml")              # Megatron, Primus; needs the extra `yaml`
    read_config("experiment.yaml", ["ranks=64"])    # with the file's layout and batch

A setting that `Model` cannot express is an error if it changes the model; others are listed in `notes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.config.config import Config, override, preset
from tracelens.planner.config.foreign import ModelFile
from tracelens.planner.config.huggingface import read_huggingface
from tracelens.planner.config.megatron import read_megatron
from tracelens.planner.config.model_file import MODELS, read_toml

KINDS = (".toml", ".json", ".yaml", ".yml")


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
        return ModelFile(read_toml(path))
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
