"""`load`, whose processes start before anything heavy is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.read import TraceFiles
from tracelens.session.reading import Progress, StrPath, loaded, quiet

if TYPE_CHECKING:
    from tracelens.session.run import Run


def load(*paths: StrPath, partial: bool = False, progress: Progress = quiet) -> Run:
    """Read traces: files (JSON, plain or .gz, .zst, .zip), directories of ranks, "-" for stdin.

    Args:
        paths: one or more; several traces are the ranks of one job. Patterns ("traces/rank*.json.gz") and,
            with the extra `remote`, addresses (s3://, https://, ...) are files and directories too.
        partial: whether ranks may be missing.
        progress: called with a line of text before each file.

    Returns:
        the run, its traces in order of rank.

    Raises:
        ParseError: a file holds no intact trace, or two claim one rank; the message names them.
    """
    run = loaded(TraceFiles(paths), partial=partial, progress=progress)
    from tracelens.session.run import Run

    return Run(run.traces)
