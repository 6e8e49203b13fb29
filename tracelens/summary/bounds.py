"""Summaries of the speed of light: of a platform, and of a recorded run."""

from __future__ import annotations

from tracelens.summary.wording import percent
from tracelens.table import Result, Summary, Tile
from tracelens.units import duration, size_text

_TILES = 4


def bounds_summary(result: Result) -> Summary | None:
    """The geometric means of the operations, and the fastest all-reduce by size."""
    meta, means, ranges = result.meta, result.data.get("geometric_means"), result.data.get("crossovers")
    gpus = f"{meta['gpus_per_node']} x {meta['device']}"
    tiles, parts = [], []
    if means is not None:
        names, overlapped, serial = (
            means.texts("operation"),
            means.array("overlapped_ns").tolist(),
            means.array("serial_ns").tolist(),
        )
        for row in range(min(len(names), _TILES)):
            parts.append(f"{names[row]} {duration(overlapped[row])}")
            note = f"geometric mean; {duration(serial[row])} without overlap"
            tiles.append(Tile(f"bound_{row}", names[row], overlapped[row], "ns", note=note, section="bounds"))
    if ranges is not None:
        largest = max(ranges.array("nodes").tolist())
        of_all = [row for row, nodes in enumerate(ranges.array("nodes").tolist()) if nodes == largest]
        names, starts = ranges.texts("algorithm"), ranges.array("from_bytes").tolist()
        listed = [f"{names[row]} from {size_text(starts[row])}" for row in of_all[1:]]
        text = ", ".join([names[of_all[0]], *listed])
        parts.append(f"fastest all-reduce on {largest} node{'s' * (largest > 1)}: {text}")
    return Summary(f"Least times on {gpus}: {'; '.join(parts)}.", tuple(tiles)) if parts else None


def trace_bounds_summary(result: Result) -> Summary | None:
    """The collectives with most time above their bound."""
    table = result.data.get("collectives")
    if table is None:
        return None
    names, groups = table.texts("collective"), table.texts("group")
    achieved, excess = table.array("achieved").tolist(), table.array("excess_ns").tolist()
    sizes = table.array("from_bytes").tolist()
    tiles = [
        Tile(
            f"collective_{row}",
            f"{names[row]}, {groups[row]}",
            achieved[row],
            "fraction" if achieved[row] <= 1 else "ratio",
            note=f"of its links, from {size_text(sizes[row])}; {duration(excess[row])} above the bound",
            section="trace_bounds",
        )
        for row in range(min(len(names), _TILES))
    ]
    verdict = (
        f"{names[0]} of {groups[0]} reaches {percent(achieved[0])} of the speed of its links: "
        f"its transfers take {duration(excess[0])} longer than their bound"
    )
    return Summary(f"{verdict}.", tuple(tiles))
