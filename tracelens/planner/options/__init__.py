"""What users write of a run that they plan, as the planner's own types: `--set`, `--layout`, `--assume`, ...

    configuration("moe_1t", assignments({"gpus": 768, "pp": 24, "mbs": 2}))
    space({"pp": "8,16"}, "ep=8,16")
    as_measured(Setting(["1f1b"], 0, 0), run)

A number, a text or several of them are taken alike, and errors name the option.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tracelens.arrays import Int
from tracelens.devices import Device, device, read_device
from tracelens.dtypes import element_bytes
from tracelens.errors import TracelensError, UnknownName
from tracelens.planner.config import OPTIMISED, Config, override, parse_value, read_config, read_file
from tracelens.planner.memory import Assumptions
from tracelens.units import GIB

if TYPE_CHECKING:
    from tracelens.planner.bounds import Operation, Platform
    from tracelens.planner.pipeline import Setting, TimesSource, Uniform
    from tracelens.planner.pipeline.measured import PipelineMeasurement
    from tracelens.planner.scaling import DispatchName, Request
    from tracelens.planner.search import Question, Space
    from tracelens.planner.step_time import Machine
    from tracelens.trace import Run

Devices: TypeAlias = "str | os.PathLike[str] | Device | Sequence[str | os.PathLike[str] | Device]"
Numbers: TypeAlias = int | str | Sequence[int]
"""One number, several, or a text like "24,48"."""

FIELDS = {"gpus": "ranks", "mbs": "micro_batch"}
"""Options to fields of a configuration, where they differ."""
MEGATRON = ("layers", "gradient_accumulation", "states", "main", "combined")
"""Fields of `Assumptions` that are options of Megatron-core."""
POLICIES = ("none", "attention", "full", "moe", "moe_act", "mla_up_proj")
"""What `--recompute` may name instead of layers."""
MICRO_BATCHES_PER_STAGE = 4
"""Default micro-batches per pipeline stage of a scaling projection, for a bubble of about a fifth."""
_OF_MEMORY = ("imbalance",)
"""Assumptions of the step time that matter to memory as well."""
_MOST = 1e12
"""A step of 1,000 s in ns, activations of 1,000 GB in bytes: sums of so large numbers still fit 64 bits."""

# Option to field of `Space`.
_AXES = {name: name for name in ("pp", "vpp", "ep", "cp", "tp", "micro_batch", "recompute")} | {
    "mbs": "micro_batch"
}
_ALONE = ("ranks=1", "pp=1", "vpp=1", "cp=1", "tp=1", "ep=0", "micro_batches=2")
"""A single GPU instead of the file's layout, which is searched for; two micro-batches can overlap."""
_SEARCHED = {name: f"give --{name}" for name in ("pp", "vpp", "cp", "tp", "ep")} | {
    "ranks": "give --gpus",
    "micro_batch": "give --mbs",
    "micro_batches": "give --global-batch",
    "recompute_layer_ids": "give --recompute",
    "pp_layout": "chunks are even",
}
"""Fields that settings of a search cannot set, and what to use instead."""
_SIMULATED = {
    "pp": "--pp",
    "vpp": "--vpp",
    "ranks": "--gpus",
    "micro_batches": "--micro-batches",
    "pp_layout": "--layout",
}
"""Fields that settings of a simulated pipeline cannot set, and what to use instead."""
_LAYER = ("experts", "topk", "hidden", "tokens")
_GEMM = re.compile(r"(\d+)x(\d+)x(\d+)")


def texts(values: str | Sequence[str]) -> list[str]:
    """One text or several, as a list."""
    return [values] if isinstance(values, str) else list(values)


def numbers(name: str, values: Numbers | Sequence[str]) -> tuple[int, ...]:
    """The numbers of an option; raises TracelensError for anything else."""
    listed = _listed(values)
    try:
        return tuple(map(int, listed))
    except ValueError:
        raise TracelensError(f"--{name} must be numbers, as in 8,16, not {','.join(listed)!r}") from None


def _listed(values: Numbers | Sequence[str]) -> list[str]:
    return str(values).split(",") if isinstance(values, int | str) else [str(value) for value in values]


