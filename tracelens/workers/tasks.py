"""From files to results: tasks go out, the tables of all ranks come back and are combined.

A task is one file: it is read, its ranks are analyzed, the tables are kept and the trace is dropped. Tasks
are carried out on the cores of this machine, in child processes and in this one, whoever is free; or on the
workers of a Dask cluster, where the files must be under the same paths.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

from msgspec.structs import replace

from tracelens.errors import MissingExtra, ParseError, TracelensError
from tracelens.guard import Failure, guard
from tracelens.limits import VARIABLE, applied
from tracelens.packing import PackedPart
from tracelens.read import BESIDE, GraphSources, SideTraces
from tracelens.workers.aside import combine
from tracelens.workers.memory import keep_freed

if TYPE_CHECKING:
    from tracelens.read import Child
    from tracelens.table import Result
    from tracelens.trace import Run, Trace, TraceMeta
    from tracelens.workers.aside import Ahead, Prepared


_CONNECT_S = 10
_WORKERS_S = 60
"""How long a cluster may be without a worker: at the start, or after the last one died."""
_LOOK_S = 0.05


class Task(NamedTuple):
    """One file to be analyzed; it travels to where that is done."""

    path: str  # of the file, as seen from there
    rank: int  # that the names of all files give this one, -1 for none; what the trace says goes first
    analyzers: tuple[str, ...]  # names
    step: str | None  # only this step
    options: tuple[tuple[str, Any], ...]  # of the analyzers, as (name, value)
    limits: str = ""  # in force where the task comes from, as in TRACELENS_LIMITS
    graphs: GraphSources = BESIDE  # captures and twin from which graph launches are attributed
    keep: bool = False  # whether the trace travels back, too


class Portion(NamedTuple):
    """What came of one trace; it travels back."""

    file: str  # that it is from
    meta: TraceMeta  # of the trace as read, its rank -1 where it does not say
    rank: int  # that the tables are of
    span: tuple[int, int]  # first and last time of its events, ns
    # by analyzer and shared input, what its `combine` needs of this rank; packed where it traveled
    parts: dict[str, Any]
    trace: bytes = b""  # pickled, as read, where the task says so

    def take(self, name: str) -> Any:
        """What an analyzer's `combine` needs, which is let go.

        Raises:
            TracelensError: it was packed by another version of tracelens.
        """
        part = self.parts.pop(name)
        try:
            return part.unpack() if isinstance(part, PackedPart | ParkedPart) else part
        except (AttributeError, ImportError, TypeError) as error:
            raise TracelensError(f"{self.file}: {other_version(error)}") from None

    def packed(self) -> Portion:
        return self._replace(
            parts={
                name: part if isinstance(part, PackedPart) else PackedPart.of(part)
                for name, part in self.parts.items()
            }
        )

    def parked(self, file: PartsFile) -> Portion:
        return self._replace(parts={name: file.put(part) for name, part in self.packed().parts.items()})


class PartsFile:
    """Packed parts of many ranks, in a file without a name; in memory where there is no room for it."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        with suppress(OSError):
            self._file = TemporaryFile(buffering=0)  # noqa: SIM115
            finalize(self, self._file.close)

    def put(self, part: PackedPart) -> PackedPart | ParkedPart:
        if self._file is not None:
            with suppress(OSError):
                start = self._file.seek(0, os.SEEK_END)
                if self._file.write(part.data) == len(part.data):
                    return ParkedPart(self, start, len(part.data))
        return part

    def get(self, start: int, size: int) -> PackedPart:
        assert self._file is not None
        self._file.seek(start)
        return PackedPart(self._file.read(size))


class ParkedPart(NamedTuple):
    """A packed part in a file."""

    file: PartsFile
    start: int
    size: int

    def unpack(self) -> Any:
        return self.file.get(self.start, self.size).unpack()


def other_version(error: Exception) -> str:
    """What is wrong where something cannot be unpickled."""
    return f"the Dask workers cannot run this version of tracelens ({error}); install the same one there"


class ParkedTraces:
    """The traces of a run while nobody looks at them, in a file without a name that ends with this."""

    def __init__(self, traces: Sequence[Trace] = ()) -> None:
        self._file, self._count = TemporaryFile(), 0  # noqa: SIM115
        finalize(self, self._file.close)
        for trace in traces:
            self.add(pickled(trace))

    def add(self, trace: bytes) -> None:
        """Park one more trace, from `pickled`."""
        self._file.write(trace)
        self._count += 1

    def run(self, *, partial: bool) -> Run:
        """The run of them all, back in memory."""
        from tracelens.trace import make_run

        self._file.seek(0)
        return make_run([pickle.load(self._file) for _ in range(self._count)], partial=partial)


def pickled(trace: Trace) -> bytes:
    """The trace without what was made of it."""
    return pickle.dumps(replace(trace), protocol=5)


