"""`tracelens project whatif`: the step time of a recorded run under a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tracelens.cli import completion
from tracelens.cli.common import (
    Captures,
    Device,
    DeviceFile,
    Full,
    Json,
    Limit,
    Output,
    Partial,
    Paths,
    Twin,
    UnprofiledStep,
    check_outputs,
    deliver_result,
    progress,
)
from tracelens.cli.help import RUN
from tracelens.read import GraphSources, TraceFiles
from tracelens.session import loaded


def whatif(
    paths: Paths,
    scenario: Annotated[
        list[str] | None,
        typer.Option(
            "--scenario",
            help="The change: NAME, NAME=VALUE, or A+B for both in this order (`tracelens list scenarios`). "
            "Repeatable.",
            metavar="SCENARIO",
            show_default="all that need no value",
            autocompletion=completion.scenarios,
            rich_help_panel=RUN,
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="STEP",
            help="The step to replay: 2 or ProfilerStep#2, or all.",
            show_default="the step of median duration; all for a serving engine",
            autocompletion=completion.steps_or_all,
            rich_help_panel=RUN,
        ),
    ] = None,
    device: Device = None,
    device_file: DeviceFile = None,
    unprofiled_step_ms: UnprofiledStep = None,
    partial: Partial = False,
    captures: Captures = "",
    twin: Twin = "",
    _limit: Limit = None,
    output: Output = None,
    full: Full = False,
    json_output: Json = False,
) -> None:
    """Step time of a recorded run after a change, and what it would wait for.

    Examples:
        tracelens project whatif traces/
        tracelens project whatif traces/ --scenario no_blocking --scenario all_to_all_bandwidth=300
        tracelens project whatif traces/ --scenario no_blocking+scale:gemm=0.5 -o whatif.html
    """
    traces = TraceFiles(paths)
    check_outputs(output, [*paths, *filter(None, [device_file])], traces=traces)
    from tracelens.analysis.common import choose_device
    from tracelens.what_if import parse_request
    from tracelens.what_if import whatif as project

    choose_device(device, device_file)
    for text in scenario or ():
        parse_request(text)
    with progress() as line:
        run = loaded(traces, partial=partial, progress=line, graphs=GraphSources(captures, twin))
        devices = {"device": device, "device_file": device_file}
        result = project(
            run, scenario or (), step=step, unprofiled_step_ms=unprofiled_step_ms, progress=line, **devices
        )
    deliver_result(
        result, _title(result.meta), output, json_output, [trace.meta.path for trace in run.traces], full=full
    )


def _title(meta: Mapping[str, Any]) -> str:
    base_ms, recorded_ms = meta["base_ns"] / 1e6, meta["recorded_ns"] / 1e6
    if base_ms == recorded_ms:
        return f"project whatif: {base_ms:,.3f} ms as measured"
    return f"project whatif: {base_ms:,.3f} ms without the profiler, {recorded_ms:,.3f} with it"
