"""The wheel of this checkout, built once, and environments to install it into."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.distribution.environment import ROOT, Environment


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*command, *options], cwd=folder, check=True, capture_output=True, timeout=300)
    (built,) = folder.iterdir()
    return built


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """An empty environment."""
    return Environment(tmp_path / "environment")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with tracelens, for tests that only add to it."""
    made = Environment(tmp_path_factory.mktemp("installed") / "environment")
    made.install(wheel)
    return made
