"""One mutant through everything: what may come out is a result whose numbers hold, or one line of text."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np

import tracelens
from tests.fuzz import invariants
from tests.fuzz.mutate import dumps
from tests.fuzz.sources import Document, documents
from tests.garbage import uncollected
from tracelens.analysis import ANALYZERS, in_order
from tracelens.analysis.comm import align_run
from tracelens.compare.gate import Samples, commands, from_result, gate, junit
from tracelens.compare.gate import report as verdict_report
from tracelens.devices import device as known_device
from tracelens.errors import SchemaError, TracelensError, UnknownName
from tracelens.merge import fuse
from tracelens.rendering import RENDERERS
from tracelens.reproducers import replay, replay_layers, scripts
from tracelens.session.reports import assembled
from tracelens.table import Report
from tracelens.trace import Run
from tracelens.what_if import whatif

OPEN = {"TRACELENS_DEBUG": "1", "TRACELENS_JOBS": "1"}
"""Environment of a check: no guard makes a skip of an exception, and no other process hides one."""
PACKAGE = str(Path(tracelens.__file__).parent)
FORMATS = ("html", "markdown", "json", "csv", "console", "xlsx")
REPLAYS: dict[str, Callable[[Run, Path], Any]] = {
    "replay": lambda run, path: replay(run, path, top=None),
    "replay recoverable": lambda run, path: replay(
        run, path, order="recoverable", device=known_device("mi300x"), top=5
    ),
    "replay scaled": lambda run, path: replay(run, path, max_elements=1000, first_ranks=2, top=5),
    "replay sequence": replay_layers,
}
STAGES = (*FORMATS, "diff", "gate", *REPLAYS, "fuse", "whatif")
LIMIT_S = 60
_OFTEN = {"html": 0.3, "console": 0.03, "xlsx": 0.03, **dict.fromkeys(REPLAYS, 0.06)}
"""How often a stage is taken where stages rotate; _RATHER_OFTEN for those that are not named."""
_RATHER_OFTEN = 0.35

T = TypeVar("T")


def rotated(rng: random.Random) -> tuple[str, ...]:
    """Some of the stages: the slow ones of a mutant seldom, so that many mutants can be checked."""
    return tuple(stage for stage in STAGES if rng.random() < _OFTEN.get(stage, _RATHER_OFTEN))


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong.

    Attributes:
        stage: where, like "analyze moe" or "render html".
        kind: class of the exception, or "invariant".
        place: file:function of the package in which it was raised, or which invariant it is.
        detail: for people.
    """

    stage: str
    kind: str
    place: str
    detail: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two failures the same one."""
        return self.stage, self.kind, self.place


class _Slow(Exception):
    """A stage takes longer than any mutant may."""


@contextmanager
def _limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _Slow(f"over {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Checker:
    """Collects what goes wrong with one mutant."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self.refused: list[str] = []

    def attempt(self, stage: str, function: Callable[[], T]) -> T | None:
        """What the function returns; None where it refuses the trace, or fails."""
        try:
            with _limit(), warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
                warnings.simplefilter("error")
                return function()
        except (SchemaError, UnknownName) as error:
            self._fail(stage, error)
        except TracelensError as error:
            text = str(Exception.__str__(error))
            self.refused.append(f"{stage}: {text}")
            if not text or "\n" in str(error):
                self.failures.append(Failure(stage, "invariant", "an error is one line of text", text))
        except Exception as error:
            self._fail(stage, error)
        return None

    def hold(self, stage: str, problems: Iterable[str]) -> None:
        """Take down what is wrong with a result."""
        for problem in self.attempt(stage, lambda: list(problems)) or ():
            self.failures.append(Failure(stage, "invariant", re.sub(r"\d+", "N", problem), problem))

    def _fail(self, stage: str, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if frame.filename.startswith(PACKAGE)] or list(frames)
        frame = ours[-1]
        place = f"{frame.filename.removeprefix(PACKAGE).lstrip('/')}:{frame.name}"
        text = "".join(traceback.format_exception(error)[-12:])
        self.failures.append(Failure(stage, type(error).__name__, place, f"line {frame.lineno}\n{text}"))


def check(
    traces: Sequence[Document], source: str, stages: Sequence[str] = STAGES, *, intact: Run | None = None
) -> Checker:
    """Take the traces of a run through loading, all analyzers and the given further stages.

    Args:
        traces: one a rank.
        source: name of the source of the intact twin.
        stages: which of STAGES.
        intact: the twin, read.
    """
    checker = Checker()
    with patch.dict(os.environ, OPEN), uncollected(), TemporaryDirectory() as name:
        folder = Path(name)
        run = checker.attempt("load", lambda: write_and_load(traces, folder / "traces"))
        if run is None:
            return checker
        checker.hold("load", invariants.of_run(run))
        report = _analyze(checker, run)
        for form in FORMATS:
            if form in stages:
                _render(checker, report, form)
        if "fuse" in stages:
            _fuse(checker, run, folder)
        for stage in REPLAYS:
            if stage in stages:
                _replay(checker, stage, run, folder)
        if "whatif" in stages:
            _whatif(checker, run)
        twin = intact or read(source)
        if "diff" in stages:
            _diff(checker, "diff", twin, run)
            _diff(checker, "diff back", run, twin)
        if "gate" in stages:
            _gate(checker, report, twin)
    return checker


