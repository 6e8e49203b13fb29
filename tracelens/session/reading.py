"""Reads the files of a source into a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from tracelens.read import BESIDE, GraphSources, TraceFiles
from tracelens.workers import Children

if TYPE_CHECKING:
    from tracelens.trace import Run

Progress = Callable[[str], None]
"""Called with a line of text before each part of the work."""
StrPath = str | os.PathLike[str]
Source: TypeAlias = "Run | StrPath | TraceFiles"
"""A run, a path, or paths that may be expanded already."""


def quiet(_: str) -> None:
    """Report no progress."""


class Reading:
    """Files to read; the processes that decode them start at once, before heavy imports.

    with Reading(files) as reading:
        ...  # what the caller imports and checks, while the processes start up
        run = reading.run()

    Args:
        files: of one job, from `TraceFiles`.
        partial: whether ranks may be missing.
        progress: called with a line of text before each file.
        graphs: captures and twin from which graph launches are attributed.
    """

    def __init__(
        self,
        files: Sequence[str],
        *,
        partial: bool = False,
        progress: Progress = quiet,
        graphs: GraphSources = BESIDE,
    ) -> None:
        self._files = files
        self._graphs = graphs
        self._partial = partial
        self._progress = progress
        self._children = Children(files)

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._children.__exit__(kind, error, trace)

    def run(self) -> Run:
        """Read the files and end the processes.

        Raises:
            ParseError: a file holds no intact trace, or two claim one rank; the message names them.
        """
        from tracelens.read import parse
        from tracelens.trace import make_run

        traces, count = [], len(self._files)
        with self._children as children:
            for number, file in enumerate(self._files, start=1):
                self._progress(f"reading {file}" + (f" ({number} of {count})" if count > 1 else ""))
                traces += parse(file, children.processes, self._graphs)
        return make_run(traces, partial=self._partial)


def is_phase(step: str | int | None) -> bool:
    """Whether a step is named by the phase of serving: all steps of this phase are meant."""
    from tracelens.analysis.serving import PHASES

    return step in PHASES


def at_step(run: Run, step: str | int | None) -> Run:
    """The run narrowed to a step, "2" or 2 for ProfilerStep#2, or a phase of serving; None for all of it."""
    if step is None:
        return run
    if is_phase(step):
        from tracelens.analysis.serving import select_phase

        return select_phase(run, str(step))
    from tracelens.trace import select_step

    return select_step(run, str(step))


def loaded(
    source: Source, *, partial: bool = False, progress: Progress = quiet, graphs: GraphSources = BESIDE
) -> Run:
    """The run of a source."""
    traces = TraceFiles([source]) if isinstance(source, str | os.PathLike) else source
    if not isinstance(traces, TraceFiles):
        return traces
    with Reading(traces.all(), partial=partial, progress=progress, graphs=graphs) as reading:
        return reading.run()
