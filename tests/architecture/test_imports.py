"""Imports go one way only.

    printable <- errors <- guard, limits <- schema, registry <- trace <- parsers
                                  trace <- analyzers -> costs, devices
                                  analyzers <- compare, replay
                                  trace <- fuse
    errors <- config <- expected <- workload
              config, expected, costs, devices, analyzers <- projection
    parsers <- outputs <- whatever writes: renderers, fuse, replay, recording, workload
    renderers -> schema (never analyzers, never trace)
    cli -> everything
    workload -> recording -> torch; the workload is imported by nobody but its command, inside the command

Every import counts: at the top, inside functions, for type checking only, and by name through importlib.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.architecture.source import PACKAGE, ROOT, Definition, Module, modules

BASE = {"printable", "errors", "guard", "limits", "schema", "registry", "version"}
ALLOWED: dict[str, set[str]] = {
    "version": set(),
    "printable": set(),
    "errors": {"printable"},
    "guard": {"errors"},
    "limits": {"errors"},
    "schema": {"errors", "guard"},
    "registry": {"errors"},
    "trace": BASE,
    "parsers": BASE | {"trace"},
    "costs": BASE,
    "devices": BASE,
    "analyzers": BASE | {"trace", "costs", "devices"},
    "outputs": {"errors", "parsers"},
    "compare": BASE | {"trace", "analyzers"},
    "fuse": BASE | {"trace", "outputs"},
    "replay": BASE | {"trace", "analyzers", "costs", "devices", "outputs"},
    "config": {"errors", "limits"},
    "expected": {"errors", "config"},
    "projection": BASE | {"config", "expected", "costs", "devices", "trace", "analyzers"},
    "fanout": BASE | {"trace", "parsers", "analyzers"},
    "renderers": BASE | {"outputs"},
    "recording": {"errors", "version", "outputs"},
    "workload": {"errors", "recording", "config", "expected", "outputs"},
}
EVERYTHING = set(ALLOWED) | {PACKAGE}
ALLOWED |= {
    "cli": EVERYTHING,  # the workload only as test_the_workload_is_imported_by_its_command_only says
    "__main__": {"cli"},
    PACKAGE: EVERYTHING - {"workload"},  # the public API; lazily, see test_the_public_api_imports_lazily
}
# Jupyter asks a result how it looks; the result passes the question on, and only when it is asked.
EXCEPTIONS = {
    ("tracelens.table.schema", "Result._repr_html_", "tracelens.rendering.formats.html"),
    ("tracelens.table.schema", "Result._ipython_display_", "tracelens.rendering.formats.notebook"),
    ("tracelens.table.schema", "Report._ipython_display_", "tracelens.rendering.formats.notebook"),
}
# What `import tracelens` may run: these import neither pandas nor numpy.
LIGHT = {"printable", "errors", "guard", "limits", "schema", "registry", "version"}

MODULES = modules()
NAMES = {module.name for module in MODULES}


@dataclass(frozen=True)
class Import:
    """One imported module: where it stands and what it names."""

    where: str
    inside: str
    target: str
    typing_only: bool


def layer(name: str) -> str:
    """The top-level part of tracelens a module belongs to; the package's own __init__ is 'tracelens'."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imports(module: Module) -> Iterator[Import]:
    """Every import in a module, with the function or class it stands in ('' at the top)."""

    def walk(node: ast.AST, inside: str, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            for target in targets(module, child):
                yield Import(module.at(child), inside, target, typing_only)
            name, typed = inside, typing_only
            if isinstance(child, Definition):
                name = f"{inside}.{child.name}" if inside else child.name
            if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                typed = True
            yield from walk(child, name, typed)

    return walk(module.tree, "", False)


def targets(module: Module, node: ast.AST) -> list[str]:
    """The modules one statement imports; a name imported from a package may be a module of it."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = module.name.split(".")
        package = package[: len(package) - node.level + module.is_package] if node.level else []
        base = ".".join([*package, *(node.module or "").split(".")]).strip(".")
        full = [f"{base}.{alias.name}" for alias in node.names]
        return [name if name in NAMES else base for name in full]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
        "import_module",
        "__import__",
    ):
        return [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return []


def own(module: Module) -> list[Import]:
    """The imports of a module that stay inside tracelens."""
    return [found for found in imports(module) if found.target.split(".")[0] == PACKAGE]


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_only_allowed_arrows(module: Module) -> None:
    here = layer(module.name)
    assert here in ALLOWED, f"{module}: {here!r} is no known part of tracelens; add its arrows to ALLOWED"
    wrong = [
        f"{found.where}: {module.name} imports {found.target}, but {here} may import "
        f"{', '.join(sorted(ALLOWED[here])) or 'nothing'}"
        for found in own(module)
        if layer(found.target) != here
        and layer(found.target) not in ALLOWED[here]
        and (module.name, found.inside, found.target) not in EXCEPTIONS
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_the_workload_is_imported_by_its_command_only(module: Module) -> None:
    if layer(module.name) == "workload":
        return
    wrong = [
        f"{found.where}: {found.target} outside a function of tracelens.cli.workload.app*"
        for found in own(module)
        if layer(found.target) == "workload"
        and not (module.name.startswith("tracelens.cli.workload.app") and (found.inside or found.typing_only))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_torch_is_imported_where_traces_are_made_only(module: Module) -> None:
    if layer(module.name) in ("recording", "workload"):
        return
    wrong = [found.where for found in imports(module) if found.target.split(".")[0] == "torch"]
    assert not wrong, f"torch is an optional library of recording and workload: {', '.join(wrong)}"


def test_the_public_api_imports_lazily() -> None:
    module = next((module for module in MODULES if module.name == PACKAGE), None)
    assert module is not None, "tracelens/__init__.py is missing"
    wrong = [
        f"{found.where}: {found.target} at the top; import it inside the function that needs it"
        for found in own(module)
        if not found.inside and not found.typing_only and layer(found.target) not in LIGHT
    ]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_still_needed() -> None:
    used = {
        (module.name, found.inside, found.target)
        for module in MODULES
        for found in own(module)
        if (module.name, found.inside, found.target) in EXCEPTIONS
    }
    assert used == EXCEPTIONS, f"no longer needed: {EXCEPTIONS - used}"


@pytest.mark.parametrize(
    ("text", "inside", "target"),
    [
        ("import tracelens.read.formats.kineto", "", "tracelens.read.formats.kineto"),
        ("from tracelens import schema", "", "tracelens.table.schema"),
        ("from tracelens import load", "", "tracelens"),
        ("from tracelens.errors import ParseError", "", "tracelens.errors"),
        ("from ..schema import Result", "", "tracelens.table.schema"),
        ("from .. import schema", "", "tracelens.table.schema"),
        ("from . import no_module", "", "tracelens.trace"),
        ("def f():\n    from tracelens import errors", "f", "tracelens.errors"),
        (
            "class A:\n    def f(self):\n        import tracelens.table.schema",
            "A.f",
            "tracelens.table.schema",
        ),
        ("import importlib\nimportlib.import_module('tracelens.errors')", "", "tracelens.errors"),
    ],
)
def test_the_reader_of_imports(text: str, inside: str, target: str) -> None:
    module = Module("tracelens.trace.example", ROOT / "tracelens" / "trace" / "example.py", text)
    assert [(found.inside, found.target) for found in own(module)] == [(inside, target)]
