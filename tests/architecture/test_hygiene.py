"""Habits that are kept out of the package, and things that must not get into the repository."""

import ast
import gzip
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, Module, modules

MODULES = modules()
# What a person sees is written by the command line.
MAY_PRINT = ("tracelens/cli/",)
# A forked copy of a process must end without running what the original registered for its own end.
MAY_EXIT = {
    "tracelens/workers/cores.py": {"os._exit"},
    "tracelens/reproducers/verify/runner.py": {"SystemExit"},  # a program of its own
}

BROAD = {"Exception", "BaseException"}
GUARD = "tracelens/guard.py"  # the one place that catches what nobody expected
EVALUATORS = {"eval", "exec", "builtins.eval", "builtins.exec", "pd.eval", "pandas.eval"}
SPEAKERS = {"print", "exit", "quit", "sys.exit", "os._exit", "SystemExit"}

# Written in pieces, or this file would find itself. The homes of "me" and "user" are for test data.
MACHINE_PATH = re.compile(
    r"(?<![\w.$}~-])/(?!home/(?:me|user)/)(?:home|root|Users|work|workspace|mnt)" + r"/\w",
)
INDEX_HOST = re.compile("pypi" + r"\.org|python" + r"hosted\.org|index" + "-url|art" + "ifactory")
UNFINISHED = re.compile(r"\b(?:TO" + "DO|FIX" + r"ME)\b")

HEAVY = ("numpy", "pandas", "plotly", "torch")


def broad_excepts(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {ast.unparse(name) if name else "" for name in caught}
        if names & (BROAD | {""}):
            yield f"{module.at(node)}: name the errors that can happen here"


def test_no_broad_except() -> None:
    wrong = [line for module in MODULES if str(module) != GUARD for line in broad_excepts(module)]
    assert not wrong, "\n".join(wrong)


def calls(module: Module, names: set[str]) -> Iterator[str]:
    """`file:line: name` of every call of, and bare `raise` of, one of the names."""
    for node in module.nodes:
        called = (
            node.func if isinstance(node, ast.Call) else node.exc if isinstance(node, ast.Raise) else None
        )
        if isinstance(called, ast.Name | ast.Attribute) and ast.unparse(called) in names:
            yield f"{module.at(node)}: {ast.unparse(called)}"


def test_no_eval() -> None:
    wrong = [call for module in MODULES for call in calls(module, EVALUATORS)]
    assert not wrong, "\n".join(wrong)


def test_only_the_command_line_prints_and_exits() -> None:
    wrong = [
        call
        for module in MODULES
        if not str(module).startswith(MAY_PRINT)
        for call in calls(module, SPEAKERS - MAY_EXIT.get(str(module), set()))
    ]
    assert not wrong, "\n".join(wrong)


@cache
def tracked() -> tuple[Path, ...]:
    """The files of the repository: those git knows or would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not a git checkout, or no git: {error}")
    return tuple(path for name in sorted(set(listed.split("\0")) - {""}) if (path := ROOT / name).is_file())


@cache
def texts() -> dict[str, str]:
    """Text of every tracked text file; sample traces are looked into as well."""
    found = {}
    for path in tracked():
        data = gzip.decompress(path.read_bytes()) if path.name.endswith(".json.gz") else path.read_bytes()
        if b"\0" not in data[:8192]:
            found[path.relative_to(ROOT).as_posix()] = data.decode("utf-8", errors="replace")
    return found


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        pytest.param(MACHINE_PATH, "a path of somebody's machine", id="machine paths"),
        pytest.param(INDEX_HOST, "the host of a package index", id="index hosts"),
        pytest.param(UNFINISHED, "a note of unfinished work", id="unfinished"),
    ],
)
def test_no_such_text_in_the_repository(pattern: re.Pattern[str], what: str) -> None:
    wrong = []
    for name, text in texts().items():
        for found in list(pattern.finditer(text))[:5]:
            line = text.count("\n", 0, found.start()) + 1
            wrong.append(f"{name}:{line}: {what}: {text[found.start() : found.end() + 40].splitlines()[0]!r}")
    assert not wrong, "\n".join(wrong)


def loaded_by(statement: str) -> set[str]:
    """The heavy libraries that are loaded after a statement in a fresh interpreter."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split()) & set(HEAVY)


def test_importing_the_package_is_cheap() -> None:
    assert loaded_by("import tracelens") == set()


def test_the_command_line_starts_without_torch_and_plotly() -> None:
    assert not loaded_by("import tracelens.cli") & {"torch", "plotly"}
