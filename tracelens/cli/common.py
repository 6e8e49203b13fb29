"""Options, progress and output shared by the commands."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from tracelens.cli import completion
from tracelens.cli.help import DEVICE, OUTPUT, READING, RUN
from tracelens.errors import TracelensError
from tracelens.guard import banner
from tracelens.limits import set_limits
from tracelens.printable import printable

if TYPE_CHECKING:
    from tracelens.read import TraceFiles
    from tracelens.table import Report, Result

Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="Trace files (.json, .gz, .zst, .zip), directories of ranks, quoted patterns, URLs "
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
    typer.Option(
        help="GPU work to count: all of it, or only work whose launch call is in the trace.",
        rich_help_panel=RUN,
    ),
]

Step = Annotated[
    str | None,
    typer.Option(
        metavar="STEP",
        help="Only this step: 2 or ProfilerStep#2. GPU work is cut at its borders. In serving traces also a "
        "phase, all steps of it: decode, prefill, mixed.",
        show_default="all steps",
        autocompletion=completion.steps,
        rich_help_panel=RUN,
    ),
]

Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Compute rooflines for this device (`tracelens list devices`).",
        show_default="the traced one",
        autocompletion=completion.devices,
        rich_help_panel=DEVICE,
    ),
]

DeviceFile = Annotated[
    str | None,
    typer.Option(
        help="Compute rooflines for the device in this TOML file.",
        metavar="FILE",
        show_default=False,
        rich_help_panel=DEVICE,
    ),
]

Output = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--output",
        metavar="PATH",
        help="Write to a .html, .md, .txt, .json or .xlsx file, or to a directory of CSV files. Repeatable.",
        show_default="print",
        autocompletion=completion.outputs,
        rich_help_panel=OUTPUT,
    ),
]

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object with every table in full.", rich_help_panel=OUTPUT),
]

Full = Annotated[bool, typer.Option("--full", help="Print every section, not only the first screen.")]

UnprofiledStep = Annotated[
    float | None,
    typer.Option(
        metavar="MS",
        help="Step time without the profiler, from which projections start: host time is scaled to match it.",
        show_default="as timed by tracelens.record, if it was",
        min=0.0,
        rich_help_panel=RUN,
    ),
]

Partial = Annotated[bool, typer.Option("--partial", help="Accept missing ranks.", rich_help_panel=READING)]

Captures = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="Trace of the captures of its graphs, or a folder of them, from which graph launches are "
        "attributed to ops.",
        show_default="capture_traces next to each trace",
        rich_help_panel=READING,
    ),
]

Twin = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="Trace of the same program without graphs, or a folder of its ranks, from which graph launches "
        "are attributed to ops.",
        show_default=False,
        rich_help_panel=READING,
    ),
]

CapturesOfSides = Annotated[
    list[str] | None,
    typer.Option(
        "--captures",
        metavar="PATH",
        help="Trace of the captures of graphs, or a folder of them, of both sides; twice: of the base, then "
        "of the candidate.",
        show_default="capture_traces next to each trace",
        rich_help_panel=READING,
    ),
]

TwinOfSides = Annotated[
    list[str] | None,
    typer.Option(
        "--twin",
        metavar="PATH",
        help="Trace of the same program without graphs, for both sides; twice: for the base, then for the "
        "candidate.",
        show_default="the other side, where nothing else is known",
        rich_help_panel=READING,
    ),
]

Dask = Annotated[
    str | None,
    typer.Option(
        help="Read and analyze on the workers of this Dask cluster (tcp://host:port), which see the files "
        "under the same paths.",
        metavar="ADDRESS",
        show_default=False,
        rich_help_panel=READING,
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
        autocompletion=completion.limits,
        rich_help_panel=READING,
    ),
]


def options(
    names: Sequence[str] | None,
    scope: ScopeChoice,
    device: str | None,
    device_file: str | None,
    unprofiled_step_ms: float | None,
) -> dict[str, Any]:
    """The options that these analyzers (default: all) have; warns of those that none of them has."""
    values = {
        "scope": scope.value,
        "device": device,
        "device_file": device_file,
        "unprofiled_step_ms": unprofiled_step_ms,
    }
    changed = {name for name, value in values.items() if value not in (None, ScopeChoice.all.value)}
    if not names or not changed:
        return values
    from tracelens.analysis import ANALYZERS, option_names
    from tracelens.analysis.common import choose_device

    known = option_names([ANALYZERS.get(name) for name in names])
    choose_device(device, device_file)
    for name in sorted(changed - known):
        say(f"tracelens: {', '.join(names)}: --{name.replace('_', '-')} changes nothing here")
    return {name: value for name, value in values.items() if name in known or name not in changed}


_PATIENCE_S = 1.0


class Progress:
    """A status line on stderr for work that takes over a second, if stderr is a terminal."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._status: Any = None

    def __call__(self, text: str) -> None:
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
    """Progress that is cleared at the end, also by an error."""
    line = Progress()
    try:
        yield line
    finally:
        line.stop()


