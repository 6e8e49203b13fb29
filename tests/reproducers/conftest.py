"""What tests of `replay verify` share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.reproducers.fake_torch import TORCH


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake, in an environment of its own: scripts see what is installed, and nothing else."""
    home = tmp_path / "environment"
    packages = home / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text(TORCH)
    (home / "bin").mkdir()
    real = Path(sys.executable).resolve()
    (home / "bin" / "python").symlink_to(real)
    (home / "pyvenv.cfg").write_text(f"home = {real.parent}\n")
    monkeypatch.setattr(sys, "executable", str(home / "bin" / "python"))
    return packages
