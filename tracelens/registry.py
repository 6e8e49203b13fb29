"""Named things that come one to a file: parsers, analyzers, renderers, figures.

A registry imports every module of its packages the first time a name is asked for; importing is
registering. Files named in the environment variable TRACELENS_PLUGINS (files or directories,
separated like PATH) are imported in the same way.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar
from zlib import crc32

from tracelens.errors import TracelensError, UnknownName

T = TypeVar("T")


def purpose(function: Callable[..., object]) -> str:
    """The first paragraph of a function's docstring in one line: the question that its result answers."""
    return (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")


class Registry(Generic[T]):
    """Name to thing, filled by importing `packages`; a name taken twice is an error that names both."""

    def __init__(self, kind: str, *packages: str) -> None:
        self.kind = kind
        self._packages = packages
        self._items: dict[str, T] = {}
        self._origin: dict[str, str] = {}

    def add(self, name: str, item: T, origin: str) -> None:
        """Register `item`; `origin` (module or file) is named when the name is taken already."""
        if self._origin.get(name, origin) != origin:
            raise TracelensError(f"{self.kind} {name!r} is defined in {self._origin[name]} and in {origin}")
        self._items[name] = item
        self._origin[name] = origin

    def register(self, name: str) -> Callable[[T], T]:
        def keep(item: T) -> T:
            self.add(name, item, getattr(item, "__module__", "?"))
            return item

        return keep

    def load(self) -> None:
        """Import every module that may register something here."""
        for package in self._packages:
            _import_package(package)
        load_plugins(os.environ.get("TRACELENS_PLUGINS", ""))

    def get(self, name: str) -> T:
        """The thing of that name; raises UnknownName with the nearest known one."""
        self.load()
        if name not in self._items:
            raise UnknownName(self.kind, name, self._items)
        return self._items[name]

    def items(self) -> Iterator[tuple[str, T]]:
        """All (name, thing) in order of name."""
        self.load()
        return iter(sorted(self._items.items()))


@cache
def _import_package(package: str) -> None:
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if module.ispkg:
            _import_package(module.name)
        else:
            importlib.import_module(module.name)


@cache
def load_plugins(paths: str) -> None:
    """Import plugin files once; a plugin that does not import is an error naming it."""
    for entry in filter(None, paths.split(os.pathsep)):
        root = Path(entry)
        if not root.exists():
            raise TracelensError(f"TRACELENS_PLUGINS: {entry} does not exist")
        for file in sorted(root.glob("*.py")) if root.is_dir() else [root]:
            _import_file(file)


_PLUGIN_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What somebody else's module may raise while it is imported; a TracelensError passes as it is."""


def _import_file(file: Path) -> None:
    # Two directories may hold a file of the same name.
    name = f"tracelens_plugin_{file.stem}_{crc32(str(file.resolve()).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise TracelensError(f"plugin {file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except _PLUGIN_ERRORS as error:
        raise TracelensError(f"plugin {file} does not import: {type(error).__name__}: {error}") from error
