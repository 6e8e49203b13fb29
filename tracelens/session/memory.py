"""Memory projections in the words of the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tracelens.errors import TracelensError, UnknownName
from tracelens.units import GIB

if TYPE_CHECKING:
    from tracelens.devices import Device
    from tracelens.planner.config import Config
    from tracelens.table import Result

FIELDS = {"gpus": "ranks", "mbs": "micro_batch"}
"""Options to fields of a configuration, where they differ."""

MEGATRON = {
    "layers": "transformer-engine, or local (Megatron-core's own)",
    "gradient_accumulation": "of weight gradients: fused into their GEMM, or separate",
    "states": "type of the optimizer states: float32, or bfloat16",
    "main": "type of the main parameters: float32, or bfloat16",
}
"""Options of Megatron-core, and their values; the first is the default."""

Devices: TypeAlias = "str | os.PathLike[str] | Device | Sequence[str | os.PathLike[str] | Device]"
Precision = Literal["bf16", "bf16-fp32-gradients", "bf16-no-main", "fp32"]
Optimizer = Literal["adamw", "momentum", "sgd"]
StageBuffers = Literal["all", "in_flight"]
Framework = Literal["megatron", "workload", "amd-guide"]


def project_memory(
    model: str | Config, *, gpus: int | None = None, pp: int | None = None, ep: int | None = None,
    cp: int | None = None, tp: int | None = None, vpp: int | None = None, mbs: int | None = None,
    seq: int | None = None, micro_batches: int | None = None, layouts: str | Sequence[str] = (),
    settings: str | Sequence[str] = (), recompute: str | None = None, optimised: bool = False,
    precision: Precision | None = None, optimizer: Optimizer = "adamw", imbalance: float = 1.0,
    overlap: bool = False, stage_buffers: StageBuffers = "in_flight", framework: Framework = "megatron",
    megatron: str | Sequence[str] = (),
    devices: Devices = (), reserve_gib: float | None = None,
) -> Result:  # fmt: skip
    """Memory per GPU at the peak of a training step, by component and pipeline rank.

    Args:
        model: a bundled model, a file (.toml, config.json, .yaml), or a configuration.
        gpus: of the run; 1 by default.
        pp: pipeline stages.
        ep: GPUs that share the experts; by default all of a pipeline stage.
        cp: GPUs that share a sequence.
        tp: GPUs that share each dense matrix.
        vpp: model chunks per stage.
        mbs: sequences per micro-batch.
        seq: tokens per sequence.
        micro_batches: per step on each data-parallel rank; in a pipeline 2 x pp by default.
        layouts: to compare, each like "pp=24 ep=8 vpp=4".
        settings: other fields of model, layout, toggles or training, each like "sync_free=2".
        recompute: in the backward: "none", "attention" (of each layer), "full", or layers as in "0,1,2"; in
            Megatron-core also "moe", "moe_act" or "mla_up_proj".
        optimised: use the fused kernels of the workload.
        precision: None for that of the model.
        optimizer: "adamw", "momentum" or "sgd": 2, 1 or 0 states per parameter.
        imbalance: ratio of the tokens of the busiest GPU's experts to the mean over GPUs.
        overlap: 1F1B with overlapped all-to-alls: one more forward in flight.
        stage_buffers: hold activations from other stages while needed ("in_flight"), or in buffers for
            "all" micro-batches of a step.
        framework: "megatron", Megatron-core with the memory that its allocator reserves; "workload", the
            reference workload; "amd-guide", as in the memory charts of AMD's MoE training guide.
        megatron: options of Megatron-core, each like "states=bfloat16"; see MEGATRON.
        devices: to check the fit on: names, TOML files (.toml or a Path) or devices.
        reserve_gib: to keep free on each device; 4 by default.

    Returns:
        tables `fits` (with devices), `memory` and `ranks`.

    Raises:
        TracelensError: unknown model, device or field, or an invalid layout.
    """
    from tracelens.planner.memory import Assumptions, memory

    sizes = {"pp": pp, "vpp": vpp, "ep": ep, "cp": cp, "tp": tp, "gpus": gpus, "mbs": mbs}
    fields = assignments({**sizes, "micro_batches": micro_batches, "seq": seq}, optimised, precision)
    policy, recomputed = recomputation(recompute)
    assumptions = Assumptions(
        framework, optimizer, gradients(precision), recompute=policy, imbalance=imbalance, overlap=overlap,
        stage_buffers=stage_buffers, **megatron_options(megatron),
    )  # fmt: skip
    runs = configs(model, [*fields, *recomputed, *texts(settings)], texts(layouts))
    return memory(runs, assumptions, resolved(devices), reserved(reserve_gib))


def megatron_options(options: str | Sequence[str]) -> dict[str, Any]:
    """Texts `name=value` as fields of the assumptions; raises TracelensError for an unknown name."""
    pairs = [text.partition("=")[::2] for text in texts(options)]
    if unknown := [name for name, _ in pairs if name not in MEGATRON]:
        raise TracelensError(f"--megatron takes {', '.join(MEGATRON)}, not {unknown[0]!r}")
    return dict(pairs)


def texts(values: str | Sequence[str]) -> list[str]:
    """One text or several, as a list."""
    return [values] if isinstance(values, str) else list(values)


def assumed_values(assume: Sequence[str], defaults: Mapping[str, object]) -> dict[str, object]:
    """Values of texts `name=value`, each of the type of its default.

    Raises:
        TracelensError: malformed text, or unknown name or value.
    """
    from tracelens.planner.config import parse_value

    values: dict[str, object] = {}
    for text in assume:
        name, separator, value = text.partition("=")
        if not separator:
            raise TracelensError(f"--assume: {text!r} is not of the form name=value")
        if name not in defaults:
            raise UnknownName("assumption", name, defaults)
        values[name] = parse_value(name, value, defaults[name])
    return values


def field_text(text: str) -> str:
    """A text `option=value` with the name of the configuration's field."""
    name, separator, value = text.partition("=")
    return f"{FIELDS.get(name, name)}{separator}{value}"


