"""The app of all commands."""

from __future__ import annotations

import os
from functools import cache
from typing import Annotated, Any

import typer

from tracelens import __version__
from tracelens.cli import replay
from tracelens.cli.analyze import analyze
from tracelens.cli.calibrate import calibrate
from tracelens.cli.diff import diff
from tracelens.cli.fuse import fuse
from tracelens.cli.gate import GateCommand, gate
from tracelens.cli.gate_baseline import app as gate_baseline
from tracelens.cli.help import WIDTH, Command, Group
from tracelens.cli.listing import listing
from tracelens.cli.project import app as project
from tracelens.cli.report import report
from tracelens.guard import DEBUG

_DEBUG = "--debug"
_GATE_BASELINE = "gate baseline"


class Commands(Group):
    """The commands; `workload` is built on demand, because it has an option per setting."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept --debug in any position."""
        own_options = args[: args.index("--")] if "--" in args else args
        if _DEBUG in own_options:
            _debug(True)  # parsing may fail, too
            args = [_DEBUG, *(text for text in own_options if text != _DEBUG), *args[len(own_options) :]]
        for number, text in enumerate(args[:2]):  # a command of two words; `gate` itself takes paths
            if (
                text == "gate"
                and args[number + 1 : number + 2] == ["baseline"]
                and args[number + 2 :][:1]
                in (
                    ["add"],
                    ["--help"],
                    ["-h"],
                )
            ):
                args = [*args[:number], _GATE_BASELINE, *args[number + 2 :]]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return [
            "report",
            "analyze",
            "fuse",
            "diff",
            "gate",
            _GATE_BASELINE,
            "project",
            "replay",
            "workload",
            "calibrate",
            "list",
        ]

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Commands of one word."""
        return [item for item in super().shell_complete(ctx, incomplete) if " " not in item.value]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands:  # it, or a misspelt name, for which it may be suggested
            from tracelens.cli.workload import app as workload

            command = typer.main.get_command(workload)
            self.commands["workload"] = command
            command.rich_help_panel = _RECORD  # type: ignore[attr-defined]
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=Commands,
    name="tracelens",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)
_LOOK, _COMPARE, _CHANGE, _RECORD, _NAMES = (
    "Look at a run", "Compare runs", "Try a change", "Record a run", "Names and numbers"
)  # fmt: skip
app.command("report", cls=Command, rich_help_panel=_LOOK)(report)
app.command("analyze", cls=Command, rich_help_panel=_LOOK)(analyze)
app.command("fuse", cls=Command, rich_help_panel=_LOOK)(fuse)
app.command("diff", cls=Command, rich_help_panel=_COMPARE)(diff)
app.command("gate", cls=GateCommand, rich_help_panel=_COMPARE)(gate)
app.add_typer(gate_baseline, name=_GATE_BASELINE, rich_help_panel=_COMPARE)
app.add_typer(project, name="project", rich_help_panel=_CHANGE)
app.add_typer(
    replay.app,
    name="replay",
    help="Write standalone scripts of the longest calls, and run them.",
    rich_help_panel=_CHANGE,
)
app.command("calibrate", cls=Command, rich_help_panel=_RECORD)(calibrate)
app.command("list", cls=Command, rich_help_panel=_NAMES)(listing)


def _debug(enabled: bool) -> None:
    if enabled:
        os.environ[DEBUG] = "1"


def _version(enabled: bool) -> None:
    if enabled:
        typer.echo(f"tracelens {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
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


@cache
def command() -> Any:
    """The app as a click command, made once for all that one process runs: it has hundreds of options."""
    return typer.main.get_command(app)
