"""Run all scripts of a directory and hold their times against the traced ones."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from tracelens.devices import match
from tracelens.errors import TracelensError
from tracelens.reproducers import folder as folders
from tracelens.reproducers.folder import Entry
from tracelens.reproducers.make import quiet
from tracelens.reproducers.verify.counters import COUNTERS, KERNELS, counter_tables
from tracelens.reproducers.verify.profilers import CountedKernel, Forbidden, profiler
from tracelens.reproducers.verify.worker import (
    ISOLATED,
    RUNNER,
    Ran,
    Refused,
    TorchMachine,
    Workers,
    absolute,
    private_copy,
    run_together,
)
from tracelens.table import Column, Result, Schema, Skip, result

TIMEOUT_S = 180.0  # for one script
RANKS = 8  # processes that a collective starts at most where it runs on the CPU

# What a time is judged by.
TOLERANCE = 0.1  # of the traced time; a trade-off: less calls clocks and noise a difference, more hides one
NOISY = 1.5  # times whose p90 is so many times their p10 vary more than a tolerance can hold
BETWEEN_US = 3.0  # what may lie between two kernels in a row; here it counts, in a trace it does not

STAND_IN = "stand-in for "
"""How a result names an op for which this device has no kernel; what was timed instead says nothing of it."""
BROKEN = ("wrong", "failed", "timeout")
DIFFERENT = ("slower", "faster", "other device")
_NOTE = 300  # characters of a note at most

SUMMARY = Schema(
    "Scripts by status",
    (
        Column("status", "str", doc="as in `scripts`"),
        Column("count", "int64", "count", "scripts of this status"),
        Column("traced_ns", "float64", "ns", "traced time of the calls they represent"),
        Column("fraction_of_traced_time", "float64", "fraction", "share of the traced time of all scripts"),
        Column("meaning", "str", doc="what the status means", prose=True),
    ),
)

STATUSES = {
    "wrong": "its result differs from the reference",
    "failed": "it did not finish",
    "timeout": "it exceeded the time limit",
    "slower": "slower than traced by more than the tolerance",
    "faster": "faster than traced by more than the tolerance",
    "match": "within the tolerance of the traced time",
    "other device": "traced on another GPU: times are not comparable",
    "ran": "ran without a traced time to compare: on the CPU, scaled down, or a stand-in",
    "skipped": "not run",
}
"""Each status and its meaning, most urgent first."""

SCRIPTS = Schema(
    "Scripts",
    (
        Column("status", "str", doc="; ".join(f"{name}: {why}" for name, why in STATUSES.items())),
        Column("file", "str", doc="the script, in the directory that was verified"),
        Column("traced_ns", "float64", "ns", "median GPU time of a call in the trace", absent=-1),
        Column(
            "replayed_ns",
            "float64",
            "ns",
            "median GPU time here: kernels where known, else elapsed",
            absent=-1,
        ),
        Column("ratio", "float64", "ratio", "replayed / traced", absent=-1),
        Column("roofline", "float64", "efficiency", "roofline time on this device / replayed", absent=-1),
        Column("subject", "str", doc="op, collective, or the sequence"),
        Column("shapes", "str", doc="of its arguments"),
        Column("elapsed_ns", "float64", "ns", "median between device events, gaps included", absent=-1),
        Column("p10_ns", "float64", "ns", "10th percentile of those times", absent=-1),
        Column("p90_ns", "float64", "ns", "90th percentile of those times", absent=-1),
        Column(
            "warm_ns", "float64", "ns", "median with warm caches: the same arguments every call", absent=-1
        ),
        Column("flops_per_s", "float64", "flops/s", "of a replayed call", absent=-1),
        Column(
            "bytes_per_s",
            "float64",
            "bytes/s",
            "of a replayed call; bus bandwidth for collectives",
            absent=-1,
        ),
        Column("count", "int64", "count", "traced calls that the script represents"),
        Column("check", "str", doc="of the result: ok, wrong, or none (no reference)"),
    ),
    doc="Wrong and failed scripts first, then by traced time. Before each call caches are emptied, but for "
        "arguments that the recorder saw touched not long before.",
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
TABLES = {
    "summary": SUMMARY,
    "notes": NOTES,
    "scripts": SCRIPTS,
    "counters": COUNTERS,
    "counter_kernels": KERNELS,
}

OPS = Schema(
    "Ops",
    (
        Column("file", "str", doc="the script"),
        Column("subject", "str", doc="op, collective, or the sequence"),
        Column("shapes", "str", doc="of its arguments"),
        Column("count", "int64", "count", "traced calls that the script represents"),
        Column("before_ns", "float64", "ns", "replayed time of a call in BEFORE"),
        Column("after_ns", "float64", "ns", "replayed time of a call in AFTER"),
        Column("ratio", "float64", "ratio", "after / before"),
        Column("gain_ns", "float64", "ns", "before - after, of all traced calls"),
        Column("before_roofline", "float64", "efficiency", "roofline time / replayed, BEFORE", absent=-1),
        Column("after_roofline", "float64", "efficiency", "roofline time / replayed, AFTER", absent=-1),
        Column("status", "str", doc="in AFTER, as `tracelens replay verify` says"),
    ),
    doc="Largest gain first.",
)
COMPARED = {"ops": OPS}

_TIMES = {
    "traced_ns": "traced_us", "replayed_ns": "replayed_us", "elapsed_ns": "elapsed_us", "p10_ns": "low_us",
    "p90_ns": "high_us", "warm_ns": "warm_us",
}  # fmt: skip
"""Columns of SCRIPTS to attributes of ScriptRow."""


class ScriptRow(NamedTuple):
    """What came of one script; numbers that are not known are -1."""

    entry: Entry  # which
    status: str  # one of STATUSES
    note: str  # why, as far as the numbers tell
    traced_us: float  # median GPU time in the trace
    # the same here: of the kernels if the script has it, as of an op, else `elapsed_us`
    replayed_us: float = -1.0
    elapsed_us: float = -1.0  # median between two device events, launches included
    low_us: float = -1.0  # 10th and 90th percentile of that
    high_us: float = -1.0  # 10th and 90th percentile of that
    warm_us: float = -1.0  # median with the same arguments again and again
    of_roofline: float = -1.0  # least possible time / replayed time
    flops_per_s: float = -1.0  # of a replayed call
    bytes_per_s: float = -1.0  # of a replayed call
    check: str = ""  # "ok", "wrong" or "none"; "" where there is no result
    device: str = ""  # on which it ran

    @property
    def ratio(self) -> float:
        """Replayed time / traced time; that of a CPU says nothing of a GPU's."""
        return self.replayed_us / self.traced_us if self.compared and self.device != "cpu" else -1.0

    @property
    def compared(self) -> bool:
        return self.replayed_us > 0 and self.traced_us > 0


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
    counters: bool = False,
    progress: Callable[[str], None] = quiet,
) -> Result:
    """Run the scripts of a directory: are results correct, and do times match the trace?

    Args:
        folder: as `tracelens replay -o` wrote it; only what replay.json lists is run, as worker.py says.
        device: "cuda" or "cpu"; None: a GPU where there is one.
        iters: timed calls of each script; None: as many as each takes by itself.
        max_bytes: scale messages of collectives down to this size; None: as traced.
        tolerance: allowed relative deviation from the traced time.
        python: interpreter with torch; None: this one.
        timeout_s: for each script.
        ranks: processes that a collective may start; None: as many as there are GPUs, or RANKS on the CPU.
        only: found in the file's name, the subject or the shapes; None: all.
        counters: run each op that is right once more, under Nsight Compute or rocprofv3.
        progress: called with a line of text before each script.

    Returns:
        tables `summary`, one row a status; `notes`, of those scripts that need one; `scripts`, those of
        BROKEN first; and of counters `counters` and `counter_kernels`. Skips: what was not counted, and why.
        Meta: device, torch, scripts by status, and `matching_fraction`, of the traced time.

    Raises:
        TracelensError: no directory of scripts, nothing that `only` names, an interpreter without torch, no
            GPU for device "cuda" or for counters, or no profiler for these.
    """
    entries = [
        entry
        for entry in folders.read(folder)
        if only is None or any(map(only.search, (entry.file, entry.subject, entry.shapes)))
    ]
    if not entries:
        why = f"matches {only.pattern!r}" if only else "in the list"
        raise TracelensError(f"{folder}: no script {why}")
    interpreter = absolute(python or sys.executable)
    arguments = ["--json", *_option("--device", device), *_option("--iters", iters)]
    number = count(1)

    def row(entry: Entry, run: Callable[[Path], Ran]) -> ScriptRow:
        """Of a script, which is run if it is as it was written."""
        progress(f"script {next(number)} of {len(entries)}: {entry.file}")
        try:
            with private_copy(folder, entry) as path:
                return judged(entry, run(path), tolerance)
        except Refused as error:
            return unrun(entry, "failed", str(error))

    with Workers(interpreter, gpu=device != "cpu") as workers:
        machine = workers.machine
        if device == "cuda" and not machine.devices:
            raise TracelensError(f"torch {machine.torch} of {interpreter} sees no GPU; use --device cpu")
        counting = profiler(machine) if counters else None
        rows = {
            entry: row(
                entry, partial(workers.run, arguments=[*arguments, *_ages(entry)], timeout_s=timeout_s)
            )
            if (machine.devices and device != "cpu") or entry.kind != "generated"
            else unrun(entry, "skipped", "a generated Triton kernel needs a GPU")
            for entry in entries
            if entry.processes <= 1
        }
    # Only now: the worker would hold memory of a GPU that these need.
    arguments += [*_option("--max-bytes", max_bytes), "--ranks", str(RANKS if ranks is None else ranks)]
    gpus = len(machine.devices)
    most = ranks if ranks is not None else gpus or RANKS
    runner = [interpreter, ISOLATED, str(RUNNER)]
    for entry in (entry for entry in entries if entry.processes > 1):
        if 0 < gpus < entry.processes:
            why = f"needs {entry.processes} GPUs, found {gpus}; --device cpu runs it on gloo"
            rows[entry] = unrun(entry, "skipped", why)
        elif entry.processes > most:
            where = "" if gpus else " on the CPU"
            why = f"starts {entry.processes} processes{where}, limit {most}; "
            rows[entry] = unrun(entry, "skipped", f"{why}allow them with --ranks {entry.processes}")
        else:
            rows[entry] = row(entry, lambda path: run_together([*runner, str(path), *arguments], timeout_s))
    verified = _verify_result([rows[entry] for entry in entries], machine, tolerance)
    if counting is None:
        return verified
    counted, skips = _counted(
        [rows[entry] for entry in entries],
        lambda path, entry: counting.kernels(
            [*runner, str(path), "--device", "cuda", "--counters", *_ages(entry)], timeout_s
        ),
        folder,
        progress,
    )
    return replace(
        verified, data={**verified.data, **counter_tables(counted)}, skips=(*verified.skips, *skips)
    )


