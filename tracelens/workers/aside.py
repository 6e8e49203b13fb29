"""The slowest analyzer's work on one large trace in a copy of this process, beside the work of the others."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_WORTH_EVENTS = 100_000
"""A copy of the process and the way back take as long as the work on a smaller trace."""


@contextmanager
def beside(work: Callable[[], Any], events: int, cores: int) -> Iterator[Callable[[], tuple[Any, ...]]]:
    """Do some work beside what the `with` block does, where that is possible and worth it.

    Yields:
        a function that waits for the result: (result,), or () where the work is still to be done.
    """
    if events < _WORTH_EVENTS or cores < 2 or not hasattr(os, "fork"):
        yield tuple
        return
    aside = ForkedWork(work)
    try:
        yield aside.result
    finally:
        aside.end()


class ForkedWork:
    """Work that a forked copy of this process does; only for processes without threads."""

    def __init__(self, work: Callable[[], Any]) -> None:
        source, target = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(source)
            code = 1
            try:  # whatever goes wrong ends the copy without a word
                data = pickle.dumps(work(), protocol=5)
                with os.fdopen(target, "wb") as stream:
                    stream.write(data)
                code = 0
            finally:
                os._exit(code)
        os.close(target)
        self._source: int | None = source

    def result(self) -> tuple[Any, ...]:
        """(the result,), or () where the copy failed: the work done here then says why."""
        assert self._source is not None
        with os.fdopen(self._source, "rb") as stream:
            data = stream.read()
        self._source = None
        _, status = os.waitpid(self._pid, 0)
        return (pickle.loads(data),) if status == 0 else ()

    def end(self) -> None:
        """End the copy, if nobody has asked for its result."""
        if self._source is not None:
            os.close(self._source)
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._source = None
