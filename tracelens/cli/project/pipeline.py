"""`tracelens project pipeline`: schedules, simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens.cli.common import Limit, Partial, check_outputs, progress
from tracelens.cli.project.common import Json, Output, files_of, tell
from tracelens.read import TraceFiles
from tracelens.session import project_pipeline
from tracelens.units import milliseconds

if TYPE_CHECKING:
    from tracelens.table import Result


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, **{"show_default": False, **more})


Schedules = Annotated[
    list[str] | None,
    _option(
        "gpipe, 1f1b, 1f1b-overlap, interleaved, interleaved-overlap, zb-h1, zb-h2, zb-v, all, or a CSV file "
        "as of torch.distributed.pipelining; repeat it to compare. By default 1f1b, and interleaved with "
        "--vpp.",
        "--schedule",
        metavar="NAME",
    ),
]
Stages = Annotated[int | None, _option("Pipeline stages.", min=1)]
MicroBatches = Annotated[int | None, _option("Micro-batches of a step on each rank (GA).", min=1)]
Chunks = Annotated[int | None, _option("Chunks of the model on each stage, when interleaved.", min=1)]
Turn = Annotated[
    int, _option("Micro-batches of a turn through a chunk, when interleaved; --pp by default.", min=0)
]
Cut = Annotated[str, _option("Layers of each chunk in the order of the model, as in 3,4,4,3.")]
Best = Annotated[bool, typer.Option("--best-partition", help="Look for the cut with the shortest phase.")]
ForwardMs = Annotated[
    float | None, _option("Take this time: forward of a micro-batch on a stage, all its chunks.")
]
BackwardMs = Annotated[float | None, _option("Its backward; twice the forward by default.")]
ExchangeShare = Annotated[
    float,
    _option(
        "Of both, the share that ranks exchange (all-to-all), which an overlapping schedule can hide.",
        min=0,
        max=1,
    ),
]
From = Annotated[
    list[str] | None,
    _option(
        "Take the times of this run: a trace, a directory of ranks, or a pattern; repeat it for more.",
        "--from",
        metavar="PATH",
    ),
]
Step = Annotated[str | None, _option("With --from, only this step: 2 for ProfilerStep#2; all by default.")]
Layers = Annotated[
    int, _option("Layers of the model, where neither --model nor scopes of a trace tell.", min=0)
]
Model = Annotated[
    str | None,
    _option("Take the times of a roofline of this model: a name (`tracelens list models`) or a file."),
]
Device = Annotated[str | None, _option("With --model, on this device.")]
Gpus = Annotated[int, _option("With --model, GPUs of the run; one a stage by default.", min=0)]
Experts = Annotated[int | None, _option("With --model, ranks that share the experts.")]
Tensor = Annotated[int | None, _option("With --model, ranks that share each matrix.")]
Context = Annotated[int | None, _option("With --model, ranks that share a sequence.")]
Sequence = Annotated[int | None, _option("With --model, tokens of a sequence.")]
Sequences = Annotated[int | None, _option("With --model, sequences of a micro-batch.")]
Assignments = Annotated[
    list[str] | None,
    _option(
        "With --model, change another field of the run, as in --set recompute_layer_ids=0,1.",
        "--set",
        metavar="FIELD=VALUE",
    ),
]
Message = Annotated[
    float | None,
    _option("Time of a message between stages; by default as measured, by the device's links, or 0.", min=0),
]
WeightShare = Annotated[
    float,
    _option(
        "Of a backward, the gradients of weights, for zero-bubble schedules.",
        min=0,
        max=1,
        show_default=True,
    ),
]
Activations = Annotated[
    float | None,
    _option(
        "GB (decimal) of activations of a micro-batch on a stage, all its chunks; with --model by default "
        "what `tracelens project memory` counts.",
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
    """Play pipeline schedules: step time, bubble, and what is in flight on each stage.

    Times are given (--forward-ms), those of a run (--from), or a roofline's (--model). For example:

    tracelens project pipeline --pp 8 --micro-batches 32 --vpp 4 --forward-ms 10 --schedule all

    tracelens project pipeline --from traces/ --vpp 2 -o pipeline.html

    tracelens project pipeline --model deepseek_v3 --device mi355x --pp 16 --gpus 128 --ep 8
    --micro-batches 64 --best-partition
    """
    traces = None if source is None else TraceFiles(source)
    check_outputs(output or (), [*(source or ()), *files_of(model, *(schedule or ()))], traces=traces)
    with progress() as line:
        result = project_pipeline(
            traces, schedules=schedule or (), pp=pp, micro_batches=micro_batches, vpp=vpp, turn=turn,
            partition=layout, best_partition=best_partition, layers=layers, step=step, partial=partial,
            forward_ms=forward_ms, backward_ms=backward_ms, exchange_share=exchange_share, model=model,
            device=device, gpus=gpus, ep=ep, tp=tp, cp=cp, seq=seq, mbs=mbs, settings=assignments or (),
            p2p_us=p2p_us, weight_share=weight_share, activation_gb=activation_gb, progress=line,
        )  # fmt: skip
    tell(result, _title(result), output, json_output, source or ())


def _title(result: Result) -> str:
    """The shortest schedule, and how far a measured one was from its simulation."""
    summary, meta = result.data["summary"], result.meta
    spans = summary.array("makespan_ns")
    best = int(spans.argmin())
    found = (
        f"pipeline (PP {meta['stages']}, GA {meta['microbatches']}): "
        f"{summary.texts('schedule')[best]} {milliseconds(spans[best], 3)}"
    )
    return f"{found} (simulation: {meta['simulation']})" if "simulation" in meta else found