def _counted(
    rows: Sequence[ScriptRow],
    count: Callable[[Path, Entry], list[CountedKernel]],
    folder: Path,
    progress: Callable[[str], None],
) -> tuple[dict[str, tuple[float, list[CountedKernel]]], list[Skip]]:
    """What is counted of the scripts that are right, by file, with the share of the roofline; and why not."""
    right = [row for row in rows if row.status not in (*BROKEN, "skipped")]
    ops = [row for row in right if row.entry.kind in ("op", "generated")]
    counted, skips = {}, []
    for number, row in enumerate(ops, 1):
        progress(f"counters {number} of {len(ops)}: {row.entry.file}")
        try:
            with private_copy(folder, row.entry) as path:
                counted[row.entry.file] = row.of_roofline, count(path, row.entry)
        except Forbidden as error:
            skips.append(Skip("counters", str(error)))
            break
        except TracelensError as error:
            skips.append(Skip(f"counters of {row.entry.file}", str(error)))
    if others := len(right) - len(ops):
        skips.append(
            Skip(f"counters of {others} scripts", "only single ops are counted, not sequences or collectives")
        )
    return counted, skips


_Time = Annotated[float, Meta(ge=0, le=1e18)] | None


class VerifiedScript(Struct, frozen=True):
    """A row of the table `scripts` in the JSON of a verification."""

    file: str
    subject: str
    shapes: str
    status: str
    count: Annotated[int, Meta(ge=0, le=1 << 53)]
    replayed_ns: _Time
    roofline: _Time


