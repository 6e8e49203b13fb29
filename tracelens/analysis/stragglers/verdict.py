"""Why the last rank of a collective was late: causes, and what a verdict says of them."""

from __future__ import annotations

from typing import NamedTuple

from tracelens.analysis.stragglers.segments import BLOCKED, COLLECTIVE, GARBAGE, LATE, LOADING, SILENT

CAUSES = (
    "token_load",
    "extra_work",
    "slow_kernels",
    "silent_host",
    "data_loading",
    "blocking_call",
    "garbage_collection",
    "collective_call",
    "late_launch",
    "inherited",
    "unknown",
)

IDLE = {
    SILENT: "silent_host",
    LOADING: "data_loading",
    BLOCKED: "blocking_call",
    GARBAGE: "garbage_collection",
    COLLECTIVE: "collective_call",
    LATE: "late_launch",
}

HOLDING = {
    SILENT: "it was in no recorded call for",
    LOADING: "it was loading data for",
    BLOCKED: "it was blocked for",
    GARBAGE: "it collected garbage for",
}
"""What can hold a host up before its launches are late, in words."""

REASON = {
    "silent_host": "the host was in no recorded op or call: {host}",
    "data_loading": "the host was loading data in {host}",
    "blocking_call": "the host was blocked in {host}",
    "garbage_collection": "of garbage collection: {host}",
    "collective_call": "the host was in {host}",
    "late_launch": "the host launched late, the longest time in {host}",
}
"""Why a host was late, with what it was in."""


class Verdict(NamedTuple):
    """Why the last rank of a collective was late.

    Attributes:
        rank: who is to blame: the last rank, or one of the others that held it up before.
        cause: one of CAUSES.
        evidence: the figures that say so.
        late_ns: how late the last rank was.
        root: evidence of the verdict that a chain of inherited lateness goes back to, "" where this is it.
    """

    rank: int
    cause: str
    evidence: str
    late_ns: int
    root: str = ""
