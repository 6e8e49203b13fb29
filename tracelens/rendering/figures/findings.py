"""What the findings would save, and how much of it is left when those above are fixed."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import BLUE, stacked_bars, table
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result

_TOP = 20
_LIGHTER = "rgba(74,116,216,0.3)"


@figure("findings")
def findings(result: Result) -> list[Figure]:
    """Table `findings`: one bar each; solid is what it saves after those above it, lighter the rest."""
    ranked = table(result, "findings", "finding", "saving_ns", "additional_ns", "fraction")
    if ranked is None:
        return []
    first = slice(_TOP)
    saving = ranked.array("saving_ns")[first]
    added = np.minimum(ranked.array("additional_ns")[first], saving)
    share = ranked.array("fraction")[first] / np.maximum(saving, 1)
    parts = {"additional to those above": added, "saved by those above as well": saving - added}
    truncation = f" (the first {_TOP} of {len(ranked)})" if len(ranked) > _TOP else ""
    drawn = stacked_bars(
        f"Saving of a step, if only this were fixed{truncation}",
        ranked.texts("finding", first),
        {name: values.tolist() for name, values in parts.items()},
        {name: (values * share).tolist() for name, values in parts.items()},
    )
    for trace, color in zip(drawn["data"], (BLUE, _LIGHTER), strict=True):
        trace["marker"]["color"] = color
        trace["hovertemplate"] = "%{x:,.3f} ms, %{customdata:.1%} of the step"
    return [drawn]