class VerifiedTables(Struct):
    """Its tables."""

    scripts: list[VerifiedScript]


class Verified(Struct):
    """The JSON of a verification, or of the report that holds it."""

    tables: VerifiedTables | None = None
    meta: dict[str, Any] = {}
    results: dict[str, Verified] = {}


def compare(before: Path, after: Path) -> Result:
    """What each op gains from one verification of the same scripts to another.

    Args:
        before: JSON of `tracelens replay verify`.
        after: likewise, with other kernels.

    Returns:
        table `ops`; skips: what only one of them has a time of. Meta: `broken`, files whose result is wrong
        or missing in `after` alone, `before_ns` and `after_ns` of all calls.

    Raises:
        TracelensError: a file is no such JSON, or they have no script in common.
    """
    sides, devices = [], []
    for path in (before, after):
        try:
            document = msgspec.json.decode(path.read_bytes(), type=Verified)
        except OSError as error:
            raise TracelensError(f"{path}: cannot be read ({error.strerror})") from None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            document = Verified()
        document = document.results.get("replay_verify", document)
        if document.tables is None:
            raise TracelensError(f"{path}: not the JSON of tracelens replay verify (--json, or -o FILE.json)")
        devices.append(str(document.meta.get("device")))
        sides.append({(row.file, row.subject, row.shapes): row for row in document.tables.scripts})
    common = [(row, sides[1][key]) for key, row in sides[0].items() if key in sides[1]]
    if not common:
        raise TracelensError(f"{before} and {after} have no script in common: verify one directory twice")
    timed = [
        (old, new) for old, new in common if old.replayed_ns and new.replayed_ns and new.status not in BROKEN
    ]
    timed.sort(key=lambda pair: -pair[0].count * ((pair[0].replayed_ns or 0) - (pair[1].replayed_ns or 0)))
    count = np.array([old.count for old, _ in timed], dtype=np.int64)
    times = [np.array([side.replayed_ns for side in part], dtype=float) for part in zip(*timed, strict=True)]
    before_ns, after_ns = times or [np.zeros(0), np.zeros(0)]
    columns: dict[str, Any] = {
        name: [getattr(old, name) for old, _ in timed] for name in ("file", "subject", "shapes")
    }
    columns |= {"count": count, "before_ns": before_ns, "after_ns": after_ns, "ratio": after_ns / before_ns}
    columns |= {
        "gain_ns": count * (before_ns - after_ns),
        "before_roofline": [-1.0 if old.roofline is None else old.roofline for old, _ in timed],
        "after_roofline": [-1.0 if new.roofline is None else new.roofline for _, new in timed],
        "status": [new.status for _, new in timed],
    }
    broken = [new.file for old, new in common if new.status in BROKEN and old.status not in BROKEN]
    skips = [
        Skip(new.file, f"no times to compare: {old.status} before, {new.status} after")
        for old, new in common
        if (old, new) not in timed
    ]
    if others := len(sides[0].keys() ^ sides[1].keys()):
        skips.append(Skip(f"{others} scripts", "only one of the two results has them"))
    if devices[0] != devices[1]:
        skips.append(Skip("devices", f"{devices[0]} before, {devices[1]} after: not the same machine"))
    meta = {"broken": broken, "before_ns": float(count @ before_ns), "after_ns": float(count @ after_ns)}
    return replace(
        result({"ops": OPS.table(columns)}, skips, **meta),
        analyzer="replay_compare",
        title="Replay",
        doc="What the ops of the scripts gain.",
        command="tracelens replay compare BEFORE AFTER",
    )


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


