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
    import_formats,
    options,
    print_report,
    progress,
    say,
)
from tracelens.read import TraceFiles
from tracelens.session import Reporting, render


def report(
    paths: Paths,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--output",
            help="Where to write: .html, .md, .json, .xlsx, or a directory for CSV. Repeatable; "
            "default: print the report.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this analyzer; repeatable. Default: all.", show_default=False),
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
    traces = TraceFiles(paths)
    with progress() as line:
        with Reporting(traces.all(), partial=partial, dask=dask, progress=line) as reporting:
            check_outputs(output or (), [*paths, *filter(None, [device_file])], traces=traces)
            _prepare(output or ())
            given = options(only, scope, device, device_file)
            result = reporting.report(only, step=step, fork=True, **given)
        for path in output or ():
            line(f"writing {path}")
            render(result, path)
    for path in output or ():
        say(f"wrote {path}")
    if not output:
        print_report(result)
    check_complete(result)


def _prepare(output: Sequence[str]) -> None:
    """Import what the report will need, while the processes start up that decode the traces."""
    from tracelens.analysis import ANALYZERS
    from tracelens.costs import COSTS
    from tracelens.trace import classes

    import_formats(output)
    ANALYZERS.load()
    classes()
    COSTS.load()
