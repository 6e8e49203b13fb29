"""The layout search in the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from tracelens.errors import TracelensError, UnknownName
from tracelens.session.memory import (
    Devices,
    Framework,
    Optimizer,
    Precision,
    StageBuffers,
    assignments,
    assumed_values,
    gradients,
    megatron_options,
    reserved,
    resolved,
    texts,
)

if TYPE_CHECKING:
    from tracelens.planner.memory import Assumptions
    from tracelens.planner.search import Question, Space
    from tracelens.planner.step_time import Machine
    from tracelens.table import Result

Numbers = int | str | Sequence[int]
"""One number, several, or a text like "24,48"."""

# Option to field of `Space`.
_AXES = {
    "pp": "pp", "vpp": "vpp", "ep": "ep", "cp": "cp", "tp": "tp", "mbs": "micro_batch",
    "micro_batch": "micro_batch", "recompute": "recompute",
}  # fmt: skip
_ALONE = {"ranks": 1, "pp": 1, "vpp": 1, "cp": 1, "tp": 1, "ep": 0, "micro_batches": 2}
"""A single GPU instead of the file's layout, which is searched for; two micro-batches can overlap."""
_SEARCHED = {name: f"give --{name}" for name in ("pp", "vpp", "cp", "tp", "ep")} | {
    "ranks": "give --gpus",
    "micro_batch": "give --mbs",
    "micro_batches": "give --global-batch",
    "recompute_layer_ids": "give --recompute",
    "pp_layout": "chunks are even",
}
"""Fields that settings cannot set, and what to use instead."""


def search_layouts(
    model: str, gpus: int, devices: Devices, *, pp: Numbers = (), ep: Numbers = (), cp: Numbers = (),
    tp: Numbers = (), vpp: Numbers = (), mbs: Numbers = (), recompute: str | Sequence[str] = (),
    layouts: str | Sequence[str] = (), global_batch: int | None = None, seq: int | None = None,
    settings: str | Sequence[str] = (), assume: str | Sequence[str] = (), optimised: bool = False,
    precision: Precision | None = None, optimizer: Optimizer = "adamw", imbalance: float = 1.0,
    overlap: bool = False, stage_buffers: StageBuffers = "in_flight", framework: Framework = "megatron",
    megatron: str | Sequence[str] = (), reserve_gib: float | None = None, top: int = 10, network: str = "",
) -> Result:  # fmt: skip
    """Layouts of a model that fit on a number of GPUs, shortest step first.

    Args:
        model: a bundled model or a file (.toml, config.json, .yaml).
        gpus: of the run.
        devices: to fit on: names, TOML files (.toml or a Path) or devices.
        pp: pipeline stages to try: 8, (8, 16) or "8,16"; by default all sensible ones.
        ep: GPUs that share the experts, likewise.
        cp: GPUs that share a sequence, likewise.
        tp: GPUs that share each dense matrix, likewise.
        vpp: model chunks per stage, likewise.
        mbs: sequences per micro-batch, likewise.
        recompute: layers per chunk to recompute, like "none,2,full".
        layouts: to try, each like "pp=24 ep=8,16".
        global_batch: sequences per step on all GPUs; by default as in the file, or 15360.
        seq: tokens per sequence.
        settings: other fields, each like "sync_free=2".
        assume: assumptions of the step time, each like "nic_bytes_per_s=25e9".
        network: a bundled network or a network file (.toml), for the step time.
        optimised: this and what follows as for `project_memory`.
        precision: see there.
        optimizer: see there.
        imbalance: see there, a ratio.
        overlap: see there; the step time overlaps them as well.
        stage_buffers: see there.
        framework: see there.
        megatron: see there.
        reserve_gib: see there.
        top: layouts to show per device.

    Returns:
        tables `layouts` (shortest step first), `parts` of their steps, `refused` and `assumptions`.

    Raises:
        TracelensError: unknown model, device or field, or values that cannot be tried.
    """
    from tracelens.planner.memory import Assumptions
    from tracelens.planner.search import search

    assumptions = Assumptions(
        framework, optimizer, gradients(precision), imbalance=imbalance, overlap=overlap,
        stage_buffers=stage_buffers, **megatron_options(megatron),
    )  # fmt: skip
    settings_texts = [*assignments({"seq": seq}, optimised, precision), *texts(settings)]
    axes = {"pp": pp, "vpp": vpp, "ep": ep, "cp": cp, "tp": tp, "mbs": mbs, "recompute": recompute}
    spaces = [_space(axes, text) for text in texts(layouts)] or [_space(axes)]
    if not (targets := resolved(devices)):
        raise TracelensError("--search needs a device to fit: give --device; see `tracelens list devices`")
    machine = step_machine(texts(assume), imbalance, network, overlap)
    question = _question(model, gpus, global_batch, settings_texts, assumptions, machine, reserve_gib)
    return search(question, targets, spaces, top)


