"""`tracelens report`: everything about a run, in one or more formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tracelens.cli import completion
from tracelens.cli.common import (
    Captures,
    Dask,
    Device,
    DeviceFile,
    Full,
    Limit,
    Output,
    Partial,
    Paths,
    Scope,
    ScopeChoice,
    Step,
    Twin,
    UnprofiledStep,
    check_outputs,
    deliver,
    import_formats,
    options,
    progress,
)
from tracelens.cli.help import RUN
from tracelens.read import GraphSources, TraceFiles
from tracelens.session import Reporting


def report(
    paths: Paths,
    output: Output = None,
    full: Full = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run only this analyzer. Repeatable.",
            show_default="all",
            autocompletion=completion.analyzers,
            rich_help_panel=RUN,
        ),
    ] = None,
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
    """Report where the step time goes and what to fix first.

    Examples:
        tracelens report trace.json.gz
        tracelens report traces/ -o report.html
        tracelens report rank0.json.gz rank1.json.gz -o report.html -o tables.xlsx
        tracelens report traces/ --only timeline --only idle --step 2
        tracelens report trace.json.gz --device mi355x -o projected.html
    """
    traces, graphs = TraceFiles(paths), GraphSources(captures, twin)
    with (
        progress() as line,
        Reporting(traces.all(), partial=partial, dask=dask, progress=line, graphs=graphs) as reporting,
    ):
        check_outputs(output, [*paths, *filter(None, [device_file])], traces=traces)
        _prepare(output)
        of_analyzers = options(only, scope, device, device_file, unprofiled_step_ms)
        result = reporting.report(only, step=step, fork=True, **of_analyzers)
    deliver(result, output, full=full or bool(only))


def _prepare(output: Sequence[str] | None) -> None:
    """Import what the report needs, while the processes start that decode the traces."""
    from tracelens.analysis import ANALYZERS
    from tracelens.costs import COSTS
    from tracelens.trace import classes

    import_formats(output)
    ANALYZERS.load()
    classes()
    COSTS.load()
