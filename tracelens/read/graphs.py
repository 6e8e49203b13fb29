"""Captures of graphs and eager twins beside a trace, from which its graph launches are attributed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tracelens.errors import ParseError
from tracelens.filenames import traces_among
from tracelens.trace.graphs import UNKNOWN, Size

if TYPE_CHECKING:
    from tracelens.trace import Trace

CAPTURES = "capture_traces"
"""Folder beside a trace with the traces of its captures, as serving engines write it."""

DETAILS = "execution_details.json"
"""File among these traces that lists their batch sizes and modes."""

_SIZE = re.compile(r"(?:^|_)bs_?(\d+)(?=[_.])")
_RANK = re.compile(r"rank[_-]?(\d+)")


class GraphSources(NamedTuple):
    """What a caller names as the origin of graphs; "" for what lies beside the trace, or for nothing.

    Attributes:
        captures: a trace of captures, or a folder of them.
        twin: a trace of the same program without graphs.
    """

    captures: str = ""
    twin: str = ""


BESIDE = GraphSources()


def capture_files(path: str, rank: int, captures: str = "") -> list[str]:
    """The traces of captures that belong to a trace.

    Args:
        path: of the trace.
        rank: of the trace; of captures that name ranks only those of this one count.
        captures: file or folder that the caller names instead of the one beside the trace.

    Raises:
        ParseError: the caller's folder holds no trace.
    """
    folder = captures or os.path.join(os.path.dirname(path), CAPTURES)
    if captures and os.path.isfile(captures):
        return [captures]
    if not os.path.isdir(folder):
        if captures:
            raise ParseError(captures, "no such file or folder of capture traces")
        return []
    files = traces_among(sorted(entry.path for entry in os.scandir(folder) if entry.is_file()))
    files = [file for file in files if not file.endswith(DETAILS)]
    if captures and not files:
        raise ParseError(captures, "holds no capture trace (.json, .gz, .zst, .zip)")
    ranks = {file: int(match[1]) for file in files if (match := _RANK.search(os.path.basename(file)))}
    return [file for file in files if rank < 0 or ranks.get(file, rank) == rank]


def captured_sizes(files: Sequence[str]) -> dict[str, list[Size]]:
    """Batch sizes of the captures in each file, by execution_details.json beside them or by its name.

    A list may name files that are not there: what was captured tells to which size a batch is padded.
    """
    sizes: dict[str, list[Size]] = {}
    for folder in {os.path.dirname(file) for file in files}:
        for entry in _details(os.path.join(folder, DETAILS)):
            file, size, mode = entry.get("file"), entry.get("batch_size"), entry.get("mode", "")
            if isinstance(file, str) and isinstance(size, int) and isinstance(mode, str):
                sizes.setdefault(os.path.join(folder, os.path.basename(file)), []).append(Size(size, mode))
    for file in files:
        if file not in sizes and (match := _SIZE.search(os.path.basename(file))):
            sizes[file] = [Size(int(match[1]))]
    return sizes


def _details(path: str) -> list[dict[str, object]]:
    """The list of captures; empty where there is none that can be read."""
    try:
        with open(path, "rb") as file:
            listed = msgspec.json.decode(file.read())
    except (OSError, msgspec.DecodeError):
        return []
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _only(sizes: Mapping[str, Sequence[Size]], file: str) -> Size:
    """The size of all captures in a file, if there is one."""
    of_file = set(sizes.get(file, ()))
    return of_file.pop() if len(of_file) == 1 else UNKNOWN


def with_graphs(trace: Trace, path: str, sources: GraphSources, read: Callable[[str], list[Trace]]) -> Trace:
    """The trace with what its graph launches replay attributed, as far as it is known what was captured.

    Args:
        trace: as read.
        path: of it.
        sources: named by the caller.
        read: reads a file.

    Raises:
        ParseError: what the caller names cannot be read; what merely lies beside the trace becomes one of its
            problems.
    """
    from tracelens.trace.graphs import GRAPH_CALL, attributed

    if not any(GRAPH_CALL.match(name) for name in trace.arrays.names):
        return trace
    local = path != "-" and "://" not in path
    files = capture_files(path, trace.meta.rank, sources.captures) if local or sources.captures else []
    others: list[Trace] = []
    problems: list[str] = []
    listed = captured_sizes(files)
    of_others: list[Size] = []
    for file in files:
        try:
            parts = read(file)
        except ParseError as error:
            if sources.captures:
                raise
            problems.append(f"capture trace not used: {error}")
            continue
        others += parts
        of_others += [_only(listed, file)] * len(parts)
    twins = read(sources.twin) if sources.twin else []
    if problems:
        trace = replace(trace, meta=replace(trace.meta, problems=(*trace.meta.problems, *problems)))
    sizes = [size for of_file in listed.values() for size in of_file]
    return attributed(trace, others, twins, sizes, of_others)
