"""From a finding to action: commands that show, replay and project it, and its place in Perfetto."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from tracelens.arrays import Bool, Int, isin, lookup
from tracelens.filenames import traces_among
from tracelens.findings.detectors import JOB, Detection, Detector, Outcome
from tracelens.findings.remedies import TracePlatform, joined, platform_of
from tracelens.trace import Trace, Union, steps_of, union

ACTIONS = ("evidence_command", "replay_command", "whatif_command", "location")
"""Columns of a finding."""

_WITH_DEVICE = ("replay", "whatif")
_REPLAYABLE = re.compile("aten::")


class Spot(Struct, frozen=True):
    """Whose time it is: GPU stream and host thread, "" where the trace does not show them."""

    stream: str
    thread: str


class CommandSource(Struct, frozen=True):
    """What commands about one rank's findings need of its trace."""

    path: str  # of the file
    origin: int  # time of its first event, ns
    world_size: int  # ranks of the job, -1 where the trace does not say
    steps: tuple[str, ...]  # labels of the steps; empty where none are marked
    edges: Int  # ns on the GPU, one more than labels
    single: bool  # whether the trace is narrowed to one of its steps
    replayable: Union  # when calls with recorded arguments ran, and collectives with recorded sizes
    device: tuple[str, ...]  # options of the findings that replays and projections repeat
    spots: Mapping[str, Spot]  # by detector, of the longest piece of its time
    platform: TracePlatform  # what the trace shows of device and software

    @classmethod
    def of(
        cls,
        trace: Trace,
        outcomes: Mapping[str, Outcome],
        device: str | None = None,
        device_file: str | None = None,
    ) -> CommandSource:
        """What a trace shows; `device` and `device_file` are the options of the findings."""
        work, ops, collectives = trace.work, trace.tables["ops"], trace.tables["collectives"]
        spots = {}
        for name, outcome in outcomes.items():
            if isinstance(outcome, Detection) and outcome.where.total:
                # The GPU work that runs then or comes next, and the thread that launched it.
                stream = thread = ""
                if len(ahead := np.flatnonzero(work.end > longest_start(outcome.where))):
                    row = int(ahead[0])
                    call = int(work.host_call[row])
                    stream = "" if work.cpu_only else f"stream {int(work.stream[row])}"
                    if call >= 0:
                        key = int(trace.arrays.pid[call]), int(trace.arrays.tid[call])
                        thread = trace.meta.threads.get(key, f"thread {key[1]}")
                spots[name] = Spot(stream, thread)
        with_arguments = np.zeros(len(trace.arrays.start), dtype=bool)
        if len(ops):
            with_shapes = ops.coded("shapes").mask(lambda text: text not in ("", "[]"))
            with_arguments[ops.array("event_id")[with_shapes]] = True
            with_arguments &= trace.arrays.named(_REPLAYABLE.match)
        mask: Bool = lookup(with_arguments, work.op, False)
        if not work.cpu_only and len(collectives):
            # Of an all-to-all with sizes of its own for each rank these have to be recorded, too.
            split = collectives.coded("in_split").mask(lambda text: text not in ("", "[]"))
            uneven = collectives.coded("collective").mask(lambda name: name.endswith("v"))
            sized = (collectives.array("in_bytes") > 0) & (split | ~uneven)
            mask = mask | isin(work.event, collectives.array("kernel_id")[sized])
        steps = steps_of(trace)
        whole = steps.only_whole()
        options = (("--device", device), ("--device-file", device_file))
        return cls(
            path=trace.meta.path,
            origin=int(trace.arrays.start.min()),
            world_size=trace.meta.world_size,
            steps=tuple(whole.labels) if steps.marked else (),
            edges=whole.edges,
            single=trace.window is not None,
            replayable=union(work.start[mask], work.end[mask]),
            device=tuple(word for name, value in options if value for word in (name, value)),
            spots=spots,
            platform=platform_of(trace),
        )

    def step_at(self, time: int) -> str:
        """The number or label of the step at a time, for --step; "" where it is in none."""
        index = int(np.searchsorted(self.edges, time, side="right")) - 1
        if not 0 <= index < len(self.steps):
            return ""
        return _number(self.steps[index])


