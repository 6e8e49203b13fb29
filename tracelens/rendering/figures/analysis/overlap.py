"""What computation hides of the communication, and the kernels that pay for it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tracelens.rendering.figures.base import needs, over_ranks, ranks, stacked_bars, wrapped
from tracelens.rendering.figures.colors import BLUE, ORANGE
from tracelens.rendering.figures.figure import Figure, figure
from tracelens.rendering.figures.ranks import MOST_BARS, rank_times
from tracelens.table import Coded, Result, Table

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


@needs("overlap", "rank", "group", "collective", "comm_ns", "hidden_ns", "exposed_ns")
def _hidden(overlaps: Table) -> list[Figure]:
    exposed_ns, all_ns = (int(overlaps.array(name).sum()) for name in ("exposed_ns", "comm_ns"))
    share = f": {exposed_ns / all_ns:.0%} exposed" if all_ns > 0 else ""
    shown = ranks(overlaps)
    if len(shown) > MOST_BARS:
        return [_exposed_by_rank(overlaps, shown, share)]
    rows_per_rank = max(1, _MOST_ROWS // len(shown))
    rank, comm = overlaps.array("rank"), overlaps.array("comm_ns")
    rows = np.argsort(-comm, kind="stable")
    of_rank = [rows[rank[rows] == number][:rows_per_rank] for number in shown]
    drawn = overlaps.take(np.concatenate(of_rank))
    names = _names(drawn.texts("collective"), drawn.texts("group"))
    if len(shown) > 1:
        names = [f"rank {number} {name}" for number, name in zip(drawn.values("rank"), names, strict=True)]
    title = f"Communication by collective and process group{share}"
    if len(drawn) < len(overlaps):
        title += f" ({len(drawn)} of {len(overlaps)} rows: of each rank the largest)"
    parts = {"hidden": drawn.array("hidden_ns"), "exposed_comm": drawn.array("exposed_ns")}
    total_ns = np.maximum(drawn.array("comm_ns"), 1)
    return [stacked_bars(title, names, parts, {part: ns / total_ns for part, ns in parts.items()})]


def _exposed_by_rank(overlaps: Table, shown: list[int], share: str) -> Figure:
    """Exposed time of the largest collectives on each of many ranks."""
    names = Coded.of(_names(overlaps.texts("collective"), overlaps.texts("group")))
    row = names.codes * len(shown) + np.searchsorted(shown, overlaps.array("rank"))
    exposed_ns, comm_ns = (
        np.bincount(row, weights=overlaps.array(name), minlength=len(names.values) * len(shown)).reshape(
            len(names.values), len(shown)
        )
        for name in ("exposed_ns", "comm_ns")
    )
    largest = np.argsort(-comm_ns.sum(axis=1), kind="stable")[:_TOP].tolist()
    return rank_times(
        f"Exposed communication by collective{share}",
        shown,
        {names.values[code]: exposed_ns[code] for code in largest},
        {names.values[code]: exposed_ns[code] / np.maximum(comm_ns[code], 1) for code in largest},
    )


def _names(collectives: list[str], groups: list[str]) -> list[str]:
    """The collective; where it is used by several process groups, with the group."""
    pairs = list(zip(collectives, groups, strict=True))
    used = Counter(collective for collective, _ in set(pairs))
    return [f"{collective} {group}" if used[collective] > 1 else collective for collective, group in pairs]


@needs("slowdown", "rank", "name", "shapes", "overlapped_count", "alone_mean_ns", "extra_ns")
def _slower(slowdowns: Table) -> list[Figure]:
    slowdowns = slowdowns.take(~slowdowns.coded("name").equals(_ALL))
    group, (names, shapes) = slowdowns.group("name", "shapes")
    calls = slowdowns.array("overlapped_count")
    extra, count, alone = (
        np.bincount(group, weights=weights, minlength=len(names))
        for weights in (slowdowns.array("extra_ns"), calls, slowdowns.array("alone_mean_ns") * calls)
    )
    top = [row for row in np.argsort(-extra, kind="stable")[:_TOP].tolist() if extra[row] > 0]
    if not top:
        return []
    texts = [f"{names[row]} {shapes[row]}".strip() for row in top]
    parts = {"alone": alone[top], "extra": extra[top]}
    total_ns = parts["alone"] + parts["extra"]
    title = "Calls overlapped by communication: their time alone, and the slowdown"
    drawn = stacked_bars(
        f"{title} (top {len(top)}){over_ranks(slowdowns)}",
        texts,
        parts,
        {part: ns / total_ns for part, ns in parts.items()},
        {"alone": BLUE, "extra": ORANGE},
    )
    ratio = 1 + parts["extra"] / parts["alone"]
    hover = zip(texts, count[top].astype(int).tolist(), ratio.tolist(), strict=True)
    customdata = [[wrapped(text), calls, round(times, 4)] for text, calls, times in hover]
    for trace in drawn["data"]:
        trace |= {"customdata": customdata, "hovertemplate": _HOVER}
    return [drawn]
