"""Options of `tracelens project scaling` that `tracelens project memory` does not have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tracelens.cli import completion
from tracelens.cli.project.memory_options import FILE_OR_1, LAYOUT, TRAINING

COMPARED, TIME = "Compared", "Step time"


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **{"show_default": False, **more})


Gpus = Annotated[int, _option("GPUs of the run.", LAYOUT, metavar="N", min=1)]
ExpertRanks = Annotated[
    str, _option("GPUs that share the experts, as in 8,16,32,64.", COMPARED, metavar="LIST")
]
Dispatch = Annotated[
    str,
    _option(
        "Ways to dispatch tokens: alltoall, dedup, deepep. Speedups are over the first.",
        COMPARED,
        metavar="LIST",
        show_default=True,
    ),
]
Overlap = Annotated[
    str,
    _option(
        "Dispatches that 1F1B overlaps with the computation of another micro-batch; none for none.",
        COMPARED,
        metavar="LIST",
        show_default=True,
    ),
]
Device = Annotated[
    str,
    _option(
        "Device (`tracelens list devices`) or device file (.toml).",
        TIME,
        metavar="NAME",
        autocompletion=completion.devices,
    ),
]
Network = Annotated[
    str | None,
    _option(
        "A bundled network, as in mi300x-8x400g, or a TOML file with nodes, links and NICs.",
        TIME,
        metavar="FILE",
        show_default="400 Gb/s per GPU at line rate",
        autocompletion=completion.networks,
    ),
]
Assume = Annotated[
    list[str] | None,
    _option(
        "An assumption of the step time, as in jitter=0.05; the result lists all. Repeatable.",
        TIME,
        metavar="NAME=VALUE",
    ),
]
Routing = Annotated[
    str | None,
    _option(
        "Recorded routing: a NumPy file (.npy) with the experts of each token of a layer, one row per token.",
        TIME,
        metavar="FILE",
        show_default="balanced",
    ),
]
Stages = Annotated[
    int | None,
    _option(
        "Pipeline stages.",
        LAYOUT,
        metavar="N",
        min=1,
        show_default="as in the model file, or one expert group of the largest --ep each",
    ),
]
Chunks = Annotated[
    int | None,
    _option(
        "Model chunks per stage (interleaved pipeline).",
        LAYOUT,
        metavar="N",
        min=1,
        show_default=FILE_OR_1,
    ),
]
ContextRanks = Annotated[
    int | None,
    _option("GPUs that share a sequence.", LAYOUT, metavar="N", min=1, show_default=FILE_OR_1),
]
TensorRanks = Annotated[
    int | None,
    _option("GPUs that share each dense matrix.", LAYOUT, metavar="N", min=1, show_default=FILE_OR_1),
]
MicroBatch = Annotated[
    int | None,
    _option("Sequences per micro-batch.", TRAINING, metavar="N", min=1, show_default="as in the model, or 1"),
]
MicroBatches = Annotated[
    int | None,
    _option(
        "Micro-batches per step on each data-parallel rank.",
        TRAINING,
        metavar="N",
        min=1,
        show_default="4 x pp",
    ),
]
Recompute = Annotated[
    str | None,
    _option(
        "Recompute in the backward pass: none, full, or layers as in 0,1,2.",
        TRAINING,
        metavar="LAYERS",
        show_default="none",
    ),
]
