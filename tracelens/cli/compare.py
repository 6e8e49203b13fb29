"""`tracelens diff`, and `tracelens gate` with its baselines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from msgspec import structs

from tracelens.cli.command import command
from tracelens.cli.commands import CANDIDATES
from tracelens.cli.output import (
    Delivery,
    Full,
    Json,
    ReadLimits,
    answer,
    check_outputs,
    prepare,
    print_report,
    progress,
    say,
    write_stdout,
)
from tracelens.errors import TracelensError
from tracelens.outputs import write_file
from tracelens.read import TraceFiles
from tracelens.session import (
    ACCEPT,
    OUTPUT,
    RULES,
    AcceptRequest,
    AddRequest,
    DiffRequest,
    GateRequest,
    OptionGroup,
    as_report,
    option,
    render,
)
from tracelens.workers import keep_freed

INCONCLUSIVE = 3
"""Exit code where noise hides whether the rules hold."""


@command
def diff(request: DiffRequest, out: Delivery, sections: Full, _: ReadLimits) -> None:
    """Compare two runs: what changed, and why the step time differs.

    Examples:
        tracelens diff before.json.gz after.json.gz
        tracelens diff before/ after/ -o diff.html
        tracelens diff before/ after/ --step 2 --json
        tracelens diff eager.json.gz graphed.json.gz
        tracelens diff a.json.gz b.json.gz --captures captures_a/ --captures captures_b/
    """
    keep_freed()
    traces = TraceFiles([str(request.base), str(request.cand)])
    base, cand = map(traces.only, traces.paths)
    with progress() as line, replace(request, base=base, cand=cand, progress=line).begun() as report:
        out.check((), traces)
        prepare()
        made = report()
    out.deliver(made, full=sections.full)


class GateOutputs(OptionGroup, panel=OUTPUT):
    """Runs that are named by their place, where their verdict goes, and what it counts as."""

    paths: list[str] | None = option(
        "Runs of the baseline and runs to check: traces (a file, a directory, a pattern), JSON reports of "
        "`tracelens report`, or baselines of `tracelens gate baseline`. With one of each, -- is optional.",
        metavar="BASE... -- CAND...",
        default=None,
        argument=True,
    )
    inconclusive: Literal["pass", "fail"] | None = option(
        "Count an inconclusive verdict as this.", RULES, default=None, shown="neither: exit code 3"
    )
    report: str | None = option(
        "Write the verdict with a diff to a .html, .md, .json or .xlsx file.",
        metavar="FILE",
        default=None,
        complete="outputs",
    )
    junit: str | None = option("Write JUnit XML, one test case per rule.", metavar="FILE", default=None)
    markdown: str | None = option(
        "Write Markdown of at most 25 lines, for a pull request.", metavar="FILE", default=None
    )
    github: bool = option("Print annotations for GitHub Actions (on stderr with --json).", default=False)


@command
def gate(request: GateRequest, printed: Json, out: GateOutputs, limits: ReadLimits) -> int:
    """Check runs against a baseline: fail on a regression.

    Exit code: 0 if all rules hold, 1 for a regression, 2 for bad input, 3 if inconclusive: noise hides
    whether a rule holds.

    Without rules, the step is judged in parts: GPU work, kernels and bytes, which repeat from run to run, and
    step time, idle time and exposed communication as precisely as the runs allow. Several recordings per
    side measure the noise; of one it is assumed, by kind of metric. Runs that differ in device, ranks or
    model are bad input, and so is a recording that is doubtful where a rule needs it.

    Examples:
        tracelens gate base.json traces/ --rule 'step.time<=1.03' --rule 'kernel.count<=1.0'
        tracelens gate before/*/ -- after/*/ --report gate.html
        tracelens gate before/ after/ --junit gate.xml --markdown gate.md --github
        tracelens gate baseline add runs/*/ -o base.json
        tracelens gate baseline accept runs/*/ -o base.json
    """
    keep_freed()
    bases, candidates = _sides(out.paths or [], request)
    traces = TraceFiles([*bases, *candidates])
    reports, others = ([*filter(None, paths)] for paths in ([out.report], [out.junit, out.markdown]))
    with progress() as line:
        request = replace(request, base=bases, candidate=candidates, progress=line)
        with request.begun(traces, keep=True) as sides:
            from tracelens.compare.gate import commands, comment, junit, settings

            file = settings(None if request.config is None else str(request.config))
            check_outputs(reports, [file.file], others, traces)
            options = request.options(file)
            verdict, compared = request.outcome(options, sides(), why=True, compared=bool(out.report))
    report = as_report(verdict)
    if out.report is not None:
        results = (*report.results, *(compared.results if compared else ()))
        render(structs.replace(report, results=results), out.report)
        say(f"wrote {out.report}")
    if out.junit is not None:
        write_file(out.junit, junit(verdict))
        say(f"wrote {out.junit}")
    if out.markdown is not None:
        from tracelens.rendering.formats import escaped

        write_file(out.markdown, comment(verdict, escaped).encode())
        say(f"wrote {out.markdown}")
    print_report(report, json=printed.json)
    for text in commands(verdict) if out.github else ():
        if printed.json:
            say(text)
        else:
            write_stdout(f"{text}\n".encode())
    counted: str = verdict.verdict
    if counted == "inconclusive":
        counted = out.inconclusive or file.inconclusive or counted
    return {"pass": 0, "fail": 1}.get(counted, INCONCLUSIVE)


def _sides(paths: list[str], request: GateRequest) -> tuple[list[str], list[str]]:
    """The runs of each side.

    Raises:
        TracelensError: a side has none, or nobody says which path is of which side.
    """
    sides: list[Any] = [request.base or (), request.candidate or ()]  # the command line has lists of paths
    bases, candidates = map(list, sides)
    if CANDIDATES in paths:
        separator = paths.index(CANDIDATES)
        bases, candidates = [*paths[:separator], *bases], [*paths[separator + 1 :], *candidates]
    elif len(paths) == 2 and not bases and not candidates:
        bases, candidates = paths[:1], paths[1:]
    elif len(paths) == 1 and bool(bases) != bool(candidates):
        bases, candidates = bases or paths, candidates or paths
    elif paths and (len(paths) > 1 or bases):
        raise TracelensError(
            f"gate: {len(paths)} runs, and nothing says which are the base; write BASE... -- CAND..."
        )
    else:
        bases = bases or paths
    for name, side in (("BASE", bases), ("CAND", candidates)):
        if not side:
            raise TracelensError(f"gate: Missing argument '{name}' (see --help)")
    return bases, candidates


@command
def add(request: AddRequest, _: ReadLimits) -> int:
    """Add runs to a baseline if they pass a gate against it.

    A regression stays one: `tracelens gate` compares with the runs of the newest commit, so runs that fail
    (exit code 1) or cannot be decided (3) are not added. `tracelens gate baseline accept` adds them. The
    first runs of a baseline are not checked; all commits show how much runs differ.

    Examples:
        tracelens gate baseline add runs/*/ -o base.json
        tracelens gate baseline add traces/ -o base.json --commit $(git rev-parse HEAD) --keep 30
    """
    from tracelens.compare.gate import headline

    check_outputs((), (), [request.path], TraceFiles(request.recordings))
    with progress() as line:
        verdict, counted, extended = replace(request, progress=line).gated()
    if verdict is not None and counted != "pass":
        say(f"{request.path} stays as it is: {headline(verdict)}; if that is meant: {ACCEPT}")
        return {"fail": 1}.get(counted, INCONCLUSIVE)
    _write_baseline(request.path, *extended())
    return 0


@command
def accept(request: AcceptRequest, _: ReadLimits) -> None:
    """Add runs to a baseline without a gate: a change that is meant.

    `tracelens gate` compares with the runs of the newest commit, so these are what counts as normal from now.

    Examples:
        tracelens gate baseline accept runs/*/ -o base.json --commit $(git rev-parse HEAD)
    """
    check_outputs((), (), [request.path], TraceFiles(request.recordings))
    _write_baseline(request.path, *answer(request))


def _write_baseline(path: str, content: bytes, count: int) -> None:
    write_file(path, content)
    say(f"wrote {path}: {count} run{'s' if count != 1 else ''}")
