"""Why the GPU waits: its idle time by cause, and the longest gaps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tracelens.analysis.analyzer import analyzer
from tracelens.analysis.common import no_gpu_work
from tracelens.analysis.host.causes import CAUSES, CODE, IdlePieces, idle_time
from tracelens.analysis.host.gaps import GAP_NS, Gaps
from tracelens.analysis.host.stacks import threads
from tracelens.arrays import Int, lookup
from tracelens.table import RANK, Column, Result, Schema, Skip, codes, result, stats
from tracelens.trace import Run, Scope, Trace, Work, enclosing_op, gpu_work, steps_of
from tracelens.units import duration

SHOWN = 500

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_HOST = Column("host", "category", doc="the call, op, annotation or Python frame that the host was in")
_OP = Column(
    "op", "category", doc="innermost op around that; for a silent host, the ops or calls before and after"
)
_LISTED = "; ".join(f"{name}: {why}" for name, why in CAUSES.items())

CAUSE_TABLE = Schema(
    "Idle time by cause",
    (
        RANK,
        Column("cause", "str", doc=_LISTED),
        Column("count", "int64", "count", "gaps with time of this cause"),
        Column("dur_ns", "int64", "ns", "idle time of this cause"),
        Column("fraction", "float64", "fraction", "share of the rank's idle time"),
    ),
    doc=f"Each gap is divided by time among its causes, which add up to the idle time. {_LISTED}.",
    leading="dur_ns",
    descending=True,
)
HOSTS = Schema(
    "Idle time by host activity",
    (
        RANK,
        Column("cause", "str", doc="as in `causes`"),
        _HOST,
        _OP,
        Column("count", "int64", "count", "gaps"),
        Column("dur_ns", "int64", "ns", "idle time with the host there"),
        Column("mean_ns", "float64", "ns", "mean share of a gap", intensive=True),
        Column("max_ns", "int64", "ns", "longest share of a gap", intensive=True),
        Column("fraction", "float64", "fraction", "share of the rank's idle time"),
    ),
    leading="dur_ns",
    descending=True,
)
GAPS = Schema(
    "Longest gaps",
    (
        RANK,
        Column("ts_ns", "int64", "ns", "since the rank's first GPU work"),
        Column("dur_ns", "int64", "ns", "length of the gap"),
        Column("step", "category", doc="step in which the gap begins"),
        Column("cause", "str", doc="cause of most of it, as in `causes`"),
        Column("cause_fraction", "float64", "fraction", "share of the gap"),
        _HOST,
        _OP,
        Column("next_work", "category", doc="GPU work after the gap"),
        Column("stream", "int64", doc="stream of that work"),
    ),
    key=(),
    leading="dur_ns",
    descending=True,
)
PIECES = Schema(
    "Pieces of the longest gaps",
    (
        RANK,
        Column("local_ts_ns", "int64", "ns", "by the clock of the rank's own trace"),
        Column("dur_ns", "int64", "ns", "length of the piece"),
        Column("cause", "category", doc="as in `causes`"),
        _HOST,
        _OP,
    ),
    detail=True,
    key=(),
)


TABLES = {"causes": CAUSE_TABLE, "hosts": HOSTS, "gaps": GAPS, "pieces": PIECES}


@analyzer("idle", title="Idle time", order=60, tables=TABLES)
def idle(run: Run, *, scope: Scope = "all") -> Result:
    """Why is the GPU idle, and what is the host doing at that time?

    Reading:
        `causes` adds up to all idle time. `hosts` says where in the program the host was, `gaps` when the
        longest gaps were and what ended them.

    Limits:
        A cause is what the launching thread is recorded to do; where little is recorded, the host counts as
        silent. Waiting inside a communication kernel is not idle time.

    Args:
        run: the ranks.
        scope: "all", or "linked": work whose launch call is not in the trace then counts as idle.

    Returns:
        tables `causes`, `hosts` (by cause and host op or Python frame), `gaps` (the longest) and `pieces`
        (of these, each moment with its cause).
    """
    parts: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES}
    skips: list[Skip] = []
    for trace in run.traces:
        rank, work = trace.meta.rank, gpu_work(trace, scope)
        if not len(work.event):
            skips.append(Skip(f"rank {rank}", no_gpu_work(trace, scope)))
            continue
        tables = _tables(trace, work, scope)
        for name, rows in tables.items():
            parts[name].append({"rank": np.full(len(next(iter(rows.values()))), rank), **rows})
        if not len(tables["gaps"]["dur_ns"]):
            short = (
                f"no gap is longer than {GAP_NS} ns"
                if len(tables["causes"]["dur_ns"])
                else "the GPU never waits"
            )
            skips.append(Skip(f"rank {rank}: gaps", short))
        skips += _advice(trace, tables["causes"])
    return result({name: TABLES[name].concat(rows) for name, rows in parts.items()}, skips, scope=scope)


def _tables(trace: Trace, work: Work, scope: Scope) -> dict[str, dict[str, Any]]:
    gaps, pieces = idle_time(trace, scope)
    host, op, texts = host_names(trace, pieces)
    total = max(int(gaps.dur.sum()), 1)
    # A gap's share of a cause, or of a host, is one share, however often it was broken off.
    group, (_, cause) = codes(pieces.gap, pieces.cause)
    share = np.zeros(len(cause), dtype=np.int64)
    np.add.at(share, group, pieces.dur)
    by_cause = stats(cause, share, len(CAUSES))
    shown = [code for code in np.argsort(-by_cause.total, kind="stable") if by_cause.number[code]]
    names = list(CAUSES)
    return {
        "causes": {
            "cause": [names[code] for code in shown],
            "count": by_cause.number[shown],
            "dur_ns": by_cause.total[shown],
            "fraction": by_cause.total[shown] / total,
        },
        "hosts": _by_host(pieces, host, op, texts, total),
        **_longest(trace, work, gaps, pieces, (host, op, texts)),
    }


def _by_host(pieces: IdlePieces, host: Int, op: Int, texts: list[str], total: int) -> dict[str, Any]:
    listed = pieces.cause != CODE["short gaps"]
    pieces, host, op = pieces.take(listed), host[listed], op[listed]
    group, (_, cause, host, op) = codes(pieces.gap, pieces.cause, host, op)
    share = np.zeros(len(cause), dtype=np.int64)
    np.add.at(share, group, pieces.dur)
    group, (cause, host, op) = codes(cause, host, op)
    by_host = stats(group, share, len(cause))
    order = np.argsort(-by_host.total, kind="stable")
    names = list(CAUSES)
    return {
        "cause": [names[code] for code in cause[order]],
        "host": [texts[code] for code in host[order]],
        "op": [texts[code] for code in op[order]],
        "count": by_host.number[order],
        "dur_ns": by_host.total[order],
        "mean_ns": by_host.mean[order],
        "max_ns": by_host.max[order],
        "fraction": by_host.total[order] / total,
    }


def _longest(
    trace: Trace, work: Work, gaps: Gaps, pieces: IdlePieces, named: tuple[Int, Int, list[str]]
) -> dict[str, dict[str, Any]]:
    """The longest gaps with the cause and the host of most of their time, and their pieces."""
    host, op, texts = named
    steps = steps_of(trace)
    listed = np.flatnonzero(gaps.dur > GAP_NS)
    longest = listed[np.argsort(-gaps.dur[listed], kind="stable")][:SHOWN]
    rows = np.flatnonzero(np.isin(pieces.gap, longest))
    cause, cause_ns = _largest(pieces, rows, len(gaps.start), pieces.cause)
    of_cause = rows[pieces.cause[rows] == cause[pieces.gap[rows]]]
    main_host, _ = _largest(pieces, of_cause, len(gaps.start), host)
    main_op, _ = _largest(
        pieces, of_cause[host[of_cause] == main_host[pieces.gap[of_cause]]], len(gaps.start), op
    )
    names, after = list(CAUSES), gaps.after[longest]
    step = np.searchsorted(steps.edges, gaps.start[longest], side="right") - 1
    dur = gaps.dur[longest]
    return {
        "gaps": {
            "ts_ns": gaps.start[longest] - int(work.start.min()),
            "dur_ns": dur,
            "step": [steps.labels[index] for index in np.clip(step, 0, len(steps.labels) - 1)],
            "cause": [names[code] for code in cause[longest]],
            "cause_fraction": cause_ns[longest] / dur,
            "host": [texts[code] for code in main_host[longest]],
            "op": [texts[code] for code in main_op[longest]],
            "next_work": [work.names[work.name[row]] if row >= 0 else "" for row in after],
            "stream": lookup(work.stream, after, -1),
        },
        "pieces": {
            "local_ts_ns": pieces.start[rows],
            "dur_ns": pieces.dur[rows],
            "cause": [names[code] for code in pieces.cause[rows]],
            "host": [texts[code] for code in host[rows]],
            "op": [texts[code] for code in op[rows]],
        },
    }


def _largest(pieces: IdlePieces, rows: Int, gaps: int, value: Int) -> tuple[Int, Int]:
    """For each gap, the value with most of the time of these pieces, and that time."""
    group, (gap, values) = codes(pieces.gap[rows], value[rows])
    time = np.zeros(len(gap), dtype=np.int64)
    np.add.at(time, group, pieces.dur[rows])
    order = np.lexsort((time, gap))
    largest, largest_ns = np.full(gaps, -1), np.zeros(gaps, dtype=np.int64)
    largest[gap[order]], largest_ns[gap[order]] = values[order], time[order]
    return largest, largest_ns


def host_names(trace: Trace, pieces: IdlePieces) -> tuple[Int, Int, list[str]]:
    """Codes of what the host was in during each piece and of the op around it, and the texts; '' is unknown.

    Python frames of one method on several objects carry addresses; without them they are one. A silent
    host has no op around it, but one before and one behind it.
    """
    events = trace.arrays
    texts: dict[str, int] = {}
    plain = [texts.setdefault(_ADDRESS.sub("", name), len(texts)) for name in [*events.names, ""]]
    code, nothing = np.array(plain, dtype=np.int64), len(events.names)
    op = code[lookup(events.name, lookup(trace.once(enclosing_op), pieces.inner, -1), nothing)]
    silent = np.flatnonzero(pieces.cause == CODE["silent host"])
    if len(silent):
        op[silent] = [texts.setdefault(text, len(texts)) for text in _around(trace, pieces.take(silent))]
    return code[lookup(events.name, pieces.host, nothing)], op, list(texts)


def _around(trace: Trace, silent: IdlePieces) -> list[str]:
    """For each piece of a silent host's time, what its thread was in before and after that stretch."""
    events, thread = trace.arrays, threads(trace)
    is_call = events.where("op", "launch") & ~events.copied
    begins = np.ones(len(silent.start), dtype=bool)
    begins[1:] = (silent.start[1:] != silent.end[:-1]) | (silent.gap[1:] != silent.gap[:-1])
    stretch = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(begins)) - 1
    before, after = np.full(len(first), -1), np.full(len(first), -1)
    for number in np.unique(silent.thread[first]).tolist():
        rows = np.flatnonzero(is_call & (thread == number))
        of_thread = np.flatnonzero(silent.thread[first] == number)
        # Of nested ones the outermost: it ends last, and begins first.
        ended = rows[np.argsort(events.end[rows], kind="stable")]
        begun = rows[np.lexsort((events.depth[rows], events.start[rows]))]
        nearest = np.searchsorted(events.end[ended], silent.start[first[of_thread]], side="right") - 1
        before[of_thread] = lookup(ended, nearest, -1)
        nearest = np.searchsorted(events.start[begun], silent.end[last[of_thread]])
        after[of_thread] = lookup(np.append(begun, -1), nearest, -1)
    texts = [
        f"{events.names[events.name[low]] if low >= 0 else 'start'} -> "
        f"{events.names[events.name[high]] if high >= 0 else 'end'}"
        for low, high in zip(before.tolist(), after.tolist(), strict=True)
    ]
    return [texts[index] for index in stretch.tolist()]


def _advice(trace: Trace, causes: dict[str, Any]) -> list[Skip]:
    """What to record to learn what a silent host did."""
    silent = dict(zip(causes["cause"], causes["dur_ns"], strict=True)).get("silent host", 0)
    if not silent or trace.arrays.where("python").any():
        return []
    reason = "no Python frames recorded; with_stack=True (tracelens.record: stack=True) shows them"
    return [Skip(f"rank {trace.meta.rank}: activity of a host silent for {duration(int(silent))}", reason)]
