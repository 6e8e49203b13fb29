"""`tracelens gate`: a verdict on runs against a baseline, as an exit code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens.cli import completion
from tracelens.cli.common import (
    CapturesOfSides,
    Json,
    Limit,
    Partial,
    Progress,
    Scope,
    ScopeChoice,
    TwinOfSides,
    check_outputs,
    print_report,
    progress,
    say,
    write_stdout,
)
from tracelens.cli.help import OUTPUT, Command
from tracelens.errors import TracelensError
from tracelens.guard import banner
from tracelens.outputs import write_file
from tracelens.read import GraphSources, TraceFiles, sources_of_sides
from tracelens.session import GateSide, as_report, comment, explain, gate_side, render

if TYPE_CHECKING:
    from tracelens.compare.gate import Verdict
    from tracelens.table import Report

_CANDIDATES = "\0"
"""Stands for the -- between bases and candidates, which the parser would drop."""

INCONCLUSIVE = 3
"""Exit code where noise hides whether the rules hold."""


class GateCommand(Command):
    """BASE CAND, or BASE... -- CAND...; options may stand on either side of the --."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the place of the -- if there are bases before it."""
        if "--" in args:
            separator = args.index("--")
            before, after = args[:separator], args[separator + 1 :]
            if self.make_parser(ctx).parse_args(args=list(before))[0].get("paths"):
                args = [*before, _CANDIDATES, *after]
        return super().parse_args(ctx, args)


class InconclusiveChoice(StrEnum):
    """What an inconclusive verdict counts as."""

    success = "pass"
    failure = "fail"


