"""`tracelens fuse`: all ranks in one file for Perfetto."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.cli.common import Limit, Partial, Paths, check_outputs, progress, say
from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.trace import Run

_PART = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")


def fuse(
    paths: Paths,
    output: Annotated[
        str, typer.Option("-o", "--output", help="Where to write: .json or .json.gz.", show_default=False)
    ],
    ranks: Annotated[
        str | None, typer.Option(help="Only these ranks, like 0-3,7.", metavar="LIST", show_default=False)
    ] = None,
    no_cpu: Annotated[
        bool, typer.Option("--no-cpu", help="Leave out the host threads: GPU streams, steps and waits only.")
    ] = False,
    partial: Partial = False,
    _limit: Limit = None,
) -> None:
    """Write one trace of all ranks, to be opened in ui.perfetto.dev.

    For example:

    tracelens fuse traces/ -o merged.json.gz

    tracelens fuse traces/ --ranks 0-3,7 --no-cpu -o merged.json.gz
    """
    import tracelens
    from tracelens.analysis.comm import alignment
    from tracelens.merge import check_suffix
    from tracelens.merge import fuse as write

    check_suffix(output)
    check_outputs((), paths, [output])
    wanted = None if ranks is None else read_ranks(ranks)
    with progress() as line:
        # Which ranks are wanted is said by --ranks; others may be missing.
        run = tracelens.load(*paths, partial=partial or wanted is not None, progress=line)
        if wanted is not None:
            run = pick(run, wanted)
        line("aligning clocks")
        clocks = alignment(run)
        write(run, output, offsets=clocks.offsets, waits=clocks.waits, cpu=not no_cpu, progress=line)
    say(f"wrote {output}")


def read_ranks(text: str) -> list[tuple[int, int]]:
    """The first and last rank of each part of a list like 0-3,7.

    Raises:
        TracelensError: it is no such list.
    """
    found = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if high < low:
            raise TracelensError(f"--ranks {text!r}: no list of ranks; write it like 0-3,7")
        found.append((low, high))
    return found


def pick(run: Run, wanted: list[tuple[int, int]]) -> Run:
    """The run with only these ranks.

    Raises:
        TracelensError: it does not have one of them.
    """
    from tracelens.trace import Run

    present = set(run.ranks)
    for low, high in wanted:
        rank = low
        while rank <= high:
            if rank not in present:
                has = ", ".join(map(str, run.ranks))
                raise TracelensError(f"--ranks: the run has no rank {rank} (it has {has})")
            rank += 1
    return Run(
        tuple(trace for trace in run.traces if any(low <= trace.meta.rank <= high for low, high in wanted))
    )
