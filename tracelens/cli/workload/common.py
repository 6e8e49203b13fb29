"""Options shared by the commands of `tracelens workload`, and imports that need torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from tracelens.cli import completion
from tracelens.errors import MissingExtra

RECORDING, MODEL = "Recording", "Model"

Preset = Annotated[
    str,
    typer.Option(
        help="The model (`tracelens list models`).",
        metavar="MODEL",
        autocompletion=completion.models,
        rich_help_panel=MODEL,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Write the traces to this directory.",
        metavar="DIR",
        show_default="record nothing",
        rich_help_panel=RECORDING,
    ),
]
Layers = Annotated[
    int | None,
    typer.Option(
        help="Number of layers, to make a large model fit.",
        metavar="N",
        show_default="those of the model",
        rich_help_panel=MODEL,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Override a field of the model: --set top_k=4. Repeatable.",
        metavar="FIELD=VALUE",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        help="Run on cuda (NVIDIA and AMD GPUs) or cpu.",
        metavar="cuda|cpu",
        show_default="cuda if there is a GPU",
        autocompletion=lambda: ["cuda", "cpu"],
    ),
]
Stack = Annotated[
    bool,
    typer.Option("--stack", help="Record Python frames; slows the host down.", rich_help_panel=RECORDING),
]
Scrub = Annotated[
    bool,
    typer.Option("--scrub", help="Remove paths of this machine from the traces.", rich_help_panel=RECORDING),
]


def option_of(setting: Field[Any], kind: Any, text: str, panel: str, default: Any) -> Any:
    """The option of a setting.

    Args:
        setting: field of a dataclass.
        kind: its type.
        text: its help, as it stands in a list.
        panel: heading of its group.
        default: its value if the option is left out; text such as "as in ..." where that depends.
    """
    choices = [str(value) for value in get_args(kind)] if get_origin(kind) is Literal else []
    if kind is bool:
        choices = ["true", "false"]
    default_text = str(default).lower() if isinstance(default, bool) else str(default)
    return typer.Option(
        help=f"{text if text.partition(':')[0] in choices else text[:1].upper() + text[1:]}.",
        metavar="|".join(choices) or _METAVARS.get(kind, "LAYERS"),
        show_default=False if default in ("", ()) else default_text,
        autocompletion=(lambda: choices) if choices else None,
        rich_help_panel=panel,
    )


_METAVARS = {int: "N", float: "NUMBER"}


def with_settings(command: Callable[..., None], settings: Mapping[str, Any]) -> Callable[..., None]:
    """A command that takes each of its `**settings` (name to option) as an option, None if it is left out."""
    signature = inspect.signature(command, eval_str=True)
    declared = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option]
        )
        for name, option in settings.items()
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
