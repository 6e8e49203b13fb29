"""Model files in TOML: the fields of `Model`, with their sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any

from tracelens.errors import TracelensError, UnknownName
from tracelens.limits import read_config_file
from tracelens.planner.config.model import Model

_SOURCE_KEYS = ("title", "url", "date", "fields")
# Annotated type of a field to the types that a file may have, and their name in messages.
_KINDS: dict[str, tuple[UnionType | type, str]] = {
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
}


@cache
def bundled() -> Mapping[str, Model]:
    """The models of `models/*.toml` by name, from small to large."""
    models = {file.stem: read_toml(file) for file in (Path(__file__).parent / "models").glob("*.toml")}
    return dict(sorted(models.items(), key=lambda item: (_size(item[1]), item[0])))


def read_toml(path: Path) -> Model:
    """Read a model file.

    Its keys are the fields of `Model`; those with a default are optional. `title`, and `[sources.NAME]` with
    title, url, date and the `fields` it documents, are for people.

    Raises:
        TracelensError: no such file, not TOML, or a key is missing, unknown or has a wrong value.
    """
    content = _load(path)
    sources = content.pop("sources", {})
    if not isinstance(content.pop("title", ""), str):
        raise TracelensError(f"{path}: title must be text in quotes")
    for source in sources.values() if isinstance(sources, dict) else [sources]:
        _check_source(path, source)
    return make_model(str(path), content)


def make_model(path: str, values: Mapping[str, Any]) -> Model:
    """A model of these fields.

    Raises:
        TracelensError: a field is missing, unknown or of the wrong type, or they do not fit together; the
            message names the file.
    """
    kinds = {item.name: item for item in fields(Model)}
    for name, value in values.items():
        if name not in kinds:
            raise TracelensError(f"{path}: {UnknownName('key', name, kinds)}")
        kind, words = _KINDS.get(str(kinds[name].type), (str, "text in quotes"))
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TracelensError(f"{path}: {name} must be {words}, not {value!r}")
    if missing := [name for name, item in kinds.items() if item.default is MISSING and name not in values]:
        raise TracelensError(f"{path}: {missing[0]!r} is missing; add it")
    try:
        return Model(**values)
    except TracelensError as error:
        raise TracelensError(f"{path}: {error}") from None


def read_text(path: Path) -> str:
    """The text of a file; raises TracelensError if it cannot be read."""
    try:
        return read_config_file(path).decode("utf-8")
    except FileNotFoundError:
        raise TracelensError(f"{path}: no such file") from None
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TracelensError(f"{path}: not a text file") from error


def _load(path: Path) -> dict[str, Any]:
    import tomllib  # takes a few ms

    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TracelensError(f"{path}: not TOML: {error}") from error


def _check_source(path: Path, source: Any) -> None:
    if not isinstance(source, dict) or not isinstance(source.get("title"), str):
        raise TracelensError(f"{path}: a source must be a table [sources.NAME] with a title")
    for key in source:
        if key not in _SOURCE_KEYS:
            raise TracelensError(f"{path}: {UnknownName('key of a source', key, _SOURCE_KEYS)}")
    known = [item.name for item in fields(Model)]
    for name in source.get("fields", []):
        if name not in known:
            raise TracelensError(f"{path}: {UnknownName('field of a source', str(name), known)}")


def _size(model: Model) -> int:
    """Weights of the routed experts, which dominate."""
    return model.layers * model.experts_count * model.hidden * model.expert_ffn


class _Bundled(Mapping[str, Model]):
    """The bundled models, read on first use."""

    def __getitem__(self, name: str) -> Model:
        return bundled()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(bundled())

    def __len__(self) -> int:
        return len(bundled())


MODELS: Mapping[str, Model] = _Bundled()
"""The bundled models by name, from small to large."""
