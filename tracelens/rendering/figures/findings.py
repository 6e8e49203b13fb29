"""What each finding saves, and how much of it is left when others are fixed."""

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
    """Table `findings`: one bar each; solid is what it adds to others, lighter what they save as well."""
    first = ranked.take(slice(_TOP))
    saving = first.array("saving_ns")
    added = np.minimum(first.array("additional_ns"), saving)
    # Shares are of one step, so they are to its savings as the largest is to its own.
    share = float(first.array("fraction").max(initial=0.0)) / max(int(added.max(initial=0)), 1)
    parts = {"in addition to others": added, "saved by others as well": saving - added}
    truncation = f" (the first {_TOP} of {len(ranked)})" if len(ranked) > _TOP else ""
    drawn = stacked_bars(
        f"Step time that each finding saves{truncation}",
        first.texts("finding"),
        parts,
        {name: ns * share for name, ns in parts.items()},
        dict(zip(parts, (BLUE, _LIGHTER), strict=True)),
    )
    for trace in drawn["data"]:
        trace["hovertemplate"] = "%{x:,.3f} ms, %{customdata:.1%} of the step"
    return [drawn]
