"""`tracelens report` and `tracelens analyze`: all about a run in one or more formats, or one analyzer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracelens.cli.command import command
from tracelens.cli.output import (
    Full,
    Json,
    ReadLimits,
    Written,
    check_complete,
    prepare,
    print_answer,
    print_report,
    progress,
    say,
)
from tracelens.errors import TracelensError
from tracelens.session import RUN, AnalyzerOptions, OptionGroup, Progress, Reporting, Traces, option
from tracelens.workers import keep_freed

ROWS = 40
"""Of each table that `analyze` prints: more than a report shows, which has them all."""


class Analyzers(OptionGroup, panel=RUN):
    """Which analyzers run."""

    only: list[str] | None = option(
        "Run only this analyzer. Repeatable.", metavar="NAME", default=None, shown="all", complete="analyzers"
    )


class OneAnalyzer(OptionGroup):
    """Which analyzer runs."""

    name: str = option(
        "The analyzer (`tracelens list analyzers`).", metavar="NAME", argument=True, complete="analyzers"
    )


class Shown(Json):
    """How much of one analyzer is printed."""

    full: bool = option("Print every table with its definition, not only the answer.", default=False)
    table: str | None = option("Print this table below the answer.", metavar="NAME", default=None)


@command
def report(
    traces: Traces, out: Written, sections: Full, which: Analyzers, options: AnalyzerOptions, _: ReadLimits
) -> None:
    """Report where the step time goes and what to fix first.

    Examples:
        tracelens report trace.json.gz
        tracelens report traces/ -o report.html
        tracelens report rank0.json.gz rank1.json.gz -o report.html -o tables.xlsx
        tracelens report traces/ --only timeline --only idle --step 2
        tracelens report trace.json.gz --device mi355x -o projected.html
    """
    keep_freed()
    with progress() as line, _reporting(traces, line, fork=True) as reporting:
        out.check([options.device_file], traces.paths)
        # Imported and compiled while the traces are decoded.
        from tracelens.analysis import ANALYZERS
        from tracelens.analysis.common import grammar
        from tracelens.what_if import SCENARIOS

        ANALYZERS.load()
        prepare()
        if not which.only:  # for findings and steps, in a copy of this process as well
            SCENARIOS.load()
            grammar()
        values = _of_analyzers(which.only, options)
        ahead = out.prepared if out.output else None
        result = reporting.report(which.only, step=options.step, ahead=ahead, **values)
    out.deliver(result, full=sections.full or bool(which.only))


@command
def analyze(which: OneAnalyzer, traces: Traces, out: Shown, options: AnalyzerOptions, _: ReadLimits) -> None:
    """Run one analyzer: its answer, and the table that proves it.

    Examples:
        tracelens analyze breakdown traces/
        tracelens analyze collectives traces/ --table traffic
        tracelens analyze timeline trace.json.gz --scope linked
        tracelens analyze ops traces/ --json
        tracelens analyze roofline trace.json.gz --device mi355x
    """
    if not which.name.isidentifier() and os.path.exists(which.name):
        raise TracelensError(f"{which.name}: name the analyzer first: tracelens analyze NAME {which.name}")
    with progress() as line, _reporting(traces, line) as reporting:
        values = _of_analyzers([which.name], options)
        result = reporting.report([which.name], step=options.step, **values)
    if out.json or out.full:
        print_report(result, json=out.json, rows=ROWS)
    else:
        print_answer(result, out.table)
    check_complete(result)


def _reporting(traces: Traces, line: Progress, *, fork: bool = False) -> Reporting:
    """The traces, and the processes that read them."""
    return Reporting(traces.paths.all(), replace(traces, progress=line), dask=traces.dask, fork=fork)


def _of_analyzers(names: Sequence[str] | None, options: AnalyzerOptions) -> dict[str, Any]:
    """The options that these analyzers (default: all) have; warns of those that none of them has."""
    values = options.values("scope", "device", "device_file", "unprofiled_step_ms")
    values = {name: value for name, value in values.items() if value is not None}
    changed = {name for name, value in values.items() if value != "all"}
    if not names or not changed:
        return values
    from tracelens.analysis import ANALYZERS, option_names
    from tracelens.analysis.common import choose_device

    known = option_names([ANALYZERS.get(name) for name in names])
    choose_device(options.device, options.device_file)
    for name in sorted(changed - known):
        say(f"tracelens: {', '.join(names)}: --{name.replace('_', '-')} changes nothing here")
    return {name: value for name, value in values.items() if name in known or name not in changed}
