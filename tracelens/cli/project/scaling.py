"""`tracelens project scaling`: throughput over the GPUs that share the experts."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli import completion
from tracelens.cli.common import Json, Output, check_outputs, deliver_result, files_of
from tracelens.cli.project import memory_options as options
from tracelens.session import project_scaling

COMPARED, LAYOUT, TIME = "Compared", "Layout", "Step time"


def scaling(
    model: options.Model,
    gpus: Annotated[int, typer.Option(rich_help_panel=LAYOUT, metavar="N", min=1, help="GPUs of the run.")],
    ep: Annotated[
        str,
        typer.Option(
            rich_help_panel=COMPARED, metavar="LIST", help="GPUs that share the experts, as in 8,16,32,64."
        ),
    ],
    device: Annotated[
        str,
        typer.Option(
            rich_help_panel=TIME,
            metavar="NAME",
            help="Device (`tracelens list devices`) or device file (.toml).",
            autocompletion=completion.devices,
        ),
    ],
    dispatch: Annotated[
        str,
        typer.Option(
            rich_help_panel=COMPARED,
            metavar="LIST",
            help="Ways to dispatch tokens: alltoall, dedup, deepep. Speedups are over the first.",
        ),
    ] = "alltoall,deepep",
    overlap: Annotated[
        str,
        typer.Option(
            rich_help_panel=COMPARED,
            metavar="LIST",
            help="Dispatches that 1F1B overlaps with the computation of another micro-batch; none for none.",
        ),
    ] = "deepep",
    network: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=TIME,
            metavar="FILE",
            help="A bundled network, as in mi300x-8x400g, or a TOML file with nodes, links and NICs.",
            show_default="one 400 Gb/s NIC per GPU at line rate",
            autocompletion=completion.networks,
        ),
    ] = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=TIME,
            metavar="NAME=VALUE",
            help="An assumption of the step time, as in jitter=0.05; the result lists all. Repeatable.",
            show_default=False,
        ),
    ] = None,
    pp: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=LAYOUT,
            metavar="N",
            min=1,
            help="Pipeline stages.",
            show_default="as in the model file, or one expert group of the largest --ep each",
        ),
    ] = None,
    vpp: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=LAYOUT,
            metavar="N",
            min=1,
            help="Model chunks per stage (interleaved pipeline).",
            show_default=options.FILE_OR_1,
        ),
    ] = None,
    cp: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=LAYOUT, metavar="N", min=1, help="GPUs that share a sequence.", show_default=False
        ),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=LAYOUT,
            metavar="N",
            min=1,
            help="GPUs that share each dense matrix.",
            show_default=False,
        ),
    ] = None,
    mbs: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=LAYOUT, metavar="N", min=1, help="Sequences per micro-batch.", show_default=False
        ),
    ] = None,
    micro_batches: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=LAYOUT,
            metavar="N",
            min=1,
            help="Micro-batches per step on each data-parallel rank.",
            show_default="4 x pp",
        ),
    ] = None,
    seq: options.Sequence = None,
    recompute: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=LAYOUT,
            metavar="LAYERS",
            help="Recompute in the backward pass: none, full, or layers as in 0,1,2.",
            show_default=False,
        ),
    ] = None,
    assignments: options.Assignments = None,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Tokens/s and time breakdown for expert parallelism of several sizes, by way of dispatch.

    An all-to-all sends a token once per expert; DeepEP once per node over the network, and from there once
    per GPU over the links of the node.

    Examples:
        tracelens project scaling --model moe_2t --gpus 1024 --ep 8,16,32,64 --device mi300x
            --network mi300x-8x400g
        tracelens project scaling --model deepseek_v3 --gpus 256 --ep 8,64 --pp 4 --device h200 --overlap none
            -o scaling.html
    """
    check_outputs(output, files_of(model, network, device))
    result = project_scaling(
        model, gpus, device, ep=ep, dispatch=dispatch, network=network or "", overlap=overlap, pp=pp, vpp=vpp,
        cp=cp, tp=tp, mbs=mbs, micro_batches=micro_batches, seq=seq, recompute=recompute,
        settings=assignments or (), assume=assume or (),
    )  # fmt: skip
    title = f"project scaling of {model}: EP {ep} on {gpus:,} x {result.meta['device']}"
    deliver_result(result, title, output, json_output, [model])
