"""Many ranks: each file is read and analyzed where there is room for it, and only tables come back.

    task       what is done with one file
    local      in processes of this machine
    dask       on the workers of a Dask cluster
    ranks      from the tables of all ranks to results
    aside      one large trace: its slowest analyzer beside the others
    children   processes, started before anything heavy is imported, and the choice of where work is done

No process holds more than one trace at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.workers.aside import beside
    from tracelens.workers.children import Children, jobs, start
    from tracelens.workers.ranks import analyze_files
    from tracelens.workers.task import Executor

__all__ = ["Children", "Executor", "analyze_files", "beside", "jobs", "start"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Children": "workers.children",
        "Executor": "workers.task",
        "analyze_files": "workers.ranks",
        "beside": "workers.aside",
        "jobs": "workers.children",
        "start": "workers.children",
    },
)
