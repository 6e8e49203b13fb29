"""Captures of graphs and eager twins beside a trace, from which its graph launches are attributed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tracelens.errors import ParseError, WrongOption
from tracelens.filenames import CAPTURES, traces_among
from tracelens.read.files import TraceFiles

if TYPE_CHECKING:
    from tracelens.trace import Trace
    from tracelens.trace.graphs import Size

DETAILS = "execution_details.json"
"""File among the traces of captures that lists their batch sizes and modes."""

_SIZE = re.compile(r"(?:^|_)bs_?(\d+)(?=[_.])")
_RANK = re.compile(r"rank[_-]?(\d+)")


class GraphSources(NamedTuple):
    """What a caller names as the origin of graphs; "" for what lies beside the trace, or for nothing.

    Attributes:
        captures: a trace of captures, or a folder of them.
        twin: a trace of the same program without graphs, or a folder of its ranks.
    """

    captures: str = ""
    twin: str = ""


BESIDE = GraphSources()


def sources_of_sides(
    captures: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    twin: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> tuple[GraphSources, GraphSources]:
    """What a caller names for the base and the candidate of a comparison: one path for both, or one for each.

    Raises:
        WrongOption: more than two paths.
    """
    paths = []
    for option, value in (("captures", captures), ("twin", twin)):
        values = [value] if isinstance(value, str | os.PathLike) else [*value]
        if len(values) > 2:
            raise WrongOption(f"{option}: {len(values)} paths; name one for both sides, or one for each")
        values = [os.fspath(path) for path in values] or [""]
        paths.append((values[0], values[-1]))
    base, cand = (GraphSources(*side) for side in zip(*paths, strict=True))
    return base, cand


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
    return _of_rank(files, rank)


def _of_rank(files: Sequence[str], rank: int) -> list[str]:
    """The files of a rank by their names, and those that name none."""
    ranks = {file: int(match[1]) for file in files if (match := _RANK.search(os.path.basename(file)))}
    return [file for file in files if rank < 0 or ranks.get(file, rank) == rank]


def _twins(twin: str, rank: int, read: Callable[[str], list[Trace]]) -> list[Trace]:
    """The twin of a rank: the only trace that there is, else the one of the same rank.

    Raises:
        ParseError: there are several, none of this rank.
    """
    files = TraceFiles([twin]).all()
    if len(files) == 1:
        return read(files[0])
    traces = [trace for file in _of_rank(files, rank) for trace in read(file)]
    if rank >= 0:
        traces = [trace for trace in traces if trace.meta.rank == rank]
    if not traces:
        raise ParseError(twin, f"no trace of rank {rank} among the {len(files)} of this twin")
    return traces


def captured_sizes(files: Sequence[str]) -> dict[str, list[Size]]:
    """Batch sizes of the captures in each file, by execution_details.json beside them or by its name.

    A list may name files that are not there: what was captured tells to which size a batch is padded.
    """
    from tracelens.trace.graphs import Size

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
    import msgspec

    try:
        with open(path, "rb") as file:
            listed = msgspec.json.decode(file.read())
    except (OSError, msgspec.DecodeError):
        return []
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _only(sizes: Mapping[str, Sequence[Size]], file: str) -> Size:
    """The size of all captures in a file, if there is one."""
    from tracelens.trace.graphs import UNKNOWN

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
    from tracelens.trace.graphs import attributed, is_unattributed

    if not is_unattributed(trace):
        return trace
    local = path != "-" and "://" not in path
    files = capture_files(path, trace.meta.rank, sources.captures) if local or sources.captures else []
    twins = _twins(sources.twin, trace.meta.rank, read) if sources.twin else []
    sizes = captured_sizes(files)
    listed = [size for of_file in sizes.values() for size in of_file]
    likely = _of_replayed_sizes(trace, files, sizes, listed)
    problems: list[str] = []
    others: list[Trace] = []
    of_others: list[Size] = []
    result = trace
    # The other sizes only where these explain nothing.
    for part in (likely, [file for file in files if file not in likely]):
        if part is not likely and not (part and is_unattributed(result)):
            break
        for file in part:
            try:
                traces = read(file)
            except ParseError as error:
                if sources.captures:
                    raise
                problems.append(f"capture trace not used: {error}")
                continue
            others += traces
            of_others += [_only(sizes, file)] * len(traces)
        result = attributed(trace, others, twins, listed, of_others)
    if (named := " and ".join(filter(None, sources))) and is_unattributed(result):
        problems.append(f"{named} not used: no graph launch of the trace replays it")
    if problems:
        result = replace(result, meta=replace(result.meta, problems=(*result.meta.problems, *problems)))
    return result


def _of_replayed_sizes(
    trace: Trace, files: Sequence[str], sizes: Mapping[str, Sequence[Size]], listed: Sequence[Size]
) -> list[str]:
    """The files with captures of the batch sizes that labels of the replaying steps say, as far as they do.

    Engines capture dozens of sizes, and a trace replays a few of them.

    Args:
        trace: that replays.
        files: of captures.
        sizes: captured in each file.
        listed: all captured sizes.
    """
    from tracelens.trace.graphs import batches

    replayed = batches(trace)
    return [
        file
        for file in files
        if file not in sizes
        or any(batch.fits(size, listed) is not False for size in sizes[file] for batch in replayed)
    ]
