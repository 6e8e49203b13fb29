"""The slowest analyzer's work on one large trace in a copy of this process, beside the work of the others."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tracelens.workers.children import jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.analysis import Analyzer
    from tracelens.table import Result
    from tracelens.trace import Run

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


def analyze_run(
    run: Run, analyzers: Sequence[Analyzer], *, fork: bool, progress: Callable[[str], None], **options: Any
) -> list[Result]:
    """Analyze a run that is in memory.

    Args:
        run: all of it.
        analyzers: in the order of the results.
        fork: whether a copy of this process may run the slow ones, beside the others.
        progress: called with a line of text.
        options: of the analyzers.
    """
    from tracelens.analysis import with_required

    slow = [item for item in analyzers if item.slow] if fork and len(run.traces) == 1 else []
    # Computed before the fork, since both processes need it.
    events = len(run.traces[0].arrays.start) if slow and len(run.traces[0].work.event) else 0

    def parts() -> list[Any]:
        return [item.part_of(run.traces[0], **options) for item in slow]

    result_of: dict[str, Any] = {}  # of analyzers, and what these share, by name
    with beside(parts, events, jobs()) as wait:
        for item in with_required(analyzers):
            if item not in slow:
                progress(f"analyzing {item.name}")
                result_of[item.name] = item(run, result_of, **options)
        for done in wait():
            result_of |= {
                item.name: item.combine([part], **options) for item, part in zip(slow, done, strict=True)
            }
    for item in slow:
        if item.name not in result_of:
            progress(f"analyzing {item.name}")
            result_of[item.name] = item(run, **options)
    return [result_of[item.name] for item in analyzers]
