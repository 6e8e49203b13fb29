"""Bytes to `Trace`: files, archives and URLs, JSON that may be broken, and the formats it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.read.files import MAGIC, TraceFiles, is_url, local_path, same_bytes
    from tracelens.read.json import Child
    from tracelens.read.noted import NotedArgument, NotedCall, NotedFile, values_beside
    from tracelens.read.parser import BESIDE, PARSERS, GraphSources, SideTraces, parse, sources_of_sides
    from tracelens.read.source import open_source

__all__ = [
    "BESIDE",
    "MAGIC",
    "PARSERS",
    "Child",
    "GraphSources",
    "NotedArgument",
    "NotedCall",
    "NotedFile",
    "SideTraces",
    "TraceFiles",
    "is_url",
    "local_path",
    "open_source",
    "parse",
    "same_bytes",
    "sources_of_sides",
    "values_beside",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "read.files": "MAGIC TraceFiles same_bytes is_url local_path",
        "read.json": "Child",
        "read.noted": "NotedArgument NotedCall NotedFile values_beside",
        "read.parser": "BESIDE GraphSources PARSERS SideTraces parse sources_of_sides",
        "read.source": "open_source",
    },
)
