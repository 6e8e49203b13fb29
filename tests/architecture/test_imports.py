"""Imports go one way, from room to room, and never past the door.

    cli -> session -> {findings, compare, reproducers, merge, workers, rendering} -> what_if
        -> analysis -> {costs, devices} -> trace
        -> table
        -> {arrays, bundled, config_files, dtypes, filenames, lazy, native, registry, plugins, limits,
            guard, errors, packing, printable, saved, symbols, units}
    opportunities -> {findings, what_if, planner}; registries import it by name      planner -> analysis
    read -> trace      workers -> {read, analysis}      outputs -> read
    rendering -> table (never analysis, never trace)
    workload -> recording -> torch      calibrate -> devices, torch; both are imported by nobody but their
    commands, inside the command

A room is a folder. It exports what its `__init__` imports of it or defines, or what stands in `__all__`; its
modules are imported by the room itself and the rooms inside it only. Every import counts: at the top, inside
functions, and by name through importlib.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source import PACKAGE, ROOT, Definition, Module, modules
from tests.garbage import uncollected

BASE = {"arrays", "bundled", "config_files", "dtypes", "errors", "filenames", "guard", "lazy", "limits"}
BASE |= {"native", "packing", "printable", "registry", "saved", "symbols", "units", "version"}
ALLOWED: dict[str, set[str]] = {
    "version": set(),
    "arrays": set(),
    "bundled": set(),
    "dtypes": set(),
    "filenames": set(),
    "lazy": set(),
    "native": set(),
    "packing": set(),
    "printable": set(),
    "saved": set(),
    "symbols": set(),
    "units": set(),
    "errors": {"printable", "version"},
    "guard": {"errors"},
    "limits": {"errors"},
    "config_files": {"errors", "limits"},
    "plugins": {"errors", "guard"},
    "registry": {"errors", "plugins"},
    "table": BASE,
    "trace": BASE | {"table"},
    "costs": BASE,
    "devices": BASE,
    "calibrate": BASE | {"devices"},
    "read": BASE | {"table", "trace"},
    "outputs": BASE | {"read"},
    "analysis": BASE | {"table", "trace", "costs", "devices"},
    "planner": BASE | {"table", "trace", "costs", "devices", "analysis"},
    "what_if": BASE | {"table", "trace", "devices", "analysis"},
    "compare": BASE | {"table", "trace", "analysis"},
    "findings": BASE | {"table", "trace", "devices", "analysis", "what_if"},
    "opportunities": BASE
    | {"table", "trace", "costs", "devices", "analysis", "planner", "what_if", "findings"},
    "reproducers": BASE | {"table", "trace", "read", "costs", "devices", "analysis", "findings", "outputs"},
    "merge": BASE | {"trace", "outputs"},
    "workers": BASE | {"table", "trace", "read", "analysis"},
    "rendering": BASE | {"table", "outputs"},
    "recording": BASE | {"outputs"},
    "workload": BASE | {"recording", "planner", "outputs"},
    "session": BASE
    | {
        "table",
        "trace",
        "devices",
        "read",
        "outputs",
        "analysis",
        "planner",
        "what_if",
        "compare",
        "findings",
    }
    | {"reproducers", "merge", "workers", "rendering"},
}
EVERYTHING = set(ALLOWED) | {PACKAGE}
ALLOWED |= {
    "cli": EVERYTHING,  # the workload only as test_what_needs_torch_is_imported_by_its_command_only says
    "__main__": {"cli"},
    PACKAGE: EVERYTHING
    - {"workload", "calibrate"},  # the public API; lazily, see test_the_public_api_imports_lazily
}
FLOORS = (
    {"common"},
    {"host"},
    {"comm"},
    {"roofline"},
    {"completeness", "pipeline", "serving", "stragglers"},
    {"moe"},
    {"fusable", "overview"},
    {"step_timeline"},
    {"wide"},
)
"""The rooms of `analysis` from the ground up; each is built on those below it."""
PAST_THE_DOOR = 533
"""Imports of tests that still reach past a door. It may fall, never rise."""
# What `import tracelens` may run: these import neither pandas nor numpy.
LIGHT = {
    "errors",
    "filenames",
    "guard",
    "lazy",
    "limits",
    "plugins",
    "printable",
    "registry",
    "symbols",
    "units",
    "version",
}

MODULES = modules()
NAMES = {module.name for module in MODULES}
ROOMS = {module.name for module in MODULES if module.is_package}


def exported(module: Module) -> set[str]:
    """The names in `__all__`; without one, what the room imports of its modules, lazily too, or defines."""
    names: set[str] = set()
    for node in module.tree.body:
        target = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if target == "__all__":
            return set(ast.literal_eval(node.value))
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{module.name}."):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, Definition):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and "__getattr__" in target:
            names.update(*(text.split() for text in ast.literal_eval(node.value.args[1]).values()))
        elif target.isidentifier():
            names.add(target)
    return {name for name in names if not name.startswith("_")}


EXPORTED = {module.name: exported(module) for module in MODULES if module.is_package}
"""What rooms export; a function may have the name of the module that it is in."""


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


@cache
def imports(module: Module) -> tuple[Import, ...]:
    """Every import in a module, with the function or class it stands in ('' at the top)."""

    by_name = "import_module" in module.text or "__import__" in module.text

    def walk(node: ast.AST, inside: str, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and not by_name:
                continue
            for target in targets(module, child):
                yield Import(module.at(child), inside, target, typing_only)
            name, typed = inside, typing_only
            if isinstance(child, Definition):
                name = f"{inside}.{child.name}" if inside else child.name
            if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                typed = True
            yield from walk(child, name, typed)

    tree = module.tree
    with uncollected():
        return tuple(walk(tree, "", False))


def targets(module: Module, node: ast.AST) -> list[str]:
    """The modules one statement imports; a name imported from a package may be a module of it."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        package = module.name.split(".")
        package = package[: len(package) - node.level + module.is_package] if node.level else []
        base = ".".join([*package, *(node.module or "").split(".")]).strip(".")
        names = [alias.name for alias in node.names if alias.name not in EXPORTED.get(base, ())]
        full = [f"{base}.{name}" for name in names]
        doors = [base] * (len(names) < len(node.names))
        return doors + [name if name in NAMES else base for name in full]
    called = getattr(node, "func", None)  # of a call
    if getattr(called, "attr", getattr(called, "id", "")) in ("import_module", "__import__"):
        assert isinstance(node, ast.Call)
        return [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return []


def own(module: Module) -> list[Import]:
    """The imports of a module that stay inside tracelens."""
    return [found for found in imports(module) if found.target.split(".")[0] == PACKAGE]


def test_only_allowed_arrows() -> None:
    unknown = {layer(module.name) for module in MODULES} - set(ALLOWED)
    assert not unknown, "no known parts of tracelens; add their arrows to ALLOWED"
    wrong = [
        f"{found.where}: {module.name} imports {found.target}, but {here} may import "
        f"{', '.join(sorted(ALLOWED[here])) or 'nothing'}"
        for module in MODULES
        if (here := layer(module.name))
        for found in own(module)
        if layer(found.target) != here and layer(found.target) not in ALLOWED[here]
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["workload", "calibrate"])
def test_what_needs_torch_is_imported_by_its_command_only(name: str) -> None:
    wrong = [
        f"{found.where}: {found.target} outside a function of tracelens.cli.{name}"
        for module in MODULES
        for found in own(module)
        if layer(found.target) == name != layer(module.name)
        and not (module.name.startswith(f"tracelens.cli.{name}") and (found.inside or found.typing_only))
    ]
    assert not wrong, "\n".join(wrong)


def test_torch_is_imported_where_traces_are_made_only() -> None:
    wrong = [
        found.where
        for module in MODULES
        if layer(module.name) not in ("calibrate", "recording", "workload")
        for found in imports(module)
        if found.target.split(".")[0] == "torch"
    ]
    assert not wrong, f"torch is an optional library of calibrate, recording and workload: {', '.join(wrong)}"


def test_the_public_api_imports_lazily() -> None:
    module = next((module for module in MODULES if module.name == PACKAGE), None)
    assert module is not None, "tracelens/__init__.py is missing"
    wrong = [
        f"{found.where}: {found.target} at the top; import it inside the function that needs it"
        for found in own(module)
        if not found.inside and not found.typing_only and layer(found.target) not in LIGHT
    ]
    assert not wrong, "\n".join(wrong)


def room(name: str) -> str:
    """The folder of a module; a folder's own is itself."""
    return name if name in ROOMS else name.rpartition(".")[0]


def test_rooms_are_entered_by_the_door() -> None:
    wrong = [
        f"{found.where}: {found.target} is internal to {room(found.target)}; import what that exports"
        for module in MODULES
        for found in own(module)
        if found.target not in ROOMS and not f"{room(module.name)}.".startswith(f"{room(found.target)}.")
    ]
    assert not wrong, "\n".join(wrong)


def test_what_a_room_exports_is_imported_by_others() -> None:
    everywhere = [module for folder in (PACKAGE, "tests", "docs", "benchmarks") for module in modules(folder)]
    words = [(room(module.name), set(re.findall(r"\w+", module.text))) for module in everywhere]
    unused = [
        f"{module}: {name}"
        for module in MODULES
        if module.is_package and "__all__" not in module.text
        for name in sorted(exported(module))
        if len(re.findall(rf"\b{name}\b", module.text)) == 1  # the room itself has no use for it
        if not any(name in there for home, there in words if home != module.name)
    ]
    assert not unused, "\n".join(unused)


def test_tests_enter_by_the_door() -> None:
    past = [
        f"{found.where}: {found.target} is internal to {room(found.target)}; import what that exports"
        for module in modules("tests")
        for found in own(module)
        if found.target not in ROOMS and room(found.target) != PACKAGE
    ]
    assert len(past) <= PAST_THE_DOOR, "\n".join(past)


def floor(name: str) -> int:
    """The floor of a module of `analysis`, -1 for others."""
    parts = name.split(".")
    if parts[1:2] != ["analysis"] or len(parts) < 3 or parts[2] in ("analyzer", "options"):
        return -1
    return next(number for number, rooms in enumerate(FLOORS) if parts[2] in rooms)


def test_rooms_of_the_analysis_are_built_on_lower_ones() -> None:
    wrong = [
        f"{found.where}: {module.name} imports {found.target}, which is not on a lower floor"
        for module in MODULES
        if floor(module.name) >= 0
        for found in own(module)
        if room(found.target) != room(module.name) and floor(found.target) >= floor(module.name)
    ]
    assert not wrong, "\n".join(wrong)


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """A cycle of the graph, [] where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_cycles_between_files() -> None:
    graph = {
        module.name: {found.target for found in own(module) if not found.typing_only} - {module.name}
        for module in MODULES
        if module.name != PACKAGE  # as a name's home it stands for `__version__`; nobody imports more of it
    }
    assert cycle(graph) == []


def test_no_cycles_between_rooms() -> None:
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        here = room(module.name)
        for found in own(module):
            there = room(found.target)
            # A room inside another is part of it: each may use the other.
            if not f"{here}.".startswith(f"{there}.") and not f"{there}.".startswith(f"{here}."):
                graph.setdefault(here, set()).add(there)
    assert cycle(graph) == []


def is_lazy(module: Module) -> bool:
    """Whether an `__init__` imports nothing of its room."""
    return not any(
        found.target.startswith(f"{module.name}.") and not found.typing_only for found in imports(module)
    )


def test_no_export_is_hidden_by_a_module() -> None:
    """Importing `room/name.py` binds `room.name` to the module, unless `__init__` has bound the name."""
    hidden = {
        f"{module.name}.{name}"
        for module in MODULES
        if module.is_package and is_lazy(module)
        for name in exported(module)
    }
    assert not hidden & NAMES, "exports that are names of modules as well"


@pytest.mark.parametrize(
    ("text", "inside", "target"),
    [
        ("import tracelens.read.formats.kineto", "", "tracelens.read.formats.kineto"),
        ("from tracelens import guard", "", "tracelens.guard"),
        ("from tracelens import load", "", "tracelens"),
        ("from tracelens.errors import ParseError", "", "tracelens.errors"),
        ("from ..table.schema import Column", "", "tracelens.table.schema"),
        ("from .. import guard", "", "tracelens.guard"),
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
