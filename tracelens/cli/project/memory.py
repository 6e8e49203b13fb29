"""`tracelens project memory`: will a model fit, on which GPUs, and what takes the room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tracelens.cli.common import check_outputs, progress
from tracelens.cli.project import memory_options as given
from tracelens.cli.project.common import Json, Output, files_of, tell, tell_notes
from tracelens.errors import TracelensError
from tracelens.session import field_text, project_memory, search_layouts
from tracelens.units import GB, gib

if TYPE_CHECKING:
    from tracelens.devices import Device
    from tracelens.table import Result


_SIZES = ("pp", "vpp", "ep", "cp", "tp")
_SEARCH_ONLY = ("global_batch", "assume", "top")


def memory(
    context: typer.Context,
    model: given.Model,
    gpus: given.Gpus = None,
    pp: given.Stages = None,
    ep: given.ExpertRanks = None,
    cp: given.ContextRanks = None,
    tp: given.TensorRanks = None,
    vpp: given.Chunks = None,
    mbs: given.MicroBatch = None,
    seq: given.Sequence = None,
    micro_batches: given.MicroBatches = None,
    layout: given.Layouts = None,
    recompute: given.Recompute = None,
    optimizer: given.Optimizer = given.OptimizerChoice.adamw,
    precision: given.PrecisionOption = None,
    optimised: given.Optimised = False,
    imbalance: given.Imbalance = 1.0,
    overlap: given.Overlap = False,
    stage_buffers: given.StageBuffers = given.StageBuffersChoice.in_flight,
    device: given.Devices = None,
    device_file: given.DeviceFiles = None,
    reserve: given.Reserve = None,
    convention: given.Convention = given.ConventionChoice.exact,
    assignments: given.Assignments = None,
    search: given.Search = False,
    global_batch: given.GlobalBatch = None,
    assume: given.Assume = None,
    top: given.Top = None,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Memory of each GPU at the peak of a training step, by component and pipeline rank.

    It depends on how the model computes: as torch's own ops do it, unless --optimised or --set say otherwise.

    tracelens project memory --model deepseek_v2_lite --gpus 8 --ep 8 --mbs 2 --device mi300x

    tracelens project memory --model moe_1t --gpus 768 --pp 24 --ep 8 --cp 2 --vpp 4 --optimised
    --device mi300x --device mi355x

    tracelens project memory --model moe_1t --gpus 768 --convention brief --device mi300x --device mi355x
    --layout 'pp=24 ep=8 vpp=4' --layout 'pp=24 ep=8 vpp=4 cp=2' --layout 'pp=48 ep=8 vpp=2' -o memory.html

    tracelens project memory --search --model moe_1t --gpus 768 --optimised --device mi300x
    """
    check_outputs(output or (), files_of(model, *(device_file or ())))
    asked: dict[str, Any] = context.params
    _check(asked)
    tell_notes(model)
    if search:
        _search(asked)
    else:
        _memory(asked)


def _check(asked: dict[str, Any]) -> None:
    """Raise TracelensError for options that say nothing beside the others."""
    only = [name for name in _SEARCH_ONLY if asked[name] and not asked["search"]]
    if only:
        raise TracelensError(f"--{only[0].replace('_', '-')} is for --search")
    if asked["search"] and asked["micro_batches"] is not None:
        raise TracelensError("--micro-batches is not for --search, which takes --global-batch")
    if asked["reserve"] is not None and not (asked["device"] or asked["device_file"]):
        raise TracelensError("--reserve needs --device")
    if not all(text.split() for text in asked["layout"] or []):
        raise TracelensError("--layout is empty: write fields, as in 'pp=24 ep=8 vpp=4'")


def _memory(asked: dict[str, Any]) -> None:
    """Project the layouts that are asked for."""
    words = (*_SIZES, "gpus", "mbs", "micro_batches")
    sizes = [field_text(f"{name}={asked[name]}") for name in words if asked[name] is not None]
    result = project_memory(
        asked["model"],
        seq=asked["seq"],
        settings=[*sizes, *(asked["assignments"] or [])],
        layouts=asked["layout"] or (),
        recompute=asked["recompute"],
        **_common(asked),
    )
    tell(result, _title(asked["model"], result), asked["output"], asked["json_output"], [asked["model"]])


def _title(model: str, result: Result) -> str:
    """What it comes to; beside devices and charts, which count so, in decimal GB as well."""
    most, tables = result.meta["worst_bytes"], result.tables
    in_gb = "fits" in tables or result.meta["convention"] == "brief"
    title = f"memory of {model}: {gib(most, 2)}{f' ({most / GB:,.1f} GB)' if in_gb else ''}"
    title += " on the worst GPU"
    if "fits" in tables and len(result.meta["layouts"]) == 1:
        rows = list(zip(result["fits"]["device"], result["fits"]["fits"], strict=True))
        for answer, words in (("yes", "fits"), ("no", "does not fit")):
            if names := [name for name, fits in rows if fits == answer]:
                title += f"; {words} {', '.join(names)}"
    if "optimised_bytes" in result.meta:
        title += f"; {gib(result.meta['optimised_bytes'], 2)} with --optimised"
    return title


def _search(asked: dict[str, Any]) -> None:
    """Search among the layouts that are asked for."""
    from tracelens.planner.config import OPTIMISED

    model, gpus = asked["model"], asked["gpus"]
    if gpus is None:
        raise TracelensError("--search needs the number of GPUs: give --gpus")
    common = _common(asked)
    devices = common.pop("devices")
    axes: dict[str, Any] = {
        name: () if asked[name] is None else asked[name] for name in (*_SIZES, "mbs", "recompute")
    }
    with progress() as line:
        line("trying layouts")
        result = search_layouts(
            model,
            gpus,
            devices,
            **axes,
            layouts=asked["layout"] or (),
            global_batch=asked["global_batch"],
            seq=asked["seq"],
            settings=asked["assignments"] or (),
            assume=asked["assume"] or (),
            top=asked["top"] or 10,
            **common,
        )
    best = "; ".join(
        f"{device.name}: {result.meta['best'].get(device.name, 'nothing fits')}" for device in devices
    )
    title = f"memory --search: {model} on {gpus:,} GPU{'s' * (gpus > 1)}; {best}"
    changed = {text.partition("=")[0] for text in result.meta["toggles"].split()}
    if not OPTIMISED.keys() <= changed:
        title += "; with torch's ops, without --optimised"
    tell(result, title, asked["output"], asked["json_output"], [model])


def _common(asked: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a projection and of a search alike."""
    return {
        "optimised": asked["optimised"],
        "precision": asked["precision"] and asked["precision"].value,
        "optimizer": asked["optimizer"].value,
        "imbalance": asked["imbalance"],
        "overlap": asked["overlap"],
        "stage_buffers": asked["stage_buffers"].value,
        "convention": asked["convention"].value,
        "devices": _chosen(asked["device"] or [], asked["device_file"] or []),
        "reserve_gib": asked["reserve"],
    }


def _chosen(names: list[str], files: list[str]) -> list[Device]:
    """The devices of these names and files."""
    if not names and not files:
        return []
    from tracelens.devices import device, read_device

    return [*map(device, dict.fromkeys(names)), *map(read_device, files)]
