"""`tracelens workload`: run the bundled Mixture-of-Experts training and record traces of it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from tracelens.cli.common import say
from tracelens.cli.workload.common import (
    Assignments,
    Device,
    Layers,
    Output,
    Preset,
    Scrub,
    Stack,
    assigned,
    torch_part,
    with_settings,
)
from tracelens.cli.workload.ladder import ladder
from tracelens.cli.workload.serve import serve
from tracelens.cli.workload.serve import settings as serving_settings

app = typer.Typer(name="workload", rich_markup_mode=None, add_completion=False)


def _settings() -> dict[str, str]:
    """Fields of layout, training and toggles, with their help."""
    from tracelens.planner.config import HELP, PARTS

    return {
        setting.name: HELP[setting.name]
        for part in ("layout", "training", "toggles")
        for setting in fields(PARTS[part])
    }


@app.callback(invoke_without_command=True)
def workload(context: typer.Context) -> None:
    """Train the bundled MoE model and record traces of it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


Inject = Annotated[
    list[str] | None,
    typer.Option(
        help="Inject a fault into a rank: --inject rank=3,kind=host_delay,ms=4. Repeatable. Kinds: "
        "host_delay, blocking_call and gc with ms, token_skew with factor, slow_kernels with processes.",
        metavar="FAULT",
        show_default=False,
    ),
]


def run(
    *,
    preset: Preset = "tiny",
    output: Output = None,
    layers: Layers = None,
    assignments: Assignments = None,
    device: Device = None,
    steps: Annotated[int, typer.Option(help="Training steps, at least to the end of the recording.")] = 10,
    profile_start: Annotated[int, typer.Option(help="First recorded step, counted from 0.")] = 8,
    profile_end: Annotated[int, typer.Option(help="The step after the last recorded one.")] = 10,
    stack: Stack = False,
    memory: Annotated[bool, typer.Option("--memory", help="Record allocations.")] = False,
    scrub: Scrub = False,
    inject: Inject = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    **settings: str | None,
) -> None:
    """Train the reference model and record one trace per rank.

    Every optimisation has its own option and is off by default. For example:

    tracelens workload run --preset tiny --ranks 2 -o traces/

    tracelens workload run --preset small --ranks 8 --experts grouped --sync-free 2 -o traces/

    With an injected fault for `tracelens analyze stragglers` to find:

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


app.command("run")(with_settings(run, _settings()))
app.command("ladder")(with_settings(ladder, _settings()))
app.command("serve")(with_settings(serve, serving_settings()))


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
