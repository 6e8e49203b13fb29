"""The assumptions of a step time as a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tracelens.devices import Device
from tracelens.planner.step_time.machine import Machine
from tracelens.table import Column, Schema, Table

ASSUMED = Schema(
    "Assumptions of the step time",
    (
        Column("name", "str", doc="what is assumed"),
        Column("value", "str", doc="its value, with the unit"),
        Column("device", "category", doc="device that it holds for; '': all"),
        Column("note", "str", doc="meaning and source", prose=True),
    ),
)


def assumed(machine: Machine, devices: Sequence[Device], dtype: str, without: Collection[str] = ()) -> Table:
    """ASSUMED: the assumptions, and the figures of each device; `without` those of these names."""
    lines = [("", line) for line in machine.assumptions() if line.name not in without]
    for device in devices:
        lines += [(device.name, line) for line in machine.figures(device, dtype)]
    return ASSUMED.from_rows(
        [
            {"name": name, "value": value, "device": device, "note": f"{meaning}; {source}"}
            for device, (name, value, meaning, source) in lines
        ]
    )
