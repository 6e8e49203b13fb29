"""`tracelens project bounds`: collectives and the GEMMs next to them against the speed of light."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracelens.cli import completion
from tracelens.cli.common import (
    DeviceFile,
    Json,
    Limit,
    Output,
    Partial,
    check_outputs,
    deliver_result,
    progress,
)
from tracelens.cli.help import DEVICE, RUN
from tracelens.errors import TracelensError
from tracelens.read import TraceFiles
from tracelens.session import project_bounds
from tracelens.units import duration

if TYPE_CHECKING:
    from tracelens.table import Result

SHAPES, MACHINE = "Shapes", "Machine"


def _option(text: str, panel: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **{"show_default": False, **more})


Traces = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH...",
        help="A recorded run: trace files, directories of ranks, or quoted patterns. Its own collectives are "
        "compared with their links.",
        show_default=False,
    ),
]
Device = Annotated[
    str | None,
    _option(
        "Take rates from this device (`tracelens list devices`).",
        DEVICE,
        metavar="NAME",
        show_default="the traced one, or mi300x",
        autocompletion=completion.devices,
    ),
]
Nodes = Annotated[
    int | None, _option("Nodes of the all-reduce.", MACHINE, metavar="N", min=1, show_default="2")
]
Gpus = Annotated[int, _option("GPUs per node.", MACHINE, metavar="N", min=1, show_default=True)]
Assume = Annotated[
    list[str] | None,
    _option(
        "A rate or latency, as in nic_bytes_per_s=25e9; the result lists all. Repeatable.",
        MACHINE,
        metavar="NAME=VALUE",
    ),
]
AllToAll = Annotated[
    list[str] | None,
    _option(
        "MoE dispatch and combine, as in 'experts=256 topk=8 hidden=7168 tokens=256' (tokens per GPU). "
        "Repeatable.",
        SHAPES,
        "--all-to-all",
        metavar="FIELDS",
    ),
]
GemmRs = Annotated[
    list[str] | None,
    _option(
        "GEMM + reduce-scatter, as in 8192x8192x29568: m x n x k, with k divided among the GPUs. Repeatable.",
        SHAPES,
        "--gemm-rs",
        metavar="MxNxK",
    ),
]
AgGemm = Annotated[
    list[str] | None,
    _option(
        "All-gather + GEMM, likewise, with n divided among the GPUs. Repeatable.",
        SHAPES,
        "--ag-gemm",
        metavar="MxNxK",
        show_default="without any shape, those of the AMD Developer Challenge 2025",
    ),
]
Dtype = Annotated[str, _option("Element type of these shapes.", SHAPES, metavar="TYPE", show_default=True)]
Step = Annotated[
    str | None,
    _option(
        "Only this step of the run: 2 or ProfilerStep#2.",
        RUN,
        metavar="STEP",
        show_default="all steps",
        autocompletion=completion.steps,
    ),
]


def bounds(
    paths: Traces = None,
    all_to_all: AllToAll = None,
    gemm_rs: GemmRs = None,
    ag_gemm: AgGemm = None,
    dtype: Dtype = "bf16",
    nodes: Nodes = None,
    gpus_per_node: Gpus = 8,
    assume: Assume = None,
    step: Step = None,
    device: Device = None,
    device_file: DeviceFile = None,
    partial: Partial = False,
    _limit: Limit = None,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Speed of light: the least time of collectives and the GEMMs next to them.

    Without traces, of all-to-all, GEMM + reduce-scatter and all-gather + GEMM on one node, and of all-reduce
    algorithms by message size. With traces, how close their collectives come, without waiting.

    Examples:
        tracelens project bounds
        tracelens project bounds --device mi355x --nodes 4 --gemm-rs 8192x8192x29568 -o bounds.html
        tracelens project bounds traces/
    """
    if device and device_file:
        raise TracelensError("--device and --device-file both name a device; pass only one")
    traces = TraceFiles(paths) if paths else None
    check_outputs(output, [*(paths or ()), *filter(None, [device_file])], traces=traces)
    with progress() as line:
        result = project_bounds(
            traces, device=Path(device_file) if device_file else device, nodes=nodes,
            gpus_per_node=gpus_per_node, all_to_all=all_to_all or (), gemm_rs=gemm_rs or (),
            ag_gemm=ag_gemm or (), dtype=dtype,
            assume=assume or (), step=step, partial=partial, progress=line,
        )  # fmt: skip
    deliver_result(result, _title(result), output, json_output, paths or ())


def _title(result: Result) -> str:
    """The machine, or the collective with most time above its bound."""
    if result.analyzer == "bounds":
        meta = result.meta
        return f"project bounds: {meta['gpus_per_node']} x {meta['device']} per node"
    title = f"project bounds of {result.meta['ranks']} ranks on {result.meta['device']}"
    if "collectives" not in result.data:
        return title
    table = result.data["collectives"]
    excess = duration(float(table.array("excess_ns")[0]))
    name, group = table.texts("collective")[0], table.texts("group")[0]
    return f"{title}: {name} of {group} at {table.array('achieved')[0]:.0%} of its links, {excess} above them"