def assignments(
    sizes: Mapping[str, object], optimised: bool = False, precision: Precision | None = None
) -> list[str]:
    """Texts `field=value` of the sizes that are not None, then of fused kernels and precision."""
    from tracelens.planner.config import OPTIMISED

    fields = [field_text(f"{name}={value}") for name, value in sizes.items() if value is not None]
    if optimised:
        fields += [f"{name}={value}" for name, value in OPTIMISED.items()]
    if precision is None:
        return fields
    main = precision in ("bf16", "bf16-fp32-gradients")
    dtype = "float32" if precision == "fp32" else "bfloat16"
    return [*fields, f"dtype={dtype}", f"main_params={str(main).lower()}"]


def gradients(precision: Precision | None) -> Literal["auto", "float32", "parameters"]:
    """The type in which gradients accumulate; "auto" for that of the framework."""
    if precision is None:
        return "auto"
    return "float32" if precision == "bf16-fp32-gradients" else "parameters"


def recomputation(text: str | None) -> tuple[Any, list[str]]:
    """--recompute as the assumption, and as fields of the configuration."""
    if text is None:
        return "layers", []
    if text in ("none", "attention", "full", "moe", "moe_act", "mla_up_proj"):
        return text, []
    if all(part.strip().isdigit() for part in text.split(",")):
        return "layers", [f"recompute_layer_ids={text}"]
    raise TracelensError(
        "--recompute is none, attention, full, moe, moe_act, mla_up_proj, or layers as in 0,1,2, "
        f"not {text!r}"
    )


def configs(model: str | Config, fields: Sequence[str], layouts: Sequence[str]) -> Config | dict[str, Config]:
    """The run, or a run per layout text."""
    if not all(text.split() for text in layouts):
        raise TracelensError("--layout is empty: write fields, as in 'pp=24 ep=8 vpp=4'")
    of_layout = {text: _config(model, [*fields, *map(field_text, text.split())]) for text in layouts}
    return of_layout or _config(model, fields)


def _config(model: str | Config, fields: Sequence[str]) -> Config:
    """A run with enough micro-batches to fill its pipeline."""
    from tracelens.planner.config import override, read_config, read_file

    if not isinstance(model, str):
        return override(model, fields)
    file = read_file(model)
    values = {name: value for name, _, value in (text.partition("=") for text in fields)}
    pp = values.get("pp", str(file.settings.get("pp", 1)))
    if pp.isdecimal() and int(pp) > 1 and "micro_batches" not in values and not file.global_batch:
        fields = [*fields, f"micro_batches={2 * int(pp)}"]
    return read_config(model, fields)


def resolved(devices: Devices) -> list[Device]:
    """Devices by name or from files; a repeated text counts once.

    Raises:
        TracelensError: unknown name, malformed file, or two devices of one name.
    """
    from tracelens.devices import Device, device, read_device

    def resolve(item: str | os.PathLike[str] | Device) -> Device:
        if isinstance(item, Device):
            return item
        is_name = isinstance(item, str) and not item.endswith(".toml")
        return device(str(item)) if is_name else read_device(os.fspath(item))

    items = [devices] if isinstance(devices, str | os.PathLike | Device) else devices
    repeated_texts = {
        position for position, item in enumerate(items) if isinstance(item, str) and item in items[:position]
    }
    selected = [resolve(item) for position, item in enumerate(items) if position not in repeated_texts]
    names = [item.name for item in selected]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise TracelensError(f"two devices are called {repeated[0]}: change the name in the device file")
    return selected


def reserved(gib: float | None) -> int | None:
    """Bytes to keep free; raises TracelensError for invalid numbers."""
    if gib is None:
        return None
    if not 0 <= gib < float("inf"):
        raise TracelensError(f"--reserve must be GiB, 0 or more, not {gib}")
    return round(gib * GIB)
