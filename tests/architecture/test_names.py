"""A class name means one thing in the whole package, and values are built by name."""

import ast
from collections import defaultdict
from functools import cache

import pytest

from tests.architecture.source import PACKAGE, ROOT, Module, modules

MOST_POSITIONAL = 6
"""Beyond so many values a reader has to count which is which."""


@cache
def classes() -> dict[str, list[str]]:
    """Name of each class, nested and private ones too, to where it is defined."""
    homes: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module.at(node))
    return homes


def positional(module: Module) -> list[str]:
    """Calls of classes of the package with too many values in a row; a starred argument hides how many."""
    wrong = []
    for node in module.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in classes() and len(node.args) > MOST_POSITIONAL:
            wrong.append(f"{module.at(node)}: {name} is built from {len(node.args)} positional values")
    return wrong


def test_class_names_are_unique() -> None:
    twice = [f"{name}: {', '.join(homes)}" for name, homes in sorted(classes().items()) if len(homes) > 1]
    assert not twice, "\n".join(twice)


def test_values_are_built_by_name() -> None:
    wrong = [line for module in modules() for line in positional(module)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [("1, 2, 3, 4, 5, 6", 0), ("1, 2, 3, 4, 5, 6, 7", 1), ("1, 2, 3, *rest, 5, 6, 7", 1)],
)
def test_the_count_of_positional_values(arguments: str, count: int) -> None:
    name = next(iter(classes()))
    module = Module(f"{PACKAGE}.example", ROOT / PACKAGE / "example.py", f"{name}({arguments})")
    assert len(positional(module)) == count
