"""The files that say what is installed agree with each other, and every package has its hashes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_PIN = re.compile(r"^([a-z0-9.-]+)==([^\s;\\]+)", re.MULTILINE)
_LOCKED = re.compile(
    r"^([a-z0-9.-]+)==([^\s;\\]+)[^\\\n]*((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE
)


def pins(name: str) -> dict[str, str]:
    """Package to version."""
    return dict(_PIN.findall((ROOT / name).read_text()))


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_package_has_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    locked = {package: hashes.count("sha256:") for package, _, hashes in _LOCKED.findall(text)}
    assert set(locked) == set(pins(name))
    assert min(locked.values()) >= 1


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_versions_are_those_of_the_constraints(name: str) -> None:
    constraints = pins("constraints.txt")
    elsewhere = {package for package in pins(name) if package not in constraints}
    assert {package: pins(name)[package] for package in pins(name) if package not in elsewhere} == {
        package: version for package, version in constraints.items() if package in pins(name)
    }
    # What other systems and Pythons need besides.
    assert all(
        re.search(rf"^{package}==\S+ ; ", (ROOT / name).read_text(), re.MULTILINE) for package in elsewhere
    )


def test_what_the_project_needs_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    names = {re.split(r"[\[><=~!; ]", need)[0] for need in needed}
    assert names <= set(pins("requirements.txt")) <= set(pins("requirements-dev.txt"))
    extra = {re.split(r"[\[><=~!; ]", need)[0] for need in project["project"]["optional-dependencies"]["dev"]}
    assert extra <= set(pins("requirements-dev.txt"))


def test_the_action_installs_what_is_locked() -> None:
    action = (ROOT / "action.yml").read_text()
    installs = re.findall(r'^ *"\$\{pip\[@\]\}" install (.*)$', action, re.MULTILINE)
    assert installs == [
        '--require-hashes -r "$SOURCE/requirements.txt"',
        '--no-deps --no-build-isolation "${VERSION:-$SOURCE}"',
    ]
