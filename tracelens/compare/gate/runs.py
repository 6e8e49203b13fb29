"""Sides of a gate: the metrics of each step of a run, runs compared as one, and stored baselines.

`Samples` are of one run, from its traces or a saved report; a `Side` is one or several runs of a program, and
what older ones tell of its noise. A stored baseline has the metrics of the last runs of a program, in one
JSON file without any trace:

    schema   "tracelens.baseline/1"
    runs     oldest first, each: commit, added (UTC, ISO 8601), name, version (of tracelens), scope,
             setup, trust, lacking, ranks, steps, parts, and metrics: name to unit and values (a row a rank)

The runs of the newest commit are the base; older ones tell how much runs differ. Runs of another setup
than the newest one's tell nothing about it and are left out.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from msgspec import Struct
from msgspec.structs import replace

from tracelens.analysis.common import Setup
from tracelens.arrays import Float, median
from tracelens.compare.noise import PooledVariance
from tracelens.compare.thresholds import HISTORY_FREEDOM, HISTORY_VERSIONS, PACE
from tracelens.errors import TracelensError
from tracelens.saved import saved_kind
from tracelens.table import Report, Result
from tracelens.trace import Run
from tracelens.version import __version__


class Side(Struct, frozen=True):
    """Recordings that are compared as one."""

    runs: tuple[Samples, ...]
    # Runs of older versions of the program, oldest first, each group of one version; only their noise counts.
    history: tuple[tuple[Samples, ...], ...] = ()
    name: str = ""  # of all of it, by default of its first run

    @staticmethod
    def of(side: Side | Samples | Sequence[Samples]) -> Side:
        if isinstance(side, Side):
            return side
        return Side((side,) if isinstance(side, Samples) else tuple(side))

    @property
    def label(self) -> str:
        """Its name for people."""
        more = len(self.runs) - 1
        return self.name or self.runs[0].name + (f" and {more} more" if more else "")

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that all runs have."""
        common = set.intersection(*(set(run.ranks) for run in self.runs))
        return tuple(rank for rank in self.runs[0].ranks if rank in common)

    @property
    def doubts(self) -> tuple[tuple[Samples, RecordingDoubt], ...]:
        return tuple((run, doubt) for run in self.runs for doubt in run.doubts)

    def only(self, ranks: Sequence[int]) -> Side:
        """The side with these ranks; runs of the history that lack one of them are left out."""
        history = [
            tuple(run.only(ranks) for run in group if set(ranks) <= set(run.ranks)) for group in self.history
        ]
        return replace(
            self, runs=tuple(run.only(ranks) for run in self.runs), history=tuple(filter(None, history))
        )

    @property
    def parts(self) -> set[str]:
        """The parts of the loop that all runs with a pace have timed."""
        timed = [set(run.parts) for run in self.runs if run.parts]
        return set.intersection(*timed) if timed else set()

    def with_parts(self, parts: Collection[str]) -> Side:
        """The side with these parts only: steps after the recording are slower if the profiler left hooks."""
        return replace(
            self,
            runs=tuple(run.with_parts(parts) for run in self.runs),
            history=tuple(tuple(run.with_parts(parts) for run in group) for group in self.history),
        )

    def find(self, metric: str) -> str | None:
        """The full name of a metric if the side has it: all runs, or of an op or kernel one of them."""
        names = [run.find(metric) for run in self.runs]
        known = next((name for name in names if name is not None), None)
        return known if known is not None and (all(names) or is_named(known)) else None

    def each_step(self, metric: str) -> list[Float]:
        """One value per step of each run; runs without one are left out."""
        return [steps for run in self.runs if len(steps := run.each_step(metric))]

    def why_not(self, metric: str) -> str:
        """Why a metric could not be computed, "" if unknown."""
        return next(filter(None, (run.why_not(metric) for run in self.runs)), "")

    def noise_of_history(self, metric: str, relative: bool) -> PooledVariance:
        """Spread of the means of runs in the history, each divided by its group's mean if relative.

        Within a version runs differ by noise alone. From version to version the program may change, too:
        of those differences the median counts, which a few changes do not move (0.6745 σ of a normal
        distribution, whose estimate from n differences is worth about 0.37 n degrees of freedom).
        """
        groups = [
            [run.each_step(metric).mean() for run in group if run.find(metric)] for group in self.history
        ]
        means = [np.array(group) for group in groups if group]
        if relative:
            means = [group / group.mean() if group.mean() else group for group in means]
        spread = PooledVariance.of(means)
        levels = np.array([np.mean(group) for group in groups if group])
        if len(levels) < HISTORY_VERSIONS or spread.freedom >= HISTORY_FREEDOM:
            return spread
        steps = np.diff(np.log(levels)) if relative and (levels > 0).all() else np.diff(levels)
        sigma = median(np.abs(steps)) / 0.6745 / np.sqrt(2)
        return spread.pooled(PooledVariance(sigma**2, 0.37 * len(steps)))


