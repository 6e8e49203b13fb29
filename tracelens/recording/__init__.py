"""Recording traces of anyone's training loop.

    with tracelens.record("traces/") as r:
        for batch in loader:
            train_step(batch)
            r.step()

`r.step()` goes where an optimizer step is done, on every rank. Where a framework owns the loop, that is:

Hugging Face Trainer, a callback (one `on_step_end` is one optimizer step, gradient accumulation included):

    class Record(transformers.TrainerCallback):
        def __init__(self, recorder):
            self.recorder = recorder

        def on_step_end(self, args, state, control, **kwargs):
            self.recorder.step()

    with tracelens.record("traces/", model=model) as r:
        Trainer(model, args, callbacks=[Record(r)], ...).train()

Lightning, likewise: `on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx)`.

Megatron-LM, in `train()` of `megatron/training/training.py`: around the loop over iterations

    with tracelens.record("traces/", model=torch.nn.ModuleList(model), config=vars(args)) as r:

and `r.step()` behind the call of `train_step`.

torchtitan, in `Trainer.train()` of `torchtitan/train.py`: the same around its loop, with
`model=torch.nn.ModuleList(self.model_parts)`, and `r.step()` behind `self.train_step(...)`.

Leave a framework's own profiler off meanwhile: a process has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.lazy import lazy

if TYPE_CHECKING:
    from tracelens.recording.captures import twin
    from tracelens.recording.recorder import Recorder
    from tracelens.recording.scopes import region, scoped, span
    from tracelens.recording.sidecar import plain
    from tracelens.recording.start import record
    from tracelens.recording.window import LEFT_OUT, PACE_STEPS, WARMUP, RecordingWindow

__all__ = [
    "LEFT_OUT",
    "PACE_STEPS",
    "WARMUP",
    "Recorder",
    "RecordingWindow",
    "plain",
    "record",
    "region",
    "scoped",
    "span",
    "twin",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "recording.captures": "twin",
        "recording.recorder": "Recorder",
        "recording.scopes": "region scoped span",
        "recording.sidecar": "plain",
        "recording.start": "record",
        "recording.window": "RecordingWindow LEFT_OUT PACE_STEPS WARMUP",
    },
)