def _whole(number: float) -> int:
    """A whole number of ns or bytes; raises TracelensError above _MOST."""
    if not number <= _MOST:  # nan, too
        raise TracelensError("a time must be at most 1,000 s, and activations at most 1,000 GB")
    return round(max(number, -1))


def chosen(devices: Devices) -> list[Device]:
    """Devices by name or from files; a repeated text counts once.

    Raises:
        TracelensError: unknown name, malformed file, or two devices of one name.
    """
    selected: list[Device] = []
    seen: set[str] = set()
    for item in [devices] if isinstance(devices, str | os.PathLike | Device) else devices:
        if isinstance(item, Device):
            selected.append(item)
        elif not isinstance(item, str) or item.endswith(".toml"):
            selected += [] if item in seen else [read_device(os.fspath(item))]
        else:
            selected += [] if item in seen else [device(item)]
        seen |= {item} if isinstance(item, str) else set()
    names = [item.name for item in selected]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise TracelensError(f"two devices are called {repeated[0]}: change the name in the device file")
    return selected


def assignments(
    sizes: Mapping[str, object], optimised: bool = False, precision: str | None = None
) -> list[str]:
    """Texts `field=value` of the sizes that are not None, then of fused kernels and precision."""
    assigned = [_field(f"{name}={value}") for name, value in sizes.items() if value is not None]
    if optimised:
        assigned += [f"{name}={value}" for name, value in OPTIMISED.items()]
    if precision is None:
        return assigned
    main = precision in ("bf16", "bf16-fp32-gradients")
    dtype = "float32" if precision == "fp32" else "bfloat16"
    return [*assigned, f"dtype={dtype}", f"main_params={str(main).lower()}"]


def _field(text: str) -> str:
    """A text `option=value` with the name of the configuration's field."""
    name, separator, value = text.partition("=")
    return f"{FIELDS.get(name, name)}{separator}{value}"


def configuration(model: str | Config, settings: Sequence[str]) -> Config:
    """A run with enough micro-batches to fill its pipeline."""
    if not isinstance(model, str):
        return override(model, settings)
    file = read_file(model)
    values = {name: value for name, _, value in (text.partition("=") for text in settings)}
    pp = values.get("pp", str(file.settings.get("pp", 1)))
    if pp.isdecimal() and int(pp) > 1 and "micro_batches" not in values and not file.global_batch:
        settings = [*settings, f"micro_batches={2 * int(pp)}"]
    return read_config(model, settings)


def configurations(
    model: str | Config, settings: Sequence[str], layouts: str | Sequence[str]
) -> Config | dict[str, Config]:
    """A run, or one for each layout by its text; raises TracelensError for an empty one."""
    names = texts(layouts)
    if not all(text.split() for text in names):
        raise TracelensError("--layout is empty: write fields, as in 'pp=24 ep=8 vpp=4'")
    if not names:
        return configuration(model, settings)
    return {text: configuration(model, [*settings, *map(_field, text.split())]) for text in names}


def recomputation(recompute: str | None) -> tuple[Any, list[str]]:
    """The policy of `Assumptions` and the settings of a text such as "full" or "0,1,2"."""
    if recompute is None or recompute in POLICIES:
        return recompute or "layers", []
    return "layers", [_recomputed_layers(recompute, ", ".join(POLICIES))]


def _recomputed_layers(text: str, policies: str) -> str:
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise TracelensError(f"--recompute is {policies}, or layers as in 0,1,2, not {text!r}")
    return f"recompute_layer_ids={text}"


