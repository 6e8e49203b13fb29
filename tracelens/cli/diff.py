"""`tracelens diff`: what changed between two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tracelens.cli.common import (
    Limit,
    Partial,
    Step,
    check_complete,
    check_outputs,
    import_formats,
    print_report,
    progress,
    say,
)
from tracelens.read import TraceFiles
from tracelens.session import Reading, render
from tracelens.session import diff as compare

_WHAT = "a trace, a directory of ranks, or a quoted pattern."


def diff(
    base: Annotated[str, typer.Argument(metavar="BASE", help=f"The run before: {_WHAT}", show_default=False)],
    cand: Annotated[str, typer.Argument(metavar="CAND", help=f"The run after: {_WHAT}", show_default=False)],
    output: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--output",
            help="Output: .html, .md, .json, .xlsx, or a directory for CSV. Repeatable. Without it the "
            "comparison is printed.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with every table in full.")
    ] = False,
    step: Step = None,
    partial: Partial = False,
    _limit: Limit = None,
) -> None:
    """Compare two runs: what changed, and what makes up the difference of their step times.

    For example:

    tracelens diff before.json.gz after.json.gz

    tracelens diff before/ after/ -o diff.html

    tracelens diff before/ after/ --step 2 --json
    """
    traces = TraceFiles([base, cand])
    with progress() as line:
        with Reading(traces.of(base), partial=partial, progress=line) as reading:
            check_outputs(output or (), [base, cand], traces=traces)
            _prepare(output or ())
            before = reading.run()
        with Reading(traces.of(cand), partial=partial, progress=line) as reading:
            after = reading.run()
        report = compare(before, after, step=step, progress=line)
        for path in output or ():
            line(f"writing {path}")
            render(report, path)
    for path in output or ():
        say(f"wrote {path}")
    if json or not output:
        print_report(report, json=json)
    check_complete(report)


def _prepare(output: Sequence[str]) -> None:
    """Import what the outputs need while a trace is being decoded."""
    import tracelens.compare.diff  # noqa: F401

    import_formats(output)
