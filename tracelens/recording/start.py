"""`tracelens.record`: what a training loop calls; torch is imported when it is called."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tracelens.errors import MissingExtra, TracelensError
from tracelens.recording.pack import MAX_BYTES
from tracelens.recording.sidecar import RecordOptions
from tracelens.recording.window import PACE_STEPS, RecordingWindow, whole_number

if TYPE_CHECKING:
    from tracelens.recording.recorder import Recorder


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
            hit, tensors in lists, texts. That step does not wait for the device.

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