def memory_assumptions(
    megatron: str | Sequence[str],
    precision: str | None,
    assume: str | Sequence[str] = (),
    is_timed: bool = False,
    **others: Any,
) -> Assumptions:
    """What the memory depends on beside the configuration.

    Args:
        megatron: texts `name=value` of MEGATRON.
        precision: of the run, as far as it says how gradients accumulate.
        assume: texts `name=value`, of which those of `_OF_MEMORY` matter.
        is_timed: the step time is projected as well, to which the others matter.
        others: fields of `Assumptions`.

    Raises:
        TracelensError: an unknown option of Megatron-core, or an unknown value; an assumption that does not
            matter.
    """
    of_memory = [text for text in texts(assume) if text.partition("=")[0] in _OF_MEMORY]
    of_step = [text for text in texts(assume) if text not in of_memory]
    if of_step and not is_timed:
        step_machine(of_step)  # refuses what is no assumption at all
        raise TracelensError(f"--assume {of_step[0]} is of the step time: add --search")
    defaults = {item.name: item.default for item in fields(Assumptions) if item.name in _OF_MEMORY}
    others |= assumed_values(of_memory, defaults)
    pairs = [text.partition("=")[::2] for text in texts(megatron)]
    if unknown := [name for name, _ in pairs if name not in MEGATRON]:
        raise TracelensError(f"--megatron takes {', '.join(MEGATRON)}, not {unknown[0]!r}")
    gradients: dict[str | None, Any] = {None: "auto", "bf16-fp32-gradients": "float32"}
    of_megatron: dict[str, Any] = dict(pairs)
    return Assumptions(**others, gradients=gradients.get(precision, "parameters"), **of_megatron)


def reserved(gib: float | None) -> int | None:
    """Bytes to keep free; raises TracelensError for invalid numbers."""
    if gib is None:
        return None
    if not 0 <= gib < float("inf"):
        raise TracelensError(f"--reserve must be GiB, 0 or more, not {gib}")
    return round(gib * GIB)


def assumed_values(assume: str | Sequence[str], defaults: Mapping[str, object]) -> dict[str, Any]:
    """Values of texts `name=value`, each of the type of its default.

    Raises:
        TracelensError: malformed text, or unknown name or value.
    """
    values: dict[str, Any] = {}
    for text in texts(assume):
        name, separator, value = text.partition("=")
        if not separator:
            raise TracelensError(f"--assume: {text!r} is not of the form name=value")
        if name not in defaults:
            raise UnknownName("assumption", name, defaults)
        values[name] = parse_value(name, value, defaults[name])
    return values


def step_machine(
    assume: str | Sequence[str],
    imbalance: float = 1.0,
    network: str = "",
    overlap: bool = False,
    base: Machine | None = None,
) -> Machine:
    """Assumptions of the step time: those of the network file, then single ones changed.

    Args:
        assume: texts `name=value`.
        imbalance: that of the memory projection.
        network: a bundled network or a network file; "" for none.
        overlap: 1F1B overlaps all-to-alls with computation.
        base: assumptions that these change, by default those of a projection.

    Raises:
        TracelensError: unknown network, malformed text, or unknown name or value.
    """
    from tracelens.planner.step_time import HELP, Machine, read_network

    base = base or Machine(imbalance=imbalance, exchange_overlap="1f1b" if overlap else "toggle")
    base = read_network(network).applied(base) if network else base
    known = {item.name: item.default for item in fields(Machine) if item.name in HELP}
    changes = assumed_values(assume, known)
    sources = tuple((name, source) for name, source in base.sources if name not in changes)
    return replace(base, **changes, sources=sources)


def space(values_of: Mapping[str, Numbers | Sequence[str]], layout: str = "") -> Space:
    """The layouts to try, which the fields of one --layout override.

    Raises:
        TracelensError: malformed layout, or a value that is not a number.
    """
    from tracelens.planner.search import Space

    axes = {name: _listed(values) for name, values in values_of.items()}
    for text in layout.split():
        name, separator, values = text.partition("=")
        if not separator:
            raise TracelensError(f"--layout: {text!r} is not of the form pp=24,48")
        if name not in _AXES:
            raise UnknownName("field of a layout to search", name, _AXES)
        axes[name] = values.split(",")
    recompute = tuple(part.strip() for part in axes.pop("recompute") if part.strip())
    sizes = {_AXES[name]: numbers(name, listed) for name, listed in axes.items() if listed}
    return replace(Space(), **sizes, recompute=recompute)


def question(model: str, settings: Sequence[str], global_batch: int | None, **others: Any) -> Question:
    """What a search is asked: `others` are fields of `Question`, and settings are texts `field=value`.

    Without a global batch, the sequences per step on all GPUs, that of the model file counts.

    Raises:
        TracelensError: unknown model or field, or a field whose values the search tries.
    """
    from tracelens.planner.search import BATCH, Question

    for text in settings:
        name, _, _ = text.partition("=")
        if name in _SEARCHED:
            raise TracelensError(f"--set {text}: --search tries values of {name}: {_SEARCHED[name]}")
    config = read_config(model, [*_ALONE, *settings])
    return Question(
        model=config.model,
        global_batch=(read_file(model).global_batch or BATCH) if global_batch is None else global_batch,
        training=config.training,
        toggles=config.toggles,
        **others,
    )


