"""The summary of a report on a run: its verdict in one or two sentences, and tiles of headline numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tracelens.arrays import distinct, steady_steps, typical_step, whole_steps
from tracelens.guard import Failure
from tracelens.rendering.summary.wording import (
    about,
    guarded,
    hardware,
    percent,
    short_reason,
)
from tracelens.rendering.thresholds import (
    ALONE_SHARE,
    BANDWIDTH_SHARE,
    CAUSE_SHARE,
    COVERED_SHARE,
    ONCE_SHARE,
    PART_SHARE,
    REPLAYED_STEP_SHARE,
    SAVING_SHARE,
)
from tracelens.table import Result, Summary, Table, Tile
from tracelens.units import amount, duration, plural, three_digits

# Words of the tables.
_UNMARKED = "(whole trace)"  # the only step of a recording that marks none
_CPU_ONLY = ["cpu (host ops)"]  # the devices of a run without a GPU

_NO_TOKENS = "not recorded: pass tokens= to the recorder's step()"
_NO_MEMORY = "no memory events: record with profile_memory=True"
_ONE_RANK = "needs the traces of all ranks"
_UNMATCHED = "collectives are not matched across ranks"


def run_summary(
    results: Sequence[Result], meta: Mapping[str, Any], host_causes: Collection[str]
) -> Summary | None:
    """Verdict and tiles of a run; None without the analyzer "steps", or where no rank did anything.

    Figures of missing results are left out. `host_causes` are the causes of idle time in which the GPU waits
    for the host.
    """
    steps = next((result.data.get("steps") for result in results if result.analyzer == "steps"), None)
    if steps is None or not len(steps):
        return None
    figures = RunFigures(results, meta, host_causes)
    return guarded(lambda: Summary(run_verdict(figures), tuple(run_tiles(figures))))


class RankSpread(Struct, frozen=True):
    """A figure of the ranks of a run."""

    mean: float  # of the ranks
    low: float  # of single ranks
    high: float
    ranks: int  # how many have it

    @classmethod
    def of(cls, by_rank: Mapping[int, float]) -> RankSpread | None:
        """Over the ranks that have the figure; None where none has."""
        values = list(by_rank.values())
        return cls(sum(values) / len(values), min(values), max(values), len(values)) if values else None


class StepTimes(Struct, frozen=True):
    """What the recorded steps take."""

    typical: str  # the step that findings and projections replay and the picture begins with
    step_ns: float  # what it takes, mean of the ranks
    low_ns: float  # the shortest step, likewise
    high_ns: float  # the longest
    deviation_ns: float  # standard deviation of the steps; 0 for less than three
    steps: int  # how many all ranks recorded whole
    choice: str  # how the typical step was chosen among them; "" where there was no choice
    marked: bool  # whether the recording marks steps; if not, all of it is one


class StepKind(Struct, frozen=True):
    """Steps of one kind that the ranks of a serving engine ran."""

    mean_ns: float  # of all of them
    by_rank: RankSpread  # means of single ranks
    steps: int  # how many, of all ranks


class UnprofiledPace(Struct, frozen=True):
    """What is known of a run without the profiler."""

    step_ns: float  # 0 where unknown
    range_ns: Sequence[float]  # lowest and highest part of it, empty where they agree
    tokens_per_s: float  # 0 where unknown
    with_profiler: bool  # whether tokens_per_s is of recorded steps
    tokens: int  # of a step, 0 where unknown


class RunFigures:
    """Reads what a summary says from the results and the meta of a report; what they do not have is None."""

    def __init__(
        self, results: Sequence[Result], meta: Mapping[str, Any], host_causes: Collection[str]
    ) -> None:
        self._results = {result.analyzer: result for result in results}
        self._host_causes = host_causes
        steps = self.table("steps", "steps")
        assert steps is not None, "no summary without steps"
        self._steps = steps
        self.report_meta = meta
        self.ranks = sorted(set(steps.array("rank").tolist()))
        self.cpu_only = list(meta.get("devices", ())) == _CPU_ONLY

    def table(self, analyzer: str, name: str) -> Table | None:
        """A table with rows; None where the report has none."""
        result = self._results.get(analyzer)
        table = result.data.get(name) if result else None
        return table if table is not None and len(table) else None

    def section(self, analyzer: str) -> str:
        return analyzer if analyzer in self._results else ""

    def meta(self, analyzer: str) -> Mapping[str, Any]:
        """What a result says of itself as a whole."""
        return self._results[analyzer].meta if analyzer in self._results else {}

    def reason(self, analyzer: str, subject: str) -> str:
        """Why a result lacks something: the reason of its first skip about it, '' where it says nothing."""
        result = self._results.get(analyzer)
        reasons = (
            str(skip.reason)
            for skip in (result.skips if result else ())
            if subject in skip.subject or isinstance(skip.reason, Failure)
        )
        return next(reasons, "")

    @cached_property
    def times(self) -> StepTimes:
        by_step: dict[str, list[int]] = {}
        durations = self._steps.array("dur_ns").tolist()
        for label, ns in zip(self._steps.texts("step"), durations, strict=True):
            by_step.setdefault(label, []).append(ns)
        most = max(map(len, by_step.values()))
        whole = {label: sum(each) / most for label, each in by_step.items() if len(each) == most}
        means = [*whole.values()]
        typical = typical_step(means, most)
        return StepTimes(
            typical=[*whole][typical],
            step_ns=means[typical],
            low_ns=min(means),
            high_ns=max(means),
            deviation_ns=float(np.std(means, ddof=1)) if len(means) > 2 else 0.0,
            steps=len(means),
            choice=_choice(means, most) if len(means) > 1 else "",
            marked=_UNMARKED not in by_step,
        )

    @cached_property
    def pace(self) -> UnprofiledPace:
        """The pace without the profiler, from what the report says of its steps, tokens and options."""
        meta = self.report_meta
        option_ms = meta.get("options", {}).get("unprofiled_step_ms")
        step_ns = option_ms * 1e6 if option_ms else float(meta.get("step_without_profiler_ns", 0))
        range_ns = () if option_ms else meta.get("step_without_profiler_range_ns", ())
        tokens = int(meta.get("setup", {}).get("tokens", 0)) if self.times.marked else 0
        if rate := 0.0 if option_ms else float(meta.get("tokens_per_s", 0)):
            return UnprofiledPace(step_ns, range_ns, rate, False, tokens)
        paced_ns = step_ns or self.times.step_ns
        rate = tokens / paced_ns * 1e9 if paced_ns else 0.0
        return UnprofiledPace(step_ns, range_ns, rate, not step_ns, tokens)

    @cached_property
    def is_of_one_step(self) -> bool:
        """Whether shares are of the typical step; else of all, since steps of an engine differ in kind."""
        return self.times.marked and not self.serving_steps()

    @cached_property
    def _measured_rows(self) -> NDArray[np.intp]:
        """Rows of the steps that shares are of."""
        is_measured = self._steps.coded("step").equals(self.times.typical) | (not self.is_of_one_step)
        return np.flatnonzero(is_measured)

    def share(self, column: str) -> RankSpread:
        """A column of the steps as a share of their duration."""
        rows = self._measured_rows
        part, whole = (by_rank(self._steps, self._steps.array(name), rows) for name in (column, "dur_ns"))
        spread = RankSpread.of({rank: part[rank] / max(whole[rank], 1) for rank in whole})
        assert spread is not None
        return spread

    def total_ns(self, column: str) -> float:
        """A column of the steps, summed over ranks."""
        return float(self._steps.array(column).sum())

    def utilisation(self, name: str) -> RankSpread | None:
        """Utilization of the peak FLOPs (`mfu`) or of the memory's bandwidth (`mbu`), where it is known."""
        table = None if self.cpu_only else self.table("roofline", "utilisation")
        if table is None:
            return None
        measured, names = self._measured_rows, self._steps.texts("step")
        step = {
            (rank, names[row])
            for row, rank in zip(measured, self._steps.array("rank")[measured], strict=True)
        }
        keys = zip(table.array("rank").tolist(), table.texts("step"), strict=True)
        # Without FLOPs nothing was multiplied that a cost model knows.
        known = (table.array(name) >= 0) & ((table.array("flops") > 0) | (name == "mbu"))
        is_measured = np.array([key in step for key in keys], dtype=bool)
        if name == "mbu" and not known[is_measured].all():
            return None  # that of some steps would stand for others of another kind
        rows = np.flatnonzero(is_measured & known)
        dur = table.array("dur_ns").astype(np.float64)
        used, whole = by_rank(table, table.array(name) * dur, rows), by_rank(table, dur, rows)
        return RankSpread.of({rank: used[rank] / max(whole[rank], 1) for rank in whole})

    def idle_causes(self) -> dict[str, float]:
        """Causes of idle time of all ranks as shares of it, largest first."""
        table = self.table("idle", "causes")
        if table is None:
            return {}
        total: dict[str, float] = {}
        for cause, ns in zip(table.texts("cause"), table.array("dur_ns").tolist(), strict=True):
            total[cause] = total.get(cause, 0.0) + ns
        whole = max(sum(total.values()), 1.0)
        return {cause: total[cause] / whole for cause in sorted(total, key=lambda cause: -total[cause])}

    def once(self) -> dict[str, tuple[float, int]]:
        """Idle time that happened once, by cause: mean of the ranks that have it, and how many these are."""
        table = self.table("idle", "causes")
        if table is None:
            return {}
        found: dict[str, tuple[float, int]] = {}
        for cause, ns in zip(table.texts("cause"), table.array("once_ns").tolist(), strict=True):
            if ns > 0:
                total, ranks = found.get(cause, (0.0, 0))
                found[cause] = total + ns, ranks + 1
        most = sorted(found.items(), key=lambda item: -item[1][0])
        return {cause: (total / ranks, ranks) for cause, (total, ranks) in most}

    def host_share(self) -> float:
        """Share of the idle time in which the GPU waits for the host, without the profiler's own work."""
        causes = set(self._host_causes) - {"profiler"}
        return sum(share for cause, share in self.idle_causes().items() if cause in causes)

    def waiting(self) -> RankSpread | None:
        """Time in which a rank only waits for others in communication, as a share of its time."""
        whole, waiting, _ = self._states
        return RankSpread.of({rank: waiting.get(rank, 0) / max(whole[rank], 1) for rank in whole})

    def waiting_in_exposed(self) -> float:
        """Share of the exposed communication that is waiting for other ranks; 0 where unknown."""
        _, waiting, moving = self._states
        waiting_ns, moving_ns = sum(waiting.values()), sum(moving.values())
        return waiting_ns / max(waiting_ns + moving_ns, 1)

    @cached_property
    def _states(self) -> tuple[Mapping[int, float], Mapping[int, float], Mapping[int, float]]:
        """Whole, waiting and moving time by rank; none where collectives were not matched across ranks."""
        ranks, states = self.table("collectives", "ranks"), self.table("step_timeline", "states")
        steps = self.table("step_timeline", "steps")
        if states is None or steps is None or ranks is None:
            return {}, {}, {}
        if (ranks.array("unmatched_ns") >= ranks.array("comm_ns")).all():
            return {}, {}, {}
        state, dur, start = states.coded("state"), states.array("dur_ns"), states.array("ts_ns")
        for row in (
            np.flatnonzero(steps.coded("step").equals(self.times.typical)) if self.is_of_one_step else ()
        ):
            begin, length = int(steps.array("ts_ns")[row]), int(steps.array("dur_ns")[row])
            dur = np.maximum(np.minimum(start + dur, begin + length) - np.maximum(start, begin), 0)
        waiting, moving = (np.flatnonzero(state.equals(name)) for name in ("waiting", "communication"))
        return by_rank(states, dur), by_rank(states, dur, waiting), by_rank(states, dur, moving)

    def peak_bytes(self) -> RankSpread | None:
        """Most GPU memory allocated in a step."""
        table = self.table("steps", "metrics")
        if table is None:
            return None
        rows = np.flatnonzero(table.coded("metric").equals("memory.peak"))
        return RankSpread.of(by_rank(table, table.array("value"), rows, np.maximum))

    def serving_steps(self) -> dict[str, StepKind]:
        table = self.table("serving", "ranks")
        if table is None:
            return {}
        kinds: dict[str, StepKind] = {}
        for kind in dict.fromkeys(table.texts("kind")):
            rows = np.flatnonzero(table.coded("kind").equals(kind))
            dur, count = (by_rank(table, table.array(name), rows) for name in ("dur_ns", "count"))
            spread = RankSpread.of({rank: dur[rank] / max(count[rank], 1) for rank in dur})
            assert spread is not None
            mean = sum(dur.values()) / max(sum(count.values()), 1)
            kinds[kind] = StepKind(mean, spread, int(sum(count.values())))
        return kinds

    def served_tokens_per_s(self) -> float | None:
        """Tokens of prompts and answers per second of the ranks' steps; None unless all steps tell theirs."""
        table = self.table("serving", "ranks")
        if table is None or (table.array("tokens") < 0).any():
            return None
        tokens, dur = by_rank(table, table.array("tokens")), by_rank(table, table.array("dur_ns"))
        return sum(tokens[rank] / max(dur[rank], 1) * 1e9 for rank in tokens)

    def devices(self) -> list[str]:
        """The names of its devices."""
        return list(self.report_meta.get("devices", ()))

    def doubts(self) -> list[str]:
        """The doubts about the recording, those of most time first."""
        share: dict[str, float] = {}
        for doubts in self.report_meta["trust"]["doubts"].values():
            for doubt in doubts:
                name, of_rank = doubt["doubt"], doubt["fraction_of_recorded_time"]
                share[name] = max(share.get(name, 0.0), of_rank)
        return sorted(share, key=lambda name: -share[name])


