"""The native core: loops over every event, compiled from C++ where the installation found a compiler.

Each compiled function has a twin in Python that gives the same results and stands in where the extension was
not built. TRACELENS_PURE=1 leaves it unused, and unbuilt when set while installing.
"""

from __future__ import annotations

import os
from types import ModuleType

PURE = "TRACELENS_PURE"

_compiled: ModuleType | None
try:
    from tracelens.native import _core as _compiled
except ImportError:
    _compiled = None


def core() -> ModuleType | None:
    """The compiled functions (see _core.pyi), None where Python does the work."""
    return None if os.environ.get(PURE, "") not in ("", "0") else _compiled


def core_name() -> str:
    """Which core runs, for people."""
    return "native core" if core() else "pure Python core"


__all__ = ["PURE", "core", "core_name"]