class Commands(Struct, frozen=True):
    """The command lines and positions of a run's findings."""

    recordings: Mapping[int, CommandSource]  # by rank
    unprofiled_step_ms: float | None = None  # a step without the profiler, if the user gave it

    @property
    def platform(self) -> TracePlatform:
        """What the ranks show together."""
        return joined(recording.platform for recording in self.recordings.values())

    def of(
        self, detector: Detector, detections: Mapping[int, Detection], worst: int, scenario: str
    ) -> dict[str, str]:
        """The columns of ACTIONS for one finding; "" for what it has none of.

        Args:
            detector: whose finding it is.
            detections: by rank, or of the job.
            worst: the rank that loses most; JOB for the whole job.
            scenario: that the finding is sized by, "" for none.
        """
        rank = worst if worst in self.recordings else min(self.recordings)
        recording, where = self.recordings[rank], detections[worst].where
        start = longest_start(where) if where.total else -1
        step = recording.step_at(start) if start >= 0 else ""
        columns = dict.fromkeys(ACTIONS, "")
        narrowed = ("--step", step) if step else ()
        columns["evidence_command"] = self._line(("analyze", detector.evidence), narrowed)
        # Whether a call that a script can repeat runs while time is lost, on any rank.
        lost = {number: detections.get(number, detections.get(JOB)) for number in self.recordings}
        if any(
            (self.recordings[number].replayable.covered(loss.where.start, loss.where.end) > 0).any()
            for number, loss in lost.items()
            if loss is not None and self.recordings[number].replayable.total
        ):
            columns["replay_command"] = self._line(
                ("replay",), ("--finding", detector.name, "-o", f"replay_{detector.name}"), own_step=True
            )
        if scenario:
            options = ["--scenario", scenario]
            if self.unprofiled_step_ms is not None:
                options += ["--unprofiled-step-ms", f"{self.unprofiled_step_ms:.15g}"]
            columns["whatif_command"] = self._line(("project", "whatif"), options, own_step=True)
        if start >= 0:
            name, spot = os.path.basename(recording.path), recording.spots.get(detector.name, Spot("", ""))
            parts = (
                f"rank {rank}" if len(self.recordings) > 1 else "",
                f"{name} (Perfetto needs it unpacked)" if name.endswith(".zst") else name,
                spot.stream,
                spot.thread,
                f"{(start - recording.origin) / 1e6:,.3f} ms after its first event",
            )
            where_to_look = "in ui.perfetto.dev: Ctrl+Shift+P, Pan to timestamp"
            columns["location"] = f"{', '.join(filter(None, parts))}; {where_to_look}, {start}"
        return columns

    def _line(self, command: Sequence[str], options: Sequence[str], own_step: bool = False) -> str:
        """A line to paste into a shell.

        Args:
            command: behind `tracelens`.
            options: of the command.
            own_step: whether it repeats the step that the findings are narrowed to.
        """
        any_rank = next(iter(self.recordings.values()))
        words = [
            "tracelens",
            *command,
            *arguments([item.path for item in self.recordings.values()]),
            *options,
        ]
        if own_step and any_rank.single:
            words += ["--step", _number(any_rank.steps[0])]
        if command[-1] in _WITH_DEVICE:
            words += any_rank.device
        if 0 < len(self.recordings) < any_rank.world_size:
            words.append("--partial")
        return shlex.join(words)


def arguments(paths: Sequence[str]) -> list[str]:
    """The shortest way to name exactly these files on a command line: a directory that holds no other trace.

    An archive stands for its members.
    """
    files = []
    for path in paths:
        archive, bang, _ = path.partition("!")
        is_member = bang and not os.path.exists(path) and os.path.isfile(archive)
        files.append(archive if is_member else path)
    files = list(dict.fromkeys(files))
    folders = {os.path.dirname(file) for file in files}
    if len(files) > 1 and len(folders) == 1:
        (folder,) = folders
        try:
            names = [os.path.join(folder, name) for name in os.listdir(folder or os.curdir)]
        except OSError:
            return files
        if sorted(filter(os.path.isfile, traces_among(names))) == sorted(files):
            return [folder or os.curdir]
    return files


def _number(label: str) -> str:
    """A step for --step."""
    return label.removeprefix("ProfilerStep#")


def longest_start(where: Union) -> int:
    """When the longest of several pieces of time begins, ns."""
    return int(where.start[np.argmax(where.end - where.start)])