def write_stdout(data: bytes) -> None:
    """Write bytes to stdout; a closed pipe (`| head`) ends neither the command nor its verdict.

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
    output: Sequence[str] | None,
    inputs: Iterable[str] = (),
    others: Sequence[str] = (),
    traces: TraceFiles | None = None,
) -> None:
    """Fail before the work if an output cannot or must not be written.

    Args:
        output: of the report.
        inputs: all that the command reads.
        others: other files that it writes.
        traces: the files among the inputs that are traces.
    """
    if output or others:
        from tracelens.rendering import check

        check(output or (), inputs, others, traces)


def files_of(*names: str | None) -> list[str]:
    """The files among names, which may also be those of bundled models and devices."""
    return [name for name in names if name and Path(name).is_file()]


def import_formats(output: Sequence[str] | None) -> None:
    """Import what the outputs need, while a trace is being decoded."""
    if output:
        from tracelens.rendering import by_path

        if any(by_path(path).name == "html" for path in output):
            import jinja2  # noqa: F401


def deliver(report: Report, output: Sequence[str] | None, json: bool = False, *, full: bool = True) -> None:
    """Write a report to files and directories; print it with `json`, or without outputs.

    Args:
        report: to deliver.
        output: files and directories.
        json: print it as JSON.
        full: print all of it, not only the first screen.
    """
    from tracelens.session import render

    for path in output or ():
        with progress() as line:
            line(f"writing {path}")
            render(report, path)
        say(f"wrote {path}")
    if json or not output:
        print_report(report, json=json, full=full)
    check_complete(report)


def deliver_result(
    result: Result,
    title: str,
    output: Sequence[str] | None,
    json: bool,
    inputs: Sequence[str] = (),
    *,
    full: bool = True,
) -> None:
    """Deliver a single result as `tracelens {title}`."""
    from tracelens.summary import result_summary
    from tracelens.table import Report
    from tracelens.version import __version__

    meta = {"version": __version__, "inputs": list(inputs)}
    deliver(Report((result,), f"tracelens {title}", meta, result_summary(result)), output, json, full=full)


def print_report(report: Report, *, json: bool = False, full: bool = True, rows: int | None = None) -> None:
    """Print a report for the terminal's width and colors, or its first result as JSON.

    Args:
        report: any report.
        json: as JSON.
        full: every section, not only the first screen.
        rows: of each table, at most; None for as many as the console shows of a report.
    """
    if json:
        from tracelens.rendering.formats import one_result

        write_stdout(one_result(report.results[0], report.meta))
        return
    from tracelens.rendering import rendered
    from tracelens.rendering.formats import brief, console

    width = shutil.get_terminal_size((120, 24)).columns
    color = sys.stdout is not None and sys.stdout.isatty()
    summary = None if full else report.summary
    text = partial(brief, summary=summary) if summary else partial(console, rows=rows)
    write_stdout(rendered(report, partial(text, width=width, color=color)).encode())


def check_complete(report: Report) -> None:
    """Report analyzers that failed on stderr; raises TracelensError if there is no other result."""
    from tracelens.session import with_results

    if incomplete := banner(with_results(report).failures):
        say(f"tracelens: {incomplete}")


def say(text: str) -> None:
    """Print a line on stderr; stdout is for data."""
    print(printable(text), file=sys.stderr)
