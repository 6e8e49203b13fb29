"""From files to results: tasks go out, the tables of all ranks come back and are combined."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from tracelens.errors import ParseError
from tracelens.limits import VARIABLE
from tracelens.read import BESIDE, GraphSources
from tracelens.table import Result
from tracelens.trace import check_ranks, named_ranks
from tracelens.workers.task import Executor, Portion, Task


def analyze_files(
    files: Sequence[str],
    names: Sequence[str],
    execute: Executor,
    *,
    progress: Callable[[str], None],
    step: str | None = None,
    partial: bool = False,
    graphs: GraphSources = BESIDE,
    **options: Any,
) -> tuple[list[Portion], list[Result]]:
    """Analyze the ranks of one job.

    Args:
        files: of the ranks; an archive may hold several.
        names: analyzers, in the order of the results.
        execute: where the work is done.
        progress: called with a line of text.
        step: only this step.
        partial: whether ranks may be missing between others.
        graphs: captures and twin from which graph launches are attributed.
        options: of the analyzers.

    Returns:
        what is known of each rank, in order of rank, and one result an analyzer.

    Raises:
        TracelensError: a file cannot be read, the files are not the ranks of one job, or an option is wrong.
    """
    from tracelens.analysis import ANALYZERS, with_required

    required = with_required([ANALYZERS.get(name) for name in names])
    limits = os.environ.get(VARIABLE, "")
    options_of_all = (tuple(names), step, tuple(options.items()), limits, graphs)
    tasks = [Task(file, rank, *options_of_all) for file, rank in zip(files, named_ranks(files), strict=True)]
    portions: list[Portion] = []
    for portion in execute(tasks):
        portions.append(portion)
        progress(f"analyzed {portion.meta.path} ({len(portions)} of {len(files)})")
    file_order = {file: number for number, file in reversed([*enumerate(files)])}
    portions.sort(key=lambda portion: file_order[portion.file])
    metas, spans = ([getattr(portion, name) for portion in portions] for name in ("meta", "span"))
    ranks = check_ranks(metas, spans, partial=partial)
    for rank, portion in zip(ranks, portions, strict=True):
        if rank != portion.rank:
            raise ParseError(portion.meta.path, "its rank is ambiguous; name the files rank<N>.json")
    portions.sort(key=lambda portion: portion.rank)
    results: dict[str, Any] = {}
    for item in required:
        progress(f"combining {item.name}")
        parts = [portion.parts[item.name] for portion in portions]
        results[item.name] = item.combine(parts, results, **options)
    return portions, [results[name] for name in names]
