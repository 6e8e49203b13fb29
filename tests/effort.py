"""How hard the tests try: as every change needs it, or all they can (TRACELENS_TESTS=thorough)."""

import os
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

THOROUGH = os.environ.get("TRACELENS_TESTS") == "thorough"

LARGE = ("nvidia-h200-megatron/pp2ep4", "nvidia-h200-megatron/pp2vpp2ep4")
"""Runs of eight ranks beside which nvidia-h200-megatron/ep8 stands for their kind: sweeps over all recordings
read them when thorough. What only a pipeline shows is tested on them always, by name."""


def effort(usual: T, thorough: T) -> T:
    """One of two settings, by how hard the tests try."""
    return thorough if THOROUGH else usual


def swept(path: Path | str) -> bool:
    """Whether a sweep over all recordings reads this one."""
    return THOROUGH or not any(f"{name}/" in f"{path}/" for name in LARGE)
