"""`tracelens workload serve`: serve made-up requests with the bundled model, and record traces of it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from tracelens.cli.common import say
from tracelens.errors import MissingExtra


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with one option for each setting of serving."""
    from tracelens.workload.serving.settings import HELP, Serving

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
        for item in fields(Serving)
    ]
    command.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return command


Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="Folder for the traces; without it, nothing is recorded.", metavar="DIR"
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a field of the model, or dtype, routing, permute or router, as in --set permute=fused.",
        metavar="FIELD=VALUE",
    ),
]


def serve(
    *,
    preset: Annotated[str, typer.Option(help="Model: see `tracelens list models`.")] = "tiny",
    ranks: Annotated[int, typer.Option(help="Ranks, each with requests of its own.")] = 1,
    output: Output = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the model.", show_default=False)] = None,
    assignments: Assignments = None,
    device: Annotated[
        str | None,
        typer.Option(help="cuda (NVIDIA and AMD) or cpu; by default what is there.", show_default=False),
    ] = None,
    ticks: Annotated[int, typer.Option(help="Forward passes, at least up to the end of the recording.")] = 64,
    profile_start: Annotated[int, typer.Option(help="First recorded tick, counted from 0.")] = 48,
    profile_end: Annotated[int, typer.Option(help="The tick after the last recorded one.")] = 56,
    stack: Annotated[
        bool, typer.Option("--stack", help="Record Python frames; slows the host down.")
    ] = False,
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Take paths of this machine out of the traces.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    **settings: str | None,
) -> None:
    """Serve made-up requests for some ticks, and record a trace a rank.

    Attention is data parallel, with a cache a rank; experts are cut over all ranks, which therefore go
    through every layer together. In a tick each rank runs a prefill, a decode, or a dummy. For example:

    tracelens workload serve --preset tiny --ranks 2 -o traces/

    tracelens workload serve --preset small --ranks 4 --prefill-delayer on --tbo token --graph on -o traces/
    """
    from tracelens.workload.serving.config import model_config
    from tracelens.workload.serving.settings import override_serving, serving_preset

    given = {name: value for name, value in settings.items() if value is not None}
    serving = override_serving(serving_preset(preset), given)
    more = [f"layers={layers}"] if layers is not None else []
    config = model_config(preset, [*more, *(assignments or [])], serving)
    try:
        from tracelens.workload.serving.serve import ServeJob, run_serving
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("tracelens workload", "workload") from None

    job = ServeJob(config, serving, ranks, output, device, ticks, profile_start, profile_end, stack, scrub)
    found = run_serving(job)
    if found is None:
        return
    if json_output:
        print(json.dumps(found | {"config": job.settings()}, indent=1))
    else:
        _tell(preset, found, output)


def _tell(preset: str, found: dict[str, Any], output: Path | None) -> None:
    """Print what a run came to."""
    changed = " ".join(f"{name}={value}" for name, value in found["serving"].items())
    say(f"{preset} on {found['ranks']} x {found['device']}: {changed or 'baseline'}")
    if found["tokens_per_s"] is None:
        say("no tick was timed: all were recorded or at the start; give more --ticks")
    else:
        say(f"{found['tokens_per_s']:,.0f} tokens/s of output ({found['timed_ticks']} timed ticks)")
    for name, what in (("ttft", "time to first token"), ("tpot", "time per output token")):
        if found[f"{name}_ms"] is not None:
            say(f"{what}: {found[f'{name}_ms']:.1f} ms, {found[f'{name}_ticks']:.1f} ticks (median)")
    counts = ", ".join(
        f"{found[f'{name}_ticks']} {text}"
        for name, text in (
            ("prefill", "with a prefill"),
            ("mismatched", "of them beside decodes"),
            ("split", "in two batches"),
            ("graph", "from a graph"),
            ("held", "with prefills held back"),
            ("idle", "idle"),
        )
    )
    say(f"{found['ticks']} ticks: {counts}")
    if found["padding_fraction"] is not None:
        say(f"padding: {found['padding_fraction']:.1%} of the token slots")
    if found["peak_bytes"]:
        say(f"{found['peak_bytes'] / 1e9:.2f} GB at most")
    if output is not None:
        say(f"traces in {output}: tracelens report {output}")