def scaling_request(
    model: str,
    eps: tuple[int, ...],
    sizes: Mapping[str, int | None],
    *,
    recompute: str | None,
    settings: str | Sequence[str],
    dispatch: str | Sequence[str],
    overlap: str | Sequence[str],
    assume: str | Sequence[str],
    network: str,
    routing: str,
) -> Request:
    """The runs of a scaling projection; without `pp` a stage has one group of the largest size if possible.

    Raises:
        TracelensError: unknown model, network, dispatch or field, or no routing in the file.
    """
    from tracelens.planner.scaling import Request

    file, sizes = read_file(model), dict(sizes)
    if sizes["pp"] is None and "pp" in file.settings:
        sizes["pp"] = int(str(file.settings["pp"]))
    elif sizes["pp"] is None:
        gpus = sizes["gpus"] or 0
        most = gpus // max(eps) if gpus % max(eps) == 0 else 1
        shards = (sizes["cp"] or 1) * (sizes["tp"] or 1)
        divisors = (size for size in range(min(most, file.model.layers), 0, -1) if most % size == 0)
        sizes["pp"] = next(size for size in divisors if gpus % (size * shards) == 0 or size == 1)
    if sizes["micro_batches"] is None:
        sizes["micro_batches"] = MICRO_BATCHES_PER_STAGE * (sizes["pp"] or 1)
    assigned = assignments({**sizes, "ep": 1}, optimised=True)
    if recompute not in (None, "none"):
        layers = ",".join(map(str, range(file.model.layers))) if recompute == "full" else recompute
        assigned.append(_recomputed_layers(layers or "", "none, full"))
    config = configuration(model, [*assigned, *texts(settings)])
    return Request(
        config=config,
        eps=eps,
        overlapped=_dispatches(overlap, without="none"),
        machine=step_machine(assume, network=network),
        network=network,
        expert_ids_TK=_routing(routing) if routing else None,
        dispatches=_dispatches(dispatch),
    )


def _dispatches(values: str | Sequence[str], without: str = "") -> tuple[DispatchName, ...]:
    """These ways to dispatch; raises UnknownName."""
    from tracelens.planner.scaling import DISPATCHES

    listed = (name.strip() for name in (values.split(",") if isinstance(values, str) else values))
    names, known = [name for name in listed if name not in ("", without)], {name: name for name in DISPATCHES}
    if wrong := [name for name in names if name not in known]:
        raise UnknownName("dispatch", wrong[0], known)
    return tuple(known[name] for name in names)  # type: ignore[index]  # all are known


def _routing(path: str) -> Int:
    """The experts of each token; raises TracelensError if the file has none."""
    try:
        ids = np.load(path, allow_pickle=False)
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise TracelensError(f"{path}: not a NumPy array: save the routing with numpy.save") from error
    if not isinstance(ids, np.ndarray):
        raise TracelensError(f"{path}: holds several arrays; save the routing alone as .npy")
    return ids


def platform(device: Device, nodes: int, gpus_per_node: int, assume: str | Sequence[str]) -> Platform:
    """The platform with the assumptions; raises TracelensError for malformed or unknown ones."""
    from tracelens.planner.bounds import HELP, Platform

    defaults = {item.name: item.default for item in fields(Platform) if item.name in HELP}
    return Platform(device, nodes, gpus_per_node, **assumed_values(assume, defaults))


