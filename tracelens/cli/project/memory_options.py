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
    _option("A bundled model, or a file: .toml, Hugging Face config.json, or Megatron or Primus YAML."),
]
Gpus = Annotated[int | None, _option("GPUs of the run; default 1.", min=1)]
Stages = Annotated[str | None, _option("Pipeline stages. With --search a list such as 8,16, here and below.")]
ExpertRanks = Annotated[str | None, _option("GPUs that share the experts; default: all of a pipeline stage.")]
ContextRanks = Annotated[str | None, _option("GPUs that share a sequence.")]
TensorRanks = Annotated[str | None, _option("GPUs that share each dense matrix.")]
Chunks = Annotated[str | None, _option("Model chunks per stage (interleaved pipeline).")]
MicroBatch = Annotated[str | None, _option("Sequences per micro-batch.")]
Sequence = Annotated[int | None, _option("Tokens per sequence.", min=1)]
MicroBatches = Annotated[
    int | None,
    _option(
        "Micro-batches per step on each data-parallel rank; default in a pipeline: 2 x pp; more take no more "
        "memory.",
        min=1,
    ),
]
Layouts = Annotated[
    list[str] | None,
    _option(
        "A layout to compare, as in 'pp=24 ep=8 vpp=4', or with --search to try, as in 'pp=24 ep=8,16'. "
        "Repeatable.",
        metavar="FIELDS",
    ),
]
Recompute = Annotated[
    str | None,
    _option(
        "Recompute in the backward: none, attention (of each layer), full (each layer), or layers as in "
        "0,1,2. With --search, what to try: none, full, or a number of layers per chunk, as in none,2,full.",
        metavar="TEXT",
    ),
]
Optimizer = Annotated[OptimizerChoice, typer.Option(help="Keeps 2, 1 or 0 states per parameter.")]
PrecisionOption = Annotated[
    Precision | None,
    _option(
        "bf16 (main parameters and optimizer states in float32), bf16-fp32-gradients (also gradients in "
        "float32), bf16-no-main, or fp32."
    ),
]
Optimised = Annotated[
    bool,
    typer.Option(
        "--optimised",
        help="Use fused kernels: experts=grouped permute=fused router=fused loss=fused.",
    ),
]
Imbalance = Annotated[float, typer.Option(help="Tokens of the busiest GPU's experts / mean over GPUs.")]
Overlap = Annotated[
    bool,
    typer.Option("--overlap", help="1F1B with overlapped all-to-alls: one more forward in flight."),
]
StageBuffers = Annotated[
    StageBuffersChoice,
    typer.Option(
        help="Hold activations from other stages while needed (in_flight), or in buffers for all "
        "micro-batches, as torch's schedules do (all)."
    ),
]
Devices = Annotated[
    list[str] | None,
    _option(
        "Check whether it fits on this device; see `tracelens list devices`. Repeatable.", metavar="NAME"
    ),
]
DeviceFiles = Annotated[list[str] | None, _option("The same for a device in a TOML file.", metavar="FILE")]
Reserve = Annotated[
    float | None,
    _option(
        "GiB of each device to keep free. Default 4, for driver and communication contexts; with "
        "--convention brief, everything above the nameplate."
    ),
]
Convention = Annotated[
    ConventionChoice,
    typer.Option(
        help="exact: every tensor of the reference workload; brief: as in the two memory charts of AMD's MoE "
        "training guide."
    ),
]
Assignments = Annotated[
    list[str] | None,
    _option(
        "Any other field of model, layout, toggles or training, as in sync_free=2. Repeatable.",
        "--set",
        metavar="FIELD=VALUE",
    ),
]
Search = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Try all layouts of --gpus that the other options allow, and rank those that fit by step time.",
    ),
]
GlobalBatch = Annotated[
    int | None,
    _option("With --search, sequences per step on all GPUs; default: as in the model file, or 15360.", min=1),
]
Assume = Annotated[
    list[str] | None,
    _option(
        "With --search, an assumption of the step time, as in nic_bytes_per_s=25e9; the result lists all. "
        "Repeatable.",
        metavar="NAME=VALUE",
    ),
]
Top = Annotated[int | None, _option("With --search, layouts to show per device; default 10.", min=1)]
