"""Times and activations of a model's layers, and times of messages between its stages, before a run."""

from __future__ import annotations

from tracelens.devices import Device
from tracelens.planner.config import Config
from tracelens.planner.memory import DEFAULT, Kept, Stages
from tracelens.planner.pipeline.sources import Layers
from tracelens.planner.pipeline.times import Costs
from tracelens.planner.step_time import Machine, Timer, layer_times


def roofline(config: Config, device: Device, machine: Machine | None = None) -> tuple[Layers, Costs]:
    """Times of each layer, and of a message between stages.

    Args:
        config: of the run, with its stages.
        device: of each rank.
        machine: what is assumed of nodes, network and efficiency.

    Raises:
        TracelensError: the device has no rate for the type of the activations, or none for its links.
    """
    machine = machine or Machine()
    message = round(Timer(config, device, machine).stage_message())
    return Layers(layer_times(config, device, machine)), Costs(message, message)


def activations(config: Config) -> Kept:
    """Bytes that a micro-batch keeps for its backward in each part of the model, as `memory` counts them.

    Args:
        config: of the run; its stages and chunks do not matter.
    """
    return Stages(config, DEFAULT).kept()
