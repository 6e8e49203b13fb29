"""`tracelens project`: will it fit, how large is the bubble, and what would it gain."""

from __future__ import annotations

import typer

from tracelens.cli.project import bubble as project_bubble
from tracelens.cli.project import memory as project_memory
from tracelens.cli.project import pipeline as project_pipeline
from tracelens.cli.project import whatif as project_whatif

app = typer.Typer(name="project", rich_markup_mode=None, add_completion=False)


@app.callback(invoke_without_command=True)
def project(context: typer.Context) -> None:
    """Before a run: memory and pipeline bubble. After a run: its step time if something were otherwise."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("memory")(project_memory.memory)
app.command("bubble")(project_bubble.bubble)
app.command("pipeline")(project_pipeline.pipeline)
app.command("whatif")(project_whatif.whatif)
