"""Tasks on the workers of a Dask cluster; the files must be there under the same paths."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tracelens.errors import MissingExtra, TracelensError
from tracelens.fanout.task import Executor, Portion, Task, carry_out

_CONNECT_S = 10


@contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """An executor on the cluster of a scheduler.

    Args:
        address: of the scheduler, tcp://host:port.

    Raises:
        TracelensError: distributed is not installed, or nobody answers.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise MissingExtra("--dask", "dask") from error
    try:
        client = Client(address, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise TracelensError(
            f"{address}: no Dask scheduler answers ({error}); is the address right?"
        ) from error
    with client:

        def execute(tasks: Sequence[Task]) -> Iterator[Portion]:
            from distributed import as_completed

            # Pure tasks would be remembered by the scheduler; the files may change between reports.
            futures = client.map(_answer, tasks, pure=False, retries=0)
            for future in as_completed(futures, loop=client.loop):
                answer = future.result()
                future.release()
                if isinstance(answer, str):
                    raise TracelensError(answer)
                yield from pickle.loads(answer)

        yield execute


def _answer(task: Task) -> bytes | str:
    """The portions of a file, or what is wrong with it: errors do not travel, their text does."""
    try:
        # As bytes, whose size Dask need not guess.
        return pickle.dumps(carry_out(task), protocol=5)
    except TracelensError as error:
        return str(error)
