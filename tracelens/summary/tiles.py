"""The tiles of a run: its headline numbers, or why one of them is not known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tracelens.analysis.common import HOST
from tracelens.summary.figures import MOST, RunFigures, Spread, StepTimes
from tracelens.summary.wording import percent, plural, short_reason
from tracelens.table import Tile
from tracelens.units import amount

NO_TOKENS = "not recorded: pass tokens= to the recorder's step()"
NO_MEMORY = "no memory events: record with profile_memory=True"
ONE_RANK = "needs the traces of all ranks"
UNMATCHED = "collectives are not matched across ranks"


class Pace(NamedTuple):
    """What is known of a run without the profiler.

    Attributes:
        step_ns: 0 where unknown.
        tokens_per_s: 0 where unknown.
        with_profiler: whether tokens_per_s is of recorded steps.
        tokens: of a step, 0 where unknown.
    """

    step_ns: float = 0.0
    tokens_per_s: float = 0.0
    with_profiler: bool = False
    tokens: int = 0

    @classmethod
    def of(cls, meta: Mapping[str, Any], times: StepTimes) -> Pace:
        """From what a report says of its steps, tokens and options."""
        given_ms = meta.get("options", {}).get("unprofiled_step_ms")
        step_ns = given_ms * 1e6 if given_ms else float(meta.get("step_without_profiler_ns", 0))
        tokens = int(meta.get("setup", {}).get("tokens", 0)) if times.marked else 0
        if rate := 0.0 if given_ms else float(meta.get("tokens_per_s", 0)):
            return cls(step_ns, rate, False, tokens)
        paced_ns = step_ns or times.step_ns
        return cls(step_ns, tokens / paced_ns * 1e9 if paced_ns else 0.0, not step_ns, tokens)


def run_tiles(figures: RunFigures, meta: Mapping[str, Any], times: StepTimes, pace: Pace) -> Iterator[Tile]:
    """The tiles of a run, in the order shown."""
    yield _step_time(figures, times, pace)
    yield from _serving(figures)
    yield from _tokens(figures, times, pace)
    yield from _mfu(figures, meta)
    yield from _communication(figures, times)
    yield _idle(figures, times)
    yield from _peak_memory(figures, meta)
    yield from _trust(figures, meta)


def _step_time(figures: RunFigures, times: StepTimes, pace: Pace) -> Tile:
    label = "Step time" if times.marked else "Recorded time"
    notes = ["no steps marked"] if not times.marked else ["single step"] if times.steps == 1 else []
    if times.steps > 1:
        notes.append(f"median of {times.steps} steps")
    if times.deviation_ns:
        notes.append(f"± {amount(times.deviation_ns, 'ns')}")
    if pace.step_ns:
        notes.append(f"without the profiler {amount(pace.step_ns, 'ns')}")
    low, high = (times.low_ns, times.high_ns) if times.steps > 1 else (None, None)
    return Tile(
        "step_time", label, times.step_ns, "ns", low, high, ", ".join(notes), figures.section("steps")
    )


def _serving(figures: RunFigures) -> Iterator[Tile]:
    for kind, ran in figures.serving_steps().items():
        yield Tile(
            f"{kind}_step",
            f"{kind.capitalize()} step",
            ran.mean_ns,
            "ns",
            *_range(ran.by_rank),
            f"mean of {plural(ran.steps, 'step')} of all ranks",
            "serving",
        )


def _tokens(figures: RunFigures, times: StepTimes, pace: Pace) -> Iterator[Tile]:
    served = figures.served_tokens_per_s()
    value, note = pace.tokens_per_s or served, ""
    if pace.tokens_per_s:
        note = "with the profiler" if pace.with_profiler else "without the profiler"
        if pace.tokens:
            note = f"{pace.tokens:,} a step, {note}"
    elif served:
        note = "of prompts and answers, during steps"
    elif not times.marked or figures.serving_steps():
        return
    section = "serving" if served and not pace.tokens_per_s else "steps"
    yield Tile(
        "tokens_per_s",
        "Tokens/s",
        round(value) if value else None,
        "",
        note=note or NO_TOKENS,
        section=figures.section(section),
    )


def _mfu(figures: RunFigures, meta: Mapping[str, Any]) -> Iterator[Tile]:
    if not figures.section("roofline") or cpu_only(meta):
        return
    mfu = figures.mfu()
    reason = figures.reason("roofline", "MFU") or figures.reason("roofline", "efficiency")
    note = "model FLOPs / peak" if mfu else short_reason(reason or "no GEMM or attention with a cost model")
    yield _share_tile("mfu", "MFU", mfu, note, "roofline")


def _communication(figures: RunFigures, times: StepTimes) -> Iterator[Tile]:
    ranks = len(figures.ranks)
    if figures.total_ns("comm_ns"):
        exposed = figures.share("exposed_comm_ns")
        section = figures.section("overlap")
        yield _share_tile("exposed_communication", "Exposed communication", exposed, _whole(times), section)
    elif ranks == 1:
        return
    if not figures.section("collectives"):
        return
    waiting = figures.waiting()
    note = ONE_RANK if ranks == 1 else UNMATCHED
    if waiting:
        note = f"of recorded time; {percent(figures.waiting_in_exposed())} of exposed communication"
    yield _share_tile(
        "waiting_for_ranks", "Waiting for ranks", waiting if ranks > 1 else None, note, "collectives"
    )


def _idle(figures: RunFigures, times: StepTimes) -> Tile:
    cause, share = next(iter(figures.idle_causes().items()), ("", 0.0))
    note = f"{_whole(times)}; mostly {cause}" if share > MOST else _whole(times)
    return _share_tile("idle", "Idle", figures.share("idle_ns"), note, figures.section("idle"))


def _whole(times: StepTimes) -> str:
    return "of the step" if times.marked else "of the recorded time"


def _peak_memory(figures: RunFigures, meta: Mapping[str, Any]) -> Iterator[Tile]:
    if cpu_only(meta):
        return
    peak = figures.peak_bytes()
    if peak is None:
        yield Tile(
            "peak_memory", "Peak memory", None, "bytes", note=NO_MEMORY, section=figures.section("steps")
        )
        return
    note = "allocated by torch" + (f", highest of {peak.ranks} ranks" if peak.ranks > 1 else "")
    yield Tile(
        "peak_memory", "Peak memory", peak.high, "bytes", *_range(peak), note, figures.section("steps")
    )


def _trust(figures: RunFigures, meta: Mapping[str, Any]) -> Iterator[Tile]:
    trust = meta.get("trust")
    if trust is None:
        return
    text = {True: "complete", False: "doubtful", None: "not checked"}[trust["complete"]]
    names = doubt_names(trust)
    note = ", ".join(names) if names else "no doubts" if trust["complete"] else ""
    yield Tile("trust", "Recording", None, "", note=note, section=figures.section("completeness"), text=text)


def doubt_names(trust: Mapping[str, Any]) -> list[str]:
    """The doubts about a recording, those of most time first."""
    share: dict[str, float] = {}
    for doubts in trust["doubts"].values():
        for doubt in doubts:
            share[doubt["doubt"]] = max(share.get(doubt["doubt"], 0.0), doubt["fraction"])
    return sorted(share, key=lambda name: -share[name])


def cpu_only(meta: Mapping[str, Any]) -> bool:
    """Whether the run had no GPU."""
    return list(meta.get("devices", ())) == [HOST]


def _share_tile(name: str, label: str, spread: Spread | None, note: str, section: str) -> Tile:
    return Tile(name, label, spread.mean if spread else None, "fraction", *_range(spread), note, section)


def _range(spread: Spread | None) -> tuple[float | None, float | None]:
    """The least and the most of several ranks."""
    return (spread.low, spread.high) if spread and spread.ranks > 1 else (None, None)