def operations(
    all_to_all: str | Sequence[str],
    gemm_rs: str | Sequence[str],
    ag_gemm: str | Sequence[str],
    gpus: int,
    dtype: str,
) -> list[Operation]:
    """The collectives with their GEMMs; raises TracelensError for a malformed shape."""
    from tracelens.planner.bounds import all_gather_gemm, gemm_reduce_scatter, moe_all_to_all

    if not element_bytes(dtype):
        raise TracelensError(f"--dtype {dtype}: no element type of whole bytes, as bf16, fp16 or fp8")
    layers: list[tuple[int, int, int, int]] = []
    for text in texts(all_to_all):
        sizes = dict(part.partition("=")[::2] for part in text.split())
        if set(sizes) != set(_LAYER) or not all(size.isdecimal() and int(size) for size in sizes.values()):
            example = "experts=256 topk=8 hidden=7168 tokens=256"
            raise TracelensError(f"--all-to-all: {text!r} is not of the form {example!r}")
        experts, topk, hidden, tokens = (int(sizes[name]) for name in _LAYER)
        layers.append((experts, topk, hidden, tokens))
    return [
        *(moe_all_to_all(*layer, gpus, dtype, "expert") for layer in layers),
        *(moe_all_to_all(*layer, gpus, dtype, "GPU") for layer in layers),
        *(gemm_reduce_scatter(*_gemm("--gemm-rs", text), gpus, dtype) for text in texts(gemm_rs)),
        *(all_gather_gemm(*_gemm("--ag-gemm", text), gpus, dtype) for text in texts(ag_gemm)),
    ]


def _gemm(flag: str, text: str) -> tuple[int, int, int]:
    """(m, n, k) of a text such as '8192x8192x29568'."""
    match = _GEMM.fullmatch(text.strip().lower())
    if match is None:
        raise TracelensError(f"{flag}: {text!r} is not of the form 8192x8192x29568 (m x n x k)")
    m, n, k = map(int, match.groups())
    return m, n, k


def check_sources(sources: Mapping[str, tuple[object, Mapping[str, object]]]) -> None:
    """Raise TracelensError unless there is one source of times, with only the options that go with it."""
    for name, (source, options) in sources.items():
        for option, value in options.items():
            if source is None and value is not None:
                raise TracelensError(f"--{option} goes with {name}: give both or neither")
    if sum(source is not None for source, _ in sources.values()) != 1:
        raise TracelensError(
            "give one source of times: --forward-ms, --from with the traces of a run, or --model"
        )


def _names(schedules: Iterable[str], chunks: int) -> list[str]:
    """The schedules; the usual ones by default."""
    from tracelens.planner.pipeline import SCHEDULES

    names = list(schedules)
    if "all" in names:
        return [name for name in SCHEDULES if chunks > 1 or SCHEDULES[name].chunks != "any"]
    return names or (["1f1b", "interleaved"] if chunks > 1 else ["1f1b"])


def _completed(setting: Setting, stages: int, micro_batches: int, chunks: int, **of_source: Any) -> Setting:
    """What is simulated; raises TracelensError for chunks or turns that none of the schedules has."""
    from tracelens.planner.pipeline import SCHEDULES, find_chunks

    names = _names(setting.schedules, chunks)
    if setting.group and not any(name in SCHEDULES and SCHEDULES[name].chunks == "any" for name in names):
        raise TracelensError("--turn is for interleaved schedules: add --vpp, or leave it out")
    asked = setting.chunks
    if asked and asked not in (counts := [find_chunks(name, asked) for name in names]):
        raise TracelensError(
            f"none of the schedules has {asked} chunks per stage, at most {max(counts)}: change --vpp "
            "or --schedule"
        )
    return replace(
        setting, schedules=names, stages=stages, micro_batches=micro_batches, chunks=chunks, **of_source
    )


def _sizes(setting: Setting) -> tuple[int, int, int]:
    """Stages, micro-batches and chunks, if no run tells them."""
    if not setting.stages or not setting.micro_batches:
        raise TracelensError("give the stages and the micro-batches: --pp and --micro-batches")
    return setting.stages, setting.micro_batches, setting.chunks or 1


def setting(
    *,
    schedules: str | Sequence[str],
    pp: int | None,
    micro_batches: int | None,
    vpp: int | None,
    turn: int,
    partition: str,
    best_partition: bool,
) -> Setting:
    """What is said of a simulation; sizes that are not are 0."""
    from tracelens.planner.pipeline import Setting

    return Setting(
        schedules=texts(schedules),
        stages=pp or 0,
        micro_batches=micro_batches or 0,
        chunks=vpp or 0,
        group=turn,
        layout=partition,
        best=best_partition,
    )


