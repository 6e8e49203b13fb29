"""Resolves YAML files of Megatron and Primus: includes, environment variables, sections.

A Primus model file extends others (`extends`; in older files `bases` and `includes`) and refers to
environment variables as `${NAME:default}`; an experiment names a model file and overrides parts of it.
Megatron files have sections (`language_model`, `model_parallel`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracelens.errors import MissingExtra, TracelensError
from tracelens.limits import limits
from tracelens.planner.config.model_file import read_text

INCLUDES = ("extends", "bases", "includes")
# Folders of Primus model files, below a common parent of experiment and models.
_MODEL_FOLDERS = ("primus/configs/models/{0}", "configs/models/{0}", "models/{0}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?::([^{}]*))?\}")


def read_yaml(path: Path) -> dict[str, Any]:
    """All values of a file and its includes, without sections; the file overrides its includes.

    Raises:
        TracelensError: a file is missing, not YAML, or includes itself, or a variable has no value.
        MissingExtra: PyYAML is not installed.
    """
    return _read(path, ())


def _read(path: Path, including: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in including:
        raise TracelensError(f"{path}: the file includes itself")
    including = (*including, path.resolve())
    content = _load(path)
    values: dict[str, Any] = {}
    for name in (name for key in INCLUDES for name in _names(path, key, content.pop(key, None))):
        values |= _read(path.parent / name, including)
    if isinstance(content.get("modules"), dict):
        return values | _experiment(path, content["modules"], including)
    for key, value in content.items():
        values |= value if isinstance(value, dict) else {key: value}
    return values


def _experiment(path: Path, modules: dict[str, Any], including: tuple[Path, ...]) -> dict[str, Any]:
    """The model of the Primus trainer, with its overrides."""
    trainers = [module for module in modules.values() if isinstance(module, dict) and "model" in module]
    if len(trainers) != 1:
        raise TracelensError(f"{path}: exactly one module must name a model, not {len(trainers)}")
    (trainer,) = trainers
    name, framework = str(trainer["model"]), str(trainer.get("framework", "megatron"))
    if framework != "megatron":
        raise TracelensError(f"{path}: only models of 'megatron' can be read, not of {framework!r}")
    for candidate in _candidates(path, name, framework):
        if candidate.is_file():
            return _read(candidate, including) | (trainer.get("overrides") or {})
    raise TracelensError(
        f"{path}: its model {name} is neither in the same folder nor in primus/configs/models/{framework} of "
        "a parent folder; pass the model file itself"
    )


def _candidates(path: Path, name: str, framework: str) -> Iterator[Path]:
    yield path.parent / name
    for above in path.resolve().parents:
        for folder in _MODEL_FOLDERS:
            yield above / folder.format(framework) / name


def _names(path: Path, key: str, value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TracelensError(f"{path}: {key} must be a list of files")
    return names


def _load(path: Path) -> dict[str, Any]:
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
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise TracelensError(f"{path}: not a model file: its outermost value is not a mapping")
    return content


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
        parts = _parts(node)
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


def _parts(node: Any) -> list[Any]:
    if not isinstance(node.value, list):
        return []
    return [part for item in node.value for part in (item if isinstance(item, tuple) else (item,))]


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
