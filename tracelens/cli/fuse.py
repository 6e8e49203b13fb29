"""`tracelens fuse`: all ranks in one trace."""

from __future__ import annotations

from tracelens.cli.command import command
from tracelens.cli.output import ReadLimits, answer, check_outputs, say
from tracelens.read import TraceFiles
from tracelens.session import FuseRequest


@command
def fuse(request: FuseRequest, _: ReadLimits) -> None:
    """Merge all ranks into one trace for ui.perfetto.dev.

    Examples:
        tracelens fuse traces/ -o merged.json.gz
        tracelens fuse traces/ --ranks 0-3,7 --no-cpu -o merged.json.gz
        tracelens fuse traces/ --between 85-92.5 --findings -o piece.json.gz
    """
    assert isinstance(request.run, TraceFiles)
    check_outputs((), (), [str(request.path)], request.run)
    answer(request)
    say(f"wrote {request.path}")
