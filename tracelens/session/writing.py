"""What is written from a run: one Perfetto file of all ranks (`fuse`), scripts of calls (`replay`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracelens.errors import TracelensError
from tracelens.read import TraceFiles, values_beside
from tracelens.session.comparison import diff
from tracelens.session.reading import PATHS, STEP, Graphs, Partial, Rooflines, Source, loaded
from tracelens.session.request import ApiRequest, StrPath, function_of, option
from tracelens.units import duration

if TYPE_CHECKING:
    from tracelens.merge import Track
    from tracelens.table import Result
    from tracelens.trace import Run as TraceRun

CALLS, SCRIPTS = "Calls to replay", "Scripts"


class FuseRequest(Partial, ApiRequest[None]):
    """Merge all ranks into one trace for ui.perfetto.dev, with aligned clocks, steps, waits and idle causes.

    Raises:
        TracelensError: no such rank, step or time, nothing to show, or the path cannot be written.
    """

    run: Source = option(PATHS, kw_only=False)
    path: StrPath = option(
        "Write this .json or .json.gz file.",
        doc="where to: .json or .json.gz.",
        name="output",
        metavar="FILE",
        kw_only=False,
    )
    ranks: str | Iterable[int] | None = option(
        "Only these ranks: 0-3,7.",
        doc='only these, as numbers or as a list like "0-3,7"; others may be missing.',
        metavar="RANKS",
        type=str | None,
        default=None,
        shown="all",
    )
    step: str | int | None = option("Only this step: 2 or ProfilerStep#2.", metavar="STEP", default=None)
    between: str | Sequence[float] | None = option(
        "Only these milliseconds, on the axis of the report's picture: 85-92.5.",
        doc='only these ms, on the axis of the report\'s picture: (85, 92.5) or "85-92.5".',
        metavar="MS-MS",
        type=str | None,
        default=None,
    )
    findings: bool = option(
        "Draw a row for each finding where it costs time.",
        doc="whether to draw a row for each finding where it costs time.",
        default=False,
    )
    cpu: bool = option(
        "Omit host threads; keep GPU streams, steps and waits.",
        doc="whether to include host threads.",
        name="no_cpu",
        type=bool | None,
        convert=lambda omitted: not omitted,
        default=True,
    )

    def answer(self) -> None:
        """Write the file."""
        from tracelens.analysis.comm import align_run
        from tracelens.merge import check_suffix, fuse, read_ranks, with_ranks
        from tracelens.trace import select_step, steps_of

        check_suffix(self.path)
        spans = None if self.ranks is None else read_ranks(self.ranks)
        partial = self.partial or spans is not None
        between = self._between_ns()
        run = with_ranks(loaded(self.run, None, replace(self.reads(), partial=partial)), spans)
        narrowed = run if self.step is None else select_step(run, str(self.step))
        self.progress("aligning clocks")
        aligned = align_run(run)
        shift, waits = aligned.shift, aligned.waits()
        windows: dict[int, tuple[int, int]] = {}
        for trace in narrowed.traces:
            if (step := trace.window) is not None:
                windows[trace.meta.rank] = min(step.start, step.host_start), max(step.end, step.host_end)
        if between is not None:
            # The axis of the picture begins with the first step, by one clock.
            first = min(int(steps_of(trace).edges[0]) + shift[trace.meta.rank] for trace in run.traces)
            for rank in run.ranks:
                begin, end = (first - shift[rank] + ns for ns in between)
                low, high = windows.get(rank, (begin, end))
                windows[rank] = max(begin, low), min(end, high)
        tracks = causes(run, self.findings, self.progress)
        options: dict[str, Any] = {"windows": windows, "cpu": self.cpu, "progress": self.progress}
        fuse(run, self.path, offsets=shift, waits=waits, tracks=tracks, **options)

    def _between_ns(self) -> tuple[int, int] | None:
        """The time asked for, ns; raises TracelensError if it is none."""
        if self.between is None:
            return None
        parts = self.between.split("-") if isinstance(self.between, str) else self.between
        try:
            begin, end = (round(float(part) * 1e6) for part in parts)
        except (ValueError, OverflowError):
            begin, end = 0, 0
        if begin >= end:
            raise TracelensError(f"--between {self.between!r}: not a piece of time; write it like 85-92.5")
        return begin, end


def causes(run: TraceRun, findings: bool, progress: Callable[[str], None]) -> dict[int, list[Track]]:
    """Rank to a row for each finding, if asked for, and a row of the causes of its idle time."""
    from tracelens.analysis import ANALYZERS
    from tracelens.merge import Slice, Track
    from tracelens.reproducers import time_of

    tracks: dict[int, list[Track]] = {rank: [] for rank in run.ranks}
    found, results = None, dict[str, Any]()
    if findings:
        progress("looking for findings")
        finder = ANALYZERS.get("findings")
        results = {item.name: item(run) for item in finder.requires}
        found = finder(run, results).data.get("findings")
    if found is not None:
        columns = map(found.cells, ("finding", "detector", "evidence", "fix", "additional_ns"))
        for title, detector, evidence, fix, saving_ns in zip(*columns, strict=True):
            args = {"evidence": evidence, "fix": fix, "saves": f"{duration(saving_ns)} a step"}
            for rank, when in time_of(run, detector, results=results).items():
                stretches = zip(when.start.tolist(), (when.end - when.start).tolist(), strict=True)
                slices = [Slice(title, start, length, args) for start, length in stretches]
                tracks[rank].append(Track(f"finding: {title}", slices))
    progress("explaining idle time")
    pieces = ANALYZERS.get("idle")(run).data.get("pieces")
    if pieces is not None:
        idle: dict[int, list[Slice]] = {}
        columns = map(pieces.cells, ("rank", "cause", "local_ts_ns", "dur_ns", "host", "op"))
        for rank, cause, start, length, host, op in zip(*columns, strict=True):
            known = {name: text for name, text in (("host", host), ("op", op)) if text}
            idle.setdefault(rank, []).append(Slice(cause, start, length, known))
        for rank, slices in idle.items():
            tracks[rank].append(Track("idle", slices))
    return tracks


class ReplayRequest(Rooflines, Partial, ApiRequest["Result"], panel=CALLS):
    """Write a script for each of the longest calls; `tracelens replay verify FOLDER` runs them all.

    Returns:
        table `scripts`; skips: calls without a script.

    Raises:
        TracelensError: nothing in the trace matches, or the folder cannot be written.
    """

    run: Source = option(PATHS, kw_only=False)
    folder: StrPath = option(
        "Write the scripts to this directory.",
        SCRIPTS,
        doc="where to.",
        name="output",
        metavar="DIR",
        kw_only=False,
    )
    op: str = option(
        "Only ops and collectives that match this pattern: aten::mm, 'aten::*conv*', allreduce.",
        metavar="PATTERN",
        default="",
    )
    shapes: str | Sequence[str | Sequence[int]] = option(
        "Only calls with a tensor of this shape: 4096,2048. Repeatable.",
        doc='only calls with tensors of all these sizes, each "4096,2048" or (4096, 2048).',
        name="shape",
        metavar="SIZES",
        type=list[str] | None,
        default=(),
    )
    module: str = option(
        "Only calls inside a matching annotation or Python frame, and their gradients: '*MoE*'.",
        metavar="PATTERN",
        default="",
    )
    rank: int | None = option("Only calls of this rank.", metavar="RANK", default=None)
    step: str | int | None = option(STEP, default=None)
    top: int | None = option(
        "Write at most this many scripts, for the calls with the longest total time; 0 for all.",
        SCRIPTS,
        doc="number of scripts, longest total time first; None for all.",
        type=int,
        convert=lambda count: count or None,
        default=20,
        min=0,
    )
    candidates: int | None = option(
        "Hand over: the N calls with the most time above the roofline, with target times and a README.",
        SCRIPTS,
        doc="hand over so many calls with the most time above the roofline, with target times and a README.",
        metavar="N",
        default=None,
        min=1,
    )
    by: Literal["time", "recoverable"] = option(
        "Rank calls by GPU time, or by time above the roofline.", default="time"
    )
    finding: str = option(
        "Only work that runs while this finding (its detector's name) costs time.",
        metavar="NAME",
        default="",
        complete="detectors",
    )
    at_ns: int | None = option(
        "Only what starts or runs at this time, with its callees: at_ns of findings and changes.",
        name="at",
        metavar="NS",
        default=None,
    )
    base: Source | None = option(
        "Only ops that changed since this run; see --row.",
        doc="only ops that changed since this run, see `row`.",
        name="diff",
        metavar="BASE",
        type=str,
        convert=lambda path: TraceFiles([path]) if path else None,
        default=None,
    )
    row: int = option(
        "With --diff, only this row of 'What changed' in `tracelens diff BASE PATH`.",
        doc="of the table changes of `tracelens.diff(base, run)`.",
        default=1,
        min=1,
    )
    sequence: bool = option(
        "Write whole MoE layers instead, one script per direction.", SCRIPTS, default=False
    )
    max_elements: int | None = option(
        "Scale sizes down until no tensor has more than N elements.", SCRIPTS, default=None, min=1
    )
    first_ranks: int | None = option(
        "Cut collectives down to the first N ranks of their group, for machines with fewer GPUs.",
        SCRIPTS,
        default=None,
    )
    trust_generated: bool = option(
        "Also write scripts that run Triton kernels of torch.compile: code of the recording, which "
        "tracelens cannot check.",
        SCRIPTS,
        default=False,
    )

    def answer(self) -> Result:
        """The table of the scripts that it writes."""
        from tracelens.analysis.common import choose_device
        from tracelens.compare.diff import changed_ops
        from tracelens.reproducers import ReplaySelection, replay, replay_layers, sizes, time_of

        peaks, changed = choose_device(self.device, self.device_file), []
        run = self.loaded(self.run, self.step)
        if self.sequence:
            return replay_layers(run, Path(self.folder), max_elements=self.max_elements)
        if self.rank is not None and self.rank not in run.ranks:
            has = ", ".join(map(str, run.ranks))
            raise TracelensError(f"no rank {self.rank} in the trace; it has {has}")
        if self.base is not None:
            base = loaded(self.base, None, Graphs(partial=self.partial))
            changed = changed_ops(diff(base, run)["diff"], self.row, base)
        shapes = [self.shapes] if isinstance(self.shapes, str) and self.shapes else self.shapes
        selection = ReplaySelection(
            ops=changed,
            shapes=tuple(sizes(shape) if isinstance(shape, str) else tuple(shape) for shape in shapes),
            rank=-1 if self.rank is None else self.rank,
            during=time_of(run, self.finding, peaks) if self.finding else None,
            **self.values("op", "module", "at_ns"),
        )
        options = self.values("top", "max_elements", "first_ranks", "trust_generated", "progress")
        if self.candidates is not None:
            options |= {"top": self.candidates, "order": "recoverable", "hand_over": True}
        options |= {"values": dict(filter(None, (values_beside(trace.meta.path) for trace in run.traces)))}
        return replay(run, Path(self.folder), selection, **{"order": self.by, "device": peaks, **options})


fuse = function_of("fuse", FuseRequest)
replay = function_of("replay", ReplayRequest)
