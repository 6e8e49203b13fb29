"""Public modules, classes and functions have docstrings, and everything public complete type annotations."""

import ast

from tests.architecture.source import Definition, Function, Module, modules


def is_public(name: str) -> bool:
    return not name.startswith("_")


def public(module: Module) -> list[tuple[str, Definition, bool]]:
    """(qualified name, node, is a method) of public classes, functions and methods; none inside functions."""
    found: list[tuple[str, Definition, bool]] = []

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.If | ast.Try):
                walk([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)], prefix)
            elif isinstance(node, Definition) and (is_public(node.name) or node.name == "__init__"):
                found.append((prefix + node.name, node, bool(prefix)))
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{prefix}{node.name}.")

    walk(module.tree.body, "")
    return found


def decorators(node: Definition) -> set[str]:
    return {ast.unparse(decorator).split("(")[0].split(".")[-1] for decorator in node.decorator_list}


def unannotated(node: Function, is_method: bool) -> list[str]:
    """Parameters without a type, and 'return'; self and cls need none."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    if is_method and "staticmethod" not in decorators(node):
        plain = plain[1:]
    star = [arg for arg in (arguments.vararg, arguments.kwarg) if arg]
    missing = [arg.arg for arg in (*plain, *arguments.kwonlyargs, *star) if arg.annotation is None]
    return missing if node.returns is not None else [*missing, "return"]


MODULES = [module for module in modules() if all(is_public(part) for part in module.name.split("."))]


def test_docstrings() -> None:
    wrong = [
        f"{module}:1: the module has no docstring" for module in MODULES if not ast.get_docstring(module.tree)
    ]
    wrong += [
        f"{module.at(node)}: {name} has no docstring"
        for module in MODULES
        for name, node, is_method in public(module)
        # A method's name may say it all.
        if not is_method and "overload" not in decorators(node) and not ast.get_docstring(node)
    ]
    assert not wrong, "\n".join(wrong)


def test_annotations() -> None:
    wrong = [
        f"{module.at(node)}: {name} has no type for {', '.join(missing)}"
        for module in MODULES
        for name, node, is_method in public(module)
        if isinstance(node, Function) and (missing := unannotated(node, is_method))
    ]
    assert not wrong, "\n".join(wrong)
