"""`tracelens project pipeline`: simulated schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

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


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, **{"show_default": False, **more})


Schedules = Annotated[
    list[str] | None,
    _option(
        "gpipe, 1f1b, 1f1b-overlap, interleaved, interleaved-overlap, zb-h1, zb-h2, zb-v, all, or a CSV file "
        "of torch.distributed.pipelining. Repeatable; default: 1f1b, and interleaved with --vpp.",
        "--schedule",
        metavar="NAME",
    ),
]
Stages = Annotated[int | None, _option("Pipeline stages.", min=1)]
MicroBatches = Annotated[int | None, _option("Micro-batches per step on each rank (GA).", min=1)]
Chunks = Annotated[int | None, _option("Model chunks per stage, for interleaved schedules.", min=1)]
Turn = Annotated[
    int, _option("Micro-batches per turn through a chunk, for interleaved schedules; default: --pp.", min=0)
]
Cut = Annotated[str, _option("Layers of each chunk in model order, as in 3,4,4,3.")]
Best = Annotated[
    bool, typer.Option("--best-partition", help="Search for the partition with the shortest phase.")
]
ForwardMs = Annotated[
    float | None, _option("Source of times: forward of a micro-batch on a stage, all its chunks.")
]
BackwardMs = Annotated[float | None, _option("Its backward; default: twice the forward.")]
ExchangeShare = Annotated[
    float,
    _option(
        "Exposed all-to-all as a share of both, which an overlapping schedule can hide.",
        min=0,
        max=1,
    ),
]
From = Annotated[
    list[str] | None,
    _option(
        "Source of times: a recorded run, as a trace, a directory of ranks, or a pattern. Repeatable.",
        "--from",
        metavar="PATH",
    ),
]
Step = Annotated[str | None, _option("With --from, only this step: 2 for ProfilerStep#2; default: all.")]
Layers = Annotated[
    int, _option("Layers of the model, if neither --model nor annotations of the trace tell.", min=0)
]
Model = Annotated[
    str | None,
    _option("Source of times: the roofline of this model, a name (`tracelens list models`) or a file."),
]
Device = Annotated[str | None, _option("With --model, its device.")]
Gpus = Annotated[int, _option("With --model, GPUs of the run; default: one per stage.", min=0)]
Experts = Annotated[int | None, _option("With --model, ranks that share the experts.")]
Tensor = Annotated[int | None, _option("With --model, ranks that share each matrix.")]
Context = Annotated[int | None, _option("With --model, ranks that share a sequence.")]
Sequence = Annotated[int | None, _option("With --model, tokens per sequence.")]
Sequences = Annotated[int | None, _option("With --model, sequences per micro-batch.")]
Assignments = Annotated[
    list[str] | None,
    _option(
        "With --model, another field of the run, as in recompute_layer_ids=0,1. Repeatable.",
        "--set",
        metavar="FIELD=VALUE",
    ),
]
Message = Annotated[
    float | None,
    _option("Time of a message between stages; default: as measured, from the device's links, or 0.", min=0),
]
WeightShare = Annotated[
    float,
    _option(
        "Weight gradients as a share of the backward, for zero-bubble schedules.",
        min=0,
        max=1,
        show_default=True,
    ),
]
Activations = Annotated[
    float | None,
    _option(
        "GB (decimal) of activations of a micro-batch on a stage, all its chunks; default with --model: as "
        "in `tracelens project memory`.",
        min=0,
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
    """Simulate pipeline schedules: step time, bubble, and activations in flight on each stage.

    Times are given (--forward-ms), measured (--from), or a roofline (--model). For example:

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
