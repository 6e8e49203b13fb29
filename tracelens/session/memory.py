"""Memory of a run before it runs, from names, numbers and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tracelens.errors import TracelensError
from tracelens.units import GIB

if TYPE_CHECKING:
    from tracelens.devices import Device
    from tracelens.planner.config import Config
    from tracelens.planner.memory import Assumptions
    from tracelens.table import Result

FIELDS = {"gpus": "ranks", "mbs": "micro_batch"}
"""Words of users and fields of a configuration, where these differ."""

Precision = Literal["bf16", "bf16-fp32-gradients", "bf16-no-main", "fp32"]
Optimizer = Literal["adamw", "momentum", "sgd"]
StageBuffers = Literal["all", "in_flight"]
Convention = Literal["exact", "brief"]


def project_memory(
    model: str | Config, *, gpus: int | None = None, pp: int | None = None, ep: int | None = None,
    cp: int | None = None, tp: int | None = None, vpp: int | None = None, mbs: int | None = None,
    seq: int | None = None, micro_batches: int | None = None, layouts: str | Sequence[str] = (),
    settings: str | Sequence[str] = (), recompute: str | None = None, optimised: bool = False,
    precision: Precision | None = None, optimizer: Optimizer = "adamw", imbalance: float = 1.0,
    overlap: bool = False, stage_buffers: StageBuffers = "in_flight", convention: Convention = "exact",
    devices: str | Device | Sequence[str | Device] = (), reserve_gib: float | None = None,
) -> Result:  # fmt: skip
    """Memory of each GPU at the peak of a training step, by component and pipeline rank.

    Args:
        model: a bundled model, a file (.toml, config.json, .yaml), or a configuration.
        gpus: of the run; 1 by default.
        pp: pipeline stages.
        ep: GPUs that share the experts; by default all of a pipeline stage.
        cp: GPUs that share a sequence.
        tp: GPUs that share each dense matrix.
        vpp: chunks of the model on each stage.
        mbs: sequences of a micro-batch.
        seq: tokens of a sequence.
        micro_batches: of a step on a data-parallel rank; in a pipeline 2 x pp by default.
        layouts: to be compared, each like "pp=24 ep=8 vpp=4".
        settings: other fields of model, layout, toggles or training, each like "sync_free=2".
        recompute: in the backward: "none", "attention" (of each layer), "full", or layers as in "0,1,2".
        optimised: with what the workload can fuse.
        precision: None for that of the model.
        optimizer: it keeps 2, 1 or 0 numbers a parameter.
        imbalance: tokens of the busiest GPU's experts / those of an average GPU's.
        overlap: 1F1B with exchanges under computation: one more forward in flight.
        stage_buffers: what other stages send is held while it is needed, or in buffers for "all" of a step.
        convention: "exact", or "brief" as AMD's MoE training guide counts in its charts.
        devices: does it fit there: names, TOML files (.toml) or devices.
        reserve_gib: of each device, not for training; by default 4.

    Returns:
        tables `fits` (with devices), `memory` and `ranks`.

    Raises:
        TracelensError: no such model, device or field, or a layout that cannot be.
    """
    from tracelens.planner.memory import memory

    words = {"pp": pp, "vpp": vpp, "ep": ep, "cp": cp, "tp": tp, "gpus": gpus, "mbs": mbs}
    fields = assignments({**words, "micro_batches": micro_batches, "seq": seq}, optimised, precision)
    again, layers = recomputation(recompute)
    taken = assumptions(precision, convention, optimizer, again, imbalance, overlap, stage_buffers)
    chosen = configs(model, [*fields, *layers, *texts(settings)], texts(layouts))
    return memory(chosen, taken, chosen_devices(devices), reserved(reserve_gib))


def texts(given: str | Sequence[str]) -> list[str]:
    """One text or several, as a list."""
    return [given] if isinstance(given, str) else list(given)


def field_text(text: str) -> str:
    """A text `field=value` by the name of the configuration's field."""
    name, separator, value = text.partition("=")
    return f"{FIELDS.get(name, name)}{separator}{value}"


