"""When the GPU work of a finding runs."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.analysis import ANALYZERS
from tracelens.analysis.common import own_device
from tracelens.devices import Device
from tracelens.errors import TracelensError
from tracelens.findings import RankContext
from tracelens.findings.detectors import DETECTORS, JOB, Detection
from tracelens.trace import Run, Union


def time_of(run: Run, name: str, device: Device | None = None) -> dict[int, Union]:
    """When time is lost to what a detector finds, by rank.

    Args:
        run: the ranks.
        name: of the detector, as in the findings table.
        device: whose figures count, instead of those of the trace's own.

    Raises:
        TracelensError: no such detector, or it finds nothing; the message says why.
    """
    detector = DETECTORS.get(name)
    outcome: Mapping[int, Detection] | str
    if detector.needs:
        outcome = detector.of_run({need: ANALYZERS.get(need)(run) for need in detector.needs})
    else:
        per_rank = {
            trace.meta.rank: detector.of_rank(RankContext(trace, device or own_device(trace)))
            for trace in run.traces
        }
        detections = {
            rank: detection for rank, detection in per_rank.items() if isinstance(detection, Detection)
        }
        outcome = detections or "; ".join(dict.fromkeys(str(reason) for reason in per_rank.values()))
    if isinstance(outcome, str):
        raise TracelensError(f"no finding {name!r} in this trace: {outcome}")
    if JOB in outcome:
        return dict.fromkeys(run.ranks, outcome[JOB].where)
    return {rank: detection.where for rank, detection in outcome.items()}
