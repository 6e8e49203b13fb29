"""`tracelens report`: everything about a run, in one or more formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tracelens.cli.common import (
    Dask,
    Device,
    DeviceFile,
    Limit,
    Partial,
    Paths,
    Scope,
    ScopeChoice,
    Step,
    check_complete,
    check_outputs,
    options,
    print_report,
    progress,
    say,
)


def report(
    paths: Paths,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--output",
            help="Where to write: .html, .md, .json, .xlsx, or a directory for CSV. May be given several "
            "times. Without it the report is printed.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run only this analyzer (repeat for more); default: all.", show_default=False),
    ] = None,
    scope: Scope = ScopeChoice.all,
    step: Step = None,
    device: Device = None,
    device_file: DeviceFile = None,
    partial: Partial = False,
    _limit: Limit = None,
    dask: Dask = None,
) -> None:
    """Report on a run with all analyzers.

    For example:

    tracelens report trace.json.gz -o report.html

    tracelens report rank0.json.gz rank1.json.gz -o report.html -o tables.xlsx

    tracelens report traces/ --only timeline --only idle --step 2

    tracelens report trace.json.gz --device mi355x -o projected.html
    """
    import tracelens

    check_outputs(output or (), [*paths, *([device_file] if device_file else [])])
    given = options(scope, device, device_file)
    with progress() as line:
        result = tracelens.report_files(
            *paths,
            names=only,
            step=step,
            partial=partial,
            dask=dask,
            fork=True,
            progress=line,
            meanwhile=lambda: _prepare(output or (), only or ()),
            **given,
        )
        for path in output or ():
            line(f"writing {path}")
            tracelens.render(result, path)
    for path in output or ():
        say(f"wrote {path}")
    if not output:
        print_report(result)
    check_complete(result)


def _prepare(output: Sequence[str], only: Sequence[str]) -> None:
    """Check and import what the report will need, while the trace is being decoded.

    An unknown analyzer is better said before the work than after it, and the decoding processes make better
    use of this time than they would of it later.
    """
    from tracelens.analysis import ANALYZERS
    from tracelens.costs import COSTS
    from tracelens.rendering import by_path
    from tracelens.trace import classes

    for path in output:
        if by_path(path).name == "html":
            import jinja2  # noqa: F401
    ANALYZERS.load()
    for name in only:
        ANALYZERS.get(name)
    classes()
    COSTS.load()
