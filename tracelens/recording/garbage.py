"""Garbage collections as scopes, where torch does not record them itself."""

from __future__ import annotations

import gc
from typing import Any, Literal

from torch.profiler import record_function

from tracelens.recording.scopes import recording

NAME = "Python GC"
"""What torch calls a collection."""


class Collections:
    """Puts a scope around each garbage collection, until removed.

    torch records collections only together with Python frames, and those are too slow to be on by default.
    """

    def __init__(self) -> None:
        self._scope: Any = None
        gc.callbacks.append(self._collected)

    def remove(self) -> None:
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: Literal["start", "stop"], _: dict[str, int]) -> None:
        # One collection runs at a time, and ends on the thread on which it began.
        if phase == "start" and recording():
            self._scope = record_function(NAME)
            self._scope.__enter__()
        elif phase == "stop" and self._scope is not None:
            self._scope.__exit__(None, None, None)
            self._scope = None
