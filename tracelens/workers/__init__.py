"""Many ranks: each file is read and analyzed where there is room for it, and only tables come back.

    tasks      what is done with one file, where (on this machine, on a Dask cluster), and the results of all
    aside      copies of this process, beside which it works
    children   processes that carry out tasks or decode, and the choice of where work is done
    cores      how many processes there may be, and copies of this one
    memory     what a process does with memory that it has freed

No process holds more than one trace at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.workers.aside import Ahead, analyze_run, beside, combine
    from tracelens.workers.children import Children, start
    from tracelens.workers.cores import can_copy, jobs
    from tracelens.workers.memory import keep_freed
    from tracelens.workers.tasks import Executor, ParkedTraces, analyze_files

__getattr__, __dir__ = lazy(
    __name__,
    {
        "workers.aside": "analyze_run beside combine",
        "workers.children": "Children start",
        "workers.cores": "can_copy jobs",
        "workers.memory": "keep_freed",
        "workers.tasks": "Executor ParkedTraces analyze_files",
    },
)
