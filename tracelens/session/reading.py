"""Reads the files of a source into a run, and the options that say which files, steps and GPU work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from tracelens.read import BESIDE, PARSERS, GraphSources, SideTraces, TraceFiles, sources_of_sides
from tracelens.session.request import (
    DEVICE,
    READING,
    RUN,
    CommandOption,
    OptionGroup,
    Progress,
    StrPath,
    keyword,
    option,
    quiet,
)
from tracelens.workers import Children

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tracelens.trace import Run, Trace

Source: TypeAlias = "Run | StrPath | TraceFiles"
"""A run, a path, or paths that may be expanded already."""

PATHS = CommandOption(
    help="Trace files (.json, .gz, .zst, .zip), directories of ranks, quoted patterns, URLs (s3://, "
    "https://), or - for stdin. Several files are the ranks of one job.",
    doc="from `load`, or a path.",
    name="paths",
    metavar="PATH...",
    argument=True,
    type=list[str],
    convert=TraceFiles,
)
STEP = CommandOption(
    help="Only this step: 2 or ProfilerStep#2. GPU work is cut at its borders. In serving traces also a "
    "phase, all steps of it: decode, prefill, mixed.",
    panel=RUN,
    doc='only this step, "2" or 2 for ProfilerStep#2; "decode", "prefill" or "mixed" for all steps of this '
    "phase of serving.",
    metavar="STEP",
    shown="all steps",
    complete="steps",
)


class Partial(OptionGroup, panel=READING):
    """How a run is read: whether it may be incomplete, and who is told of the progress."""

    progress: Progress = keyword("called with a line of text before each part of the work.", default=quiet)
    partial: bool = option("Accept missing ranks and files that were read in part.", default=False)

    def reads(self, graphs: GraphSources = BESIDE) -> Graphs:
        """How the files of one run are read."""
        return Graphs(partial=self.partial, progress=self.progress, **graphs._asdict())

    def loaded(self, source: Source, step: str | int | None = None) -> Run:
        """The run of a source, narrowed to a step if there is one."""
        return loaded(source, step, self.reads())


class Graphs(Partial, panel=READING):
    """Where the graphs of one run are from."""

    captures: str = option(
        "Trace of the captures of its graphs, or a folder of them, from which graph launches are attributed "
        "to ops.",
        metavar="PATH",
        default="",
        shown="capture_traces next to each trace",
    )
    twin: str = option(
        "Trace of the same program without graphs, or a folder of its ranks, from which graph launches are "
        "attributed to ops.",
        metavar="PATH",
        default="",
    )

    @property
    def graphs(self) -> GraphSources:
        """Captures and twin."""
        return GraphSources.named(os.fspath(self.captures), os.fspath(self.twin))


class GraphsOfSides(Partial, panel=READING):
    """Where the graphs of two runs are from."""

    captures: StrPath | Sequence[StrPath] = option(
        "Trace of the captures of graphs, or a folder of them, of both sides; twice: of the base, then of "
        "the candidate.",
        doc="for paths, as for `load`: one for both sides, or one for the base and one for the candidate.",
        metavar="PATH",
        default=(),
        shown="capture_traces next to each trace",
    )
    twin: StrPath | Sequence[StrPath] = option(
        "Trace of the same program without graphs, for both sides; twice: for the base, then for the "
        "candidate.",
        doc="likewise. A side whose graph launches are attributed to no op has the other side as its twin.",
        metavar="PATH",
        default=(),
        shown="the other side, where nothing else is known",
    )

    @property
    def graphs(self) -> tuple[GraphSources, GraphSources]:
        """Captures and twin of the base, and those of the candidate."""
        return sources_of_sides(self.captures, self.twin)


class Scoped(OptionGroup, panel=RUN):
    """Which GPU work counts."""

    scope: Literal["all", "linked"] = option(
        "GPU work to count: all of it, or only work whose launch call is in the trace.", default="all"
    )


DEVICE_FILE = CommandOption(
    help="Compute rooflines for the device in this TOML file.", panel=DEVICE, metavar="FILE"
)


class Rooflines(OptionGroup, panel=DEVICE):
    """The device of the rooflines."""

    device: str | None = option(
        "Compute rooflines for this device (`tracelens list devices`).",
        metavar="NAME",
        default=None,
        shown="the traced one",
        complete="devices",
    )
    device_file: StrPath | None = option(DEVICE_FILE, default=None)


class Unprofiled(OptionGroup, panel=RUN):
    """The pace without the profiler."""

    unprofiled_step_ms: float | None = option(
        "Step time without the profiler, from which projections start: host time is scaled to match it.",
        metavar="MS",
        default=None,
        shown="as timed by tracelens.record, if it was",
        min=0.0,
    )


class AnalyzerOptions(Unprofiled, Rooflines, Scoped, panel=RUN):
    """Options that analyzers have, and the step."""

    step: str | int | None = option(STEP, default=None)


class Traces(Graphs, panel=READING):
    """Files of one run, and how they are read."""

    paths: TraceFiles = option(PATHS)
    dask: str | None = option(
        "Read and analyze on the workers of this Dask cluster (tcp://host:port), which see the files under "
        "the same paths.",
        metavar="ADDRESS",
        default=None,
    )


class Reading(ExitStack):
    """Files of one job to read; what decodes them starts at once, before heavy imports.

    with Reading(files) as reading:
        ...  # what the caller imports and checks, while the first file is read, or processes start up
        run = reading.run()
    """

    def __init__(
        self, files: Sequence[str], reads: Graphs | None = None, side_traces: SideTraces | None = None
    ) -> None:
        super().__init__()
        self._files, self._reads = files, reads or Graphs()
        self._side_traces = SideTraces() if side_traces is None else side_traces
        self._children = Children(files)
        self.push(self._children)
        self._ahead: Future[list[Trace]] | None = None
        # The native core lets other threads work; a pipe may keep one waiting that nobody needs any more.
        if self._children.threads and os.path.isfile(files[0]):
            from concurrent.futures import ThreadPoolExecutor

            is_left = threading.Event()
            self._pool = self.enter_context(ThreadPoolExecutor(1))
            self.callback(is_left.set)
            self._ahead = self._pool.submit(self._parse, files[0], lambda: not is_left.is_set())

    def run(self) -> Run:
        """Read the files and end the processes.

        Raises:
            ParseError: a file holds no intact trace, or two claim one rank; the message names them.
        """
        from tracelens.trace import make_run

        traces, count, reads = [], len(self._files), self._reads
        with self._children:
            for number, file in enumerate(self._files, start=1):
                reads.progress(f"reading {file}" + (f" ({number} of {count})" if count > 1 else ""))
                if self._ahead is not None:
                    PARSERS.load()  # which takes what is imported here, too, while the events are decoded
                    traces += self._ahead.result()
                    self._pool.shutdown()  # whoever forks has no other thread
                    self._ahead = None
                else:
                    traces += self._parse(file)
        return make_run(traces, partial=reads.partial)

    def _parse(self, file: str, is_wanted: Callable[[], bool] = lambda: True) -> list[Trace]:
        from tracelens.read import parse

        children = self._children
        return parse(
            file,
            children.processes,
            self._reads.graphs,
            self._side_traces,
            threads=children.threads,
            is_wanted=is_wanted,
        )


@contextmanager
def opened(
    source: Source, reads: Graphs | None = None, side_traces: SideTraces | None = None
) -> Iterator[Callable[[], Run]]:
    """Yields what gives the run of a source; meanwhile its first file is read. Arguments as for `loaded`."""
    if isinstance(source, str | os.PathLike):
        source = TraceFiles([source])
    if isinstance(source, TraceFiles):
        with Reading(source.all(), reads, side_traces) as reading:
            yield reading.run
    else:
        run = source
        yield lambda: run


def loaded(
    source: Source,
    step: str | int | None = None,
    reads: Graphs | None = None,
    side_traces: SideTraces | None = None,
) -> Run:
    """The run of a source, narrowed to a step if there is one.

    Args:
        source: a run, or the files of one.
        step: only this step.
        reads: how the files are read.
        side_traces: those that other runs of the same request read, and this one reads with them.
    """
    with opened(source, reads, side_traces) as run_of_source:
        run = run_of_source()
    if step is None:
        return run
    from tracelens.analysis.serving import at_step

    return at_step(run, step)
