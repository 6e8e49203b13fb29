"""The recorder itself: runs torch's profiler over the window, and writes the trace when the window ends."""

from __future__ import annotations

import contextlib
import gc
import json
import secrets
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch.autograd.profiler as _autograd_profiler
from torch.profiler import ProfilerAction, _KinetoProfile, profile, record_function

from tracelens.errors import TracelensError
from tracelens.filenames import CAPTURES, RANK_FILE, SIDECAR, VALUES
from tracelens.recording import scopes, sidecar, software
from tracelens.recording.captures import Captures
from tracelens.recording.pace import PaceTimer, wait_for_gpus
from tracelens.recording.pack import pack, scrub
from tracelens.recording.scopes import Hooks, choose, recording
from tracelens.recording.sidecar import JobRank, RecordOptions, content, find_job_rank, metadata
from tracelens.recording.values import Values
from tracelens.recording.window import RecordingWarning, RecordingWindow


class Recorder:
    """Records the steps of a window of a training loop; made by `tracelens.record`."""

    def __init__(self, folder: Path, window: RecordingWindow, options: RecordOptions) -> None:
        self.folder, self.window, self.options = folder, window, options
        self.job_rank = JobRank()  # known inside the `with`
        self.path: Path | None = None  # the trace of this rank once it is written
        self.notes: list[str] = []  # what did not go as requested, each also a RecordingWarning
        # what the program found out while it ran; goes into run.json under this name
        self.facts: dict[str, Any] = {}
        self._finished = 0  # steps of the loop
        self._notes_shown = 0
        self._key = secrets.token_hex(8)
        self._pace = PaceTimer(window, options.pace_steps)
        self._state = "new"
        self._recorded = range(0)
        self._profiler: Any = None
        self._hooks = contextlib.ExitStack()
        self._captures: Captures | None = None
        self._values: Values | None = None
        self._values_step = window.values_step(options.pace_steps)
        self._modules: dict[str, Any] = {}

    @property
    def raw(self) -> Path:
        """What the profiler writes before it is compressed; nobody takes it for a trace or foresees it."""
        return self.folder / f".rank{self.job_rank.rank}.{self._key}.json.part"

    def __enter__(self) -> Recorder:
        if self._state != "new":
            raise TracelensError("a recorder records one loop: call tracelens.record again for another one")
        self.job_rank = find_job_rank()
        records = self.job_rank.records(self.options.ranks)
        if records and _autograd_profiler._is_profiler_enabled:
            raise TracelensError("another torch profiler is running in this process: stop it first")
        if self.options.scrub:
            scrub(json.dumps(self._metadata()), "config or mesh")
        if self.options.model is not None:
            self._modules = choose(self.options.model, self.options.names)
        if records or self.job_rank.rank == 0:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                # A job that was killed while it wrote has left gigabytes.
                for path in self.folder.glob(f".rank{self.job_rank.rank}.{'[0-9a-f]' * 16}*.json.part"):
                    path.unlink(missing_ok=True)
                self.raw.touch(exist_ok=False)
                self.raw.unlink()
                stale = sorted(path.name for path in self.folder.iterdir() if self._is_foreign(path.name))
            except OSError as error:
                raise TracelensError(
                    f"{self.folder}: cannot write a trace here ({error.strerror}); pass another folder"
                ) from None
            if stale:
                more = f" and {len(stale) - 1} more" if len(stale) > 1 else ""
                raise TracelensError(
                    f"{self.folder}: holds {stale[0]}{more} of another run, which reports would take for "
                    "ranks of this one; remove it, or pass another folder"
                )
        self._state = "running"
        if records:
            self._start()
        return self

    def _is_foreign(self, name: str) -> bool:
        """Whether a file is the trace of a rank that this recording will not replace."""
        if not (trace := RANK_FILE.fullmatch(name)):
            return False
        number, ranks = int(trace[1]), self.options.ranks
        written = number < self.job_rank.world and (isinstance(ranks, str) or number in ranks)
        return not written or name != f"rank{number}.json.gz"

    def step(self, *, tokens: Any = None, samples: Any = None) -> None:
        """Say that a step of the loop is done; the trace is written when the last of the window is.

        Args:
            tokens: of the step, those of all ranks together, for tokens/s: a number or a tensor with one.
            samples: likewise.
        """
        if self._state == "new":
            raise TracelensError("step() was called outside `with tracelens.record(...) as r:`")
        if self._state == "closed":
            return
        self._finished += 1
        if self._values is not None:
            self._values.close()
        # Before the profiler, which starts where a part ends.
        completed = self._pace.step(self._finished, tokens=tokens, samples=samples)
        if self._profiler is not None:
            if self._captures is not None and self.window.phase(self._finished) != "wait":
                self._captures.give_way()
            if self._finished == self.window.first:
                wait_for_gpus()  # kernels launched before the window would have no launch call in it
            self._profiler.step()
        if self._finished == self.window.end:
            self._stop()
            self._write()
            self._tell()
        elif completed and self._finished > self.window.end:
            self._beside()
            self._tell()
        if self._values is not None and self._finished == self._values_step + 1 > self.window.end:
            self._write_values()
            self._tell()
        self._open_values()

    def span(self, name: str) -> AbstractContextManager[Any]:
        return scopes.span(name)

    def region(self, name: str) -> scopes.Region:
        return scopes.region(name)

    def twin(self) -> AbstractContextManager[None]:
        """Record what runs inside as the eager twin of a graph that is captured later, before the window.

        A capture on an NVIDIA GPU does not name its kernels; a warm-up run of the same work does, which tells
        the streams of a graph apart and confirms the rest.
        """
        return self._captures.session() if self._captures is not None else contextlib.nullcontext()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._values is not None:
            self._values.close()
        if self._state == "running":
            self._stop()
            self._pace.abandon()  # the part before the window: no trace goes with it
            self._write()
        else:
            if error is not None:
                self._pace.abandon()  # a device that has failed may never be done
            if self._pace.close() or self.facts:
                self._beside()
        self._state = "closed"
        # The loop's own exception must not be replaced where warnings are errors.
        with contextlib.suppress(*([RecordingWarning] if error else [])):
            self._tell()

    def _start(self) -> None:
        """Start torch's profiler, which waits for its steps by itself."""
        options, window = self.options, self.window
        actions = {"wait": ProfilerAction.NONE, "warmup": ProfilerAction.WARMUP, "done": ProfilerAction.NONE}
        actions["record"] = ProfilerAction.RECORD

        def schedule(step: int) -> Any:
            return ProfilerAction.RECORD_AND_SAVE if step == window.end - 1 else actions[window.phase(step)]

        self._profiler = profile(
            schedule=schedule,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(self.raw)),
            **software.profiler_options(options.stack, options.memory),
        )
        hooks = Hooks(self._modules)
        self._hooks.callback(hooks.remove)
        if not (options.stack and software.has_option("record_python_gc_info")):
            self._hooks.callback(Collections().remove)
        if window.first == 0:
            wait_for_gpus()
        self._profiler.__enter__()
        self._captures = Captures(
            self.raw.with_name(f"{self.raw.name.removesuffix('.json.part')}.captures.json.part"),
            self._capture_profiler,
            lambda: window.phase(self._finished),
            self._note_once,
            hooks,
        )
        self._hooks.callback(self._captures.remove)
        self._values = Values(indices=not options.scrub) if options.values else None
        self._open_values()

    def _open_values(self) -> None:
        """Note what the step that begins calls, if it is the one for that."""
        if self._values is not None and self._finished == self._values_step:
            self._values.open()

    def _write_values(self) -> None:
        """Write what the profiler leaves out, beside the trace."""
        path = self.folder / f"rank{self.job_rank.rank}{VALUES}"
        try:
            if self._values is None:
                path.unlink(missing_ok=True)
            else:
                self._values.write(path, self._values_step)
        except OSError as error:
            self._note_once(f"{path} was not written: {error.strerror}")

    def _capture_profiler(self) -> Any:
        self._pace.abandon()  # steps with a profiler in them are none without
        if self._values is not None:  # the capture is a trace as well, and shows modes
            self._values.close("part of the step, from its first captured graph on")
        return _KinetoProfile(**software.profiler_options(self.options.stack))

    def _stop(self) -> None:
        """End the profiler, which writes what it has; from here on a step costs nothing."""
        self._state = "stopped"
        profiler, self._profiler = self._profiler, None
        try:
            if profiler is not None:
                profiler.__exit__(None, None, None)
        except RuntimeError as error:
            self.notes.append(f"torch's profiler could not be stopped: {error}")
        finally:
            self._hooks.close()

    def _write(self) -> None:
        """Write the trace and the sidecar. What goes wrong is noted: it must not end the training."""
        window, options, finished = self.window, self.options, self._finished
        steps = window.recorded(finished)
        if len(steps) < window.steps:
            ended = f"the loop ended after {finished} {'step' if finished == 1 else 'steps'}"
            self.notes.append(
                f"{ended}: {len(steps)} of {window.steps} steps recorded, from step {window.first} on"
                if steps
                else f"{ended}: nothing recorded, the window is steps {window.first} to {window.end - 1}; "
                f"run {window.end} steps, or pass a smaller wait ({window.wait}), warmup ({window.warmup}) "
                f"or steps ({window.steps})"
            )
        try:
            if steps and self.job_rank.records(options.ranks):
                name = f"rank{self.job_rank.rank}.json.gz"
                frames = options.stack or options.memory
                packed = pack(
                    self.raw,
                    self.folder / name,
                    steps,
                    frames=frames,
                    unfinished=None if len(steps) == window.steps else finished,
                    max_bytes=options.max_bytes,
                    paths=not options.scrub,
                    metadata=self._metadata(),
                )
                self.path = self.folder / name
                self._write_values()
                if self._captures is not None:
                    self._captures.pack(
                        self.folder / CAPTURES / name,
                        frames=options.stack,
                        max_bytes=options.max_bytes,
                        paths=not options.scrub,
                    )
                if lost := packed.left_out(steps, frames):
                    self.notes.append(
                        f"{self.path}: left out {' and '.join(lost)} to stay under "
                        f"max_bytes={options.max_bytes:,}"
                    )
                steps = packed.steps
            self._recorded = steps
        except (OSError, TracelensError) as error:
            self.notes.append(f"rank {self.job_rank.rank}: {error}")
        finally:
            self.raw.unlink(missing_ok=True)
            if self._captures is not None:
                self._captures.clean_up()
        if steps:
            self._beside()

    def _metadata(self) -> dict[str, Any]:
        return metadata(self.job_rank, self.window, self.options, self._timed())

    def _timed(self) -> dict[str, Any] | None:
        """The pace of this rank up to now, by which its files are known to be of one recording."""
        return {"recording": self._key, **self._pace.parts} if self.options.pace_steps else None

    def _beside(self) -> None:
        """Write what stands beside the trace: run.json on rank 0, on others a pace that no trace has."""
        rank = self.job_rank.rank
        try:
            if rank == 0:
                document = content(self.job_rank, self.window, self.options, self._timed())
                document["window"]["recorded"] = self._recorded
                document["options"]["scopes"] = list(self._modules)
                document["captures"] = self._captures.count if self._captures is not None else 0
                sidecar.write(self.folder, {**document, "facts": self.facts, "notes": self.notes})
            elif self._pace.parts and (self.path is None or "after" in self._pace.parts):
                self.folder.mkdir(parents=True, exist_ok=True)  # a rank that does not record has made none
                sidecar.write_pace(self.folder, rank, self._timed())
        except OSError as error:
            name = sidecar.pace_name(rank) if rank else SIDECAR
            self._note_once(f"{self.folder / name} was not written: {error.strerror}")

    def _note_once(self, note: str) -> None:
        self.notes += [] if note in self.notes else [note]

    def _tell(self) -> None:
        new, self._notes_shown = self.notes[self._notes_shown :], len(self.notes)
        for note in new:
            warnings.warn(note, RecordingWarning, stacklevel=3)


NAME = "Python GC"
"""What torch calls a collection."""


class Collections:
    """Puts a scope around each garbage collection, until removed.

    torch records collections only together with Python frames, and those are too slow to be on by default.
    """

    def __init__(self) -> None:
        self._scope: Any = None
        gc.callbacks.append(self._collected)

    def remove(self) -> None:
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def _collected(self, phase: Literal["start", "stop"], _: dict[str, int]) -> None:
        # One collection runs at a time, and ends on the thread on which it began.
        if phase == "start" and recording():
            self._scope = record_function(NAME)
            self._scope.__enter__()
        elif phase == "stop" and self._scope is not None:
            self._scope.__exit__(None, None, None)
            self._scope = None
