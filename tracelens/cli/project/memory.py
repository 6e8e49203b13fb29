"""`tracelens project memory`: will a model fit, on which GPUs, and what takes the room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tracelens.cli.common import check_outputs
from tracelens.cli.project import memory_options as given
from tracelens.cli.project.common import Json, Output, files_of, tell, tell_notes
from tracelens.cli.project.search import TOP, Asked
from tracelens.cli.project.search import search as search_layouts
from tracelens.errors import TracelensError

if TYPE_CHECKING:
    from tracelens.devices import Device
    from tracelens.planner.config import Config
    from tracelens.planner.memory import Assumptions
    from tracelens.table import Result

GIB = 2**30
GB = 1e9

_SIZES = ("pp", "vpp", "ep", "cp", "tp")
_FIELDS = {"gpus": "ranks", "mbs": "micro_batch"}
"""Option to field of a configuration, where their names differ."""
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
        raise TracelensError("--reserve is of a device's memory: give --device, too")
    if not all(text.split() for text in asked["layout"] or []):
        raise TracelensError("--layout is empty: write fields, as in 'pp=24 ep=8 vpp=4'")


def _memory(asked: dict[str, Any]) -> None:
    """Project the layouts that are asked for."""
    from tracelens.planner.memory import memory as project

    again, more = recomputation(asked["recompute"])
    asked_for = [name for name in (*_SIZES, "gpus", "mbs", "micro_batches") if asked[name] is not None]
    sizes = [f"{_FIELDS.get(name, name)}={asked[name]}" for name in asked_for]
    common, model = [*sizes, *_common(asked), *more, *(asked["assignments"] or [])], asked["model"]
    # Commas stand inside values, too.
    layouts = {text: list(map(_field, text.split())) for text in asked["layout"] or []}
    configs = {name: configured(model, [*common, *own]) for name, own in layouts.items()}
    devices = chosen(asked["device"], asked["device_file"])
    result = project(
        configs or configured(model, common), _assumptions(asked, again), devices, _reserve(asked)
    )
    tell(result, _title(model, result), asked["output"], asked["json_output"], [model])


def _title(model: str, result: Result) -> str:
    """What it comes to; beside devices and charts, which count so, in decimal GB as well."""
    most, tables = result.meta["worst_bytes"], result.tables
    in_gb = "fits" in tables or result.meta["convention"] == "brief"
    title = f"memory of {model}: {most / GIB:,.2f} GiB{f' ({most / GB:,.1f} GB)' if in_gb else ''}"
    title += " on the GPU with most"
    if "fits" in tables and len(result.meta["layouts"]) == 1:
        rows = list(zip(result["fits"]["device"], result["fits"]["fits"], strict=True))
        for answer, words in (("yes", "fits"), ("no", "does not fit")):
            if names := [name for name, fits in rows if fits == answer]:
                title += f"; {words} {', '.join(names)}"
    if "optimised_bytes" in result.meta:
        title += f"; {result.meta['optimised_bytes'] / GIB:,.2f} GiB with --optimised"
    return title


def _field(text: str) -> str:
    """A text `field=value` by the name of the configuration's field."""
    name, separator, value = text.partition("=")
    return f"{_FIELDS.get(name, name)}{separator}{value}"


def _search(asked: dict[str, Any]) -> None:
    """Search among the layouts that are asked for."""
    axes = {name: asked[name] for name in (*_SIZES, "mbs", "recompute")}
    fields = [*_common(asked), *(asked["assignments"] or [])]
    search_layouts(
        Asked(
            asked["model"], asked["gpus"], asked["global_batch"], axes, asked["layout"] or [], fields,
            asked["assume"] or [], asked["top"] or TOP,
        ),
        _assumptions(asked, "layers"),
        chosen(asked["device"], asked["device_file"]),
        _reserve(asked),
        asked["output"],
        asked["json_output"],
    )  # fmt: skip


def _common(asked: dict[str, Any]) -> list[str]:
    """Fields that hold for all layouts, whichever they are."""
    from tracelens.planner.config import OPTIMISED

    found = [] if asked["seq"] is None else [f"seq={asked['seq']}"]
    if asked["optimised"]:
        found += [f"{name}={value}" for name, value in OPTIMISED.items()]
    return [*found, *(asked["precision"].fields if asked["precision"] else [])]


def _assumptions(asked: dict[str, Any], again: Any) -> Assumptions:
    from tracelens.planner.memory import Assumptions

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
    reserve: float | None = asked["reserve"]
    if reserve is None:
        return None
    if not 0 <= reserve < float("inf"):
        raise TracelensError(f"--reserve must be GiB, 0 or more, not {reserve}")
    return round(reserve * GIB)


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
    from tracelens.planner.config import read_config, read_file

    file = read_file(model)
    fields = {name: value for name, _, value in (one.partition("=") for one in assignments)}
    pp = fields.get("pp", str(file.settings.get("pp", 1)))
    if pp.isdecimal() and int(pp) > 1 and "micro_batches" not in fields and not file.global_batch:
        assignments = [*assignments, f"micro_batches={2 * int(pp)}"]
    return read_config(model, assignments)


def chosen(names: list[str] | None, files: list[str] | None) -> list[Device]:
    """The devices of these names and files."""
    if not names and not files:
        return []
    from tracelens.devices import device, read_device

    found = [*map(device, dict.fromkeys(names or [])), *map(read_device, files or [])]
    told = [one.name for one in found]
    if twice := [name for name in told if told.count(name) > 1]:
        raise TracelensError(f"two devices are called {twice[0]}: change the name in the device file")
    return found
