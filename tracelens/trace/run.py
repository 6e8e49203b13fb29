"""`Run`: the ranks of one job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tracelens.errors import ParseError
from tracelens.trace.trace import Trace

_RANK_IN_NAME = re.compile(r"rank[-_. ]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Run:
    """Traces of one job, one a rank, in order of rank."""

    traces: tuple[Trace, ...]

    @property
    def ranks(self) -> list[int]:
        """Their rank numbers."""
        return [trace.meta.rank for trace in self.traces]

    def __repr__(self) -> str:
        events = sum(len(trace.events) for trace in self.traces)
        return f"Run({len(self.traces)} rank(s), {events:,} events)"


def make_run(traces: Iterable[Trace]) -> Run:
    """Order traces by rank: what the trace says, else what its file name says, else 0 for a single one.

    Raises:
        ParseError: two traces claim one rank, or several do not say theirs.
    """
    found = list(traces)
    ranked: dict[int, Trace] = {}
    for trace in found:
        rank = _rank(trace, alone=len(found) == 1)
        if rank in ranked:
            other = ranked[rank].meta.path
            raise ParseError(trace.meta.path, f"is rank {rank}, and so is {other}; pass one of them")
        ranked[rank] = replace(trace, meta=replace(trace.meta, rank=rank))
    return Run(tuple(ranked[rank] for rank in sorted(ranked)))


def _rank(trace: Trace, alone: bool) -> int:
    if trace.meta.rank >= 0:
        return trace.meta.rank
    if named := _RANK_IN_NAME.search(Path(trace.meta.path).name):
        return int(named.group(1))
    if alone:
        return 0
    raise ParseError(
        trace.meta.path,
        "which rank this is stands neither in the trace nor in its name; name it rank<N>.json",
    )
