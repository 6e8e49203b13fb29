"""What a report says before anything else: a verdict, and the few numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.units import Unit


@dataclass(frozen=True)
class Tile:
    """One headline number.

    Attributes:
        name: for programs: "step_time".
        label: for people: "Step time".
        value: in `unit`; None where it is not known.
        unit: of the value.
        low, high: over ranks or steps, in `unit`; None where there is no range.
        note: what it is of, what the range is, or why there is no value.
        section: analyzer whose section tells more, "" for none.
        text: stands for the value where it is no number: "complete".
    """

    name: str
    label: str
    value: float | None
    unit: Unit
    low: float | None = None
    high: float | None = None
    note: str = ""
    section: str = ""
    text: str = ""


@dataclass(frozen=True)
class Summary:
    """The first screen of a report.

    Attributes:
        verdict: one or two sentences: what was measured, where the time goes, what to do;
            a Failure where a bug left nothing to say.
        tiles: in the order shown.
    """

    verdict: str
    tiles: tuple[Tile, ...] = ()
