"""Projections of a training run before it exists, in the words of the command line.

`project_memory` says what a layout needs, `search_layouts` which layouts fit and how fast they are,
`project_scaling` how throughput grows with the GPUs that share the experts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tracelens.errors import TracelensError, UnknownName
from tracelens.session.request import (
    ApiRequest,
    CommandOption,
    OptionGroup,
    Texts,
    function_of,
    option,
)
from tracelens.units import GIB

if TYPE_CHECKING:
    from tracelens.arrays import Int
    from tracelens.devices import Device
    from tracelens.planner.config import Config
    from tracelens.planner.memory import Assumptions
    from tracelens.planner.scaling import DispatchName
    from tracelens.planner.search import Space
    from tracelens.planner.step_time import Machine
    from tracelens.table import Result

Devices: TypeAlias = "str | os.PathLike[str] | Device | Sequence[str | os.PathLike[str] | Device]"
Numbers: TypeAlias = int | str | Sequence[int]
"""One number, several, or a text like "24,48"."""
Precision: TypeAlias = Literal["bf16", "bf16-fp32-gradients", "bf16-no-main", "fp32"]

FIELDS = {"gpus": "ranks", "mbs": "micro_batch"}
"""Options to fields of a configuration, where they differ."""
MEGATRON = {
    "layers": "transformer-engine, or local (Megatron-core's own)",
    "gradient_accumulation": "of weight gradients: fused into their GEMM, or separate",
    "states": "type of the optimizer states: float32, or bfloat16",
    "main": "type of the main parameters: float32, or bfloat16",
}
"""Options of Megatron-core, and their values; the first is the default."""
MICRO_BATCHES_PER_STAGE = 4
"""Default micro-batches per pipeline stage of a scaling projection, for a bubble of about a fifth."""

LAYOUT, TRAINING, FIT, SEARCH = "Layout", "Training", "Fit", "Search"
COMPARED, TIME = "Compared", "Step time"
_FILE_OR_1 = "as in the model file, or 1"


def _number(text: str, panel: str, shown: str | None = None, doc: str = "") -> CommandOption:
    """A number of the layout; the command line takes several of them for a search."""
    return CommandOption(help=text, panel=panel, doc=doc, metavar="N", type=str | None, shown=shown)


MODEL = CommandOption(
    help="A bundled model (`tracelens list models`), or a file: .toml, Hugging Face config.json, Megatron or "
    "Primus YAML.",
    doc="a bundled model or a file (.toml, config.json, .yaml).",
    panel=LAYOUT,
    metavar="MODEL",
    type=str,
    complete="models",
)
GPUS = CommandOption(help="GPUs of the run.", panel=LAYOUT, metavar="N", min=1)
PP = _number(
    "Pipeline stages. With --search, this and the sizes below may be lists: 8,16.",
    LAYOUT,
    _FILE_OR_1,
    doc="pipeline stages.",
)
EP = _number("GPUs that share the experts.", LAYOUT, "all GPUs of a pipeline stage")
CP = _number("GPUs that share a sequence.", LAYOUT, _FILE_OR_1)
TP = _number("GPUs that share each dense matrix.", LAYOUT, _FILE_OR_1)
VPP = _number("Model chunks per stage (interleaved pipeline).", LAYOUT, _FILE_OR_1)
MBS = _number("Sequences per micro-batch.", TRAINING, "as in the model")
SEQ = CommandOption(help="Tokens per sequence.", panel=TRAINING, metavar="N", min=1, shown="as in the model")
RECOMPUTE = CommandOption(
    help="Recompute in the backward pass: none, attention (of each layer), full (each layer), or layers as "
    "in 0,1,2; in Megatron-core also moe, moe_act or mla_up_proj. With --search, what to try: none, full, or "
    "a number of layers per chunk, as in none,2,full.",
    panel=TRAINING,
    metavar="LAYERS",
)
LAYOUTS = CommandOption(
    help="A layout to compare, as in 'pp=24 ep=8 vpp=4', or to try with --search, as in 'pp=24 ep=8,16'. "
    "Repeatable.",
    panel=LAYOUT,
    name="layout",
    metavar="FIELDS",
)
SETTINGS = CommandOption(
    help="Any other field of model, layout, toggles or training, as in sync_free=2. Repeatable.",
    panel=TRAINING,
    name="set",
    metavar="FIELD=VALUE",
)
DEVICES = CommandOption(
    help="Check this device (`tracelens list devices`). Repeatable.",
    doc="to check the fit on: names, TOML files (.toml or a Path) or devices.",
    panel=FIT,
    name="device",
    metavar="NAME",
    type=list[str] | None,
    complete="devices",
    file=CommandOption(help="Check the device in this TOML file. Repeatable.", panel=FIT, metavar="FILE"),
)
ASSUME = CommandOption(
    help="An assumption of the step time, as in nic_bytes_per_s=25e9; the result lists all. Repeatable.",
    metavar="NAME=VALUE",
)


class Trained(OptionGroup, panel=TRAINING):
    """How a model is trained, and what of it is counted."""

    optimizer: Literal["adamw", "momentum", "sgd"] = option(
        "adamw keeps 2 states per parameter, momentum 1, sgd 0.", default="adamw"
    )
    precision: Precision | None = option(
        "bf16 keeps main parameters and optimizer states in float32, bf16-fp32-gradients gradients as well; "
        "bf16-no-main keeps all in bfloat16.",
        default=None,
        shown="as in the model; in Megatron-core bf16-fp32-gradients",
    )
    optimised: bool = option(
        "Use fused kernels: experts=grouped permute=fused router=fused loss=fused.", default=False
    )
    imbalance: float = option(
        "Tokens of the busiest GPU's experts / mean over GPUs.",
        doc="ratio of the tokens of the busiest GPU's experts to the mean over GPUs.",
        metavar="RATIO",
        default=1.0,
    )
    overlap: bool = option(
        "1F1B with overlapped all-to-alls: one more forward in flight; --search overlaps them as well.",
        doc="1F1B with overlapped all-to-alls: one more forward in flight; the step time of a search "
        "overlaps them as well.",
        default=False,
    )
    stage_buffers: Literal["in_flight", "all"] = option(
        "Hold activations from other stages while they are needed (in_flight), or in buffers for all "
        "micro-batches (all), as torch's schedules do.",
        default="in_flight",
    )
    framework: Literal["megatron", "workload", "amd-guide"] = option(
        "What to count: Megatron-core's tensors and what its allocator reserves (megatron), the tensors of "
        "the reference workload (workload), or as the two memory charts of AMD's MoE training guide do "
        "(amd-guide).",
        default="megatron",
    )
    megatron: Texts = option(
        "An option of Megatron-core: layers=local (without Transformer Engine), "
        "gradient_accumulation=separate, states=bfloat16 or main=bfloat16 (precision-aware optimizer). "
        "Repeatable.",
        metavar="NAME=VALUE",
        default=(),
    )
    settings: Texts = option(SETTINGS, default=())
    reserve_gib: float | None = option(
        "GiB of each device to keep free for the driver and communication contexts.",
        FIT,
        name="reserve",
        metavar="GIB",
        default=None,
        shown="4; with --framework amd-guide, all above the nameplate",
    )

    def assumptions(self, policy: Any = "layers") -> Assumptions:
        """What the memory depends on beside the configuration; raises TracelensError for unknown options."""
        from tracelens.planner.memory import Assumptions

        pairs = [text.partition("=")[::2] for text in texts(self.megatron)]
        if unknown := [name for name, _ in pairs if name not in MEGATRON]:
            raise TracelensError(f"--megatron takes {', '.join(MEGATRON)}, not {unknown[0]!r}")
        gradients: dict[str | None, Any] = {None: "auto", "bf16-fp32-gradients": "float32"}
        return Assumptions(
            framework=self.framework,
            optimizer=self.optimizer,
            gradients=gradients.get(self.precision, "parameters"),
            recompute=policy,
            imbalance=self.imbalance,
            overlap=self.overlap,
            stage_buffers=self.stage_buffers,
            **dict(pairs),  # type: ignore[arg-type]  # the planner checks their values
        )

    def reserved(self) -> int | None:
        """Bytes to keep free; raises TracelensError for invalid numbers."""
        gib = self.reserve_gib
        if gib is None:
            return None
        if not 0 <= gib < float("inf"):
            raise TracelensError(f"--reserve must be GiB, 0 or more, not {gib}")
        return round(gib * GIB)


class MemorySizes(OptionGroup):
    """The layout of a run whose memory is projected."""

    model: str | Config = option(
        MODEL, doc="a bundled model, a file (.toml, config.json, .yaml), or a configuration.", kw_only=False
    )
    gpus: int | None = option(GPUS, default=None, shown="1")
    pp: int | None = option(PP, default=None)
    ep: int | None = option(EP, default=None)
    cp: int | None = option(CP, default=None)
    tp: int | None = option(TP, default=None)
    vpp: int | None = option(VPP, default=None)
    mbs: int | None = option(MBS, default=None)
    seq: int | None = option(SEQ, default=None)
    micro_batches: int | None = option(
        "Micro-batches per step on each data-parallel rank; beyond 2 x pp, more add no memory.",
        TRAINING,
        metavar="N",
        default=None,
        min=1,
        shown="2 x pp in a pipeline",
    )
    layouts: Texts = option(LAYOUTS, doc='to compare, each like "pp=24 ep=8 vpp=4".', default=())
    recompute: str | None = option(
        RECOMPUTE,
        doc='in the backward: "none", "attention" (of each layer), "full", or layers as in "0,1,2"; in '
        'Megatron-core also "moe", "moe_act" or "mla_up_proj".',
        default=None,
    )


class MemoryRequest(Trained, MemorySizes, ApiRequest["Result"]):
    """Memory per GPU at the peak of a training step, by component and pipeline rank.

    Returns:
        tables `fits` (with devices), `memory` and `ranks`.

    Raises:
        TracelensError: unknown model, device or field, or an invalid layout.
    """

    devices: Devices = option(DEVICES, default=())

    def answer(self) -> Result:
        """The memory of each layout."""
        from tracelens.planner.memory import memory

        names = ("pp", "vpp", "ep", "cp", "tp", "gpus", "mbs", "micro_batches", "seq")
        settings = assignments({name: getattr(self, name) for name in names}, self.optimised, self.precision)
        policy: Any = "layers"
        if self.recompute in ("none", "attention", "full", "moe", "moe_act", "mla_up_proj"):
            policy = self.recompute
        elif self.recompute is not None:
            if not all(part.strip().isdigit() for part in self.recompute.split(",")):
                raise TracelensError(
                    "--recompute is none, attention, full, moe, moe_act, mla_up_proj, or layers as in 0,1,2, "
                    f"not {self.recompute!r}"
                )
            settings.append(f"recompute_layer_ids={self.recompute}")
        settings += texts(self.settings)
        assumptions, layouts = self.assumptions(policy), texts(self.layouts)
        if not all(text.split() for text in layouts):
            raise TracelensError("--layout is empty: write fields, as in 'pp=24 ep=8 vpp=4'")
        of_layout = {
            text: configuration(self.model, [*settings, *map(_field, text.split())]) for text in layouts
        }
        runs = of_layout or configuration(self.model, settings)
        return memory(runs, assumptions, resolved(self.devices), self.reserved())


project_memory = function_of("project_memory", MemoryRequest)

# Option to field of `Space`.
_AXES = {name: name for name in ("pp", "vpp", "ep", "cp", "tp", "micro_batch", "recompute")} | {
    "mbs": "micro_batch"
}
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


class SearchRequest(Trained, ApiRequest["Result"], panel=SEARCH):
    """Layouts of a model that fit on a number of GPUs, shortest step first.

    Returns:
        tables `layouts` (shortest step first), `parts` of their steps, `refused` and `assumptions`.

    Raises:
        TracelensError: unknown model, device or field, or values that cannot be tried.
    """

    model: str = option(MODEL, kw_only=False)
    gpus: int = option(GPUS, kw_only=False)
    devices: Devices = option(
        DEVICES, doc="to fit on: names, TOML files (.toml or a Path) or devices.", kw_only=False
    )
    pp: Numbers = option(
        PP, doc='pipeline stages to try: 8, (8, 16) or "8,16"; by default all sensible ones.', default=()
    )
    ep: Numbers = option(EP, doc="GPUs that share the experts, likewise.", default=())
    cp: Numbers = option(CP, doc="GPUs that share a sequence, likewise.", default=())
    tp: Numbers = option(TP, doc="GPUs that share each dense matrix, likewise.", default=())
    vpp: Numbers = option(VPP, doc="model chunks per stage, likewise.", default=())
    mbs: Numbers = option(MBS, doc="sequences per micro-batch, likewise.", default=())
    seq: int | None = option(SEQ, default=None)
    layouts: Texts = option(LAYOUTS, doc='to try, each like "pp=24 ep=8,16".', default=())
    recompute: Texts = option(
        RECOMPUTE, doc='layers per chunk to recompute, like "none,2,full".', type=str | None, default=()
    )
    global_batch: int | None = option(
        "Sequences per step on all GPUs.",
        metavar="N",
        default=None,
        min=1,
        shown="as in the model file, or 15360",
    )
    assume: Texts = option(ASSUME, default=())
    network: str = option(
        "Network of the step time: a bundled one, as in mi300x-8x400g, or a TOML file.",
        metavar="FILE",
        default="",
        complete="networks",
    )
    top: int = option(
        "Layouts to show per device.", metavar="N", type=int | None, default=10, min=1, shown="10"
    )

    def answer(self) -> Result:
        """The layouts, ranked."""
        from tracelens.planner.config import read_config, read_file
        from tracelens.planner.search import BATCH, Question, search

        assumptions = self.assumptions()
        settings = [
            *assignments({"seq": self.seq}, self.optimised, self.precision), *texts(self.settings)
        ]  # fmt: skip
        spaces = [self._space(text) for text in texts(self.layouts)] or [self._space()]
        if not (targets := resolved(self.devices)):
            raise TracelensError(
                "--search needs a device to fit: give --device; see `tracelens list devices`"
            )
        machine = step_machine(texts(self.assume), self.imbalance, self.network, self.overlap)
        for text in settings:
            name, _, _ = text.partition("=")
            if name in _SEARCHED:
                raise TracelensError(f"--set {text}: --search tries values of {name}: {_SEARCHED[name]}")
        config = read_config(self.model, [*(f"{name}={value}" for name, value in _ALONE.items()), *settings])
        batch = self.global_batch
        question = Question(
            model=config.model,
            gpus=self.gpus,
            global_batch=(read_file(self.model).global_batch or BATCH) if batch is None else batch,
            training=config.training,
            toggles=config.toggles,
            memory=assumptions,
            machine=machine,
            reserve=self.reserved(),
        )
        return search(question, targets, spaces, self.top)

    def _space(self, layout: str = "") -> Space:
        """The layouts of the options, which the fields of one --layout override.

        Raises:
            TracelensError: malformed layout, or a value that is not a number.
        """
        from tracelens.planner.search import Space

        names = ("pp", "vpp", "ep", "cp", "tp", "mbs", "recompute")
        values_of = {name: _listed(getattr(self, name)) for name in names}
        for text in layout.split():
            name, separator, values = text.partition("=")
            if not separator:
                raise TracelensError(f"--layout: {text!r} is not of the form pp=24,48")
            if name not in _AXES:
                raise UnknownName("field of a layout to search", name, _AXES)
            values_of[name] = values.split(",")
        recompute = tuple(part.strip() for part in values_of.pop("recompute") if part.strip())
        sizes = {_AXES[name]: _numbers(name, values) for name, values in values_of.items() if values}
        return replace(Space(), **sizes, recompute=recompute)


search_layouts = function_of("search_layouts", SearchRequest)


class ScalingRequest(ApiRequest["Result"], panel=LAYOUT):
    """Throughput over the GPUs that share the experts, and where the time of a step goes.

    Returns:
        tables `scaling`, `breakdown`, `exchange`, `assumptions`, and `published` for the run of a published
        measurement.

    Raises:
        TracelensError: unknown model, device, network or field, or no valid layout.
    """

    model: str = option(MODEL, kw_only=False)
    gpus: int = option(GPUS, kw_only=False)
    device: Devices = option(
        "Device (`tracelens list devices`) or device file (.toml).",
        TIME,
        doc="that it runs on: a name, a TOML file (.toml or a Path) or a device.",
        metavar="NAME",
        type=str,
        complete="devices",
        kw_only=False,
    )
    ep: Numbers = option(
        "GPUs that share the experts, as in 8,16,32,64.",
        COMPARED,
        doc='GPUs that share the experts: 8, (8, 16) or "8,16".',
        metavar="LIST",
        type=str,
    )
    dispatch: Texts = option(
        "Ways to dispatch tokens: alltoall, dedup, deepep. Speedups are over the first.",
        COMPARED,
        doc='ways to dispatch tokens: "alltoall", "dedup" (a copy per rank) or "deepep" (a copy per node '
        "over the network, then per rank); the first one is the baseline.",
        metavar="LIST",
        type=str,
        default="alltoall,deepep",
    )
    overlap: Texts = option(
        "Dispatches that 1F1B overlaps with the computation of another micro-batch; none for none.",
        COMPARED,
        metavar="LIST",
        type=str,
        default="deepep",
    )
    network: str = option(
        "A bundled network, as in mi300x-8x400g, or a TOML file with nodes, links and NICs.",
        TIME,
        metavar="FILE",
        default="",
        shown="400 Gb/s per GPU at line rate",
        complete="networks",
    )
    assume: Texts = option(
        ASSUME,
        TIME,
        help="An assumption of the step time, as in jitter=0.05; the result lists all. Repeatable.",
        default=(),
    )
    routing: str = option(
        "Recorded routing: a NumPy file (.npy) with the experts of each token of a layer, one row per token.",
        TIME,
        metavar="FILE",
        default="",
        shown="balanced",
    )
    pp: int | None = option(
        "Pipeline stages.",
        metavar="N",
        default=None,
        min=1,
        shown="as in the model file, or one expert group of the largest --ep each",
    )
    vpp: int | None = option(VPP, type=int | None, default=None, min=1)
    cp: int | None = option(CP, type=int | None, default=None, min=1)
    tp: int | None = option(TP, type=int | None, default=None, min=1)
    mbs: int | None = option(MBS, type=int | None, default=None, min=1, shown="as in the model, or 1")
    micro_batches: int | None = option(
        "Micro-batches per step on each data-parallel rank.",
        TRAINING,
        metavar="N",
        default=None,
        min=1,
        shown="4 x pp",
    )
    seq: int | None = option(SEQ, default=None)
    recompute: str | None = option(
        "Recompute in the backward pass: none, full, or layers as in 0,1,2.",
        TRAINING,
        metavar="LAYERS",
        default=None,
        shown="none",
    )
    settings: Texts = option(SETTINGS, default=())

    def answer(self) -> Result:
        """The projection for each number of GPUs that share the experts."""
        from tracelens.planner.config import read_file
        from tracelens.planner.scaling import Request, scaling

        devices, eps = resolved(self.device), _numbers("ep", self.ep)
        if len(devices) != 1:
            raise TracelensError("a scaling projection is for one device: give --device once")
        pp = self.pp
        if pp is None:
            # One group of the largest size per stage, if the layers allow.
            file = read_file(self.model)
            most = self.gpus // max(eps) if self.gpus % max(eps) == 0 else 1
            shards = (self.cp or 1) * (self.tp or 1)
            divisors = (size for size in range(min(most, file.model.layers), 0, -1) if most % size == 0)
            fitting = (size for size in divisors if self.gpus % (size * shards) == 0 or size == 1)
            pp = int(str(file.settings["pp"])) if "pp" in file.settings else next(fitting)
        micro_batches = self.micro_batches
        if micro_batches is None:
            micro_batches = MICRO_BATCHES_PER_STAGE * (pp or 1)
        sizes = {name: getattr(self, name) for name in ("gpus", "vpp", "cp", "tp", "mbs", "seq")}
        sizes |= {"pp": pp, "micro_batches": micro_batches, "ep": 1}
        settings = assignments(sizes, optimised=True)
        if self.recompute not in (None, "none"):
            layers = self.recompute
            if layers == "full":
                layers = ",".join(map(str, range(read_file(self.model).model.layers)))
            if not all(part.strip().isdigit() for part in layers.split(",")):
                raise TracelensError(f"--recompute is none, full, or layers as in 0,1,2, not {layers!r}")
            settings.append(f"recompute_layer_ids={layers}")
        config = configuration(self.model, [*settings, *texts(self.settings)])
        overlapped = _dispatches(name for name in _names(self.overlap) if name != "none")
        request = Request(
            config=config,
            eps=eps,
            overlapped=overlapped,
            machine=step_machine(texts(self.assume), network=self.network),
            network=self.network,
            expert_ids_TK=_routing(self.routing) if self.routing else None,
            dispatches=_dispatches(_names(self.dispatch)),
        )
        return scaling(request, devices[0])


project_scaling = function_of("project_scaling", ScalingRequest)


def _routing(path: str) -> Int:
    """The experts of each token; raises TracelensError if the file has none."""
    import numpy as np

    try:
        ids = np.load(path, allow_pickle=False)
    except OSError as error:
        raise TracelensError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise TracelensError(f"{path}: not a NumPy array: save the routing with numpy.save") from error
    if not isinstance(ids, np.ndarray):
        raise TracelensError(f"{path}: holds several arrays; save the routing alone as .npy")
    return ids


def _names(values: Texts) -> list[str]:
    listed = values.split(",") if isinstance(values, str) else values
    return [name.strip() for name in listed if name.strip()]


def _dispatches(names: Iterable[str]) -> tuple[DispatchName, ...]:
    """These ways to dispatch; raises UnknownName."""
    from tracelens.planner.scaling import DISPATCHES

    chosen, known = list(names), {name: name for name in DISPATCHES}
    if wrong := [name for name in chosen if name not in known]:
        raise UnknownName("dispatch", wrong[0], known)
    return tuple(known[name] for name in chosen)  # type: ignore[index]  # all are known


def texts(values: Texts) -> list[str]:
    """One text or several, as a list."""
    return [values] if isinstance(values, str) else list(values)


def _listed(values: Numbers | Sequence[str]) -> list[str]:
    return str(values).split(",") if isinstance(values, int | str) else [str(value) for value in values]


def _numbers(name: str, values: Numbers | Sequence[str]) -> tuple[int, ...]:
    """The numbers of an option; raises TracelensError for anything else."""
    listed = _listed(values)
    try:
        return tuple(map(int, listed))
    except ValueError:
        raise TracelensError(f"--{name} must be numbers, as in 8,16, not {','.join(listed)!r}") from None


def _field(text: str) -> str:
    """A text `option=value` with the name of the configuration's field."""
    name, separator, value = text.partition("=")
    return f"{FIELDS.get(name, name)}{separator}{value}"


