"""Detectors: each looks for one signature; `findings` ranks what they measure.

A detector looks for one signature. It either measures what is there, as a `Detection`, or says in a sentence
why there is nothing to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from tracelens.analysis.common import NO_LAUNCH
from tracelens.findings.rank_context import RankContext
from tracelens.guard import guard
from tracelens.registry import Registry
from tracelens.table import Result
from tracelens.trace import Union
from tracelens.units import Unit

__all__ = ["DETECTORS", "JOB", "Detection", "Detector", "Outcome", "Quantity", "RankContext", "detector"]

Confidence = Literal["high", "medium", "low"]
"""Of the saving. high: the trace shows the lost time; medium: the remaining time is estimated; low: an
upper bound."""

EMPTY: Mapping[str, str] = MappingProxyType({})

JOB = -1
"""In place of a rank: the detection is of the whole job."""


class Quantity(NamedTuple):
    """One figure of a signature, such as the GEMM launches a layer."""

    measure: str
    value: float
    unit: Unit


class Detection(NamedTuple):
    """A signature that is there, and what it costs.

    Attributes:
        quantities: the figures that describe it.
        saving_ns: step time that the remedy could save on this rank, per step.
        where: when that time is lost, ns by the clock of the trace; savings whose times overlap are counted
            once.
        evidence: the figures in a sentence or two.
        confidence: in the saving.
        scenario: the what-if request that its remedy is, where that depends on what is measured; "" if none
            is, None for the detector's.
        in_graphs: whether most of it is work that graphs launch already.
    """

    quantities: tuple[Quantity, ...]
    saving_ns: float
    where: Union
    evidence: str
    confidence: Confidence
    scenario: str | None = None
    in_graphs: bool = False


Outcome = Detection | str
"""A detection, or why there is none, which may be a Failure."""


@dataclass(frozen=True)
class Detector:
    """A registered detector.

    Attributes:
        name: in the tables.
        title: of its finding.
        remedy: what to do about it, where findings/remedies has no entries for it.
        doc: the signature, one line.
        needs: analyzers whose results it reads; empty for one that looks at each rank's trace.
        launching: whether it is about a host that feeds a GPU, and says nothing where the host does the work.
        symptom: whether others may be its cause.
        scenario: the what-if request that its remedy is, whose replay sizes the saving; "" if none models
            it. A detection may name another.
        measures: each measure of its quantities with what it means; a word in capitals stands for a name.
        threshold: what the signature takes to be detected.
        limits: what it cannot see, or what its estimate takes for granted.
        function: (context) -> Detection or reason; with `needs`, (results) -> detections by rank, or reason.
    """

    name: str
    title: str
    remedy: str
    doc: str
    needs: tuple[str, ...]
    function: Callable[..., Any]
    launching: bool = False
    symptom: bool = False
    scenario: str = ""
    measures: Mapping[str, str] = field(default_factory=dict)
    threshold: str = ""
    limits: str = ""

    def of_rank(self, context: RankContext) -> Outcome:
        if self.launching and context.work.cpu_only:
            return NO_LAUNCH
        outcome: Outcome = guard(f"detector {self.name}", self.function, context)
        return outcome

    def of_run(self, results: Mapping[str, Result]) -> Mapping[int, Detection] | str:
        """What the results of analyzers show: detections by rank (or JOB), or why there is none."""
        failed = [name for name in self.needs if results[name].failures and not results[name].data]
        if failed:
            return f"needs {', '.join(failed)}, which failed"
        outcome: Mapping[int, Detection] | str = guard(f"detector {self.name}", self.function, results)
        return outcome


DETECTORS: Registry[Detector] = Registry("detector", "tracelens.findings.detectors")


def detector(
    name: str,
    *,
    scenario: str = "",
    title: str,
    remedy: str = "",
    needs: Sequence[str] = (),
    launching: bool = False,
    symptom: bool = False,
    measures: Mapping[str, str] = EMPTY,
    threshold: str = "",
    limits: str = "",
) -> Callable[[Callable[..., Any]], Detector]:
    """Register a function as a detector; the first line of its docstring names the signature.

    Args:
        name: in the tables.
        scenario: the what-if request that the remedy is, as in `project whatif --scenario`; its replay gives
            the saving. A Detection may name another.
        title: of its finding.
        remedy: what to do about it, for a detector that findings/remedies/remedies.toml does not know.
        needs: analyzers whose results, by name, the function takes instead of a RankContext.
        launching: whether it is about a host that feeds a GPU.
        symptom: whether it shows what other detectors name the cause of; see findings/ranking.py.
        measures: what each measure of its quantities means; a word in capitals stands for a name.
        threshold: what the signature takes to be detected.
        limits: what it cannot see, or what its estimate takes for granted.
    """

    def keep(function: Callable[..., Any]) -> Detector:
        doc = (function.__doc__ or name).strip().splitlines()[0]
        item = Detector(
            name,
            title,
            remedy,
            doc,
            tuple(needs),
            function,
            launching,
            symptom,
            scenario,
            measures,
            threshold,
            limits,
        )
        DETECTORS.add(name, item, function.__module__)
        return item

    return keep
