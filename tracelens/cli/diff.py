"""`tracelens diff`: what changed between two runs."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli.common import (
    CapturesOfSides,
    Full,
    Json,
    Limit,
    Output,
    Partial,
    Step,
    TwinOfSides,
    check_outputs,
    deliver,
    import_formats,
    progress,
)
from tracelens.read import TraceFiles, sources_of_sides
from tracelens.session import Reading
from tracelens.session import diff as compare

_TRACES = "a trace, a directory of ranks, or a quoted pattern."


def diff(
    base: Annotated[str, typer.Argument(metavar="BASE", help=f"The baseline: {_TRACES}", show_default=False)],
    cand: Annotated[
        str, typer.Argument(metavar="CAND", help=f"The run to compare: {_TRACES}", show_default=False)
    ],
    output: Output = None,
    full: Full = False,
    json: Json = False,
    step: Step = None,
    partial: Partial = False,
    captures: CapturesOfSides = None,
    twin: TwinOfSides = None,
    _limit: Limit = None,
) -> None:
    """Compare two runs: what changed, and why the step time differs.

    Examples:
        tracelens diff before.json.gz after.json.gz
        tracelens diff before/ after/ -o diff.html
        tracelens diff before/ after/ --step 2 --json
        tracelens diff eager.json.gz graphed.json.gz
        tracelens diff a.json.gz b.json.gz --captures captures_a/ --captures captures_b/
    """
    traces = TraceFiles([base, cand])
    of_base, of_cand = sources_of_sides(captures or (), twin or ())
    with progress() as line:
        with Reading(traces.of(base), partial=partial, progress=line, graphs=of_base) as reading:
            check_outputs(output, [base, cand], traces=traces)
            import tracelens.compare.diff  # noqa: F401  # while the processes start

            import_formats(output)
            before = reading.run()
        with Reading(traces.of(cand), partial=partial, progress=line, graphs=of_cand) as reading:
            after = reading.run()
        report = compare(before, after, step=step, progress=line)
    deliver(report, output, json, full=full)