_READ: dict[str, Run] = {}


def read(source: str) -> Run:
    """The intact twin of the mutants of a source."""
    if source not in _READ:
        with TemporaryDirectory() as name:
            _READ[source] = write_and_load(documents(source), Path(name))
    return _READ[source]


def write_and_load(traces: Sequence[Document], folder: Path) -> Run:
    folder.mkdir(exist_ok=True)
    for number, document in enumerate(traces):
        (folder / f"rank{number}.json").write_bytes(dumps(document))
    return tracelens.load(folder, partial=True)


def _analyze(checker: Checker, run: Run) -> Report:
    """A report of all analyzers that do not fail."""
    found: dict[str, Any] = {}
    for item in in_order():
        result = checker.attempt(f"analyze {item.name}", lambda item=item: item(run, found))  # type: ignore[misc]
        if result is not None:
            found[item.name] = result
    report = assembled(tuple(found.values()), [trace.meta for trace in run.traces], run.ranks, {})
    checker.hold("analyze", invariants.of_report(report))
    return report


def _render(checker: Checker, report: Report, form: str) -> None:
    files: Mapping[str, bytes] | None = checker.attempt(
        f"render {form}", lambda: RENDERERS.get(form).files(report)
    )
    if files and form == "json":
        checker.hold("render json", _strict(next(iter(files.values()))))


def _strict(content: bytes) -> Iterator[str]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    json.loads(content.decode("utf-8"), parse_constant=refuse)
    return iter(())


def _fuse(checker: Checker, run: Run, folder: Path) -> None:
    def fused() -> Path:
        aligned = align_run(run)
        fuse(run, folder / "fused.json", offsets=aligned.shift, waits=aligned.waits())
        return folder / "fused.json"

    path = checker.attempt("fuse", fused)
    if path is not None:
        before = len(checker.refused)
        back = checker.attempt("fuse, read back", lambda: tracelens.load(path))
        if back is None and len(checker.refused) > before:
            checker.failures.append(
                Failure("fuse, read back", "invariant", "a fused file can be read", checker.refused[-1])
            )


def _replay(checker: Checker, stage: str, run: Run, folder: Path) -> None:
    path = folder / stage.replace(" ", "_")
    with patch("tracelens.reproducers.scripts.difference", _difference):
        result = checker.attempt(stage, lambda: REPLAYS[stage](run, path))
    if result is not None:
        checker.hold(stage, invariants.of_report(Report((result,))))
        checker.hold(f"{stage}, compiled", _compiled(path))


_difference = lru_cache(maxsize=4096)(scripts.difference)
"""Mutants of one source have many scripts in common."""


def _compiled(folder: Path) -> Iterator[str]:
    for script in folder.rglob("*.py"):
        _compile(script.read_bytes())
    return iter(())


@lru_cache(maxsize=4096)
def _compile(script: bytes) -> None:
    compile(script, "script.py", "exec")


def _whatif(checker: Checker, run: Run) -> None:
    result = checker.attempt("whatif", lambda: whatif(run))
    if result is not None:
        checker.hold("whatif", invariants.of_report(Report((result,))))


def _diff(checker: Checker, stage: str, base: Run, cand: Run) -> None:
    report = checker.attempt(stage, lambda: tracelens.diff(base, cand))
    if report is not None:
        checker.hold(stage, invariants.of_report(report))
        for form in ("html", "json"):
            checker.attempt(f"{stage} {form}", lambda form=form: RENDERERS.get(form).files(report))  # type: ignore[misc]


def _gate(checker: Checker, report: Report, twin: Run) -> None:
    steps = next((result for result in report.results if result.analyzer == "steps"), None)
    if steps is None:
        return
    base = from_result(ANALYZERS.get("steps")(twin), "base", "")
    cand = checker.attempt("gate samples", lambda: from_result(steps, "cand", ""))
    if cand is not None:
        for stage, pair in (("gate", (base, cand)), ("gate back", (cand, base))):
            checker.attempt(stage, lambda pair=pair: _judged(*pair))  # type: ignore[misc]


def _judged(base: Samples, cand: Samples) -> None:
    verdict = gate(base, cand)
    junit(verdict)
    list(commands(verdict))
    RENDERERS.get("json").files(verdict_report(verdict))
