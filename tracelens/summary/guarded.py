"""A bug in a summary costs the summary, not the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from tracelens.guard import Failure, guard
from tracelens.table import Summary

P = ParamSpec("P")


def guarded(make: Callable[P, Summary | None], *args: P.args, **kwargs: P.kwargs) -> Summary | None:
    """What `make` returns; where it fails, a summary whose verdict is the Failure."""
    made = guard("the summary", make, *args, **kwargs)
    return Summary(made) if isinstance(made, Failure) else made
