"""`tracelens.record`, and which steps of the loop are recorded; torch is imported when it is called."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracelens.errors import MissingExtra, TracelensError
from tracelens.recording.pack import MAX_BYTES
from tracelens.recording.sidecar import RecordOptions

if TYPE_CHECKING:
    from tracelens.recording.recorder import Recorder

Phase = Literal["wait", "warmup", "record", "done"]

WARMUP = 2
"""Steps with the profiler running and nothing kept: the first pays for the tracing library's start."""

PACE_STEPS = 20
"""Most steps that are timed without the profiler, before the window and after it."""

LEFT_OUT = 2
"""Steps before these that are not timed: kernels are loaded, buffers made and communicators set up."""


class RecordingWarning(UserWarning):
    """A recording is incomplete; the training goes on."""


@dataclass(frozen=True)
class RecordingWindow:
    """`wait` steps without the profiler, `warmup` with nothing kept, then `steps` that are recorded."""

    # Meanwhile kernels are loaded and tuned, communicators set up, the allocator gets its blocks, the
    # optimizer its state.
    wait: int = 5
    warmup: int = WARMUP
    steps: int = 3

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("steps", 1)):
            whole_number(name, getattr(self, name), least)

    @classmethod
    def between(cls, start: int, end: int, warmup: int = WARMUP) -> RecordingWindow:
        """The window that records steps `start` to `end - 1`, counted from 0.

        Args:
            start: first recorded step.
            end: the step after the last recorded one.
            warmup: steps before `start` with the profiler running, fewer where `start` is smaller.

        Raises:
            TracelensError: no step lies between them.
        """
        if isinstance(start, int) and isinstance(end, int) and not 0 <= start < end:
            raise TracelensError(
                f"no step to record from {start} to {end}: the end is the step after the last"
            )
        warmed = min(warmup, start)
        return cls(wait=start - warmed, warmup=warmed, steps=end - start)

    @property
    def first(self) -> int:
        """The first recorded step, counted from 0."""
        return self.wait + self.warmup

    @property
    def end(self) -> int:
        """The step after the last recorded one; the trace is written when it begins."""
        return self.first + self.steps

    def phase(self, step: int) -> Phase:
        """What happens with a step, counted from 0."""
        if step >= self.end:
            return "done"
        return "wait" if step < self.wait else "warmup" if step < self.first else "record"

    def recorded(self, finished: int) -> range:
        """The recorded steps among the first `finished` steps of the loop."""
        return range(self.first, max(self.first, min(finished, self.end)))

    def timed(self, most: int) -> dict[str, range]:
        """Steps that are timed without the profiler, counted from 0, by part: "before" and "after".

        Args:
            most: steps of a part: the last ones of `wait`, and the first ones after the window.
        """
        after = self.end + LEFT_OUT
        parts = {
            "before": range(max(LEFT_OUT, self.wait - most), self.wait),
            "after": range(after, after + most),
        }
        return {name: steps for name, steps in parts.items() if steps}

    def values_step(self, most: int) -> int:
        """The step whose values are noted: the last of `wait` that is not timed, else the one after `end`."""
        step = self.timed(most).get("before", range(self.wait, self.wait)).start - 1
        return step if step >= 0 else self.end


def whole_number(name: str, value: object, least: int) -> None:
    """Raise TracelensError for what is no whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TracelensError(f"{name} must be a whole number, {least} or more, not {value!r}")


def record(
    folder: str | os.PathLike[str],
    *,
    wait: int = RecordingWindow.wait,
    warmup: int = RecordingWindow.warmup,
    steps: int = RecordingWindow.steps,
    pace_steps: int = PACE_STEPS,
    model: Any = None,
    names: str | Callable[[str, Any], str | bool | None] | None = None,
    config: Mapping[str, Any] | None = None,
    mesh: Mapping[str, Any] | None = None,
    ranks: Collection[int] | Literal["all", "hosts"] = "all",
    stack: bool = False,
    memory: bool = False,
    max_bytes: int | None = MAX_BYTES,
    scrub: bool = False,
    values: bool = True,
) -> Recorder:
    """Record some steps of a training loop: `with` around the loop, and `step()` after each of its steps.

    Every rank writes `rank<N>.json.gz` when the last step of the window is done, and rank 0 `run.json` (see
    `tracelens.recording.sidecar`). Training stands still for that, seconds for most traces; before the window
    and after it a step costs microseconds. Once the loop runs, nothing here ends it: what goes wrong is a
    RecordingWarning and in `r.notes`.
    Recorded are ops with their shapes on all threads, GPU work (NVIDIA and AMD), garbage collections, scopes,
    and in `capture_traces/` what CUDA and HIP graphs capture inside the `with` before `warmup`.

    Args:
        folder: where the traces go, made if it is not there; local to a host or shared by all.
        wait: steps before the profiler starts.
        warmup: steps with the profiler running and nothing kept.
        steps: steps recorded. The device is synchronized before the first, so that every kernel in them was
            launched in them.
        pace_steps: most steps timed without the profiler: the last of `wait`, but never the loop's first two,
            and as many after the window. The device is synchronized at both ends. `wait=22` gives 20.
        model: a torch.nn.Module whose blocks, attention, MLPs, routers and experts get scopes of their
            qualified names, forward ("layers.3.mlp") and backward ("layers.3.mlp.B").
        names: other modules of `model` to name so: a regular expression to be found in qualified names, or a
            function of (name, module) that returns whether, or the scope's name.
        config: the run's configuration, for run.json and the traces; what JSON lacks is written as text.
        mesh: sizes of the parallel dimensions, {"dp": 2, "ep": 8}, likewise.
        ranks: which ranks record: numbers, "all", or the first of each host, "hosts".
        stack: record Python frames too. They slow the host down and are much of the file.
        memory: record allocations too. Threads other than the loop's and autograd's are then left out.
        max_bytes: most bytes of a rank's file; a larger trace loses Python frames and allocations, then steps
            from the last on, and the recorder notes it. None for no bound.
        scrub: shorten paths and leave out the host's name, for traces that are passed on; of `values` the
            indices.
        values: note in one step outside the window what the profiler leaves out, in
            `rank<N>.values.json.zst` (see `tracelens.recording.values`): sizes of groups, how often rows are
            hit, tensors in lists, texts. That step waits for the device at each such call.

    Returns:
        the recorder, for a `with`, which reads the rank: start torch.distributed before it.

    Raises:
        MissingExtra: torch is not installed.
        TracelensError: an argument is wrong, here or as the `with` begins; or the folder has ranks of another
            run, which this one does not write anew.
    """
    window = RecordingWindow(wait, warmup, steps)
    whole_number("pace_steps", pace_steps, least=0)
    if max_bytes is not None and (not isinstance(max_bytes, int) or max_bytes < 1):
        raise TracelensError(f"max_bytes must be a number of bytes or None, not {max_bytes!r}")
    if names is not None and model is None:
        raise TracelensError("names selects modules of a model: pass model too")
    try:
        from tracelens.recording.recorder import Recorder
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "torch":
            raise
        raise MissingExtra("tracelens.record", "workload") from error
    options = RecordOptions(
        stack=stack,
        memory=memory,
        ranks=ranks,
        model=model,
        names=names,
        config=config,
        mesh=mesh,
        max_bytes=max_bytes,
        scrub=scrub,
        pace_steps=pace_steps,
        values=values,
    )
    return Recorder(Path(folder), window, options)
