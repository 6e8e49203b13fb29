"""`tracelens calibrate` where it cannot run; tests/calibrate runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def test_without_torch_it_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tracelens", "calibrate", "-o", str(tmp_path / "x.toml")],
        capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "tracelens: tracelens calibrate needs an optional library: pip install 'tracelens-moe[workload]' "
        "(in a checkout: pip install '.[workload]')\n"
    )
    assert not (tmp_path / "x.toml").exists()


def test_an_output_that_cannot_be_written_is_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "is a directory" in refused("calibrate", "-o", str(tmp_path)).lower()
