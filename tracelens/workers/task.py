"""What is done with one file: read it, analyze its ranks, keep the tables and drop the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.limits import applied
from tracelens.read import BESIDE, GraphSources

if TYPE_CHECKING:
    from subprocess import Popen

    from tracelens.trace import TraceMeta


class Task(NamedTuple):
    """One file to be analyzed; it travels to where that is done.

    Attributes:
        path: of the file, as seen from there.
        rank: that the names of all files give this one, -1 for none; what the trace says goes first.
        analyzers: names.
        step: only this step.
        options: of the analyzers, as (name, value).
        limits: in force where the task comes from, as in TRACELENS_LIMITS.
        graphs: captures and twin from which graph launches are attributed.
    """

    path: str
    rank: int
    analyzers: tuple[str, ...]
    step: str | None
    options: tuple[tuple[str, Any], ...]
    limits: str = ""
    graphs: GraphSources = BESIDE


class Portion(NamedTuple):
    """What came of one trace; it travels back.

    Attributes:
        file: that it is from.
        meta: of the trace as read, its rank -1 where it does not say.
        rank: that the tables are of.
        span: first and last time of its events, ns.
        parts: by analyzer and shared input, what its `combine` needs of this rank.
    """

    file: str
    meta: TraceMeta
    rank: int
    span: tuple[int, int]
    parts: Mapping[str, Any]


Executor = Callable[[Sequence[Task]], Iterator[Portion]]
"""Carries tasks out, in any order."""


def carry_out(task: Task, processes: Sequence[Popen[bytes]] = ()) -> list[Portion]:
    """Read a file and analyze each trace in it.

    Raises:
        TracelensError: it cannot be read, or has no such step.
    """
    with applied(task.limits):
        return _carry_out(task, processes)


def _carry_out(task: Task, processes: Sequence[Popen[bytes]]) -> list[Portion]:
    from tracelens.analysis import ANALYZERS, with_required
    from tracelens.read import parse
    from tracelens.trace import make_run, select_step

    required = with_required([ANALYZERS.get(name) for name in task.analyzers])
    portions = []
    for trace in parse(task.path, processes, task.graphs):
        rank = trace.meta.rank if trace.meta.rank >= 0 else task.rank
        run = make_run([replace(trace, meta=replace(trace.meta, rank=rank))])
        if task.step is not None:
            run = select_step(run, task.step)
        (ranked,) = run.traces
        times = ranked.arrays
        span = (int(times.start.min()), int(times.end.max()))
        parts = {item.name: item.part_of(ranked, **dict(task.options)) for item in required}
        portions.append(Portion(task.path, trace.meta, ranked.meta.rank, span, parts))
    return portions


def attempt(task: Task) -> list[Portion] | TracelensError:
    """The portions of a file, or what is wrong with it, be it a bug."""
    try:
        portions = guard(f"reading {task.path}", carry_out, task)
    except TracelensError as error:
        return error
    return TracelensError(portions) if isinstance(portions, Failure) else portions
