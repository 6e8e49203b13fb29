"""Ranks, world sizes and the ranks of process groups, as far as they can be true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tracelens.limits import limits
from tracelens.read.json.numbers import integer


def ranks_of_header(info: Mapping[str, Any]) -> tuple[int, int, list[str]]:
    """Rank and world size that `distributedInfo` gives, -1 where it gives none that can be true.

    Returns:
        (rank, world size, what had to be ignored, for people).
    """
    notes: list[str] = []
    most = limits().ranks
    numbers = {"rank": -1, "world_size": -1}
    for key, lowest in (("rank", 0), ("world_size", 1)):
        value = info.get(key)
        number = integer(value)
        if lowest <= number < lowest + most:
            numbers[key] = number
        elif value is not None and value != -1:
            notes.append(f"distributedInfo.{key} {_shown(value)} was ignored: {limits().exceeded('ranks')}")
    rank, world_size = numbers["rank"], numbers["world_size"]
    if 0 <= world_size <= rank:
        notes.append(f"distributedInfo.world_size {world_size} was ignored: the trace is of rank {rank}")
        world_size = -1
    return rank, world_size, notes


@lru_cache(maxsize=1 << 12)
def group_of(ranks: str, size: int) -> tuple[str, int, str]:
    """The ranks of a process group as recorded, and its size, as far as they can be true.

    Returns:
        (ranks, size, what is wrong with them); "" and -1 for what must be ignored. A list that the profiler
        has cut ("[0, 1, ...") is kept, and says nothing of the size.
    """
    size = size if 0 < size <= limits().ranks else -1
    try:
        listed = json.loads(ranks) if ranks else []
    except (ValueError, RecursionError):
        return ranks, size, ""
    if not listed:
        return ranks, size, ""
    count = len(valid_ranks(listed))
    if not count:
        return "", size, "impossible group ranks, left out"
    return (
        ranks,
        count,
        "group size different from the number of its ranks, corrected" if size not in (-1, count) else "",
    )


def listed_ranks(ranks: str) -> tuple[int, ...]:
    """The ranks of a process group from their text; () where it is cut, or wrong."""
    try:
        return valid_ranks(json.loads(ranks))
    except (ValueError, RecursionError):
        return ()


def valid_ranks(listed: object) -> tuple[int, ...]:
    """A list as the ranks of a group: distinct, none below 0 or beyond the limit; () for anything else."""
    most = limits().ranks
    if not isinstance(listed, list) or not 0 < len(listed) <= most:
        return ()
    is_rank = all(type(rank) is int and 0 <= rank < most for rank in listed)
    return tuple(listed) if is_rank and len({*listed}) == len(listed) else ()


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