def _question(
    model: str,
    gpus: int,
    global_batch: int | None,
    settings: Sequence[str],
    memory: Assumptions,
    machine: Machine,
    reserve_gib: float | None,
) -> Question:
    """The question to the search.

    Raises:
        TracelensError: an unknown setting, or one that the search decides.
    """
    from tracelens.planner.config import read_config, read_file
    from tracelens.planner.search import BATCH, Question

    for text in settings:
        name, _, _ = text.partition("=")
        if name in _SEARCHED:
            raise TracelensError(f"--set {text}: --search tries values of {name}: {_SEARCHED[name]}")
    config = read_config(model, [*(f"{name}={value}" for name, value in _ALONE.items()), *settings])
    batch = (read_file(model).global_batch or BATCH) if global_batch is None else global_batch
    parts = config.model, gpus, batch, config.training, config.toggles
    return Question(*parts, memory, machine, reserved(reserve_gib))


def _space(axes: Mapping[str, Numbers | Sequence[str]], layout: str = "") -> Space:
    """The layouts of the options, which the fields of one --layout override.

    Raises:
        TracelensError: malformed layout, or a value that is not a number.
    """
    from tracelens.planner.search import Space

    values_of = {name: _texts(values) for name, values in axes.items()}
    for text in layout.split():
        name, separator, values = text.partition("=")
        if not separator:
            raise TracelensError(f"--layout: {text!r} is not of the form pp=24,48")
        if name not in _AXES:
            raise UnknownName("field of a layout to search", name, _AXES)
        values_of[name] = values.split(",")
    recompute = tuple(part.strip() for part in values_of.pop("recompute") if part.strip())
    sizes = {_AXES[name]: numbers(name, values) for name, values in values_of.items() if values}
    return replace(Space(), **sizes, recompute=recompute)


def _texts(values: Numbers | Sequence[str]) -> list[str]:
    if isinstance(values, int | str):
        return str(values).split(",")
    return [str(value) for value in values]


def numbers(name: str, values: Numbers | Sequence[str]) -> tuple[int, ...]:
    """The numbers of an option; raises TracelensError for anything else."""
    listed = _texts(values)
    try:
        return tuple(map(int, listed))
    except ValueError:
        raise TracelensError(f"--{name} must be numbers, as in 8,16, not {','.join(listed)!r}") from None


def step_machine(
    assume: Sequence[str], imbalance: float = 1.0, network: str = "", overlap: bool = False
) -> Machine:
    """Assumptions of the step time: those of the network file, then single ones changed.

    Args:
        assume: texts `name=value`.
        imbalance: that of the memory projection.
        network: a bundled network or a network file; "" for none.
        overlap: 1F1B overlaps all-to-alls with computation.

    Raises:
        TracelensError: unknown network, malformed text, or unknown name or value.
    """
    from tracelens.planner.step_time import HELP, Machine, read_network

    base = Machine(imbalance=imbalance, exchange_overlap="1f1b" if overlap else "toggle")
    base = read_network(network).applied(base) if network else base
    known = {item.name: item.default for item in fields(Machine) if item.name in HELP.keys() - {"imbalance"}}
    changes = assumed_values(assume, known)
    sources = tuple((name, source) for name, source in base.sources if name not in changes)
    return replace(base, **changes, sources=sources)  # type: ignore[arg-type]  # of the kinds of its defaults
