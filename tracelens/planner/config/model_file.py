"""Model files of the project's own: TOML, one key a field of `Model`, with the source of each figure."""

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
# Type of a field, as its class writes it, to what a file may hold, and how to say so.
_KINDS: dict[str, tuple[UnionType | type, str]] = {
    "int": (int, "a whole number"),
    "float": (int | float, "a number"),
}


@cache
def bundled() -> Mapping[str, Model]:
    """The bundled models by name, from small to large."""
    models = {file.stem: read_toml(file) for file in (Path(__file__).parent / "models").glob("*.toml")}
    return dict(sorted(models.items(), key=lambda item: (_size(item[1]), item[0])))


def read_toml(path: Path) -> Model:
    """Read a model file.

    Its keys are the fields of `Model`; those with a default may be left out. `title`, and `[sources.NAME]`
    with title, url, date and the `fields` that are from there, are for people.

    Raises:
        TracelensError: no such file, not TOML, or a key is missing, unknown or has no proper value.
    """
    content = _load(path)
    sources = content.pop("sources", {})
    if not isinstance(content.pop("title", ""), str):
        raise TracelensError(f"{path}: title must be text in quotes")
    for source in sources.values() if isinstance(sources, dict) else [sources]:
        _check_source(path, source)
    return make_model(str(path), content)


def make_model(where: str, values: Mapping[str, Any]) -> Model:
    """A model of these fields.

    Args:
        where: the file, for messages.
        values: field to value.

    Raises:
        TracelensError: a field is missing, unknown or of another kind, or they do not fit together.
    """
    kinds = {item.name: item for item in fields(Model)}
    for name, value in values.items():
        if name not in kinds:
            raise TracelensError(f"{where}: {UnknownName('key', name, kinds)}")
        kind, words = _KINDS.get(str(kinds[name].type), (str, "text in quotes"))
        if isinstance(value, bool) or not isinstance(value, kind):
            raise TracelensError(f"{where}: {name} must be {words}, not {value!r}")
    if missing := [name for name, item in kinds.items() if item.default is MISSING and name not in values]:
        raise TracelensError(f"{where}: {missing[0]!r} is missing; add it")
    try:
        return Model(**values)
    except TracelensError as error:
        raise TracelensError(f"{where}: {error}") from None


def read_text(path: Path) -> str:
    """The text of a file; raises TracelensError where it cannot be read."""
    try:
        return read_config_file(path).decode("utf-8")
    except FileNotFoundError:
        raise TracelensError(f"{path}: no such file") from None
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TracelensError(f"{path}: not a text file") from error


def _load(path: Path) -> dict[str, Any]:
    import tomllib  # a few ms that a caller who needs no model need not pay

    text = read_text(path)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TracelensError(f"{path}: not TOML: {error}") from error


def _check_source(path: Path, source: Any) -> None:
    if not isinstance(source, dict) or not isinstance(source.get("title"), str):
        raise TracelensError(f"{path}: a source is a table [sources.NAME] with a title")
    for key in source:
        if key not in _SOURCE_KEYS:
            raise TracelensError(f"{path}: {UnknownName('key of a source', key, _SOURCE_KEYS)}")
    known = [item.name for item in fields(Model)]
    for name in source.get("fields", []):
        if name not in known:
            raise TracelensError(f"{path}: {UnknownName('field of a source', str(name), known)}")


def _size(model: Model) -> int:
    """Weights of the routed experts, which are nearly all there are."""
    return model.layers * model.experts_count * model.hidden * model.expert_ffn


class _Bundled(Mapping[str, Model]):
    """The models of `models/*.toml`, read when the first of them is asked for."""

    def __getitem__(self, name: str) -> Model:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    @property
    def _models(self) -> Mapping[str, Model]:
        from tracelens.planner.config.model_file import bundled

        return bundled()


MODELS: Mapping[str, Model] = _Bundled()
"""The bundled models by name, from small to large."""
