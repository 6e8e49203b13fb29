"""`tracelens project pipeline`: simulated schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens.cli import completion
from tracelens.cli.common import (
    Json,
    Limit,
    Output,
    Partial,
    check_outputs,
    deliver_result,
    files_of,
    progress,
)
from tracelens.read import TraceFiles
from tracelens.session import project_pipeline

if TYPE_CHECKING:
    from tracelens.table import Result


SCHEDULE, TIMES, MODEL, MEASURED = "Schedule", "Times", "Times from --model", "Times from --from"


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **{"show_default": False, **more})


Schedules = Annotated[
    list[str] | None,
    _option(
        "gpipe, 1f1b, 1f1b-overlap, interleaved, interleaved-overlap, zb-h1, zb-h2, zb-v, all, or a CSV file "
        "of torch.distributed.pipelining. Repeatable.",
        SCHEDULE,
        "--schedule",
        metavar="NAME",
        show_default="1f1b, and interleaved with --vpp",
        autocompletion=completion.schedules,
    ),
]
Stages = Annotated[int | None, _option("Pipeline stages.", SCHEDULE, metavar="N", min=1)]
MicroBatches = Annotated[
    int | None, _option("Micro-batches per step on each rank (GA).", SCHEDULE, metavar="N", min=1)
]
Chunks = Annotated[
    int | None, _option("Model chunks per stage, for interleaved schedules.", SCHEDULE, metavar="N", min=1)
]
Turn = Annotated[
    int,
    _option(
        "Micro-batches per turn through a chunk, for interleaved schedules.",
        SCHEDULE,
        metavar="N",
        min=0,
        show_default="--pp",
    ),
]
Cut = Annotated[
    str,
    _option(
        "Layers of each chunk in model order, as in 3,4,4,3.", SCHEDULE, metavar="LAYERS", show_default="even"
    ),
]
Best = Annotated[
    bool,
    _option("Search for the partition with the shortest schedule.", SCHEDULE, "--best-partition"),
]
ForwardMs = Annotated[
    float | None,
    _option("Forward time per micro-batch and stage, over all its chunks.", TIMES, metavar="MS"),
]
BackwardMs = Annotated[
    float | None, _option("Backward time, likewise.", TIMES, metavar="MS", show_default="twice the forward")
]
ExchangeShare = Annotated[
    float,
    _option(
        "Exposed all-to-all as a share of forward and backward; an overlapping schedule can hide it.",
        TIMES,
        metavar="SHARE",
        min=0,
        max=1,
        show_default=True,
    ),
]
From = Annotated[
    list[str] | None,
    _option(
        "A recorded run: a trace, a directory of ranks, or a pattern. Repeatable.",
        MEASURED,
        "--from",
        metavar="PATH",
    ),
]
Step = Annotated[
    str | None,
    _option("Only this step: 2 or ProfilerStep#2.", MEASURED, metavar="STEP", show_default="all steps"),
]
Layers = Annotated[
    int,
    _option("Layers of the model, if neither --model nor the trace says.", MEASURED, metavar="N", min=0),
]
Model = Annotated[
    str | None,
    _option(
        "Roofline of this model: a name (`tracelens list models`) or a file.",
        MODEL,
        metavar="MODEL",
        autocompletion=completion.models,
    ),
]
Device = Annotated[
    str | None, _option("Device for the roofline.", MODEL, metavar="NAME", autocompletion=completion.devices)
]
Gpus = Annotated[int, _option("GPUs of the run.", MODEL, metavar="N", min=0, show_default="one per stage")]
Experts = Annotated[int | None, _option("Ranks that share the experts.", MODEL, metavar="N")]
Tensor = Annotated[int | None, _option("Ranks that share each matrix.", MODEL, metavar="N")]
Context = Annotated[int | None, _option("Ranks that share a sequence.", MODEL, metavar="N")]
Sequence = Annotated[int | None, _option("Tokens per sequence.", MODEL, metavar="N")]
Sequences = Annotated[int | None, _option("Sequences per micro-batch.", MODEL, metavar="N")]
Assignments = Annotated[
    list[str] | None,
    _option(
        "Another field of the run, as in recompute_layer_ids=0,1. Repeatable.",
        MODEL,
        "--set",
        metavar="FIELD=VALUE",
    ),
]
Message = Annotated[
    float | None,
    _option(
        "Time of a message between stages.",
        TIMES,
        metavar="US",
        min=0,
        show_default="as measured, from the device's links, or 0",
    ),
]
WeightShare = Annotated[
    float,
    _option(
        "Weight gradients as a share of the backward, for zero-bubble schedules.",
        TIMES,
        metavar="SHARE",
        min=0,
        max=1,
        show_default=True,
    ),
]
Activations = Annotated[
    float | None,
    _option(
        "GB (decimal) of activations of a micro-batch on a stage, all its chunks.",
        SCHEDULE,
        metavar="GB",
        min=0,
        show_default="with --model, as in `tracelens project memory`",
    ),
]


def pipeline(
    schedule: Schedules = None,
    pp: Stages = None,
    micro_batches: MicroBatches = None,
    vpp: Chunks = None,
    turn: Turn = 0,
    layout: Cut = "",
    best_partition: Best = False,
    forward_ms: ForwardMs = None,
    backward_ms: BackwardMs = None,
    exchange_share: ExchangeShare = 0.0,
    source: From = None,
    step: Step = None,
    partial: Partial = False,
    _limit: Limit = None,
    layers: Layers = 0,
    model: Model = None,
    device: Device = None,
    gpus: Gpus = 0,
    ep: Experts = None,
    tp: Tensor = None,
    cp: Context = None,
    seq: Sequence = None,
    mbs: Sequences = None,
    assignments: Assignments = None,
    p2p_us: Message = None,
    weight_share: WeightShare = 0.5,
    activation_gb: Activations = None,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Simulate pipeline schedules: step time, bubble, activations in flight.

    The time of a micro-batch comes from --forward-ms, from a recorded run (--from), or from the roofline of
    a model (--model).

    Examples:
        tracelens project pipeline --pp 8 --micro-batches 32 --vpp 4 --forward-ms 10 --schedule all
        tracelens project pipeline --from traces/ --vpp 2 -o pipeline.html
        tracelens project pipeline --model deepseek_v3 --device mi355x --pp 16 --gpus 128 --ep 8
            --micro-batches 64 --best-partition
    """
    traces = None if source is None else TraceFiles(source)
    check_outputs(output, [*(source or ()), *files_of(model, *(schedule or ()))], traces=traces)
    with progress() as line:
        result = project_pipeline(
            traces, schedules=schedule or (), pp=pp, micro_batches=micro_batches, vpp=vpp, turn=turn,
            partition=layout, best_partition=best_partition, layers=layers, step=step, partial=partial,
            forward_ms=forward_ms, backward_ms=backward_ms, exchange_share=exchange_share, model=model,
            device=device, gpus=gpus, ep=ep, tp=tp, cp=cp, seq=seq, mbs=mbs, settings=assignments or (),
            p2p_us=p2p_us, weight_share=weight_share, activation_gb=activation_gb, progress=line,
        )  # fmt: skip
    deliver_result(result, _title(result), output, json_output, source or ())


def _title(result: Result) -> str:
    """The shortest schedule, and the simulation error on a measured run."""
    summary, meta = result.data["summary"], result.meta
    spans = summary.array("makespan_ns")
    best = int(spans.argmin())
    title = (
        f"project pipeline (PP {meta['stages']}, GA {meta['microbatches']}): "
        f"{summary.texts('schedule')[best]} {spans[best] / 1e6:,.3f} ms"
    )
    return f"{title} (simulation: {meta['simulation']})" if "simulation" in meta else title
