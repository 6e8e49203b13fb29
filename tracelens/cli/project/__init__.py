"""`tracelens project`: memory, pipeline and what-if projections."""

from __future__ import annotations

import typer

from tracelens.cli.project.bubble import bubble
from tracelens.cli.project.memory import memory
from tracelens.cli.project.pipeline import pipeline
from tracelens.cli.project.whatif import whatif

__all__ = ["app"]

app = typer.Typer(name="project", rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def project(context: typer.Context) -> None:
    """Project memory and pipeline schedules before a run, and step time under changes after it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for _command in (memory, bubble, pipeline, whatif):
    app.command(_command.__name__)(_command)
