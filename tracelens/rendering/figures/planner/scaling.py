"""Scaling of expert parallelism: where the time of each step goes, and tokens/s."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.rendering.figures.base import axis, chart, plain, rounded, safe, stacked_bars, table
from tracelens.rendering.figures.colors import BLUE, GREY, IDLE, ORANGE, TEAL, VIOLET, colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result, Table

_PARTS = {"compute": BLUE, "all_to_all": ORANGE, "p2p": "#985c14", "other": VIOLET, "bubble": IDLE}
_DISPATCHES = {"alltoall": ORANGE, "dedup": TEAL, "deepep": BLUE}
_ROWS = 40


@figure("scaling")
def scaling(result: Result) -> list[Figure]:
    """Table `breakdown` as a stacked bar per run, `scaling` as bars of tokens/s with the speedup above."""
    drawn = []
    breakdown = table(result, "breakdown", "dispatch", "ep", "step_ns", *_PARTS)
    if breakdown is not None:
        drawn.append(_breakdown(breakdown))
    rates = table(result, "scaling", "dispatch", "ep", "tokens_per_s", "speedup")
    if rates is not None:
        drawn.append(_throughput(rates))
    return drawn


def _breakdown(breakdown: Table) -> Figure:
    ranks, dispatches = breakdown.array("ep").tolist(), breakdown.texts("dispatch")
    rows = sorted(range(len(ranks)), key=ranks.__getitem__)[:_ROWS]
    step_ns = breakdown.array("step_ns")[rows]
    shares = {part: breakdown.array(part)[rows] for part in _PARTS}
    return stacked_bars(
        "Time of a step by ranks that share the experts, and dispatch",
        [f"EP {ranks[row]} {plain(dispatches[row], 20)}" for row in rows],
        {part: share * step_ns for part, share in shares.items()},
        shares,
        _PARTS,
    )


def _throughput(rates: Table) -> Figure:
    dispatches, ranks = rates.texts("dispatch"), rates.array("ep")
    names = list(dict.fromkeys(dispatches))
    labels = sorted(set(ranks.tolist()))
    color = colors(names, _DISPATCHES)
    traces: list[dict[str, Any]] = []
    for name in names:
        rows = np.array([dispatch == name for dispatch in dispatches])
        speedup = rates.array("speedup")[rows].tolist()
        traces.append(
            {
                "type": "bar",
                "name": safe(name, 40),
                "marker": {"color": color.get(name, GREY)},
                "x": [labels.index(ep) for ep in ranks[rows].tolist()],
                "y": rounded(rates.array("tokens_per_s")[rows], 1),
                "text": [f"{ratio:.2f}x" for ratio in speedup],
                "textposition": "outside",
                "cliponaxis": False,
                "hovertemplate": "%{y:,.0f} tokens/s, %{text}",
            }
        )
    return chart(
        traces,
        f"Tokens/s per GPU, and speedup over {plain(names[0], 40)}",
        380,
        barmode="group",
        showlegend=True,
        xaxis={
            "tickvals": list(range(len(labels))),
            "ticktext": [f"EP {ep}" for ep in labels],
            "showgrid": False,
        },
        yaxis=axis("tokens/s per GPU", rangemode="tozero"),
    )