def assignments(
    sizes: Mapping[str, object], optimised: bool = False, precision: Precision | None = None
) -> list[str]:
    """Texts `field=value` of the sizes that are not None, then of fused kernels and precision."""
    from tracelens.planner.config import OPTIMISED

    assigned = [_field(f"{name}={value}") for name, value in sizes.items() if value is not None]
    if optimised:
        assigned += [f"{name}={value}" for name, value in OPTIMISED.items()]
    if precision is None:
        return assigned
    main = precision in ("bf16", "bf16-fp32-gradients")
    dtype = "float32" if precision == "fp32" else "bfloat16"
    return [*assigned, f"dtype={dtype}", f"main_params={str(main).lower()}"]


def configuration(model: str | Config, settings: Sequence[str]) -> Config:
    """A run with enough micro-batches to fill its pipeline."""
    from tracelens.planner.config import override, read_config, read_file

    if not isinstance(model, str):
        return override(model, settings)
    file = read_file(model)
    values = {name: value for name, _, value in (text.partition("=") for text in settings)}
    pp = values.get("pp", str(file.settings.get("pp", 1)))
    if pp.isdecimal() and int(pp) > 1 and "micro_batches" not in values and not file.global_batch:
        settings = [*settings, f"micro_batches={2 * int(pp)}"]
    return read_config(model, settings)


def assumed_values(assume: Sequence[str], defaults: Mapping[str, object]) -> dict[str, Any]:
    """Values of texts `name=value`, each of the type of its default.

    Raises:
        TracelensError: malformed text, or unknown name or value.
    """
    from tracelens.planner.config import parse_value

    values: dict[str, Any] = {}
    for text in assume:
        name, separator, value = text.partition("=")
        if not separator:
            raise TracelensError(f"--assume: {text!r} is not of the form name=value")
        if name not in defaults:
            raise UnknownName("assumption", name, defaults)
        values[name] = parse_value(name, value, defaults[name])
    return values


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
    return replace(base, **changes, sources=sources)


def resolved(devices: Devices) -> list[Device]:
    """Devices by name or from files; a repeated text counts once.

    Raises:
        TracelensError: unknown name, malformed file, or two devices of one name.
    """
    from tracelens.devices import Device, device, read_device

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
