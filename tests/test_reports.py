"""The example reports in reports/ are what the command makes of the sample traces today (`make reports`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli import run

ROOT = Path(__file__).parents[1]
REPORTS = sorted(path.stem for path in (ROOT / "reports").glob("*.md"))
COMPARED = {"diff_moe_loop_grouped": ("moe_loop", "moe_grouped")}
"""Reports of two traces; all others are of the trace of their name."""


@pytest.fixture
def remade(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report of the sample trace, or of two, made from the repository's root as `make reports` does."""
    monkeypatch.chdir(ROOT)
    name, suffix = request.param
    target = tmp_path / f"{name}.{suffix}"
    traces = [f"sample_traces/{trace}.json.gz" for trace in COMPARED.get(name, (name,))]
    assert run(["diff" if name in COMPARED else "report", *traces, "-o", str(target)]) == 0
    return target


def test_there_are_reports() -> None:
    assert {"moe_loop", *COMPARED} <= set(REPORTS)


@pytest.mark.parametrize("remade", [(name, "md") for name in REPORTS], indirect=True, ids=REPORTS)
def test_markdown_is_current(remade: Path) -> None:
    assert remade.read_text() == (ROOT / "reports" / remade.name).read_text()


@pytest.mark.parametrize("remade", [(name, "json") for name in REPORTS], indirect=True, ids=REPORTS)
def test_json_is_current(remade: Path) -> None:
    """Integers and texts exactly; floats to rounding, which differs between builds of numpy."""
    _same(json.loads(remade.read_text()), json.loads((ROOT / "reports" / remade.name).read_text()), "")


def _same(new: Any, old: Any, where: str) -> None:
    assert type(new) is type(old), where
    if isinstance(new, dict):
        assert list(new) == list(old), where
        for key in new:
            _same(new[key], old[key], f"{where}/{key}")
    elif isinstance(new, list):
        assert len(new) == len(old), where
        for place, (left, right) in enumerate(zip(new, old, strict=True)):
            _same(left, right, f"{where}/{place}")
    elif isinstance(new, float):
        assert new == pytest.approx(old, rel=1e-12, abs=1e-12), where
    else:
        assert new == old, where
