"""`tracelens workload`: run the bundled Mixture-of-Experts training and record traces of it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tracelens.cli.common import say
from tracelens.cli.help import Command, Group
from tracelens.cli.workload.common import (
    MODEL,
    RECORDING,
    Assignments,
    Device,
    Layers,
    Output,
    Preset,
    Scrub,
    Stack,
    assigned,
    option_of,
    torch_part,
    with_settings,
)
from tracelens.cli.workload.ladder import ladder
from tracelens.cli.workload.serve import serve
from tracelens.cli.workload.serve import settings as serving_settings

app = typer.Typer(cls=Group, name="workload", rich_markup_mode=None, add_completion=False)


_HEADINGS = {"layout": "Layout", "training": "Training", "toggles": "Optimizations"}


def _settings() -> dict[str, Any]:
    """Options of the fields of layout, training and toggles."""
    from tracelens.planner.config import HELP, MODELS, PARTS, preset

    presets = [preset(name) for name in MODELS]
    options = {}
    for part, heading in _HEADINGS.items():
        kinds = get_type_hints(PARTS[part])
        for setting in fields(PARTS[part]):
            values = {getattr(getattr(config, part), setting.name) for config in presets}
            default = values.pop() if len(values) == 1 else "as in --preset"
            name = setting.name
            options[name] = option_of(setting, kinds[name], HELP[name], heading, default)
    return options


@app.callback(invoke_without_command=True)
def workload(context: typer.Context) -> None:
    """Train or serve the bundled MoE model, and record traces of it.

    Examples:
        tracelens workload run --ranks 2 -o traces/
        tracelens workload ladder ladder/ --preset small --ranks 8 -o ladder.html
        tracelens workload serve --ranks 2 -o traces/
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


Inject = Annotated[
    list[str] | None,
    typer.Option(
        help="Inject a fault into a rank: rank=3,kind=host_delay,ms=4. Kinds: host_delay, blocking_call and "
        "gc with ms, token_skew with factor, slow_kernels with processes. Repeatable.",
        metavar="FAULT",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]


def run(
    *,
    preset: Preset = "tiny",
    output: Output = None,
    layers: Layers = None,
    assignments: Assignments = None,
    device: Device = None,
    steps: Annotated[
        int,
        typer.Option(help="Train at least this many steps, and to the end of the recording.", metavar="N"),
    ] = 10,
    profile_start: Annotated[
        int,
        typer.Option(help="First recorded step, counted from 0.", metavar="STEP", rich_help_panel=RECORDING),
    ] = 8,
    profile_end: Annotated[
        int,
        typer.Option(help="The step after the last recorded one.", metavar="STEP", rich_help_panel=RECORDING),
    ] = 10,
    stack: Stack = False,
    memory: Annotated[
        bool, typer.Option("--memory", help="Record allocations.", rich_help_panel=RECORDING)
    ] = False,
    scrub: Scrub = False,
    inject: Inject = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object.")
    ] = False,
    **settings: str | None,
) -> None:
    """Train the reference model and record one trace per rank.

    Every optimization has its own option and is off by default. --inject makes a fault for `tracelens
    analyze stragglers` to find.

    Examples:
        tracelens workload run --preset tiny --ranks 2 -o traces/
        tracelens workload run --preset small --ranks 8 --experts grouped --sync-free 2 -o traces/
        tracelens workload run --ranks 2 --inject rank=1,kind=gc,ms=20 -o traces/
    """
    from tracelens.planner.config import override
    from tracelens.planner.config import preset as named
    from tracelens.workload.faults import Fault

    config = override(named(preset), assigned(settings, layers, assignments))
    faults = tuple(Fault.parse(text) for text in inject or [])
    launch = torch_part("launch")
    job = launch.Job(config, output, device, steps, profile_start, profile_end, stack, memory, scrub, faults)
    summary = launch.summary(job, launch.run_job(job))
    if json_output:
        print(json.dumps(summary | {"config": config.as_dict()}, indent=1))
    else:
        _say_summary(preset, summary, output)


app.command("run", cls=Command)(with_settings(run, _settings()))
app.command("ladder", cls=Command)(with_settings(ladder, _settings()))
app.command("serve", cls=Command)(with_settings(serve, serving_settings()))


def _say_summary(preset: str, summary: dict[str, Any], output: Path | None) -> None:
    changed = " ".join(f"{name}={value}" for name, value in summary["toggles"].items())
    say(f"{preset} on {summary['ranks']} x {summary['device']}: {changed or 'baseline'}")
    if summary["step_ms"] is None:
        say("no timed step: all steps were warm-up or recorded; increase --steps")
    else:
        memory = f", {summary['peak_bytes'] / 1e9:.2f} GB peak" if summary["peak_bytes"] else ""
        say(
            f"{summary['step_ms']:.1f} ms per step (median of {summary['timed_steps']}), "
            f"{summary['tokens_per_s']:,.0f} tokens/s{memory}, loss {summary['loss'][-1]:.3f}"
        )
    if output is not None:
        say(f"traces in {output}: tracelens report {output}")
