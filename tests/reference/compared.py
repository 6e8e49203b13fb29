"""What tracelens says of the runs that the reference is held against."""

from functools import cache
from pathlib import Path

import tracelens
from tracelens.table import Result


@cache
def results(path: Path) -> dict[str, Result]:
    """Both analyzers of many ranks, from one load that is then forgotten: eight ranks take a gigabyte."""
    run = tracelens.load(path)
    return {name: tracelens.analyze(run, name) for name in ("collectives", "pipeline")}
