"""Options of `tracelens project memory`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from tracelens.cli import completion


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


class FrameworkChoice(StrEnum):
    """Values of --framework."""

    megatron = "megatron"
    workload = "workload"
    amd_guide = "amd-guide"


LAYOUT, TRAINING, FIT, SEARCH = "Layout", "Training", "Fit", "Search"
FILE_OR_1 = "as in the model file, or 1"


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **{"show_default": False, **more})


Model = Annotated[
    str,
    _option(
        "A bundled model (`tracelens list models`), or a file: .toml, Hugging Face config.json, Megatron or "
        "Primus YAML.",
        LAYOUT,
        metavar="MODEL",
        autocompletion=completion.models,
    ),
]
Gpus = Annotated[int | None, _option("GPUs of the run.", LAYOUT, metavar="N", min=1, show_default="1")]
Stages = Annotated[
    str | None,
    _option(
        "Pipeline stages. With --search, this and the sizes below may be lists: 8,16.",
        LAYOUT,
        metavar="N",
        show_default=FILE_OR_1,
    ),
]
ExpertRanks = Annotated[
    str | None,
    _option("GPUs that share the experts.", LAYOUT, metavar="N", show_default="all GPUs of a pipeline stage"),
]
ContextRanks = Annotated[
    str | None, _option("GPUs that share a sequence.", LAYOUT, metavar="N", show_default=FILE_OR_1)
]
TensorRanks = Annotated[
    str | None, _option("GPUs that share each dense matrix.", LAYOUT, metavar="N", show_default=FILE_OR_1)
]
Chunks = Annotated[
    str | None,
    _option("Model chunks per stage (interleaved pipeline).", LAYOUT, metavar="N", show_default=FILE_OR_1),
]
MicroBatch = Annotated[
    str | None, _option("Sequences per micro-batch.", TRAINING, metavar="N", show_default="as in the model")
]
Sequence = Annotated[
    int | None, _option("Tokens per sequence.", TRAINING, metavar="N", min=1, show_default="as in the model")
]
MicroBatches = Annotated[
    int | None,
    _option(
        "Micro-batches per step on each data-parallel rank; beyond 2 x pp, more add no memory.",
        TRAINING,
        metavar="N",
        min=1,
        show_default="2 x pp in a pipeline",
    ),
]
Layouts = Annotated[
    list[str] | None,
    _option(
        "A layout to compare, as in 'pp=24 ep=8 vpp=4', or to try with --search, as in 'pp=24 ep=8,16'. "
        "Repeatable.",
        LAYOUT,
        metavar="FIELDS",
    ),
]
Recompute = Annotated[
    str | None,
    _option(
        "Recompute in the backward pass: none, attention (of each layer), full (each layer), or layers as in "
        "0,1,2; in Megatron-core also moe, moe_act or mla_up_proj. With --search, what to try: none, full, "
        "or a number of layers per chunk, as in none,2,full.",
        TRAINING,
        metavar="LAYERS",
    ),
]
Optimizer = Annotated[
    OptimizerChoice,
    _option("adamw keeps 2 states per parameter, momentum 1, sgd 0.", TRAINING, show_default=True),
]
PrecisionOption = Annotated[
    Precision | None,
    _option(
        "bf16 keeps main parameters and optimizer states in float32, bf16-fp32-gradients gradients as well; "
        "bf16-no-main keeps all in bfloat16.",
        TRAINING,
        show_default="as in the model; in Megatron-core bf16-fp32-gradients",
    ),
]
Optimised = Annotated[
    bool,
    _option(
        "Use fused kernels: experts=grouped permute=fused router=fused loss=fused.", TRAINING, "--optimised"
    ),
]
Imbalance = Annotated[
    float,
    _option(
        "Tokens of the busiest GPU's experts / mean over GPUs.", TRAINING, metavar="RATIO", show_default=True
    ),
]
Overlap = Annotated[
    bool,
    _option(
        "1F1B with overlapped all-to-alls: one more forward in flight; --search overlaps them as well.",
        TRAINING,
        "--overlap",
    ),
]
StageBuffers = Annotated[
    StageBuffersChoice,
    _option(
        "Hold activations from other stages while they are needed (in_flight), or in buffers for all "
        "micro-batches (all), as torch's schedules do.",
        TRAINING,
        show_default=True,
    ),
]
Devices = Annotated[
    list[str] | None,
    _option(
        "Check this device (`tracelens list devices`). Repeatable.",
        FIT,
        metavar="NAME",
        autocompletion=completion.devices,
    ),
]
DeviceFiles = Annotated[
    list[str] | None, _option("Check the device in this TOML file. Repeatable.", FIT, metavar="FILE")
]
Reserve = Annotated[
    float | None,
    _option(
        "GiB of each device to keep free for the driver and communication contexts.",
        FIT,
        metavar="GIB",
        show_default="4; with --framework amd-guide, all above the nameplate",
    ),
]
Framework = Annotated[
    FrameworkChoice,
    _option(
        "What to count: Megatron-core's tensors and what its allocator reserves (megatron), the tensors of "
        "the reference workload (workload), or as the two memory charts of AMD's MoE training guide do "
        "(amd-guide).",
        TRAINING,
        show_default=True,
    ),
]
Megatron = Annotated[
    list[str] | None,
    _option(
        "An option of Megatron-core: layers=local (without Transformer Engine), "
        "gradient_accumulation=separate, states=bfloat16 or main=bfloat16 (precision-aware optimizer). "
        "Repeatable.",
        TRAINING,
        metavar="NAME=VALUE",
    ),
]
Assignments = Annotated[
    list[str] | None,
    _option(
        "Any other field of model, layout, toggles or training, as in sync_free=2. Repeatable.",
        TRAINING,
        "--set",
        metavar="FIELD=VALUE",
    ),
]
Search = Annotated[
    bool,
    _option(
        "Try all layouts of --gpus that the other options allow, and rank those that fit by step time.",
        SEARCH,
        "--search",
    ),
]
GlobalBatch = Annotated[
    int | None,
    _option(
        "Sequences per step on all GPUs.",
        SEARCH,
        metavar="N",
        min=1,
        show_default="as in the model file, or 15360",
    ),
]
Assume = Annotated[
    list[str] | None,
    _option(
        "An assumption of the step time, as in nic_bytes_per_s=25e9; the result lists all. Repeatable.",
        SEARCH,
        metavar="NAME=VALUE",
    ),
]
Network = Annotated[
    str | None,
    _option(
        "Network of the step time: a bundled one, as in mi300x-8x400g, or a TOML file.",
        SEARCH,
        metavar="FILE",
        autocompletion=completion.networks,
    ),
]
Top = Annotated[
    int | None, _option("Layouts to show per device.", SEARCH, metavar="N", min=1, show_default="10")
]
