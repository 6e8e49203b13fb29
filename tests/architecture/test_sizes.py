"""Modules and functions stay small enough to be read in one go."""

import pytest

from tests.architecture.source import Function, Module, definitions, modules

MODULE_LINES = 400
FUNCTION_LINES = 60

MODULES = modules() + modules("benchmarks")


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_module_size(module: Module) -> None:
    lines = len(module.text.splitlines())
    assert lines <= MODULE_LINES, f"{module}: {lines} lines, at most {MODULE_LINES}: split it"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_function_sizes(module: Module) -> None:
    wrong = []
    for name, node in definitions(module.tree):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if isinstance(node, Function) and lines > FUNCTION_LINES:
            wrong.append(f"{module.at(node)}: {name} has {lines} lines, at most {FUNCTION_LINES}")
    assert not wrong, "\n".join(wrong)
