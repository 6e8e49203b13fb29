"""The wheel of this checkout, built once, and environments to install it into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution.environment import Environment, build_wheel
from tests.once import made_once


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (built,) = made_once(tmp_path_factory, "wheel", build_wheel).iterdir()
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
