"""Fixtures that several files of tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.workload.recorded import Recorded


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Recorded runs, by name; they are made when first asked for."""
    from tests.workload.recorded import Recorded  # needs torch, which other tests here do not

    return Recorded(tmp_path_factory)
