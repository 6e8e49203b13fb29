"""What the findings would save, and how much of it is left when those above are fixed."""

from __future__ import annotations

import numpy as np

from tracelens.rendering.figures.base import needs, stacked_bars
from tracelens.rendering.figures.colors import BLUE
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Table

_TOP = 20
_LIGHTER = "rgba(74,116,216,0.3)"


@figure("findings")
@needs("findings", "finding", "saving_ns", "additional_ns", "fraction")
def findings(ranked: Table) -> list[Figure]:
    """Table `findings`: one bar each; solid is what it saves after those above it, lighter the rest."""
    first = ranked.take(slice(_TOP))
    saving = first.array("saving_ns")
    added = np.minimum(first.array("additional_ns"), saving)
    share = first.array("fraction") / np.maximum(saving, 1)
    parts = {"additional to those above": added, "saved by those above as well": saving - added}
    truncation = f" (the first {_TOP} of {len(ranked)})" if len(ranked) > _TOP else ""
    drawn = stacked_bars(
        f"Saving of a step, if only this were fixed{truncation}",
        first.texts("finding"),
        parts,
        {name: ns * share for name, ns in parts.items()},
        dict(zip(parts, (BLUE, _LIGHTER), strict=True)),
    )
    for trace in drawn["data"]:
        trace["hovertemplate"] = "%{x:,.3f} ms, %{customdata:.1%} of the step"
    return [drawn]
