"""The slow analyzers' work on one large trace in a copy of this process, beside the work of the others."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from tracelens.guard import guard
from tracelens.workers.children import jobs
from tracelens.workers.memory import give_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracelens.analysis import Analyzer, Shared
    from tracelens.table import Result
    from tracelens.trace import Run

_WORTH_EVENTS = 100_000
"""A copy of the process and the way back take as long as the work on a smaller trace."""
_MANY_EVENTS = 1_000_000
"""From here on each analyzer gives back the memory that it freed, though the next one has to ask for some."""


@contextmanager
def beside(work: Callable[[], Any], events: int, cores: int) -> Iterator[Callable[[], tuple[Any, ...]]]:
    """Do some work beside what the `with` block does, where that is possible and worth it.

    Yields:
        a function that waits for the result: (result,), or () where the work is still to be done.
    """
    if not is_worth(events, cores):
        yield tuple
        return
    aside = ForkedWork(work)
    try:
        yield aside.result
    finally:
        aside.end()


def is_worth(events: int, cores: int) -> bool:
    """Whether a copy of this process is possible, and worth it for so many events."""
    return events >= _WORTH_EVENTS and cores > 1 and hasattr(os, "fork")


class ForkedWork:
    """Work that a forked copy of this process does; only for processes without threads."""

    def __init__(self, work: Callable[[], Any]) -> None:
        # Unlike a pipe it takes all, whenever this process has time to read it.
        self._made = _file_in_memory()
        self._pid = os.fork()
        if self._pid == 0:
            code = 1
            try:  # whatever goes wrong ends the copy without a word
                pickle.dump(work(), self._made, protocol=5)
                self._made.flush()
                code = 0
            finally:
                os._exit(code)

    def result(self) -> tuple[Any, ...]:
        """(the result,), or () where the copy failed: the work done here then says why."""
        _, status = os.waitpid(self._pid, 0)
        with self._made as stream:
            stream.seek(0)
            return (pickle.load(stream),) if status == 0 else ()

    def end(self) -> None:
        """End the copy, if nobody has asked for its result."""
        if not self._made.closed:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._made.close()


def _file_in_memory() -> IO[bytes]:
    """An open file, on disk only where the system has none elsewhere."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("tracelens"), "w+b")
    from tempfile import TemporaryFile

    return TemporaryFile()


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
    from tracelens.analysis import combined, with_required

    items, cores = with_required(analyzers), jobs()
    if not fork or len(run.traces) > 1:
        result_of: dict[str, Any] = {}  # of analyzers, and what these share, by name
        for item in items:
            progress(f"analyzing {item.name}")
            result_of[item.name] = item(run, result_of, **options)
        return [result_of[item.name] for item in analyzers]
    (trace,) = run.traces
    slow = [item for item in items if item.slow]
    others = [item for item in items if not item.slow]
    trim = give_back if len(trace.tables["events"]) >= _MANY_EVENTS else bool
    trim()  # half of what reading took

    def part_of(item: Analyzer | Shared) -> Any:
        part = item.part_of(trace, **options)
        trim()
        return part

    def slow_parts(release: Callable[[], Any] = bool) -> dict[str, Any]:
        """By name; `release` is called after each."""
        parts = {}
        for item in slow:
            parts[item.name] = part_of(item)
            release()
        return parts

    def slow_parts_aside() -> dict[str, Any]:
        """The same in little memory: the other process goes on meanwhile."""
        parts = slow_parts(give_back)
        trace.forget()
        give_back()
        return parts

    # A single slow part is not worth what both processes need.
    events = len(trace.arrays.start) if len(slow) > 1 and others and len(trace.work.event) else 0
    if is_worth(events, cores):  # computed before the fork, since both processes need it
        from tracelens.analysis.fusable import step_gaps
        from tracelens.analysis.moe import regions
        from tracelens.analysis.serving import rank_steps
        from tracelens.trace import enclosing_op

        guard("MoE layers", trace.once, regions)
        guard("idle time", trace.once, step_gaps)
        guard("serving steps", rank_steps, trace)
        guard("enclosing ops", trace.once, enclosing_op)
        give_back()
    with beside(slow_parts_aside, events, cores) as wait:
        parts = {}
        for item in others:
            progress(f"analyzing {item.name}")
            parts[item.name] = part_of(item)
        if not is_worth(events, cores):
            parts |= slow_parts()
        # The parts say it all.
        trace.forget()
        give_back()  # to have room for what is combined beside the copy

        def parts_of(name: str) -> list[Any]:
            if name not in parts:
                give_back()
                (of_slow,) = wait() or (slow_parts(),)
                parts.update(of_slow)
            return [parts.pop(name)]

        # Meanwhile what waits for no slow part is combined.
        results = combined(sorted(analyzers, key=_waits), parts_of, **options)
    by_name = {result.analyzer: result for result in results}
    return [by_name[item.name] for item in analyzers]


def _waits(item: Analyzer | Shared) -> bool:
    """Whether the result of an analyzer waits for a slow part, its own or one of what it needs."""
    return item.slow or any(map(_waits, item.requires))
