"""Report in, bytes out: every output format is one module here and sees nothing but `tracelens.table.schema`.

A format is a function from a `Report` to named file contents, registered with `@renderer`. Importing this
package is cheap; each format imports its library when it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.outputs import FolderKind, TraceFiles, check_folder, is_stream, write_file, write_folder
from tracelens.registry import Registry
from tracelens.table import Report, Result, Skip

T = TypeVar("T")

Files = Callable[[Report], Mapping[str, bytes]]


@dataclass(frozen=True)
class Renderer:
    """One output format.

    Attributes:
        name: its registered name.
        suffix: of the file it writes, with the dot; "" for a format that fills a directory.
        doc: one line for `tracelens list`.
        files: report to relative file name to content; exactly one file unless `suffix` is "".
        folder: what the directory is, for a format that fills one.
    """

    name: str
    suffix: str
    doc: str
    files: Files
    folder: FolderKind | None = None


RENDERERS: Registry[Renderer] = Registry("renderer", "tracelens.rendering.formats")


def renderer(
    name: str, *, suffix: str, doc: str, folder: FolderKind | None = None
) -> Callable[[Files], Files]:
    """Register the decorated function as the format `name`; see `Renderer` for the arguments."""

    def keep(files: Files) -> Files:
        RENDERERS.add(name, Renderer(name, suffix, doc, files, folder), files.__module__)
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
    elif not suffix and _is_stream(text):
        suffix = ".txt"
    known = {item.suffix: item for _, item in RENDERERS.items()}
    if suffix not in known:
        names = ", ".join(sorted(filter(None, known)))
        raise TracelensError(
            f"{text}: no format is written as {suffix!r}; known: {names}, "
            "or a directory (end it with /) for CSV"
        )
    return known[suffix]


def rendered(report: Report, render: Callable[[Report], T]) -> T:
    """What `render` makes of a report; a result that it fails on is replaced by a Skip.

    Results are tried one by one only where the whole failed.
    """
    whole = guard("rendering", render, report)
    if not isinstance(whole, Failure):
        return whole
    return render(replace(report, results=tuple(_sound(report, render))))


def _sound(report: Report, render: Callable[[Report], object]) -> Iterator[Result]:
    """The results, those that cannot be rendered as a Skip."""
    for result in report.results:
        alone = guard(f"rendering {result.analyzer}", render, replace(report, results=(result,)))
        if isinstance(alone, Failure):
            yield replace(result, data={}, meta={}, skips=(Skip(result.title, alone),))
        else:
            yield result


def check(
    paths: Iterable[str | os.PathLike[str]],
    inputs: Iterable[str],
    others: Iterable[str] = (),
    traces: TraceFiles | None = None,
) -> None:
    """Refuse outputs before the work.

    Args:
        paths: where reports are to be written.
        inputs: what is read: files, directories, patterns, "-", URLs.
        others: files that are written besides.
        traces: as for `outputs.check_outputs`.

    Raises:
        TracelensError: an unknown format, an output that is an input or another output, a directory that
            holds something else, or a place where nothing can be written.
    """
    from tracelens.outputs import Output, check_outputs

    chosen = [(os.fspath(path), by_path(path).folder) for path in paths]
    outputs = [Output(path, folder.index if folder else "") for path, folder in chosen]
    check_outputs([*outputs, *map(Output, others)], inputs, traces)
    for path, folder in chosen:
        if folder:
            check_folder(path, folder)


def write(report: Report, path: str | os.PathLike[str]) -> None:
    """Write `report` in the format that `path` asks for; a file or directory is replaced whole or not at all.

    Missing parent directories are made.

    Raises:
        TracelensError: no such format, the path is a file that the report was made from, a directory holds
            something else, or it cannot be written (the system's reason is given).
    """
    chosen = by_path(path)
    check([path], _input_files(report.meta.get("inputs", ())))
    files = rendered(report, chosen.files)
    if chosen.folder:
        write_folder(path, files, chosen.folder)
    else:
        (content,) = files.values()
        write_file(path, content)


def _input_files(inputs: Any) -> Iterator[str]:
    """The files among the inputs that a report names, be they told by side or not."""
    if isinstance(inputs, Mapping):
        inputs = [path for paths in inputs.values() for path in paths]
    for path in map(str, inputs):
        # Directories and names of models are inputs as well; what they mean, the command has checked.
        if not Path(path).is_dir():
            yield path


def _is_stream(path: str) -> bool:
    try:
        return is_stream(path)
    except OSError:
        return False
