"""The native core: it is built from the sources beside it, and can be left out."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tests.architecture.source import ROOT
from tracelens.native import PURE, core, core_name


def test_it_is_built_from_these_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PURE, raising=False)
    native = core()
    if native is None:
        pytest.skip("the native core is not built")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    spec.loader.exec_module(hook)
    assert hook.sources_digest(ROOT / hook.FOLDER) == native.SOURCES, "run make, which compiles it again"


@pytest.mark.parametrize(("value", "is_pure"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch, value: str, is_pure: bool) -> None:
    monkeypatch.delenv(PURE, raising=False)
    if core() is None:
        pytest.skip("the native core is not built")
    monkeypatch.setenv(PURE, value)
    assert (core() is None) == is_pure
    assert core_name() == ("pure Python core" if is_pure else "native core")


@pytest.mark.parametrize("name", ["ancestor_sums", "subtree_sums"])
@pytest.mark.parametrize("parent", [[-1, 1], [1, -1], [-1, 2]])
def test_sums_need_parents_before_their_rows(name: str, parent: list[int]) -> None:
    native, total = core(), np.array([3, 5])
    if native is None:
        pytest.skip("the native core is not built")
    assert not getattr(native, name)(np.array(parent, dtype=np.int64), total)
    assert total.tolist() == [3, 5]
    with pytest.raises(ValueError, match="arrays of 1 and 2 rows"):
        getattr(native, name)(np.zeros(1, dtype=np.int64), total)