def by_rank(
    table: Table, values: NDArray[Any], rows: NDArray[np.intp] | None = None, merge: np.ufunc = np.add
) -> dict[int, float]:
    """Rank to what the values of its rows come to."""
    rank, numbers = table.array("rank"), np.asarray(values, dtype=np.float64)
    if rows is not None:
        rank, numbers = rank[rows], numbers[rows]
    ranks, of_row = distinct(rank, int(rank.max(initial=0)) + 1)
    result = np.full(len(ranks), -np.inf if merge.identity is None else merge.identity, dtype=np.float64)
    merge.at(result, of_row, numbers)
    return dict(zip(ranks.tolist(), result.tolist(), strict=True))


def run_verdict(figures: RunFigures) -> str:
    """One or two sentences: what the run takes, where most of that goes, what the first finding would change.

    What speaks against all of it comes first.
    """
    doubt, trust = "", figures.report_meta.get("trust")
    if trust is not None and trust["complete"] is False:
        ranks = sorted(int(rank) for rank in trust["doubts"])
        is_on_one = len(ranks) == 1 and ranks[0] >= 0 and len(figures.report_meta.get("ranks", ())) > 1
        where = f" on rank {ranks[0]}" if is_on_one else ""
        doubt = f"Doubtful recording ({', '.join(figures.doubts()[:2])}{where}): the figures may be wrong. "
    clauses = (_measured(figures), _largest_part(figures), _saving(figures), _unexplained(figures))
    return f"{doubt}{'; '.join(filter(None, clauses))}.{_once(figures)}"


