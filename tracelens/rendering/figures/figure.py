"""Figures: what a result looks like, as plain plotly dictionaries (`{"data": [...], "layout": {...}}`).

One module an analyzer, registered with `@figure(analyzer)`. It knows table and column names only; where a
table or a column is absent, it draws nothing. No figure holds more than about 5,000 points.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tracelens.guard import Failure, guard
from tracelens.registry import Registry
from tracelens.rendering.tables import one_line
from tracelens.table import Result, Skip

Figure = dict[str, Any]
Draw = Callable[[Result], list[Figure]]

FIGURES: Registry[Draw] = Registry("figure", "tracelens.rendering.figures")


def figure(analyzer: str) -> Callable[[Draw], Draw]:
    """Register the decorated function as what draws the results of `analyzer`."""
    return FIGURES.register(analyzer)


def figures(result: Result) -> list[Figure]:
    """The figures of a result; none for an analyzer that has no figure module.

    Every layout has a `title.text`, plain text, and a `height` in pixels. Texts have no tags that plotly
    would follow, except for line breaks and emphasis. A figure may name the `table` that it shows; without
    a name it is of the first one.
    """
    draw = dict(FIGURES.items()).get(result.analyzer)
    return [_safe(figure) for figure in draw(result)] if draw else []


def drawn(result: Result) -> tuple[list[Figure], Result]:
    """The figures of a result, and the result: with a Skip where they cannot be drawn because of a bug."""
    made = guard(f"figures of {result.analyzer}", figures, result)
    if isinstance(made, Failure):
        return [], replace(result, skips=(*result.skips, Skip("figures", made)))
    return made, result


_TAGS = re.compile(r"(</?(?:b|i|sub|sup)>|<br>|<extra></extra>)")


def _safe(figure: Figure) -> Figure:
    safe: Figure = _inert(figure)
    # Shown by the page, which escapes it, and not by plotly.
    title = str(figure["layout"].get("title", {}).get("text", ""))
    return {**safe, "layout": {**safe["layout"], "title": {"text": one_line(title)}}}


def _inert(value: Any) -> Any:
    """A figure or a part of it, whatever text of a trace got into it unescaped."""
    if isinstance(value, str):
        if value.isprintable() and "<" not in value:
            return value
        parts = _TAGS.split(one_line(value))
        parts[::2] = [part.replace("<", "&lt;").replace(">", "&gt;") for part in parts[::2]]
        return "".join(parts)
    if isinstance(value, dict):
        return {key: _inert(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_inert(element) for element in value]
    return value
