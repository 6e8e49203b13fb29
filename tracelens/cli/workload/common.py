"""Options shared by the commands of `tracelens workload`, and imports that need torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from tracelens.errors import MissingExtra

Preset = Annotated[str, typer.Option(help="Model: see `tracelens list models`.")]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Folder for the traces; default: record nothing.", metavar="DIR"),
]
Layers = Annotated[
    int | None, typer.Option(help="Number of layers, to make a large model fit.", show_default=False)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a model field: --set top_k=4. Repeatable.", metavar="FIELD=VALUE"),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="cuda (NVIDIA and AMD) or cpu; by default cuda where there is a GPU.", show_default=False
    ),
]
Stack = Annotated[bool, typer.Option("--stack", help="Record Python frames; slows the host down.")]
Scrub = Annotated[bool, typer.Option("--scrub", help="Remove paths of this machine from the traces.")]


def with_settings(command: Callable[..., None], settings: Mapping[str, str]) -> Callable[..., None]:
    """A command that takes each of its `**settings` (name to help) as an option, None if not given."""
    signature = inspect.signature(command, eval_str=True)
    declared = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option(help=text, metavar="VALUE", show_default=False)],
        )
        for name, text in settings.items()
    ]
    command.__signature__ = signature.replace(parameters=[*declared, *added])  # type: ignore[attr-defined]
    return command


def assigned(
    settings: Mapping[str, str | None], layers: int | None, assignments: list[str] | None
) -> list[str]:
    """The settings of the command line as texts `field=value`."""
    overrides = [f"{name}={value}" for name, value in settings.items() if value is not None]
    if layers is not None:
        overrides.append(f"layers={layers}")
    return [*overrides, *(assignments or [])]


def torch_part(module: str) -> Any:
    """A module of the workload that needs torch; raises MissingExtra if that is not installed."""
    try:
        return import_module(f"tracelens.workload.{module}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra("tracelens workload", "workload") from None
