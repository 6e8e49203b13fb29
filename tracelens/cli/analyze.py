"""`tracelens analyze NAME`: one analyzer, as tables or as JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli import completion
from tracelens.cli.common import (
    Captures,
    Dask,
    Device,
    DeviceFile,
    Json,
    Limit,
    Partial,
    Paths,
    Scope,
    ScopeChoice,
    Step,
    Twin,
    UnprofiledStep,
    check_complete,
    options,
    print_report,
    progress,
)
from tracelens.read import GraphSources, TraceFiles
from tracelens.session import Reporting

ROWS = 40
"""Of each table: more than a report shows, which has them all."""


def analyze(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The analyzer (`tracelens list analyzers`).",
            show_default=False,
            autocompletion=completion.analyzers,
        ),
    ],
    paths: Paths,
    json: Json = False,
    scope: Scope = ScopeChoice.all,
    step: Step = None,
    device: Device = None,
    device_file: DeviceFile = None,
    unprofiled_step_ms: UnprofiledStep = None,
    partial: Partial = False,
    captures: Captures = "",
    twin: Twin = "",
    _limit: Limit = None,
    dask: Dask = None,
) -> None:
    """Run one analyzer and print its tables.

    Examples:
        tracelens analyze breakdown traces/
        tracelens analyze timeline trace.json.gz --scope linked
        tracelens analyze ops traces/ --json
        tracelens analyze roofline trace.json.gz --device mi355x
    """
    files, graphs = TraceFiles(paths).all(), GraphSources(captures, twin)
    with (
        progress() as line,
        Reporting(files, partial=partial, dask=dask, progress=line, graphs=graphs) as reporting,
    ):
        report = reporting.report(
            [name], step=step, **options([name], scope, device, device_file, unprofiled_step_ms)
        )
    print_report(report, json=json, rows=ROWS)
    check_complete(report)