def _ages(entry: Entry) -> list[str]:
    """The option that says when the arguments of a script were last touched."""
    if not any(age is not None for age in entry.ages):
        return []
    return [f"--ages={','.join('' if age is None else str(age) for age in entry.ages)}"]


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def _verify_result(rows: Sequence[ScriptRow], machine: TorchMachine, tolerance: float) -> Result:
    us_by_status = {
        status: times
        for status in STATUSES
        if (times := [row.entry.total_us for row in rows if row.status == status])
    }
    total_us = sum(row.entry.total_us for row in rows)
    fractions = [sum(times) / total_us if total_us > 0 else 0.0 for times in us_by_status.values()]
    counts = [len(times) for times in us_by_status.values()]
    summary = {
        "status": list(us_by_status),
        "count": counts,
        "traced_ns": [1e3 * sum(times) for times in us_by_status.values()],
        "fraction_of_traced_time": fractions,
        "meaning": [STATUSES[status] for status in us_by_status],
    }
    ordered = sorted(rows, key=lambda row: row.status not in BROKEN)
    noted = [row for row in ordered if row.note]
    notes = {
        "status": [row.status for row in noted],
        "file": [row.entry.file for row in noted],
        "note": [row.note for row in noted],
    }
    scripts: dict[str, Any] = {"roofline": [row.of_roofline for row in ordered]}
    for name in ("file", "subject", "shapes", "count"):
        scripts[name] = [getattr(row.entry, name) for row in ordered]
    for name in ("status", "ratio", "flops_per_s", "bytes_per_s", "check"):
        scripts[name] = [getattr(row, name) for row in ordered]
    for name, attribute in _TIMES.items():
        us = np.array([getattr(row, attribute) for row in ordered], dtype=float)
        scripts[name] = np.where(us > 0, 1e3 * us, -1.0)
    devices = dict.fromkeys(row.device for row in rows if row.device)
    return Result(
        "replay_verify",
        "Replay",
        {"summary": SUMMARY.table(summary), "notes": NOTES.table(notes), "scripts": SCRIPTS.table(scripts)},
        doc="Whether the scripts compute correct results in the traced time.",
        meta={
            "device": ", ".join(devices) or ", ".join(dict.fromkeys(machine.devices)) or "cpu",
            "torch": machine.torch,
            "tolerance": tolerance,
            "scripts": len(rows),
            "statuses": dict(zip(us_by_status, counts, strict=True)),
            "matching_fraction": dict(zip(us_by_status, fractions, strict=True)).get("match", 0.0),
        },
        command="tracelens replay verify DIR",
    )


