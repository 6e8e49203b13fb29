"""Copies of this process: the slow analyzers of one large trace, and what waits for no replay of the run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from typing import IO, TYPE_CHECKING, Any

from tracelens.guard import guard
from tracelens.workers.cores import Copy, can_copy
from tracelens.workers.memory import give_back

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracelens.analysis import Analyzer, Combining, Shared
    from tracelens.table import Result
    from tracelens.trace import Run

    Prepared = Mapping[str, Mapping[str, Any]]
    Ahead = Callable[[Sequence[Result]], Prepared]
    """Prepares for a report what can be made of some of its results."""

_WORTH_EVENTS = 100_000
"""A copy of the process and the way back take as long as the work on a smaller trace."""
_MANY_EVENTS = 1_000_000
"""From here on each analyzer gives back the memory that it freed, though the next one has to ask for some."""


@contextmanager
def beside(work: Callable[[], Iterable[Any]], worth: bool) -> Iterator[Callable[[], tuple[Any, ...]]]:
    """Do some work in a copy of this process, beside what the `with` block does.

    Args:
        work: makes one thing after the other; in the copy it must not print.
        worth: whether it is worth a copy.

    Yields:
        a function that waits for the next thing: (thing,), or () where there is no copy or it failed.
    """
    if not worth:
        yield tuple
        return
    maker = _Maker(work)
    try:
        yield maker.next
    finally:
        maker.end()


class _Maker:
    """A copy of this process that makes one thing after the other."""

    def __init__(self, work: Callable[[], Iterable[Any]]) -> None:
        # Unlike a pipe, the file takes all before this process has time to read it.
        self._made = _file_in_memory()
        self._start = 0
        self._ends, tell = os.pipe()  # where in the file each thing ends

        def make() -> None:
            for thing in work():
                pickle.dump(thing, self._made, protocol=5)
                del thing  # it may be large, and so may be the next
                self._made.flush()
                os.write(tell, self._made.tell().to_bytes(8, "little"))

        self._copy = Copy(make)
        os.close(tell)

    def next(self) -> tuple[Any, ...]:
        """(what the copy made next,), or () where it failed: the work done here then says why."""
        start, end = self._start, int.from_bytes(os.read(self._ends, 8), "little")
        if not end:
            return ()
        self._start = end
        # Reading would move the position at which the copy writes.
        with mmap(self._made.fileno(), end, access=ACCESS_READ) as content, memoryview(content) as view:
            return (pickle.loads(view[start:]),)

    def end(self) -> None:
        """End the copy, whether it is done or nobody asks for what it makes."""
        self._copy.kill()
        self._copy.wait()
        os.close(self._ends)
        self._made.close()


def _file_in_memory() -> IO[bytes]:
    """An open file, on disk only where the system has none elsewhere."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("tracelens"), "w+b")
    from tempfile import TemporaryFile

    return TemporaryFile()


def analyze_run(
    run: Run,
    analyzers: Sequence[Analyzer],
    *,
    fork: bool,
    progress: Callable[[str], None],
    ahead: Ahead | None = None,
    **options: Any,
) -> tuple[list[Result], Prepared]:
    """Analyze a run that is in memory.

    Args:
        run: all of it.
        analyzers: in the order of the results.
        fork: whether copies of this process may do some of the work.
        progress: called with a line of text.
        ahead: as for `combine`.
        options: of the analyzers.

    Returns:
        the results, and what `ahead` made.
    """
    from tracelens.analysis import Combining, with_required

    items = with_required(analyzers)
    if not fork or len(run.traces) > 1:
        result_of: dict[str, Any] = {}  # of analyzers, and what these share, by name
        for item in items:
            progress(f"analyzing {item.name}")
            result_of[item.name] = item(run, result_of, **options)
        return [result_of[item.name] for item in analyzers], {}
    (trace,) = run.traces
    others = [item for item in items if not item.slow]
    is_large = len(trace.tables["events"]) >= _MANY_EVENTS

    def trim() -> None:
        """Have less in memory, where there is much: what the launching threads did, few parts need."""
        if is_large:
            from tracelens.analysis.host import Host

            trace.forget(Host)
            give_back()

    trim()  # half of what reading took

    def part_of(item: Analyzer | Shared) -> Any:
        trim()  # what the last one took
        return item.part_of(trace, **options)

    parts: dict[str, Any] = {}

    def parts_of(name: str) -> list[Any]:
        """The part of one rank, once it is there."""
        while name not in parts:
            item = next(left)
            (parts[item.name],) = wanted() or (part_of(item),)
        return [parts.pop(name)]

    combining = Combining(analyzers, parts_of, **options)
    replaying = combining.replaying()
    slow = sorted((item for item in items if item.slow), key=replaying.__contains__)
    left = iter(slow)
    # A single slow part is not worth what both processes need.
    worth = len(slow) > 1 and bool(others) and len(trace.work.event) > 0
    worth = worth and len(trace.arrays.start) >= _WORTH_EVENTS and can_copy()
    if worth:  # computed before the copy, since both processes need it
        from tracelens.analysis.fusable import step_gaps
        from tracelens.analysis.moe import regions
        from tracelens.analysis.serving import rank_steps
        from tracelens.trace import enclosing_op

        guard("MoE layers", trace.once, regions)
        guard("idle time", trace.once, step_gaps)
        guard("serving steps", rank_steps, trace)
        guard("enclosing ops", trace.once, enclosing_op)
        trim()
        give_back()
    with beside(lambda: map(part_of, slow), worth) as wanted:
        for item in others:
            progress(f"analyzing {item.name}")
            parts[item.name] = part_of(item)
        if not worth:
            parts |= {item.name: part_of(item) for item in left}
        # The parts say it all.
        trace.forget()
        give_back()  # to have room for what is combined beside the copies
        # What replays the run waits for the slow parts, while a copy makes a page of all else.
        combining.combine([item for item in combining.missing if item not in replaying])
        made = combine(combining, ahead, worth=worth and ahead is not None)
    return combining.results, made


def combine(combining: Combining, ahead: Ahead | None, *, worth: bool) -> Prepared:
    """Combine all that is missing; a copy makes what waits for no replay of the run, which takes long.

    Args:
        combining: with the parts of all ranks.
        ahead: called in the copy with all results but those that replay the run.
        worth: whether the work is worth a copy.

    Returns:
        what `ahead` made, nothing where it was not called.
    """
    from tracelens.analysis import with_required

    replaying = combining.replaying()
    worth = worth and bool(replaying)
    if worth:  # what both need
        shared = {name for item in replaying for name in item.shared}
        combining.combine(
            [item for item in combining.missing if item.name in shared and item not in replaying]
        )
        give_back()  # what reading took, of which each process would keep some
    others = [item for item in combining.missing if item not in replaying]
    required = with_required(replaying)
    turns = [[item for item in others if (item in required) == first] for first in (True, False)]

    def aside() -> Iterator[Any]:
        for items in turns:  # first what the other process waits for
            yield combining.combine(items)
        if ahead is not None:
            yield ahead(combining.results)

    with beside(aside, worth) as wait:
        for _ in turns if worth else ():
            combining.combine(combining.ready(replaying))
            for made in wait():
                combining.take(made)
        combining.combine(combining.missing)
        return next(iter(wait()), {})
