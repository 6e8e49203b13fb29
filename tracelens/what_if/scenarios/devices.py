"""The device of a rank, and the costs of its activities."""

from __future__ import annotations

from tracelens.analysis.common import choose_device, own_device
from tracelens.analysis.roofline import Costing, costing
from tracelens.devices import Device
from tracelens.trace import Trace
from tracelens.what_if.scenario import ScenarioContext


def device_of(context: ScenarioContext, trace: Trace) -> Device | None:
    """The device of a rank: from the user, else from its trace; None if unknown."""
    return choose_device(context.device, context.device_file) or own_device(trace)


def counted(trace: Trace) -> Costing:
    """Costs of a rank's activities; call as `trace.once(counted)`."""
    return costing(trace, trace.work)
