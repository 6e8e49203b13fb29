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

    @property
    def fields(self) -> list[str]:
        """What it sets of the training."""
        bf16, main = self is not Precision.fp32, self in (Precision.bf16, Precision.bf16_fp32_gradients)
        return [f"dtype={'bfloat16' if bf16 else 'float32'}", f"main_params={str(main).lower()}"]


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
Gpus = Annotated[int | None, _option("GPUs of the run.")]
Stages = Annotated[str | None, _option("Pipeline stages. With --search several, as in 8,16; so below.")]
ExpertRanks = Annotated[str | None, _option("GPUs of a stage that share the experts.")]
ContextRanks = Annotated[str | None, _option("GPUs that share a sequence.")]
TensorRanks = Annotated[str | None, _option("GPUs that share each dense matrix.")]
Chunks = Annotated[str | None, _option("Chunks of the model on each stage.")]
MicroBatch = Annotated[str | None, _option("Sequences of a micro-batch.")]
Sequence = Annotated[int | None, _option("Tokens of a sequence.")]
MicroBatches = Annotated[
    int | None,
    _option(
        "Micro-batches of a step on a data-parallel rank; in a pipeline by default 2 x pp, with which as "
        "many are in flight as with any more."
    ),
]
Layouts = Annotated[
    list[str] | None,
    _option(
        "Compare layouts: fields that one of them sets, as in 'pp=24 ep=8 vpp=4'; repeat it. With --search, "
        "layouts to try, as in 'pp=24 ep=8,16 cp=1,2'.",
        metavar="FIELDS",
    ),
]
Recompute = Annotated[
    str | None,
    _option(
        "What is computed again in the backward: none, attention (of each layer), full (each layer), or "
        "numbers of layers as in 0,1,2. With --search, amounts to try: none, full, or how many layers of "
        "each chunk, as in none,2,full.",
        metavar="TEXT",
    ),
]
Optimizer = Annotated[OptimizerChoice, typer.Option(help="Numbers kept a parameter: 2, 1 or 0.")]
PrecisionOption = Annotated[
    Precision | None,
    _option(
        "bf16 (main copies and optimizer in float32), bf16-fp32-gradients (gradients summed up in float32, "
        "too), bf16-no-main, or fp32."
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
        help="Activations from other pipeline stages are held while they are needed (in_flight), or in "
        "buffers for all micro-batches of a step, as in torch's own schedules and so in the reference "
        "workload (all)."
    ),
]
Devices = Annotated[
    list[str] | None,
    _option("Compare with this device; repeat it for more; see `tracelens list devices`.", metavar="NAME"),
]
DeviceFiles = Annotated[
    list[str] | None, _option("Compare with the device of this TOML file.", metavar="FILE")
]
Reserve = Annotated[
    float | None,
    _option(
        "GB (decimal) of each device that are not for training. By default 4, for contexts of driver and "
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
        "Any other field of model, layout, toggles or training, as in experts=grouped; repeat it.",
        "--set",
        metavar="FIELD=VALUE",
    ),
]
Search = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Try the layouts that --gpus allow, and rank those that fit by the least time of a step; --pp, "
        "--ep, --cp, --tp, --vpp, --mbs, --recompute and --layout restrict them.",
    ),
]
GlobalBatch = Annotated[
    int | None,
    _option(
        "With --search, sequences of a step on all GPUs: layouts are compared at the same work. By default "
        "as in the model's file, or 15360."
    ),
]
Assume = Annotated[
    list[str] | None,
    _option(
        "With --search, change what the step time takes for granted, as in nic_bytes_per_s=25e9; repeat it. "
        "All of these are in the result.",
        metavar="NAME=VALUE",
    ),
]
Top = Annotated[int, typer.Option(help="With --search, layouts to show of each device.")]
