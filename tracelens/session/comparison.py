"""Two runs compared: `diff`, and `gate` with its baselines."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from tracelens.errors import TracelensError
from tracelens.read import SideTraces, TraceFiles, same_bytes
from tracelens.saved import saved_kind
from tracelens.session.reading import (
    STEP,
    Graphs,
    GraphsOfSides,
    Partial,
    Scoped,
    Source,
    loaded,
    opened,
)
from tracelens.session.reports import Reporting, origin, with_results
from tracelens.session.reports import report as report_run
from tracelens.session.request import (
    OUTPUT,
    ApiRequest,
    CommandOption,
    StrPath,
    Texts,
    function_of,
    keyword,
    option,
)
from tracelens.version import __version__

if TYPE_CHECKING:
    from tracelens.compare.gate import GateSettings, GateSide, Side, Verdict
    from tracelens.compare.gate import Options as GateOptions
    from tracelens.table import Report
    from tracelens.trace import Run, Scope

RUNS, RULES = "Runs", "Rules"
_SIDE = CommandOption(help="", argument=True, type=str)

GATED = ("steps", "completeness")
"""Analyzers that a gate reads of each run."""

Recording: TypeAlias = "Run | Report | StrPath"
"""One run: in memory, a report with the analyzer "steps", or a path of traces, a report or a baseline."""


class DiffRequest(GraphsOfSides, ApiRequest["Report"]):
    """Compare two runs: what changed, and what explains the difference in step time.

    Returns:
        a report with the single result "diff", ready for `render`; inputs, ranks and devices in its meta are
        by side.

    Raises:
        TracelensError: a rank has no GPU work, or no such step.
        ParseError: captures or twin cannot be read.
    """

    base: Source = option(
        _SIDE,
        help="The baseline: a trace, a directory of ranks, or a quoted pattern.",
        doc="the run before, or its path.",
        metavar="BASE",
        kw_only=False,
    )
    cand: Source = option(
        _SIDE,
        help="The run to compare: a trace, a directory of ranks, or a quoted pattern.",
        doc="the run after, or its path; it may have other steps, ranks, libraries and hardware.",
        metavar="CAND",
        kw_only=False,
    )
    step: str | int | None = option(
        STEP, doc='only this step of both, "2" or 2 for ProfilerStep#2.', default=None
    )

    def answer(self) -> Report:
        """The report on the difference."""
        with self.begun() as report:
            return report()

    @contextmanager
    def begun(self) -> Iterator[Callable[[], Report]]:
        """Yields what gives the report; meanwhile the base is read."""
        side_traces = SideTraces()
        of_base, of_cand = map(self.reads, self.graphs)
        with opened(self.base, of_base, side_traces) as base:
            yield lambda: self._report(base, lambda: loaded(self.cand, None, of_cand, side_traces))

    def _report(self, *sources: Callable[[], Run]) -> Report:
        # Imported while the base is read.
        from tracelens.analysis.common import noted, setup_of
        from tracelens.compare.diff import diff as compare
        from tracelens.compare.diff import headline
        from tracelens.compare.gate import MUST_AGREE, check_alike
        from tracelens.rendering.summary import result_summary
        from tracelens.table import Report, Skip
        from tracelens.trace import is_unattributed

        runs = [source() for source in sources]
        if any(is_unattributed(trace) for run in runs for trace in run.traces):
            from tracelens.trace.graphs import with_twin

            runs = [with_twin(runs[0], runs[1]), with_twin(runs[1], runs[0])]
        sides = {side: loaded(run, self.step) for side, run in zip(("base", "cand"), runs, strict=True)}
        self.progress("comparing the runs")
        metas = {side: [trace.meta for trace in run.traces] for side, run in sides.items()}
        result = replace(compare(**sides), command="tracelens diff BASE CAND")
        result = noted(result, [*metas["base"], *metas["cand"]])
        # What a gate refuses to compare comes first: it explains differences better than all below.
        base, cand = ([(side, setup_of(metas[side], run.ranks))] for side, run in sides.items())
        unlike = [
            Skip(skip.subject, f"{skip.reason}; tracelens gate refuses such a pair")
            for skip in check_alike(base, cand, MUST_AGREE)
            if skip.subject in {f"same {aspect} on both sides" for aspect in MUST_AGREE}
        ]
        warnings = "".join(f"Not the {skip.subject}: {skip.reason}. " for skip in unlike)
        result = replace(result, doc=f"{warnings}{result.doc}", skips=(*unlike, *result.skips))
        origins = {side: origin(metas[side], run.ranks) for side, run in sides.items()}
        meta: dict[str, Any] = {"version": __version__} | {
            key: {side: side_origin[key] for side, side_origin in origins.items()} for key in origins["base"]
        }
        if self.step is not None:
            meta["options"] = {"step": str(self.step)}
        summary = result_summary(result)
        if summary is not None and unlike:
            summary = replace(summary, verdict=f"{warnings}{summary.verdict}")
        return Report((result,), f"tracelens diff: {headline(result)}", meta, summary)


class GateRequest(GraphsOfSides, Scoped, ApiRequest["Verdict"]):
    """Check runs against a baseline.

    Returns:
        the verdict, ready for `render`: `verdict.verdict` is "pass", "fail" or "inconclusive",
        `verdict.outcomes` has one entry a rule, `verdict.causes` the largest causes of the difference.

    Raises:
        TracelensError: malformed rule, a metric that neither side has, runs that cannot be compared, or a
            side that cannot be read or trusted.
    """

    base: Recording | Sequence[Recording] = option(
        "A run of the baseline. Repeatable.",
        RUNS,
        doc='the baseline: a run, a report with the analyzer "steps", or a path of traces, a JSON report or '
        "a stored baseline; or several of them, recordings of one program.",
        metavar="PATH",
        type=list[str] | None,
        kw_only=False,
    )
    candidate: Recording | Sequence[Recording] = option(
        "A run to check. Repeatable.",
        RUNS,
        doc="the run or runs to check, likewise.",
        name="cand",
        metavar="PATH",
        type=list[str] | None,
        kw_only=False,
    )
    rules: Texts = option(
        "A limit on a ratio (step.time<=1.03), a difference (step.time<=+2ms) or a value "
        "('moe.blocking_calls<=3 abs'). Repeatable; replaces the rules in files.",
        RULES,
        doc='limits, like "step.time<=1.03" (a ratio), "step.time<=+2ms" (a difference) or '
        '"moe.blocking_calls<=3 abs" (a value); without any, those of `config`, or the default ones.',
        name="rule",
        metavar="RULE",
        default=(),
        shown="built-in rules",
        kw_only=False,
    )
    config: StrPath | None = option(
        "Read rules from [gate] of this TOML file, or [tool.tracelens.gate] of a pyproject.toml.",
        RULES,
        doc="tracelens.toml or pyproject.toml with rules and options; None reads no file.",
        metavar="FILE",
        default=None,
        shown="the nearest tracelens.toml or pyproject.toml",
    )
    confidence: float | None = option(
        "Family-wise confidence level.", RULES, metavar="LEVEL", default=None, shown="0.99"
    )
    min_effect: float | None = option(
        "Times and fractions that change by less than this share of the step do not fail.",
        RULES,
        metavar="SHARE",
        default=None,
        shown="0.005",
    )
    allow: Collection[str] = option(
        "Compare even if this differs: device, ranks or model. Repeatable.",
        RUNS,
        metavar="NAME",
        type=list[str] | None,
        default=(),
        complete=("device", "ranks", "model"),
    )
    trust_anyway: bool = option(
        "Compare even if a recording is incomplete or contradicts itself (`tracelens analyze completeness`).",
        RUNS,
        default=False,
    )
    why: bool = keyword('whether to look for the causes where the verdict is not "pass".', default=True)

    def answer(self) -> Verdict:
        """The verdict, with the causes where something is wrong."""
        with self.begun(keep=self.why) as sides:
            from tracelens.compare.gate import GateSettings, settings

            file = GateSettings() if self.config is None else settings(os.fspath(self.config))
            return self.outcome(self.options(file), sides(), self.why)[0]

    def options(self, file: GateSettings) -> GateOptions:
        """What is judged by, where a file has these settings."""
        from tracelens.compare.gate import Options

        rules = [self.rules] if isinstance(self.rules, str) else self.rules
        return Options.of(file, rules, self.confidence, self.min_effect)

    @contextmanager
    def begun(
        self, traces: TraceFiles | None = None, *, keep: bool
    ) -> Iterator[Callable[[], Sequence[GateSide]]]:
        """Yields what gives the base and the candidate; meanwhile the first trace of them is read.

        Args:
            traces: paths that are expanded already.
            keep: the runs for a diff of them.
        """
        known, side_traces = traces or TraceFiles(), SideTraces()
        recordings = [*zip((self.base, self.candidate), map(self.reads, self.graphs), strict=True)]
        begun: dict[str, Reporting] = {}

        def sides() -> Iterator[GateSide]:
            first = None
            for side, how in recordings:
                if first is not None and self.identical(known):
                    name = ", ".join(map(str, _paths(side)))
                    yield replace(first, side=replace(first.side, name=name))  # no second read
                    return
                first = gate_side(side, self.scope, how, known, side_traces, begun, keep=keep)
                yield first

        traced = ((path, how) for side, how in recordings for path in _paths(side) if not saved_kind(path))
        with ExitStack() as stack:
            for path, how in islice(traced, 1):
                reporting = Reporting(known.of(path), how, keep=keep, side_traces=side_traces)
                begun[path] = stack.enter_context(reporting)
            yield lambda: [*sides()]

    def identical(self, traces: TraceFiles | None = None) -> bool:
        """Whether both sides are the same bytes, read in the same way; files of other sizes are not read."""
        base, candidate = _paths(self.base), _paths(self.candidate)
        known = traces or TraceFiles()
        if not base or len(base) != len(candidate) or self.graphs[0] != self.graphs[1]:
            return False
        return same_bytes([known.of(path) for path in base], [known.of(path) for path in candidate])

    def outcome(
        self, options: GateOptions, sides: Sequence[GateSide], why: bool, compared: bool = False
    ) -> tuple[Verdict, Report | None]:
        """The verdict, and with `why` the largest causes of the difference where something is wrong.

        Also the diff that tells them, with `compared` where nothing is wrong, too. Of several runs of a side
        with traces the typical one counts: whose step time is nearest to their mean. Where a side has no
        traces, the causes are the largest moves among its metrics, and there is no diff.
        """
        from tracelens.compare.gate import gate, of_diff, of_metrics

        base, candidate = sides
        verdict = gate(
            base.side,
            candidate.side,
            options.rules,
            allow=self.allow,
            trust_anyway=self.trust_anyway,
            confidence=options.confidence,
            min_effect=options.min_effect,
            identical=candidate.side.runs is base.side.runs,
        )
        is_wrong = why and verdict.verdict != "pass"
        if not is_wrong and not compared:
            return verdict, None
        typical = [run for side in sides if (run := side.typical) is not None]
        report = None
        if len(typical) == 2:
            with suppress(TracelensError):  # runs with metrics of the host only
                base_run, cand_run = (run() for run in typical)
                report = DiffRequest(base_run, cand_run, progress=self.progress).answer()
        if not is_wrong:
            return verdict, report
        causes = of_diff(report["diff"]) if report else of_metrics(base.side, candidate.side)
        return verdict.because(causes), report


def _paths(recordings: Recording | Sequence[Recording]) -> list[str]:
    """The paths of a side; none where one of its runs is in memory."""
    single = isinstance(recordings, str | os.PathLike) or not isinstance(recordings, Sequence)
    items: Any = [recordings] if single else recordings
    return (
        [os.fspath(item) for item in items]
        if all(isinstance(item, str | os.PathLike) for item in items)
        else []
    )


class AcceptRequest(Scoped, Partial, ApiRequest[tuple[bytes, int]]):
    """A stored baseline with these runs as its newest, whatever they measure.

    Returns:
        the content of the file, and how many runs it has.

    Raises:
        TracelensError: a run cannot be read, or `path` is something else than a baseline.
    """

    recordings: Sequence[str] = option(
        "Traces or JSON reports, each of one run.",
        name="paths",
        metavar="RUN...",
        argument=True,
        type=list[str],
    )
    path: str = option("The baseline, created or extended.", OUTPUT, name="output", metavar="FILE")
    commit: str | None = option(
        "Version of the program.", metavar="ID", default=None, shown="$GITHUB_SHA or $CI_COMMIT_SHA"
    )
    keep: int = option("Keep at most this many runs; drops the oldest first.", metavar="NUMBER", default=20)

    def answer(self) -> tuple[bytes, int]:
        """The content of the file, and how many runs it has."""
        return self.extended(gate_side(self.recordings, self.scope, self.reads()).side)

    def extended(self, side: Side) -> tuple[bytes, int]:
        """The same with the runs of a side."""
        from tracelens.compare.gate import add_to_baseline

        of_ci = os.environ.get("GITHUB_SHA") or os.environ.get("CI_COMMIT_SHA") or ""
        commit = of_ci if self.commit is None else self.commit
        return add_to_baseline(self.path, side.runs, commit, self.keep)


class AddRequest(AcceptRequest):
    """A stored baseline with these runs as its newest, if they pass a gate against it."""

    rules: Texts = option(
        "A rule that the runs must hold against the baseline. Repeatable.",
        RULES,
        name="rule",
        metavar="RULE",
        default=(),
        shown="those of files, or the built-in ones",
    )
    config: StrPath | None = option(
        "Read rules from this TOML file.",
        RULES,
        metavar="FILE",
        default=None,
        shown="the nearest tracelens.toml or pyproject.toml",
    )

    def gated(self) -> tuple[Verdict | None, str, Callable[[], tuple[bytes, int]]]:
        """The verdict on the runs, None without a baseline so far; what it counts as; what `answer` gives.

        Raises:
            TracelensError: the runs cannot be read, or not be compared with the baseline.
        """
        from tracelens.compare.gate import Options, baseline_side, gate, read_baseline, settings

        side = gate_side(self.recordings, self.scope, self.reads()).side
        stored = read_baseline(self.path) if os.path.exists(self.path) else None
        verdict, counted = None, "pass"
        if stored is not None:
            file = settings(None if self.config is None else os.fspath(self.config))
            rules = [self.rules] if isinstance(self.rules, str) else self.rules
            options = Options.of(file, rules, None, None)
            try:
                verdict = gate(
                    baseline_side(stored, self.path),
                    side,
                    options.rules,
                    confidence=options.confidence,
                    min_effect=options.min_effect,
                )
            except TracelensError as error:
                raise TracelensError(f"{error}; to start anew from these runs: {ACCEPT}") from None
            counted = verdict.verdict
            if counted == "inconclusive":
                counted = file.inconclusive or counted
        return verdict, counted, lambda: self.extended(side)


ACCEPT = "tracelens gate baseline accept"


def gate_side(
    recordings: Recording | Sequence[Recording],
    scope: Scope,
    reads: Graphs,
    traces: TraceFiles | None = None,
    side_traces: SideTraces | None = None,
    begun: dict[str, Reporting] | None = None,
    *,
    keep: bool = False,
) -> GateSide:
    """One side of a gate, from runs, traces, saved reports or a stored baseline of one program.

    Args:
        recordings: of the side.
        scope: which GPU work counts.
        reads: how traces are read.
        traces: paths that are expanded already.
        side_traces: what both sides read.
        begun: of paths that are being read already.
        keep: whether the runs behind traces can be had from the side: of several ranks or runs from where
            they are parked, since only a diff of two of them looks at them again.

    Raises:
        TracelensError: there is none, or it cannot be read.
    """
    from tracelens.compare.gate import GatedRun, read_side
    from tracelens.table import Report
    from tracelens.trace import Run

    def measured(source: Run | str) -> GatedRun:
        if isinstance(source, Run):
            report = report_run(source, GATED, scope=scope, progress=reads.progress)
            return GatedRun(with_results(report), lambda: source)
        reporting = (begun or {}).pop(source, None) or Reporting(
            (traces or TraceFiles()).of(source), reads, keep=keep, side_traces=side_traces
        )
        with reporting:
            report = with_results(reporting.report(GATED, scope=scope))
        if len(items) > 1:
            reporting.park()
        return GatedRun(report, reporting.run if keep else None)

    single = isinstance(recordings, str | os.PathLike | Run | Report)
    items: Sequence[Recording] = [recordings] if single else recordings  # type: ignore[assignment, list-item]
    return read_side([with_results(item) if isinstance(item, Report) else item for item in items], measured)


diff = function_of("diff", DiffRequest)
gate = function_of("gate", GateRequest)
