"""`tracelens.whatif` is there without being imported before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tracelens
from tests.what_if.replays import interval, run_of
from tracelens.table import Result


def test_the_function_is_part_of_the_package() -> None:
    assert "whatif" in tracelens.__all__
    result = tracelens.whatif(run_of("step 0 | ----\nlaunch | a\ns7 gemm |  aaaaa"), ["scale:*gemm*=2"])
    assert isinstance(result, Result)
    assert interval(result, "scale:*gemm*=2") == (11, 11, 11)


def test_it_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, tracelens; assert 'numpy' not in sys.modules;"
        "assert 'tracelens.planner' not in sys.modules;"
        "tracelens.whatif; assert 'tracelens.what_if.projection' in sys.modules;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
