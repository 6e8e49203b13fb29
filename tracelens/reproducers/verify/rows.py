"""What came of one script: its result, whether that is the traced one, and why it may not be."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from tracelens.devices import match
from tracelens.reproducers.folder import Entry
from tracelens.reproducers.verify.processes import Ran

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

NOISY = 1.5
"""Times whose 90th percentile is so many times the 10th vary more than a tolerance can hold."""

BETWEEN_US = 3.0
"""What may lie between two kernels that follow each other; here it counts, in a trace it does not."""

STAND_IN = "stand-in for "
"""How a result names an op for which this device has no kernel; what was timed instead says nothing of it."""

_ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?(?:\w+\.)*\w*(?:Error|Exception|Interrupt)(?::|$).*")
_NOTE = 300


class Row(NamedTuple):
    """What came of one script; numbers that are not known are -1.

    Attributes:
        entry: which.
        status: one of STATUSES.
        note: why, as far as the numbers tell.
        traced_us: median GPU time in the trace.
        replayed_us: the same here: of the kernels if the script has it, as of an op, else `elapsed_us`.
        elapsed_us: median between two device events, launches included.
        low_us, high_us: 10th and 90th percentile of that.
        warm_us: median with the same arguments again and again.
        of_roofline: least possible time / replayed time.
        flops_per_s, bytes_per_s: of a replayed call.
        check: "ok", "wrong" or "none"; "" where there is no result.
        device: on which it ran.
    """

    entry: Entry
    status: str
    note: str
    traced_us: float
    replayed_us: float = -1.0
    elapsed_us: float = -1.0
    low_us: float = -1.0
    high_us: float = -1.0
    warm_us: float = -1.0
    of_roofline: float = -1.0
    flops_per_s: float = -1.0
    bytes_per_s: float = -1.0
    check: str = ""
    device: str = ""

    @property
    def ratio(self) -> float:
        """Replayed time / traced time; that of a CPU says nothing of a GPU's."""
        return self.replayed_us / self.traced_us if self.compared and self.device != "cpu" else -1.0

    @property
    def compared(self) -> bool:
        return self.replayed_us > 0 and self.traced_us > 0


def unrun(entry: Entry, status: str, note: str) -> Row:
    """The row of a script that gave no result."""
    return Row(entry, status, _line(note), _positive(entry.traced_us))


def judged(entry: Entry, ran: Ran, tolerance: float) -> Row:
    """The row of a script that was run."""
    if ran.code is None:
        return unrun(entry, "timeout", _last_words(ran) or STATUSES["timeout"])
    report = _result(ran.output)
    check = str(report.get("check", ""))
    if not check or (ran.code and not check.startswith("wrong")):
        return unrun(entry, "failed", _why_failed(ran, bool(check)))
    row = Row(
        entry,
        "",
        _line(str(report.get("note") or "")),
        # No ratio: the script knows that its time is of something else, such as sizes scaled down.
        _positive(report.get("traced_us", entry.traced_us) if report.get("ratio", 0) is not None else None),
        max(_positive(report.get("kernel_us")), 0) or _positive(report.get("median_us")),
        _positive(report.get("median_us")),
        _positive(report.get("p10_us")),
        _positive(report.get("p90_us")),
        _positive(report.get("warm_us")),
        _positive(report.get("of_roofline")),
        _positive(report.get("flop_per_s")),
        _positive(report.get("byte_per_s", report.get("busbw_bytes_per_s"))),
        check.partition(":")[0],
        str(report.get("device", "")),
    )
    if check.startswith("wrong"):
        return row._replace(status="wrong", note=_line(check.partition(":")[2]))
    if row.replayed_us < 0:
        return unrun(entry, "failed", "its result has no time")
    name = str(report.get("op", ""))
    if name.startswith(STAND_IN):
        return _noted(row, "ran", f"{name}: no such kernel on this device")
    return _timed(row, _names(report.get("traced_on")), tolerance)


def _timed(row: Row, traced_on: list[str], tolerance: float) -> Row:
    """The row with the status that its times give it."""
    if row.device == "cpu":
        return _noted(row, "ran")
    if not row.compared:
        return _noted(row, "ran", "no traced time to compare")
    if traced_on and not any(_same(row.device, name) for name in traced_on):
        return _noted(row, "other device", f"traced on {', '.join(traced_on)}")
    if _near(row.replayed_us, row.traced_us, tolerance):
        return _noted(row, "match")
    return _noted(row, "slower" if row.ratio > 1 else "faster", *_reasons(row, tolerance))


def _noted(row: Row, status: str, *notes: str) -> Row:
    """The row with a status, and notes before those of the script itself."""
    return row._replace(status=status, note=_line("; ".join(filter(None, (*notes, row.note)))))


def _reasons(row: Row, tolerance: float) -> list[str]:
    """Why a time differs, as far as the numbers tell."""
    reasons = []
    if row.warm_us > 0 and _near(row.warm_us, row.traced_us, tolerance):
        reasons.append(f"matches with warm caches ({row.warm_us:,.1f} us): inputs were cached in the trace")
    if row.low_us > 0 and row.high_us / row.low_us > NOISY:
        reasons.append(f"noisy here (p90/p10 = {row.high_us / row.low_us:.1f})")
    mean = row.entry.total_us / max(row.entry.count, 1)
    if row.entry.traced_us > 0 and not 1 / NOISY < mean / row.entry.traced_us < NOISY:
        reasons.append(f"traced calls vary: mean / median = {mean / row.entry.traced_us:.1f}")
    if 0 < row.replayed_us - row.traced_us <= BETWEEN_US:
        reasons.append(f"short: the {row.replayed_us - row.traced_us:.1f} us difference may be the gap "
                     "between two kernels")  # fmt: skip
    return reasons


def _near(time: float, traced: float, tolerance: float) -> bool:
    return abs(time - traced) <= tolerance * traced


def _same(name: str, other_name: str) -> bool:
    """Whether two names mean the same GPU: drivers of one vendor write them in several ways."""
    known = match(name)
    return name == other_name or (known is not None and known is match(other_name))


def _names(value: Any) -> list[str]:
    parts = value if isinstance(value, list) else str(value or "").split(", ")
    return [str(part) for part in parts if part]


def _result(output: str) -> Mapping[str, Any]:
    """The JSON object that a script prints last; empty where there is none."""
    for line in reversed(output.splitlines()):
        if not line.startswith("{"):
            continue
        try:
            payload = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(payload, dict) and "check" in payload:
            return payload
    return {}


def _why_failed(ran: Ran, finished: bool) -> str:
    words = ran.reason or _last_words(ran)
    if ran.code == 0:
        return "it printed no result"
    if ran.code is not None and ran.code < 0:
        name = signal.Signals(-ran.code).name if -ran.code in set(signal.Signals) else f"signal {-ran.code}"
        hint = ": out of memory?" if -ran.code == signal.SIGKILL else ""
        return f"ended by {name}{hint}{f': {words}' if words else ''}"
    return (
        f"exit status {ran.code} after its result: {words}"
        if finished
        else words or f"exit status {ran.code}"
    )


def _last_words(ran: Ran) -> str:
    """The error among what a script wrote to stderr: Python's last one, else the last line."""
    lines = [line for line in ran.errors.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or [""])[-1]


def _positive(value: Any) -> float:
    """A number of a result: absent where it is none, infinite, or not above 0."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number and isfinite(value) and value > 0 else -1.0


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _NOTE else f"{line[: _NOTE - 3]}..."