ANALYZER, TABLE = "steps", "metrics"
JUDGED = (ANALYZER, "completeness")
"""Analyzers whose failure leaves no verdict: of what is compared, and of whether it can be trusted."""
_COLUMNS: Mapping[str, type | tuple[type, ...]] = {
    "rank": int,
    "step": str,
    "metric": str,
    "value": (int, float),
    "unit": str,
}
_NAMED = ("op[", "category[", "kernel[")
"""Metrics that count as 0 in a run that lacks them."""
_OF_RANK = re.compile(r"rank\[(\d{1,9})\]\.")
_LARGEST = 2.0**63
"""Upper bound of counts, times and sizes; a larger value means a damaged file."""
UNKNOWN_SETUP = Setup()


class RecordingDoubt(NamedTuple):
    """A doubt about the recording of a rank (-1 for the job), as the analyzer `completeness` has it."""

    rank: int
    name: str
    evidence: str


class Samples(Struct, frozen=True):
    """The metrics of one run."""

    name: str  # as the user named it
    ranks: tuple[int, ...]  # in order
    steps: tuple[str, ...]  # labels of the steps that all ranks have
    # metric to one row per rank and one column per step, PACE per timed part; NaN if a rank lacks the metric
    values: Mapping[str, Float]
    units: Mapping[str, str]  # metric to ns, count, bytes or fraction
    version: str = ""  # of the tracelens that computed them
    scope: str = "all"  # which GPU work counts
    lacking: tuple[tuple[str, str], ...] = ()  # (subject, reason) of metrics that could not be computed
    doubts: tuple[RecordingDoubt, ...] = ()  # about the recording; none also where it was not checked
    setup: Setup = UNKNOWN_SETUP  # what was run, and on what
    parts: tuple[str, ...] = ()  # of the loop, that PACE has columns for

    def find(self, metric: str) -> str | None:
        """The metric of this name, or of this name with `.time`; None if the run has neither.

        rank[3].NAME is NAME of one rank; a `*` in the name of an op, class or kernel stands for any text.
        """
        rank, plain = of_rank(metric)
        names = [name for name in (plain, f"{plain}.time") if name in self.values or self._matching(name)]
        if not names or (rank is not None and rank not in self.ranks):
            return None
        return names[0] if rank is None else f"rank[{rank}].{names[0]}"

    def unit(self, metric: str) -> str:
        _, plain = of_rank(metric)
        return self.units[plain if plain in self.units else self._matching(plain)[0]]

    def each_step(self, metric: str) -> Float:
        """One value per step: the mean over the ranks that have the metric.

        The ranks of one step wait for each other, so together they are one sample.

        Args:
            metric: a name from `find`; an op, class or kernel that the run lacks is 0 in every step, several
                that a pattern matches add up.
        """
        rank, plain = of_rank(metric)
        names = [plain] if plain in self.values else self._matching(plain)
        if not names:
            return np.zeros(len(self.steps))
        rows = np.asarray(sum(self.values[name] for name in names))
        if rank is not None:
            rows = rows[[self.ranks.index(rank)]]
        rows = rows[
            :, ~np.isnan(rows).all(axis=0)
        ]  # what is measured apart from the steps has its own number
        return np.asarray(rows[~np.isnan(rows).any(axis=1)].mean(axis=0))

    def _matching(self, pattern: str) -> list[str]:
        """The ops, classes or kernels that a pattern with `*` stands for."""
        if not is_named(pattern) or "*" not in pattern:
            return []
        regex = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
        return [name for name in self.values if is_named(name) and regex.fullmatch(name)]

    def only(self, ranks: Sequence[int]) -> Samples:
        """The samples of these ranks, with the metrics that at least one of them has."""
        rows = [self.ranks.index(rank) for rank in ranks]
        kept = {metric: value[rows] for metric, value in self.values.items()}
        kept = {metric: value for metric, value in kept.items() if not np.isnan(value).any(axis=1).all()}
        doubts = tuple(doubt for doubt in self.doubts if doubt.rank in (-1, *ranks))
        return replace(self, ranks=tuple(ranks), values=kept, doubts=doubts)

    def with_parts(self, parts: Collection[str]) -> Samples:
        """The samples with these parts of the loop only; without PACE if none of them is left."""
        kept = [number for number, part in enumerate(self.parts) if part in parts]
        values = {metric: rows for metric, rows in self.values.items() if metric != PACE}
        if PACE in self.values and kept:
            values[PACE] = self.values[PACE][:, kept]
        return replace(self, values=values, parts=tuple(self.parts[number] for number in kept))

    def why_not(self, metric: str) -> str:
        """Why a metric could not be computed, "" if unknown."""
        for subject, reason in self.lacking:
            computed = subject.partition(": ")[2]
            if computed and (metric == computed or metric.startswith(f"{computed}.")):
                return reason
        return ""


