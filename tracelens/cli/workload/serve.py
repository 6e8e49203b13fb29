"""`tracelens workload serve`: serve synthetic requests with the bundled model, and record traces of it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tracelens.cli.common import say
from tracelens.cli.workload.common import (
    MODEL,
    RECORDING,
    Device,
    Layers,
    Output,
    Preset,
    Scrub,
    Stack,
    assigned,
    option_of,
    torch_part,
)

SERVING = "Requests and scheduling"


def settings() -> dict[str, Any]:
    """Options of the settings of serving."""
    from tracelens.workload.serving import HELP, Serving, serving_preset

    presets, kinds = [serving_preset(name) for name in ("tiny", "small")], get_type_hints(Serving)
    options = {}
    for setting in fields(Serving):
        name = setting.name
        values = {getattr(preset, name) for preset in presets}
        default = values.pop() if len(values) == 1 else "as in --preset"
        options[name] = option_of(setting, kinds[name], HELP[name], SERVING, default)
    return options


Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a field of the model, or dtype, routing, permute or router. Repeatable.",
        metavar="FIELD=VALUE",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]


def serve(
    *,
    preset: Preset = "tiny",
    ranks: Annotated[
        int,
        typer.Option(help="Ranks, each with its own requests.", metavar="N", rich_help_panel=MODEL),
    ] = 1,
    output: Output = None,
    layers: Layers = None,
    assignments: Assignments = None,
    device: Device = None,
    ticks: Annotated[
        int,
        typer.Option(
            help="Run at least this many forward passes, and to the end of the recording.", metavar="N"
        ),
    ] = 64,
    profile_start: Annotated[
        int,
        typer.Option(help="First recorded tick, counted from 0.", metavar="TICK", rich_help_panel=RECORDING),
    ] = 48,
    profile_end: Annotated[
        int,
        typer.Option(help="The tick after the last recorded one.", metavar="TICK", rich_help_panel=RECORDING),
    ] = 56,
    stack: Stack = False,
    scrub: Scrub = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object.")
    ] = False,
    **settings: str | None,
) -> None:
    """Serve synthetic requests and record one trace per rank.

    Attention is data parallel, with one cache per rank; experts are sharded over all ranks, so all ranks
    run every layer together. In a tick each rank runs a prefill, a decode, or a dummy.

    Examples:
        tracelens workload serve --preset tiny --ranks 2 -o traces/
        tracelens workload serve --preset small --ranks 4 --prefill-delayer on --tbo token --graph on
            -o traces/
    """
    from tracelens.workload.serving import model_config, override_serving, serving_preset

    overrides = {name: value for name, value in settings.items() if value is not None}
    serving = override_serving(serving_preset(preset), overrides)
    config = model_config(preset, assigned({}, layers, assignments), serving)
    serving_part = torch_part("serving.serve")
    job = serving_part.ServeJob(
        config, serving, ranks, output, device, ticks, profile_start, profile_end, stack, scrub
    )
    summary = serving_part.run_serving(job)
    if summary is None:
        return
    if json_output:
        print(json.dumps(summary | {"config": job.settings()}, indent=1))
    else:
        _say_summary(preset, summary, output)


def _say_summary(preset: str, summary: dict[str, Any], output: Path | None) -> None:
    changed = " ".join(f"{name}={value}" for name, value in summary["serving"].items())
    say(f"{preset} on {summary['ranks']} x {summary['device']}: {changed or 'baseline'}")
    if summary["tokens_per_s"] is None:
        say("no timed tick: all ticks were warm-up or recorded; increase --ticks")
    else:
        say(f"{summary['tokens_per_s']:,.0f} output tokens/s ({summary['timed_ticks']} timed ticks)")
    for name, label in (("ttft", "time to first token"), ("tpot", "time per output token")):
        if summary[f"{name}_ms"] is not None:
            say(f"{label}: {summary[f'{name}_ms']:.1f} ms, {summary[f'{name}_ticks']:.1f} ticks (median)")
    counts = ", ".join(
        f"{summary[f'{name}_ticks']} {text}"
        for name, text in (
            ("prefill", "with a prefill"),
            ("mismatched", "alongside decodes"),
            ("split", "in two batches"),
            ("graph", "from a graph"),
            ("held", "with delayed prefills"),
            ("idle", "idle"),
        )
    )
    say(f"{summary['ticks']} ticks: {counts}")
    if summary["padding_fraction"] is not None:
        say(f"padding: {summary['padding_fraction']:.1%} of token slots")
    if summary["peak_bytes"]:
        say(f"{summary['peak_bytes'] / 1e9:.2f} GB peak")
    if output is not None:
        say(f"traces in {output}: tracelens report {output}")
