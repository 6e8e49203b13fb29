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

from tracelens.read.json import ranks_of_header, valid_ranks

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
    groups = []
    for entry in listed if isinstance(listed, list) else []:
        ranks = valid_ranks(entry.get("ranks")) if isinstance(entry, dict) else ()
        if ranks:
            description = entry.get("pg_desc", "")
            groups.append(Group(str(entry.get("pg_name", "")), str(description), ranks))
    _, size, _ = ranks_of_header(info)
    return groups or ([Group("0", "default_pg", tuple(range(size)))] if size > 0 else [])


def thread_groups(sizes: Mapping[int, set[int]], groups: Sequence[Group], unknown: Group) -> dict[int, Group]:
    """The group of each worker thread.

    Args:
        sizes: thread id to the sizes of its group that its collectives tell.
        groups: from `header_groups`.
        unknown: stands for a group that cannot be told.
    """
    runs = _runs(sorted(sizes), sizes)
    run_sizes = [set().union(*(sizes[thread] for thread in run)) for run in runs]

    def fits(run: int, group: int) -> bool:
        return run_sizes[run] <= {len(groups[group].ranks)}

    first = _assigned(len(runs), len(groups), fits)
    # The last group that each can have is the first one, counted from the other end.
    end, most = len(runs) - 1, len(groups) - 1
    last = _assigned(len(runs), len(groups), lambda run, group: fits(end - run, most - group))
    of_thread: dict[int, Group] = {}
    for number, run in enumerate(runs):
        group = unknown._replace(name=f"{unknown.name}, threads {number}")
        if first and last:
            candidates = range(first[number], most - last[end - number] + 1)
            group = _agreed([groups[index] for index in candidates if fits(number, index)], group)
        of_thread |= dict.fromkeys(run, group)
    return of_thread


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
    of_thread = {thread: groups[index // THREADS] for index, thread in enumerate(threads)}
    fits = all(
        thread in of_thread and known <= {len(of_thread[thread].ranks)} for thread, known in sizes.items()
    )
    return of_thread if fits else {}


def peer_group(
    rank: int, partners: Sequence[int], groups: Sequence[Group], prefer: Callable[[str], bool]
) -> Group | None:
    """The group of a rank's sends and receives, None where it cannot be told.

    Args:
        rank: of the trace.
        partners: whom it sends to and receives from, by their indices in the group.
        groups: from `header_groups`.
        prefer: whether a group of this description is for sends and receives.
    """
    possible = [
        group
        for group in groups
        if rank in group.ranks
        and all(0 <= partner < len(group.ranks) and group.ranks[partner] != rank for partner in partners)
    ]
    possible = [group for group in possible if prefer(group.description)] or possible
    partners_in = {tuple(group.ranks[partner] for partner in partners) for group in possible}
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
    for index, thread in enumerate(threads):
        count, apart, _ = best[index]
        options = [(count + 1, apart, 1)]
        if index and len(sizes[thread] | sizes[threads[index - 1]]) <= 1:
            count, apart, _ = best[index - 1]
            options.append((count + 1, apart + thread - threads[index - 1], 2))
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
    assigned: list[int] = []
    for run in range(runs):
        begin = assigned[-1] + 1 if assigned else 0
        group = next((group for group in range(begin, groups) if fits(run, group)), -1)
        if group < 0:
            return []
        assigned.append(group)
    return assigned
