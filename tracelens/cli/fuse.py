"""`tracelens fuse`: all ranks in one file for Perfetto."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli.common import Limit, Partial, Paths, check_outputs, progress, say
from tracelens.read import TraceFiles
from tracelens.session import fuse as write


def fuse(
    paths: Paths,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write this .json or .json.gz file.", show_default=False
        ),
    ],
    ranks: Annotated[
        str | None,
        typer.Option(help="Only these ranks: 0-3,7.", metavar="RANKS", show_default="all"),
    ] = None,
    no_cpu: Annotated[
        bool, typer.Option("--no-cpu", help="Omit host threads; keep GPU streams, steps and waits.")
    ] = False,
    partial: Partial = False,
    _limit: Limit = None,
) -> None:
    """Merge all ranks into one trace for ui.perfetto.dev.

    Examples:
        tracelens fuse traces/ -o merged.json.gz
        tracelens fuse traces/ --ranks 0-3,7 --no-cpu -o merged.json.gz
    """
    from tracelens.merge import check_suffix

    check_suffix(output)
    traces = TraceFiles(paths)
    check_outputs((), paths, [output], traces)
    with progress() as line:
        write(traces, output, ranks=ranks, cpu=not no_cpu, partial=partial, progress=line)
    say(f"wrote {output}")