RUNS, RULES = "Runs", "Rules"

Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="BASE... -- CAND...",
        help="Runs of the baseline and runs to check: traces (a file, a directory, a pattern), JSON reports "
        "of `tracelens report`, or baselines of `tracelens gate baseline`. With one of each, -- is optional.",
        show_default=False,
    ),
]
Bases = Annotated[
    list[str] | None,
    typer.Option(
        "--base",
        help="A run of the baseline. Repeatable.",
        metavar="PATH",
        show_default=False,
        rich_help_panel=RUNS,
    ),
]
Candidates = Annotated[
    list[str] | None,
    typer.Option(
        "--cand", help="A run to check. Repeatable.", metavar="PATH", show_default=False, rich_help_panel=RUNS
    ),
]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        help="A limit on a ratio (step.time<=1.03), a difference (step.time<=+2ms) or a value "
        "('moe.blocking_calls<=3 abs'). Repeatable; replaces the rules in files.",
        metavar="RULE",
        show_default="built-in rules",
        rich_help_panel=RULES,
    ),
]
Config = Annotated[
    str | None,
    typer.Option(
        help="Read rules from [gate] of this TOML file, or [tool.tracelens.gate] of a pyproject.toml.",
        metavar="FILE",
        show_default="the nearest tracelens.toml or pyproject.toml",
        rich_help_panel=RULES,
    ),
]
Confidence = Annotated[
    float | None,
    typer.Option(
        help="Family-wise confidence level.", metavar="LEVEL", show_default="0.99", rich_help_panel=RULES
    ),
]
Inconclusive = Annotated[
    InconclusiveChoice | None,
    typer.Option(
        help="Count an inconclusive verdict as this.",
        show_default="neither: exit code 3",
        rich_help_panel=RULES,
    ),
]
MinEffect = Annotated[
    float | None,
    typer.Option(
        help="Times and fractions that change by less than this share of the step do not fail.",
        metavar="SHARE",
        show_default="0.005",
        rich_help_panel=RULES,
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        help="Compare even if this differs: device, ranks or model. Repeatable.",
        metavar="NAME",
        show_default=False,
        autocompletion=lambda: ["device", "ranks", "model"],
        rich_help_panel=RUNS,
    ),
]
HtmlReport = Annotated[
    str | None,
    typer.Option(
        "--report",
        help="Write the verdict with a diff to a .html, .md, .json or .xlsx file.",
        metavar="FILE",
        show_default=False,
        autocompletion=completion.outputs,
        rich_help_panel=OUTPUT,
    ),
]
Junit = Annotated[
    str | None,
    typer.Option(
        help="Write JUnit XML, one test case per rule.",
        metavar="FILE",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Markdown = Annotated[
    str | None,
    typer.Option(
        help="Write Markdown of at most 25 lines, for a pull request.",
        metavar="FILE",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Github = Annotated[
    bool,
    typer.Option(
        "--github",
        help="Print annotations for GitHub Actions (on stderr with --json).",
        rich_help_panel=OUTPUT,
    ),
]
TrustAnyway = Annotated[
    bool,
    typer.Option(
        "--trust-anyway",
        help="Compare even if a recording is incomplete or contradicts itself (`tracelens analyze "
        "completeness`).",
        rich_help_panel=RUNS,
    ),
]


def gate(
    paths: Paths = None,
    base: Bases = None,
    cand: Candidates = None,
    rule: Rules = None,
    config: Config = None,
    confidence: Confidence = None,
    inconclusive: Inconclusive = None,
    min_effect: MinEffect = None,
    allow: Allow = None,
    json: Json = False,
    report: HtmlReport = None,
    junit: Junit = None,
    markdown: Markdown = None,
    github: Github = False,
    scope: Scope = ScopeChoice.all,
    partial: Partial = False,
    captures: CapturesOfSides = None,
    twin: TwinOfSides = None,
    trust_anyway: TrustAnyway = False,
    _limit: Limit = None,
) -> None:
    """Check runs against a baseline: fail on a regression.

    Exit code: 0 if all rules hold, 1 for a regression, 2 for bad input, 3 if inconclusive: noise hides
    whether a rule holds.

    Noise is measured where a side has several recordings; one recording per side is judged by the widest
    plausible noise. Runs that differ in device, ranks or model are bad input, and so is a recording that
    is doubtful where a rule needs it.

    Examples:
        tracelens gate base.json traces/ --rule 'step.time<=1.03' --rule 'kernel.count<=1.0'
        tracelens gate before/*/ -- after/*/ --report gate.html
        tracelens gate before/ after/ --junit gate.xml --markdown gate.md --github
        tracelens gate baseline add runs/*/ -o base.json
    """
    from tracelens.compare.gate import Options, settings
    from tracelens.compare.gate import gate as judge

    bases, candidates = _sides(paths or [], base or [], cand or [])
    loaded, outputs = settings(config), _Outputs(report, junit, markdown, json, github)
    traces, of_sides = TraceFiles([*bases, *candidates]), sources_of_sides(captures or (), twin or ())
    outputs.check([*bases, *candidates, *filter(None, [loaded.file])], traces)
    options = Options.of(loaded, rule or (), confidence, min_effect)
    levels = {"confidence": options.confidence, "min_effect": options.min_effect}
    with progress() as line:
        before = _side(bases, traces, scope, partial, of_sides[0], line)
        after = _side(candidates, traces, scope, partial, of_sides[1], line)
        how: dict[str, Any] = {"allow": allow or (), "trust_anyway": trust_anyway, **levels}
        verdict = judge(before.side, after.side, options.rules, **how)
        compared = None
        if verdict.verdict != "pass" or report:
            explained, compared = explain(verdict, before, after, partial=partial, progress=line)
            verdict = explained if verdict.verdict != "pass" else verdict
    outputs.deliver(verdict, compared)
    if code := _exit_code(verdict, inconclusive.value if inconclusive else loaded.inconclusive):
        raise typer.Exit(code)


def _exit_code(verdict: Verdict, count_as: str | None) -> int:
    codes = {"pass": 0, "fail": 1, "inconclusive": {"pass": 0, "fail": 1}.get(count_as or "", INCONCLUSIVE)}
    return codes[verdict.verdict]


def _sides(paths: list[str], bases: list[str], candidates: list[str]) -> tuple[list[str], list[str]]:
    """The runs of each side.

    Raises:
        TracelensError: a side has none, or nobody says which path is of which side.
    """
    if _CANDIDATES in paths:
        separator = paths.index(_CANDIDATES)
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


def _side(
    paths: list[str],
    traces: TraceFiles,
    scope: ScopeChoice,
    partial: bool,
    graphs: GraphSources,
    line: Progress,
) -> GateSide:
    """One side, from traces, saved reports or a baseline."""
    side = gate_side(paths, traces, scope=scope.value, partial=partial, graphs=graphs, progress=line)
    if side.failures:
        say(f"tracelens: {banner(side.failures)}")
    return side


@dataclass(frozen=True)
class _Outputs:
    """Where the verdict goes."""

    report: str | None
    junit: str | None
    markdown: str | None
    json: bool
    github: bool

    def check(self, inputs: list[str], traces: TraceFiles) -> None:
        """Fail before the work if a file cannot or must not be written."""
        others = [path for path in (self.junit, self.markdown) if path is not None]
        check_outputs([self.report] if self.report else (), inputs, others, traces)

    def deliver(self, verdict: Verdict, compared: Report | None) -> None:
        """Write and print the verdict."""
        from tracelens.compare.gate import commands, junit

        verdict_report = as_report(verdict)
        if self.report is not None:
            results = (*verdict_report.results, *(compared.results if compared else ()))
            render(replace(verdict_report, results=results), self.report)
            say(f"wrote {self.report}")
        if self.junit is not None:
            _write(self.junit, junit(verdict))
        if self.markdown is not None:
            _write(self.markdown, comment(verdict).encode())
        print_report(verdict_report, json=self.json)
        for text in commands(verdict) if self.github else ():
            if self.json:
                say(text)
            else:
                write_stdout(f"{text}\n".encode())


def _write(path: str, content: bytes) -> None:
    write_file(path, content)
    say(f"wrote {path}")
