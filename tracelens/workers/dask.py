"""Tasks on the workers of a Dask cluster; the files must be there under the same paths."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tracelens.errors import MissingExtra, TracelensError
from tracelens.workers.task import Executor, Portion, Task, attempt

_CONNECT_S = 10
_WORKERS_S = 60
"""How long a cluster may be without a worker: at the start, or after the last one died."""
_LOOK_S = 0.05


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """An executor on the cluster of a scheduler.

    Raises:
        TracelensError: distributed is not installed, nobody answers, or the cluster has no worker.
    """
    try:
        from distributed import Client
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
                    yield from _portions(future, pending.pop(future).path)
                if not done:
                    time.sleep(_LOOK_S)

        yield execute


def _portions(future: Any, path: str) -> list[Portion]:
    """What came of the task for a file.

    Raises:
        TracelensError: the file cannot be read, or no worker could.
    """
    from distributed import CancelledError, KilledWorker

    try:
        answer = future.result()
    except KilledWorker:
        raise TracelensError(
            f"{path}: every Dask worker that read this file died, most likely out of memory; give workers "
            "more memory or fewer threads"
        ) from None
    except (CancelledError, OSError) as error:
        raise TracelensError(f"{path}: lost on the Dask cluster ({type(error).__name__}: {error})") from None
    except (AttributeError, ImportError, TypeError) as error:  # what a worker cannot unpickle
        raise TracelensError(
            f"{path}: the Dask workers cannot run this version of tracelens ({error}); install the same one "
            "there"
        ) from None
    future.release()
    if isinstance(answer, str):
        raise TracelensError(answer)
    portions: list[Portion] = pickle.loads(answer)
    return portions


def _answer(task: Task) -> bytes | str:
    """The portions of a file, or what is wrong with it: errors do not travel, their text does."""
    answer = attempt(task)
    # As bytes, whose size Dask need not guess.
    return str(answer) if isinstance(answer, TracelensError) else pickle.dumps(answer, protocol=5)
