"""`tracelens project bubble`: the idle share of a pipeline, in closed form."""

from __future__ import annotations

from typing import Annotated

import typer

from tracelens.cli.common import Json, Output, check_outputs, deliver_result
from tracelens.session import project_bubble

PIPELINE = "Pipeline"


def bubble(
    pp: Annotated[
        int, typer.Option(rich_help_panel=PIPELINE, metavar="N", help="Pipeline stages.", show_default=False)
    ],
    global_tokens: Annotated[
        int,
        typer.Option(
            rich_help_panel=PIPELINE, metavar="N", help="Tokens per step on all GPUs.", show_default=False
        ),
    ],
    nodes: Annotated[
        int, typer.Option(rich_help_panel=PIPELINE, metavar="N", help="Number of nodes.", show_default=False)
    ],
    seq: Annotated[
        int, typer.Option(rich_help_panel=PIPELINE, metavar="N", help="Tokens per sequence.")
    ] = 4096,
    mbs: Annotated[
        int, typer.Option(rich_help_panel=PIPELINE, metavar="N", help="Sequences per micro-batch.")
    ] = 1,
    vpp: Annotated[
        int, typer.Option(rich_help_panel=PIPELINE, metavar="N", help="Model chunks per stage.")
    ] = 1,
    gpus_per_node: Annotated[
        int, typer.Option(rich_help_panel=PIPELINE, metavar="N", help="GPUs per node.")
    ] = 8,
    cp: Annotated[
        int, typer.Option(rich_help_panel=PIPELINE, metavar="N", help="Ranks that share a sequence.")
    ] = 1,
    tp: Annotated[
        int, typer.Option(rich_help_panel=PIPELINE, metavar="N", help="Ranks that share each matrix.")
    ] = 1,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Pipeline bubble in closed form, as a share of the step and of the ideal time.

    Examples:
        tracelens project bubble --pp 16 --global-tokens 2097152 --seq 4096 --nodes 64 --mbs 1 --vpp 6
    """
    check_outputs(output)
    sizes = {"seq": seq, "mbs": mbs, "vpp": vpp, "gpus_per_node": gpus_per_node, "cp": cp, "tp": tp}
    result = project_bubble(pp, global_tokens, nodes, **sizes)
    share = result.data["bubble"].array("fraction")[0]
    deliver_result(result, f"project bubble: {share:.2%} of the time at VPP {vpp}", output, json_output)