def with_costs(
    setting: Setting, p2p_us: float | None, weight_share: float, activation_gb: float | None
) -> Setting:
    """The setting with the user's times of messages, share of weight gradients and bytes of activations."""
    costs = setting.costs._replace(weight_share=weight_share)
    if p2p_us is not None:
        transit = _whole(p2p_us * 1e3)
        costs = costs._replace(forward_transit=transit, backward_transit=transit)
    activation_bytes = -1 if activation_gb is None else _whole(activation_gb * 1e9)
    return replace(setting, costs=costs, activation_bytes=activation_bytes)


def uniform(
    setting: Setting, forward_ms: float, backward_ms: float | None, exchange_share: float, layers: int
) -> tuple[Setting, Uniform]:
    """Equal times on all stages; a backward takes twice the forward where nothing else is said."""
    from tracelens.planner.pipeline import Uniform

    sizes = _sizes(setting)
    backward_ms = 2 * forward_ms if backward_ms is None else backward_ms
    times = Uniform(_whole(forward_ms * 1e6), _whole(backward_ms * 1e6), exchange_share, layers)
    return _completed(setting, *sizes), times


def as_measured(
    setting: Setting, run: Run, layers: int = 0
) -> tuple[Setting, TimesSource, PipelineMeasurement]:
    """The times of a run, whose own stages, micro-batches and chunks take the place of those that are 0.

    The number of layers is for a trace in which no annotations name them.
    """
    from tracelens.planner.pipeline import find_chunks
    from tracelens.planner.pipeline.measured import measure, measured_costs, measured_source

    measured = measure(run)
    size = measured.size
    stages, chunks = setting.stages or size.stages, setting.chunks or size.chunks
    counts = [find_chunks(name, chunks) for name in _names(setting.schedules, chunks)]
    times = measured_source(measured, stages, counts, layers, bool(setting.layout or setting.best))
    is_same = (stages, chunks) == (size.stages, size.chunks)
    completed = _completed(
        setting,
        stages,
        setting.micro_batches or size.micro_batches,
        chunks,
        group=size.group if is_same and not setting.group else setting.group,
        costs=measured_costs(measured, stages),
        rest_ns=measured.rest_ns,
        times_from=f"as measured: the mean of {'equal layers' if times.layers else 'each chunk'}",
    )
    return completed, times, measured


def by_roofline(
    setting: Setting,
    model: str,
    target: str | None,
    layout: Mapping[str, int | None],
    settings: str | Sequence[str],
    layers: int = 0,
    assume: str | Sequence[str] = (),
) -> tuple[Setting, TimesSource]:
    """The times of a model by the peaks of the device `target`; `layout` are sizes of the run by option.

    `settings` are texts `field=value`, and `assume` texts `name=value` that change the roofline. `layers` may
    not be given: the model knows them.
    """
    from tracelens.planner.pipeline import activations, roofline
    from tracelens.planner.step_time import ROOFLINE

    if target is None:
        raise TracelensError("a roofline needs --device: see `tracelens list devices`")
    if layers:
        raise TracelensError("--model already has the number of layers: leave --layers out")
    for name in (text.partition("=")[0].strip() for text in texts(settings)):
        if own := _SIMULATED.get(name):
            raise TracelensError(f"--set {name}: use {own} instead")
    stages, count, chunks = _sizes(setting)
    # The schedule determines the chunks; a valid run has at least as many micro-batches as stages.
    sizes = {**layout, "pp": stages, "vpp": 1, "micro_batches": max(count, stages)}
    sizes["gpus"] = layout["gpus"] or stages
    config = read_config(model, [*assignments(sizes), "pp_layout=", *texts(settings)])
    peaks = device(target)
    machine = step_machine(assume, base=ROOFLINE)
    times, costs = roofline(config, peaks, machine)
    completed = _completed(
        setting,
        stages,
        count,
        chunks,
        costs=costs,
        kept=activations(config),
        times_from=f"roofline of {model} on {peaks.name} "
        f"({machine.step_times if machine == ROOFLINE else 'with ' + ', '.join(texts(assume))})",
    )
    return completed, times
