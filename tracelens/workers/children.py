"""Child processes: copies of this one, or started before anything heavy is imported, to start up beside it.

Plain child processes instead of multiprocessing: a script without a `__main__` guard, a notebook and an
embedding server can all load traces, and a child imports neither the caller's modules nor pandas. The command
line, which has no other threads, copies itself where a child needs what it has imported by then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tracelens.native import core
from tracelens.read import is_url
from tracelens.workers.cores import Copy, jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen
    from typing import IO

    from tracelens.read import Child
    from tracelens.workers.tasks import Executor

    Serve = Callable[[IO[bytes], IO[bytes]], None]

DECODE = "from tracelens.read.json.pool import main; main()"
"""What a child that decodes runs: it serves one trace after the other (see pool.py)."""
_SERVE = "from tracelens.workers.tasks import serve; serve()"
# Ended at once: taking its dictionaries apart would keep the parent waiting.
_CODE = "import os, sys; sys.path[:] = sys.argv[1:]; {serve}; os._exit(0)"
_WORTH_BYTES = 1_000_000
"""Inputs smaller than this on disk (a trace of some 10 MB, deflated) are read before a process starts."""
_PIPE_BYTES = 1 << 20
"""One chunk fits into the pipe, so handing it over is one call that does not wait."""


class Children:
    """Child processes for some files, one less than the cores; a context manager that ends them.

    Where the native core decodes there are none, and `threads` is how many threads may help instead.

    Args:
        files: what will be read; small ones are not worth a process.
        serve: statements that each child runs, or a function that copies of this process call.
        most: never more children than this.
    """

    def __init__(self, files: Sequence[str], serve: str | Serve = DECODE, most: int = 64) -> None:
        size = 0  # on disk
        for file in files:
            if file == "-" or is_url(file):  # count as large
                size += _WORTH_BYTES
            else:
                with suppress(OSError):  # opening it says why
                    size += os.stat(file).st_size
        others = jobs() - 1
        count = min(others, most) if sys.executable and size >= _WORTH_BYTES else 0
        # The native core decodes in threads of this process instead.
        is_native = serve == DECODE and core() is not None
        self.threads, count = (count, 0) if is_native else (0, count)
        # running children, which take their work from stdin and answer on stdout
        self.processes: list[Child] = []
        for _ in range(count):
            self.processes.append(
                _started(serve) if isinstance(serve, str) else ServingCopy(serve, self.processes)
            )

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            if error is not None:
                process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):  # a child that died has unread bytes in its pipe
                        stream.close()
            process.wait()


def _started(serve: str) -> Popen[bytes]:
    import subprocess

    root, code = str(Path(__file__).resolve().parents[2]), _CODE.format(serve=serve)
    return subprocess.Popen(
        # -S -E: a child gets this process's search path as arguments and needs no start-up of its own.
        [sys.executable, "-S", "-E", "-c", code, root, *(path or os.getcwd() for path in sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pipesize=_PIPE_BYTES,
        process_group=0,  # Ctrl-C is the parent's to answer; it ends its children without a traceback
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )


class ServingCopy(Copy):
    """A copy of this process that is served like a child that was started."""

    def __init__(self, serve: Serve, others: Sequence[Child]) -> None:
        (source, tasks), (answers, target) = _pipe(), _pipe()
        self.stdin, self.stdout = tasks, answers

        def work() -> None:
            os.setpgid(0, 0)  # as above
            for process in (self, *others):  # a pipe ends when nobody can write to it any more
                for stream in (process.stdin, process.stdout):
                    assert stream is not None
                    stream.close()
            serve(source, target)

        super().__init__(work)
        source.close()
        target.close()


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reading, writing = os.pipe()
    with suppress(ImportError, AttributeError, OSError):  # Linux can make it as large
        import fcntl

        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return open(reading, "rb"), open(writing, "wb")


@contextmanager
def start(files: Sequence[str], dask: str | None = None, *, fork: bool = False) -> Iterator[Executor]:
    """Something that carries tasks out, for as long as the context lasts.

    Args:
        files: that the tasks read.
        dask: address of a scheduler.
        fork: whether children are copies of this process, which has imported what they need.

    Raises:
        TracelensError: the library is not installed, or nobody answers at that address.
    """
    if dask is not None:
        from tracelens.workers.tasks import cluster

        with cluster(dask) as on_workers:
            yield on_workers
        return
    serve: str | Serve = _SERVE
    if fork:
        from tracelens.workers.tasks import serve
    # Those that are started start up while this process imports what it needs itself.
    with Children(files, serve, len(files) - 1) as children:
        from tracelens.workers.tasks import Local

        yield Local(children.processes)
