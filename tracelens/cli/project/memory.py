"""`tracelens project memory`: whether a model fits, on which GPUs, and what takes the memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tracelens.cli.common import Json, Output, check_outputs, deliver_result, files_of, progress, say
from tracelens.cli.project import memory_options as options
from tracelens.errors import TracelensError
from tracelens.session import field_text, project_memory, search_layouts

if TYPE_CHECKING:
    from tracelens.table import Result

GIB = 2**30
GB = 1e9

_SIZES = ("pp", "vpp", "ep", "cp", "tp")
_SEARCH_ONLY = ("global_batch", "assume", "network", "top")


def memory(
    context: typer.Context,
    model: options.Model,
    gpus: options.Gpus = None,
    pp: options.Stages = None,
    ep: options.ExpertRanks = None,
    cp: options.ContextRanks = None,
    tp: options.TensorRanks = None,
    vpp: options.Chunks = None,
    mbs: options.MicroBatch = None,
    seq: options.Sequence = None,
    micro_batches: options.MicroBatches = None,
    layout: options.Layouts = None,
    recompute: options.Recompute = None,
    optimizer: options.Optimizer = options.OptimizerChoice.adamw,
    precision: options.PrecisionOption = None,
    optimised: options.Optimised = False,
    imbalance: options.Imbalance = 1.0,
    overlap: options.Overlap = False,
    stage_buffers: options.StageBuffers = options.StageBuffersChoice.in_flight,
    device: options.Devices = None,
    device_file: options.DeviceFiles = None,
    reserve: options.Reserve = None,
    framework: options.Framework = options.FrameworkChoice.megatron,
    megatron: options.Megatron = None,
    assignments: options.Assignments = None,
    search: options.Search = False,
    global_batch: options.GlobalBatch = None,
    assume: options.Assume = None,
    network: options.Network = None,
    top: options.Top = None,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Peak memory per GPU in a training step, by component and pipeline rank.

    Expert by expert and without fused permutation, router and loss, unless --optimised or --set select them.

    Examples:
        tracelens project memory --model deepseek_v2_lite --gpus 8 --ep 8 --mbs 2 --device mi300x
        tracelens project memory --model moe_1t --gpus 768 --pp 24 --ep 8 --cp 2 --vpp 4 --optimised
            --device mi300x --device mi355x
        tracelens project memory --model moe_1t --gpus 768 --framework amd-guide --device mi300x
            --layout 'pp=24 ep=8 vpp=4' --layout 'pp=48 ep=8 vpp=2' -o memory.html
        tracelens project memory --search --model moe_1t --gpus 768 --optimised --device mi300x
    """
    from tracelens.planner.config import read_file

    check_outputs(output, files_of(model, network, *(device_file or ())))
    _check(context.params)
    for note in read_file(model).notes:
        say(f"{model}: {note}")
    result, title = (_search if search else _memory)(context.params)
    deliver_result(result, title, output, json_output, [model])


def _check(values: dict[str, Any]) -> None:
    """Raise TracelensError for options that have no effect beside the others."""
    only = [name for name in _SEARCH_ONLY if values[name] and not values["search"]]
    if only:
        raise TracelensError(f"--{only[0].replace('_', '-')} is for --search")
    if values["search"] and values["micro_batches"] is not None:
        raise TracelensError("--micro-batches is not for --search, which takes --global-batch")
    if values["reserve"] is not None and not (values["device"] or values["device_file"]):
        raise TracelensError("--reserve needs --device")
    if not all(text.split() for text in values["layout"] or []):
        raise TracelensError("--layout is empty: write fields, as in 'pp=24 ep=8 vpp=4'")


def _memory(values: dict[str, Any]) -> tuple[Result, str]:
    """The projection of the layouts, and its title."""
    names = (*_SIZES, "gpus", "mbs", "micro_batches")
    sizes = [field_text(f"{name}={values[name]}") for name in names if values[name] is not None]
    settings = [*sizes, *(values["assignments"] or [])]
    shared = _shared(values)
    result = project_memory(values["model"], settings=settings, recompute=values["recompute"], **shared)
    return result, _title(values["model"], result)


def _title(model: str, result: Result) -> str:
    """The peak; in decimal GB as well beside devices and charts, which use these."""
    most, tables = result.meta["worst_bytes"], result.tables
    in_gb = "fits" in tables or result.meta["framework"] == "amd-guide"
    title = f"project memory of {model}: {most / GIB:,.2f} GiB{f' ({most / GB:,.1f} GB)' if in_gb else ''}"
    title += " on the worst GPU"
    if "fits" in tables and len(result.meta["layouts"]) == 1:
        rows = list(zip(result["fits"]["device"], result["fits"]["fits"], strict=True))
        for answer, words in (("yes", "fits"), ("no", "does not fit")):
            if names := [name for name, fits in rows if fits == answer]:
                title += f"; {words} {', '.join(names)}"
    if "optimised_bytes" in result.meta:
        title += f"; {result.meta['optimised_bytes'] / GIB:,.2f} GiB with --optimised"
    return title


def _search(values: dict[str, Any]) -> tuple[Result, str]:
    """The ranking of the layouts, and its title."""
    from tracelens.planner.config import OPTIMISED

    model, gpus = values["model"], values["gpus"]
    if gpus is None:
        raise TracelensError("--search needs the number of GPUs: give --gpus")
    axes: dict[str, Any] = {
        name: () if values[name] is None else values[name] for name in (*_SIZES, "mbs", "recompute")
    }
    settings, assume = values["assignments"] or (), values["assume"] or ()
    with progress() as line:
        line("trying layouts")
        result = search_layouts(
            model, gpus, global_batch=values["global_batch"], settings=settings, assume=assume,
            network=values["network"] or "", top=values["top"] or 10, **axes, **_shared(values),
        )  # fmt: skip
    best = "; ".join(
        f"{name}: {result.meta['best'].get(name, 'nothing fits')}" for name in result.meta["fits"]
    )
    title = f"project memory --search: {model} on {gpus:,} GPU{'s' * (gpus > 1)}; {best}"
    changed = {text.partition("=")[0] for text in result.meta["toggles"].split()}
    if not OPTIMISED.keys() <= changed:
        title += "; without --optimised"
    return result, title


def _shared(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments of both a projection and a search."""
    choices = ("precision", "optimizer", "stage_buffers", "framework")
    return {
        **{name: values[name] for name in ("optimised", "imbalance", "overlap", "seq")},
        **{name: values[name] and values[name].value for name in choices},
        "devices": [*(values["device"] or ()), *map(Path, values["device_file"] or ())],
        "layouts": values["layout"] or (),
        "megatron": values["megatron"] or (),
        "reserve_gib": values["reserve"],
    }
