"""What commands print and write: progress, reports in every format, lines on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from tracelens.errors import TracelensError
from tracelens.guard import banner
from tracelens.limits import set_limits
from tracelens.printable import printable
from tracelens.read import TraceFiles
from tracelens.session import OUTPUT, READING, ApiRequest, CommandOption, OptionGroup, Progress, option

if TYPE_CHECKING:
    from tracelens.table import Report, Result

R = TypeVar("R")
PATIENCE_S = 1.0
"""Work that takes less shows no progress: a line that comes and goes at once only flickers."""

WRITTEN = CommandOption(
    help="Write to a .html, .md, .txt, .json or .xlsx file, or to a directory of CSV files. Repeatable.",
    panel=OUTPUT,
    metavar="PATH",
    shown="print",
    complete="outputs",
)


class ReadLimits(OptionGroup, panel=READING):
    """Limits of what is read, which count from here on."""

    limit: list[str] | None = option(
        "Raise a read limit: decompressed_bytes=200G, ranks=1M. Repeatable.",
        metavar="NAME=VALUE",
        default=None,
        complete="limits",
    )

    def __post_init__(self) -> None:
        if self.limit:
            set_limits(self.limit)


class Written(OptionGroup):
    """Where a report goes."""

    output: list[str] | None = option(WRITTEN, default=None)

    def check(self, inputs: Iterable[object] = (), traces: TraceFiles | None = None) -> None:
        """Fail before the work if an output cannot or must not be written, see `check_outputs`."""
        check_outputs(self.output or (), inputs, (), traces)
        if self.output:
            from tracelens.rendering import by_path

            if any(by_path(path).name == "html" for path in self.output):
                import jinja2  # noqa: F401  # while a trace is being decoded

    def prepared(self, results: Sequence[Result]) -> Mapping[str, Any]:
        """What the outputs' formats make of some results before a report has them all."""
        from tracelens.rendering import prepared

        return prepared(self.output or (), results)

    def deliver(
        self, made: Report | Result, title: str = "", inputs: Sequence[str] = (), *, full: bool = True
    ) -> None:
        """Write a report, or the result of `tracelens {title}`; print it with --json, or without outputs."""
        from tracelens.rendering.summary import result_title
        from tracelens.session import as_report, render
        from tracelens.table import Result

        if isinstance(made, Result):
            made = as_report(made, title or result_title(made), inputs)
        report, json = made, isinstance(self, Json) and self.json
        for path in self.output or ():
            with progress() as line:
                line(f"writing {path}")
                render(report, path)
            say(f"wrote {path}")
        if json or not self.output:
            print_report(report, json=json, full=full)
        check_complete(report)


class Json(OptionGroup, panel=OUTPUT):
    """Whether JSON is printed."""

    json: bool = option("Print one JSON object with every table in full.", default=False)


class Full(OptionGroup):
    """How much is printed."""

    full: bool = option("Print every section, not only the first screen.", default=False)


class Delivery(Json, Written):
    """Where the result of a command goes."""


def prepare() -> None:
    """Import and compile what all that looks at GPU work needs, while a trace is being decoded."""
    from tracelens.costs import find
    from tracelens.trace import compile_rules

    compile_rules()
    find("")


def check_outputs(
    reports: Sequence[str],
    inputs: Iterable[object],
    others: Sequence[str] = (),
    traces: TraceFiles | None = None,
) -> None:
    """Fail before the work if a report or another output cannot or must not be written.

    Inputs are what the command reads beside traces, None for what is not named.
    """
    if reports or others:
        from tracelens.rendering import check

        paths = traces.paths if traces is not None else ()
        check(reports, [*paths, *(str(path) for path in inputs if path is not None)], others, traces)


def files_of(*names: object) -> list[str]:
    """The files among names, which may also be those of bundled models and devices."""
    return [str(name) for name in names if name and Path(str(name)).is_file()]


@contextmanager
def progress() -> Iterator[Progress]:
    """A line on stderr for work that takes a while, if stderr is a terminal; also an error clears it."""
    started, status = time.monotonic(), None

    def show(text: str) -> None:
        nonlocal status
        if status is None and sys.stderr.isatty() and time.monotonic() - started > PATIENCE_S:
            from rich.console import Console

            status = Console(stderr=True).status("")
            status.start()
        if status is not None:
            from rich.text import Text

            # A path may look like markup: [red], [link=...], :smile:.
            status.update(Text(printable(text)))

    try:
        yield show
    finally:
        if status is not None:
            status.stop()


def answer(request: ApiRequest[R]) -> R:
    """The answer to a request, with its progress on stderr."""
    with progress() as line:
        return replace(request, progress=line).answer()  # type: ignore[call-arg]  # all that take a while have it


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


def print_answer(report: Report, table: str | None = None) -> None:
    """Print the first screen of a report's only result: its answer, the table that proves it or is named."""
    from tracelens.errors import suggestion
    from tracelens.rendering import rendered
    from tracelens.rendering.formats import answered
    from tracelens.rendering.summary import answer

    result = report.results[0]
    known = [name for name, data in result.exported.items() if len(data)]
    if table is not None and table not in known:
        if table in result.exported:
            reason = next((f": {skip.reason}" for skip in result.skips), "; leave --table out")
            raise TracelensError(f"{result.analyzer}: the table {table!r} has no rows here{reason}")
        names = known or [*result.exported]
        hint = suggestion(table, names) or f"it has: {', '.join(names)}"
        raise TracelensError(f"{result.analyzer} has no table {table!r} here; {hint}")

    def text(report: Report) -> str:
        width, color = _terminal()
        return answered(report, answer(report.results[0]), width=width, color=color, table=table or "")

    write_stdout(rendered(report, text).encode())


def _terminal() -> tuple[int, bool]:
    """Columns of stdout, and whether it shows colors."""
    from shutil import get_terminal_size  # which loads compressors, too

    return get_terminal_size((120, 24)).columns, sys.stdout is not None and sys.stdout.isatty()


def print_report(report: Report, *, json: bool = False, full: bool = True, rows: int | None = None) -> None:
    """Print a report for the terminal's width and colors, or its first result as JSON.

    Of each table so many `rows`, None for as many as the console shows of a report.
    """
    if json:
        from tracelens.rendering.formats import one_result

        write_stdout(one_result(report.results[0], report.meta))
        return
    from tracelens.rendering import rendered
    from tracelens.rendering.formats import brief, console_text

    width, color = _terminal()
    summary = None if full else report.summary
    text = partial(brief, summary=summary) if summary else partial(console_text, rows=rows)
    write_stdout(rendered(report, partial(text, width=width, color=color)).encode())


def check_complete(report: Report) -> None:
    """Report analyzers that failed on stderr; raises TracelensError if there is no other result."""
    from tracelens.session import with_results

    if incomplete := banner(with_results(report).failures):
        say(f"tracelens: {incomplete}")


def say(text: str) -> None:
    """Print a line on stderr; stdout is for data. Whether anybody reads it does not change a verdict."""
    with suppress(OSError):
        print(printable(text), file=sys.stderr)
