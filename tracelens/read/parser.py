"""Bytes to `Trace`: one module a format, found by looking at the content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.read.graphs import BESIDE, GraphSources, with_graphs
from tracelens.registry import Registry

if TYPE_CHECKING:
    from subprocess import Popen

    from tracelens.read.json import Encoded, Splitter
    from tracelens.trace import Trace


@dataclass(frozen=True)
class Parser:
    """A trace format.

    Attributes:
        name: shown as the trace's format.
        doc: one line for `tracelens list parsers`.
        sniff: whether a file looks like this format, from its header keys and the first bytes of events.
        build: decoded columns to Trace; raises ParseError when nothing usable is in them.
    """

    name: str
    doc: str
    sniff: Callable[[Splitter], bool]
    build: Callable[[Splitter, Encoded], Trace]


PARSERS: Registry[Parser] = Registry("parser", "tracelens.read.formats")


def parser(name: str, *, sniff: Callable[[Splitter], bool]) -> Callable[..., Callable[..., Trace]]:
    """Register a function (Splitter, Encoded) -> Trace as the parser of a format."""

    def keep(build: Callable[[Splitter, Encoded], Trace]) -> Callable[[Splitter, Encoded], Trace]:
        doc = (build.__doc__ or "").strip().splitlines()[0]
        PARSERS.add(name, Parser(name, doc, sniff, build), build.__module__)
        return build

    return keep


def parse(path: str, processes: Sequence[Popen[bytes]] = (), graphs: GraphSources = BESIDE) -> list[Trace]:
    """Read one file ("-" is stdin); an archive may hold several traces.

    Args:
        path: the file.
        processes: of children.Children, to decode on several cores.
        graphs: captures and eager twin from which graph launches are attributed.

    Raises:
        ParseError: the file holds no intact trace event; the message says what it is instead.
    """
    traces = _read(path, processes)
    return [with_graphs(trace, path, graphs, lambda file: _read(file, processes)) for trace in traces]


def _read(path: str, processes: Sequence[Popen[bytes]]) -> list[Trace]:
    from tracelens.read.json import Splitter, decode_all
    from tracelens.read.open import open_source

    traces = []
    for source in open_source(path):
        with closing(source):
            splitter = Splitter(source)
            formats = sorted((item for _, item in PARSERS.items()), key=_specific_first)
            trace_format = next(item for item in formats if item.sniff(splitter))
            traces.append(trace_format.build(splitter, decode_all(splitter, processes)))
    return traces


def _specific_first(item: Parser) -> tuple[bool, bool, str]:
    """Formats of plugins come first; generic Chrome JSON fits everything and comes last."""
    bundled = item.build.__module__.startswith("tracelens.")
    return (bundled, item.name == "chrome", item.name)
