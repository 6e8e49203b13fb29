"""The modules of the package as the architecture tests see them: files and syntax trees."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.garbage import uncollected

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "tracelens"
COMPILED = ROOT / PACKAGE / "rendering/assets/compiled"  # what jinja2 makes of templates

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass(frozen=True)
class Module:
    """One Python file: its dotted name, path and text."""

    name: str
    path: Path
    text: str

    def __str__(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def tree(self) -> ast.Module:
        return _parse(self.path, self.text)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree."""
        return _walk(self.path, self.text)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def at(self, node: ast.AST) -> str:
        """`file:line` of a node, for messages."""
        return f"{self}:{getattr(node, 'lineno', 1)}"


@cache
def _parse(path: Path, text: str) -> ast.Module:
    with uncollected():
        return ast.parse(text, filename=str(path))


@cache
def _walk(path: Path, text: str) -> tuple[ast.AST, ...]:
    tree = _parse(path, text)
    with uncollected():
        return tuple(ast.walk(tree))


@cache
def modules(folder: str = PACKAGE) -> tuple[Module, ...]:
    """All modules below a folder of the repository, in order of name; read and parsed once for all tests."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        if path.is_relative_to(COMPILED):
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, path.read_text(encoding="utf-8")))
    return tuple(found)


def definitions(tree: ast.Module) -> list[tuple[str, Definition]]:
    """(qualified name, node) of every class, function and method, nested ones too."""
    found: list[tuple[str, Definition]] = []

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, Definition):
                name = f"{prefix}.{child.name}" if prefix else child.name
                found.append((name, child))
            walk(child, name)

    walk(tree, "")
    return found
