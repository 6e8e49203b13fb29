"""`tracelens gate`: a verdict on two runs, as an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracelens.cli.common import (
    Json,
    Limit,
    Partial,
    Scope,
    ScopeChoice,
    check_outputs,
    print_report,
    progress,
    say,
    write_stdout,
)
from tracelens.guard import banner
from tracelens.outputs import write_file
from tracelens.read import TraceFiles
from tracelens.session import Progress, as_report, samples

if TYPE_CHECKING:
    from tracelens.compare.gate import Samples, Verdict

_SIDE = "traces (a file, a directory of ranks, a pattern) or a JSON report of `tracelens report`."

Base = Annotated[str, typer.Argument(metavar="BASE", help=f"The baseline: {_SIDE}", show_default=False)]
Candidate = Annotated[
    str, typer.Argument(metavar="CAND", help=f"The run to check: {_SIDE}", show_default=False)
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="A limit: step.time<=1.03 (ratio), step.time<=+2ms (difference) or 'moe.blocking_calls<=3 abs' "
        "(value). Repeatable; replaces the rules of files.",
        show_default=False,
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        help="File with rules; default: the nearest tracelens.toml ([gate]) or pyproject.toml "
        "([tool.tracelens.gate]).",
        metavar="FILE",
        show_default=False,
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(help="Family-wise confidence level; default 0.98.", show_default=False),
]
Junit = Annotated[
    str | None,
    typer.Option(help="Write JUnit XML, one test case per rule.", metavar="FILE", show_default=False),
]
Markdown = Annotated[
    str | None,
    typer.Option(help="Write Markdown, as for a pull request.", metavar="FILE", show_default=False),
]
Github = Annotated[
    bool, typer.Option("--github", help="Print annotations for GitHub Actions (on stderr with --json).")
]
TrustAnyway = Annotated[
    bool,
    typer.Option(
        "--trust-anyway",
        help="Compare although the recording of a side is incomplete or contradicts itself (see `tracelens "
        "analyze completeness`).",
    ),
]


def gate(
    base: Base,
    candidate: Candidate,
    rule: Rules = None,
    config: Config = None,
    confidence: Confidence = None,
    json: Json = False,
    junit: Junit = None,
    markdown: Markdown = None,
    github: Github = False,
    scope: Scope = ScopeChoice.all,
    partial: Partial = False,
    trust_anyway: TrustAnyway = False,
    _limit: Limit = None,
) -> None:
    """Check a run against a baseline: exit code 0 if all rules hold, 1 for a regression, 2 for bad input.

    A side whose recording is doubtful in what a rule compares is bad input.

    For example:

    tracelens gate base.json traces/ --rule 'step.time<=1.03' --rule 'kernel.count<=1.0'

    tracelens gate before/ after/ --junit gate.xml --markdown gate.md --github
    """
    from tracelens.compare.gate import CONFIDENCE, read_rule, settings
    from tracelens.compare.gate import gate as judge

    from_file = settings(config)
    outputs = [path for path in (junit, markdown) if path is not None]
    traces = TraceFiles([base, candidate])
    check_outputs((), [base, candidate, *filter(None, [from_file.file])], outputs, traces)
    rules = [read_rule(text) for text in rule or from_file.rules]
    levels = (confidence, from_file.confidence, CONFIDENCE)
    with progress() as line:
        before, after = (_samples(side, traces, scope, partial, line) for side in (base, candidate))
    level = next(level for level in levels if level is not None)
    verdict = judge(before, after, rules, confidence=level, trust_anyway=trust_anyway)
    _deliver(verdict, json=json, junit=junit, markdown=markdown, github=github)
    if verdict.failed:
        raise typer.Exit(1)


def _samples(path: str, traces: TraceFiles, scope: ScopeChoice, partial: bool, line: Progress) -> Samples:
    """One side, from traces or a saved report."""
    side_samples, failures = samples(path, traces, scope=scope.value, partial=partial, progress=line)
    if failures:
        say(f"tracelens: {banner(failures)}")
    return side_samples


def _deliver(verdict: Verdict, *, json: bool, junit: str | None, markdown: str | None, github: bool) -> None:
    """Write and print the verdict."""
    from tracelens.compare.gate import commands
    from tracelens.compare.gate import junit as to_junit
    from tracelens.rendering.formats import markdown as to_markdown

    report = as_report(verdict)
    if junit is not None:
        _write(junit, to_junit(verdict))
    if markdown is not None:
        _write(markdown, to_markdown(report).encode())
    print_report(report, json=json)
    for text in commands(verdict) if github else ():
        if json:
            say(text)
        else:
            write_stdout(f"{text}\n".encode())


def _write(path: str, content: bytes) -> None:
    write_file(path, content)
    say(f"wrote {path}")
