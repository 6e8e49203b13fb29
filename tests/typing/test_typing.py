"""What a user's editor knows: types without gaps, and signatures and docstrings that say units."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas
import pytest

import tracelens
from tests.effort import THOROUGH
from tests.typing.language_server import editor

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("script.py")
FUNCTIONS = [
    *(name for name in tracelens.__all__ if inspect.isfunction(getattr(tracelens, name))),
    *("Run.kernels", "Run.ops", "Run.collectives"),
]
UNITS = re.compile(
    r"\b(?:ns|us|ms|bytes|GiB|GB|fraction|share|ratio|level|times|relative)\b|0 to 1", re.IGNORECASE
)


def test_the_script_uses_every_public_name() -> None:
    nodes = ast.walk(ast.parse(SCRIPT.read_text()))
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    assert {f"tracelens.{name}" for name in tracelens.__all__} <= used
    assert {"run.kernels", "run.ops", "run.collectives"} <= used


@pytest.mark.slow
@pytest.mark.skipif(not THOROUGH, reason="make lint checks the script: files in pyproject.toml")
def test_mypy_strict_passes_on_a_users_script(tmp_path: Path) -> None:
    """With the libraries of this environment, but no other copy of the package than this one."""
    pytest.importorskip("mypy")
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").rglob("site-packages")
    (packages / "libraries.pth").write_text(str(Path(pandas.__file__).parents[1]))
    python = f"--python-executable={tmp_path / 'venv/bin/python'}"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", python]
    done = subprocess.run(
        [*command, "--cache-dir=.mypy_cache/script", str(SCRIPT)],
        cwd=ROOT, env=os.environ | {"MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def diagnostics(script: Path, folder: Path) -> list[dict[str, Any]]:
    """What basedpyright says of a script in its strict mode, which reports every Unknown type."""
    pytest.importorskip("basedpyright")
    config = {"include": [str(script)], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "basedpyright", "-p", str(folder), "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--outputjson"], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    found: list[dict[str, Any]] = report["generalDiagnostics"]
    return found


@pytest.mark.slow
def test_no_type_in_a_users_script_is_unknown(tmp_path: Path) -> None:
    assert [item["message"] for item in diagnostics(SCRIPT, tmp_path)] == []


@pytest.mark.slow
def test_wrong_calls_are_errors(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("import tracelens\nrun = tracelens.load('a')\nrun.kernels(step=1.5)\nrun.kernel()\n")
    rules = [item["rule"] for item in diagnostics(script, tmp_path)]
    assert {"reportArgumentType", "reportAttributeAccessIssue"} <= set(rules)


@pytest.mark.slow
def test_an_editor_completes_and_explains_every_name(tmp_path: Path) -> None:
    """Completion lists the names; hovering shows signature, types, arguments and units."""
    pytest.importorskip("basedpyright")
    environment = Path(sys.prefix)
    config = {"extraPaths": [str(ROOT)], "venvPath": str(environment.parent), "venv": environment.name}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    script = tmp_path / "script.py"
    lines = ["import tracelens", *(f"tracelens.{name}" for name in FUNCTIONS), "tracelens."]
    script.write_text("\n".join(lines) + "\n")
    with editor(script) as opened:
        assert set(tracelens.__all__) <= opened.completions(len(lines) - 1, len("tracelens."))
        for line, name in enumerate(FUNCTIONS, start=1):
            shown = opened.hover(line, len(lines[line]) - 1)
            function = attrgetter(name)(tracelens)
            assert f"{function.__name__}(" in shown
            assert " -> " in shown
            assert not re.search(r"\bUnknown\b", shown), shown
            if hasattr(function, "request"):  # the text of its arguments is made from the options at run time
                assert all(f"{parameter}:" in shown for parameter in _parameters(function)), shown
                continue
            assert all(f"    {parameter}: " in shown for parameter in _parameters(function)), shown
            assert ("Returns:" in shown) == _returns(function)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstrings_describe_arguments_and_results(name: str) -> None:
    function = attrgetter(name)(tracelens)
    doc = inspect.getdoc(function) or ""
    summary = doc.splitlines()[0]
    assert summary.endswith((".", "?"))
    assert len(summary) < 110
    for parameter in _parameters(function):
        assert re.search(rf"^    {parameter}: \S", doc, re.MULTILINE), f"{name}: {parameter}"
    assert _returns(function) == ("Returns:" in doc), name


def _parameters(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


def _returns(function: Callable[..., Any]) -> bool:
    """Whether it returns more than None."""
    return str(inspect.signature(function).return_annotation) != "None"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_quantities_have_units(name: str) -> None:
    """The unit of a number that is no count is the end of its name, or in its description."""
    function = attrgetter(name)(tracelens)
    doc = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters.values():
        if not re.search(r"\bfloat\b", str(parameter.annotation)):
            continue
        text = re.search(rf"^    {parameter.name}: (.*(?:\n      .*)*)", doc, re.MULTILINE)
        has_unit = re.search(r"_(?:ns|us|ms|gb|gib|bytes)$", parameter.name)
        assert has_unit or (text and UNITS.search(text[1])), f"{name}: {parameter.name}: {text and text[1]}"


@pytest.mark.parametrize("name", ["kernels", "ops", "collectives"])
def test_tables_of_a_run_say_units(name: str) -> None:
    doc = inspect.getdoc(getattr(tracelens.Run, name)) or ""
    returns = doc.partition("Returns:")[2].partition("Raises:")[0]
    assert "one row per" in returns
    assert re.search(r"\bns\b", returns)
    assert "nanoseconds" in (inspect.getdoc(tracelens.Run) or "")
