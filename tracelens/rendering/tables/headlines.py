"""One line about a result, for the section that is folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tracelens.rendering.tables.rows import readable, skipped
from tracelens.rendering.tables.values import one_line, shorten
from tracelens.table import Column, Result, Table
from tracelens.units import duration, size_text

_FEW = 16
"""A table with at most so many different names is a division of a whole, a longer one a ranking."""
_WIDTH = 32
_PARTS = 3
_LEAST = 0.005  # what shows as 0%


def headline(result: Result) -> str:
    """The most telling fact of a result in a few words: what it found, else what it lists or lacks."""
    special = _SPECIAL.get(result.analyzer)
    fact = special(result) if special else ""
    if not fact:
        fact = next(filter(None, (_listed(table) for table in readable(result).values() if len(table))), "")
    if not fact and result.skips:
        fact = skipped(result)[0][1]
    return shorten(one_line(fact), 160)


def _listed(table: Table) -> str:
    """What a table lists, with the names that take most of its time."""
    schema = table.schema
    names = next((c for c in schema.columns if c.is_text and not c.prose and not c.folded), None)
    if schema.kind == "entries" and names is not None:
        return f"{_counted(len(table), 'entry')}, first: {shorten(table.texts(names.name)[0], _WIDTH)}"
    if schema.kind == "tree":
        return _tree(table)
    amount = next((c for c in schema.columns if c.unit in ("ns", "bytes") and not _is_time_stamp(c)), None)
    if names is None or amount is None:
        return ""
    named, by, _ = one_line(schema.title).partition(" by ")
    noun = named.lower() if by and names.name == "name" else f"{names.name.replace('_', ' ')}s"
    total, count = _totals(table, names.name, amount.name)
    # Only shares of one whole add up; scenarios, schedules and the like stand side by side.
    divides = any(column.unit == "fraction" for column in schema.columns)
    if not divides:
        return f"{count:,} {noun}" if count > _FEW else ""
    if count > _FEW:
        shares = np.sort(list(total.values()))[::-1].cumsum() / max(sum(total.values()), 1)
        half = int(np.searchsorted(shares, 0.5)) + 1
        whole = "time" if amount.unit == "ns" else "bytes"
        take = "one takes" if half == 1 else f"{half:,} take"
        return f"{count:,} {noun}, {take} half of the {whole}"
    return _shares(total) if count > 1 else ""


def _totals(table: Table, names: str, amount: str) -> tuple[dict[str, float], int]:
    """The amounts of each name over all rows, absent ones left out, and the number of names."""
    coded = table.coded(names)
    amounts = np.maximum(table.array(amount).astype(np.float64), 0)
    sums = np.bincount(coded.codes, weights=amounts, minlength=len(coded.values))
    used = np.flatnonzero(np.bincount(coded.codes, minlength=len(coded.values)))
    return {str(coded.values[code]): float(sums[code]) for code in used.tolist()}, len(used)


def _shares(total: Mapping[str, float]) -> str:
    """The largest parts of a whole: 'experts 45%, router 20%'."""
    whole = sum(total.values())
    largest = sorted(total.items(), key=lambda item: -item[1])[:_PARTS]
    return ", ".join(
        f"{_readable(name)} {value / whole:.0%}"
        for name, value in largest
        if whole > 0 and value / whole >= _LEAST
    )


def _tree(table: Table) -> str:
    sizes = next((name for name in ("exclusive_ns", "subtree_ns", "sum_ns") if name in table.columns), "")
    if not sizes:
        return ""
    level = table.coded("level").equals("category") if "level" in table.columns else np.zeros(0, bool)
    top = table.take(level if level.any() else table.array("parent") < 0)
    return _shares(_totals(top, "name", sizes)[0])


def _is_time_stamp(column: Column) -> bool:
    return column.name == "ts_ns" or column.name.endswith("_ts_ns")


def _counted(count: int, noun: str) -> str:
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + "s"
    return f"{count:,} {noun if count == 1 else plural}"


def _readable(name: str) -> str:
    return shorten(one_line(name).replace("_", " ").strip("()"), _WIDTH) or "unnamed"


def _part(result: Result, name: str, *columns: str) -> Table | None:
    table = result.data.get(name)
    return table if table is not None and len(table) and set(columns) <= set(table.columns) else None


def _range(values: NDArray[np.number] | Sequence[float]) -> str:
    """Shares over ranks or steps: '20%' or '20% to 40%'."""
    low, high = f"{np.min(values):.0%}", f"{np.max(values):.0%}"
    return low if low == high else f"{low} to {high}"


def _input(result: Result) -> str:
    table = _part(result, "input", "events_kept")
    if table is None:
        return ""
    lost = int(table.array("events_dropped").sum()) if "events_dropped" in table.columns else 0
    events = f"{_counted(len(table), 'trace')}, {int(table.array('events_kept').sum()):,} events"
    return f"{events}, {lost:,} dropped" if lost else events


def _timeline(result: Result) -> str:
    table = _part(result, "timeline", "metric", "fraction")
    if table is None:
        return ""
    parts = []
    for metric, label in (
        ("computation", "computation"),
        ("exposed_comm", "exposed communication"),
        ("idle", "idle"),
    ):
        shares = table.array("fraction")[table.coded("metric").equals(metric)]
        if len(shares) and shares.max() >= _LEAST:
            parts.append(f"{label} {_range(shares)}")
    return ", ".join(parts)


def _steps(result: Result) -> str:
    table = _part(result, "steps", "rank", "step", "dur_ns")
    if table is None:
        return ""
    steps, dur_ns = len(set(table.texts("step"))), table.array("dur_ns")
    shortest, longest = (duration(float(end)) for end in (dur_ns.min(), dur_ns.max()))
    ranks = len(np.unique(table.array("rank")))
    count = _counted(steps, "step") + (f" on {ranks} ranks" if ranks > 1 else "")
    return f"{count}, {shortest}" + (f" to {longest}" if longest != shortest else "")


def _roofline(result: Result) -> str:
    table = _part(result, "utilisation", "mfu", "flops", "dur_ns")
    parts = []
    if table is not None:
        # Stretches without FLOPs are outside of the steps.
        known = table.take((table.array("mfu") >= 0) & (table.array("flops") > 0))
        dur = known.array("dur_ns")
        if dur.sum() > 0:
            parts.append(f"MFU {(known.array('mfu') * dur).sum() / dur.sum():.1%}")
    counted = result.meta.get("coverage")
    if isinstance(counted, float):
        parts.append(f"{counted:.0%} of the GPU time counted")
    return ", ".join(parts)


def _collectives(result: Result) -> str:
    table = _part(result, "ranks", "kernel_ns", "sync_ns")
    kernel = int(table.array("kernel_ns").sum()) if table is not None else 0
    if table is None or kernel <= 0 or (table.array("sync_ns") < 0).all():
        return ""
    sync = np.maximum(table.array("sync_ns"), 0)
    return f"{int(sync.sum()) / kernel:.0%} of the communication kernels' time is waiting"


def _overlap(result: Result) -> str:
    table = _part(result, "overlap", "comm_ns", "exposed_ns")
    comm = int(table.array("comm_ns").sum()) if table is not None else 0
    if table is None or comm <= 0:
        return ""
    return f"{int(table.array('exposed_ns').sum()) / comm:.0%} of communication is exposed"


def _stragglers(result: Result) -> str:
    table = _part(result, "stragglers", "rank", "caused_wait_ns", "significant")
    if table is None:
        return ""
    significant = np.flatnonzero(table.array("significant"))
    if not len(significant):
        return "no significant straggler"
    caused = table.array("caused_wait_ns")
    worst = int(significant[np.argmax(caused[significant])])
    rank = int(table.array("rank")[worst])
    return f"the others wait {duration(float(caused[worst]))} for rank {rank}"


def _moe(result: Result) -> str:
    phases = ("forward_ns", "backward_ns", "recompute_ns")
    table = _part(result, "stages", "stage", *phases)
    if table is None:
        return ""
    total: dict[str, float] = {}
    for phase in phases:
        for name, ns in _totals(table, "stage", phase)[0].items():
            total[name] = total.get(name, 0) + ns
    return _shares(total)


def _launches(result: Result) -> str:
    table = _part(result, "launches", "metric", "fraction")
    if table is None:
        return ""
    shares = table.array("fraction")[table.coded("metric").equals("launch bound")]
    return f"the GPU waits for launches {_range(shares)} of the time" if len(shares) else ""


def _pipeline(result: Result) -> str:
    table = _part(result, "bubble", "bubble_fraction", "expected_fraction")
    if table is None:
        return ""
    expected = table.array("expected_fraction")
    bubble = f"bubble {_range(table.array('bubble_fraction'))}"
    return f"{bubble}, {_range(expected)} expected of the schedule" if (expected >= 0).all() else bubble


def _serving(result: Result) -> str:
    table = _part(result, "summary", "engine", "steps", "phase_mismatch_fraction", "padding_fraction")
    if table is None:
        return ""
    steps = int(table.array("steps")[0])
    if steps < 0 and (kinds := _part(result, "ranks", "count")) is not None:
        steps = int(kinds.array("count").sum())  # of the only rank that labels its steps
    parts = [f"{table.texts('engine')[0]}: {_counted(steps, 'step')}"]
    for column, label in (("phase_mismatch_fraction", "phase mismatch"), ("padding_fraction", "padding")):
        shares = table.array(column)
        if len(shares) and (shares >= 0).all():
            parts.append(f"{label} {_range(shares)}")
    return ", ".join(parts)


def _diff(result: Result) -> str:
    ends = [result.meta.get(key) for key in ("base_ns", "cand_ns")]
    if not all(isinstance(end, int | float) and end > 0 for end in ends):
        return ""
    base, cand = (float(str(end)) for end in ends)
    return f"{duration(base)} to {duration(cand)}, {cand / base - 1:+.1%}"


def _scaling(result: Result) -> str:
    """The fastest run."""
    table = result.data.get("scaling")
    if table is None or not len(table):
        return ""
    rate = table.array("tokens_per_s")
    best = int(rate.argmax())
    run = f"{table.texts('dispatch')[best]} with EP {table.array('ep')[best]}"
    return f"{run}: {rate[best]:,.0f} tokens/s per GPU"


def _memory(result: Result) -> str:
    """The peak of a projection."""
    worst = result.meta.get("worst_bytes")
    return f"{size_text(worst)} on the fullest GPU" if worst else ""


_SPECIAL: Mapping[str, Callable[[Result], str]] = {
    "collectives": _collectives,
    "diff": _diff,
    "input": _input,
    "launches": _launches,
    "memory": _memory,
    "moe": _moe,
    "overlap": _overlap,
    "pipeline": _pipeline,
    "roofline": _roofline,
    "scaling": _scaling,
    "serving": _serving,
    "steps": _steps,
    "stragglers": _stragglers,
    "timeline": _timeline,
}
"""Analyzers whose first table does not begin with the most telling figure."""
