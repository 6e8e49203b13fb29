"""Models by name, or from TOML, a Hugging Face config.json, or a Megatron or Primus YAML.

    read_model("deepseek_v3")                       # bundled
    read_model("mine.toml")                         # see models/*.toml
    read_model("Qwen3-30B-A3B/config.json")         # Hugging Face
    read_model("deepseek_v2_lite.yaml")             # Megatron, Primus; needs the extra `yaml`
    read_config("experiment.yaml", ["ranks=64"])    # with the layout and batch that stand in it

Settings that `Model` cannot express are refused if they change the model, and else listed in the notes of
`read_file` for the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.config.config import Config, override, preset
from tracelens.planner.config.huggingface import read_huggingface
from tracelens.planner.config.megatron import read_megatron
from tracelens.planner.config.model import Model
from tracelens.planner.config.model_file import MODELS, read_text, read_toml

KINDS = (".toml", ".json", ".yaml", ".yml")


@dataclass(frozen=True)
class ModelFile:
    """What a file says of a run.

    Attributes:
        model: the architecture.
        notes: what the file says and the model leaves out, a line each.
        settings: layout and training that stand in it, by the name of the field of `Config`'s parts.
        global_batch: sequences of a step on all ranks, 0 where it does not say.
    """

    model: Model
    notes: tuple[str, ...] = ()
    settings: dict[str, int] = field(default_factory=dict)
    global_batch: int = 0


def read_model(text: str) -> Model:
    """The model of a name or a file.

    Args:
        text: name of a bundled model, or path of a file: .toml, .json, .yaml or .yml.

    Raises:
        UnknownName: neither a bundled model nor a file.
        TracelensError: the file is not of its kind, or says what `Model` cannot.
        MissingExtra: it is YAML, and PyYAML is not installed.
    """
    return read_file(text).model


def read_file(text: str) -> ModelFile:
    """The model of a name or a file, with what else the file says; arguments and errors as `read_model`."""
    if text in MODELS:
        return ModelFile(MODELS[text])
    path = Path(text)
    if path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    if path.suffix.lower() not in KINDS:
        if path.exists():
            raise TracelensError(f"{text}: a model file ends in {', '.join(KINDS)}")
        raise UnknownName("model (nor is it a file)", text, MODELS)
    if path.suffix.lower() == ".toml":
        return ModelFile(read_toml(path))
    if path.suffix.lower() == ".json":
        return ModelFile(*read_huggingface(str(path), _json(path)))
    megatron = read_megatron(path)
    return ModelFile(megatron.model, megatron.notes, megatron.settings, megatron.global_batch)


def read_config(text: str, assignments: Iterable[str] = ()) -> Config:
    """A run: the preset of a name, or a file's model with the layout and training that stand there.

    Args:
        text: as of `read_model`.
        assignments: texts `field=value` as of `override`, which go before what the file says. Without
            `micro_batches` among them, these follow from the file's global batch.

    Raises:
        TracelensError: as of `read_model` and `override`, or the global batch is no multiple of the sequences
            that all data-parallel ranks take at once.
    """
    if text in MODELS:
        return override(preset(text), assignments)
    file = read_file(text)
    settings = [*(f"{name}={value}" for name, value in file.settings.items()), *assignments]
    if not file.global_batch or any(text_.startswith("micro_batches=") for text_ in settings):
        return override(Config(file.model), settings)
    # A pipeline needs some micro-batches before the layout can be told, and the layout says how many.
    first = override(Config(file.model), [*settings, f"micro_batches={file.global_batch}"])
    at_once = first.layout.dp * first.training.micro_batch
    if file.global_batch % at_once:
        raise TracelensError(
            f"{text}: a global batch of {file.global_batch} is not a multiple of dp x micro_batch = {at_once}"
        )
    return replace(first, training=replace(first.training, micro_batches=file.global_batch // at_once))


def _json(path: Path) -> dict[str, object]:
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise TracelensError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TracelensError(f"{path}: not a model's config.json: the outermost value is no object")
    return content
