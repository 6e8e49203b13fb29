"""Where the work on many ranks is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.workers.task import Executor

_SERVE = "from tracelens.workers.local import serve; serve()"


@contextmanager
def start(files: Sequence[str], dask: str | None = None) -> Iterator[Executor]:
    """Something that carries tasks out, for as long as the context lasts.

    Args:
        files: what will be read.
        dask: address of a scheduler; without one the work is done on this machine.

    Raises:
        TracelensError: the library is not installed, or nobody answers at that address.
    """
    if dask is not None:
        from tracelens.workers.dask import cluster

        with cluster(dask) as on_workers:
            yield on_workers
        return
    from tracelens.workers.children import Children

    # The children start up while this process imports what it needs itself.
    with Children(files, _SERVE, len(files) - 1) as children:
        from tracelens.workers.local import Local

        yield Local(children.processes)
