"""What commands may cost, and whether they keep to it.

The file has a table for each case, and in it a budget with its unit for each measure. A figure may be
TOLERANCE above its budget. One that is as much below says that the budget can be lowered.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

FILE = Path(__file__).with_name("budgets.toml")
TOLERANCE = 0.15
"""Minima of five runs of one program differ by up to a tenth on a busy machine."""

Word = Literal["over", "within", "under", "no budget"]


@dataclass(frozen=True)
class Figure:
    """One measure of a case."""

    case: str
    measure: str
    value: float
    unit: str

    @property
    def key(self) -> tuple[str, str]:
        """What its budget stands under."""
        return self.case, self.measure


@dataclass(frozen=True)
class Judgement:
    """A figure next to its budget."""

    figure: Figure
    budget: Figure | None

    @property
    def word(self) -> Word:
        """How the two compare; a figure in another unit than its budget has none."""
        if self.budget is None or self.budget.unit != self.figure.unit:
            return "no budget"
        if self.figure.value > (1 + TOLERANCE) * self.budget.value:
            return "over"
        return "under" if self.figure.value < (1 - TOLERANCE) * self.budget.value else "within"

    @property
    def fails(self) -> bool:
        """Whether the build does."""
        return self.word in ("over", "no budget")


def judged(figures: Iterable[Figure], budgets: Iterable[Figure]) -> list[Judgement]:
    """Each figure next to its budget."""
    known = {budget.key: budget for budget in budgets}
    return [Judgement(figure, known.get(figure.key)) for figure in figures]


def settled(
    figures: Sequence[Figure],
    budgets: Sequence[Figure],
    again: Callable[[Collection[str]], Sequence[Figure]],
) -> list[Judgement]:
    """The judgements, of cases over a budget with the better one of two measurements.

    Args:
        figures: as measured.
        budgets: of the file.
        again: measures these cases once more.
    """
    over = {item.figure.case for item in judged(figures, budgets) if item.word == "over"}
    if over:
        second = {figure.key: figure.value for figure in again(over)}
        figures = [
            replace(figure, value=min(figure.value, second.get(figure.key, figure.value)))
            for figure in figures
        ]
    return judged(figures, budgets)


def unmeasured(budgets: Iterable[Figure], cases: Collection[str]) -> list[str]:
    """The cases of the file that nobody knows any more."""
    return sorted({budget.case for budget in budgets} - {*cases})


def read(file: Path = FILE) -> list[Figure]:
    """The budgets of a file; none where there is no file."""
    tables = tomllib.loads(file.read_text()) if file.exists() else {}
    return [
        Figure(case, measure, float(entry["budget"]), entry["unit"])
        for case, entries in tables.items()
        for measure, entry in entries.items()
    ]


def write(figures: Iterable[Figure], order: Iterable[str], file: Path = FILE) -> None:
    """Put these figures into the file as budgets; those of other cases stay, of unknown ones go.

    Args:
        figures: to write.
        order: of the cases in the file.
        file: where to.
    """
    by_case: dict[str, dict[str, Figure]] = {}
    for figure in (*read(file), *figures):
        by_case.setdefault(figure.case, {})[figure.measure] = figure
    lines = ["# What the cases of benchmarks/cases.py may cost: python -m benchmarks.bench budgets --write"]
    for case in order:
        if case in by_case:
            lines += ["", f"[{case}]"]
            lines += [
                f'{measure} = {{ budget = {shown(figure)}, unit = "{figure.unit}" }}'
                for measure, figure in by_case[case].items()
            ]
    file.write_text("\n".join(lines) + "\n")


def shown(figure: Figure | None) -> str:
    """A value with three digits, counts whole."""
    if figure is None:
        return "-"
    return f"{figure.value:.0f}" if figure.value >= 100 or figure.unit == "modules" else f"{figure.value:.3g}"


def table(judgements: Sequence[Judgement], cpu_s: Mapping[str, float]) -> str:
    """One line a case: CPU seconds, then each measure with its budget.

    Args:
        judgements: of all measures of all cases.
        cpu_s: of each case.
    """
    measures = list(dict.fromkeys(item.figure.measure for item in judgements))
    marks = {"over": "!", "no budget": "?", "under": "v", "within": ""}
    rows = [["case", "CPU s", *(text for measure in measures for text in (measure, "budget"))]]
    for case in dict.fromkeys(item.figure.case for item in judgements):
        of_case = {item.figure.measure: item for item in judgements if item.figure.case == case}
        row = [case, f"{cpu_s[case]:.2f}"]
        for measure in measures:
            item = of_case.get(measure)
            row += [shown(item.figure) + marks[item.word], shown(item.budget)] if item else ["-", "-"]
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(lines)


def told(judgements: Iterable[Judgement]) -> list[str]:
    """A sentence for each figure that is not within its budget."""
    lines = []
    for item in judgements:
        figure, budget = item.figure, item.budget
        name = f"{figure.case}: {figure.measure} {shown(figure)} {figure.unit}"
        if item.word == "over":
            assert budget is not None
            lines.append(f"{name}, {figure.value / budget.value - 1:.0%} over the budget of {shown(budget)}")
        elif item.word == "under":
            lines.append(f"{name}; the budget of {shown(budget)} can be lowered")
        elif item.word == "no budget":
            lines.append(f"{name} has no budget")
    return lines
