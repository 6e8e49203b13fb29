"""The wheel of this checkout, built once, and environments to install it into."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from tests.distribution.environment import Environment, build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return build_wheel(tmp_path_factory.mktemp("wheel"))
    # Whichever worker comes first builds it for all.
    folder = base.parent / "wheel"
    with (base.parent / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            built = build_wheel(tmp_path_factory.mktemp("wheel"))
            folder.mkdir()
            return built.rename(folder / built.name)
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