SCHEMA = "tracelens.baseline/1"
KEEP = 20
"""Runs that a baseline keeps by default."""
ASPECTS = ("device", "ranks", "model", "layout", "dtype", "tokens", "software")
"""What a setup says of a run, and two of them are compared by."""


class StoredRun(NamedTuple):
    """A run of a baseline."""

    samples: Samples
    commit: str  # "" if unknown
    added: str


def is_named(metric: str) -> bool:
    """Whether it is the metric of an op, a kernel class or a kernel."""
    return of_rank(metric)[1].startswith(_NAMED)


def of_rank(metric: str) -> tuple[int | None, str]:
    """The rank that a metric names, None for all, and the metric without it."""
    parts = _OF_RANK.match(metric)
    return (int(parts[1]), metric[parts.end() :]) if parts else (None, metric)


def nearest(metric: str, sides: Sequence[Samples]) -> str:
    """The known metric whose name is nearest, "" if none is near."""
    from difflib import get_close_matches

    known = sorted({name for side in sides for name in side.values})
    close = get_close_matches(metric, known, n=1) or get_close_matches(f"{metric}.time", known, n=1)
    return close[0] if close else ""


def from_result(
    result: Result, name: str, version: str, trust: object = None, setup: object = None
) -> Samples:
    """The samples in a result of the analyzer `steps`.

    `version` is that of the tracelens that made it; `trust` and `setup` are what the report's meta says of
    its recording and of what was run, if anything.

    Raises:
        TracelensError: the analyzer failed, the run has no GPU work, or its ranks have no step in common.
    """
    if TABLE not in result.data and result.failures:
        raise TracelensError(f"{name}: {result.failures[0]}")
    table = result.data[TABLE]
    columns = {
        key: table.array(key).tolist() if key in ("rank", "value") else table.texts(key) for key in _COLUMNS
    }
    lacking = tuple((skip.subject, skip.reason) for skip in result.skips)
    samples = _samples(name, columns, version, str(result.meta.get("scope", "all")), lacking, _doubts(trust))
    return replace(samples, setup=Setup.read(setup))


