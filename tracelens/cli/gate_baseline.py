"""`tracelens gate baseline`: stored baselines, which know how much runs differ."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tracelens.cli.common import (
    Limit,
    Partial,
    Scope,
    ScopeChoice,
    check_outputs,
    progress,
    say,
)
from tracelens.cli.help import OUTPUT, Command, Group
from tracelens.outputs import write_file
from tracelens.read import TraceFiles
from tracelens.session import grown_baseline

COMMIT_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA")
"""Where CI systems say the commit."""

app = typer.Typer(
    cls=Group,
    help="Keep the metrics of past runs to compare with.",
    rich_markup_mode=None,
    no_args_is_help=True,
)


@app.callback()
def baseline() -> None:
    """Keep the metrics of past runs to compare with."""


@app.command("add", cls=Command)
def add(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Traces or JSON reports, each of one run.", show_default=False),
    ],
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            help="The baseline, created or extended.",
            metavar="FILE",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ],
    commit: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Version of the program.",
            show_default=" or ".join(f"${name}" for name in COMMIT_VARIABLES),
        ),
    ] = None,
    keep: Annotated[int, typer.Option(help="Keep at most this many runs; drops the oldest first.")] = 20,
    scope: Scope = ScopeChoice.all,
    partial: Partial = False,
    _limit: Limit = None,
) -> None:
    """Add runs to a baseline.

    `tracelens gate` compares with the runs of the newest commit, and estimates the noise from all commits.

    Examples:
        tracelens gate baseline add runs/*/ -o base.json
        tracelens gate baseline add traces/ -o base.json --commit $(git rev-parse HEAD) --keep 30
    """
    check_outputs((), paths, [output], TraceFiles(paths))
    version = commit if commit is not None else next(filter(None, map(os.environ.get, COMMIT_VARIABLES)), "")
    with progress() as line:
        content, count = grown_baseline(
            paths, output, commit=version or "", keep=keep, scope=scope.value, partial=partial, progress=line
        )
    write_file(output, content)
    say(f"wrote {output}: {count} run{'s' if count != 1 else ''}")
