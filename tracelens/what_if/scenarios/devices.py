"""The device of a rank, and what it says of its work."""

from __future__ import annotations

from tracelens.analysis.common import choose_device, own_device
from tracelens.analysis.roofline import Costing, costing
from tracelens.devices import Device
from tracelens.trace import Trace
from tracelens.what_if.scenario import ScenarioContext


def device_of(scene: ScenarioContext, trace: Trace) -> Device | None:
    """The device that a rank ran on: what the user says, else what its trace says; None if nobody knows."""
    return choose_device(scene.device, scene.device_file) or own_device(trace)


def counted(trace: Trace) -> Costing:
    """What the cost models count of a rank's work; ask with `trace.once(counted)`."""
    return costing(trace, trace.work)
