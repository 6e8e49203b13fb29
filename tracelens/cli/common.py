"""What the commands share: arguments, progress, output."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from tracelens.errors import TracelensError
from tracelens.guard import banner
from tracelens.limits import set_limits
from tracelens.printable import printable

if TYPE_CHECKING:
    from tracelens.read import TraceFiles
    from tracelens.table import Report

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Traces: files (.json, .gz, .zst, .zip), directories of ranks, quoted patterns, addresses "
        "(s3://, https://), or - for stdin. Several files are the ranks of one job.",
        show_default=False,
    ),
]


class ScopeChoice(StrEnum):
    """Values of --scope."""

    all = "all"
    linked = "linked"


Scope = Annotated[
    ScopeChoice,
    typer.Option(help="GPU work to count: all, or linked: only work whose launch call is in the trace."),
]

Step = Annotated[
    str | None,
    typer.Option(
        help="Only this step: 2 for ProfilerStep#2. GPU work is clipped at its borders.", show_default=False
    ),
]

Device = Annotated[
    str | None,
    typer.Option(
        help="Device for rooflines instead of the traced one; see `tracelens list devices`.",
        show_default=False,
    ),
]

DeviceFile = Annotated[
    str | None,
    typer.Option(help="Device for rooflines, from a TOML file.", metavar="FILE", show_default=False),
]

Partial = Annotated[bool, typer.Option("--partial", help="Accept missing ranks.")]

Dask = Annotated[
    str | None,
    typer.Option(
        help="Read and analyze on the workers of this Dask cluster (tcp://host:port); the files need the "
        "same paths there.",
        metavar="ADDRESS",
        show_default=False,
    ),
]


def _set_limits(entries: list[str] | None) -> None:
    if entries:
        set_limits(entries)


Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="Raise a read limit: decompressed_bytes=200G, ranks=1M. Repeatable.",
        metavar="NAME=VALUE",
        callback=_set_limits,
        expose_value=True,
        show_default=False,
    ),
]


def options(
    names: Sequence[str] | None, scope: ScopeChoice, device: str | None, device_file: str | None
) -> dict[str, Any]:
    """What the analyzers of these names are given, all by default; says what none of them has."""
    given = {"scope": scope.value, "device": device, "device_file": device_file}
    if not names or (scope is ScopeChoice.all and device is None and device_file is None):
        return given
    from tracelens.analysis import ANALYZERS, option_names
    from tracelens.analysis.common import choose_device

    known = option_names([ANALYZERS.get(name) for name in names])
    choose_device(device, device_file)
    changed = {name for name, value in given.items() if value not in (None, ScopeChoice.all.value)}
    for name in sorted(changed - known):
        say(f"tracelens: {', '.join(names)}: --{name.replace('_', '-')} changes nothing here")
    return {name: value for name, value in given.items() if name in known or name not in changed}


_PATIENCE_S = 1.0


class Progress:
    """One changing line on stderr for work that takes over a second; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._status: Any = None

    def __call__(self, text: str) -> None:
        """Say what is being done now."""
        if self._status is None and sys.stderr.isatty() and time.monotonic() - self._started > _PATIENCE_S:
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        if self._status is not None:
            from rich.text import Text

            # A path may look like markup: [red], [link=...], :smile:.
            self._status.update(Text(printable(text)))

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()


@contextmanager
def progress() -> Iterator[Progress]:
    """Progress that is cleared on the way out, also by an error."""
    line = Progress()
    try:
        yield line
    finally:
        line.stop()


def write_stdout(data: bytes) -> None:
    """Write bytes to stdout. One who has read enough (`| head`) ends neither the command nor its verdict.

    Raises:
        TracelensError: stdout is closed, or its disk is full.
    """
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise TracelensError("stdout is closed; write to a file with -o")
    try:
        stream.buffer.write(data)
        stream.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError as error:
        raise TracelensError(f"cannot write to stdout: {error.strerror or error}") from None


def check_outputs(
    output: Sequence[str],
    inputs: Iterable[str] = (),
    others: Sequence[str] = (),
    traces: TraceFiles | None = None,
) -> None:
    """Say before the work, and not after it, that something cannot or must not be written.

    Args:
        output: where reports go.
        inputs: all that the command reads.
        others: files that it writes besides.
        traces: of what is read as traces, the files.
    """
    if output or others:
        from tracelens.rendering import check

        check(output, inputs, others, traces)


def import_formats(output: Sequence[str]) -> None:
    """Import what some outputs need, while a trace is being decoded."""
    if output:
        from tracelens.rendering import by_path

        if any(by_path(path).name == "html" for path in output):
            import jinja2  # noqa: F401


def deliver(report: Report, output: Sequence[str], json: bool) -> None:
    """Write a report to files and directories; print it as JSON where asked, and where nothing is written."""
    from tracelens.session import render

    for path in output:
        render(report, path)
        say(f"wrote {path}")
    if json or not output:
        print_report(report, json=json)
    check_complete(report)


def print_report(report: Report, *, json: bool = False) -> None:
    """Print its first result as JSON, or all of it, as wide and as colourful as the terminal allows."""
    if json:
        from tracelens.rendering.formats import one_result

        write_stdout(one_result(report.results[0], report.meta))
        return
    from tracelens.rendering import rendered
    from tracelens.rendering.formats import console

    width = shutil.get_terminal_size((120, 24)).columns
    color = sys.stdout is not None and sys.stdout.isatty()
    write_stdout(rendered(report, partial(console, width=width, color=color)).encode())


def check_complete(report: Report) -> None:
    """Say on stderr what failed because of a bug.

    Raises:
        TracelensError: nothing else came of it.
    """
    from tracelens.session import with_results

    if incomplete := banner(with_results(report).failures):
        say(f"tracelens: {incomplete}")


def say(text: str) -> None:
    """One line for people, on stderr, so that stdout stays data."""
    print(printable(text), file=sys.stderr)
