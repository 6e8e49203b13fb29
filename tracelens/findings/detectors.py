"""Detectors: each looks for one signature; `findings` ranks what they measure.

A detector either measures what is there, as a `Detection`, or says in a sentence why there is nothing to
measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from tracelens.analysis.common import NO_LAUNCH
from tracelens.analysis.fusable import StepWork
from tracelens.analysis.roofline import SlowCalls, slow_calls
from tracelens.arrays import Bool
from tracelens.findings.remedies import Remedy
from tracelens.guard import guard
from tracelens.registry import Registry
from tracelens.table import Result, Table
from tracelens.trace import Union, is_step
from tracelens.units import Unit

Confidence = Literal["high", "medium", "low"]
"""Of the saving. high: the trace shows the lost time; medium: the remaining time is estimated; low: an
upper bound."""
EMPTY: Mapping[str, str] = MappingProxyType({})
JOB = -1
"""In place of a rank: the detection is of the whole job."""
LAUNCH_BOUND_SHARE = 0.1
"""Of the time of the steps: where the queue is mostly filled, the GPU waits for launches for less."""


class Quantity(NamedTuple):
    """One figure of a signature, such as the GEMM launches a layer."""

    measure: str
    value: float
    unit: Unit


class Detection(NamedTuple):
    """A signature that is there, and what it costs."""

    quantities: tuple[Quantity, ...]  # the figures that describe it
    saving_ns: float  # step time that the remedy could save on this rank, per step
    # when that time is lost, ns by the clock of the trace; savings whose times overlap are counted once
    where: Union
    evidence: str  # the figures in a sentence or two
    confidence: Confidence  # in the saving
    # the what-if request that its remedy is, where that depends on what is measured; "" if none is, None for
    # the detector's
    scenario: str | None = None
    in_graphs: bool = False  # whether most of it is work that graphs launch already
    title: str = ""  # of the finding, where that depends on what is measured
    fix: str = ""  # what the remedy is, likewise
    cause: str = ""  # of most of it, by which remedies are chosen; "" where it has none or several
    # what is wrong whatever it costs here, as a sentence without its full stop; "" for what only costs time
    fact: str = ""


Outcome = Detection | str
"""A detection, or why there is none, which may be a Failure."""
Detections = Mapping[int, Detection] | str
"""Detections by rank or JOB, or why there are none."""


class Detector(Struct, frozen=True):
    """A registered detector."""

    name: str  # in the tables
    title: str  # of its finding
    doc: str  # the signature, one line
    needs: tuple[str, ...]  # analyzers whose results it reads; empty for one that looks at each rank's trace
    # (context) -> Detection or reason; with `needs`, (results) -> detections by rank, or reason
    function: Callable[..., Any]
    evidence: str = "findings"  # the analyzer whose tables show what it measured
    # whether it is about a host that feeds a GPU, and says nothing where the host does the work
    launching: bool = False
    fix: str = ""  # what the remedy is, as the subject of a sentence: "grouped GEMM"
    symptom: bool = False  # whether others may be its cause
    # The what-if request that its remedy is, whose replay sizes the saving; "" if none models it. A detection
    # may name another.
    scenario: str = ""
    # each measure of its quantities with what it means; a word in capitals stands for a name
    measures: Mapping[str, str] = field(default_factory=dict)
    threshold: str = ""  # what the signature takes to be detected
    limits: str = ""  # what it cannot see, or what its estimate takes for granted
    remedies: tuple[Remedy, ...] = ()  # what to do about it, on any platform and on some

    def of_rank(self, context: RankContext) -> Outcome:
        if self.launching and context.work.cpu_only:
            return NO_LAUNCH
        outcome: Outcome = guard(f"detector {self.name}", self.function, context)
        return outcome

    def of_run(self, results: Mapping[str, Result]) -> Detections:
        """What the results of analyzers show."""
        failed = [name for name in self.needs if results[name].failures and not results[name].data]
        if failed:
            return f"needs {', '.join(failed)}, which failed"
        outcome: Detections = guard(f"detector {self.name}", self.function, results)
        return outcome


DETECTORS: Registry[Detector] = Registry("detector", "tracelens.opportunities")


class RankContext(StepWork):
    """One rank, as detectors see it."""

    @cached_property
    def slow(self) -> SlowCalls:
        """Calls that take far longer than the device needs for their size."""
        return slow_calls(self.trace, self.device)

    @cached_property
    def is_launch_bound(self) -> bool:
        """Whether the GPU often waits for launches where no blocking call has emptied the queue before.

        Then a queue that such a call emptied would often have been empty without it.
        """
        late = int(self.idle.dur[self.is_idle_by("launch overhead")].sum())
        return late > LAUNCH_BOUND_SHARE * (self.window[1] - self.window[0])


def detector(
    name: str,
    *,
    evidence: str = "findings",
    scenario: str = "",
    title: str,
    fix: str = "",
    needs: Sequence[str] = (),
    launching: bool = False,
    symptom: bool = False,
    measures: Mapping[str, str] = EMPTY,
    threshold: str = "",
    limits: str = "",
    remedy: str = "",
    remedies: Sequence[Remedy] = (),
) -> Callable[[Callable[..., Any]], Detector]:
    """Register a function as a detector; the first line of its docstring names the signature.

    Args:
        name: in the tables.
        evidence: the analyzer whose tables show what it measures.
        scenario: the what-if request that the remedy is, as in `project whatif --scenario`; its replay gives
            the saving. A Detection may name another.
        title: of its finding.
        fix: what the remedy is, as the subject of the sentence with which a report begins: "grouped GEMM".
        needs: analyzers whose results, by name, the function takes instead of a RankContext.
        launching: whether it is about a host that feeds a GPU.
        symptom: whether it shows what other detectors name the cause of; see `ranked` in findings.py.
        measures: what each measure of its quantities means; a word in capitals stands for a name.
        threshold: what the signature takes to be detected.
        limits: what it cannot see, or what its estimate takes for granted.
        remedy: what to do about it wherever it is found.
        remedies: what else, where that depends on the platform, in the order in which it is told.
    """

    def keep(function: Callable[..., Any]) -> Detector:
        doc = (function.__doc__ or name).strip().splitlines()[0]
        item = Detector(
            name=name,
            title=title,
            fix=fix,
            doc=doc,
            evidence=evidence,
            needs=tuple(needs),
            function=function,
            launching=launching,
            symptom=symptom,
            scenario=scenario,
            measures=measures,
            threshold=threshold,
            limits=limits,
            remedies=(*([Remedy(remedy)] if remedy else []), *remedies),
        )
        DETECTORS.add(name, item, function.__module__)
        return item

    return keep


def in_steps(table: Table) -> Bool:
    """Which rows of a table with a column `step` are of a step."""
    return table.coded("step").mask(is_step)


def step_count(results: Mapping[str, Result]) -> int:
    """Number of steps in the recording, by the collectives of all ranks; 1 where steps are not marked."""
    participants = results["collectives"].data["participants"]
    return max(len({label for label in participants.texts("step") if is_step(label)}), 1)
