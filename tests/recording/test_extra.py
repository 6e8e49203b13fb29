"""Recording is an extra: tracelens does without torch until a loop is recorded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tracelens
from tracelens.errors import MissingExtra


def test_without_torch_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == "torch" or name.startswith("tracelens.recording."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra) as caught:
        tracelens.record("traces")
    assert "needs an optional library: pip install 'tracelens-moe[workload]'" in str(caught.value)


def test_importing_tracelens_imports_no_torch() -> None:
    code = "import sys, tracelens; tracelens.record; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
    with pytest.raises(AttributeError, match="has no attribute 'recorder'"):
        tracelens.recorder  # noqa: B018