def _doubts(trust: object) -> tuple[RecordingDoubt, ...]:
    """The doubts in the `trust` of a report's meta."""
    of_rank = _mapping(_mapping(trust).get("doubts"))
    return tuple(
        RecordingDoubt(int(rank), str(row["doubt"]), str(row.get("evidence", "")))
        for rank, rows in of_rank.items()
        if re.fullmatch(r"-?\d{1,9}", str(rank)) and isinstance(rows, list)
        for row in rows
        if isinstance(row, dict) and "doubt" in row
    )


def read_saved(path: str) -> Samples | None:
    """The samples in a saved report, plain or .gz; None if the file is something else, such as a trace.

    Raises:
        TracelensError: a report that is damaged or lacks the table; the message says how to write one.
    """
    if saved_kind(path) != "report":
        return None
    try:
        with open(path, "rb") as file:
            data = file.read()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        document = orjson.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        raise TracelensError(
            f"{path}: begins like a report but is not JSON ({error}); write it again"
        ) from None
    except (OSError, EOFError, zlib.error):
        return None  # reading it as a trace reports the error
    return from_saved(document, path)


def from_saved(document: Mapping[str, Any], name: str) -> Samples:
    """The samples in what `tracelens report -o x.json` or `tracelens analyze steps --json` wrote.

    Raises:
        TracelensError: the table is missing or damaged.
    """
    is_report = "results" in document
    result = _mapping(_mapping(document.get("results")).get(ANALYZER)) if is_report else document
    meta = _mapping(document.get("meta"))
    version = str(meta.get("version", "") if is_report else document.get("version", ""))
    hint = "write it again: tracelens report TRACES -o base.json"
    rows = _mapping(result.get("tables")).get(TABLE)
    if not isinstance(rows, list) or (not is_report and document.get("analyzer") != ANALYZER):
        kind = "a report" if is_report else f"a result of {document.get('analyzer')!r}"
        by = f", written by tracelens {version}," if version else ""
        raise TracelensError(f"{name}: {kind}{by} without the table {ANALYZER}.{TABLE}; {hint}")
    for part, kind in _mapping(meta.get("failures")).items():
        if part.partition(",")[0] in {f"analyzer {judged}" for judged in JUDGED}:
            raise TracelensError(f"{name}: written when {part} had failed ({kind}); {hint}")
    for row in rows:
        fits = isinstance(row, dict) and all(isinstance(row.get(key), of) for key, of in _COLUMNS.items())
        if not fits or not 0 <= row["value"] < _LARGEST:
            raise TracelensError(f"{name}: the table {ANALYZER}.{TABLE} is damaged; {hint}")
    skips = result.get("skips")
    lacking = tuple(
        (str(skip.get("subject", "")), str(skip.get("reason", "")))
        for skip in (skips if isinstance(skips, list) else ())
        if isinstance(skip, dict)
    )
    columns = {key: [row[key] for row in rows] for key in _COLUMNS}
    scope = str(_mapping(result.get("meta")).get("scope", "all"))
    samples = _samples(name, columns, version, scope, lacking, _doubts(meta.get("trust")))
    return replace(samples, setup=Setup.read(meta.get("setup")))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _samples(
    name: str,
    columns: Mapping[str, list[Any]],
    version: str,
    scope: str,
    lacking: tuple[tuple[str, str], ...],
    doubts: tuple[RecordingDoubt, ...],
) -> Samples:
    """Samples from long columns."""
    if not columns["rank"]:
        why = f": {lacking[0][1]}" if lacking else ""
        raise TracelensError(f"{name}: no step with GPU work{why}")
    ranks = sorted(set(columns["rank"]))
    had: dict[bool, dict[str, set[int]]] = {False: {}, True: {}}
    for rank, step, metric in zip(columns["rank"], columns["step"], columns["metric"], strict=True):
        had[metric == PACE].setdefault(step, set()).add(rank)
    steps = [step for step, by in had[False].items() if len(by) == len(ranks)]
    if not steps:
        raise TracelensError(f"{name}: its {len(ranks)} ranks have no common step; record the same steps")
    row = {rank: index for index, rank in enumerate(ranks)}
    column = {step: index for index, step in enumerate(steps)}
    part = {step: index for index, step in enumerate(had[True])}
    values: dict[str, Float] = {}
    units: dict[str, str] = {}
    for rank, step, metric, value, unit in zip(*columns.values(), strict=True):
        places = part if metric == PACE else column
        if metric not in values:
            # Ops and classes have a row only if nonzero; other metrics, in every step or in none.
            values[metric] = np.full((len(ranks), len(places)), 0.0 if is_named(metric) else np.nan)
            units[metric] = unit
        if step in places:
            values[metric][row[rank], places[step]] = value
    samples = Samples(
        name=name,
        ranks=tuple(ranks),
        steps=tuple(steps),
        values=values,
        units=units,
        version=version,
        scope=scope,
        lacking=lacking,
        doubts=doubts,
    )
    return replace(samples, parts=tuple(part)).only(ranks)


