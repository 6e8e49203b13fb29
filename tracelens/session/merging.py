"""All ranks of a run in one file for Perfetto, on one clock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracelens.errors import TracelensError
from tracelens.session.reading import Progress, Source, StrPath, loaded, quiet

if TYPE_CHECKING:
    from tracelens.trace import Run

_PART = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")


def fuse(
    run: Source,
    path: StrPath,
    *,
    ranks: str | Iterable[int] | None = None,
    cpu: bool = True,
    partial: bool = False,
    progress: Progress = quiet,
) -> None:
    """Write one trace of all ranks, to be opened in ui.perfetto.dev: clocks aligned, with steps and waits.

    Args:
        run: from `load`, or a path; of a path with `ranks`, others may be missing.
        path: where to: .json or .json.gz.
        ranks: only these, as numbers or as a list like "0-3,7".
        cpu: whether host threads are drawn too.
        partial: whether ranks may be missing between others.
        progress: called with a line of text before each part.

    Raises:
        TracelensError: no such rank, nothing to draw, or the path cannot be written.
    """
    from tracelens.analysis.comm import align_run
    from tracelens.merge import check_suffix
    from tracelens.merge import fuse as write

    check_suffix(path)
    wanted = None if ranks is None else read_ranks(ranks)
    # Which ranks are wanted is said by `ranks`; others may be missing.
    selected = loaded(run, partial=partial or wanted is not None, progress=progress)
    if wanted is not None:
        selected = _pick(selected, wanted)
    progress("aligning clocks")
    aligned = align_run(selected)
    write(selected, path, offsets=aligned.shift, waits=aligned.waits(), cpu=cpu, progress=progress)


def read_ranks(ranks: str | Iterable[int]) -> list[tuple[int, int]]:
    """The first and last rank of each part of a list like 0-3,7.

    Raises:
        TracelensError: it is no such list.
    """
    if not isinstance(ranks, str):
        return [(rank, rank) for rank in ranks]
    spans = []
    for part in ranks.split(","):
        match = _PART.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if high < low:
            raise TracelensError(f"--ranks {ranks!r}: not a list of ranks; write it like 0-3,7")
        spans.append((low, high))
    return spans


def _pick(run: Run, wanted: list[tuple[int, int]]) -> Run:
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
