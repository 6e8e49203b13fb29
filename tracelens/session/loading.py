"""`load`, whose processes start before anything heavy is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracelens.read import GraphSources, TraceFiles
from tracelens.session.reading import Progress, StrPath, loaded, quiet

if TYPE_CHECKING:
    from tracelens.session.run import Run


def load(
    *paths: StrPath,
    partial: bool = False,
    captures: StrPath = "",
    twin: StrPath = "",
    progress: Progress = quiet,
) -> Run:
    """Read traces: files (JSON, plain or .gz, .zst, .zip), directories of ranks, "-" for stdin.

    Args:
        paths: one or more; several traces are the ranks of one job. Patterns ("traces/rank*.json.gz") and,
            with the extra `remote`, addresses (s3://, https://, ...) are files and directories too.
        partial: whether ranks may be missing.
        captures: trace of the captures of its graphs, or a folder of them; by default `capture_traces` beside
            each trace, where there is one. What a graph launch replays is attributed from them.
        twin: trace of the same program without graphs, or a folder of its ranks, from which graph launches
            are attributed as well.
        progress: called with a line of text before each file.

    Returns:
        the run, its traces in order of rank.

    Raises:
        ParseError: a file holds no intact trace, or two claim one rank; the message names them.
    """
    graphs = GraphSources(os.fspath(captures), os.fspath(twin))
    run = loaded(TraceFiles(paths), partial=partial, progress=progress, graphs=graphs)
    from tracelens.session.run import Run

    return Run(run.traces)
