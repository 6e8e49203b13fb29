"""Report in, bytes out: every output format is one module here and sees nothing but `tracelens.table.schema`.

A format is a function from a `Report` to named file contents, registered with `@renderer`. Importing this
package is cheap; each format imports its library when it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.outputs import FolderKind, TraceFiles, check_folder, is_stream, write_file, write_folder
from tracelens.registry import Registry
from tracelens.table import Report, Result, Skip

T = TypeVar("T")

Files = Callable[[Report], Mapping[str, bytes]]
Prepare = Callable[[Sequence[Result]], Mapping[str, Any]]


class Renderer(Struct, frozen=True):
    """One output format."""

    name: str  # its registered name
    suffix: str  # of the file it writes, with the dot; "" for a format that fills a directory
    doc: str  # one line for `tracelens list`
    files: Files  # report to relative file name to content; exactly one file unless `suffix` is ""
    folder: FolderKind | None = None  # what the directory is, for a format that fills one
    # some results to what `files` finds of them in `prepared`, by analyzer, while others are made
    prepare: Prepare | None = None


RENDERERS: Registry[Renderer] = Registry(
    "renderer",
    "tracelens.rendering.formats",
    homes={f".{name}": name for name in ("console", "csv", "html", "json", "markdown", "xlsx")},
)
SUFFIXES = {
    **{"": "csv", ".html": "html", ".json": "json", ".md": "markdown"},
    **{".txt": "console", ".xlsx": "xlsx"},
}
"""Suffix to format, of ours."""


def renderer(
    name: str, *, suffix: str, doc: str, folder: FolderKind | None = None, prepare: Prepare | None = None
) -> Callable[[Files], Files]:
    """Register the decorated function as the format `name`; see `Renderer` for the arguments."""

    def keep(files: Files) -> Files:
        RENDERERS.add(name, Renderer(name, suffix, doc, files, folder, prepare), files.__module__)
        return files

    return keep


def by_path(path: str | os.PathLike[str]) -> Renderer:
    """The format that belongs to an output path.

    A path without suffix, with a trailing slash, or of an existing directory means a directory of CSV files;
    a device or pipe without suffix (/dev/stdout) is given plain text.

    Raises:
        TracelensError: no format has that suffix; the known ones are named.
    """
    text = os.fspath(path)
    suffix = Path(text).suffix.lower().rstrip(".")
    if text.endswith(("/", os.sep)) or Path(text).is_dir():
        suffix = ""
    elif not suffix:
        with suppress(OSError):
            suffix = ".txt" if is_stream(text) else ""
    if suffix in SUFFIXES and not RENDERERS.has_plugins():
        return RENDERERS.get(SUFFIXES[suffix])
    by_suffix = {known.suffix: known for _, known in RENDERERS.items()}
    if suffix not in by_suffix:
        names = ", ".join(sorted(filter(None, by_suffix)))
        raise TracelensError(
            f"{text}: no format is written as {suffix!r}; known: {names}, "
            "or a directory (end it with /) for CSV"
        )
    return by_suffix[suffix]


def rendered(report: Report, render: Callable[[Report], T]) -> T:
    """What `render` makes of a report; a result that it fails on is replaced by a Skip.

    Results are tried one by one only where the whole failed.
    """
    output = guard("rendering", render, report)
    if not isinstance(output, Failure):
        return output
    results = []
    for result in report.results:
        alone = guard(f"rendering {result.analyzer}", render, replace(report, results=(result,), prepared={}))
        skip = Skip(result.title, alone) if isinstance(alone, Failure) else None
        results.append(replace(result, data={}, meta={}, skips=(skip,)) if skip else result)
    return render(replace(report, results=tuple(results), prepared={}))


def prepared(paths: Iterable[str | os.PathLike[str]], results: Sequence[Result]) -> Mapping[str, Any]:
    """What the formats of these paths make of some results before a report has them all, by format."""
    formats = {item.name: item.prepare for item in map(by_path, paths) if item.prepare is not None}
    made = {name: guard(f"preparing {name}", prepare, results) for name, prepare in formats.items()}
    # What fails is tried again with the whole report, which then says so.
    return {name: of_results for name, of_results in made.items() if not isinstance(of_results, Failure)}


def check(
    paths: Iterable[str | os.PathLike[str]],
    inputs: Iterable[str],
    extra_outputs: Iterable[str] = (),
    traces: TraceFiles | None = None,
) -> None:
    """Refuse outputs before the work.

    Args:
        paths: where reports are to be written.
        inputs: what is read: files, directories, patterns, "-", URLs.
        extra_outputs: files that are written besides.
        traces: as for `outputs.check_outputs`.

    Raises:
        TracelensError: an unknown format, an output that is an input or another output, a directory that
            holds something else, or a place where nothing can be written.
    """
    from tracelens.outputs import Output, check_outputs

    targets = [(os.fspath(path), by_path(path).folder) for path in paths]
    outputs = [Output(path, folder.index if folder else "") for path, folder in targets]
    check_outputs([*outputs, *map(Output, extra_outputs)], inputs, traces)
    for path, folder in targets:
        if folder:
            check_folder(path, folder)


def write(report: Report, path: str | os.PathLike[str]) -> None:
    """Write `report` in the format that `path` asks for; a file or directory is replaced whole or not at all.

    Missing parent directories are made.

    Raises:
        TracelensError: no such format, the path is a file that the report was made from, a directory holds
            something else, or it cannot be written (the system's reason is given).
    """
    target_format = by_path(path)
    inputs = report.meta.get("inputs", ())
    if isinstance(inputs, Mapping):  # by side
        inputs = [path for paths in inputs.values() for path in paths]
    # Directories and names of models are inputs as well; what they mean, the command has checked.
    check([path], [file for file in map(str, inputs) if not Path(file).is_dir()])
    files = rendered(report, target_format.files)
    if target_format.folder:
        write_folder(path, files, target_format.folder)
    else:
        (content,) = files.values()
        write_file(path, content)
