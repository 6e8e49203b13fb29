"""Figures: what a result looks like, as plain plotly dictionaries (`{"data": [...], "layout": {...}}`).

One module an analyzer, registered with `@figure(analyzer)`. It knows table and column names only; where a
table or a column is absent, it draws nothing. No figure holds more than about 5,000 points.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tracelens.guard import Failure, guard
from tracelens.registry import Registry
from tracelens.schema import Result, Skip

Figure = dict[str, Any]
Draw = Callable[[Result], list[Figure]]

FIGURES: Registry[Draw] = Registry("figure", "tracelens.renderers.figures")


def figure(analyzer: str) -> Callable[[Draw], Draw]:
    """Register the decorated function as what draws the results of `analyzer`."""
    return FIGURES.register(analyzer)


def figures(result: Result) -> list[Figure]:
    """The figures of a result; none for an analyzer that has no figure module.

    Every layout has a `title.text`, plain text, and a `height` in pixels.
    """
    draw = dict(FIGURES.items()).get(result.analyzer)
    return draw(result) if draw else []


def drawn(result: Result) -> tuple[list[Figure], Result]:
    """The figures of a result, and the result: with a Skip where they cannot be drawn because of a bug."""
    made = guard(f"figures of {result.analyzer}", figures, result)
    if isinstance(made, Failure):
        return [], replace(result, skips=(*result.skips, Skip("figures", made)))
    return made, result
