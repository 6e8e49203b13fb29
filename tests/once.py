"""Folders that the first worker of a session makes for all of them."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this name, which `make` fills unless another worker has done it or is at it.

    Its files are shared: tests read them only.
    """
    folder = factory.mktemp(name)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        make(folder)
        return folder
    shared = factory.getbasetemp().parent / name
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared.exists():
            make(folder)
            folder.rename(shared)
    return shared
