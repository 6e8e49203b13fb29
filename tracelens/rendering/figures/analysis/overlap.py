"""What computation hides of the communication, and the kernels that pay for it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tracelens.rendering.figures.base import (
    BLUE,
    ORANGE,
    by_row,
    coded,
    over_ranks,
    ranks,
    stacked_bars,
    table,
    where,
    wrapped,
)
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.table import Result

_MOST_ROWS = 32
_TOP = 15
_ALL = "(all)"
_HOVER = (
    "%{customdata[0]}<br>%{x:,.3f} ms; %{customdata[1]:,} calls take %{customdata[2]:.0%} of the time alone"
)


@figure("overlap")
def overlap(result: Result) -> list[Figure]:
    """Table `overlap`: hidden and exposed time; table `slowdown`: kernels that are slower beside it."""
    return [*_hidden(result), *_slower(result)]


def _hidden(result: Result) -> list[Figure]:
    times = ("hidden_ns", "exposed_ns")
    overlaps = table(result, "overlap", "rank", "group", "collective", "comm_ns", *times)
    if overlaps is None:
        return []
    shown = ranks(overlaps)[:_MOST_ROWS]
    rows_per_rank = max(1, _MOST_ROWS // len(shown))
    rank, comm = overlaps.array("rank"), overlaps.array("comm_ns")
    rows: list[int] = []
    for shown_rank in shown:
        rank_rows = np.flatnonzero(rank == shown_rank)
        rows += rank_rows[np.argsort(-comm[rank_rows], kind="stable")][:rows_per_rank].tolist()
    names = _names(overlaps.texts("collective", rows), overlaps.texts("group", rows))
    if len(shown) > 1:
        names = [f"rank {rank[row]} {name}" for row, name in zip(rows, names, strict=True)]
    parts = dict(zip(("hidden", "exposed_comm"), times, strict=True))
    title = "Communication hidden under computation and exposed, by collective and process group"
    if len(rows) < len(overlaps):
        title += f" ({len(rows)} of {len(overlaps)} rows: of each rank the largest)"
    total_ns = np.maximum(comm, 1)
    return [
        stacked_bars(
            title,
            names,
            {part: by_row(overlaps.array(column), rows) for part, column in parts.items()},
            {part: by_row(overlaps.array(column) / total_ns, rows) for part, column in parts.items()},
        )
    ]


def _names(collectives: list[str], groups: list[str]) -> list[str]:
    """The collective; where it is used by several process groups, with the group."""
    pairs = list(zip(collectives, groups, strict=True))
    used = Counter(collective for collective, _ in set(pairs))
    return [f"{collective} {group}" if used[collective] > 1 else collective for collective, group in pairs]


def _slower(result: Result) -> list[Figure]:
    columns = ("rank", "name", "shapes", "overlapped_count", "alone_mean_ns", "extra_ns")
    slowdowns = table(result, "slowdown", *columns)
    if slowdowns is None:
        return []
    all_names = coded(slowdowns, "name")
    slowdowns = where(slowdowns, np.array([text != _ALL for text in all_names.values])[all_names.codes])
    name, shapes = coded(slowdowns, "name"), coded(slowdowns, "shapes")
    keys, group = np.unique(name.codes * len(shapes.values) + shapes.codes, return_inverse=True)
    extra = np.bincount(group, weights=slowdowns.array("extra_ns"), minlength=len(keys))
    calls = slowdowns.array("overlapped_count")
    count = np.bincount(group, weights=calls, minlength=len(keys))
    alone = np.bincount(group, weights=slowdowns.array("alone_mean_ns") * calls, minlength=len(keys))
    rows = [row for row in np.argsort(-extra, kind="stable")[:_TOP].tolist() if extra[row] > 0]
    if not rows:
        return []
    codes = [divmod(int(keys[row]), len(shapes.values)) for row in rows]
    texts = [
        f"{name.values[name_code]} {shapes.values[shapes_code]}".strip() for name_code, shapes_code in codes
    ]
    title = "Calls beside communication: what they take without it, and the extra time"
    parts = {"alone": alone[rows], "extra": extra[rows]}
    drawn = stacked_bars(
        f"{title} (top {len(rows)}){over_ranks(slowdowns)}",
        texts,
        {part: times.tolist() for part, times in parts.items()},
        {part: (times / (alone + extra)[rows]).tolist() for part, times in parts.items()},
    )
    hover = zip(texts, count[rows].astype(int).tolist(), (1 + extra / alone)[rows].tolist(), strict=True)
    customdata = [[wrapped(text), calls, round(ratio, 4)] for text, calls, ratio in hover]
    for trace, color in zip(drawn["data"], (BLUE, ORANGE), strict=True):
        trace["marker"]["color"] = color
        trace["customdata"] = customdata
        trace["hovertemplate"] = _HOVER
    return [drawn]
