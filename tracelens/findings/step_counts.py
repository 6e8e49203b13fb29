"""How many steps the results of a run are of."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.arrays import Bool
from tracelens.table import Result, Table
from tracelens.trace import is_step


def in_steps(table: Table) -> Bool:
    """Which rows of a table with a column `step` are of a step."""
    return table.coded("step").mask(is_step)


def step_count(results: Mapping[str, Result]) -> int:
    """Number of steps in the recording, by the collectives of all ranks; 1 where steps are not marked."""
    participants = results["collectives"].data["participants"]
    return max(len({label for label in participants.texts("step") if is_step(label)}), 1)