def assignments(
    words: Mapping[str, object], optimised: bool = False, precision: Precision | None = None
) -> list[str]:
    """Texts `field=value` of what is given (not None), fused ops and precision last."""
    from tracelens.planner.config import OPTIMISED

    fields = [field_text(f"{name}={value}") for name, value in words.items() if value is not None]
    if optimised:
        fields += [f"{name}={value}" for name, value in OPTIMISED.items()]
    if precision is None:
        return fields
    main = precision in ("bf16", "bf16-fp32-gradients")
    dtype = "float32" if precision == "fp32" else "bfloat16"
    return [*fields, f"dtype={dtype}", f"main_params={str(main).lower()}"]


def assumptions(
    precision: Precision | None,
    convention: Convention,
    optimizer: Optimizer,
    recompute: Any,
    imbalance: float,
    overlap: bool,
    stage_buffers: StageBuffers,
) -> Assumptions:
    """What a projection takes for granted."""
    from tracelens.planner.memory import Assumptions

    return Assumptions(
        convention=convention,
        optimizer=optimizer,
        gradients="float32" if precision == "bf16-fp32-gradients" else "parameters",
        recompute=recompute,
        imbalance=imbalance,
        overlap=overlap,
        stage_buffers=stage_buffers,
    )


def recomputation(text: str | None) -> tuple[Any, list[str]]:
    """What is computed again: the assumption, and fields of the configuration."""
    if text is None:
        return "layers", []
    if text in ("none", "attention", "full"):
        return text, []
    if all(part.strip().isdigit() for part in text.split(",")):
        return "layers", [f"recompute_layer_ids={text}"]
    raise TracelensError(f"--recompute is none, attention, full, or layers as in 0,1,2, not {text!r}")


def configs(model: str | Config, fields: Sequence[str], layouts: Sequence[str]) -> Config | dict[str, Config]:
    """The run, or one for each layout by its text."""
    if not all(text.split() for text in layouts):
        raise TracelensError("--layout is empty: write fields, as in 'pp=24 ep=8 vpp=4'")
    # Commas stand inside values, too.
    own = {text: list(map(field_text, text.split())) for text in layouts}
    return {text: _config(model, [*fields, *more]) for text, more in own.items()} or _config(model, fields)


def _config(model: str | Config, fields: Sequence[str]) -> Config:
    """The run of a bundled model or a file, with enough micro-batches to fill a pipeline."""
    from tracelens.planner.config import override, read_config, read_file

    if not isinstance(model, str):
        return override(model, fields)
    file = read_file(model)
    values = {name: value for name, _, value in (text.partition("=") for text in fields)}
    pp = values.get("pp", str(file.settings.get("pp", 1)))
    if pp.isdecimal() and int(pp) > 1 and "micro_batches" not in values and not file.global_batch:
        fields = [*fields, f"micro_batches={2 * int(pp)}"]
    return read_config(model, fields)


def chosen_devices(given: str | Device | Sequence[str | Device]) -> list[Device]:
    """The devices of names and files (.toml); a name that is given twice counts once.

    Raises:
        TracelensError: no such device, a file that is none, or two devices of one name.
    """
    from tracelens.devices import Device, device, read_device

    selected: list[Device] = []
    seen = set()
    for item in [given] if isinstance(given, str | Device) else given:
        if isinstance(item, Device):
            selected.append(item)
        elif item not in seen:
            seen.add(item)
            selected.append(read_device(item) if item.endswith(".toml") else device(item))
    names = [item.name for item in selected]
    if twice := [name for name in names if names.count(name) > 1]:
        raise TracelensError(f"two devices are called {twice[0]}: change the name in the device file")
    return selected


def reserved(gib: float | None) -> int | None:
    """Bytes to leave free; raises TracelensError for what cannot be."""
    if gib is None:
        return None
    if not 0 <= gib < float("inf"):
        raise TracelensError(f"--reserve must be GiB, 0 or more, not {gib}")
    return round(gib * GIB)