def _once(figures: RunFigures) -> str:
    """What happened once in the recording, where that is a good part of a step: no steady state has it."""
    parts = []
    for cause, (ns, ranks) in figures.once().items():
        if ns > ONCE_SHARE * figures.times.step_ns:
            where = " on one rank" if ranks == 1 else f" on each of {ranks} ranks"
            parts.append(f"{duration(ns)} of {cause}{where if len(figures.ranks) > 1 else ''}")
    meanwhile = "while no work ran" if figures.cpu_only else "with an idle GPU"
    return f" Once in this recording: {', '.join(parts[:2])} {meanwhile}." if parts else ""


def _measured(figures: RunFigures) -> str:
    """The step, the tokens and the utilization, with and without the profiler as far as known."""
    meta, times, pace = figures.report_meta, figures.times, figures.pace
    mfu = figures.utilisation("mfu")
    utilisation = f"MFU {percent(mfu.mean)}" if mfu else ""
    tokens = f"{three_digits(pace.tokens_per_s)} tokens/s" if pace.tokens_per_s else ""

    read_ranks = len(figures.ranks)
    ranks_of_job = max(int(meta.get("setup", {}).get("ranks", 0)), read_ranks)
    if figures.cpu_only:
        where = "one CPU" if ranks_of_job == 1 else f"{ranks_of_job} CPU ranks"
    else:
        where = hardware(figures.devices(), ranks_of_job)
    if read_ranks != ranks_of_job:
        where += f" ({plural(read_ranks, 'rank')} read)"

    # Steps without requests serve nobody.
    kinds = {kind: steps for kind, steps in figures.serving_steps().items() if kind != "idle"}
    if kinds:
        (kind, first), *rest = sorted(kinds.items(), key=lambda item: -item[1].mean_ns * item[1].steps)
        summary = figures.table("serving", "summary")
        engine = summary.texts("engine")[0] if summary is not None else ""
        lead = f"{engine} on {where}" if engine else f"Serving on {where}"
        others = [f"{other} steps {duration(steps.mean_ns)}" for other, steps in rest[:1]]
        served = figures.served_tokens_per_s()
        return _listed(
            f"{lead}: {kind} steps take {duration(first.mean_ns)}",
            *others,
            f"{three_digits(served)} tokens/s" if served else "",
            utilisation,
        )
    if not times.marked:
        return _listed(f"{duration(times.step_ns)} recorded on {where}, no steps marked", utilisation)
    if pace.step_ns and abs(pace.step_ns / times.step_ns - 1) > REPLAYED_STEP_SHARE:
        parts = " ({} to {})".format(*map(duration, pace.range_ns)) if pace.range_ns else ""
        lead = _listed(f"{duration(pace.step_ns)}{parts} a step without the profiler on {where}", tokens)
        return f"{lead}; in the recording {_listed(duration(times.step_ns), utilisation)}"
    recorded = "" if pace.step_ns else "recorded "
    return _listed(f"{duration(times.step_ns)} a {recorded}step on {where}", tokens, utilisation)


