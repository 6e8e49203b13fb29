"""Options of `tracelens project memory`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer


class Precision(StrEnum):
    """Values of --precision."""

    bf16 = "bf16"
    bf16_fp32_gradients = "bf16-fp32-gradients"
    bf16_no_main = "bf16-no-main"
    fp32 = "fp32"


class OptimizerChoice(StrEnum):
    """Values of --optimizer."""

    adamw = "adamw"
    momentum = "momentum"
    sgd = "sgd"


class StageBuffersChoice(StrEnum):
    """Values of --stage-buffers."""

    in_flight = "in_flight"
    all = "all"


class ConventionChoice(StrEnum):
    """Values of --convention."""

    exact = "exact"
    brief = "brief"


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, show_default=False, **more)


Model = Annotated[
    str,
    _option("A bundled model, or a file: .toml, config.json of Hugging Face, or YAML of Megatron or Primus."),
]
Gpus = Annotated[int | None, _option("GPUs of the run; 1 by default.", min=1)]
Stages = Annotated[str | None, _option("Pipeline stages. With --search several, as in 8,16; so below.")]
ExpertRanks = Annotated[
    str | None, _option("GPUs that share the experts; by default all of a pipeline stage.")
]
ContextRanks = Annotated[str | None, _option("GPUs that share a sequence.")]
TensorRanks = Annotated[str | None, _option("GPUs that share each dense matrix.")]
Chunks = Annotated[str | None, _option("Chunks of the model on each stage (interleaved pipeline).")]
MicroBatch = Annotated[str | None, _option("Sequences of a micro-batch.")]
Sequence = Annotated[int | None, _option("Tokens of a sequence.", min=1)]
MicroBatches = Annotated[
    int | None,
    _option(
        "Micro-batches of a step on a data-parallel rank. In a pipeline 2 x pp by default: more of them do "
        "not take more memory.",
        min=1,
    ),
]
Layouts = Annotated[
    list[str] | None,
    _option(
        "A layout to compare, as in 'pp=24 ep=8 vpp=4', or with --search to try, as in 'pp=24 ep=8,16'; "
        "repeat it.",
        metavar="FIELDS",
    ),
]
Recompute = Annotated[
    str | None,
    _option(
        "What is computed again in the backward: none, attention (of each layer), full (each layer), or "
        "layers as in 0,1,2. With --search, what to try: none, full, or so many layers of each chunk, as in "
        "none,2,full.",
        metavar="TEXT",
    ),
]
Optimizer = Annotated[OptimizerChoice, typer.Option(help="It keeps 2, 1 or 0 numbers a parameter.")]
PrecisionOption = Annotated[
    Precision | None,
    _option(
        "bf16 (main copies and optimizer in float32), bf16-fp32-gradients (gradients summed up in float32, "
        "too), bf16-no-main, or fp32."
    ),
]
Optimised = Annotated[
    bool,
    typer.Option(
        "--optimised",
        help="With what the workload can fuse: experts=grouped permute=fused router=fused loss=fused.",
    ),
]
Imbalance = Annotated[
    float, typer.Option(help="Tokens of the busiest GPU's experts / those of an average GPU's.")
]
Overlap = Annotated[
    bool,
    typer.Option("--overlap", help="1F1B with exchanges under computation: one more forward in flight."),
]
StageBuffers = Annotated[
    StageBuffersChoice,
    typer.Option(
        help="Activations from other stages are held while they are needed (in_flight), or in buffers for "
        "all micro-batches, as by torch's own schedules (all)."
    ),
]
Devices = Annotated[
    list[str] | None,
    _option("Does it fit on this device? Repeat it for more; see `tracelens list devices`.", metavar="NAME"),
]
DeviceFiles = Annotated[list[str] | None, _option("The same for the device of a TOML file.", metavar="FILE")]
Reserve = Annotated[
    float | None,
    _option(
        "GiB of each device that are not for training. By default 4, for contexts of driver and "
        "communication; with --convention brief, all above the nameplate."
    ),
]
Convention = Annotated[
    ConventionChoice,
    typer.Option(
        help="exact: all that the reference workload holds; brief: as AMD's MoE training guide counts in its "
        "two memory charts."
    ),
]
Assignments = Annotated[
    list[str] | None,
    _option(
        "Any other field of model, layout, toggles or training, as in sync_free=2; repeat it.",
        "--set",
        metavar="FIELD=VALUE",
    ),
]
Search = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Try all layouts of --gpus, or those that the options above allow, and rank those that fit by "
        "the least time of a step.",
    ),
]
GlobalBatch = Annotated[
    int | None,
    _option(
        "With --search, sequences of a step on all GPUs. By default as in the model's file, or 15360.", min=1
    ),
]
Assume = Annotated[
    list[str] | None,
    _option(
        "With --search, change what step times take for granted, as in nic_bytes_per_s=25e9; repeat it. All "
        "of that is in the result.",
        metavar="NAME=VALUE",
    ),
]
Top = Annotated[int | None, _option("With --search, layouts to show of each device; 10 by default.", min=1)]
