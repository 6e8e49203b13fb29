"""The commands put together."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens import __version__
from tracelens.cli import analyze, diff, fuse, gate, listing, replay, report, workload

app = typer.Typer(
    name="tracelens",
    help="Where the step time of a Mixture-of-Experts run goes, from profiler traces.",
    epilog="Examples:  tracelens report trace.json.gz -o report.html   |   tracelens report traces/   |   "
    "tracelens analyze idle trace.json.gz --json   |   tracelens list analyzers",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("report")(report.report)
app.command("analyze")(analyze.analyze)
app.command("diff")(diff.diff)
app.command("gate")(gate.gate)
app.command("fuse")(fuse.fuse)
app.add_typer(
    replay.app, name="replay", help="Write a script for each call with most time; `replay verify` runs them."
)
app.add_typer(workload.app, name="workload", help="Train the bundled MoE model and record traces of it.")
app.command("list")(listing.listing)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tracelens {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Where the step time of a Mixture-of-Experts run goes, from profiler traces."""
