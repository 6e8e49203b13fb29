"""How evenly the tokens of MoE layers are spread over ranks, and where the layers' time goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.arrays import Float, Int
from tracelens.rendering.figures.base import axis, chart, ms, needs, plain, ranks, rounded
from tracelens.rendering.figures.colors import BLUE, ORANGE, STAGES, colors
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.ranks import MOST_BARS, rank_times
from tracelens.table import Result, Table

_RANKS = 64
_CELLS = 4000
_LEAST, _MOST = 0.1, 1.0
"""The colours span at least this much around 100%, or noise would look like imbalance, and at most."""
_PHASES = ("forward_ns", "backward_ns", "recompute_ns")


@figure("moe")
def moe(result: Result) -> list[Figure]:
    """Table `tokens` as layers by ranks, coloured by load; table `stages` as time of each rank."""
    return [*_tokens(result), *_stages(result)]


@needs("tokens", "rank", "layer", "tokens", "ratio")
def _tokens(loads: Table) -> list[Figure]:
    # An even layer or rank tells nothing: where not all fit, the most uneven ones are shown.
    numbers = {name: np.unique(loads.array(name)) for name in ("rank", "layer")}
    shown_ranks = _most_uneven(loads, "rank", _RANKS)
    shown_layers = _most_uneven(loads, "layer", _CELLS // len(shown_ranks))
    ratio = _matrix(loads, "ratio", shown_layers, shown_ranks)
    measured = ratio[~np.isnan(ratio)]
    if len(numbers["rank"]) < 2 or not len(measured):
        return []
    span = min(max(float(np.abs(measured - 1).max()), _LEAST), _MOST)
    tokens = _matrix(loads, "tokens", shown_layers, shown_ranks)
    drawn: dict[str, Any] = {
        "type": "heatmap",
        "x": list(map(str, shown_ranks.tolist())),
        "y": list(map(str, shown_layers.tolist())),
        "z": _cells(ratio, 4),
        "customdata": _cells(tokens, 1),
        "zmin": 1 - span,
        "zmid": 1,
        "zmax": 1 + span,
        "xgap": 1,
        "ygap": 1,
        "colorscale": [[0, BLUE], [0.5, "rgba(152,161,173,0.16)"], [1, ORANGE]],
        "colorbar": {"title": {"text": "of the mean"}, "tickformat": ".0%"},
        "hoverongaps": False,
        "hovertemplate": "rank %{x}, layer %{y}: %{customdata:,.1f} tokens, %{z:.1%} of the mean"
        "<extra></extra>",
    }
    truncated = [
        f"{len(shown)} of {len(numbers[name])} {name}s"
        for name, shown in (("rank", shown_ranks), ("layer", shown_layers))
        if len(shown) < len(numbers[name])
    ]
    title = "Tokens per MoE layer and rank, relative to the mean of the ranks"
    if truncated:
        title += f" (the most uneven {', '.join(truncated)})"
    return [
        chart(
            [drawn],
            title,
            min(max(150 + 26 * len(shown_layers), 240), 760),
            xaxis=axis("rank", type="category", showgrid=False),
            yaxis=axis("layer", type="category", autorange="reversed", showgrid=False),
        )
    ]


def _most_uneven(loads: Table, name: str, most: int) -> Int:
    """The ranks or layers, at most so many, in order of their numbers."""
    numbers, group = np.unique(loads.array(name), return_inverse=True)
    ratio = loads.array("ratio")
    deviation = np.zeros(len(numbers))
    np.maximum.at(deviation, group, np.where(ratio >= 0, np.abs(ratio - 1), 0))
    uneven: Int = numbers[np.sort(np.argsort(-deviation, kind="stable")[:most])]
    return uneven


def _matrix(loads: Table, value: str, layers: Int, ranks: Int) -> Float:
    """The values by layer and rank; what is not there or not known is NaN."""
    layer, rank, values = (loads.array(name) for name in ("layer", "rank", value))
    inside = np.isin(layer, layers) & np.isin(rank, ranks) & (values >= 0)
    matrix = np.full((len(layers), len(ranks)), np.nan)
    matrix[np.searchsorted(layers, layer[inside]), np.searchsorted(ranks, rank[inside])] = values[inside]
    return matrix


def _cells(matrix: Float, digits: int) -> list[list[float | None]]:
    return [[None if np.isnan(number) else number for number in rounded(row, digits)] for row in matrix]


@needs("stages", "rank", "stage", "fraction", *_PHASES)
def _stages(stage_times: Table) -> list[Figure]:
    shown = ranks(stage_times)
    fractions = stage_times.pivot("stage", "rank", "fraction", shown)
    stages = fractions.rows
    phases = np.stack([stage_times.pivot("stage", "rank", name, shown).values for name in _PHASES], axis=-1)
    total_ns = phases.sum(axis=-1)
    largest = int(np.argmax(total_ns.sum(axis=-1)))
    share = float(total_ns[largest].sum()) / max(float(total_ns.sum()), 1.0)
    drawn = rank_times(
        f"Time in MoE layers per step, by stage: {plain(stages[largest], 30)} takes {share:.0%}",
        shown,
        dict(zip(stages, total_ns, strict=True)),
        fractions.by_row(),
        colors(stages, STAGES),
    )
    if len(shown) > MOST_BARS:
        return [drawn]
    splits = ", ".join(
        f"{name.removesuffix('_ns')} %{{customdata[{number}]:,.3f}} ms"
        for number, name in enumerate(_PHASES, 1)
    )
    for trace, times in zip(drawn["data"], phases, strict=True):
        trace["customdata"] = [
            [fraction, *ms(split)] for fraction, split in zip(trace["customdata"], times, strict=True)
        ]
        trace["hovertemplate"] = "%{x:,.3f} ms, %{customdata[0]:.1%} of the step<br>" + splits
    return [drawn]
