"""Which process group gloo's worker threads belong to: their events do not say.

Each group has two threads of its own, made with the group. So threads in order of their ids, taken in ones
and twos, are the groups in order of their making, some left out whose threads did nothing; and some
collectives tell the size of their group. What that leaves open stays unknown: ranks must not be compared by
a guess.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tracelens.read.json import members, ranks_of_header

THREADS = 2
"""Worker threads of a group (ProcessGroupGloo::Options)."""


class Group(NamedTuple):
    """A process group as the header describes it; of one not known, `name` is the rank's own."""

    name: str
    description: str
    ranks: tuple[int, ...]


def header_groups(info: Mapping[str, Any]) -> list[Group]:
    """The process groups that this rank is in, in order of their making, from `distributedInfo`."""
    listed = info.get("pg_config")
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except (ValueError, RecursionError):
            listed = None
    found = []
    for entry in listed if isinstance(listed, list) else []:
        ranks = members(entry.get("ranks")) if isinstance(entry, dict) else ()
        if ranks:
            description = entry.get("pg_desc", "")
            found.append(Group(str(entry.get("pg_name", "")), str(description), ranks))
    _, size, _ = ranks_of_header(info)
    return found or ([Group("0", "default_pg", tuple(range(size)))] if size > 0 else [])


def thread_groups(sizes: Mapping[int, set[int]], groups: Sequence[Group], unknown: Group) -> dict[int, Group]:
    """The group of each worker thread.

    Args:
        sizes: thread id to the sizes of its group that its collectives tell.
        groups: from `header_groups`.
        unknown: stands for a group that cannot be told.
    """
    runs = _runs(sorted(sizes), sizes)
    told = [set().union(*(sizes[thread] for thread in run)) for run in runs]

    def fits(run: int, group: int) -> bool:
        return told[run] <= {len(groups[group].ranks)}

    first = _assigned(len(runs), len(groups), fits)
    # The last group that each can have is the first one, counted from the other end.
    end, most = len(runs) - 1, len(groups) - 1
    last = _assigned(len(runs), len(groups), lambda run, group: fits(end - run, most - group))
    found: dict[int, Group] = {}
    for number, run in enumerate(runs):
        chosen = unknown._replace(name=f"{unknown.name}, threads {number}")
        if first and last:
            places = range(first[number], most - last[end - number] + 1)
            chosen = _agreed([groups[at] for at in places if fits(number, at)], chosen)
        found |= dict.fromkeys(run, chosen)
    return found


def listed_groups(
    threads: Sequence[int], sizes: Mapping[int, set[int]], groups: Sequence[Group]
) -> dict[int, Group]:
    """The group of each worker thread, where the header lists all worker threads that the process has.

    Args:
        threads: that list, as they were made, `THREADS` a group; {} is returned for any other.
        sizes: as for `thread_groups`.
        groups: from `header_groups`.
    """
    if len(threads) != THREADS * len(groups):
        return {}
    found = {thread: groups[place // THREADS] for place, thread in enumerate(threads)}
    fits = all(thread in found and told <= {len(found[thread].ranks)} for thread, told in sizes.items())
    return found if fits else {}


def peer_group(
    rank: int, partners: Sequence[int], groups: Sequence[Group], prefer: Callable[[str], bool]
) -> Group | None:
    """The group of a rank's sends and receives, None where it cannot be told.

    Args:
        rank: of the trace.
        partners: whom it sends to and receives from, by their places in the group.
        groups: from `header_groups`.
        prefer: whether a group of this description is for sends and receives.
    """
    possible = [
        group
        for group in groups
        if rank in group.ranks
        and all(0 <= place < len(group.ranks) and group.ranks[place] != rank for place in partners)
    ]
    possible = [group for group in possible if prefer(group.description)] or possible
    partners_in = {tuple(group.ranks[place] for place in partners) for group in possible}
    return possible[0] if len(partners_in) == 1 else None


def _agreed(possible: Sequence[Group], unknown: Group) -> Group:
    """What all possible groups have in common: their ranks; of one only, its name and description too."""
    if len({group.ranks for group in possible}) != 1:
        return unknown
    if len(possible) == 1:
        return possible[0]
    return possible[0]._replace(name=" or ".join(group.name for group in possible), description="")


def _runs(threads: Sequence[int], sizes: Mapping[int, set[int]]) -> list[list[int]]:
    """Neighbouring threads in as few groups as possible, those with the closest ids together."""
    best: list[tuple[int, int, int]] = [
        (0, 0, 0)
    ]  # of the first n threads: groups, distance, size of the last
    for at, thread in enumerate(threads):
        count, apart, _ = best[at]
        options = [(count + 1, apart, 1)]
        if at and len(sizes[thread] | sizes[threads[at - 1]]) <= 1:
            count, apart, _ = best[at - 1]
            options.append((count + 1, apart + thread - threads[at - 1], 2))
        best.append(min(options, key=lambda option: option[:2]))
    runs: list[list[int]] = []
    end = len(threads)
    while end:
        begin = end - best[end][2]
        runs.append(list(threads[begin:end]))
        end = begin
    return runs[::-1]


def _assigned(runs: int, groups: int, fits: Callable[[int, int], bool]) -> list[int]:
    """The first group that each run can have when they keep their order; [] if they do not fit."""
    found: list[int] = []
    for run in range(runs):
        begin = found[-1] + 1 if found else 0
        group = next((group for group in range(begin, groups) if fits(run, group)), -1)
        if group < 0:
            return []
        found.append(group)
    return found