def unrun(entry: Entry, status: str, note: str) -> ScriptRow:
    """The row of a script that gave no result."""
    return ScriptRow(entry, status, _line(note), _positive(entry.traced_us))


def judged(entry: Entry, ran: Ran, tolerance: float) -> ScriptRow:
    """The row of a script that was run: its result, whether that is the traced one, and why it may not be."""
    if ran.code is None:
        return unrun(entry, "timeout", ran.last_words or STATUSES["timeout"])
    report: Mapping[str, Any] = {}  # the JSON object that a script prints last
    for line in reversed(ran.output.splitlines()):
        if line.startswith("{"):
            try:
                payload = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(payload, dict) and "check" in payload:
                report = payload
                break
    check = str(report.get("check", ""))
    if not check or (ran.code and not check.startswith("wrong")):
        words = ran.reason or ran.last_words
        if ran.code == 0:
            why = "it printed no result"
        elif ran.code < 0:
            name = (
                signal.Signals(-ran.code).name if -ran.code in set(signal.Signals) else f"signal {-ran.code}"
            )
            hint = ": out of memory?" if -ran.code == signal.SIGKILL else ""
            why = f"ended by {name}{hint}{f': {words}' if words else ''}"
        elif check:
            why = f"exit status {ran.code} after its result: {words}"
        else:
            why = words or f"exit status {ran.code}"
        return unrun(entry, "failed", why)
    # No ratio: the script knows that its time is of something else, such as sizes scaled down.
    is_traced = report.get("ratio", 0) is not None
    row = ScriptRow(
        entry=entry,
        status="",
        note=_line(str(report.get("note") or "")),
        traced_us=_positive(report.get("traced_us", entry.traced_us) if is_traced else None),
        replayed_us=max(_positive(report.get("kernel_us")), 0) or _positive(report.get("median_us")),
        elapsed_us=_positive(report.get("median_us")),
        low_us=_positive(report.get("p10_us")),
        high_us=_positive(report.get("p90_us")),
        warm_us=_positive(report.get("warm_us")),
        of_roofline=_positive(report.get("of_roofline")),
        flops_per_s=_positive(report.get("flop_per_s")),
        bytes_per_s=_positive(report.get("byte_per_s", report.get("busbw_bytes_per_s"))),
        check=check.partition(":")[0],
        device=str(report.get("device", "")),
    )
    if check.startswith("wrong"):
        return row._replace(status="wrong", note=_line(check.partition(":")[2]))
    if row.replayed_us < 0:
        return unrun(entry, "failed", "its result has no time")
    status, notes = _compared(row, report, tolerance)
    return row._replace(status=status, note=_line("; ".join(filter(None, (*notes, row.note)))))