Executor = Callable[[Sequence[Task]], Iterator[Portion]]
"""Carries tasks out, in any order."""

Answer = list[Portion] | TracelensError


def analyze_files(
    files: Sequence[str],
    names: Sequence[str],
    execute: Executor,
    *,
    progress: Callable[[str], None],
    step: str | None = None,
    partial: bool = False,
    graphs: GraphSources = BESIDE,
    park: ParkedTraces | None = None,
    fork: bool = False,
    ahead: Ahead | None = None,
    **options: Any,
) -> tuple[list[Portion], list[Result], Prepared]:
    """Analyze the ranks of one job.

    Args:
        files: of the ranks; an archive may hold several.
        names: analyzers, in the order of the results.
        execute: where the work is done.
        progress: called with a line of text.
        step: only this step.
        partial: whether ranks may be missing between others.
        graphs: captures and twin from which graph launches are attributed.
        park: where the traces go, for those who want them afterwards.
        fork: whether a copy of this process may do some of the work.
        ahead: as for `combine`.
        options: of the analyzers.

    Returns:
        what is known of each rank, in order of rank; one result an analyzer; and what `ahead` made.

    Raises:
        TracelensError: a file cannot be read, the files are not the ranks of one job, or an option is wrong.
    """
    from tracelens.analysis import ANALYZERS, MANY_RANKS, Combining
    from tracelens.trace import check_ranks, named_ranks

    tasks = [
        Task(
            path=file,
            rank=rank,
            analyzers=tuple(names),
            step=step,
            options=tuple(options.items()),
            limits=os.environ.get(VARIABLE, ""),
            graphs=graphs,
            keep=park is not None,
        )
        for file, rank in zip(files, named_ranks(files), strict=True)
    ]
    portions: list[Portion] = []
    parts_file = PartsFile() if len(files) >= MANY_RANKS else None
    # Of many ranks memory counts more than time; where there are no processes, there is little to do.
    worth = fork and parts_file is None and isinstance(execute, Local) and bool(execute.processes)
    for portion in execute(tasks):
        if park is not None:
            park.add(portion.trace)
        kept = portion if parts_file is None else portion.parked(parts_file)
        portions.append(kept._replace(trace=b""))
        progress(f"analyzed {portion.meta.path} ({len(portions)} of {len(files)})")
    file_order = {file: number for number, file in reversed([*enumerate(files)])}
    portions.sort(key=lambda portion: file_order[portion.file])
    metas, spans = ([getattr(portion, name) for portion in portions] for name in ("meta", "span"))
    ranks = check_ranks(metas, spans, partial=partial)
    for rank, portion in zip(ranks, portions, strict=True):
        if rank != portion.rank:
            raise ParseError(portion.meta.path, "its rank is ambiguous; name the files rank<N>.json")
    portions.sort(key=lambda portion: portion.rank)

    progress("combining all ranks")
    combining = Combining(
        [ANALYZERS.get(name) for name in names],
        lambda name: [portion.take(name) for portion in portions],
        **options,
    )
    made = combine(combining, ahead, worth=worth)
    return portions, combining.results, made


def carry_out(task: Task, side_traces: SideTraces) -> list[Portion]:
    """Read a file and analyze each trace in it.

    Raises:
        TracelensError: it cannot be read, or has no such step.
    """
    from tracelens.analysis import ANALYZERS, with_required
    from tracelens.read import parse
    from tracelens.trace import make_run, select_step

    portions = []
    with applied(task.limits):
        required = with_required([ANALYZERS.get(name) for name in task.analyzers])
        for trace in parse(task.path, (), task.graphs, side_traces):
            rank = trace.meta.rank if trace.meta.rank >= 0 else task.rank
            run = make_run([replace(trace, meta=replace(trace.meta, rank=rank))])
            if task.step is not None:
                run = select_step(run, task.step)
            (ranked,) = run.traces
            times = ranked.arrays
            span = (int(times.start.min()), int(times.end.max()))
            parts = {item.name: item.part_of(ranked, **dict(task.options)) for item in required}
            kept = pickled(trace) if task.keep else b""
            portions.append(Portion(task.path, trace.meta, ranked.meta.rank, span, parts, kept))
    side_traces.forget_ranks()
    return portions


def attempt(task: Task, side_traces: SideTraces) -> Answer:
    """The portions of a file, or what is wrong with it, be it a bug."""
    try:
        portions = guard(f"reading {task.path}", carry_out, task, side_traces)
    except TracelensError as error:
        return error
    return TracelensError(portions) if isinstance(portions, Failure) else portions