def _listed(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _largest_part(figures: RunFigures) -> str:
    """The largest of computation, idle time and exposed communication; beside computation the next, too."""
    computation, idle, exposed = (
        figures.share(f"{name}_ns").mean for name in ("computation", "idle", "exposed_comm")
    )
    host = figures.host_share()
    mostly_host = host > CAUSE_SHARE and not figures.cpu_only
    mostly_waiting = figures.waiting_in_exposed() > CAUSE_SHARE and len(figures.ranks) > 1
    waiting = ", mostly waiting for other ranks" if mostly_waiting else ""
    # Size, share of the time (that of its cause where that is known), and where it goes.
    parts = [
        (computation, computation, "goes to", "computation"),
        (idle, idle * host, "goes to", "waiting for the host") if mostly_host else (idle, idle, "is", "idle"),
        (exposed, exposed, "goes to", f"exposed communication{waiting}"),
    ]
    (_, share, verb, what), (_, next_share, next_verb, next_what), _ = sorted(
        parts, key=lambda part: -part[0]
    )
    text = f"{percent(share)} of the time {verb} {what}"
    if what != "computation" or next_share < PART_SHARE:
        return text
    next_verb = next_verb.removeprefix("goes " if next_verb == verb else "")
    return f"{text}, {percent(next_share)} {next_verb} {next_what}"


_VERBS = {"high": "would", "medium": "would probably", "low": "might"}
"""Confidence in a saving to how it is told."""


def _saving(figures: RunFigures) -> str:
    """What the first finding would change."""
    table = figures.table("findings", "findings")
    base_ns = figures.meta("findings").get("base_ns", 0)
    if table is None or not base_ns:
        return ""
    first = [0]
    (title,), (fix,), (confidence,) = (table.texts(name, first) for name in ("finding", "fix", "confidence"))
    remedy = fix or f"fixing finding 1 ({title.partition(':')[0]})"
    saving_ns, alone_ns = (float(table.array(name)[0]) for name in ("additional_ns", "saving_ns"))
    verb = _VERBS[confidence]
    # A symptom has the saving of the causes below it taken away, which who mends it first gets, too.
    is_more = alone_ns - saving_ns > ALONE_SHARE * base_ns
    step_ns = figures.pace.step_ns or figures.times.step_ns
    is_step = figures.times.marked and step_ns and abs(base_ns / step_ns - 1) <= REPLAYED_STEP_SHARE
    if is_step and confidence != "low" and saving_ns > SAVING_SHARE * base_ns:
        alone = f" (alone to {about(base_ns - alone_ns)})" if is_more else ""
        return f"{remedy} {verb} bring it to about {about(base_ns - saving_ns)}{alone}"
    alone = f" (alone {percent(alone_ns / base_ns)})" if is_more else ""
    return f"{remedy} {verb} save about {percent(saving_ns / base_ns)}{alone}"


def _unexplained(figures: RunFigures) -> str:
    """Where most of the time goes if findings say little of it, and what would tell more."""
    table = figures.table("findings", "findings")
    found = float(table.array("fraction_of_step").sum()) if table is not None else 0.0
    if not figures.section("findings"):
        return ""
    computation, idle, exposed = (
        figures.share(f"{name}_ns").mean for name in ("computation", "idle", "exposed_comm")
    )
    # All findings together leave most of it.
    unexplained = found < CAUSE_SHARE * max(idle, exposed)
    if unexplained and (
        max(idle, exposed) > max(computation, PART_SHARE) or (figures.cpu_only and idle > PART_SHARE)
    ):
        most = "most of " if found else ""
        if exposed > idle:
            is_part = int(figures.report_meta.get("setup", {}).get("ranks", 0)) > len(figures.ranks)
            tells = (
                "record all ranks to see who waits for whom" if is_part else "`overlap` shows its collectives"
            )
            return f"no finding explains {most}the exposed communication: {tells}"
        cause = next(iter(figures.idle_causes()), "")
        return (
            f"no finding explains {most}the idle time{cause and f' (mostly {cause})'}: `idle` shows its gaps"
        )
    return "" if figures.cpu_only or found > PART_SHARE else _efficiency(figures)


def _efficiency(figures: RunFigures) -> str:
    """The ops with the most time beyond the roofline, and how near it they are; or why that is not known."""
    table = figures.table("roofline", "roofline")
    coverage = float(figures.meta("roofline").get("coverage", 0.0))
    if not figures.section("roofline"):
        return ""
    if table is None or coverage < COVERED_SHARE:
        reason = short_reason(figures.reason("roofline", "efficiency"))
        why = reason or f"cost models count {percent(coverage)} of the GPU time (record_shapes=True)"
        return f"how good its kernels are is not known: {why}"
    bound = table.coded("bound")
    at_gpu = bound.equals("compute") | bound.equals("memory")
    rows = np.flatnonzero(at_gpu & (table.array("recoverable_ns") > 0))
    if not len(rows):
        return ""
    name = table.coded("name")
    beyond = np.bincount(name.codes[rows], weights=table.array("recoverable_ns")[rows])
    most = int(beyond.argmax())
    own = np.flatnonzero(at_gpu & (name.codes == most))
    dur_ns, least_ns = (float(table.array(column)[own].sum()) for column in ("dur_ns", "roofline_ns"))
    counted = figures.table("roofline", "coverage")
    whole = float(counted.array("dur_ns").sum()) if counted is not None else 0.0
    return (
        f"the most time beyond the roofline is in {name.values[most]}: {percent(dur_ns / max(whole, 1))} of "
        f"the GPU time at {percent(least_ns / max(dur_ns, 1))} of what the hardware allows"
    )


def _choice(durations: Sequence[float], ranks: int) -> str:
    """How the typical step was chosen; see `typical_step`."""
    steady, whole = steady_steps(len(durations), ranks), whole_steps(durations, ranks)
    after = " after the first" if steady.start else ""
    cut = f", without {plural(len(steady) - len(whole), 'stub')}" if len(whole) < len(steady) else ""
    if len(whole) == 1:
        return f"the step{after}{cut}"
    if len(whole) > 2:
        return f"median of {plural(len(whole), 'step')}{after}{cut}"
    both = " and ".join(amount(ns, "ns") for ns in sorted(durations[step] for step in whole))
    return f"the shorter of 2 steps{after}{cut}: {both}"


def run_tiles(figures: RunFigures) -> Iterator[Tile]:
    """The headline numbers of a run in the order shown, or why one of them is not known."""
    times, pace, section = figures.times, figures.pace, figures.section
    whole = "of the recorded time"
    if times.marked:
        whole = "of the step" if figures.is_of_one_step else "of all steps"

    notes = ["no steps marked"] if not times.marked else ["single step"] if times.steps == 1 else []
    if times.choice:
        notes.append(times.choice)
    if times.deviation_ns:
        notes.append(f"± {amount(times.deviation_ns, 'ns')}")
    if pace.step_ns:
        notes.append(f"without the profiler {amount(pace.step_ns, 'ns')}")
    yield Tile(
        name="step_time",
        label="Step time" if times.marked else "Recorded time",
        value=times.step_ns,
        unit="ns",
        low=times.low_ns if times.steps > 1 else None,
        high=times.high_ns if times.steps > 1 else None,
        note=", ".join(notes),
        section=section("steps"),
    )

    for kind, ran in figures.serving_steps().items():
        low, high = _range(ran.by_rank)
        note = f"mean of {plural(ran.steps, 'step')} of all ranks"
        name, label = f"{kind}_step", f"{kind.capitalize()} step"
        yield Tile(name, label, ran.mean_ns, "ns", low=low, high=high, note=note, section="serving")

    served = figures.served_tokens_per_s()
    rate = pace.tokens_per_s or served
    note = _NO_TOKENS
    if pace.tokens_per_s:
        note = "with the profiler" if pace.with_profiler else "without the profiler"
        note = f"{pace.tokens:,} a step, {note}" if pace.tokens else note
    elif served:
        note = "of prompts and answers, during steps"
    if rate or (times.marked and not figures.serving_steps()):
        told_in = section("serving" if served and not pace.tokens_per_s else "steps")
        value = round(rate) if rate else None
        yield Tile("tokens_per_s", "Tokens/s", value, "", note=note, section=told_in)

    if section("roofline") and not figures.cpu_only:
        mfu = figures.utilisation("mfu")
        reason = figures.reason("roofline", "MFU") or figures.reason("roofline", "efficiency")
        reason = short_reason(reason or "no GEMM or attention with a cost model")
        yield _share_tile("mfu", "MFU", mfu, "model FLOPs / peak" if mfu else reason, "roofline")
        # As in decoding, which reads all weights for a few tokens: memory is nearer its limit.
        mbu = figures.utilisation("mbu")
        if mbu and mbu.mean > max(mfu.mean if mfu else 0, BANDWIDTH_SHARE):
            yield _share_tile("mbu", "MBU", mbu, "bytes that ops need / memory bandwidth", "roofline")

    communicates, ranks = bool(figures.total_ns("comm_ns")), len(figures.ranks)
    if communicates:
        exposed = figures.share("exposed_comm_ns")
        yield _share_tile(
            "exposed_communication", "Exposed communication", exposed, whole, section("overlap")
        )
    if section("collectives") and (communicates or ranks > 1):
        waiting = figures.waiting()
        note = _ONE_RANK if ranks == 1 else _UNMATCHED
        if waiting:
            note = f"{whole}; {percent(figures.waiting_in_exposed())} of exposed communication"
        known = waiting if ranks > 1 else None
        yield _share_tile("waiting_for_ranks", "Waiting for ranks", known, note, "collectives")

    cause, share = next(iter(figures.idle_causes().items()), ("", 0.0))
    note = f"{whole}; mostly {cause}" if share > CAUSE_SHARE else whole
    yield _share_tile("idle", "Idle", figures.share("idle_ns"), note, section("idle"))

    if not figures.cpu_only:
        peak = figures.peak_bytes()
        low, high = _range(peak)
        note = _NO_MEMORY
        if peak:
            note = "allocated by torch" + (f", highest of {peak.ranks} ranks" if peak.ranks > 1 else "")
        yield Tile(
            name="peak_memory",
            label="Peak memory",
            value=peak.high if peak else None,
            unit="bytes",
            low=low,
            high=high,
            note=note,
            section=section("steps"),
        )

    trust = figures.report_meta.get("trust")
    if trust is not None:
        text = {True: "complete", False: "doubtful", None: "not checked"}[trust["complete"]]
        note = ", ".join(figures.doubts()) or ("no doubts" if trust["complete"] else "")
        yield Tile("trust", "Recording", None, "", note=note, section=section("completeness"), text=text)


def _share_tile(name: str, label: str, spread: RankSpread | None, note: str, section: str) -> Tile:
    low, high = _range(spread)
    value = spread.mean if spread else None
    return Tile(name, label, value, "fraction", low=low, high=high, note=note, section=section)


def _range(spread: RankSpread | None) -> tuple[float | None, float | None]:
    """The least and the most of several ranks."""
    return (spread.low, spread.high) if spread and spread.ranks > 1 else (None, None)