def add_to_baseline(path: str, runs: Sequence[Samples], commit: str, keep: int = KEEP) -> tuple[bytes, int]:
    """A baseline with these runs as its newest.

    Args:
        path: of the baseline so far, if there is one.
        runs: to add.
        commit: their version of the program, "" if unknown.
        keep: the most runs to keep.

    Returns:
        the new content of the file, and how many runs it has.

    Raises:
        TracelensError: the file is no baseline, or `keep` is no number of runs.
    """
    if keep < 1:
        raise TracelensError(f"--keep {keep}: a baseline keeps at least one run")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    stored = list(read_baseline(path) or ()) if os.path.exists(path) else []
    if os.path.exists(path) and not stored:
        raise TracelensError(f"{path}: exists and is not a baseline; name another file, or remove it")
    stored = [*stored, *(StoredRun(samples, commit, now) for samples in runs)][-keep:]
    documents = []
    for run in stored:
        samples = run.samples
        doubts: dict[str, list[dict[str, str]]] = {}
        for doubt in samples.doubts:
            doubts.setdefault(str(doubt.rank), []).append({"doubt": doubt.name, "evidence": doubt.evidence})
        metrics = {
            name: {
                "unit": samples.units[name],
                "values": [[None if np.isnan(value) else value for value in row] for row in rows.tolist()],
            }
            for name, rows in samples.values.items()
        }
        documents.append(
            {
                "commit": run.commit,
                "added": run.added,
                "name": samples.name,
                "version": samples.version,
                "scope": samples.scope,
                "setup": samples.setup.document(),
                "trust": {"complete": not doubts, "doubts": doubts},
                "lacking": [list(pair) for pair in samples.lacking],
                "ranks": list(samples.ranks),
                "steps": list(samples.steps),
                "parts": list(samples.parts),
                "metrics": metrics,
            }
        )
    content = {"schema": SCHEMA, "runs": documents}
    return orjson.dumps(content) + b"\n", len(stored)


def read_baseline(path: str) -> tuple[StoredRun, ...] | None:
    """The runs of a baseline, oldest first; None if the file is something else.

    Raises:
        TracelensError: a baseline that is damaged.
    """
    if saved_kind(path) != "baseline":
        return None
    try:
        with open(path, "rb") as file:
            document = orjson.loads(file.read())
        return tuple(_read_run(run, path) for run in document["runs"]) or None
    except OSError:
        return None  # reading it as a trace reports the error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "create it again: tracelens gate baseline add RUN... -o FILE"
        raise TracelensError(f"{path}: a damaged baseline ({error}); {hint}") from None


