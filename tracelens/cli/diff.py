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
    print_report,
    progress,
    say,
)

_WHAT = "a trace, a directory of ranks, or a quoted pattern."


def diff(
    base: Annotated[str, typer.Argument(metavar="BASE", help=f"The run before: {_WHAT}", show_default=False)],
    cand: Annotated[str, typer.Argument(metavar="CAND", help=f"The run after: {_WHAT}", show_default=False)],
    output: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--output",
            help="Where to write: .html, .md, .json, .xlsx, or a directory for CSV. May be given several "
            "times. Without it the comparison is printed.",
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
    """Compare two runs: what changed, and where the difference of their step times comes from.

    For example:

    tracelens diff before.json.gz after.json.gz

    tracelens diff before/ after/ -o diff.html

    tracelens diff before/ after/ --step 2 --json
    """
    import tracelens

    check_outputs(output or (), [base, cand])
    with progress() as line:
        before = tracelens.load(
            base, partial=partial, progress=line, meanwhile=lambda: _prepare(output or ())
        )
        after = tracelens.load(cand, partial=partial, progress=line)
        report = tracelens.diff(before, after, step=step, progress=line)
        for path in output or ():
            line(f"writing {path}")
            tracelens.render(report, path)
    for path in output or ():
        say(f"wrote {path}")
    if json or not output:
        print_report(report, json=json)
    check_complete(report)


def _prepare(output: Sequence[str]) -> None:
    """Import what the outputs need while a trace is decoded."""
    import tracelens.compare.diff  # noqa: F401
    from tracelens.rendering import by_path

    for path in output:
        if by_path(path).name == "html":
            import jinja2  # noqa: F401
