"""`tracelens project memory`: will a model fit, on which GPUs, and what takes the room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tracelens.cli import project_memory_options as given
from tracelens.cli.project_common import Json, Output, prepare, tell, tell_notes
from tracelens.cli.project_search import Asked
from tracelens.cli.project_search import search as search_layouts
from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.config import Config
    from tracelens.devices import Device
    from tracelens.projection.memory import Assumptions

GB = 1e9

_SIZES = ("pp", "vpp", "ep", "cp", "tp")


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
    top: given.Top = 10,
    output: Output = None,
    json_output: Json = False,
) -> None:
    """Memory of each GPU at the peak of a training step, by component and pipeline rank.

    What counts depends on the toggles (--set): without any, everything is done as torch does it. For example:

    tracelens project memory --model deepseek_v2_lite --gpus 8 --ep 8 --mbs 2 --device mi300x

    tracelens project memory --model moe_1t --gpus 768 --pp 24 --ep 8 --cp 2 --vpp 4 --set experts=grouped
    --set permute=fused --set loss=fused --set sync_free=2 --recompute full --device mi300x --device mi355x

    tracelens project memory --model moe_1t --gpus 768 --convention brief --device mi300x --device mi355x
    --layout 'pp=24 ep=8 vpp=4' --layout 'pp=24 ep=8 vpp=4 cp=2' --layout 'pp=48 ep=8 vpp=2' -o memory.html

    tracelens project memory --search --model moe_1t --gpus 768 --pp 8,12,24 --ep 8,16 --tp 1 --device mi300x
    """
    prepare(output)
    tell_notes(model)
    asked: dict[str, Any] = context.params
    if search:
        _search(asked)
    elif global_batch is not None or assume:
        raise TracelensError("--global-batch and --assume are for --search")
    else:
        _memory(asked)


def _memory(asked: dict[str, Any]) -> None:
    """Project the layouts that are asked for."""
    from tracelens.projection.memory import memory as project

    again, more = recomputation(asked["recompute"])
    names = {name: name for name in _SIZES} | {
        "gpus": "ranks", "mbs": "micro_batch", "micro_batches": "micro_batches"
    }  # fmt: skip
    sizes = [f"{field}={asked[name]}" for name, field in names.items() if asked[name] is not None]
    common, model = [*sizes, *_common(asked), *more, *(asked["assignments"] or [])], asked["model"]
    # Commas stand inside values, too.
    layouts = {text: text.split() for text in asked["layout"] or []}
    configs = {name: configured(model, [*common, *own]) for name, own in layouts.items()}
    devices = chosen(asked["device"], asked["device_file"])
    result = project(
        configs or configured(model, common), _assumptions(asked, again), devices, _reserve(asked)
    )
    most = result.meta["worst_bytes"] / GB
    title = f"memory of {model}: {most:,.1f} GB on the GPU with most"
    tell(result, title, asked["output"], asked["json_output"], [model])


def _search(asked: dict[str, Any]) -> None:
    """Search among the layouts that are asked for."""
    axes = {name: asked[name] for name in (*_SIZES, "mbs", "recompute")}
    fields = [*_common(asked), *(asked["assignments"] or [])]
    search_layouts(
        Asked(
            asked["model"], asked["gpus"], asked["global_batch"], axes, asked["layout"] or [], fields,
            asked["assume"] or [], asked["top"],
        ),
        _assumptions(asked, "layers"),
        chosen(asked["device"], asked["device_file"]),
        _reserve(asked),
        asked["output"],
        asked["json_output"],
    )  # fmt: skip


def _common(asked: dict[str, Any]) -> list[str]:
    """Fields that hold for all layouts, whichever they are."""
    seq = [] if asked["seq"] is None else [f"seq={asked['seq']}"]
    return [*seq, *(asked["precision"].fields if asked["precision"] else [])]


def _assumptions(asked: dict[str, Any], again: Any) -> Assumptions:
    from tracelens.projection.memory import Assumptions

    wide = asked["precision"] is given.Precision.bf16_fp32_gradients
    return Assumptions(
        convention=asked["convention"].value,
        optimizer=asked["optimizer"].value,
        gradients="float32" if wide else "parameters",
        recompute=again,
        imbalance=asked["imbalance"],
        overlap=asked["overlap"],
        stage_buffers=asked["stage_buffers"].value,
    )


def _reserve(asked: dict[str, Any]) -> int | None:
    return None if asked["reserve"] is None else round(asked["reserve"] * GB)


def recomputation(text: str | None) -> tuple[Any, list[str]]:
    """What is computed again: the assumption, and fields of the configuration."""
    if text is None:
        return "layers", []
    if text in ("none", "attention", "full"):
        return text, []
    if all(part.strip().isdigit() for part in text.split(",")):
        return "layers", [f"recompute_layer_ids={text}"]
    raise TracelensError(f"--recompute is none, attention, full, or layers as in 0,1,2, not {text!r}")


def configured(model: str, assignments: list[str]) -> Config:
    """The run of a bundled model or a file, with enough micro-batches to fill a pipeline."""
    from tracelens.config.files import read_config, read_file

    fields = {name: value for name, _, value in (one.partition("=") for one in assignments)}
    told = "micro_batches" in fields or read_file(model).global_batch
    if fields.get("pp", "1").isdigit() and int(fields.get("pp", "1")) > 1 and not told:
        assignments = [*assignments, f"micro_batches={2 * int(fields['pp'])}"]
    return read_config(model, assignments)


def chosen(names: list[str] | None, files: list[str] | None) -> list[Device]:
    """The devices of these names and files."""
    if not names and not files:
        return []
    from tracelens.devices import device, read_device

    return [*map(device, names or []), *map(read_device, files or [])]