def _read_run(run: Any, path: str) -> StoredRun:
    metrics = run["metrics"]
    shape = len(run["ranks"])
    values = {name: np.array(metric["values"], dtype=float) for name, metric in metrics.items()}
    if not values or any(rows.ndim != 2 or len(rows) != shape for rows in values.values()):
        raise ValueError("a metric must have one row per rank")
    doubts = tuple(
        RecordingDoubt(int(rank), str(row["doubt"]), str(row["evidence"]))
        for rank, rows in run["trust"]["doubts"].items()
        for row in rows
    )
    samples = Samples(
        name=f"{path}: {run['name']}",
        ranks=tuple(map(int, run["ranks"])),
        steps=tuple(map(str, run["steps"])),
        values=values,
        units={name: str(metric["unit"]) for name, metric in metrics.items()},
        version=str(run["version"]),
        scope=str(run["scope"]),
        lacking=tuple((str(subject), str(reason)) for subject, reason in run["lacking"]),
        doubts=doubts,
        setup=Setup.read(run["setup"]),
        parts=tuple(map(str, run["parts"])),
    )
    return StoredRun(samples, str(run["commit"]), str(run["added"]))


def baseline_side(runs: Sequence[StoredRun], path: str) -> Side:
    """A baseline as a side: the runs of the newest commit, those of older commits as their history."""
    newest = runs[-1].samples.setup
    alike = [
        run
        for run in runs
        if all(getattr(run.samples.setup, aspect) == getattr(newest, aspect) for aspect in ASPECTS)
    ]
    groups = [tuple(run.samples for run in group) for _, group in groupby(alike, key=lambda run: run.commit)]
    name = Path(path).name if len(groups[-1]) == 1 else f"{Path(path).name} ({len(groups[-1])} runs)"
    return Side(groups[-1], tuple(groups[:-1]), name)


class GatedRun(NamedTuple):
    """What a gate knows of a recording."""

    report: Report  # with the analyzer `steps`
    run: Callable[[], Run] | None  # gives its traces; None where they are gone


class GateSide(Struct, frozen=True):
    """One side of a gate as it was read."""

    side: Side
    traces: tuple[Callable[[], Run] | None, ...]  # gives those of each run; None where there are only metrics

    @property
    def typical(self) -> Callable[[], Run] | None:
        """Gives, of the runs with traces, the one whose step time is nearest to their mean."""
        traced = [
            (float(run.each_step("step.time").mean()), source)
            for run, source in zip(self.side.runs, self.traces, strict=True)
            if source is not None
        ]
        middle = float(np.mean([time for time, _ in traced])) if traced else 0.0
        return min(traced, key=lambda timed: abs(timed[0] - middle), default=(0.0, None))[1]


def read_side(
    recordings: Iterable[Run | Report | str | os.PathLike[str]], measured: Callable[[Run | str], GatedRun]
) -> GateSide:
    """One side of a gate.

    Args:
        recordings: runs, reports, and paths of traces, saved reports and stored baselines.
        measured: of a run, or of the traces at a path.

    Raises:
        TracelensError: there is none, or it cannot be read.
    """

    def samples(report: Report, name: str) -> Samples:
        for result in report.results:
            if result.analyzer in JUDGED and result.failures:
                raise TracelensError(f"{name}: {result.failures[0]}")
        version = str(report.meta.get("version", __version__))
        return from_result(report["steps"], name, version, report.meta.get("trust"), report.meta.get("setup"))

    parts: list[GateSide] = []
    for item in recordings:
        if isinstance(item, Report | Run):
            report, run = (item, None) if isinstance(item, Report) else measured(item)
            name = ", ".join(map(str, report.meta.get("inputs", ()))) or "a report"
            parts.append(GateSide(Side((samples(report, name),)), (run,)))
        elif (stored := read_baseline(path := os.fspath(item))) is not None:
            side = baseline_side(stored, path)
            parts.append(GateSide(side, (None,) * len(side.runs)))
        elif (saved := read_saved(path)) is not None:
            parts.append(GateSide(Side((saved,)), (None,)))
        else:
            report, run = measured(path)
            parts.append(GateSide(Side((samples(report, path),)), (run,)))
    if not parts:
        raise TracelensError("a side has no run; pass at least one")
    if len(parts) == 1:
        return parts[0]
    runs, history, traces = (
        tuple(item for part in parts for item in attrgetter(name)(part))
        for name in ("side.runs", "side.history", "traces")
    )
    return GateSide(Side(runs, history), traces)
