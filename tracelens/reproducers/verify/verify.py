"""Run all scripts of a directory and hold their times against the traced ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.errors import TracelensError
from tracelens.reproducers import folder as folders
from tracelens.reproducers.folder import Entry
from tracelens.reproducers.verify.isolation import ISOLATED, Refused, absolute, private_copy
from tracelens.reproducers.verify.processes import Ran, run_together
from tracelens.reproducers.verify.rows import STATUSES, Row, judged, unrun
from tracelens.reproducers.verify.worker import Machine, Workers
from tracelens.table import Column, Result, Schema, Table

TIMEOUT_S = 180.0
RANKS = 8
"""Processes that a collective starts at most where it runs on the CPU."""

TOLERANCE = 0.1
BROKEN = ("wrong", "failed", "timeout")
DIFFERENT = ("slower", "faster", "other device")

SUMMARY = Schema(
    "Scripts by status",
    (
        Column("status", "str", doc="as in `scripts`"),
        Column("count", "int64", "count", "scripts of this status"),
        Column("traced_ns", "float64", "ns", "traced time of the calls they represent"),
        Column("fraction", "float64", "fraction", "share of the traced time of all scripts"),
        Column("meaning", "str", doc="what the status means", prose=True),
    ),
)
SCRIPTS = Schema(
    "Scripts",
    (
        Column("status", "str", doc="; ".join(f"{name}: {why}" for name, why in STATUSES.items())),
        Column("file", "str", doc="the script, in the directory that was verified"),
        Column("traced_ns", "float64", "ns", "median GPU time of a call in the trace"),
        Column("replayed_ns", "float64", "ns", "median GPU time here: kernels where known, else elapsed"),
        Column("ratio", "float64", "ratio", "replayed / traced"),
        Column("roofline", "float64", "efficiency", "roofline time on this device / replayed"),
        Column("subject", "str", doc="op, collective, or the sequence"),
        Column("shapes", "str", doc="of its arguments"),
        Column("elapsed_ns", "float64", "ns", "median between device events, gaps included"),
        Column("p10_ns", "float64", "ns", "10th percentile of those times"),
        Column("p90_ns", "float64", "ns", "90th percentile of those times"),
        Column("warm_ns", "float64", "ns", "median with warm caches: the same arguments every call"),
        Column("flops_per_s", "float64", "flops/s", "of a replayed call"),
        Column("bytes_per_s", "float64", "bytes/s", "of a replayed call; bus bandwidth for collectives"),
        Column("count", "int64", "count", "traced calls that the script represents"),
        Column("check", "str", doc="of the result: ok, wrong, or none (no reference)"),
    ),
    doc="Wrong and failed scripts first, then by traced time. Arguments change from call to call: caches "
        "are cold, as in most of a model.",
)  # fmt: skip
NOTES = Schema(
    "Notes",
    (
        Column("status", "str", doc="as in `scripts`"),
        Column("file", "str", doc="the script that the note is about"),
        Column("note", "str", doc="error, or why the time may differ", prose=True),
    ),
    doc="Errors, and likely reasons where a time differs from the trace.",
)

TABLES = {"summary": SUMMARY, "notes": NOTES, "scripts": SCRIPTS}


_TIMES = {
    "traced_ns": "traced_us", "replayed_ns": "replayed_us", "elapsed_ns": "elapsed_us", "p10_ns": "low_us",
    "p90_ns": "high_us", "warm_ns": "warm_us",
}  # fmt: skip
"""Columns of SCRIPTS to attributes of Row."""


def _quiet(_: str) -> None:
    """Report nothing."""


def verify(
    folder: Path,
    *,
    device: str | None = None,
    iters: int | None = None,
    max_bytes: int | None = None,
    tolerance: float = TOLERANCE,
    python: str | None = None,
    timeout_s: float = TIMEOUT_S,
    ranks: int | None = None,
    only: re.Pattern[str] | None = None,
    progress: Callable[[str], None] = _quiet,
) -> Result:
    """Run the scripts of a directory: are results correct, and do times match the trace?

    Args:
        folder: as `tracelens replay -o` wrote it; only what replay.json lists is run, as isolation.py says.
        device: "cuda" or "cpu"; None: a GPU where there is one.
        iters: timed calls of each script; None: as many as each takes by itself.
        max_bytes: scale messages of collectives down to this size; None: as traced.
        tolerance: allowed relative deviation from the traced time.
        python: interpreter with torch; None: this one.
        timeout_s: for each script.
        ranks: processes that a collective may start; None: as many as there are GPUs, or RANKS on the CPU.
        only: found in the file's name, the subject or the shapes; None: all.
        progress: called with a line of text before each script.

    Returns:
        tables `summary`, one row a status; `notes`, of those scripts that need one; and `scripts`, those of
        BROKEN first. Meta: device, torch, scripts by status, and `matching_fraction`, of the traced time.

    Raises:
        TracelensError: no directory of scripts, nothing that `only` names, an interpreter without torch, or
            no GPU for device "cuda".
    """
    entries = _entries(folder, only)
    interpreter = absolute(python or sys.executable)
    arguments = ["--json", *_option("--device", device), *_option("--iters", iters)]
    number = count(1)

    def row(entry: Entry, run: Callable[[Path], Ran]) -> Row:
        progress(f"script {next(number)} of {len(entries)}: {entry.file}")
        return _row(folder, entry, run, tolerance)

    with Workers(interpreter, gpu=device != "cpu") as workers:
        machine = workers.machine
        if device == "cuda" and not machine.devices:
            raise TracelensError(f"torch {machine.torch} of {interpreter} sees no GPU; use --device cpu")
        alone = partial(workers.run, arguments=arguments, timeout_s=timeout_s)
        rows = {entry: row(entry, alone) for entry in entries if entry.processes <= 1}
    # Only now: the worker would hold memory of a GPU that these need.
    limit = RANKS if ranks is None else ranks
    of_ranks = [*arguments, *_option("--max-bytes", max_bytes), "--ranks", str(limit)]
    together = partial(_together, [interpreter, ISOLATED], of_ranks, timeout_s)
    for entry in (entry for entry in entries if entry.processes > 1):
        why = _too_many(entry, len(machine.devices), ranks)
        rows[entry] = unrun(entry, "skipped", why) if why else row(entry, together)
    return _verify_result([rows[entry] for entry in entries], machine, tolerance)


def _entries(folder: Path, only: re.Pattern[str] | None) -> list[Entry]:
    entries = [entry for entry in folders.read(folder) if only is None or _named(entry, only)]
    if not entries:
        why = f"matches {only.pattern!r}" if only else "in the list"
        raise TracelensError(f"{folder}: no script {why}")
    return entries


def _row(folder: Path, entry: Entry, run: Callable[[Path], Ran], tolerance: float) -> Row:
    """The row of a script, which is run if it is as it was written."""
    try:
        with private_copy(folder, entry) as path:
            return judged(entry, run(path), tolerance)
    except Refused as error:
        return unrun(entry, "failed", str(error))


def failed(result: Result, *, strict: bool = False) -> bool:
    """Whether a result of `verify` is an error, for a command's exit status.

    A script that is wrong, did not run or had to be stopped is one. A time that differs is not: another
    machine, library or clock is no fault of a script.

    Args:
        result: of `verify`.
        strict: the times count as well: none is slower, faster or of another device, and one or more match.
    """
    statuses = set(result.data["scripts"].texts("status"))
    if statuses.intersection(BROKEN):
        return True
    return strict and (bool(statuses.intersection(DIFFERENT)) or "match" not in statuses)


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def _together(command: Sequence[str], arguments: Sequence[str], timeout_s: float, path: Path) -> Ran:
    return run_together([*command, str(path), *arguments], timeout_s)


def _too_many(entry: Entry, gpus: int, ranks: int | None) -> str:
    """Why a script starts more processes than it may; "" if it does not."""
    if 0 < gpus < entry.processes:
        return f"needs {entry.processes} GPUs, found {gpus}; --device cpu runs it on gloo"
    most = ranks if ranks is not None else gpus or RANKS
    if entry.processes > most:
        where = "" if gpus else " on the CPU"
        allow = f"allow them with --ranks {entry.processes}"
        return f"starts {entry.processes} processes{where}, limit {most}; {allow}"
    return ""


def _named(entry: Entry, pattern: re.Pattern[str]) -> bool:
    return any(map(pattern.search, (entry.file, entry.subject, entry.shapes)))


def _verify_result(rows: Sequence[Row], machine: Machine, tolerance: float) -> Result:
    ordered = sorted(rows, key=lambda row: row.status not in BROKEN)
    summary = _summary(rows)
    statuses = summary.texts("status")
    fractions = dict(zip(statuses, summary.array("fraction").tolist(), strict=True))
    counts = dict(zip(statuses, summary.array("count").tolist(), strict=True))
    devices = dict.fromkeys(row.device for row in rows if row.device)
    return Result(
        "replay_verify",
        "Replay",
        {"summary": summary, "notes": _notes(ordered), "scripts": SCRIPTS.table(_columns(ordered))},
        doc="Whether the scripts compute correct results in the traced time.",
        meta={
            "device": ", ".join(devices) or ", ".join(dict.fromkeys(machine.devices)) or "cpu",
            "torch": machine.torch,
            "tolerance": tolerance,
            "scripts": len(rows),
            "statuses": counts,
            "matching_fraction": fractions.get("match", 0.0),
        },
        command="tracelens replay verify DIR",
    )


def _summary(rows: Sequence[Row]) -> Table:
    by_status = {status: [row.entry.total_us for row in rows if row.status == status] for status in STATUSES}
    by_status = {status: times for status, times in by_status.items() if times}
    total = sum(row.entry.total_us for row in rows)
    return SUMMARY.table(
        {
            "status": list(by_status),
            "count": [len(times) for times in by_status.values()],
            "traced_ns": [1e3 * sum(times) for times in by_status.values()],
            "fraction": [sum(times) / total if total > 0 else 0.0 for times in by_status.values()],
            "meaning": [STATUSES[status] for status in by_status],
        }
    )


def _notes(rows: Sequence[Row]) -> Table:
    noted = [row for row in rows if row.note]
    return NOTES.table(
        {
            "status": [row.status for row in noted],
            "file": [row.entry.file for row in noted],
            "note": [row.note for row in noted],
        }
    )


def _columns(rows: Sequence[Row]) -> dict[str, Any]:
    columns: dict[str, Any] = {"roofline": [row.of_roofline for row in rows]}
    for name in ("file", "subject", "shapes", "count"):
        columns[name] = [getattr(row.entry, name) for row in rows]
    for name in ("status", "ratio", "flops_per_s", "bytes_per_s", "check"):
        columns[name] = [getattr(row, name) for row in rows]
    for name, times in _TIMES.items():
        us = np.array([getattr(row, times) for row in rows], dtype=float)
        columns[name] = np.where(us > 0, 1e3 * us, -1.0)
    return columns
