"""Paths to `Trace`: the format is found by looking at the content, then graph launches are attributed.

What graphs replay is known from captures of them and from eager twins beside a trace.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from tracelens.errors import ParseError, WrongOption
from tracelens.filenames import CAPTURES, traces_among
from tracelens.read.files import MAGIC, TraceFiles, is_url
from tracelens.registry import Registry

if TYPE_CHECKING:
    from tracelens.read.json import Child, Encoded, Splitter
    from tracelens.trace import Trace
    from tracelens.trace.graphs import Size


class Parser(Struct, frozen=True):
    """A trace format."""

    name: str  # shown as the trace's format
    doc: str  # one line for `tracelens list parsers`
    # whether a file looks like this format, from its header keys and the first bytes of events
    sniff: Callable[[Splitter], bool]
    # decoded columns to Trace; raises ParseError when nothing usable is in them
    build: Callable[[Splitter, Encoded], Trace]


PARSERS: Registry[Parser] = Registry("parser", "tracelens.read.formats")

DETAILS = "execution_details.json"
"""File among the traces of captures that lists their batch sizes and modes."""
_SIZE = re.compile(r"(?:^|_)bs_?(\d+)(?=[_.])")
_RANK = re.compile(r"rank[_-]?(\d+)")


_GENERIC = "chrome"  # name of the format that fits any program
_NO_TWIN = "no such file or folder of a run without graphs"


class GraphSources(NamedTuple):
    """What a caller names as the origin of graphs; "" for what lies beside the trace, or for nothing."""

    captures: str = ""  # a trace of captures, or a folder of them
    twin: str = ""  # a trace of the same program without graphs, or a folder of its ranks

    @classmethod
    def named(cls, captures: str, twin: str) -> GraphSources:
        """What a caller names; raises ParseError where it is not there, even if no graph needs it."""
        for path, what in ((captures, "no such file or folder of capture traces"), (twin, _NO_TWIN)):
            if path and not is_url(path) and not MAGIC.search(path) and not os.path.exists(path):
                raise ParseError(path, what)
        return cls(captures, twin)


BESIDE = GraphSources()


class SideTraces:
    """Traces of captures and twins, each read once for all that share it."""

    def __init__(self) -> None:
        self._traces: dict[str, list[Trace]] = {}

    def read(self, file: str, processes: Sequence[Child], threads: int) -> list[Trace]:
        """The traces in a file; raises ParseError."""
        if file not in self._traces:
            self._traces[file] = _read(file, processes, threads)
        return self._traces[file]

    def forget_ranks(self) -> None:
        """Let go of those that belong to one rank by their name: the next rank has its own."""
        for file in [file for file in self._traces if _RANK.search(os.path.basename(file))]:
            del self._traces[file]


def parser(name: str, *, sniff: Callable[[Splitter], bool]) -> Callable[..., Callable[..., Trace]]:
    """Register a function (Splitter, Encoded) -> Trace as the parser of a format."""

    def keep(build: Callable[[Splitter, Encoded], Trace]) -> Callable[[Splitter, Encoded], Trace]:
        doc = (build.__doc__ or "").strip().splitlines()[0]
        PARSERS.add(name, Parser(name, doc, sniff, build), build.__module__)
        return build

    return keep


def parse(
    path: str,
    processes: Sequence[Child] = (),
    graphs: GraphSources = BESIDE,
    side_traces: SideTraces | None = None,
    threads: int = 0,
    is_wanted: Callable[[], bool] = lambda: True,
) -> list[Trace]:
    """Read one file ("-" is stdin); an archive may hold several traces.

    Args:
        path: the file.
        processes: of children.Children, to decode on several cores.
        graphs: captures and eager twin from which graph launches are attributed.
        side_traces: those that other files read, and this one reads with them.
        threads: likewise, of this process, where the native core decodes.
        is_wanted: whether anybody still waits for the traces; asked while they are decoded.

    Raises:
        ParseError: the file holds no intact trace event; the message says what it is instead.
    """
    side = SideTraces() if side_traces is None else side_traces
    return [
        with_graphs(trace, path, graphs, lambda file: side.read(file, processes, threads))
        for trace in _read(path, processes, threads, is_wanted)
    ]


def _read(
    path: str,
    processes: Sequence[Child],
    threads: int,
    is_wanted: Callable[[], bool] = lambda: True,
) -> list[Trace]:
    from tracelens.read.json import decode_all

    traces = []
    for splitter in _opened(path):
        table = decode_all(splitter, processes, threads, is_wanted)
        # The formats import much, and others do so while the events are decoded.
        traces.append(_format(splitter).build(splitter, table))
    return traces


def _opened(path: str) -> Iterator[Splitter]:
    """The traces in a file; one is closed when the next is asked for."""
    from tracelens.read.json import Splitter
    from tracelens.read.source import open_source

    for source in open_source(path):
        with closing(source):
            yield Splitter(source)


def _format(splitter: Splitter) -> Parser:
    """The format of a trace."""

    def specific_first(item: Parser) -> tuple[bool, bool, str]:
        """Formats of plugins come first; generic Chrome JSON fits everything and comes last."""
        bundled = item.build.__module__.startswith("tracelens.")
        return (bundled, item.name == _GENERIC, item.name)

    formats = sorted((item for _, item in PARSERS.items()), key=specific_first)
    return next(item for item in formats if item.sniff(splitter))


def _refuse_foreign(files: Sequence[str]) -> None:
    """Raise ParseError where the first file that a caller names is no trace of torch."""
    for file in files[:1]:
        for splitter in _opened(file):
            if _format(splitter).name == _GENERIC:
                raise ParseError(file, "not a trace of torch.profiler; name one of the same program")


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
    base, cand = (GraphSources.named(*side) for side in zip(*paths, strict=True))
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


def captured_sizes(files: Sequence[str]) -> dict[str, list[Size]]:
    """Batch sizes of the captures in each file, by execution_details.json beside them or by its name.

    A list may name files that are not there: what was captured tells to which size a batch is padded.
    """
    import msgspec

    from tracelens.trace.graphs import Size

    sizes: dict[str, list[Size]] = {}
    for folder in {os.path.dirname(file) for file in files}:
        try:
            with open(os.path.join(folder, DETAILS), "rb") as details:
                listed = msgspec.json.decode(details.read())
        except (OSError, msgspec.DecodeError):
            continue
        for entry in listed if isinstance(listed, list) else []:
            if not isinstance(entry, dict):
                continue
            file, size, mode = entry.get("file"), entry.get("batch_size"), entry.get("mode", "")
            if isinstance(file, str) and isinstance(size, int) and isinstance(mode, str):
                sizes.setdefault(os.path.join(folder, os.path.basename(file)), []).append(Size(size, mode))
    for file in files:
        if file not in sizes and (match := _SIZE.search(os.path.basename(file))):
            sizes[file] = [Size(int(match[1]))]
    return sizes


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
    from tracelens.trace import is_unattributed

    if not is_unattributed(trace):  # a slip in what the caller names is told, though no graph needs it
        if sources.captures:
            _refuse_foreign(capture_files(path, trace.meta.rank, sources.captures))
        if sources.twin:
            _refuse_foreign(TraceFiles([sources.twin]).all())
        return trace
    from tracelens.trace.graphs import UNKNOWN, attributed, batches

    local = path != "-" and "://" not in path
    files = capture_files(path, trace.meta.rank, sources.captures) if local or sources.captures else []
    twins: list[Trace] = []
    if sources.twin:  # the only trace that there is, else the one of the same rank
        twin_files, rank = TraceFiles([sources.twin]).all(), trace.meta.rank
        of_rank = twin_files if len(twin_files) == 1 else _of_rank(twin_files, rank)
        twins = [twin for file in of_rank for twin in read(file)]
        if foreign := next((twin.meta for twin in twins if twin.meta.no_work), None):
            raise ParseError(foreign.path, foreign.no_work)
        if len(twin_files) > 1 and rank >= 0:
            twins = [twin for twin in twins if twin.meta.rank == rank]
        if len(twin_files) > 1 and not twins:
            problem = f"no trace of rank {rank} among the {len(twin_files)} of this twin"
            raise ParseError(sources.twin, problem)
    sizes = captured_sizes(files)
    listed = [size for of_file in sizes.values() for size in of_file]
    # Engines capture dozens of sizes, and a trace replays a few of them: those that the labels of its steps
    # say, as far as they do. The others are read only where these explain nothing.
    replayed = batches(trace)
    likely = [
        file
        for file in files
        if file not in sizes
        or any(batch.fits(size, listed) is not False for size in sizes[file] for batch in replayed)
    ]
    problems: list[str] = []
    others: list[Trace] = []
    of_others: list[Size] = []
    result = trace
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
            distinct = {*sizes.get(file, ())}
            of_others += [distinct.pop() if len(distinct) == 1 else UNKNOWN] * len(traces)
        result = attributed(trace, others, twins, listed, of_others)
    if (named := " and ".join(filter(None, sources))) and is_unattributed(result):
        problems.append(f"{named} not used: no graph launch of the trace replays it")
    if problems:
        result = replace(result, meta=replace(result.meta, problems=(*result.meta.problems, *problems)))
    return result
