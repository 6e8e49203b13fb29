"""Merges the ranks of a run into one Perfetto file, on one clock."""

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
    """Merge all ranks into one trace for ui.perfetto.dev, with aligned clocks, steps and waits.

    Args:
        run: from `load`, or a path; with `ranks`, others may be missing.
        path: where to: .json or .json.gz.
        ranks: only these, as numbers or as a list like "0-3,7".
        cpu: whether to include host threads.
        partial: whether ranks may be missing.
        progress: called with a line of text before each part.

    Raises:
        TracelensError: no such rank, nothing to show, or the path cannot be written.
    """
    from tracelens.analysis.comm import align_run
    from tracelens.merge import check_suffix
    from tracelens.merge import fuse as write

    check_suffix(path)
    spans = None if ranks is None else read_ranks(ranks)
    selected = loaded(run, partial=partial or spans is not None, progress=progress)
    if spans is not None:
        selected = _pick(selected, spans)
    progress("aligning clocks")
    aligned = align_run(selected)
    write(selected, path, offsets=aligned.shift, waits=aligned.waits(), cpu=cpu, progress=progress)


def read_ranks(ranks: str | Iterable[int]) -> list[tuple[int, int]]:
    """The first and last rank of each part of a list like 0-3,7; raises TracelensError if malformed."""
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


def _pick(run: Run, spans: list[tuple[int, int]]) -> Run:
    """The run with only these ranks; raises TracelensError if one is missing."""
    from tracelens.trace import Run

    present = set(run.ranks)
    for low, high in spans:
        missing = next((rank for rank in range(low, high + 1) if rank not in present), None)
        if missing is not None:
            has = ", ".join(map(str, run.ranks))
            raise TracelensError(f"--ranks: the run has no rank {missing} (it has {has})")
    return Run(
        tuple(trace for trace in run.traces if any(low <= trace.meta.rank <= high for low, high in spans))
    )
