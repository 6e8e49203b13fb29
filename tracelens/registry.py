"""Named things that come one to a file: parsers, analyzers, renderers, figures.

A registry imports every module of its packages, and all plugins, the first time a name is asked for;
importing is registering.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from tracelens.errors import TracelensError, UnknownName
from tracelens.plugins import load_plugins

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
        load_plugins()

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
        if module.name.rpartition(".")[2].startswith("_"):
            continue
        if module.ispkg:
            _import_package(module.name)
        else:
            importlib.import_module(module.name)


class Registered(NamedTuple):
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
