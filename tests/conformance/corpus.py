"""The real traces and the reports of another tool beside them, found when tests are collected."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tracelens
from tests.effort import of_its_kind, swept
from tests.reference.traces import FOLDERS
from tracelens.analysis import ANALYZERS
from tracelens.table import Result
from tracelens.trace import Run, Scope, Trace, Work, gpu_work
from tracelens.trace.intervals import subtract

SUFFIXES = (".json", ".json.gz")
REPORT = "_perf_report_csvs"
SAMPLES = FOLDERS["sample_traces"]
FOREIGN = FOLDERS["foreign"]
# Loading and analysing more than this (compressed) takes over 5 s on a slow core.
SLOW_BYTES = 3_000_000
SMALL_BYTES = 1_000_000


def folder() -> Path | None:
    """The same place as the `corpus` fixture's; the fixture says why where there is none."""
    named = os.environ.get("TRACELENS_CORPUS")
    path = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "corpus"
    return path if path.is_dir() else None


def params(names: list[Path], root: Path) -> list[Any]:
    """Parameters that are paths inside the corpus; large ones are marked slow."""
    marked = []
    for path in names:
        size = sum(file.stat().st_size for file in (path.iterdir() if path.is_dir() else [path]))
        slow = [pytest.mark.slow] if size > SLOW_BYTES else []
        marked.append(pytest.param(str(path.relative_to(root)), marks=slow))
    return marked


def run_params() -> list[Any]:
    """Every trace; a directory of rank<N> files is one run."""
    root = folder()
    if root is None:
        return [pytest.param("none")]  # one test that the corpus fixture skips
    files = sorted(path for path in root.rglob("*") if path.name.endswith(SUFFIXES))
    return params(
        sorted({path.parent if path.name.startswith("rank") else path for path in files if swept(path)}),
        root,
    )


def every_run() -> list[Any]:
    """The runs of the corpus, those of the foreign traces, and the samples.

    The corpus is first: pytest brings tests together whose parameters are at the same position, and so each
    of its runs is read once for these tests and for those of the corpus alone.
    """
    samples = [path for path in sorted(SAMPLES.glob("*/*")) if path.is_dir() and path.name != "ep4"]
    samples += [path for path in sorted((SAMPLES / "ladder" / "ep4").iterdir()) if path.is_dir()]
    foreign = [
        path
        for suffix in ("*.json.zst", "*.json.gz")
        for path in FOREIGN.rglob(suffix)
        if "capture_traces" not in path.parts and swept(path)
    ]
    foreign = sorted({path.parent if path.name.startswith("rank") else path for path in foreign})
    return [
        *(run_params() if folder() else ()),
        *(pytest.param(path, id=path.relative_to(FOREIGN).as_posix()) for path in foreign),
        *(pytest.param(path, id=path.relative_to(SAMPLES.parent).as_posix()) for path in samples),
    ]


def report_params() -> list[Any]:
    """Every report directory that belongs to a trace of the MI300X and H100 folders."""
    root = folder()
    if root is None:
        return ["none"]
    return params(
        sorted(path for name in ("mi300x", "h100") for path in (root / name).glob("*" + REPORT)), root
    )


def collective_params() -> list[Any]:
    """Every directory of ranks whose collectives another tool has tabulated in `<name>_collectives`."""
    root = folder()
    if root is None:
        return ["none"]
    tables = sorted(path for path in root.rglob("*_collectives") if path.is_dir())
    return params([path.with_name(path.name.removesuffix("_collectives")) for path in tables], root)


def trace_of(report: Path) -> Path:
    """The trace that a report is about: the one beside it with the longest name that begins the report's."""
    beside = [path for path in report.parent.iterdir() if path.name.endswith(SUFFIXES)]
    stems = {path.name.partition(".json")[0]: path for path in beside}
    found = [stem for stem in stems if report.name.startswith(stem)]
    assert found, f"no trace beside {report.name}"
    return stems[max(found, key=len)]


everywhere = pytest.mark.parametrize("case", every_run(), indirect=True)
"""On all runs instead of those of the corpus."""
everywhere_in_time = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            *run.values, id=run.id, marks=[*run.marks, *[pytest.mark.rare] * (not of_its_kind(path))]
        )
        for run in every_run()
        for path in [run.id or run.values[0]]
    ],
    indirect=True,
)
"""On all runs; `.ci/run` takes one of each kind."""
of_each_kind = pytest.mark.parametrize(
    "case", [run for run in every_run() if of_its_kind(run.id or run.values[0])], indirect=True
)
"""On one run of each kind, for what holds in any trace."""


@dataclass
class Case:
    """A run with its results, each computed once."""

    name: str
    path: Path
    run: Run
    results: dict[tuple[str, Scope], Result] = field(default_factory=dict)

    @property
    def is_small(self) -> bool:
        files = self.path.iterdir() if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files) < SMALL_BYTES

    def result(self, analyzer: str, scope: Scope = "all") -> Result:
        options: dict[str, Any] = {"scope": scope} if "scope" in ANALYZERS.get(analyzer).options else {}
        key = (analyzer, options.get("scope", "all"))
        if key not in self.results:
            self.results[key] = tracelens.analyze(self.run, analyzer, **options)
        return self.results[key]

    def table(self, analyzer: str, table: str = "", scope: Scope = "all") -> pd.DataFrame:
        """The headline table, or the named one."""
        return self.result(analyzer, scope)[table or analyzer]

    def metrics(self, rank: int, scope: Scope = "all") -> dict[str, int]:
        """The timeline of one rank."""
        table = self.table("timeline", scope=scope)
        mine = table[table["rank"] == rank]
        return dict(zip(mine["metric"], mine["dur_ns"].tolist(), strict=True))

    def each(self, scope: Scope = "all") -> Iterator[tuple[int, Trace, Work]]:
        """(rank, trace, GPU work) of the ranks that have any."""
        for trace in self.run.traces:
            work = gpu_work(trace, scope)
            if len(work.event):
                yield trace.meta.rank, trace, work


@dataclass(frozen=True)
class Reference:
    """A trace and the report that another tool made of it."""

    report: Path
    case: Case

    @property
    def trace(self) -> Trace:
        return self.case.run.traces[0]

    @cached_property
    def noise_ns(self) -> float:
        """What the reference can be off by for each GPU event.

        It adds and subtracts float microseconds: one unit in the last place of the trace's timestamps, and
        at least the nanosecond that the trace itself is rounded to.
        """
        latest = float(self.trace.events["ts_ns"].max()) / 1000
        return max(1.0, float(np.spacing(latest)) * 1000)

    def csv(self, name: str) -> pd.DataFrame:
        """A table of the report; skips where the reference did not write it."""
        path = self.report / f"{name}.csv"
        if not path.is_file():
            pytest.skip(f"{self.report.name} has no {path.name}")
        return pd.read_csv(path)

    @property
    def splits_recompute(self) -> bool:
        """Whether rows are split by an is_recompute column."""
        return "is_recompute" in self.csv("gpu_timeline")


def part_metrics(work: Work, *compute: str) -> dict[str, int]:
    """The timeline of some GPU work by itself; `compute` says which kinds count as computation."""
    computation, comm, copy = work.union(*compute), work.union("comm"), work.union("memcpy")
    total, busy = int(work.end.max() - work.start.min()), work.union().total
    return {
        "total": total,
        "busy": busy,
        "idle": total - busy,
        "computation": computation.total,
        "comm": comm.total,
        "memcpy": copy.total,
        "exposed_comm": subtract(comm, computation),
        "exposed_memcpy": subtract(copy, computation, comm),
    }
