"""Modules and functions stay small enough to be read in one go."""

from tests.architecture.source import Function, definitions, modules

MODULE_LINES = 400
FUNCTION_LINES = 60

MODULES = modules() + modules("benchmarks")


def test_module_size() -> None:
    wrong = [
        f"{module}: {lines} lines, at most {MODULE_LINES}: split it"
        for module in MODULES
        if (lines := len(module.text.splitlines())) > MODULE_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_function_sizes() -> None:
    wrong = [
        f"{module.at(node)}: {name} has {lines} lines, at most {FUNCTION_LINES}"
        for module in MODULES
        for name, node in definitions(module.tree)
        if isinstance(node, Function)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]
    assert not wrong, "\n".join(wrong)
