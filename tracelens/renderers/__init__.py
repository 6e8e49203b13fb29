"""Report in, bytes out: every output format is one module here and sees nothing but `tracelens.schema`.

A format is a function from a `Report` to named file contents, registered with `@renderer`. Importing this
package is cheap; each format imports its library when it runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tracelens.errors import TracelensError
from tracelens.guard import Failure, guard
from tracelens.registry import Registry
from tracelens.schema import Report, Result, Skip

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
    """

    name: str
    suffix: str
    doc: str
    files: Files


RENDERERS: Registry[Renderer] = Registry("renderer", "tracelens.renderers")


def renderer(name: str, *, suffix: str, doc: str) -> Callable[[Files], Files]:
    """Register the decorated function as the format `name`; see `Renderer` for the arguments."""

    def keep(files: Files) -> Files:
        RENDERERS.add(name, Renderer(name, suffix, doc, files), files.__module__)
        return files

    return keep


def by_path(path: str | os.PathLike[str]) -> Renderer:
    """The format that belongs to an output path.

    A path without suffix, with a trailing slash, or of an existing directory means a directory of CSV files.

    Raises:
        TracelensError: no format has that suffix; the known ones are named.
    """
    text = os.fspath(path)
    suffix = Path(text).suffix.lower().rstrip(".")
    if text.endswith(("/", os.sep)) or Path(text).is_dir():
        suffix = ""
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


def write(report: Report, path: str | os.PathLike[str]) -> None:
    """Write `report` in the format that `path` asks for; a file is replaced whole or not at all.

    Missing parent directories are made.

    Raises:
        TracelensError: no such format, or the file cannot be written (the system's reason is given).
    """
    chosen = by_path(path)
    files = rendered(report, chosen.files)
    target = Path(path)
    try:
        for name, content in files.items():
            _replace(target if chosen.suffix else target / name, content)
    except OSError as error:
        raise TracelensError(f"cannot write {os.fspath(path)}: {error.strerror or error}") from error


def _replace(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
