"""`tracelens project`: memory, scaling, pipeline, what-if and speed-of-light projections."""

from __future__ import annotations

import typer

from tracelens.cli.help import Command, Group
from tracelens.cli.project.bounds import bounds
from tracelens.cli.project.bubble import bubble
from tracelens.cli.project.memory import memory
from tracelens.cli.project.pipeline import pipeline
from tracelens.cli.project.scaling import scaling
from tracelens.cli.project.whatif import whatif

__all__ = ["app"]

app = typer.Typer(cls=Group, name="project", rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def project(context: typer.Context) -> None:
    """Predict memory, scaling, schedules, bounds, and changes.

    Examples:
        tracelens project whatif traces/
        tracelens project memory --model deepseek_v3 --gpus 256 --pp 16 --ep 8 --device mi355x
        tracelens project pipeline --from traces/ --vpp 2
        tracelens project bounds traces/
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _command in (whatif, memory, scaling, pipeline, bubble, bounds):
    app.command(_command.__name__, cls=Command)(_command)
