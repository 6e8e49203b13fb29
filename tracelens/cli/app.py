"""The app of all commands; each is imported when it is chosen, or listed on a help page."""

from __future__ import annotations

import os
from functools import cache
from typing import Annotated, Any

import typer

from tracelens import __version__
from tracelens.cli.command import WIDTH, Home, LazyGroup, group
from tracelens.guard import DEBUG

LOOK, COMPARE, CHANGE, RECORD = "Look at a run", "Compare runs", "Try a change", "Record a run"
NAMES = "Names and numbers"
_DEBUG = "--debug"
_GATE_BASELINE = "gate baseline"


class RootCommands(LazyGroup):
    """The commands of `tracelens`."""

    homes = {  # noqa: RUF012  # a ClassVar of the base class
        "report": Home("report", "report", LOOK),
        "analyze": Home("report", "analyze", LOOK),
        "fuse": Home("compare", "fuse", LOOK),
        "diff": Home("compare", "diff", COMPARE),
        "gate": Home("compare", "gate_app", COMPARE),
        _GATE_BASELINE: Home("compare", "baseline", COMPARE),
        "project": Home("app", "project", CHANGE),
        "replay": Home("replay", "app", CHANGE),
        "workload": Home("app", "workload", RECORD),
        "calibrate": Home("calibrate", "calibrate", RECORD),
        "list": Home("listing", "listing", NAMES),
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept --debug in any position, and `gate baseline`, though `gate` itself takes paths."""
        own_options = args[: args.index("--")] if "--" in args else args
        if _DEBUG in own_options:
            _debug(True)  # parsing may fail, too
            args = [_DEBUG, *(text for text in own_options if text != _DEBUG), *args[len(own_options) :]]
        for number in range(min(len(args), 2)):
            words = args[number : number + 3]
            if words[:2] == ["gate", "baseline"] and words[2:] in (["add"], ["--help"], ["-h"]):
                args = [*args[:number], _GATE_BASELINE, *args[number + 2 :]]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """RootCommands of one word."""
        return [item for item in super().shell_complete(ctx, incomplete) if " " not in item.value]


app = typer.Typer(
    cls=RootCommands,
    name="tracelens",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)


def _debug(enabled: bool) -> None:
    if enabled:
        os.environ[DEBUG] = "1"


def _version(enabled: bool) -> None:
    if enabled:
        from tracelens.native import core_name

        typer.echo(f"tracelens {__version__} ({core_name()})")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version, and which core runs."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option(_DEBUG, callback=_debug, help="Stop at the first internal error, with its traceback."),
    ] = False,
) -> None:
    """Find out where the step time of a Mixture-of-Experts run goes, from profiler traces.

    `tracelens COMMAND --help` explains a command.

    Examples:
        tracelens report trace.json.gz -o report.html
        tracelens report traces/
        tracelens analyze idle trace.json.gz --json
        tracelens diff before/ after/
        tracelens list analyzers
    """


def subcommands(module: str, *names: str, doc: str) -> typer.Typer:
    """A group of the commands of a module, which shows its help where none is named."""
    homes = {name: Home(module, name) for name in names}
    made = group(type(f"{module.title()}Commands", (LazyGroup,), {"homes": homes}), name=module)

    @made.callback(help=doc, invoke_without_command=True)
    def shown(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return made


project = subcommands(
    *("project", "whatif", "memory", "scaling", "pipeline", "bubble", "bounds"),
    doc="""Predict memory, scaling, schedules, bounds, and changes.

    Examples:
        tracelens project whatif traces/
        tracelens project memory --model deepseek_v3 --gpus 256 --pp 16 --ep 8 --device mi355x
        tracelens project pipeline --from traces/ --vpp 2
        tracelens project bounds traces/
    """,
)
workload = subcommands(
    *("workload", "run", "ladder", "serve"),
    doc="""Train or serve the bundled MoE model, and record traces of it.

    Examples:
        tracelens workload run --ranks 2 -o traces/
        tracelens workload ladder ladder/ --preset small --ranks 8 -o ladder.html
        tracelens workload serve --ranks 2 -o traces/
    """,
)


@cache
def command_line() -> Any:
    """The app as a click command, made once for all that one process runs."""
    return typer.main.get_command(app)
