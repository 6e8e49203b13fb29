"""`tracelens workload`: run the bundled Mixture-of-Experts training and record traces of it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from tracelens.cli import workload_ladder, workload_serve
from tracelens.cli.common import say
from tracelens.errors import MissingExtra

app = typer.Typer(
    name="workload",
    rich_markup_mode=None,
    add_completion=False,
)


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each field of a run's layout, training and toggles."""
    from tracelens.workload.config import HELP, PARTS

    signature = inspect.signature(command, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    more = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None, typer.Option(help=HELP[item.name], metavar="VALUE", show_default=False)
            ],
        )
        for part in ("layout", "training", "toggles")
        for item in fields(PARTS[part])
    ]
    command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return command


@app.callback(invoke_without_command=True)
def workload(context: typer.Context) -> None:
    """Train the bundled MoE model and record traces of it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="Folder for the traces; without it, nothing is recorded.", metavar="DIR"
    ),
]
Layers = Annotated[
    int | None, typer.Option(help="Layers of the model, for large ones to fit.", show_default=False)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="Change another field of the model, as in --set top_k=4.", metavar="FIELD=VALUE"
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="cuda (NVIDIA and AMD) or cpu; by default what is there.", show_default=False),
]
Inject = Annotated[
    list[str] | None,
    typer.Option(
        help="Make a rank late, as in --inject rank=3,kind=host_delay,ms=4; may be repeated. Kinds: "
        "host_delay, blocking_call and gc with ms, token_skew with factor, slow_kernels with processes.",
        metavar="FAULT",
        show_default=False,
    ),
]


@app.command("run")
@_with_settings
def run(
    *,
    preset: Annotated[str, typer.Option(help="Model: see `tracelens list models`.")] = "tiny",
    output: Output = None,
    layers: Layers = None,
    assignments: Assignments = None,
    device: Device = None,
    steps: Annotated[int, typer.Option(help="Training steps, at least up to the end of the recording.")] = 10,
    profile_start: Annotated[int, typer.Option(help="First recorded step, counted from 0.")] = 8,
    profile_end: Annotated[int, typer.Option(help="The step after the last recorded one.")] = 10,
    stack: Annotated[
        bool, typer.Option("--stack", help="Record Python frames; slows the host down.")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Record allocations.")] = False,
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Take paths of this machine out of the traces.")
    ] = False,
    inject: Inject = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    **settings: str | None,
) -> None:
    """Train the reference model for some steps, and record a trace a rank.

    Every optimisation is an option of its own, off unless asked for. For example:

    tracelens workload run --preset tiny --ranks 2 -o traces/

    tracelens workload run --preset small --ranks 8 --experts grouped --sync-free 2 -o traces/

    With a known culprit, which `tracelens analyze stragglers` must find:

    tracelens workload run --ranks 2 --inject rank=1,kind=gc,ms=20 -o traces/
    """
    from tracelens.workload.config import override
    from tracelens.workload.config import preset as named
    from tracelens.workload.faults import Fault

    chosen = [f"{name}={value}" for name, value in settings.items() if value is not None]
    if layers is not None:
        chosen.append(f"layers={layers}")
    config = override(named(preset), [*chosen, *(assignments or [])])
    faults = tuple(Fault.parse(text) for text in inject or [])
    try:
        from tracelens.workload.launch import Job, run_job, summary
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("tracelens workload", "workload") from None

    job = Job(config, output, device, steps, profile_start, profile_end, stack, memory, scrub, faults)
    found = summary(job, run_job(job))
    if json_output:
        print(json.dumps(found | {"config": config.as_dict()}, indent=1))
    else:
        _tell(preset, found, output)


app.command("ladder")(_with_settings(workload_ladder.ladder))
app.command("serve")(workload_serve.with_settings(workload_serve.serve))


def _tell(preset: str, found: dict[str, Any], output: Path | None) -> None:
    """Print what a run came to."""
    changed = " ".join(f"{name}={value}" for name, value in found["toggles"].items())
    say(f"{preset} on {found['ranks']} x {found['device']}: {changed or 'baseline'}")
    if found["step_ms"] is None:
        say("no step was timed: all were recorded or at the start; give more --steps")
    else:
        memory = f", {found['peak_bytes'] / 1e9:.2f} GB at most" if found["peak_bytes"] else ""
        say(
            f"{found['step_ms']:.1f} ms a step (median of {found['timed_steps']}), "
            f"{found['tokens_per_s']:,.0f} tokens/s{memory}, loss {found['loss'][-1]:.3f}"
        )
    if output is not None:
        say(f"traces in {output}: tracelens report {output}")


def models() -> list[tuple[str, ...]]:
    """Names and sizes of the presets, with a line of headings."""
    from tracelens.workload.models import MODELS

    heads = (
        "name",
        "layers",
        "dense",
        "hidden",
        "heads",
        "attention",
        "experts",
        "top k",
        "expert ffn",
        "vocab",
    )
    rows = [
        (
            name,
            *map(str, (one.layers, one.dense_layers, one.hidden, one.heads)),
            one.attention,
            *map(str, (one.experts_count, one.top_k, one.expert_ffn, one.vocab)),
        )
        for name, one in MODELS.items()
    ]
    return [heads, *rows]
