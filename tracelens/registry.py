"""Named things that come one to a file: parsers, analyzers, renderers, figures.

A registry imports the module of a name that is asked for, if it was told which that is, else every module of
its packages, and all plugins. Importing is registering.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from tracelens.errors import TracelensError, UnknownName
from tracelens.plugins import any_plugins, load_plugins

T = TypeVar("T")


def purpose(function: Callable[..., object]) -> str:
    """The first paragraph of a function's docstring in one line: the question that its result answers."""
    return (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ")


class Registry(Generic[T]):
    """Name to thing, filled by importing `packages`; a name taken twice is an error that names both.

    Where `homes` tells which module has which names, separated by commas, one that is asked for is imported
    alone; for another name, all modules that it does not tell of. Modules are relative to the first package.
    """

    def __init__(self, kind: str, *packages: str, homes: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._packages = packages
        self.homes = {
            name: resolve_name(module, packages[0])
            for module, names in (homes or {}).items()
            for name in names.split(", ")
        }
        self._items: dict[str, T] = {}
        self.origins: dict[str, str] = {}

    def add(self, name: str, item: T, origin: str) -> None:
        """Register `item`; `origin` (module or file) is named when the name is taken already."""
        if self.origins.get(name, origin) != origin:
            raise TracelensError(f"{self.kind} {name!r} is defined in {self.origins[name]} and in {origin}")
        self._items[name] = item
        self.origins[name] = origin

    def register(self, name: str) -> Callable[[T], T]:
        def keep(item: T) -> T:
            self.add(name, item, getattr(item, "__module__", "?"))
            return item

        return keep

    def load(self) -> None:
        """Import every module that may register something here."""
        for package in self._packages:
            _import_package(package)
        load_plugins()

    @staticmethod
    def has_plugins() -> bool:
        """Whether others may register something, too."""
        return any_plugins()

    def get(self, name: str) -> T:
        """The thing of that name; raises UnknownName with the nearest known one."""
        item = self.find(name)
        if item is None:
            self.load()
            raise UnknownName(self.kind, name, self._items)
        return item

    def find(self, name: str) -> T | None:
        """The thing of that name, None where there is none."""
        if name in self.homes:
            importlib.import_module(self.homes[name])
            load_plugins()
        elif not self.homes or any_plugins():
            self.load()
        else:
            for package in self._packages:
                _import_package(package, frozenset(self.homes.values()))
        return self._items.get(name)

    def items(self) -> Iterator[tuple[str, T]]:
        """All (name, thing) in order of name."""
        self.load()
        return iter(sorted(self._items.items()))


@cache
def _import_package(package: str, without: frozenset[str] = frozenset()) -> None:
    """Import all modules of a package but those of these names."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if module.name.rpartition(".")[2].startswith("_") or module.name in without:
            continue
        if module.ispkg:
            _import_package(module.name, without)
        else:
            importlib.import_module(module.name)


class Registered(Struct, frozen=True):
    """What the source says of a registered function."""

    name: str
    doc: str
    argument: str = ""
    usual: tuple[str, ...] = ("",)


def registered(kind: str, folder: str) -> Iterator[Registered]:
    """Functions under a decorator `@kind("name", ...)`, and those of plugins if there are any.

    Args:
        kind: of registry, the name of its decorator.
        folder: below the package, where they are.
    """
    pattern = re.compile(
        rf'^@{kind}\(\s*"(?P<name>\w+)"(?P<options>.*?)\)\n(?:@.*?\n)*def .*?"""(?P<doc>.*?)(?:\n\n|""")',
        re.MULTILINE | re.DOTALL,
    )
    for file in sorted((Path(__file__).parent / folder).rglob("*.py")):
        text = file.read_text("utf-8")
        for match in pattern.finditer(text) if f"@{kind}(" in text else ():
            argument = re.search(r'argument="(.*?)"', match["options"])
            usual = re.search(r"usual=\((.*?)\)", match["options"])
            words = re.findall(r'"(.*?)"', usual[1]) if usual else [""]
            doc = " ".join(match["doc"].split())
            yield Registered(match["name"], doc, argument[1] if argument else "", tuple(words))