def _answer(task: Task, side_traces: SideTraces | None = None) -> bytes:
    """The same for another process, pickled: Dask need not guess the size of bytes."""
    answer = attempt(task, SideTraces() if side_traces is None else side_traces)
    # Errors have constructors of their own, which pickle does not know; their text is what counts.
    if isinstance(answer, TracelensError):
        return pickle.dumps(TracelensError(str(answer)), protocol=5)
    return pickle.dumps([portion.packed() for portion in answer], protocol=5)


class Local:
    """Carries tasks out in order of the files; children do some of them while this process does others."""

    def __init__(self, processes: Sequence[Child] = ()) -> None:
        self.processes = processes
        self._waiting: SimpleQueue[Task] = SimpleQueue()
        self._done: SimpleQueue[Answer] = SimpleQueue()

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Portion]:
        """The portions of all tasks, as they come.

        Raises:
            TracelensError: the first that a task ends with, or a child died.
        """
        stdin_tasks = [task for task in tasks if task.path == "-"]  # a child's stdin is another
        for task in tasks:
            if task not in stdin_tasks:
                self._waiting.put(task)
        threads = [
            threading.Thread(target=self._feed, args=(process,), daemon=True) for process in self.processes
        ]
        for thread in threads:
            thread.start()
        unanswered, side_traces = len(tasks), SideTraces()
        while unanswered:
            answers: list[Answer] = []
            while not self._done.empty():
                answers.append(self._done.get())
            if not answers:
                local_task = stdin_tasks.pop() if stdin_tasks else self._next()
                answers = [attempt(local_task, side_traces) if local_task is not None else self._done.get()]
            for answer in answers:
                unanswered -= 1
                if isinstance(answer, TracelensError):
                    raise answer
                yield from answer
        for thread in threads:  # with nothing left to do; without them this process can be copied
            thread.join()
        self.processes = ()

    def _next(self) -> Task | None:
        try:
            return self._waiting.get_nowait()
        except Empty:
            return None

    def _feed(self, process: Child) -> None:
        """Give a child one task after the other and pass its answers on; at the end it is let go."""
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        while (task := self._next()) is not None:
            try:
                pickle.dump(task, stdin, protocol=5)
                stdin.flush()
                self._done.put(pickle.load(stdout))
            except (OSError, EOFError, ValueError, pickle.UnpicklingError):  # ValueError: closed meanwhile
                code = process.wait()
                problem = f"the process that read {task.path} died (exit code {code}); try TRACELENS_JOBS=1"
                self._done.put(TracelensError(problem))
                return
        with suppress(OSError, ValueError):
            stdin.close()


def serve(stdin: IO[bytes] | None = None, stdout: IO[bytes] | None = None) -> None:
    """Carry out the tasks that come in on stdin until it is closed."""
    source, target = stdin or sys.stdin.buffer, stdout or sys.stdout.buffer
    gc.disable()  # as in the command: a process that ends soon needs no collector
    keep_freed()
    side_traces = SideTraces()
    while True:
        try:
            task = pickle.load(source)
        except EOFError:
            return
        target.write(_answer(task, side_traces))
        target.flush()


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """An executor on the cluster of a scheduler.

    Raises:
        TracelensError: distributed is not installed, nobody answers, or the cluster has no worker.
    """
    try:
        from distributed import CancelledError, Client, KilledWorker
    except ModuleNotFoundError as error:
        raise MissingExtra("--dask", "dask") from error
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise TracelensError(f"{address}: no Dask scheduler answers ({error}); check the address") from error
    with client:

        def execute(tasks: Sequence[Task]) -> Iterator[Portion]:
            # Pure tasks would be remembered by the scheduler; the files may change between reports.
            pending = dict(zip(client.map(_answer, tasks, pure=False, retries=0), tasks, strict=True))
            alive = time.monotonic()
            while pending:
                done = [future for future in pending if future.done()]
                if done or client.scheduler_info()["workers"]:
                    alive = time.monotonic()
                elif time.monotonic() - alive > _WORKERS_S:
                    raise TracelensError(f"{address}: the cluster has had no worker for {_WORKERS_S:g} s")
                for future in done:
                    path = pending.pop(future).path
                    try:
                        answer: Answer = pickle.loads(future.result())
                    except KilledWorker:
                        raise TracelensError(
                            f"{path}: every Dask worker that read this file died, most likely out of memory; "
                            "give workers more memory or fewer threads"
                        ) from None
                    except (CancelledError, OSError) as error:
                        problem = f"lost on the Dask cluster ({type(error).__name__}: {error})"
                        raise TracelensError(f"{path}: {problem}") from None
                    except (AttributeError, ImportError, TypeError) as error:  # what a worker cannot unpickle
                        raise TracelensError(f"{path}: {other_version(error)}") from None
                    future.release()
                    if isinstance(answer, TracelensError):
                        raise answer
                    yield from answer
                if not done:
                    time.sleep(_LOOK_S)

        yield execute