def _compared(row: ScriptRow, report: Mapping[str, Any], tolerance: float) -> tuple[str, list[str]]:
    """The status that its times give a row, and why a time differs, as far as the numbers tell."""
    name, traced_on = str(report.get("op", "")), report.get("traced_on")
    traced = traced_on if isinstance(traced_on, list) else str(traced_on or "").split(", ")
    names = [str(part) for part in traced if part]
    # Drivers of one vendor write the name of a GPU in several ways.
    known = match(row.device)
    is_same = any(row.device == name or (known and known is match(name)) for name in names)
    if name.startswith(STAND_IN):
        # The kernel ran there when it was traced: then the call is not what it was.
        return "failed" if is_same else "ran", [f"{name}: no such kernel on this device"]
    if row.device == "cpu":
        return "ran", []
    if not row.compared:
        return "ran", ["no traced time to compare"]
    if names and not is_same:
        return "other device", [f"traced on {', '.join(names)}"]
    deviation_us = tolerance * row.traced_us
    if abs(row.replayed_us - row.traced_us) <= deviation_us:
        return "match", []
    reasons = []
    if row.warm_us > 0 and abs(row.warm_us - row.traced_us) <= deviation_us:
        reasons.append(f"matches with warm caches ({row.warm_us:,.1f} µs)")
    if row.low_us > 0 and row.high_us / row.low_us > NOISY:
        reasons.append(f"noisy here (p90/p10 = {row.high_us / row.low_us:.1f})")
    mean_us = row.entry.total_us / max(row.entry.count, 1)
    if row.entry.traced_us > 0 and not 1 / NOISY < mean_us / row.entry.traced_us < NOISY:
        reasons.append(f"traced calls vary: mean / median = {mean_us / row.entry.traced_us:.1f}")
    late_us = row.replayed_us - row.traced_us
    if 0 < late_us <= BETWEEN_US:
        reasons.append(f"short: the {late_us:.1f} µs difference may be the gap between two kernels")
    return "slower" if row.ratio > 1 else "faster", reasons


def _positive(value: Any) -> float:
    """A number of a result: absent where it is none, infinite, or not above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and isfinite(value) and value > 0 else -1.0


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _NOTE else f"{line[: _NOTE - 3]}..."
